"""Call `register()` from every instance of your app: each fire runs once in the whole fleet.

The functions here work on the one scheduler of the process; `Scheduler` is the class behind them.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack, overload

from scheduler.app import F, Scheduler, in_thread
from scheduler.config import Tenants
from scheduler.errors import (
    AlreadyInitialised,
    ConfigError,
    DuplicateJob,
    InvalidName,
    InvalidOption,
    InvalidSchedule,
    LifecycleError,
    NotInitialised,
    RegistrationError,
    SchedulerError,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
    UnknownJob,
)
from scheduler.model.body import RunContext
from scheduler.model.definition import JobOptions, JobSpec, Registration
from scheduler.model.job import Explanation, HistoryEntry, JobInfo, Outcome
from scheduler.model.schedules import CatchUp

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = [
    "AlreadyInitialised",
    "CatchUp",
    "ConfigError",
    "DuplicateJob",
    "Explanation",
    "HistoryEntry",
    "InvalidName",
    "InvalidOption",
    "InvalidSchedule",
    "JobInfo",
    "JobSpec",
    "LifecycleError",
    "NotInitialised",
    "Outcome",
    "Registration",
    "RegistrationError",
    "RunContext",
    "Scheduler",
    "SchedulerError",
    "SchemaMismatch",
    "StoreError",
    "StoreUnavailable",
    "UnknownJob",
    "acancel",
    "aexplain",
    "ahistory",
    "ainitialise",
    "apause",
    "aregister",
    "aregister_many",
    "aresume",
    "atrigger",
    "aunregister",
    "cancel",
    "explain",
    "history",
    "initialise",
    "jobs",
    "pause",
    "register",
    "register_many",
    "resume",
    "trigger",
    "unregister",
]

_lock = threading.Lock()
_scheduler: Scheduler | None = None


def initialise(
    database: "str | Engine | None" = None,
    *,
    schema: str = "scheduler",
    tenants: Tenants = "registered",
    sync_every: timedelta | str = timedelta(minutes=1),
    lease: timedelta | str = timedelta(seconds=30),
    max_workers: int = 16,
    label: str | None = None,
    migrate: bool = True,
    listen: str | bool | None = None,
    prepare: bool = True,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Scheduler:
    """Start the scheduler of this process; the arguments are those of `Scheduler`."""
    made = Scheduler(
        database,
        schema=schema,
        tenants=tenants,
        sync_every=sync_every,
        lease=lease,
        max_workers=max_workers,
        label=label,
        migrate=migrate,
        listen=listen,
        prepare=prepare,
        loop=loop,
    )
    _adopt(made)
    return made


def _adopt(made: Scheduler) -> None:
    """Start a scheduler and make it the one of this process."""
    global _scheduler  # noqa: PLW0603 - the one reference the module holds
    with _lock:
        if _scheduler is not None:
            raise AlreadyInitialised
        _scheduler = made.start()


def cancel(timeout: float = 30.0) -> None:
    """Stop the scheduler of this process: drain, release; afterwards it may be initialised again."""
    global _scheduler  # noqa: PLW0603
    running = _initialised()
    running.cancel(timeout)  # refused with a bad timeout, or on the loop of its jobs: then it is still ours
    with _lock:
        if _scheduler is running:
            _scheduler = None


@overload
def register(tenant: str, job_id: str, fn: F, **options: Unpack[JobOptions]) -> F: ...
@overload
def register(tenant: str, job_id: str, fn: None = None, **options: Unpack[JobOptions]) -> Callable[[F], F]: ...
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


def explain(tenant: str, job_id: str) -> Explanation:
    """Say what a job will do, what it did and why, and who can run it; `print` the answer."""
    return _initialised().explain(tenant, job_id)


def jobs(tenant: str | None = None) -> list[JobInfo]:
    """List the mirrored jobs, without a query."""
    return _initialised().jobs(tenant)


def history(tenant: str, job_id: str | None = None, limit: int = 50) -> list[HistoryEntry]:
    """Read the newest rows of the ledger, newest first."""
    return _initialised().history(tenant, job_id, limit)


ainitialise = in_thread(initialise)
acancel = in_thread(cancel)
aregister = in_thread(register)
aregister_many = in_thread(register_many)
aunregister = in_thread(unregister)
apause = in_thread(pause)
aresume = in_thread(resume)
atrigger = in_thread(trigger)
aexplain = in_thread(explain)
ahistory = in_thread(history)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - the thread that held it may not exist in the child
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _initialised() -> Scheduler:
    if _scheduler is None:
        raise NotInitialised
    return _scheduler
