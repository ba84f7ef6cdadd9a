"""A submitted job as one sees it: the row of a live one, or the ledger's of one that has ended."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID, uuid5

from scheduler.log import keys
from scheduler.model.labels import Priority
from scheduler.model.payloads import decode
from scheduler.model.policies import Timeouts
from scheduler.model.retries import RetryPolicy
from scheduler.model.states import State

logger = logging.getLogger("scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submitted job, live or ended.

    state: derived from where the job is. attempt: the newest that is known, from 1; 0 before the
    first. attempts: each with its `attempt_id`, `previous_attempt_id`, outcome and times. reason:
    why it ended without running to its end, why its result was left out, or why a job that waits
    cannot run: its tenant is paused, or no live worker handles its type. scheduled_at, started_at:
    of the attempt that runs, or of the last. completed_at: when it reached its final state.
    idempotency_key: the key with which it was submitted. progress, message: the last report of
    `ctx.progress()`, while it runs.
    """

    id: UUID
    tenant: str
    type: str
    queue: str
    priority: Priority
    state: State
    attempt: int
    created_at: datetime
    updated_at: datetime
    run_at: datetime
    expires_at: datetime | None
    scheduled_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    tags: Mapping[str, str]
    correlation_id: str | None
    callback_url: str | None
    retry: RetryPolicy
    timeouts: Timeouts
    attempts: tuple[Mapping[str, Any], ...]
    reason: str | None = None
    error: str | None = None
    retried_from: UUID | None
    idempotency_key: str | None = None
    cancel_requested_at: datetime | None = None
    progress: float | None = None
    message: str | None = None
    json: bool = field(repr=False)
    raw_payload: bytes = field(repr=False)
    raw_result: bytes | None = field(default=None, repr=False)

    @property
    def payload(self) -> object:
        """What was submitted."""
        return decode("json" if self.json else "bytes", self.raw_payload)

    @property
    def result(self) -> object:
        """What its handler returned; None until it has completed."""
        return None if self.raw_result is None else decode("json", self.raw_result)


class PreviousAttempt(Protocol):
    """A job that can have an earlier attempt."""

    id: str
    previous_attempt_id: str | None


class JobChange(NamedTuple):
    """A submitted job changed its state, or its handler reported progress.

    progress, message: what the handler passed to `ctx.progress()`; the state is then RUNNING.
    progress is None if the state changed.
    """

    tenant: str
    id: str
    state: State
    at: datetime
    progress: float | None = None
    message: str | None = None


def attempt_id(job_id: UUID, worker: str, sequence: int, *, feed: int, attempt: int) -> UUID:
    """Return the id of an attempt, which is derived from the job and its lease.

    worker, sequence: the name of the worker process, and the number that it gave to the lease. No
    process uses a number twice, so no two executions share an id, whatever Redis loses. A worker of
    another project has no such numbers. For a BullMQ worker, the sequence is the time in ms at
    which it began. It is 0 if that is unknown too: then the delivery epoch (`feed`) and the number
    of the attempt tell its leases apart.
    """
    return uuid5(job_id, f"{worker}:{sequence or f'{feed}:{attempt}'}")


def previous_id_of(job: PreviousAttempt) -> UUID | None:
    """Return the id of the previous attempt, as Redis has it. Log a malformed id, which
    another client of Redis wrote, and return None.
    """
    found: object = job.previous_attempt_id
    if found is None or found == "":
        return None
    try:
        return UUID(found)  # type: ignore[arg-type]
    except (ValueError, AttributeError, TypeError):
        message = "job %s: the id of its previous attempt is malformed, so it has none"
        logger.warning(message, job.id, extra=keys(job_id=job.id))
        return None


def attempt_id_of(job_id: UUID, stored: Mapping[str, Any]) -> UUID:
    """Return the id of an attempt from its record in the ledger."""
    return attempt_id(
        job_id,
        stored.get("worker") or "",
        stored.get("sequence", 0),
        feed=stored.get("feed", 1),
        attempt=stored["attempt"],
    )


def named_attempts(
    job_id: UUID, stored: Iterable[Mapping[str, Any]] | None
) -> tuple[Mapping[str, Any], ...]:
    """Add `attempt_id` and `previous_attempt_id` to the attempts of a job, in their order.

    An attempt records the one before it, because the ledger need not have that one: it was put
    back, or was an attempt of the job that was retried. Workers of other projects record nothing.
    """
    found: list[Mapping[str, Any]] = []
    for each in stored or ():
        previous = each.get("previous_attempt_id")
        if previous is None and found and found[-1]["attempt"] == each["attempt"] - 1:
            previous = found[-1]["attempt_id"]
        names = {"attempt_id": str(attempt_id_of(job_id, each)), "previous_attempt_id": previous}
        found.append({**each, **names})
    return tuple(found)


def live_state(
    *,
    open_dependencies: int,
    retrying: bool,
    waits: bool,
    run_at: datetime,
    now: datetime,
    running: bool = False,
) -> State:
    """Derive the state of a live job from its row; `running`: Redis says that a worker has it."""
    if running:
        return State.RUNNING
    if open_dependencies:
        return State.PENDING
    if retrying:
        return State.RETRYING if run_at > now else State.SCHEDULED
    if not waits:
        return State.SCHEDULED
    return State.DELAYED if run_at > now else State.PENDING
