"""Pauses of queues during the attack: when nothing was allowed to begin, by Redis's clock."""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from scheduler.config import checked_queues
from scheduler.dialects.client import Client
from scheduler.errors import SchedulerError
from scheduler.queueing.admin import Queues
from scheduler.queueing.ledger import Ledger, alone
from scheduler.queueing.ring import Ring
from scheduler.store.engine import Database
from scheduler.store.job_queue import QueueTable
from scheduler.store.ring import RingTable
from scheduler.store.steps import Databases, run
from tests.chaos.orders import SCHEMA
from tests.chaos.plan import QUEUES


class Pause(NamedTuple):
    """A queue was paused from when until when, in seconds of Redis's clock.

    It begins after the pause was acknowledged, and ends before the queue is resumed.
    """

    queue: str
    begin: float
    end: float


class Pauser:
    """Pauses and resumes queues, as the command line does."""

    def __init__(self, dsn: str, redis: str) -> None:
        self._dsn = dsn
        self._redis = redis

    def pause(self, name: str, seconds: float) -> Pause | None:
        """Pause a queue for so long. None: Redis was away for a part of it."""
        began = ended = None
        try:
            with contextlib.suppress(SchedulerError), self._open() as (queues, client):
                queues.pause(name)
                # Without Redis a pause is noted in Postgres alone, and workers do not know it yet.
                if queues.queue(name).redis.paused().at_all:
                    began = _now(client)
            time.sleep(seconds)
            with contextlib.suppress(SchedulerError), self._open() as (_, client):
                ended = _now(client)
        finally:
            self.resume(name)
        return None if began is None or ended is None else Pause(name, began, ended)

    def resume(self, name: str) -> None:
        """Resume a queue, as soon as Postgres can record it."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(SchedulerError), self._open() as (queues, _):
                queues.resume(name)
                return
            time.sleep(0.2)
        raise AssertionError(f"queue {name} cannot be resumed")

    @contextlib.contextmanager
    def _open(self) -> "Iterator[tuple[Queues, Client]]":
        with contextlib.ExitStack() as stack:
            client = Client(self._redis)
            stack.callback(client.close)
            tables = Database.open(self._dsn, schema=SCHEMA, prepare=False)
            stack.callback(tables.close)
            databases, ring = Databases(tables, tables), RingTable(SCHEMA, lambda: None)
            installation = str(run(databases, alone(ring.installation()))[0][0])
            jobs = QueueTable(SCHEMA, lambda: None)
            ledger = Ledger(databases=databases, jobs=jobs, ring=ring, installation=installation)
            clock: Callable[[], datetime] = lambda: datetime.now(UTC)  # noqa: E731
            options = checked_queues(QUEUES, name="queues")
            yield Queues(Ring(client, options, installation, clock), ledger), client


def _now(client: Client) -> float:
    seconds, microseconds = map(int, client.call("TIME"))
    return seconds + microseconds / 1_000_000
