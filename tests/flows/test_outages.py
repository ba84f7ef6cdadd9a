"""Postgres goes away, in each way it can: the fleet goes on by itself, and nothing is lost or
doubled.
"""

import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.embedded.postgres import EmbeddedPostgres
from tests.flows.conftest import MakeFleet
from tests.support.fleet import Fleet
from tests.support.proof import periodic, prove, soon
from tests.support.proxy import SilentProxy
from tests.support.waiting import rest, wait_for

TERMINATE = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'scheduler'"
)


def everybody_runs(fleet: Fleet, *, since: float, timeout: float) -> float:
    """Wait until each process has run a fire after a moment; return the seconds it took."""

    def there() -> bool:
        return {r.pid for r in fleet.records(phase="end") if r.monotonic > since} >= set(
            fleet.alive()
        )

    wait_for(there, "every process runs fires again", timeout=timeout)
    return time.monotonic() - since


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_stopped_and_restarted_postgres(
    make_fleet: MakeFleet, own_postgres: EmbeddedPostgres, mode: str, full: bool
) -> None:
    jobs, before, away = (50, 10, 20) if full else (20, 1, 5)
    fleet = make_fleet(periodic(jobs, seconds=0.2), dsn=own_postgres.dsn)
    pids = fleet.start(3)
    fleet.ready()
    everybody_runs(fleet, since=0.0, timeout=60)
    rest(before)
    own_postgres.halt(mode=mode)
    rest(away)
    own_postgres.resume()
    everybody_runs(fleet, since=time.monotonic(), timeout=60)
    assert fleet.alive() == pids
    prove(fleet, soon(1.0))


@pytest.mark.timeout(900)
def test_every_connection_killed_again_and_again(
    make_fleet: MakeFleet, connection: psycopg.Connection[Any], full: bool
) -> None:
    jobs, seconds = (50, 60) if full else (20, 6)
    fleet = make_fleet(periodic(jobs, seconds=0.2))
    pids = fleet.start(3)
    fleet.ready()
    everybody_runs(fleet, since=0.0, timeout=60)
    end = soon(seconds)
    killed = 0
    while soon(0) < end or killed < 3 * seconds:
        (count,) = connection.execute(TERMINATE).fetchone() or (0,)
        killed += count
        rest(1.0)
    everybody_runs(fleet, since=time.monotonic(), timeout=60)
    assert fleet.alive() == pids
    prove(fleet, soon(1.0))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("new", [False, True], ids=["the present connections", "new ones too"])
def test_a_silent_network(make_fleet: MakeFleet, dsn: str, full: bool, new: bool) -> None:
    jobs, silent = (50, 20) if full else (20, 4)
    where = conninfo_to_dict(dsn)
    path = f"{where['host']}/.s.PGSQL.{where['port']}"
    if not Path(path).exists():
        pytest.skip("the server has no Unix socket here")
    fleet = make_fleet(periodic(jobs, seconds=0.2))
    with SilentProxy(path) as proxy:
        through = make_conninfo(dsn, host="127.0.0.1", port=proxy.port, gssencmode="disable")
        pids = [*fleet.start(2 if full else 1, dsn=through), *fleet.start()]
        fleet.ready()
        everybody_runs(fleet, since=0.0, timeout=60)
        rest(1.0)  # renewals have their connection too
        assert proxy.silence(new=new) >= 2
        since = time.monotonic()
        rest(silent)
        proxy.heal()
        everybody_runs(fleet, since=since, timeout=60)
        assert fleet.alive() == pids
        prove(fleet, soon(1.0))
