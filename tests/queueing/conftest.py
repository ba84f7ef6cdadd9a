"""A scheduler on the test's schema with time that the test moves, and its tables to look into."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from scheduler import Scheduler as RealScheduler
from scheduler import Worker
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.model.fairness import Share
from scheduler.store.job_queue import QueueTable
from scheduler.store.ring import RingTable
from scheduler.store.steps import Steps, run
from scheduler.testing import Scheduler


@pytest.fixture
def instance(dsn: str, schema: str) -> Iterator[Scheduler]:
    with Scheduler(dsn, schema=schema) as made:
        yield made


@pytest.fixture
def own(dsn: str, schema: str, instance: Scheduler) -> Iterator[psycopg.Connection[Any]]:
    """The caller's own connection, with a table of its own."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f'CREATE TABLE "{schema}".orders (id int PRIMARY KEY)'.encode())
        connection.execute("SELECT set_config('search_path', %s, false)", (schema,))
        connection.commit()
        yield connection


def fed(table: QueueTable, queue: str, divided: Sequence[Share], **given: Any) -> Steps[list[Any]]:
    """Take what is due as a feeder does: (tenant, id, priority, type, ...) each."""
    feed = table.feed(queue, divided)
    feed.parameters.update(given)  # type: ignore[attr-defined]
    rows = yield feed
    if not rows:
        yield RingTable(table._schema, lambda: None).of_queue("open_queue", queue)
        rows = yield feed
    return [(tenant, UUID(id_), *rest) for _, tenant, id_, *rest in rows if tenant is not None]


def steps(instance: Scheduler, made: Steps[Any]) -> Any:
    """Run steps as a part of the system does."""
    return run(instance._running().databases, made)


@pytest.fixture
def dialect() -> str:
    """What the queues of a test are in; a module may have its tests run in each."""
    return "standard"


@pytest.fixture
def ring(
    dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis, dialect: str
) -> Iterator[RealScheduler]:
    """A scheduler that feeds and settles."""
    queues = {name: {"dialect": dialect} for name in ("mail", "other", "nobody")}
    with RealScheduler(dsn, schema=schema, redis=redis_server.url, queues=queues) as made:
        yield made


MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker(redis_server: EmbeddedRedis, dialect: str) -> Iterator[MakeWorker]:
    """Start workers; they know of the handlers that the test registers, which are forgotten at its
    end.
    """
    made: list[Worker] = []

    def make(**options: Any) -> Worker:
        worker = Worker(
            redis_server.url, **{"concurrency": 8, "lease": "10s", "dialect": dialect, **options}
        )
        made.append(worker)
        worker.start()
        return worker

    yield make
    for worker in made:
        worker.stop(grace=2.0)
