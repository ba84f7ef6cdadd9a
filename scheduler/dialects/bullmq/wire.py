"""The bytes: the fields of a job that a ledger feeds, and a job as a worker is told of it."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from scheduler.dialects.bullmq.options import FED, Rules, fed_options, read_options, trace_of
from scheduler.dialects.interface import Delivery, Note
from scheduler.errors import WireError
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.oneshot import attempt_id
from scheduler.model.retries import RetryPolicy

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATER = datetime(9999, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
TRAVEL = (
    *("policy", "tags", "correlation_id", "checkpoint", "trace", "idempotency_key"),
    "previous_attempt_id",
)
TOLD = 18  # values of a job that `tell_job` appends


@dataclass(slots=True, eq=False, kw_only=True)
class Taken(Delivery):
    """A delivery whose end is bound by the options of its job; `raw` is its token.

    redelivered: an orphaned lease of the job was redelivered without a charge.
    """

    rules: Rules
    scheduler: str = ""
    redelivered: bool = False

    def is_last_chance(self, retry: RetryPolicy) -> bool:
        """Return whether the job ends if it loses this worker too. BullMQ fails a job that stalls
        twice, whatever its attempts; only those of a ledger follow their policy.
        """
        return self.orphaned and (not self.job.installation or Delivery.is_last_chance(self, retry))


def fields_of(job: QueuedJob, kept: int) -> tuple[Any, ...]:
    """Write a job that a ledger feeds, as the script `push` reads it."""
    ring: dict[str, Any] = {"created": job.created_at, "expires": job.expires_at}
    if job.scheduled_at is not None:
        ring["scheduled_at"] = job.scheduled_at
    for name in TRAVEL:
        value = getattr(job, name)
        if value is not None:
            ring[name] = value
    data = job.payload
    if job.form == "bytes":
        ring["form"] = "bytes"
        data = b'"%b"' % base64.b64encode(job.payload)
    return (
        job.id,
        int(job.priority),
        job.feed,
        job.attempt,
        job.type,
        job.tenant,
        (job.created_at - EPOCH) // MILLISECOND,
        fed_options(job, kept),
        orjson.dumps(ring),
        data,
        job.installation,
        job.uncharged,
    )


def delivery_of(queue: str, told: Sequence[bytes]) -> Taken:
    """Read a job as scripts tell it."""
    (
        id_,
        token,
        name,
        data,
        opts,
        created,
        priority,
        tenant,
        feed,
        installation,
        attempt,
        ring,
        note,
        rjk,
        uncharged,
        stalled,
        redelivered,
        previous,
    ) = told
    try:
        worker, _, number, _, began, _, sequence = token.rsplit(b":", 6)
        not_charged = _count(uncharged)
        lease = int(number), instant_of(int(began)), token, int(sequence), not_charged
        holder, orphaned = (
            worker.decode(errors="replace"),
            _count(stalled) > 0 or bool(redelivered),
        )
        level = Priority(min(int(priority or 0), Priority.BULK))
        if not ring:
            policy, rules = read_options(opts)
            job = QueuedJob(
                id=id_.decode(),
                tenant="",
                type=name.decode(),
                queue=queue,
                priority=level,
                feed=0,
                attempt=0,
                form="json",
                payload=data or b"{}",
                policy=policy,
                tags=None,
                correlation_id=None,
                created_at=instant_of(int(float(created or 0))),
                expires_at=LATER,
                installation="",
                trace=trace_of(opts),
            )
            series = rjk.decode()
            return Taken(
                job, *lease, worker=holder, orphaned=orphaned, rules=rules, scheduler=series
            )
        known = orjson.loads(ring)
        rest = {name: known.get(name) for name in TRAVEL}
        form, pushed = known.get("form", "json"), known.get("scheduled_at")
        job = QueuedJob(
            id=id_.decode(),
            tenant=tenant.decode(),
            type=name.decode(),
            queue=queue,
            priority=level,
            feed=_feed(feed),
            attempt=int(attempt),
            form=form,
            payload=base64.b64decode(data[1:-1]) if form == "bytes" else data,
            created_at=datetime.fromisoformat(known["created"]),
            expires_at=datetime.fromisoformat(known["expires"]),
            installation=installation.decode(),
            uncharged=not_charged,
            scheduled_at=None if pushed is None else datetime.fromisoformat(pushed),
            **rest,
        )
        if previous:
            job.previous_attempt_id = _previous_id(job.id, previous)
        if note:  # the attempt before may have left a checkpoint
            job.checkpoint = orjson.loads(note)[2]
        rules = FED if installation else read_options(opts)[1]
        return Taken(
            job,
            *lease,
            worker=holder,
            orphaned=orphaned,
            rules=rules,
            redelivered=bool(redelivered),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise WireError(
            f"a job of queue {queue!r} cannot be read: {type(error).__name__}"
        ) from error


def _count(text: bytes) -> int:
    """Read a count as the scripts do: others can write the field, and what is no count is 0."""
    return int(text) if text.isdigit() and len(text) < 10 else 0


def _feed(text: bytes) -> int:
    """Read a feed; a ledger has none that is larger."""
    feed = int(text)
    if not 0 <= feed < 2**31:
        raise ValueError(text)
    return feed


def _previous_id(job_id: str, previous: bytes) -> str:
    """Return the id of the attempt before. If a worker of BullMQ ended that attempt, scripts return
    worker:sequence. A malformed value is returned unchanged; it is not an id.
    """
    text = previous.decode(errors="replace")
    worker, separator, sequence = text.rpartition(":")
    try:
        if not separator:
            return text
        return str(attempt_id(UUID(job_id), worker, int(sequence), feed=0, attempt=0))
    except ValueError:
        return text


def progress_bytes(note: Note | None) -> bytes:
    """Write how far a handler is, for dashboards; empty if it did not say."""
    return b"" if note is None or note.progress is None else orjson.dumps(_whole(note.progress))


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


def instant_of(milliseconds: int) -> datetime:
    """Read an instant in milliseconds, as BullMQ writes it."""
    return EPOCH + milliseconds * MILLISECOND
