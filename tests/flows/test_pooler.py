"""A fleet behind PgBouncer in transaction mode: the same proof, where no session outlives a
transaction.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.flows.conftest import MakeFleet
from tests.flows.test_fleet import recoveries
from tests.support.pgbouncer import PgBouncer
from tests.support.proof import periodic, prove, soon
from tests.support.waiting import rest


@pytest.fixture
def pooler(dsn: str) -> Iterator[PgBouncer]:
    with PgBouncer(dsn) as pooler:
        yield pooler


@pytest.mark.timeout(900)
def test_kills_behind_a_transaction_pooler_lose_nothing_and_double_no_attempt(
    make_fleet: MakeFleet, pooler: PgBouncer, full: bool
) -> None:
    jobs, seconds = (50, 60) if full else (20, 6)
    fleet = make_fleet(periodic(jobs, seconds=0.3), pooler=pooler.dsn)
    fleet.ready(*fleet.start(3))
    end = soon(seconds)
    while datetime.now(UTC) < end:
        rest(random.uniform(1.0, 2.5))
        fleet.kill_one()
    ledger = prove(fleet, soon(1.0))
    recovered = recoveries(fleet)
    assert recovered, "some process was killed in the middle of a run"
    assert max(recovered) <= fleet.lease + 30.0
    assert [row for row in ledger if (row.attempt or 0) > 1]


@pytest.mark.timeout(900)
def test_a_pooler_that_is_killed_and_comes_back_costs_nothing(
    make_fleet: MakeFleet, pooler: PgBouncer, full: bool
) -> None:
    jobs, times = (50, 10) if full else (20, 2)
    fleet = make_fleet(periodic(jobs, seconds=0.2), pooler=pooler.dsn)
    pids = fleet.start(3)
    fleet.ready()
    for _ in range(times):
        rest(1.5)
        pooler.kill()
        rest(1.0)
        pooler.start()
    rest(2.0)
    assert fleet.alive() == pids
    prove(fleet, soon(1.0))
