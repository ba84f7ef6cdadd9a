"""Our algorithm in the simulated world: the real registry, sync, claim, lease, finish and register
on real SQL.

Only the threads are replaced: bodies last as long as the world says, and record themselves outside
our tables.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from scheduler.clock import DatabaseClock
from scheduler.errors import StoreUnavailable, UnknownJob
from scheduler.events import Event, Events, FireEnded, LeaseLost
from scheduler.model.definition import NO_VERSION, Delivery, Key, Registration
from scheduler.model.outcomes import Outcome
from scheduler.periodic.claim import Claimer
from scheduler.periodic.control import Control
from scheduler.periodic.finish import Finisher
from scheduler.periodic.lease import Leases
from scheduler.periodic.loop import Loop
from scheduler.periodic.presence import Presence
from scheduler.periodic.register import Registrar
from scheduler.periodic.registry import Registry
from scheduler.periodic.run import Run, RunEnd, Runner
from scheduler.periodic.sync import Sync
from scheduler.store.engine import Database
from scheduler.store.job import JobTable
from scheduler.store.job_instance import InstanceTable
from scheduler.store.job_lock import Claimed, Holder, LockTable, Wanted
from tests.simulation.world import Process, SimDatabase, Violation, World

LEASE = timedelta(seconds=10)
Plans = dict[Key, dict[str, Any]]


@dataclass
class Record:
    """What a body wrote down when it started."""

    key: Key
    fire_at: datetime
    attempt: int
    fence: int
    process: Process
    started_at: datetime
    ends_at: datetime
    run: Run
    ended: bool = False


class Log:
    """What really happened, outside our tables. unlocked: leases whose lock rows were deleted, with
    whether each was of a trigger, and the first fire that it stands for.
    """

    def __init__(self) -> None:
        self.unlocked: dict[tuple[Key, datetime], tuple[bool, datetime | None]] = {}
        self.records: list[Record] = []
        self.accepted: list[tuple[Key, datetime]] = []


class SimRunner:
    """Stands where `Runner` stands: a run starts now and ends when the world's time has come."""

    def __init__(self, world: World, process: Process, log: Log) -> None:
        self.world, self.process, self.log = world, process, log
        self.running: list[Record] = []
        self.refused: list[Run] = []  # not begun: their leases were lost
        self.note_begun: Callable[[Run], bool]

    def room(self) -> int:
        return max(0, 3 - len(self.running))

    def free(self) -> int:
        return self.room()

    def release_at(self) -> float | None:
        return None

    def active(self, key: Key) -> bool:
        return any(record.key == key for record in self.running)

    def take(self, runs: list[Run]) -> None:
        for run in runs:
            if run.once and not self._begins(run):
                run.lost = True
                self.refused.append(run)
                continue
            self._overlap(run)
            run.started = run.called = True
            lasts = self.world.rng.choice([0.0, 0.1, 2.0, 6.0, 14.0, 28.0])
            record = Record(
                run.key,
                run.fire_at,
                run.attempt,
                run.fence,
                self.process,
                self.world.now,
                self.world.now + timedelta(seconds=lasts),
                run,
            )
            self.running.append(record)
            self.log.records.append(record)

    def ended(self) -> list[Record]:
        done = [record for record in self.running if record.ends_at <= self.world.now]
        self.running = [record for record in self.running if record.ends_at > self.world.now]
        return done

    def _begins(self, run: Run) -> bool:
        with suppress(StoreUnavailable):
            return self.note_begun(run) and run.lease_until > self.world.monotonic()
        return False

    def _overlap(self, run: Run) -> None:
        for other in self.log.records:
            if (
                other.key != run.key
                or other.ended
                or other.process.crashed
                or other.process.suspended
                or (other.key, other.fire_at) in self.log.unlocked
            ):
                continue
            if not other.run.lost and other.run.lease_until > self.world.monotonic():
                raise Violation(
                    f"{run.key} fence {run.fence} starts while fence {other.fence} holds its lease"
                )


class CountingLocks(LockTable):
    """Counts why claims were not won."""

    def __init__(self, world: World, database: Database, holder: Holder) -> None:
        super().__init__(database, lambda: world.now, holder)
        self.world = world

    def claim(self, wanted: Sequence[Wanted]) -> list[Claimed]:
        answers = super().claim(wanted)
        for answer in answers:
            if answer.verdict is None:
                moved = answer.next_run_at != wanted[answer.position].seen
                self.world.seen["stale mirror" if moved else "row held by another"] += 1
                self.world.seen["claim beside an open renewal"] += not moved and any(
                    actor.midway and actor.doing == "renew"
                    for process in self.world.live()
                    for actor in process.actors
                )
        return answers


def delivery(key: Key) -> Delivery:
    """The last job of each world runs at most once."""
    return "at_most_once" if key.job_id == "j2" else "at_least_once"


class Instance(Process):
    """One process of the app."""

    def __init__(self, world: World, name: str, schema: str, log: Log, plans: Plans) -> None:
        super().__init__(world, name)
        self.log = log
        events = Events()
        events.subscribe(self._event)
        database = cast("Database", SimDatabase(world, self, schema))
        clock = DatabaseClock(world)
        holder = Holder(owner=UUID(int=world.rng.getrandbits(128)), label=name, lease=LEASE)
        jobs = JobTable(database, lambda: world.now)
        locks = CountingLocks(world, database, holder)
        self.registry = Registry()
        self.runner = SimRunner(world, self, log)
        self.runner.note_begun = locks.begin
        self.leases = Leases(locks, world, events, lease=LEASE.total_seconds())
        self.finisher = Finisher(locks, self.leases, events, finished=self._finished)
        claimer = Claimer(
            registry=self.registry,
            locks=locks,
            leases=self.leases,
            runner=cast("Runner", self.runner),
            clock=world,
            database_clock=clock,
            events=events,
        )
        self.control = Control(
            jobs=jobs, instances=InstanceTable(database, lambda: world.now), holder=name
        )
        presence = Presence(
            instances=self.control.instances,
            registry=self.registry,
            holder=holder,
            version=NO_VERSION,
            clock=world,
            database_clock=clock,
            events=events,
            tenants=self.registry.tenants,
            every=timedelta(minutes=1),
        )
        self.registrar = Registrar(
            jobs=jobs,
            registry=self.registry,
            holder=name,
            version=NO_VERSION,
            is_outranked=presence.is_outranked,
            events=events,
            retention=None,
        )
        self.sync = Sync(
            jobs=jobs,
            registry=self.registry,
            clock=world,
            database_clock=clock,
            events=events,
            tenants=self.registry.tenants,
            reconcile=self.registrar.reconcile,
        )
        self.loop = Loop(
            sync=self.sync,
            beat=presence.beat,
            claimer=claimer,
            registry=self.registry,
            runner=cast("Runner", self.runner),
            clock=world,
            database_clock=clock,
            tenants=self.registry.tenants,
            sync_every=60.0,
            rescue_every=2.0,
        )
        self.jobs = jobs
        self.plans = plans
        self.wishes: list[Callable[[], None]] = [lambda: self.register(dict(plans))]
        self.spawn("api", self._api)
        self.loop_actor = self.spawn("loop", self._loop)
        self.spawn("lease", self.leases.step)
        self.spawn("finish", self._finish)

    def register(self, plans: Plans) -> None:
        items = [
            Registration(
                **{"fn": lambda: None, "delivery": delivery(key), **key._asdict(), **options}
            ).checked()
            for key, options in plans.items()
        ]
        self.registry.unreserve(plans)
        self.registrar.register(items)
        self.poke(self.loop_actor)

    def unregister_and_register(self, key: Key) -> None:
        if any(record.key == key and not record.ended for record in self.log.records):
            self.world.seen["unregistered while a run lived"] += 1
        with suppress(UnknownJob):  # the answer to the first try was lost
            self.registrar.unregister(key)
        _, locks = self.jobs.sweep(self.world.now)  # as if there were no retention
        self.world.seen["lock row swept"] += locks
        self.register({key: self.plans[key]})

    def unlock(self, key: Key, schema: str) -> None:
        """Delete the lock row of a job, as a person might."""
        self.world.pass_time(0.001)  # each trigger has an instant of its own
        found = self.world.unlock(schema, *key)
        if found is not None:
            fire_at, triggered, missed_from = found
            self.world.seen["lock row deleted"] += 1
            if fire_at is not None:
                self.world.seen["lock row deleted under a lease"] += 1
                self.log.unlocked[key, fire_at] = (triggered, missed_from)

    def steer(self, call: str, key: Key) -> None:
        """Pause, resume or trigger, and hear of it as over LISTEN."""
        with suppress(UnknownJob):  # unregistered for a moment
            getattr(self.control, call)(key)
            self.world.seen[call] += 1
        self.loop.sync_soon()
        self.poke(self.loop_actor)

    def _api(self) -> float:
        if not self.wishes:
            return 0.5
        wish = self.wishes[0]
        self.sync.look()
        wish()
        self.wishes.pop(0)
        return 0.5

    def _loop(self) -> float:
        if not self.registry.tenants():
            return 0.2
        return self.loop.step()

    def _finish(self) -> float:
        for record in self.runner.ended():
            record.ended = True
            now = self.world.now
            self.finisher.put(RunEnd(record.run, Outcome.SUCCESS, None, record.started_at, now))
        while self.runner.refused:
            run, now = self.runner.refused.pop(), self.world.now
            self.finisher.put(RunEnd(run, Outcome.SUCCESS, None, now, now))
        self.finisher.flush()
        return 0.3

    def _finished(self, keys: list[Key]) -> None:
        if sum(map(self.registry.hasten, keys)):
            self.poke(self.loop_actor)

    def _event(self, event: Event) -> None:
        if isinstance(event, FireEnded):
            self.log.accepted.append((Key(event.tenant, event.job_id), event.fire_at))
        elif isinstance(event, LeaseLost):
            self.world.seen["lease lost"] += 1
