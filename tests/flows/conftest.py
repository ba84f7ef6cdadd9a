"""Fleets of real processes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler
from scheduler.dialects.client import Client
from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.queueing.services import RingServices
from tests.support.fleet import Fleet
from tests.support.instance import Job

MakeFleet = Callable[..., Fleet]


@pytest.fixture
def make_fleet(dsn: str, schema: str, tmp_path: Path) -> Iterator[MakeFleet]:
    """Make a fleet on the test's schema; whatever is left of it at the test's end is killed."""
    with ExitStack() as stack:

        def make(jobs: Sequence[Job], **options: Any) -> Fleet:
            return stack.enter_context(
                Fleet(options.pop("dsn", dsn), schema, tmp_path, jobs, **options)
            )

        yield make


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A durable server of this test alone, to be stopped under the fleet."""
    with EmbeddedPostgres(durable=True) as server:
        yield server


@pytest.fixture
def parts(
    dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis
) -> Iterator[RingServices]:
    """The parts of an instance, none of which runs by itself."""
    with Scheduler(dsn, schema=schema, redis=redis_server.url) as made:
        services = made._running().ring
        assert services is not None
        services.stop(timeout=5.0)
        services.feeder.stopping = False
        yield services
