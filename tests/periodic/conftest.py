"""Flow 1 over two roads: straight to Postgres, and through PgBouncer in transaction mode without
prepared statements.

A test that must take one of them says so: `@only_direct("why")`.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from scheduler import Scheduler
from scheduler.testing import ManualClock
from scheduler.testing import Scheduler as VirtualScheduler
from tests.conftest import MakeScheduler
from tests.support.pgbouncer import PgBouncer

Make = Callable[..., VirtualScheduler]


class Road(NamedTuple):
    """How to reach the tests' Postgres."""

    dsn: str
    prepare: bool


def only_direct(why: str) -> pytest.MarkDecorator:
    """Leave a test out of the road through PgBouncer, for a reason."""
    assert why
    return pytest.mark.parametrize("road", ["direct"], indirect=True)


@pytest.fixture(scope="session")
def pooler(dsn: str) -> Iterator[PgBouncer]:
    with PgBouncer(dsn) as pooler:
        yield pooler


@pytest.fixture(params=["direct", "pgbouncer"])
def road(request: pytest.FixtureRequest, dsn: str) -> Road:
    if request.param == "direct":
        return Road(dsn, prepare=True)
    pooler: PgBouncer = request.getfixturevalue("pooler")
    return Road(pooler.dsn, prepare=False)


@pytest.fixture
def make_scheduler(make_scheduler: MakeScheduler, road: Road) -> MakeScheduler:
    """Start schedulers on the test's schema over the test's road."""

    def make(**options: Any) -> Scheduler:
        return make_scheduler(**{"database": road.dsn, "prepare": road.prepare, **options})

    return make


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(road: Road, schema: str, clock: ManualClock) -> Iterator[Make]:
    """Instances that share one clock, as they share one database."""
    made: list[VirtualScheduler] = []

    def start(**options: Any) -> VirtualScheduler:
        one = VirtualScheduler(
            road.dsn, schema=schema, clock=clock, prepare=road.prepare, **options
        )
        made.append(one)
        return one.start()

    yield start
    for one in made:
        if one.is_running():
            one.cancel(timeout=0)
