"""Scheduler: the public class; its lifecycle, also across a fork."""

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from scheduler.config import SchedulerOptions, checked_settings
from scheduler.errors import (
    AlreadyInitialised,
    ConfigError,
    InvalidOption,
    LifecycleError,
    NotInitialised,
)
from scheduler.events import Event, Events
from scheduler.instance import Instance
from scheduler.model.body import Cancelled, Here, JobFunction
from scheduler.model.definition import JobOptions, Key, Registration
from scheduler.model.job import Explanation, HistoryEntry, HistoryPlace, InstanceInfo, JobInfo
from scheduler.model.payloads import validate_size
from scheduler.model.texts import name
from scheduler.periodic.control import Control
from scheduler.periodic.registry import Registered
from scheduler.queueing.admin import Queues
from scheduler.queueing.calls import QueueCalls
from scheduler.queueing.ring import Ring
from scheduler.queueing.shortcut import Shortcut
from scheduler.sight import Sight
from scheduler.store.job_queue import QueueTable
from scheduler.store.pages import PagesTable
from scheduler.store.steps import Databases

if TYPE_CHECKING:
    from sqlalchemy import Engine

logger = logging.getLogger("scheduler")

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=JobFunction)

NO_UUID = UUID(int=0)


def in_thread(call: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Make the `a`-variant of a call: awaited, it runs in a thread, and the loop goes on."""

    @wraps(call)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(call, *args, **kwargs)

    awaited.__name__ = f"a{call.__name__}"
    return awaited


class Scheduler(QueueCalls):
    """Run registered jobs, each fire once in the whole fleet, and submit one-shot jobs.

    Construct it, call `start()`, `register(...)` and `cancel()`, or use it as a context manager. A
    process can have several schedulers.

    Args:
        database: A DSN, or a SQLAlchemy engine that uses psycopg. With None the DSN is read from
            SCHEDULER_DATABASE_URL or DATABASE_URL; without these an embedded Postgres is started
            (extra `embedded`).
        redis: URL or `RedisOptions` of the Redis whose queues deliver submitted jobs to workers.
            With None this instance only submits jobs.
        queues: Settings by queue that differ from the default, {"dialect": "standard"}.
        schema: Postgres schema of the scheduler's tables ("scheduler").
        tenants: Tenants whose recurring jobs this instance mirrors: "registered" for those that it
            registers, "all", or a list of names.
        sync_every: Interval between reads of the tables ("1m").
        lease: How long a run is leased without renewal ("30s"). The fires of a crashed instance are
            started again after it.
        max_workers: Number of recurring jobs that run concurrently in this process (16).
        label: Name of this process in the ledger. The default is its host name and process id.
        app: Name of the application whose jobs this process registers. With None its jobs belong to
            one application without a name.
        version: Version of the application, an integer that grows with each deploy. While an
            instance of a higher version of `app` is alive, definitions of this process replace none
            of that version (`docs/recurring.md`). None is below every version.
        migrate: Migrate the schema at start (True). If False, a different version is an error.
        listen: How changes by other instances arrive before the next sync. None listens on
            `database` unless `prepare` is False; a DSN listens on that direct connection (use it
            with PgBouncer); False relies on the sync alone.
        prepare: Use server-side prepared statements (True). Set it to False with PgBouncer in
            transaction mode.
        max_payload: Largest payload of a submitted job in bytes (1 MB), at most 16 MB.
        retention: How long the ledger keeps its rows, and finished one-time jobs are kept ("30d").
            None keeps them for ever.
        callback_secret: Key that signs callbacks, at least 16 characters. With None no callbacks
            are sent.
        callback_private: Allow callbacks to private, loopback and link-local addresses (False).
        reaper: How often the jobs of dead workers are reclaimed, a `ReaperRule`.
        loop: The asyncio loop that runs `async def` jobs. The default is a loop in its own thread.
    """

    def __init__(
        self, database: "str | Engine | None" = None, **options: Unpack[SchedulerOptions]
    ) -> None:
        self.settings = checked_settings(database, options)
        self._lifecycle = threading.RLock()
        self._instance: Instance | None = None
        self._inherited: dict[Key, Registered] | None = None
        self._events = Events()
        _all.add(self)

    def start(self) -> Self:
        """Apply or check the schema and start the background threads; raises if Postgres cannot be
        reached.
        """
        if Here.is_child:
            # a body's own process imports your module: it runs that body, and nothing else
            return self
        with self._lifecycle:
            if self._instance is not None:
                raise AlreadyInitialised(
                    "this scheduler is already started; cancel() it before starting it again"
                )
            self._start(self._inherited or {})
            self._inherited = None
        return self

    def cancel(self, timeout: float = 30.0) -> None:
        """Stop: claim nothing more, let bodies end, keep their leases meanwhile, then release
        everything.

        After `timeout` seconds the bodies that still run are told to end (`ctx.cancelled`) and left
        behind: their leases are not released, they run out, and the fires start again elsewhere.
        """
        patience = _patience(timeout)
        if self.settings.loop is not None and self.settings.loop is _running_loop():
            raise LifecycleError(
                "cancel() on the loop that its jobs run on would wait for itself; await acancel()"
            )
        with self._lifecycle:
            if self._instance is None and self._inherited is not None:
                self._inherited = None  # never started in this process
                return
            instance = self._running()
            self._instance = None
            atexit.unregister(self._at_exit)
        instance.stop(patience)

    @overload
    def register(self, tenant: str, job_id: str, fn: F, **options: Unpack[JobOptions]) -> F: ...
    @overload
    def register(
        self, tenant: str, job_id: str, fn: None = None, **options: Unpack[JobOptions]
    ) -> Callable[[F], F]: ...
    def register(
        self, tenant: str, job_id: str, fn: Any = None, **options: Unpack[JobOptions]
    ) -> Any:
        """Register a recurring job. Every instance calls it, and each fire runs once.

        Without `fn` it returns a decorator. Registering an unchanged definition changes nothing; a
        changed definition replaces the old one in the whole fleet.

        Args:
            tenant: The tenant that the job belongs to.
            job_id: Name of the job, unique within the tenant.
            fn: A `def` or `async def` function that takes no argument or one `RunContext`.
            every: Interval between fires. A job with neither `every` nor `cron` fires once.
            cron: Expression of 5 fields, or of 6 with the second first. L, #, names and aliases
                like @daily are supported.
            timezone: IANA time zone of `cron` ("UTC").
            start_at: The first fire, or for `cron` the earliest one. The default is one interval
                after the first registration; a job that fires once is due immediately. If it is in
                the past, all fires missed since then become one run.
            misfire: How fires later than `grace` are handled. "run_once" runs once for all of them,
                "skip" runs none, "catch_up" runs them one after another within `catch_up`.
            grace: How late a fire can start before it counts as missed ("1m").
            catch_up: Limits of the "catch_up" policy, CatchUp(max_count=100, max_age="1d").
            overlap: A fire that comes while the previous one runs is skipped ("skip") or waits
                ("queue_one").
            jitter: Delay each job by a fixed share of this duration, to spread jobs that fire
                together.
            timeout: Duration after which `ctx.cancelled` is set and an `async def` function is
                cancelled.
            delivery: After a crash, "at_least_once" starts the fire again, at most three times in
                all; "at_most_once" records it as crashed.
            executor: "thread", or "process" for functions that hold the GIL. A process is killed at
                the timeout.
            queue: Submit a job to this queue at each fire instead of calling `fn`. `overlap` then
                applies to the previously submitted job.
            type, payload, priority, retry, timeouts: Fields of the submitted job. `type` defaults
                to `job_id`.
        """
        if options.get("queue") is not None:
            self.register_many([_registration(tenant, job_id, fn, options)])
            return None
        if fn is None:
            _registration(tenant, job_id, _nothing, options).checked()

            def decorate(function: F) -> F:
                self.register(tenant, job_id, function, **options)
                return function

            return decorate
        self.register_many([_registration(tenant, job_id, fn, options)])
        return fn

    def register_many(self, registrations: Iterable[Registration | Mapping[str, Any]]) -> None:
        """Register many jobs in a few statements; either all of them or, on any error, none in this
        process.
        """
        if not isinstance(registrations, Iterable):
            raise InvalidOption(f"register_many takes a list, not {type(registrations).__name__}")
        if Here.is_child:
            return
        instance = self._running()
        checked = [Registration.of(item).checked() for item in registrations]
        for each in checked:
            if each.spec.work is not None:
                self._check_dialect(each.spec.work.queue, each.spec.work.retry)
                validate_size(each.spec.work.payload, self.settings.max_payload)
        if checked:
            instance.registrar.register(checked)
            instance.loop.beat_soon()
            instance.loop_service.wake()

    def unregister(self, tenant: str, job_id: str) -> None:
        """Remove a job from the whole fleet; a run under way ends as it would have."""
        self._running().registrar.unregister(_key(tenant, job_id))

    def pause(self, tenant: str, job_id: str) -> datetime:
        """Let its fires pass a job by, in the whole fleet; return since when. A run under way ends
        as it would have.
        """
        return self._steered(self._control().pause(_key(tenant, job_id)))

    def resume(self, tenant: str, job_id: str) -> datetime | None:
        """Let a paused job go on with its first fire after now, and return it; what passed is one
        ledger row.
        """
        return self._steered(self._control().resume(_key(tenant, job_id)))

    def trigger(self, tenant: str, job_id: str) -> datetime:
        """Run a job soon, beside its schedule and also when paused; return the `fire_at` of that
        run.

        It waits for a run under way. Two triggers before it is picked up are one run.
        """
        return self._steered(self._control().trigger(_key(tenant, job_id)))

    def pause_tenant(self, tenant: str) -> datetime:
        """Pause a tenant in the whole fleet; return the time at which it was paused.

        Its recurring jobs do not fire and are not triggered, and none of its submitted jobs is
        pushed into Redis. Jobs that are in queues of the dialect `standard` wait there; in other
        dialects they run. Runs and attempts in progress end as they would have.
        """
        return self._steered(self._running().tenant_admin.pause(name(tenant, what="tenant")))

    def resume_tenant(self, tenant: str) -> bool:
        """Resume a paused tenant, and return whether it was paused.

        Each recurring job continues with its first fire after now; those that passed are one
        ledger row. Its submitted jobs run in their original order.
        """
        return self._steered(self._running().tenant_admin.resume(name(tenant, what="tenant")))

    def delete_tenant(self, tenant: str) -> dict[str, int]:
        """Delete a paused tenant with its jobs, in Redis too, and its ledger; return the number of
        deleted rows by table.

        The audit rows of the tenant itself remain, and a tombstone: an instance that still has
        functions of the tenant does not register its jobs again before it calls `register`. Results
        of jobs in progress are dropped. If the call fails, or its process dies, call it again.

        Raises:
            TenantNotPaused: The tenant is not paused.
        """
        instance = self._running()
        deleted = instance.tenant_admin.delete(name(tenant, what="tenant"))
        instance.registry.forget_tenant(tenant)
        return self._steered(deleted)

    def explain(self, tenant: str, job_id: str) -> Explanation:
        """Say what a job will do, what it did and why, and who can run it; `print` the answer."""
        return self._control().explain(_key(tenant, job_id))

    def jobs(self, tenant: str | None = None) -> list[JobInfo]:
        """List the mirrored jobs, of one tenant or of all, without a query."""
        return self._running().registry.jobs(
            None if tenant is None else name(tenant, what="tenant")
        )

    def registered(self, tenant: str, *, after: str = "", limit: int = 100) -> list[JobInfo]:
        """Read the jobs of a tenant out of the tables, mirrored here or not, by id; those after the
        id `after`.
        """
        registry = self._running().registry
        return self._control().page(
            name(tenant, what="tenant"),
            after,
            limit=_limit(limit),
            has=lambda key: registry.body(key) is not None,
        )

    def instances(self, *, after: UUID = NO_UUID, limit: int = 100) -> list[InstanceInfo]:
        """Read who is there to run jobs, also who left without a word in the last day, by id."""
        return self._control().instances.page(after, limit=_limit(limit))

    def history(
        self,
        tenant: str,
        job_id: str | None = None,
        limit: int = 50,
        *,
        before: HistoryPlace | None = None,
    ) -> list[HistoryEntry]:
        """Read the newest rows of the ledger, newest first; or those `before` one of them."""
        job = None if job_id is None else name(job_id, what="job_id")
        return self._running().history.newest(
            name(tenant, what="tenant"), job, limit=_limit(limit), before=before
        )

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` with every event of this instance, in our threads; returns what ends
        it.
        """
        return self._events.subscribe(listener)

    def look(self, known: Collection[str] = (), others: int = 0) -> Sight:
        """Look at the parts of this instance, and in Redis at the queues that are known and some
        others.
        """
        return self._running().look(known, others)

    @property
    def pages(self) -> PagesTable:
        """What the dashboard reads beside the calls here."""
        return self._running().pages

    def reach(self) -> None:
        """Ask Postgres and Redis for something small; raises what keeps one of them from
        answering.
        """
        self._running().reach()

    def is_running(self) -> bool:
        """Whether it is started and not cancelled, here or in the process that this one was forked
        from.
        """
        return self._instance is not None or self._inherited is not None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._instance is not None:
            self.cancel()

    astart = in_thread(start)
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

    achain = in_thread(QueueCalls.chain)
    afan_out = in_thread(QueueCalls.fan_out)
    aget = in_thread(QueueCalls.get)
    afind = in_thread(QueueCalls.find)
    aupdate_job = in_thread(QueueCalls.update_job)
    acancel_job = in_thread(QueueCalls.cancel_job)
    aretry_job = in_thread(QueueCalls.retry_job)
    await_job = in_thread(QueueCalls.wait)
    aqueues = in_thread(QueueCalls.queues)
    aqueue = in_thread(QueueCalls.queue)
    aworkers = in_thread(QueueCalls.workers)
    atotals = in_thread(QueueCalls.totals)
    apause_queue = in_thread(QueueCalls.pause_queue)
    aresume_queue = in_thread(QueueCalls.resume_queue)

    def _queue(self) -> tuple[Databases, QueueTable, int]:
        instance = self._running()
        return instance.databases, instance.queue, self.settings.max_payload

    def _ring(self) -> Ring | None:
        ring = self._running().ring
        return None if ring is None else ring.ring

    def _shortcut(self) -> Shortcut | None:
        ring = self._running().ring
        return None if ring is None else ring.shortcut

    def _queues(self) -> Queues:
        ring = self._running().ring
        if ring is None:
            raise ConfigError(
                "redis: queues are in Redis, and this scheduler has none; pass redis=..."
            )
        return ring.queues

    def _steered(self, answer: R) -> R:
        """Let this instance see at once what it has just changed."""
        instance = self._running()
        instance.loop.sync_soon()
        instance.loop_service.wake()
        return answer

    def _control(self) -> Control:
        return self._running().control

    def _running(self) -> Instance:
        with self._lifecycle:
            if self._instance is None and self._inherited is not None:
                # Forked from a process where it ran: the first call in the child gives it an
                # identity of its own.
                logger.info(
                    "scheduler inherited through a fork: starting it anew in process %d",
                    os.getpid(),
                )
                self._start(self._inherited)
                self._inherited = None
            if self._instance is None:
                raise NotInitialised("this scheduler is not started; call start() first")
            return self._instance

    def _start(self, inherited: dict[Key, Registered]) -> None:
        instance = self._construct(self.settings.database or _database(), inherited)
        try:
            self._open(instance)
        except BaseException:
            instance.abandon()
            raise
        self._instance = instance
        atexit.register(self._at_exit)  # after an embedded server's own, so that it runs before it

    def _construct(self, database: "str | Engine", inherited: dict[Key, Registered]) -> Instance:
        return Instance(self.settings, database, self._events, inherited)

    def _open(self, instance: Instance) -> None:
        instance.start()

    def _at_exit(self) -> None:
        """Hand unstarted fires back for a process that forgot to cancel, without keeping anybody
        waiting.
        """
        if self._instance is not None:
            self.cancel(timeout=1.0)

    def _after_fork(self) -> None:
        """Drop everything that belongs to the parent: locks another thread may hold, its sockets,
        its identity.
        """
        instance, self._instance = self._instance, None
        self._lifecycle = threading.RLock()
        self._events = self._events.copy()
        if instance is not None:
            self._inherited = instance.registry.inherited()
            _parents.append(instance)  # never collected: closing would talk on the parent's sockets


_all: "weakref.WeakSet[Scheduler]" = weakref.WeakSet()
_parents: list[Instance] = []


def _nothing() -> None:
    """Stand in for a function that the decorator is still to be given."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _key(tenant: object, job_id: object) -> Key:
    return Key(name(tenant, what="tenant"), name(job_id, what="job_id"))


def _registration(
    tenant: str, job_id: str, fn: JobFunction | None, options: JobOptions
) -> Registration:
    try:
        return Registration(tenant=tenant, job_id=job_id, fn=fn, **options)
    except TypeError:
        unknown = sorted(set(options) - set(JobOptions.__annotations__))
        near = get_close_matches(unknown[0], JobOptions.__annotations__, n=1)
        hint = (
            f"; did you mean {near[0]}?"
            if near
            else f"; there are {', '.join(JobOptions.__annotations__)}"
        )
        raise InvalidOption(f"register() has no option {unknown[0]!r}{hint}") from None


def _database() -> str:
    found = os.environ.get("SCHEDULER_DATABASE_URL") or os.environ.get("DATABASE_URL")
    if found:
        return found
    from scheduler.embedded.postgres import shared_postgres  # noqa: PLC0415 - an extra

    return shared_postgres()


def _patience(timeout: object) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidOption(f"timeout must be a number of seconds, not {timeout!r}")
    return float(timeout)


def _limit(limit: object) -> int:
    if not isinstance(limit, int) or not 1 <= limit <= 10_000:
        raise InvalidOption(f"limit must be a number from 1 to 10000, not {limit!r}")
    return limit


def _forked() -> None:
    Cancelled.after_fork()
    for scheduler in list(_all):
        scheduler._after_fork()  # noqa: SLF001 - the class's own hook


os.register_at_fork(after_in_child=_forked)
