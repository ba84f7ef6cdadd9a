"""Scheduler: composition root and lifecycle; the only place where things are constructed."""

import atexit
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload
from uuid import uuid4

from scheduler.clock import DatabaseClock, SystemClock
from scheduler.errors import AlreadyInitialised, ConfigError, InvalidOption, LifecycleError, NotInitialised, StoreError
from scheduler.events import Event, Events
from scheduler.model.durations import duration
from scheduler.model.job import Body, Delivery, HistoryEntry, JobFunction, JobInfo, Key, Registration
from scheduler.model.texts import name, storable
from scheduler.periodic.claim import Claimer
from scheduler.periodic.finish import Finisher
from scheduler.periodic.lease import Leases
from scheduler.periodic.loop import Loop
from scheduler.periodic.register import Registrar
from scheduler.periodic.registry import Registry
from scheduler.periodic.run import STOPPING, Run, RunEnd, Runner
from scheduler.periodic.sync import Sync
from scheduler.service import Service
from scheduler.store import schema as store_schema
from scheduler.store.engine import Database, Listener
from scheduler.store.job import JobTable
from scheduler.store.job_history import HistoryTable
from scheduler.store.job_lock import Holder, LockTable

if TYPE_CHECKING:
    from sqlalchemy import Engine

logger = logging.getLogger("scheduler")

Tenants = Literal["registered", "all"] | Sequence[str]
F = TypeVar("F", bound=JobFunction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a scheduler was constructed with, checked."""

    database: "str | Engine"
    schema: str
    tenants: Tenants
    sync_every: timedelta
    lease: timedelta
    max_workers: int
    label: str
    migrate: bool
    listen: str | bool
    prepare: bool


class Scheduler:
    """Runs registered jobs, each fire once in the whole fleet.

    Construct, `start()`, `register(...)`, `cancel()`; or use it as a context manager. There may be many in a process.

    database: a DSN, a SQLAlchemy engine on psycopg, or None: SCHEDULER_DATABASE_URL, DATABASE_URL, else an embedded
        Postgres (extra `embedded`).
    schema: the Postgres schema of our tables.
    tenants: whose jobs are mirrored: those registered here, "all", or a list of names.
    sync_every: how often the tables are read anew.
    lease: for how long a run is ours without a renewal; a crashed instance's fires start again after it.
    max_workers: how many bodies run at once in this process.
    label: what the ledger calls this process; host and process id by default.
    migrate: bring the schema to our version at start; if not, a wrong version is an error.
    listen: hear of changes at once. None: over `database` unless `prepare` is off; a DSN: over that direct
        connection (beside PgBouncer); False: only by the sync.
    prepare: prepare statements on the server; switch it off behind PgBouncer in transaction mode.
    """

    def __init__(
        self,
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
    ) -> None:
        self.settings = Settings(
            database=_database(database),
            schema=store_schema.checked_name(schema),
            tenants=_tenants(tenants),
            sync_every=duration(sync_every, name="sync_every", error=ConfigError),
            lease=_lease(lease),
            max_workers=_workers(max_workers),
            label=_label(label),
            migrate=migrate,
            listen=prepare if listen is None else listen,
            prepare=prepare,
        )
        self._lifecycle = threading.RLock()
        self._parts: Parts | None = None
        self._inherited: dict[Key, Body] | None = None
        self.events = Events()

    def start(self) -> Self:
        """Apply or check the schema and start the background threads; raises if Postgres cannot be reached."""
        with self._lifecycle:
            if self._parts is not None:
                raise AlreadyInitialised("this scheduler is already started; cancel() it before starting it again")
            self._start(self._inherited or {})
            self._inherited = None
        return self

    def cancel(self, timeout: float = 30.0) -> None:
        """Stop: claim nothing more, let bodies end, keep their leases meanwhile, then release everything.

        After `timeout` seconds the bodies that still run are told to end (`ctx.cancelled`) and left behind: their
        leases are not released, they run out, and the fires start again elsewhere.
        """
        with self._lifecycle:
            parts = self._running()
            self._parts = None
            _live.discard(self)
        parts.stop(timeout)

    @overload
    def register(
        self, tenant: str, job_id: str, fn: F, *, every: timedelta | str | None = None,
        start_at: datetime | None = None, timeout: timedelta | str | None = None, delivery: Delivery = "at_least_once",
    ) -> F: ...  # fmt: skip
    @overload
    def register(
        self, tenant: str, job_id: str, fn: None = None, *, every: timedelta | str | None = None,
        start_at: datetime | None = None, timeout: timedelta | str | None = None, delivery: Delivery = "at_least_once",
    ) -> Callable[[F], F]: ...  # fmt: skip
    def register(
        self,
        tenant: str,
        job_id: str,
        fn: Any = None,
        *,
        every: timedelta | str | None = None,
        start_at: datetime | None = None,
        timeout: timedelta | str | None = None,
        delivery: Delivery = "at_least_once",
    ) -> Any:
        """Register a job: call it in every instance, each fire runs once. Without `fn` it is a decorator.

        fn: takes nothing or one `RunContext`; `def` or `async def`.
        every: the interval. Without it the job fires once.
        start_at: the first fire. By default one interval after the first registration (once: at once). In the past:
            what was missed since then is one run, now.
        timeout: after it `ctx.cancelled` is set and an `async def` body is cancelled.
        delivery: what becomes of a fire whose process died: "at_least_once" starts it again, up to three times;
            "at_most_once" records it as crashed.

        An unchanged definition touches nothing; a changed one replaces the old for the whole fleet.
        """
        if fn is None:
            Registration(
                tenant=tenant, job_id=job_id, fn=_nothing, every=every, start_at=start_at, timeout=timeout,
                delivery=delivery,
            ).checked()  # fmt: skip

            def decorate(function: F) -> F:
                self.register(
                    tenant, job_id, function, every=every, start_at=start_at, timeout=timeout, delivery=delivery
                )
                return function

            return decorate
        self.register_many(
            [
                Registration(
                    tenant=tenant, job_id=job_id, fn=fn, every=every, start_at=start_at, timeout=timeout,
                    delivery=delivery,
                )
            ]
        )  # fmt: skip
        return fn

    def register_many(self, registrations: Iterable[Registration | Mapping[str, Any]]) -> None:
        """Register many jobs in a few statements; either all of them or, on any error, none in this process."""
        parts = self._running()
        checked = [Registration.of(item).checked() for item in registrations]
        if checked:
            parts.registrar.register(checked)
            parts.loop_service.wake()

    def unregister(self, tenant: str, job_id: str) -> None:
        """Remove a job from the whole fleet; a run under way ends as it would have."""
        parts = self._running()
        parts.registrar.unregister(Key(name(tenant, what="tenant"), name(job_id, what="job_id")))

    def jobs(self, tenant: str | None = None) -> list[JobInfo]:
        """List the mirrored jobs, of one tenant or of all, without a query."""
        return self._running().registry.jobs(None if tenant is None else name(tenant, what="tenant"))

    def history(self, tenant: str, job_id: str | None = None, limit: int = 50) -> list[HistoryEntry]:
        """Read the newest rows of the ledger, newest first."""
        if not 1 <= limit <= 10_000:
            raise InvalidOption(f"limit must be a number from 1 to 10000, not {limit!r}")
        parts = self._running()
        job = None if job_id is None else name(job_id, what="job_id")
        return parts.history.newest(name(tenant, what="tenant"), job, limit=limit)

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` with every event of this instance, in our threads; returns what ends it."""
        return self.events.subscribe(listener)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._parts is not None:
            self.cancel()

    def _running(self) -> "Parts":
        with self._lifecycle:
            if self._parts is None and self._inherited is not None:
                # Forked from a process where it ran: the first call in the child gives it an identity of its own.
                logger.info("scheduler inherited through a fork: starting it anew in process %d", os.getpid())
                inherited, self._inherited = self._inherited, None
                self._start(inherited)
            if self._parts is None:
                raise NotInitialised("this scheduler is not started; call start() first")
            return self._parts

    def _start(self, bodies: dict[Key, Body]) -> None:
        parts = Parts(self.settings, self.events, bodies)
        try:
            parts.start()
        except BaseException:
            parts.abandon()
            raise
        self._parts = parts
        _live.add(self)

    def _after_fork(self) -> None:
        """Drop everything that belongs to the parent: locks another thread may hold, its sockets, its identity."""
        parts, self._parts = self._parts, None
        self._lifecycle = threading.RLock()
        self.events = self.events.copy()
        if parts is not None:
            self._inherited = parts.registry.inherited()
            _parents.append(parts)  # never collected: closing would talk on the parent's sockets


class Parts:
    """Everything that lives between start and cancel."""

    def __init__(self, settings: Settings, events: Events, bodies: dict[Key, Body]) -> None:
        self.settings = settings
        lease = settings.lease.total_seconds()
        clock = SystemClock()
        self.clock = clock
        self.database_clock = DatabaseClock(clock)
        self.database = Database.open(settings.database, schema=settings.schema, prepare=settings.prepare)
        self.lease_database = self.database.separate(deadline=min(5.0, lease / 3))
        holder = Holder(owner=uuid4(), label=settings.label, lease=settings.lease)
        jobs = JobTable(self.database, _database_time)
        self.locks = LockTable(self.database, _database_time, holder)
        self.history = HistoryTable(self.database)
        self.registry = Registry()
        self.registry.reserve(bodies)
        self.leases = Leases(LockTable(self.lease_database, _database_time, holder), clock, events, lease=lease)
        self.finisher = Finisher(self.locks, self.leases, events, finished=self._finished)
        self.runner = Runner(
            workers=settings.max_workers, clock=clock, database_clock=self.database_clock, events=events,
            ended=self._ended,
        )  # fmt: skip
        self.registrar = Registrar(
            jobs=jobs, registry=self.registry, database_clock=self.database_clock, holder=settings.label
        )
        self.sync = Sync(
            jobs=jobs, registry=self.registry, clock=clock, database_clock=self.database_clock, events=events,
            tenants=self._tenants,
        )  # fmt: skip
        claimer = Claimer(
            registry=self.registry, locks=self.locks, leases=self.leases, runner=self.runner, clock=clock,
            database_clock=self.database_clock, events=events,
        )  # fmt: skip
        self.loop = Loop(
            sync=self.sync, claimer=claimer, registry=self.registry, runner=self.runner, clock=clock,
            database_clock=self.database_clock, tenants=self._tenants,
            sync_every=settings.sync_every.total_seconds(), rescue_every=max(0.2, min(3.0, lease / 5)),
        )  # fmt: skip
        self.loop_service = Service("loop", self.loop.step)
        self.lease_service = Service("lease", self.leases.step, last_backoff=1.0)
        self.finish_service = Service("finish", self.finisher.step, last_backoff=5.0)
        self.leases.wake = self.lease_service.wake
        self.runner.on_start = self.leases.watch
        self.listener: Database | None = None
        self.listen_service: Service | None = None
        if settings.listen:
            direct = settings.database if settings.listen is True else str(settings.listen)
            self.listener = Database.open(direct, schema=settings.schema, prepare=False)
            self.listen_service = Service("listen", self._listen)

    def start(self) -> None:
        """Reach the database, see to the schema, start the threads."""
        if self.settings.migrate:
            store_schema.migrate(self.database)
        else:
            store_schema.check(self.database)
        self.sync.look()
        for service in self._services():
            service.start()

    def stop(self, timeout: float) -> None:
        """Drain, then release; see `Scheduler.cancel`."""
        end = self.clock.monotonic() + max(0.0, timeout)
        self.loop.stopping = True
        self.loop_service.stop(timeout=self.database.deadline + 5)
        self._release(self.runner.give_back())
        self._wait(end, lambda: self.runner.count() == 0)
        stuck = self.leases.held() if self.runner.count() else []
        for run in stuck:
            run.cancelled.because(STOPPING)
        self._wait(min(end, self.clock.monotonic()) + 1.0, lambda: self.runner.count() == 0)
        self._wait(max(end, self.clock.monotonic() + 2.0), self.finisher.idle)
        self.finish_service.stop(timeout=0)
        self.finisher.nudge()
        self.finish_service.stop(timeout=self.database.deadline)  # what it holds is sent, and no longer ours to release
        self._release([run for run in self.leases.held() if not self.runner.active(run.key)])
        self.runner.stop()
        self.abandon()

    def abandon(self) -> None:
        """Stop the threads and close the connections."""
        for service in self._services():
            service.stop(timeout=0)
        self.finisher.nudge()
        for service in self._services():
            service.stop(timeout=2.0)
        for database in (self.database, self.lease_database, self.listener):
            if database is not None:
                database.close()

    def _services(self) -> list[Service]:
        services = [self.lease_service, self.finish_service, self.loop_service]
        return services if self.listen_service is None else [*services, self.listen_service]

    def _wait(self, until: float, done: Callable[[], bool]) -> None:
        pause = threading.Event()
        while not done() and self.clock.monotonic() < until:
            pause.wait(0.01)

    def _release(self, runs: list[Run]) -> None:
        self.leases.drop(runs)
        try:
            if runs:
                self.locks.release(runs, started=[run.started for run in runs])
        except StoreError as error:
            logger.warning("%d leases could not be released and will run out: %s", len(runs), error)

    def _tenants(self) -> Sequence[str] | None:
        tenants = self.settings.tenants
        if tenants == "all":
            return None
        return sorted({*self.registry.tenants(), *(() if tenants == "registered" else tenants)})

    def _ended(self, end: RunEnd) -> None:
        self.finisher.put(end)
        if self.loop.starved:
            self.loop.starved = False
            self.loop_service.wake()

    def _finished(self, keys: list[Key]) -> None:
        if sum(map(self.registry.hasten, keys)):
            self.loop_service.wake()

    def _listen(self) -> float:
        if self.listener is not None and self.listen_service is not None:
            for heard in Listener(self.listener):
                if self.listen_service.stopping:
                    break
                if heard:
                    self.loop.sync_soon()
                    self.loop_service.wake()
        return 0.0


_live: "weakref.WeakSet[Scheduler]" = weakref.WeakSet()
_parents: list[Parts] = []


def _nothing() -> None:
    """Stand in for a function that the decorator is still to be given."""


def _database_time() -> None:
    """Let Postgres say what time it is."""


def _database(database: "str | Engine | None") -> "str | Engine":
    if database is None:
        found = os.environ.get("SCHEDULER_DATABASE_URL") or os.environ.get("DATABASE_URL")
        if found:
            return found
        from scheduler.embedded.postgres import shared_postgres  # noqa: PLC0415 - an extra

        return shared_postgres()
    if isinstance(database, str) and not database.strip():
        raise ConfigError("database: is empty; pass a DSN like postgresql://user@host/app, or None")
    return database


def _tenants(tenants: object) -> Tenants:
    if tenants in ("registered", "all"):
        return tenants
    if isinstance(tenants, str) or not isinstance(tenants, Iterable):
        raise ConfigError(f'tenants: must be "registered", "all" or a list of names, not {tenants!r}')
    return [name(tenant, what="tenant") for tenant in tenants]


def _lease(lease: object) -> timedelta:
    value = duration(lease, name="lease", error=ConfigError)
    if not timedelta(milliseconds=500) <= value <= timedelta(hours=1):
        raise ConfigError(f"lease: must be between 500ms and 1h, not {lease!r}")
    return value


def _workers(workers: object) -> int:
    if not isinstance(workers, int) or not 1 <= workers <= 10_000:
        raise ConfigError(f"max_workers: must be a number from 1 to 10000, not {workers!r}")
    return workers


def _label(label: object) -> str:
    if label is None:
        return f"{socket.gethostname()}:{os.getpid()}"
    if not isinstance(label, str) or not label:
        raise ConfigError(f"label: must be a text, not {label!r}")
    return storable(label, 200)


def _forked() -> None:
    for scheduler in list(_live):
        scheduler._after_fork()  # noqa: SLF001 - the class's own hook
    _live.clear()


@atexit.register
def _at_exit() -> None:
    """A process that forgets to cancel still hands its unstarted fires back, without keeping anybody waiting."""
    for scheduler in list(_live):
        try:
            scheduler.cancel(timeout=1.0)
        except LifecycleError:
            continue


os.register_at_fork(after_in_child=_forked)
