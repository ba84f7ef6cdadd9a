"""Every fire once in a fleet of processes: at peace, under kill -9, in a rolling restart, with
wrong clocks, forked.
"""

import os
import random
import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.flows.conftest import MakeFleet
from tests.support.fleet import Fleet
from tests.support.proof import ledger_of, periodic, prove, soon
from tests.support.skew import skewed
from tests.support.waiting import rest, wait_for, wait_until

SUCCESS = ("success", 1, None)
# A fire that becomes due while the lease of the fire before it is held. On a busy machine that one
# is late, and its lease is freed after the next fire.
OVERLAP = ("skipped", None, "overlap")


@pytest.mark.timeout(900)
def test_four_processes_run_every_fire_exactly_once(make_fleet: MakeFleet, full: bool) -> None:
    jobs, seconds = (50, 60) if full else (20, 5)
    fleet = make_fleet(periodic(jobs, lead=4.0))
    pids = fleet.start(4)
    ledger = prove(fleet, fleet.jobs[0].start_at + timedelta(seconds=seconds))
    runs = Counter((r.job_id, r.fire_at) for r in fleet.records(phase="start"))
    assert len(ledger) >= jobs * seconds
    assert set(runs.values()) == {1}
    outcomes = Counter((row.outcome, row.attempt, row.reason) for row in ledger)
    assert outcomes.keys() <= {SUCCESS, OVERLAP}
    assert outcomes[SUCCESS] == len(runs)
    assert {r.pid for r in fleet.records()} == set(pids), "all of them took part"


@pytest.mark.timeout(900)
def test_a_kill_every_few_seconds_loses_nothing_and_doubles_no_attempt(
    make_fleet: MakeFleet, full: bool
) -> None:
    jobs, seconds = (50, 60) if full else (20, 7)
    fleet = make_fleet(periodic(jobs, seconds=0.3))
    fleet.start(4)
    fleet.ready()
    end = soon(seconds)
    while datetime.now(UTC) < end:
        rest(random.uniform(1.5, 3.5))
        fleet.kill_one()
    ledger = prove(fleet, soon(1.0))
    recovered = recoveries(fleet)
    assert len(fleet.kills) >= seconds // 4
    assert recovered, "some process was killed in the middle of a run"
    assert max(recovered) <= fleet.lease + 30.0
    assert [row for row in ledger if (row.attempt or 0) > 1]


def recoveries(fleet: Fleet) -> list[float]:
    """From each SIGKILL, the seconds until the next start of each fire that was running there."""
    starts = {(r.job_id, r.fire_at, r.attempt): r for r in fleet.records(phase="start")}
    ended = {(r.job_id, r.fire_at, r.attempt) for r in fleet.records(phase="end")}
    found = []
    for kill in fleet.kills:
        for (job_id, fire_at, attempt), run in starts.items():
            following = starts.get(
                (job_id, fire_at, attempt + 1)
            )  # None: whoever had it was killed before its start
            if (
                run.pid == kill.pid
                and (job_id, fire_at, attempt) not in ended
                and following is not None
            ):
                found.append(following.monotonic - kill.monotonic)
    return found


@pytest.mark.timeout(900)
def test_a_rolling_restart_needs_no_second_attempt(make_fleet: MakeFleet, full: bool) -> None:
    jobs, seconds = (50, 60) if full else (20, 5)
    fleet = make_fleet(periodic(jobs, seconds=0.2))
    fleet.ready(*fleet.start(3))
    end = soon(seconds)
    restarts = 0
    while datetime.now(UTC) < end:
        next_restart = soon(1.0)
        (new,) = fleet.start()
        fleet.ready(new)
        fleet.stop(fleet.alive()[0])
        restarts += 1
        wait_until(next_restart)
    ledger = prove(fleet, end)
    assert restarts >= (10 if full else 1)  # as many as the machine manages
    assert {record.attempt for record in fleet.records()} == {1}
    assert {row.outcome for row in ledger} <= {"success", "skipped"}, (
        "skipped: its predecessor took a second"
    )


@pytest.mark.timeout(900)
def test_wall_clocks_an_hour_apart_change_nothing(make_fleet: MakeFleet, full: bool) -> None:
    jobs, seconds = (50, 60) if full else (20, 5)
    fleet = make_fleet(periodic(jobs, lead=4.0))
    skews = {fleet.start(environment=skewed(seconds))[0]: seconds for seconds in (-3600, 0, 3600)}
    ledger = prove(fleet, fleet.jobs[0].start_at + timedelta(seconds=seconds))
    assert {(row.outcome, row.attempt, row.reason) for row in ledger} <= {SUCCESS, OVERLAP}
    apart = time.time() - time.monotonic()
    seen = {(r.pid, round(r.wall - r.monotonic - apart)) for r in fleet.records(phase="start")}
    assert seen == set(skews.items()), "each of them ran fires, by its own wrong clock"


def test_a_forked_process_has_an_identity_and_connections_of_its_own(
    make_fleet: MakeFleet, full: bool
) -> None:
    seconds = 30 if full else 3
    fleet = make_fleet(periodic(20, seconds=0.2))
    (parent,) = fleet.start(forks=2)
    pids = fleet.ready(parent, forks=2)
    children = [pid for pid in pids if pid != parent]
    owners: set[object] = set()

    def everybody_runs() -> bool:
        owners.update(connection.execute(f'SELECT owner FROM "{fleet.schema}".job_lock').fetchall())
        return {r.pid for r in fleet.records(phase="start")} == set(pids) and len(
            owners - {(None,)}
        ) == 3

    with ledger_of(fleet) as connection:
        wait_for(everybody_runs, "all three run fires, as three owners")
    rest(seconds)
    fleet.signal(children[0], signal.SIGTERM)
    ended = fleet.folder / f"ended.{children[0]}"
    wait_for(lambda: ended.exists() and ended.read_text(), "a child drains and exits")
    assert ended.read_text() == "0"
    left = time.monotonic()
    rest(seconds)
    assert {r.pid for r in fleet.records(phase="start") if r.monotonic > left + 0.5} == {
        parent,
        children[1],
    }
    assert fleet.warnings(parent) == [], (
        "neither the forks nor the exit of one disturbed its connections"
    )
    ledger = prove(fleet, datetime.now(UTC))
    assert {row.attempt for row in ledger if row.outcome != "skipped"} == {1}
    assert not [pid for pid in pids if _exists(pid)]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
