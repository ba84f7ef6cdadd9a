"""Call `register()` from every instance of your app: each fire runs once in the whole fleet.

The functions here work on the one scheduler of the process; `Scheduler` is the class behind them.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload
from uuid import UUID

from scheduler.app import F, Scheduler, in_thread
from scheduler.config import SchedulerOptions
from scheduler.errors import (
    AlreadyInitialised,
    ConfigError,
    Conflict,
    DependencyCycle,
    DependencyLimit,
    DuplicateJob,
    IllegalTransition,
    InvalidData,
    InvalidName,
    InvalidOption,
    InvalidPayload,
    InvalidSchedule,
    InvalidSignature,
    JobCancelled,
    JobFailure,
    LifecycleError,
    NotInitialised,
    PermanentError,
    QueueError,
    QueueUnavailable,
    RegistrationError,
    SchedulerError,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
    SubmissionError,
    TemporaryError,
    TenantDeleting,
    TenantNotPaused,
    UnknownDependency,
    UnknownJob,
    UnknownQueue,
    UnsupportedByDialect,
    WaitTimeout,
)
from scheduler.model.addresses import RedisOptions, Tls
from scheduler.model.body import Cancelled, RunContext
from scheduler.model.breaker import BreakerRule, BreakerState
from scheduler.model.definition import JobOptions, JobSpec, Registration
from scheduler.model.handling import JobContext
from scheduler.model.job import Explanation, HistoryEntry, JobInfo
from scheduler.model.labels import Priority
from scheduler.model.oneshot import Job, JobChange
from scheduler.model.outcomes import Outcome
from scheduler.model.policies import Timeouts
from scheduler.model.queues import QueueEntry, QueueKey, QueueStats, Requeued, Totals
from scheduler.model.reaper import ReaperRule
from scheduler.model.retries import RetryPolicy
from scheduler.model.schedules import CatchUp
from scheduler.model.states import State
from scheduler.model.submission import NewJob, Submission, SubmitOptions
from scheduler.model.workers import HeldJob, WorkerInfo, WorkerQueue
from scheduler.queueing.admin import QueueAdmin
from scheduler.queueing.jobs import Page
from scheduler.queueing.signing import verify_callback
from scheduler.worker.handlers import backoff, handler
from scheduler.worker.worker import Worker

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = [
    "AlreadyInitialised",
    "BreakerRule",
    "BreakerState",
    "Cancelled",
    "CatchUp",
    "ConfigError",
    "Conflict",
    "DependencyCycle",
    "DependencyLimit",
    "DuplicateJob",
    "Explanation",
    "HeldJob",
    "HistoryEntry",
    "IllegalTransition",
    "InvalidData",
    "InvalidName",
    "InvalidOption",
    "InvalidPayload",
    "InvalidSchedule",
    "InvalidSignature",
    "Job",
    "JobCancelled",
    "JobChange",
    "JobContext",
    "JobFailure",
    "JobInfo",
    "JobSpec",
    "LifecycleError",
    "NewJob",
    "NotInitialised",
    "Outcome",
    "Page",
    "PermanentError",
    "Priority",
    "QueueAdmin",
    "QueueEntry",
    "QueueError",
    "QueueKey",
    "QueueStats",
    "QueueUnavailable",
    "ReaperRule",
    "RedisOptions",
    "Registration",
    "RegistrationError",
    "Requeued",
    "RetryPolicy",
    "RunContext",
    "Scheduler",
    "SchedulerError",
    "SchemaMismatch",
    "State",
    "StoreError",
    "StoreUnavailable",
    "Submission",
    "SubmissionError",
    "TemporaryError",
    "TenantDeleting",
    "TenantNotPaused",
    "Timeouts",
    "Tls",
    "Totals",
    "UnknownDependency",
    "UnknownJob",
    "UnknownQueue",
    "UnsupportedByDialect",
    "WaitTimeout",
    "Worker",
    "WorkerInfo",
    "WorkerQueue",
    "acancel",
    "acancel_job",
    "achain",
    "adelete_tenant",
    "aexplain",
    "afan_out",
    "afind",
    "aget",
    "ahistory",
    "ainitialise",
    "apause",
    "apause_queue",
    "apause_tenant",
    "aqueue",
    "aqueues",
    "aregister",
    "aregister_many",
    "aresume",
    "aresume_queue",
    "aresume_tenant",
    "aretry_job",
    "asubmit",
    "asubmit_many",
    "atotals",
    "atrigger",
    "aunregister",
    "aupdate_job",
    "await_job",
    "aworkers",
    "backoff",
    "cancel",
    "cancel_job",
    "chain",
    "delete_tenant",
    "events",
    "explain",
    "fan_out",
    "find",
    "get",
    "handler",
    "history",
    "initialise",
    "jobs",
    "pause",
    "pause_queue",
    "pause_tenant",
    "queue",
    "queues",
    "register",
    "register_many",
    "resume",
    "resume_queue",
    "resume_tenant",
    "retry_job",
    "submit",
    "submit_many",
    "totals",
    "trigger",
    "unregister",
    "update_job",
    "verify_callback",
    "wait",
    "workers",
]

_lock = threading.RLock()  # a signal's handler may cancel while this thread initialises
_scheduler: Scheduler | None = None


def initialise(
    database: "str | Engine | None" = None, **options: Unpack[SchedulerOptions]
) -> Scheduler:
    """Start the scheduler of this process; the arguments are those of `Scheduler`."""
    made = Scheduler(database, **options)
    _adopt(made)
    return made


def _adopt(made: Scheduler) -> None:
    """Start a scheduler and make it the one of this process."""
    global _scheduler  # noqa: PLW0603 - the one reference the module holds
    with _lock:
        if _scheduler is not None and _scheduler.is_running():
            raise AlreadyInitialised
        _scheduler = made.start()


def cancel(timeout: float = 30.0) -> None:
    """Stop the scheduler of this process: drain, release; afterwards it may be initialised
    again.
    """
    global _scheduler  # noqa: PLW0603
    running = _initialised()
    try:
        running.cancel(timeout)
    finally:
        with _lock:
            if (
                _scheduler is running and not running.is_running()
            ):  # else it was refused, and is still ours
                _scheduler = None


@overload
def register(tenant: str, job_id: str, fn: F, **options: Unpack[JobOptions]) -> F: ...
@overload
def register(
    tenant: str, job_id: str, fn: None = None, **options: Unpack[JobOptions]
) -> Callable[[F], F]: ...
def register(tenant: str, job_id: str, fn: Any = None, **options: Unpack[JobOptions]) -> Any:
    """Register a job in every instance; each fire runs once. See `Scheduler.register`."""
    return _initialised().register(tenant, job_id, fn, **options)


def register_many(registrations: Iterable[Registration | Mapping[str, Any]]) -> None:
    """Register many jobs in a few statements. See `Scheduler.register_many`."""
    _initialised().register_many(registrations)


def unregister(tenant: str, job_id: str) -> None:
    """Remove a job from the whole fleet."""
    _initialised().unregister(tenant, job_id)


def pause(tenant: str, job_id: str) -> datetime:
    """Let its fires pass a job by, in the whole fleet."""
    return _initialised().pause(tenant, job_id)


def resume(tenant: str, job_id: str) -> datetime | None:
    """Let a paused job go on with its first fire after now, and return it."""
    return _initialised().resume(tenant, job_id)


def trigger(tenant: str, job_id: str) -> datetime:
    """Run a job soon, beside its schedule. See `Scheduler.trigger`."""
    return _initialised().trigger(tenant, job_id)


def pause_tenant(tenant: str) -> datetime:
    """Pause a tenant in the whole fleet; return the time at which it was paused."""
    return _initialised().pause_tenant(tenant)


def resume_tenant(tenant: str) -> bool:
    """Resume a paused tenant, and return whether it was paused."""
    return _initialised().resume_tenant(tenant)


def delete_tenant(tenant: str) -> dict[str, int]:
    """Delete a paused tenant with its jobs and ledger; return the deleted rows by table."""
    return _initialised().delete_tenant(tenant)


def explain(tenant: str, job_id: str) -> Explanation:
    """Say what a job will do, what it did and why, and who can run it; `print` the answer."""
    return _initialised().explain(tenant, job_id)


def jobs(tenant: str | None = None) -> list[JobInfo]:
    """List the mirrored jobs, without a query."""
    return _initialised().jobs(tenant)


def history(tenant: str, job_id: str | None = None, limit: int = 50) -> list[HistoryEntry]:
    """Read the newest rows of the ledger, newest first."""
    return _initialised().history(tenant, job_id, limit)


def submit(
    tenant: str,
    type: str,  # noqa: A002
    payload: object = None,
    *,
    connection: object = None,
    **options: Unpack[SubmitOptions],
) -> Submission:
    """Submit a one-shot job, in your own transaction if you give its connection. See
    `Scheduler.submit`.
    """
    return _initialised().submit(tenant, type, payload, connection=connection, **options)


def submit_many(new: Iterable[NewJob], *, connection: object = None) -> list[Submission]:
    """Submit many jobs at once, all or none. See `Scheduler.submit_many`."""
    return _initialised().submit_many(new, connection=connection)


async def asubmit(
    tenant: str,
    type: str,  # noqa: A002
    payload: object = None,
    *,
    connection: object = None,
    **options: Unpack[SubmitOptions],
) -> Submission:
    """Submit from async code, in your own async transaction if you give its connection."""
    return await _initialised().asubmit(tenant, type, payload, connection=connection, **options)


async def asubmit_many(new: Iterable[NewJob], *, connection: object = None) -> list[Submission]:
    """Submit many from async code, in your own async transaction if you give its connection."""
    return await _initialised().asubmit_many(new, connection=connection)


def chain(tenant: str, new: Sequence[NewJob], *, connection: object = None) -> list[Submission]:
    """Submit jobs that run one after another; a failure ends the rest of the chain."""
    return _initialised().chain(tenant, new, connection=connection)


def fan_out(
    tenant: str, new: Sequence[NewJob], *, then: NewJob | None = None, connection: object = None
) -> list[Submission]:
    """Submit jobs that run side by side, and `then` one that waits for the success of all."""
    return _initialised().fan_out(tenant, new, then=then, connection=connection)


def get(tenant: str, job_id: UUID | str) -> Job:
    """Read a submitted job, live or ended."""
    return _initialised().get(tenant, job_id)


def find(
    tenant: str,
    *,
    state: State | Iterable[State] | None = None,
    type: str | None = None,  # noqa: A002
    tag: str | Mapping[str, str] | None = None,
    queue: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page:
    """Find submitted jobs, page by page. See `Scheduler.find`."""
    return _initialised().find(
        tenant, state=state, type=type, tag=tag, queue=queue, limit=limit, cursor=cursor
    )


def wait(tenant: str, job_id: UUID | str, timeout: timedelta | str | float | None = None) -> Job:
    """Wait until a job has ended, and return it; `WaitTimeout` if it has not by then."""
    return _initialised().wait(tenant, job_id, timeout)


def events(tenant: str) -> Iterator[JobChange]:
    """Iterate over state changes and progress of a tenant's jobs, from now on. See
    `Scheduler.events`.
    """
    return _initialised().events(tenant)


def update_job(
    tenant: str,
    job_id: UUID | str,
    *,
    run_at: datetime | None = None,
    delay: timedelta | str | None = None,
    priority: Priority | None = None,
    tags: Mapping[str, str] | None = None,
    correlation_id: str | None = None,
    callback_url: str | None = None,
    idempotency_key: Literal[""] | None = None,
) -> Job:
    """Change a live job. Its handler sees the new values if no attempt has begun. See
    `Scheduler.update_job`.
    """
    return _initialised().update_job(
        tenant,
        job_id,
        run_at=run_at,
        delay=delay,
        priority=priority,
        tags=tags,
        correlation_id=correlation_id,
        callback_url=callback_url,
        idempotency_key=idempotency_key,
    )


def cancel_job(
    tenant: str, job_id: UUID | str, *, reason: str | None = None, force: bool = False
) -> State:
    """End a job that has not begun, with all that wait for its success; return its state."""
    return _initialised().cancel_job(tenant, job_id, reason=reason, force=force)


def retry_job(tenant: str, job_id: UUID | str) -> Submission:
    """Submit a job anew that failed, died or was cancelled."""
    return _initialised().retry_job(tenant, job_id)


def queues() -> list[QueueStats]:
    """Say how much is in each queue."""
    return _initialised().queues()


def queue(name: str) -> QueueAdmin:
    """Look at a queue, and see to its dead letters."""
    return _initialised().queue(name)


def workers() -> list[WorkerInfo]:
    """Say which workers live, what each holds, and how its circuit breakers are."""
    return _initialised().workers()


def totals(since: timedelta | str = "1h") -> Totals:
    """Count the jobs that ended within a span, by queue and state."""
    return _initialised().totals(since)


def pause_queue(name: str) -> datetime:
    """Stop a queue: nothing is fed to it and nothing taken from it; return since when."""
    return _initialised().pause_queue(name)


def resume_queue(name: str) -> bool:
    """Let a queue go on, and say whether it was paused."""
    return _initialised().resume_queue(name)


ainitialise = in_thread(initialise)
acancel = in_thread(cancel)
aregister = in_thread(register)
aregister_many = in_thread(register_many)
aunregister = in_thread(unregister)
apause = in_thread(pause)
aresume = in_thread(resume)
atrigger = in_thread(trigger)
apause_tenant = in_thread(pause_tenant)
aresume_tenant = in_thread(resume_tenant)
adelete_tenant = in_thread(delete_tenant)
aexplain = in_thread(explain)
ahistory = in_thread(history)
achain = in_thread(chain)
afan_out = in_thread(fan_out)
aget = in_thread(get)
afind = in_thread(find)
aupdate_job = in_thread(update_job)
acancel_job = in_thread(cancel_job)
aretry_job = in_thread(retry_job)
await_job = in_thread(wait)
aqueues = in_thread(queues)
aqueue = in_thread(queue)
aworkers = in_thread(workers)
atotals = in_thread(totals)
apause_queue = in_thread(pause_queue)
aresume_queue = in_thread(resume_queue)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - the thread that held it may not exist in the child
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _initialised() -> Scheduler:
    if _scheduler is None:
        raise NotInitialised
    return _scheduler
