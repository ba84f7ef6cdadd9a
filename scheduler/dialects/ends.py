"""The end of an attempt on its way to the ledger, and a note of a handler, as JSON: in every
dialect the same.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from scheduler.dialects.interface import Known, Note
from scheduler.errors import WireError
from scheduler.model.attempts import AttemptEnd
from scheduler.model.durations import LONGEST
from scheduler.model.states import State

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
STATES = {state.value: state for state in State if state.terminal or state is State.RETRYING}
ID = re.compile(rb'\["(?:[^"\\]|\\.)*","([^"]+)",\d+,\d+,"')  # the second value of an end


def end_bytes(end: AttemptEnd) -> bytes:
    """Write the end of an attempt: what each has in its order, then what few have by its name."""
    written: list[Any] = [
        end.tenant,
        end.job_id,
        end.feed,
        end.attempt,
        end.state,
        end.started_at,
        end.ended_at,
        end.worker,
        end.sequence,
    ]
    if rare := _rare(end):
        written.append(rare)
    try:
        return orjson.dumps(written)
    except TypeError:  # a text that is not Unicode
        for name in ("category", "code", "error", "reason"):
            if name in rare:
                rare[name] = rare[name].encode(errors="replace").decode()
        return orjson.dumps(written)


def _rare(end: AttemptEnd) -> dict[str, Any]:
    texts = (
        ("category", end.category),
        ("code", end.code),
        ("error", end.error),
        ("reason", end.reason),
        ("checkpoint", end.checkpoint),
    )
    found: dict[str, Any] = {name: value for name, value in texts if value is not None}
    if end.delay is not None:
        found["delay"] = end.delay // MICROSECOND
    if end.result is not None:
        found["result"] = end.result.decode(
            errors="replace"
        )  # a text: whatever it is, the batch can be read
    if end.scheduled_at is not None:
        found["scheduled_at"] = end.scheduled_at
    if end.spawned:
        found["spawned"] = list(end.spawned)
    if not end.charged:
        found["charged"] = False
    if end.uncharged:
        found["uncharged"] = end.uncharged
    if end.previous_attempt_id is not None:
        found["previous_attempt_id"] = end.previous_attempt_id
    return found


def ends_of(batch: bytes, recorded_at: datetime | None = None) -> list[AttemptEnd]:
    """Read the ends that came back together. recorded_at: when Redis took those that do not say
    it themselves.
    """
    try:
        return [_end(each, recorded_at) for each in orjson.loads(batch)]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise WireError(f"the end of an attempt cannot be read: {type(error).__name__}") from error


def rescued(
    batch: bytes, recorded_at: datetime | None = None
) -> tuple[list[AttemptEnd], list[bytes]]:
    """Read what can be read of a batch, and the ids of the others."""
    ends: list[AttemptEnd] = []
    try:
        for each in orjson.loads(
            batch.decode(errors="replace")
        ):  # workers of others write any bytes
            with contextlib.suppress(WireError):
                ends += ends_of(orjson.dumps([each]), recorded_at)
    except (ValueError, TypeError):
        ends = []
    known = {end.job_id.encode() for end in ends}
    return ends, [each for each in dict.fromkeys(ID.findall(batch)) if each not in known]


def _end(read: Sequence[Any], recorded_at: datetime | None) -> AttemptEnd:
    tenant, job_id, feed, attempt, state, started, ended, worker, *rest = read
    if not (
        (type(tenant) is type(job_id) is type(worker) is str and "\0" not in tenant)
        and (type(feed) is type(attempt) is int and 0 <= feed < 2**31 and 0 <= attempt < 2**31)
    ):
        raise ValueError  # Postgres would refuse it each time
    end = AttemptEnd(
        tenant, job_id, feed, attempt, STATES[state], _moment(started), _moment(ended), worker
    )
    end.recorded_at = recorded_at
    for found in rest:
        if type(found) is int:  # workers of an earlier version send none
            end.sequence = _sequence(found)
            continue
        if "recorded" in found:  # a script found the end that a worker of others made
            end.recorded_at = _moment(found["recorded"])
        end.delay = _delay(found["delay"]) if "delay" in found else None
        for name in ("category", "code", "error", "reason"):
            setattr(end, name, _text(found.get(name)))
        end.result = found["result"].encode() if "result" in found else None
        end.scheduled_at = _moment(found["scheduled_at"]) if "scheduled_at" in found else None
        end.checkpoint, end.spawned = found.get("checkpoint"), found.get("spawned", ())
        end.charged, end.uncharged = found.get("charged", True), found.get("uncharged", 0)
        if type(end.uncharged) is not int or not 0 <= end.uncharged <= attempt:
            end.uncharged = 0  # a field of the job, which anybody can write; the end is readable
        end.previous_attempt_id = _attempt_id(found.get("previous_attempt_id"))
    return end


def _text(value: Any) -> str | None:
    if value is not None and type(value) is not str:
        raise TypeError
    return value


def _delay(microseconds: float) -> timedelta:
    """Read a delay before the next attempt, at most `LONGEST`: any client can write one."""
    return max(0, min(microseconds, LONGEST // MICROSECOND)) * MICROSECOND


def _attempt_id(value: Any) -> str | None:
    """Return an id as it is; None: it is none, for which the end is still readable."""
    try:
        return value and str(UUID(value))
    except (ValueError, AttributeError, TypeError):
        return None


def _sequence(number: int) -> int:
    if not 0 <= number < 2**63:
        raise ValueError(number)
    return number


def _moment(written: str | int) -> datetime:
    """Read an instant; scripts write it in milliseconds."""
    if not isinstance(written, str):
        return EPOCH + 1000 * written * MICROSECOND
    moment = datetime.fromisoformat(written)
    if moment.tzinfo is None:
        raise ValueError(written)
    return moment


def note_bytes(note: Note | None) -> bytes:
    """Write a note; one that cannot be written must not cost the leases of the others."""
    try:
        return b"" if note is None else orjson.dumps([*note])
    except TypeError:
        return b""


def known_of(
    where: bytes, token: bytes, note: bytes, *, began: Callable[[bytes], datetime]
) -> Known | None:
    """Read what a queue knows of a job; `began` reads the start time, the last part but one of a
    lease.
    """
    if where == b"u":
        return None
    if where == b"w":
        return Known(State.SCHEDULED, _attempts(token))
    said = Note(*orjson.loads(note)) if note else Note()
    try:
        _, attempt, *rest = token.split(b":")
        if where == b"f":
            return Known(None, int(attempt))
        if where == b"b":
            return Known(State.RETRYING, int(attempt), None, said)
        return Known(State.RUNNING, int(attempt), began(rest[-2]), said)
    except (ValueError, IndexError, OverflowError):
        return None  # no value of ours: no worker can renew or end such a lease


def _attempts(counts: bytes) -> int:
    """Read the attempts of a waiting job out of feed:attempts; 0 if it has none."""
    number = counts.split(b":", 2)[1:2]
    return int(number[0]) if number and number[0].isdigit() else 0
