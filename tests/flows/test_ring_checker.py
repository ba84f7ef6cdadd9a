"""The counter of lost and doubled jobs can itself be trusted: it complains of every wrong, and of
wrong rings.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from tests.support.lines import append
from tests.support.ring_checker import Ended, Expected, Line, Verdict, check, read_journal
from tests.support.ring_fleet import RingFleet, suspended
from tests.support.ring_mutants import FORGETFUL
from tests.support.waiting import wait_for

JOBS = {"a": Expected(), "b": Expected(fails=1), "c": Expected(outcomes=("cancelled",))}
JOURNAL = [
    Line("start", "a", 1, 7, 0.0),
    Line("end", "a", 1, 7, 1.0),
    Line("accepted", "a", 1, 7, 1.1),
    Line("start", "b", 1, 7, 0.0),
    Line("end", "b", 1, 7, 1.0),
    Line("start", "b", 2, 8, 2.0),
    Line("end", "b", 2, 8, 3.0),
    Line("accepted", "b", 2, 8, 3.1),
]
LEDGER = [Ended("a", "completed", 1), Ended("b", "completed", 2), Ended("c", "cancelled", 0)]


def verdict(
    journal: list[Line], ledger: list[Ended], *, killed: tuple[int, ...] = (), most_again: int = 0
) -> Verdict:
    return check(JOBS, journal, ledger, killed=killed, most_again=most_again)


def test_jobs_that_each_ended_once_are_clean() -> None:
    assert verdict(JOURNAL, LEDGER)
    assert str(verdict(JOURNAL, LEDGER)) == "0 lost, 0 doubled, 0 wrong, 0 run again"


def test_a_job_without_a_row_or_without_a_run_is_lost() -> None:
    assert verdict(JOURNAL, LEDGER[1:]).lost == ["a is not in the ledger"]
    assert verdict(JOURNAL[3:], LEDGER).lost == ["a never ran to its end"]


def test_a_line_that_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    assert read_journal(journal) == []
    append(journal, "start a 1 7 0.5")
    with journal.open("a") as file:
        file.write("end a")
    assert read_journal(journal) == [Line("start", "a", 1, 7, 0.5)]


def test_two_rows_two_ends_and_a_run_after_the_end_are_doubled() -> None:
    assert verdict(JOURNAL, [*LEDGER, LEDGER[0]]).doubled == ["a is 2 times in the ledger"]
    assert verdict([*JOURNAL, JOURNAL[2]], LEDGER).doubled == [
        "a: a second end was taken, of attempt 1"
    ]
    late = verdict([*JOURNAL, Line("start", "a", 2, 8, 9.0)], LEDGER, most_again=1)
    assert late.doubled == ["a: attempt 2 starts after its end was taken"]


def test_a_run_beside_another_is_doubled_unless_its_process_was_killed() -> None:
    beside = [
        Line("start", "a", 1, 9, 0.0),
        *[line._replace(attempt=2) for line in JOURNAL[:3]],
        *JOURNAL[3:],
    ]
    assert verdict(beside, LEDGER, most_again=1).doubled == ["a: attempt 2 starts while 9 runs it"]
    assert verdict(beside, LEDGER, most_again=1, killed=(9,))
    assert verdict(beside, LEDGER, killed=(9,)).doubled == ["1 runs again, of at most 0"]
    same = [Line("start", "a", 1, 9, 0.0), *JOURNAL]
    assert verdict(same, LEDGER, most_again=1, killed=(9,)).doubled == [
        "a: attempt 1 starts after attempt 1"
    ]


def test_a_wrong_outcome_and_a_stranger_are_noticed() -> None:
    assert verdict(JOURNAL, [Ended("a", "failed", 1), *LEDGER[1:]]).wrong == [
        "a is failed, not completed"
    ]
    assert verdict(JOURNAL, [*LEDGER, Ended("x", "failed", 1)]).wrong == ["x was never submitted"]


@pytest.fixture
def make_ring(
    dsn: str, schema: str, redis_server: EmbeddedRedis, tmp_path: Path
) -> Iterator[Callable[..., RingFleet]]:
    with ExitStack() as stack:
        client = Client(redis_server.url)
        client.call("FLUSHALL")
        client.close()

        def make(**options: Any) -> RingFleet:
            usual = {"lease": "1s", "hasty": 0.5, "concurrency": 4, "points": True}
            return stack.enter_context(
                RingFleet(dsn, schema, redis_server.url, tmp_path, **{**usual, **options})
            )

        yield make


def killed_at(fleet: RingFleet, fault: str) -> Verdict:
    """Kill an instance at a point, let another go on, and count."""
    fleet.submit([{}] * 10)
    instance, worker = fleet.start("instance"), fleet.start("worker")
    fleet.all_end(timeout=60)  # a queue that is fed for the first time is healed by being opened
    fleet.kill(instance)
    doomed = fleet.start("instance", fault=fault)
    fleet.submit([{}] * 50)
    wait_for(lambda: fleet.ended(doomed) is not None, "the fault is met", timeout=60)
    instance = fleet.start("instance")
    fleet.ready(instance, worker)
    fleet.all_end(timeout=4)
    fleet.stop(instance, worker)
    return fleet.verdict(most_again=0)


@pytest.mark.parametrize("mutant", FORGETFUL)
def test_a_ring_that_forgets_too_early_loses_jobs_and_the_proof_says_so(
    make_ring: Callable[..., RingFleet], mutant: str
) -> None:
    assert killed_at(make_ring(mutant=mutant), FORGETFUL[mutant]).lost


def test_without_the_fence_it_would_and_the_proof_says_so(
    make_ring: Callable[..., RingFleet],
) -> None:
    found = suspended(make_ring(mutant="finish_without_fence"))
    assert any("a second end was taken" in each for each in found.doubled), str(found)
