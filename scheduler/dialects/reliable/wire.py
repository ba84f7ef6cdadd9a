"""The bytes: an entry of a list (the original's JSON), the record beside it; ends are as in every
dialect.

A record is `feed:attempt:length:` and then so many bytes of JSON, and then the payload as it is:
scripts read the numbers without decoding anything.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson

from scheduler.dialects.ends import end_bytes, ends_of, note_bytes, rescued
from scheduler.dialects.reliable.keys import LEVELS
from scheduler.errors import WireError
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from scheduler.trace import carried_ids, carried_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATER = datetime(9999, 1, 1, tzinfo=UTC)
FILE = "file"
PRIORITIES = tuple(Priority)
ID = re.compile(rb'"id": ?"([^"]+)"')
OURS = b'{"id":"'
RETRIES = re.compile(rb'"retries": ?(\d+)')
MILLISECOND = timedelta(milliseconds=1)
MOST_RETRIES = 1_000_000  # as scripts count them
NO_SPAN = "", ""
PLAIN = 6  # values that every head has
NOTHING: dict[str, Any] = {}

__all__ = [
    "end_bytes",
    "ends_of",
    "entry_again",
    "entry_of",
    "id_of",
    "instant_of",
    "job_of",
    "note_bytes",
    "record_of",
    "rescued",
]


def entry_of(job: QueuedJob, words: Sequence[str] = LEVELS) -> bytes:
    """Write a job as the lists have it."""
    created, charged = _zulu(job.created_at), job.attempt - job.uncharged
    trace_id, span_id = NO_SPAN if job.trace is None else carried_ids(job.trace)
    return (
        f'{{"id":"{job.id}","filepath":"","filesize":0,"priority":"{words[job.priority]}","retries":{charged},'
        f'"creation_time":"{created}","trace_id":"{trace_id}","span_id":"{span_id}"}}'
    ).encode()


@lru_cache(maxsize=64)  # the jobs of a batch have one
def _zulu(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def record_of(job: QueuedJob) -> bytes:
    """Write what an entry has no place for."""
    head = _head(job)
    return b"%d:%d:%d:%b%b" % (job.feed, job.attempt, len(head), head, job.payload)


# Heads that were written and read last, if they have nothing that is one job's own: those of a
# batch have it in common.
_written: list[tuple[tuple[Any, ...], bytes]] = [((), b"")]
_read: list[tuple[bytes, list[Any], datetime, datetime, datetime | None]] = [
    (b"", [], EPOCH, EPOCH, None)
]


def _head(job: QueuedJob) -> bytes:
    """Write what each has in its order, then what few have by its name."""
    each = (job.tenant, job.type, job.priority, job.created_at, job.expires_at, job.installation)
    rare = _rare(job)
    pushed = {} if job.scheduled_at is None else {"scheduled_at": job.scheduled_at}
    if rare:
        return orjson.dumps((*each, {**rare, **pushed}))
    last, head = _written[0]
    if (*each, job.scheduled_at) != last:
        head = orjson.dumps((*each, pushed) if pushed else each)
        _written[0] = (*each, job.scheduled_at), head
    return head


def _rare(job: QueuedJob) -> dict[str, Any]:
    rare: dict[str, Any] = {}
    if job.policy is not None:
        rare["policy"] = job.policy
    if job.tags is not None:
        rare["tags"] = job.tags
    if job.correlation_id is not None:
        rare["correlation_id"] = job.correlation_id
    if job.checkpoint is not None:
        rare["checkpoint"] = job.checkpoint
    if job.trace is not None:
        rare["trace"] = job.trace
    if job.idempotency_key is not None:
        rare["idempotency_key"] = job.idempotency_key
    if job.uncharged:
        rare["uncharged"] = job.uncharged
    if job.previous_attempt_id is not None:
        rare["previous_attempt_id"] = job.previous_attempt_id
    if job.form == "bytes":
        rare["form"] = "bytes"
    return rare


def job_of(queue: str, entry: bytes, record: bytes, words: Sequence[str] = LEVELS) -> QueuedJob:
    """Read an entry with its record; `words` are its priorities as `Keys` has them."""
    try:
        if not record:
            return _foreign(queue, entry, words)
        feed, attempt, length, rest = record.split(b":", 3)
        size = int(length)
        if not (0 <= int(feed) < 2**31 and 0 <= int(attempt) < 2**31):
            raise ValueError  # of such numbers no result can be written
        text, head, created, expires, pushed = _read[0]
        if (found := rest[:size]) != text:
            head = orjson.loads(found)
            if not type(head[0]) is type(head[1]) is type(head[5]) is str:
                raise TypeError  # a worker looks up handlers by the type
            created, expires = datetime.fromisoformat(head[3]), datetime.fromisoformat(head[4])
            at = head[PLAIN].get("scheduled_at") if len(head) > PLAIN else None
            pushed = None if at is None else datetime.fromisoformat(at)
            if len(head) == PLAIN or (pushed is not None and len(head[PLAIN]) == 1):
                _read[0] = found, head, created, expires, pushed
        rare = head[PLAIN] if len(head) > PLAIN else NOTHING
        return QueuedJob(
            id_of(entry).decode(),
            head[0],
            head[1],
            queue,
            PRIORITIES[head[2]],
            int(feed),
            int(attempt),
            rare.get("form", "json"),
            rest[size:],
            rare.get("policy"),
            rare.get("tags"),
            rare.get("correlation_id"),
            created,
            expires,
            head[5],
            rare.get("checkpoint"),
            rare.get("trace"),
            rare.get("uncharged", 0),
            rare.get("idempotency_key"),
            rare.get("previous_attempt_id"),
            pushed,
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise WireError(
            f"a job of queue {queue!r} cannot be read: {type(error).__name__}"
        ) from error


def _foreign(queue: str, entry: bytes, words: Sequence[str]) -> QueuedJob:
    """Read a job that a producer of the original made: the whole entry is its payload."""
    outer = orjson.loads(entry)
    if not id_of(entry):
        raise WireError("the entry is not a job: it has no id")
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
        trace=carried_of(outer.get("trace_id"), outer.get("span_id")),
    )


def id_of(entry: bytes) -> bytes:
    """Read the id of an entry as scripts read it, escapes and all; empty if it has none."""
    if entry.startswith(OURS) and (end := entry.find(b'"', len(OURS))) > len(OURS):
        return entry[len(OURS) : end]
    found = ID.search(entry)
    return found[1] if found else b""


def entry_again(entry: bytes, retries: int) -> bytes:
    """Write an entry that goes back into its list after so many charged attempts."""
    return RETRIES.sub(b'"retries":%d' % retries, entry, count=1)


def retries_of(entry: bytes) -> int:
    """Read how many attempts an entry has counted as charged."""
    found = RETRIES.search(entry)
    return min(int(found[1][:18]), MOST_RETRIES) if found else 0


def instant_of(milliseconds: int | bytes) -> datetime:
    """Read an instant in milliseconds, as Redis tells it."""
    return EPOCH + int(milliseconds) * MILLISECOND


def milliseconds_of(instant: datetime) -> int:
    """Write an instant as Redis tells it."""
    return (instant - EPOCH) // MILLISECOND
