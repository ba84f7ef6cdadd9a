"""A quick measure of the configured servers: real parts, in a schema and a queue of its own,
removed at the end.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from scheduler.app import Scheduler
from scheduler.config import SchedulerOptions
from scheduler.dialects.client import Client
from scheduler.dialects.opening import open_admin
from scheduler.errors import QueueError, StoreError, WaitTimeout
from scheduler.events import Event, JobsFed, JobsSettled
from scheduler.model.addresses import RedisOptions
from scheduler.model.submission import NewJob
from scheduler.store import schema as store_schema
from scheduler.store.doctor import DoctorTable
from scheduler.store.engine import Database
from scheduler.store.ring import RingTable
from scheduler.worker.handlers import handler, handlers
from scheduler.worker.worker import Worker

TENANT = TYPE = "bench"
TRIPS = 50
SINGLES = 50
PATIENCE = 60.0
PHASES = ("round trips", "submit", "enqueue", "drain", "end to end", "latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured: jobs a second, or the median and the 99th percentile of how long something
    took.
    """

    name: str
    per_second: float | None = None
    p50: timedelta | None = None
    p99: timedelta | None = None


class Counted:
    """Counts jobs that were fed, and that were settled; one may wait until it is as many."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.fed = self.settled = 0

    def hear(self, event: Event) -> None:
        """Hear what happens in the instance."""
        with self._changed:
            if isinstance(event, JobsFed):
                self.fed += event.count
            elif isinstance(event, JobsSettled):
                self.settled += len(event.jobs) - event.repeated
            self._changed.notify_all()

    def wait(self, what: Callable[["Counted"], bool]) -> None:
        """Wait for it."""
        with self._changed:
            if not self._changed.wait_for(lambda: what(self), PATIENCE):
                raise WaitTimeout(
                    f"bench: {self.fed} jobs were fed and {self.settled} settled in a minute; try "
                    "fewer"
                )


class Scratch:
    """A schema and a queue with names that nobody has, on the given servers; of others' jobs
    nothing is touched.
    """

    def __init__(
        self,
        database: str,
        redis: RedisOptions,
        prepare: bool,  # noqa: FBT001
        listen: str | bool,  # noqa: FBT001
    ) -> None:
        self.queue = f"bench-{os.urandom(6).hex()}"
        self.database = database
        self.redis = redis
        self.options: SchedulerOptions = {
            "schema": self.queue.replace("-", "_"),
            "prepare": prepare,
            "listen": listen,
            "label": TENANT,
        }
        self.starts: list[float] = []
        self._workers: list[str] = []

    @contextlib.contextmanager
    def opened(self) -> Iterator["Scratch"]:
        """Make the schema; in the end remove it, and all keys of the queue."""
        tables = Database.open(self.database, schema=self.options["schema"], prepare=False)
        try:
            store_schema.migrate(tables)
        except StoreError as error:
            tables.close()
            raise type(error)(
                f"bench needs a schema of its own, and the right to make one: {error}"
            ) from None
        handler(TYPE, queue=self.queue)(self._noop)
        try:
            yield self
        finally:
            handlers.pop((self.queue, TYPE))
            with contextlib.closing(Client(self.redis)) as client, contextlib.suppress(QueueError):
                self._forget(client, tables)
            store_schema.drop(tables)
            tables.close()

    @contextlib.contextmanager
    def fed(self, counted: Counted) -> Iterator[Scheduler]:
        """Let an instance feed and settle."""
        fed: SchedulerOptions = {**self.options, "redis": self.redis}
        with Scheduler(self.database, **fed) as scheduler:
            scheduler.subscribe(counted.hear)
            yield scheduler

    @contextlib.contextmanager
    def worked(self) -> Iterator[None]:
        """Let a worker work."""
        worker = Worker(self.redis, [self.queue])
        worker.start()
        self._workers.append(worker.name)
        try:
            yield
        finally:
            worker.stop(grace=1.0)

    def jobs(self, count: int) -> list[NewJob]:
        """Make jobs that do nothing."""
        return [NewJob(TENANT, TYPE, number, queue=self.queue) for number in range(count)]

    def _noop(self, _: Any, __: Any) -> None:
        self.starts.append(time.perf_counter())

    def _forget(self, client: Client, tables: Database) -> None:
        asked = RingTable(tables.schema, lambda: None).installation()
        installation = str(tables.run(asked.query, asked.parameters)[0][0])
        admin = open_admin(client, self.queue, installation=installation)
        for names in admin.names():
            admin.erase(names)


def measure(scratch: Scratch, count: int, progress: Callable[[str], None]) -> Iterator[Figure]:
    """Measure everything, phase by phase; `progress` is told each of `PHASES` as it begins."""
    progress("round trips")
    yield from _round_trips(scratch)
    counted = Counted()
    with scratch.opened(), scratch.fed(counted) as scheduler:
        scheduler.submit_many(scratch.jobs(1))  # the first of a queue takes longer
        counted.wait(lambda seen: seen.fed == 1)
        progress("submit")
        began = time.perf_counter()
        scheduler.submit_many(scratch.jobs(count))
        yield _rate("submit", count, began)
        progress("enqueue")
        began = time.perf_counter()
        counted.wait(lambda seen: seen.fed > count)
        yield _rate("enqueue", count, began)
        progress("drain")
        with scratch.worked():
            counted.wait(lambda seen: seen.settled > count)
            yield _rate("drain", count, scratch.starts[0])
            progress("end to end")
            began = time.perf_counter()
            scheduler.submit_many(scratch.jobs(count))
            counted.wait(lambda seen: seen.settled > 2 * count)
            yield _rate("end to end", count, began)
            progress("latency")
            yield _latency(scratch, scheduler, counted)


def _round_trips(scratch: Scratch) -> Iterator[Figure]:
    tables, client = DoctorTable(scratch.database, "public"), Client(scratch.redis)
    try:
        for name, trip in (
            ("postgres round trip", lambda: tables.rows("clock")),
            (
                "redis round trip",
                lambda: client.call("EXISTS", f"jobqueue:{{{scratch.queue}}}:trip"),
            ),
        ):
            trip()  # opens the connection
            yield _times(name, [_took(trip) for _ in range(TRIPS)])
    finally:
        tables.close()
        client.close()


def _latency(scratch: Scratch, scheduler: Scheduler, counted: Counted) -> Figure:
    """Submit one job after another, each when the one before has ended; measure until its handler
    starts.
    """
    times = []
    for _ in range(SINGLES):
        settled, began = counted.settled, time.perf_counter()
        scheduler.submit_many(scratch.jobs(1))
        counted.wait(lambda seen, so_far=settled: seen.settled > so_far)  # type: ignore[misc]
        times.append(scratch.starts[-1] - began)
    return _times("latency", times)


def _took(trip: Callable[[], object]) -> float:
    began = time.perf_counter()
    trip()
    return time.perf_counter() - began


def _rate(name: str, count: int, began: float) -> Figure:
    return Figure(name=name, per_second=count / (time.perf_counter() - began))


def _times(name: str, seconds: Sequence[float]) -> Figure:
    ordered = sorted(seconds)
    p50, p99 = (timedelta(seconds=ordered[int(len(ordered) * share)]) for share in (0.5, 0.99))
    return Figure(name=name, p50=p50, p99=p99)
