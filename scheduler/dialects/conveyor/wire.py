"""The bytes: a job as Conveyor has it, with fields of ours behind its own. What we do not know of
is kept.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson
from google.protobuf.message import DecodeError, EncodeError

from scheduler.dialects.conveyor.job_pb2 import Job
from scheduler.dialects.interface import Delivery
from scheduler.errors import MarshalError, QueueError, WireError
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.policies import policy_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATER = datetime(9999, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
MICROSECOND = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
USUAL_RETRIES = 3
RETRY_DELAY_US = 2_000_000
LONGEST_FAILURE = 1000
LARGEST = 2**31 - 1
NOTHING = (None,) * 6
READ = (ValueError, KeyError, TypeError, AttributeError, OverflowError, DecodeError)


def marshal(job: Any) -> bytes:
    """Write a job."""
    try:
        return bytes(job.SerializeToString())
    except (ValueError, EncodeError) as error:
        raise MarshalError(f"job {job.uuid} cannot be written: {error}") from error


def raw_of(job: QueuedJob) -> bytes:
    """Write a job that a ledger feeds, in parts by the order of their numbers: some are as in the
    job before.
    """
    try:
        own = Job(uuid=job.id, type=job.type, queue=job.queue, payload=job.payload, feed=job.feed)
        own.max_retries = policy_of(job.policy)[0].max_attempts if job.policy else USUAL_RETRIES
        if job.attempt > job.uncharged:
            own.retry = job.attempt - job.uncharged
        if job.priority is not Priority.NORMAL:
            own.priority = job.priority
        shared = _shared(
            job.installation, job.tenant, job.form == "json", job.created_at, job.expires_at
        )
        return bytes(own.SerializeToString()) + shared + _rest(job)
    except (ValueError, TypeError, EncodeError) as error:
        raise QueueError(f"job {job.id} cannot be written: {error}") from error


@lru_cache(maxsize=1000)
def _shared(
    installation: str,
    tenant: str,
    json: bool,  # noqa: FBT001
    created_at: datetime,
    expires_at: datetime,
) -> bytes:
    """Write what jobs that were submitted together share."""
    part = Job(installation=installation, tenant=tenant, json=json)
    _set(part.created_at, created_at)
    _set(part.expires_at, expires_at)
    return bytes(part.SerializeToString())


def _rest(job: QueuedJob) -> bytes:
    """Write what most jobs do not have."""
    rare = job.policy, job.tags, job.correlation_id, job.checkpoint, job.trace, job.idempotency_key
    is_new = job.previous_attempt_id is None and job.scheduled_at is None
    if not job.attempt and rare == NOTHING and is_new:
        return b""
    part = Job(attempt=job.attempt, uncharged=job.uncharged)
    if job.scheduled_at is not None:
        _set(part.scheduled_at, job.scheduled_at)
    if job.correlation_id is not None:
        part.correlation_id = job.correlation_id
    if job.trace is not None:
        part.trace = job.trace
    if job.idempotency_key is not None:
        part.idempotency_key = job.idempotency_key
    if job.previous_attempt_id is not None:
        part.previous_attempt_id = job.previous_attempt_id
    for name in ("policy", "tags", "checkpoint"):
        value = getattr(job, name)
        if value is not None:
            setattr(part, name, orjson.dumps(value))
    return bytes(part.SerializeToString())


@dataclass(slots=True, eq=False, kw_only=True)
class Taken(Delivery):
    """A delivery of a job that may have a parent."""

    parent: str


def delivery_of(
    queue: str, raw: bytes, attempt: int | None, started: datetime, sequence: int = 0
) -> Taken:
    """Read a job that is in somebody's hands: of a ledger, or of anybody who added it."""
    try:
        read: Any = Job.FromString(raw)
        fed = bool(read.feed)
        job = QueuedJob(
            id=read.uuid,
            tenant=read.tenant if fed else "",
            type=read.type,
            queue=queue,
            priority=Priority(read.priority) if read.HasField("priority") else Priority.NORMAL,
            feed=read.feed,
            attempt=read.attempt if fed else max(0, read.retry),
            form="json" if read.json else "bytes",
            payload=read.payload,
            policy=_json(read.policy) if fed else _policy(read.max_retries),
            tags=_json(read.tags) if fed else None,
            correlation_id=read.correlation_id if read.HasField("correlation_id") else None,
            created_at=_moment(read.created_at) if fed else EPOCH,
            expires_at=_moment(read.expires_at) if fed else LATER,
            installation=read.installation if fed else "",
            checkpoint=_json(read.checkpoint) if fed else None,
            trace=read.trace or None,
            uncharged=read.uncharged if fed else 0,
            idempotency_key=(read.idempotency_key or None) if fed else None,
            previous_attempt_id=(read.previous_attempt_id or None) if fed else None,
            scheduled_at=_moment(read.scheduled_at) if read.HasField("scheduled_at") else None,
        )
        return Taken(
            job,
            max(0, read.retry) + 1 if attempt is None else attempt,
            started,
            raw,
            sequence,
            parent=read.parent_uuid,
        )
    except READ as error:
        raise WireError(
            f"a job of queue {queue!r} cannot be read: {type(error).__name__}"
        ) from error


def raw_again(raw: bytes, retry: int, failure: str | None) -> bytes:
    """Write a job after so many charged attempts."""
    read: Any = Job.FromString(raw)
    read.retry = min(retry, LARGEST)
    if failure:
        read.last_failure = failure.encode(errors="replace").decode()[:LONGEST_FAILURE]
    return bytes(read.SerializeToString())


def stamp(moment: datetime) -> tuple[int, int]:
    """Write an instant: seconds, and nanoseconds beside them."""
    seconds, rest = divmod(moment - EPOCH, SECOND)
    return seconds, (rest // MICROSECOND) * 1000


def instant_of(milliseconds: int | bytes) -> datetime:
    """Read an instant in milliseconds, as scripts tell it."""
    return EPOCH + int(milliseconds) * MILLISECOND


def milliseconds_of(instant: datetime) -> int:
    """Write an instant as scripts tell it."""
    return (instant - EPOCH) // MILLISECOND


def _set(field: Any, moment: datetime) -> None:
    field.seconds, field.nanos = stamp(moment)


def _moment(field: Any) -> datetime:
    return EPOCH + timedelta(seconds=field.seconds, microseconds=field.nanos // 1000)


def _json(text: bytes) -> Any:
    return orjson.loads(text) if text else None


def _policy(max_retries: int) -> dict[str, Any]:
    """Say how often Conveyor runs a job, and after what delays."""
    return {
        "max_attempts": max_retries if max_retries > 0 else USUAL_RETRIES,
        "backoff": "constant",
        "initial_delay_us": RETRY_DELAY_US,
        "jitter": False,
    }
