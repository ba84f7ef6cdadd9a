"""The bytes: an entry of a list (the original's JSON), the record beside it, and the end of an attempt.

A record is `feed:attempt:length:` and then so many bytes of JSON, and then the payload as it is: scripts read the
numbers without decoding anything.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from scheduler.dialects.interface import Note
from scheduler.dialects.reliable.keys import LEVELS
from scheduler.errors import WireError
from scheduler.model.attempts import AttemptEnd, QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.states import State

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATER = datetime(9999, 1, 1, tzinfo=UTC)
FILE = "file"
PRIORITIES = tuple(Priority)
STATES = {state.value: state for state in State}
ID = re.compile(rb'"id": ?"([^"]+)"')
OURS = b'{"id":"'
RETRIES = re.compile(rb'"retries": ?\d+')
MILLISECOND = timedelta(milliseconds=1)
MICROSECOND = timedelta(microseconds=1)


def entry_of(job: QueuedJob, words: Sequence[str] = LEVELS) -> bytes:
    """Write a job as the lists have it."""
    created = job.created_at.isoformat().replace("+00:00", "Z")
    return (
        f'{{"id":"{job.id}","filepath":"","filesize":0,"priority":"{words[job.priority]}","retries":{job.attempt},'
        f'"creation_time":"{created}","trace_id":"","span_id":""}}'
    ).encode()


def record_of(job: QueuedJob) -> bytes:
    """Write what an entry has no place for."""
    head: dict[str, Any] = {
        "tenant": job.tenant,
        "type": job.type,
        "priority": job.priority,
        "created": job.created_at,
        "expires": job.expires_at,
        "installation": job.installation,
    }
    if job.policy is not None:
        head["policy"] = job.policy
    if job.tags is not None:
        head["tags"] = job.tags
    if job.correlation_id is not None:
        head["correlation_id"] = job.correlation_id
    if job.checkpoint is not None:
        head["checkpoint"] = job.checkpoint
    if job.form == "bytes":
        head["form"] = "bytes"
    encoded = orjson.dumps(head)
    return b"%d:%d:%d:%b%b" % (job.feed, job.attempt, len(encoded), encoded, job.payload)


def job_of(queue: str, entry: bytes, record: bytes, words: Sequence[str] = LEVELS) -> QueuedJob:
    """Read an entry with its record; `words` are its priorities as `Keys` has them."""
    try:
        if not record:
            return _foreign(queue, entry, words)
        feed, attempt, length, rest = record.split(b":", 3)
        size = int(length)
        head = orjson.loads(rest[:size])
        return QueuedJob(
            id=id_of(entry).decode(),
            tenant=head["tenant"],
            type=head["type"],
            queue=queue,
            priority=PRIORITIES[head["priority"]],
            feed=int(feed),
            attempt=int(attempt),
            form=head.get("form", "json"),
            payload=rest[size:],
            policy=head.get("policy"),
            tags=head.get("tags"),
            correlation_id=head.get("correlation_id"),
            created_at=datetime.fromisoformat(head["created"]),
            expires_at=datetime.fromisoformat(head["expires"]),
            installation=head["installation"],
            checkpoint=head.get("checkpoint"),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise WireError(f"a job of queue {queue!r} cannot be read: {type(error).__name__}") from error


def _foreign(queue: str, entry: bytes, words: Sequence[str]) -> QueuedJob:
    """Read a job that a producer of the original made: the whole entry is its payload."""
    outer = orjson.loads(entry)
    fits = [each for each in Priority if words[each] == outer.get("priority")]
    return QueuedJob(
        id=id_of(entry).decode(),
        tenant="",
        type=FILE,
        queue=queue,
        priority=max(fits, key=lambda each: LEVELS[each] == words[each], default=Priority.LOW),
        feed=0,
        attempt=int(outer.get("retries", 0)),
        form="json",
        payload=entry,
        policy=None,
        tags=None,
        correlation_id=None,
        created_at=EPOCH,
        expires_at=LATER,
        installation="",
    )


def id_of(entry: bytes) -> bytes:
    """Read the id of an entry as scripts read it, escapes and all; empty if it has none."""
    if entry.startswith(OURS) and (end := entry.find(b'"', len(OURS))) > len(OURS):
        return entry[len(OURS) : end]
    found = ID.search(entry)
    return found[1] if found else b""


def entry_again(entry: bytes, retries: int) -> bytes:
    """Write an entry that goes back into its list after so many attempts."""
    return RETRIES.sub(b'"retries":%d' % retries, entry, count=1)


def end_bytes(end: AttemptEnd) -> bytes:
    """Write the end of an attempt."""
    written: dict[str, Any] = {
        "tenant": end.tenant,
        "id": end.job_id,
        "feed": end.feed,
        "attempt": end.attempt,
        "state": end.state,
        "started": end.started_at,
        "ended": end.ended_at,
        "worker": end.worker,
    }
    for name in ("category", "code", "error", "checkpoint"):
        value = getattr(end, name)
        if value is not None:
            written[name] = value
    if end.delay is not None:
        written["delay"] = end.delay // MICROSECOND
    if end.result is not None:
        written["result"] = end.result.decode(errors="replace")  # a text: whatever it is, the batch can be read
    if end.spawned:
        written["spawned"] = list(end.spawned)
    try:
        return orjson.dumps(written)
    except TypeError:  # a text that is not Unicode
        for name in ("category", "code", "error"):
            if name in written:
                written[name] = written[name].encode(errors="replace").decode()
        return orjson.dumps(written)


def ends_of(batch: bytes) -> list[AttemptEnd]:
    """Read the ends that came back together."""
    try:
        return [_end(each) for each in orjson.loads(batch)]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise WireError(f"the end of an attempt cannot be read: {type(error).__name__}") from error


def rescued(batch: bytes) -> tuple[list[AttemptEnd], list[bytes]]:
    """Read what can be read of a batch, and the ids of the others."""
    ends: list[AttemptEnd] = []
    try:
        for each in orjson.loads(batch):
            with contextlib.suppress(WireError):
                ends += ends_of(orjson.dumps([each]))
    except (ValueError, TypeError):
        ends = []
    known = {end.job_id.encode() for end in ends}
    return ends, [each for each in dict.fromkeys(ID.findall(batch)) if each not in known]


def _end(read: Mapping[str, Any]) -> AttemptEnd:
    delay = read.get("delay")
    return AttemptEnd(
        tenant=read["tenant"],
        job_id=read["id"],
        feed=read["feed"],
        attempt=read["attempt"],
        state=STATES[read["state"]],
        started_at=datetime.fromisoformat(read["started"]),
        ended_at=datetime.fromisoformat(read["ended"]),
        worker=read["worker"],
        delay=None if delay is None else delay * MICROSECOND,
        category=read.get("category"),
        code=read.get("code"),
        error=read.get("error"),
        result=read["result"].encode() if "result" in read else None,
        checkpoint=read.get("checkpoint"),
        spawned=read.get("spawned", ()),
    )


def instant_of(milliseconds: int) -> datetime:
    """Read an instant in milliseconds, as Redis tells it."""
    return EPOCH + milliseconds * MILLISECOND


def note_bytes(note: Note | None) -> bytes:
    """Write a note; one that cannot be written must not cost the leases of the others."""
    try:
        return b"" if note is None else orjson.dumps([*note])
    except TypeError:
        return b""
