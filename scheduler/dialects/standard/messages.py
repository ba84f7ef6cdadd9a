"""The formats of values in Redis: entries, records, leases, states and dead letters.

Every value begins with its format number. A process that meets a higher number than `FORMAT` does
not decode the value. Scripts read the numbers of a record without decoding its head.

    entry        1|id|type|tenant                       `|` is the byte 0x1F
    record       1:epoch:attempt:charged:length:        then so many bytes of JSON, and the payload
    lease        1:score:started:charged:orphaned:previous:worker:epoch:attempt:sequence
    state        1:waiting:epoch:attempt:charged:orphaned:previous
                 1:retrying:epoch:attempt:charged:orphaned:previous:level:due
                 1:blocked:epoch:attempt:charged:orphaned:previous:score:reason
    mark         1:epoch:attempt:stream entry:filler    of a finished job
    dead letter  entry, 0x00, record                    no record if a ledger has the job

`orphaned` is 0, 1 after an orphaned lease of the job was redelivered uncharged, or 2 if orphaned
leases were only charged. `previous` is the id of the attempt before, or empty: then it is as in the
record. Results are as in every dialect, see `scheduler.dialects.ends`.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import orjson

from scheduler.dialects.interface import Known, Note
from scheduler.errors import WireError
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.states import State

FORMAT = 1
RESULT_FIELD = b"%d" % FORMAT
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
PRIORITIES = tuple(Priority)
SEPARATOR = "\x1f"
PLAIN = 6  # values that every head has
NOTHING: dict[str, Any] = {}
READ_ERRORS = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError)
_NUMBER = re.compile(rb"(\d{1,4})[:\x1f]")
_PARKED = re.compile(rb"1:blocked:(?:\d+:){4}[^:]*:\d+:type:(.*)", re.DOTALL)


def newer_format(value: bytes) -> int | None:
    """Return the format number of a value if it is newer than this version."""
    found = _NUMBER.match(value)
    number = int(found[1]) if found else 0
    return number if number > FORMAT else None


def entry_of(job: QueuedJob) -> bytes:
    """Encode the entry of a job."""
    return f"{FORMAT}\x1f{job.id}\x1f{job.type}\x1f{job.tenant}".encode()


def turn_of(job: QueuedJob) -> str:
    """Return the name under which the next start of the job's tenant is kept."""
    return f"{job.priority:d}:{job.tenant}"


def id_of(entry: bytes) -> bytes:
    """Return the id of an entry; empty if it is unreadable."""
    number, separator, rest = entry.partition(b"\x1f")
    found, ended, _ = rest.partition(b"\x1f")
    return found if number == b"1" and separator and ended else b""


def record_of(job: QueuedJob) -> bytes:
    """Encode the record of a job."""
    head = _head(job)
    charged = job.attempt - job.uncharged
    return b"1:%d:%d:%d:%d:%b%b" % (job.feed, job.attempt, charged, len(head), head, job.payload)


# The heads that were encoded and decoded last, if they have no value of one job alone. The jobs of
# a batch mostly share one.
_written: list[tuple[tuple[Any, ...], bytes]] = [((), b"")]
_read: list[tuple[bytes, list[Any], datetime, datetime, datetime | None]] = [
    (b"", [], EPOCH, EPOCH, None)
]


def _head(job: QueuedJob) -> bytes:
    """Encode values that every job has in their order, then rare ones by name."""
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
    if job.previous_attempt_id is not None:
        rare["previous_attempt_id"] = job.previous_attempt_id
    if job.form == "bytes":
        rare["form"] = "bytes"
    return rare


def job_of(queue: str, id_: bytes, record: bytes) -> QueuedJob:
    """Decode a record."""
    try:
        number, epoch, attempt, charged, length, rest = record.split(b":", 5)
        if number != b"1":
            raise ValueError
        size, attempts, uncharged = int(length), int(attempt), int(attempt) - int(charged)
        if not (0 <= int(epoch) < 2**31 and 0 <= uncharged <= attempts < 2**31):
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
            id_.decode(),
            head[0],
            head[1],
            queue,
            PRIORITIES[head[2]],
            int(epoch),
            attempts,
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
            uncharged,
            rare.get("idempotency_key"),
            rare.get("previous_attempt_id"),
            pushed,
        )
    except READ_ERRORS as error:
        raise WireError(
            f"the record of a job of queue {queue!r} is unreadable: {type(error).__name__}"
        ) from error


class Lease(NamedTuple):
    """A decoded lease. orphaned: an earlier lease of the job was orphaned; redelivered: one of them
    was redelivered uncharged. previous: the id of the attempt before, if a script knew it; empty:
    as in the record.
    """

    started_at: datetime
    charged: int
    orphaned: bool
    redelivered: bool
    previous: str
    worker: str
    epoch: int
    attempt: int
    sequence: int


def lease_of(value: bytes) -> Lease | None:
    """Decode a lease; None: it is unreadable, or of a newer format."""
    try:
        number, _, started, charged, orphaned, previous, worker, *numbers = value.split(b":")
        epoch, attempt, sequence = map(int, numbers)
        if number != b"1":
            return None
        return Lease(
            instant_of(started),
            int(charged),
            orphaned != b"0",
            orphaned == b"1",
            previous.decode(errors="replace"),
            worker.decode(),
            epoch,
            attempt,
            sequence,
        )
    except READ_ERRORS:
        return None


def known_of(where: bytes, value: bytes, note: bytes, pushed: bytes) -> Known | None:
    """Decode the status of a job as the script `known` returns it.

    A value of a newer format leaves the state, without its numbers.
    """
    if where == b"u":
        return None
    try:
        progress = Note(*orjson.loads(note)) if note else Note()
    except READ_ERRORS:
        progress = Note()
    numbers = value.split(b":") if value.startswith(b"1:") else []
    pushed_at = _moment(pushed)
    if where == b"f":
        return Known(None, _number(numbers, 2))
    if where == b"l":
        lease = lease_of(value)
        if lease is None:
            return Known(State.RUNNING, note=progress)
        return Known(
            State.RUNNING, lease.attempt, lease.started_at, progress, scheduled_at=pushed_at
        )
    if where == b"r":
        return Known(State.RETRYING, _number(numbers, 3), None, progress)
    if numbers[1:2] == [b"retrying"]:  # its backoff is over
        pushed_at = instant_of(numbers[-1]) if numbers[-1].isdigit() else None
    attempt = _number(numbers, 3)
    return Known(State.SCHEDULED, attempt, parked=_parked_type(value), scheduled_at=pushed_at)


def _moment(written: bytes) -> datetime | None:
    try:
        return datetime.fromisoformat(written.decode()) if written else None
    except ValueError:
        return None


def _parked_type(state: bytes) -> str | None:
    """Return the type of a parked job from its state; None: it is not parked."""
    found = _PARKED.match(state)
    return found[1].decode(errors="replace") if found else None


def _number(values: list[bytes], place: int) -> int:
    return int(values[place]) if len(values) > place and values[place].isdigit() else 0


def letter_of(job: QueuedJob) -> bytes:
    """Encode the dead letter of a job; only a job without a ledger needs its record."""
    return b"%b\0%b" % (entry_of(job), b"" if job.installation else record_of(job))


def instant_of(milliseconds: int | bytes) -> datetime:
    """Decode an instant in milliseconds of Redis's clock."""
    return EPOCH + int(milliseconds) * MILLISECOND
