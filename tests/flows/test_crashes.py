"""One fire in trouble: its process dies, sleeps, or is too busy; it ends once, and the ledger tells
how.
"""

import os
import signal
from pathlib import Path

import pytest

from tests.flows.conftest import MakeFleet
from tests.support.checker import LedgerRow, read_ledger
from tests.support.fleet import Fleet
from tests.support.instance import Job
from tests.support.proof import ledger_of, periodic, prove, row_of, soon
from tests.support.records import Record
from tests.support.waiting import rest, wait_for

ONE = "the-one"


def the_start(fleet: Fleet, attempt: int = 1) -> Record:
    """Wait for a start of the job that the test is about."""
    what = f"attempt {attempt} starts"
    (start,) = wait_for(lambda: fleet.records(ONE, "start", attempt), what, every=0.01)
    return start


def assert_driven_again(fleet: Fleet, row: LedgerRow, first: Record, second: Record) -> None:
    """One ledger row, by the second attempt, that names the first one as lost."""
    assert second.pid != first.pid
    assert (row.outcome, row.attempt, row.fence) == ("success", 2, second.fence)
    (lost,) = row.attempts
    assert (lost["attempt"], lost["fence"], lost["outcome"]) == (1, first.fence, "lost")
    assert lost["holder"].endswith(f":{first.pid}")
    assert [r.attempt for r in fleet.records(ONE, "accepted")] == [2]


def test_a_fire_that_kills_its_process_is_crashed_after_three_starts_and_takes_no_other_with_it(
    make_fleet: MakeFleet, full: bool
) -> None:
    count = 4 if full else 2
    killer = Job(job_id=ONE, start_at=soon(4.0), body="die", seconds=0.4)
    fleet = make_fleet([*periodic(6 * count, seconds=0.6), killer], lease=1.5)
    fleet.ready(*fleet.start(count))

    def crashed() -> list[LedgerRow]:
        fleet.replace_dead(count)
        return [row for row in read_ledger(connection, fleet.schema) if row.fire.job_id == ONE]

    with ledger_of(fleet) as connection:
        (row,) = wait_for(crashed, "it is recorded as crashed", timeout=60)
    ledger = prove(fleet, soon(1.0))
    starts = fleet.records(ONE, "start")
    assert [r.attempt for r in starts] == [1, 2, 3]
    assert len({r.pid for r in starts}) == 3
    assert (row.outcome, row.attempt, row.reason) == ("crashed", 3, "its process died 3 times")
    assert [lost["attempt"] for lost in row.attempts] == [1, 2]
    others = [r for r in ledger if r.fire.job_id != ONE]
    assert {r.outcome for r in others} <= {"success", "skipped"}, (
        "the innocent are not recorded as crashed"
    )
    assert [r for r in others if (r.attempt or 0) > 1], "some shared a process with it"


def test_at_most_once_is_crashed_without_a_second_start(make_fleet: MakeFleet) -> None:
    job = Job(job_id=ONE, start_at=soon(), seconds=60.0, delivery="at_most_once")
    fleet = make_fleet([job], lease=1.0)
    fleet.ready(*fleet.start(2))
    start = the_start(fleet)
    fleet.kill(start.pid)
    row = row_of(fleet, ONE)
    assert (row.outcome, row.attempt, row.fence, row.attempts) == ("crashed", 1, start.fence, ())
    rest(2 * fleet.lease)
    prove(fleet, job.start_at)
    assert [r.phase for r in fleet.records(ONE)] == ["start"]


@pytest.mark.parametrize("when", ["while the second attempt runs", "after it has ended"])
def test_a_process_stopped_past_its_lease_is_fenced_and_its_late_finish_refused(
    make_fleet: MakeFleet, full: bool, when: str
) -> None:
    job = Job(job_id=ONE, start_at=soon(), seconds=4.0)
    fleet = make_fleet([job], lease=10.0 if full else 4.0)
    fleet.ready(*fleet.start(2))
    first = the_start(fleet)
    fleet.signal(first.pid, signal.SIGSTOP)
    second = the_start(fleet, 2)
    if when == "after it has ended":
        row_of(fleet, ONE)
    assert not fleet.records(ONE, "end", 1), "the first attempt is still stopped in its body"
    fleet.signal(first.pid, signal.SIGCONT)
    wait_for(
        lambda: fleet.records(ONE, "end", 1) and fleet.records(ONE, "lost", 1),
        "it ends late and is refused",
    )
    row = row_of(fleet, ONE)
    rest(0.5)
    assert_driven_again(fleet, row, first, second)
    assert prove(fleet, job.start_at) == [row]


def test_busy_python_code_keeps_its_lease(make_fleet: MakeFleet, full: bool) -> None:
    lease = 10.0 if full else 4.0
    job = Job(job_id=ONE, start_at=soon(), body="busy", seconds=2 * lease)
    fleet = make_fleet([job], lease=lease)
    fleet.ready(*fleet.start(2))
    row = row_of(fleet, ONE)
    assert (row.outcome, row.attempt, row.attempts) == ("success", 1, ())
    assert prove(fleet, job.start_at) == [row]
    assert [r.phase for r in fleet.records(ONE)] == ["start", "end", "accepted"]


def test_a_c_call_that_holds_the_gil_past_the_lease_is_fenced_and_driven_again(
    make_fleet: MakeFleet, tmp_path: Path, full: bool
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    job = Job(job_id=ONE, start_at=soon(), body="read_first", fifo=str(fifo))
    fleet = make_fleet([job], lease=10.0 if full else 3.0)
    with fifo.open("r+b", buffering=0) as writer:
        fleet.ready(*fleet.start(2))
        first = the_start(fleet)
        second = the_start(fleet, 2)
        row = row_of(fleet, ONE)
        assert not fleet.records(ONE, "end", 1), "the first attempt is still in its C call"
        writer.write(b"x")
        wait_for(
            lambda: fleet.records(ONE, "end", 1) and fleet.records(ONE, "lost", 1),
            "it ends late and is refused",
        )
    rest(0.5)
    assert_driven_again(fleet, row, first, second)
    assert prove(fleet, job.start_at) == [row]
