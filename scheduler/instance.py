"""One running instance: everything that lives between start and cancel, constructed and taken down
here.
"""

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from scheduler.clock import Clock, DatabaseClock, SystemClock
from scheduler.config import Settings
from scheduler.coroutines import Coroutines
from scheduler.dialects.client import Client
from scheduler.errors import StoreError, StoreUnavailable
from scheduler.events import Events
from scheduler.model.addresses import RedisOptions
from scheduler.model.definition import AppVersion, Key
from scheduler.periodic.claim import Claimer
from scheduler.periodic.control import Control
from scheduler.periodic.finish import Finisher
from scheduler.periodic.lease import Leases
from scheduler.periodic.loop import Loop
from scheduler.periodic.presence import Presence
from scheduler.periodic.register import Registrar
from scheduler.periodic.registry import Registered, Registry
from scheduler.periodic.run import STOPPING, Run, RunEnd, Runner
from scheduler.periodic.sync import Sync
from scheduler.processes import Processes
from scheduler.queueing.callbacks import Callbacks
from scheduler.queueing.ledger import Ledger, alone
from scheduler.queueing.ring import Ring
from scheduler.queueing.services import RingServices
from scheduler.queueing.tenants import Tenants
from scheduler.service import Service
from scheduler.sight import Sight, parts_of
from scheduler.store import schema as store_schema
from scheduler.store.engine import Database
from scheduler.store.job import MAX_SWEPT, JobTable
from scheduler.store.job_callback import CallbackTable
from scheduler.store.job_history import HistoryTable
from scheduler.store.job_instance import InstanceTable
from scheduler.store.job_lock import Holder, LockTable
from scheduler.store.job_queue import QueueTable, queue_channel
from scheduler.store.pages import PagesTable
from scheduler.store.ring import RingTable
from scheduler.store.steps import Databases
from scheduler.store.steps import run as run_steps
from scheduler.worker.handlers import backoffs

if TYPE_CHECKING:
    from sqlalchemy import Engine

logger = logging.getLogger("scheduler")

TEND_EVERY = 3600.0
SWEEP_EVERY = timedelta(minutes=30)
LAST_BACKOFF = 2.0  # of loop and finisher, so that fires resume soon after an outage


class Instance:
    """The parts, their threads and their connections."""

    def __init__(
        self,
        settings: Settings,
        database: "str | Engine",
        events: Events,
        inherited: dict[Key, Registered],
        *,
        clock: Clock | None = None,
        now: Callable[[], datetime | None] = lambda: None,
        runner: type[Runner] = Runner,
    ) -> None:
        """Construct everything. A test gives a clock to move, the `now` of every statement, and a
        runner.
        """
        self.settings, self._events, self._now = settings, events, now
        self.ring: RingServices | None = None
        lease = settings.lease.total_seconds()
        self.clock = clock = clock or SystemClock()
        self.database_clock = DatabaseClock(clock)
        self.database = Database.open(database, schema=settings.schema, prepare=settings.prepare)
        self.lease_database = self.database.separate(deadline=min(5.0, lease / 3))
        self._label = label = settings.label or f"{socket.gethostname()}:{os.getpid()}"
        holder = Holder(owner=uuid4(), label=label, lease=settings.lease)
        jobs, instances = JobTable(self.database, now), InstanceTable(self.database, now)
        self.locks = LockTable(self.database, now, holder)
        self.history, self.queue = (
            HistoryTable(self.database, now),
            QueueTable(settings.schema, now),
        )
        self.pages = PagesTable(self.database, now)
        self.databases = Databases(
            self.database, Database.open(database, schema=settings.schema, prepare=False)
        )
        version = AppVersion(settings.app, settings.version)
        self.registry = Registry(inherited, version)
        self.leases = Leases(
            LockTable(self.lease_database, now, holder), clock, events, lease=lease
        )
        self.finisher = Finisher(self.locks, self.leases, events, finished=self._finished)
        self.runner = runner(
            workers=settings.max_workers,
            clock=clock,
            database_clock=self.database_clock,
            events=events,
            coroutines=Coroutines(settings.loop),
            processes=Processes(),
            ended=self._ended,
        )
        self.jobs = jobs
        self.tenant_admin = self._tenant_admin(None)
        self.control = Control(
            jobs=jobs, instances=instances, holder=label, can_run=self.registry.can_run
        )
        self.presence = Presence(
            instances=instances,
            registry=self.registry,
            holder=holder,
            version=version,
            clock=clock,
            database_clock=self.database_clock,
            events=events,
            tenants=self._tenants,
            every=settings.sync_every,
        )
        self.registrar = Registrar(
            jobs=jobs,
            registry=self.registry,
            holder=label,
            version=version,
            is_outranked=self.presence.is_outranked,
            events=events,
            retention=settings.retention,
        )
        self.sync = Sync(
            jobs=jobs,
            registry=self.registry,
            clock=clock,
            database_clock=self.database_clock,
            events=events,
            tenants=self._tenants,
            reconcile=self.registrar.reconcile,
        )
        self.claimer = Claimer(
            registry=self.registry,
            locks=self.locks,
            leases=self.leases,
            runner=self.runner,
            clock=clock,
            database_clock=self.database_clock,
            events=events,
        )
        self.loop = Loop(
            sync=self.sync,
            beat=self.presence.beat,
            claimer=self.claimer,
            registry=self.registry,
            runner=self.runner,
            clock=clock,
            database_clock=self.database_clock,
            tenants=self._tenants,
            sync_every=settings.sync_every.total_seconds(),
            rescue_every=max(0.2, min(3.0, lease / 5)),
        )
        self._serve(database)

    def _serve(self, database: "str | Engine") -> None:
        """Give each part that goes on by itself a thread."""
        self.loop_service = Service("loop", self.loop.step, last_backoff=LAST_BACKOFF)
        self.lease_service = Service("lease", self.leases.step, last_backoff=1.0)
        self.finish_service = Service("finish", self.finisher.step, last_backoff=LAST_BACKOFF)
        self.upkeep_service = Service("upkeep", self._tend)
        self.leases.wake = self.lease_service.wake
        self.runner.on_start = self.leases.watch
        self.runner.note_begun = self.locks.begin
        self.listen_database: Database | None = None
        self.listen_service: Service | None = None
        listen = self.settings.listen
        if listen:
            direct = database if listen is True else str(listen)
            self.listen_database = Database.open(direct, schema=self.settings.schema, prepare=False)
            self.listen_service = Service("listen", self._listen)

    def open(self) -> None:
        """Reach the database, see to the schema, read the mirror."""
        if self.settings.migrate:
            store_schema.migrate(self.database)
        else:
            store_schema.check(self.database)
        self._tend()
        self.sync.sync()
        self.presence.announce()
        if self.settings.redis is not None:
            self.ring = self._ring(self.settings.redis)
            self.tenant_admin = self._tenant_admin(self.ring.ring)

    def start(self) -> None:
        """Open, then start the threads."""
        self.open()
        for service in self._services():
            service.start()
        if self.ring is not None:
            self.ring.start()

    def _ring(self, redis: RedisOptions) -> RingServices:
        ring_table = RingTable(self.settings.schema, self._now)
        installation = str(run_steps(self.databases, alone(ring_table.installation()))[0][0])
        ledger = Ledger(
            databases=self.databases, jobs=self.queue, ring=ring_table, installation=installation
        )
        ring = Ring(
            Client(redis),
            self.settings.queues,
            installation,
            self.database_clock.now,
            self.settings.reaper,
            max_payload=self.settings.max_payload,
        )
        callbacks = Callbacks(
            ledger,
            CallbackTable(self.settings.schema, self._now),
            now=self.database_clock.now,
            secret=self.settings.callback_secret,
            private=self.settings.callback_private,
        )
        return RingServices(
            ledger,
            ring,
            self._events,
            now=self.database_clock.now,
            callbacks=callbacks,
            quick=Client(redis.quick()),
            backoffs=backoffs,
        )

    def _tenant_admin(self, ring: Ring | None) -> Tenants:
        return Tenants(self.databases, self.queue, ring, holder=self._label)

    def look(self, known: Collection[str], others: int) -> Sight:
        """Look at the parts, and in Redis at the known queues and some others."""
        ring = self.ring
        return Sight(
            parts=parts_of([*self._services(), *(() if ring is None else ring.services())]),
            queues=() if ring is None else tuple(ring.look(known, others)),
            skew=self.database_clock.skew(),
            stranded=self.presence.stranded,
        )

    def reach(self) -> None:
        """Ask Postgres and Redis for something small; raises what keeps one of them from
        answering.
        """
        self.sync.look()
        if self.ring is not None:
            self.ring.ring.channel.watched()

    def stop(self, timeout: float) -> None:
        """Drain, then release; see `Scheduler.cancel`."""
        end = time.monotonic() + max(0.0, timeout)
        self.loop.stopping = True
        self.loop_service.stop(timeout=self.database.deadline + 5)
        self._release(self.runner.give_back())
        self._wait(end, lambda: self.runner.count() == 0)
        for run in self.leases.held():
            if self.runner.active(run.key):
                run.cancelled.because(STOPPING)
        self._wait(end + 2.0, lambda: self.runner.count() == 0)
        self._wait(max(end, time.monotonic() + 2.0), self.finisher.idle)
        self.finish_service.stop(timeout=0)
        self.finisher.nudge()
        self.finish_service.stop(
            timeout=self.database.deadline
        )  # what it holds is sent, and no longer ours to release
        self._release([run for run in self.leases.held() if not self.runner.active(run.key)])
        self.runner.stop()
        self.presence.leave()
        self.abandon()

    def abandon(self) -> None:
        """Stop the threads and close the connections."""
        if self.ring is not None:
            self.ring.stop(timeout=2.0)
        for service in self._services():
            service.stop(timeout=0)
        self.finisher.nudge()
        for service in self._services():
            service.stop(timeout=2.0)
        for database in (*self.databases, self.lease_database, self.listen_database):
            if database is not None:
                database.close()

    def _services(self) -> list[Service]:
        services = [self.lease_service, self.finish_service, self.loop_service, self.upkeep_service]
        return services if self.listen_service is None else [*services, self.listen_service]

    def _wait(self, until: float, done: Callable[[], bool]) -> None:
        pause = threading.Event()
        while not done() and time.monotonic() < until:
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

    def _tend(self) -> float:
        """See to the ledger's partitions, and remove what is older than the retention; a role that
        may not leaves it to one that may.
        """
        try:
            made, dropped = self.history.tend(self.settings.retention)
            self._sweep()
        except StoreUnavailable:
            raise
        except StoreError as error:
            logger.warning(
                "the ledger's partitions could not be seen to: %s; trying again in ten minutes",
                error,
            )
            return TEND_EVERY / 6
        if made or dropped:
            logger.info("the ledger: %d days made ahead, %d dropped", made, dropped)
        return TEND_EVERY * random.uniform(0.8, 1.2)  # noqa: S311 - spreads instances

    def _sweep(self) -> None:
        """Remove old one-time jobs and lock rows; at most every half hour in the fleet.

        The limit is committed first: an instance that registers a removed job again finds it, and
        does not run an older fire. If the process dies in between, the next sweep removes them.
        """
        if self.settings.retention is None:
            return
        before = self.jobs.forget(self.settings.retention, every=SWEEP_EVERY)
        jobs, locks, full = 0, 0, before is not None
        while before is not None and full:
            swept = self.jobs.sweep(before)
            jobs, locks, full = jobs + swept[0], locks + swept[1], MAX_SWEPT in swept
        if jobs or locks:
            logger.info(
                "older than the retention: removed %d one-time jobs and %d lock rows without a job",
                jobs,
                locks,
            )

    def _listen(self) -> float:
        if self.listen_database is not None and self.listen_service is not None:
            schema = self.settings.schema
            channels = [schema] if self.ring is None else [schema, queue_channel(schema)]
            for heard in self.listen_database.notifications(channels):
                if self.listen_service.stopping:
                    break
                self.listen_service.works()
                if schema in heard:
                    self.loop.sync_soon()
                    self.loop_service.wake()
                if self.ring is not None and queue_channel(schema) in heard:
                    self.ring.feed()
        return 0.0
