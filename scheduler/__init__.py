"""Call `register()` from every instance of your app: each fire runs once in the whole fleet.

The functions here work on the one scheduler of the process; `Scheduler` is the class behind them.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, overload

from scheduler.app import F, Scheduler
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
from scheduler.model.job import Delivery, HistoryEntry, JobInfo, JobSpec, Outcome, Registration, RunContext

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = [
    "AlreadyInitialised",
    "ConfigError",
    "DuplicateJob",
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
    "cancel",
    "history",
    "initialise",
    "jobs",
    "register",
    "register_many",
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
) -> Scheduler:
    """Start the scheduler of this process; the arguments are those of `Scheduler`."""
    global _scheduler  # noqa: PLW0603 - the one reference the module holds
    with _lock:
        if _scheduler is not None:
            raise AlreadyInitialised
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
        )
        _scheduler = made.start()
        return made


def cancel(timeout: float = 30.0) -> None:
    """Stop the scheduler of this process: drain, release; afterwards it may be initialised again."""
    global _scheduler  # noqa: PLW0603
    with _lock:
        running = _initialised()
        _scheduler = None
    running.cancel(timeout)


@overload
def register(
    tenant: str, job_id: str, fn: F, *, every: timedelta | str | None = None, start_at: datetime | None = None,
    timeout: timedelta | str | None = None, delivery: Delivery = "at_least_once",
) -> F: ...  # fmt: skip
@overload
def register(
    tenant: str, job_id: str, fn: None = None, *, every: timedelta | str | None = None,
    start_at: datetime | None = None, timeout: timedelta | str | None = None, delivery: Delivery = "at_least_once",
) -> Callable[[F], F]: ...  # fmt: skip
def register(tenant: str, job_id: str, fn: Any = None, **options: Any) -> Any:
    """Register a job in every instance; each fire runs once. See `Scheduler.register`."""
    return _initialised().register(tenant, job_id, fn, **options)


def register_many(registrations: Iterable[Registration | Mapping[str, Any]]) -> None:
    """Register many jobs in a few statements. See `Scheduler.register_many`."""
    _initialised().register_many(registrations)


def unregister(tenant: str, job_id: str) -> None:
    """Remove a job from the whole fleet."""
    _initialised().unregister(tenant, job_id)


def jobs(tenant: str | None = None) -> list[JobInfo]:
    """List the mirrored jobs, without a query."""
    return _initialised().jobs(tenant)


def history(tenant: str, job_id: str | None = None, limit: int = 50) -> list[HistoryEntry]:
    """Read the newest rows of the ledger, newest first."""
    return _initialised().history(tenant, job_id, limit)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - the thread that held it may not exist in the child
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _initialised() -> Scheduler:
    if _scheduler is None:
        raise NotInitialised
    return _scheduler
