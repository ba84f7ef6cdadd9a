"""The checker of the attack notices each way in which a job can be lost, doubled, too early, or run
for no reason.
"""

from collections.abc import Iterable

import pytest

from tests.chaos.attack import Done
from tests.chaos.diary import Line, Order, Page
from tests.chaos.house import FORGETFUL
from tests.chaos.pauses import Pause
from tests.chaos.plan import CONCURRENCY, Fault
from tests.chaos.verdict import (
    Ended,
    Jobs,
    Recovery,
    Verdict,
    check_jobs,
    check_pauses,
    deaths,
    recoveries,
)

RUN = (
    Line("start", "a", 1, 0, 10.0, 1, "id-1"),
    Line("end", "a", 1, 0, 10.1, 1),
    Line("closed", "a", 1, 1, 10.2, 1),
)
AGAIN = (
    Line("start", "a", 2, 0, 20.0, 2, "id-2"),
    Line("end", "a", 2, 0, 20.1, 2),
    Line("closed", "a", 2, 1, 20.2, 2),
)
ENDED = Ended(outcome="completed", attempt=1, at=10.5)


def order(
    name: str = "a",
    fails: int = 0,
    delay: float = 0.0,
    after: tuple[str, ...] = (),
    key: str | None = None,
) -> Order:
    return Order(name, fails, delay, after, key, cancelled=False)


def done(
    lane: str, kind: str, detail: str = "", *, begin: float = 10.15, pids: Iterable[int] = ()
) -> Done:
    fault = Fault(lane=lane, kind=kind, at=0.0, seconds=0.0, targets=("x",), detail=detail)
    forgot = kind == "flush" or detail in FORGETFUL
    return Done(fault=fault, begin=begin, over=begin + 1, pids=frozenset(pids), forgot=forgot)


def verdict(
    *orders: Order,
    lines: Iterable[Line] = RUN,
    ledger: dict[str, Ended] | None = None,
    said: str = "committed",
    sold: bool = True,
    faults: Iterable[Done] = (),
) -> dict[str, list[str]]:
    jobs = Jobs(
        [Page("tx", 9.0, orders or (order(),))],
        {"tx": said},
        frozenset({"tx"} if sold else ()),
        frozenset(),
        list(lines),
        {"a": ENDED} if ledger is None else ledger,
    )
    found = Verdict()
    check_jobs(jobs, list(faults), found)
    assert bool(found) == (not any(found.wrong.values()))
    return {name: what for name, what in found.wrong.items() if what}


def test_a_job_that_ran_once_and_ended_once_is_as_it_should_be() -> None:
    assert verdict() == {}


def test_a_lost_job() -> None:
    assert verdict(ledger={}) == {"lost": ["a is not in the ledger"]}


def test_a_job_that_completed_without_a_run() -> None:
    found = verdict(lines=())
    assert found["lost"] == ["a is completed by attempt 1, which never ended"]
    assert set(found) == {"lost", "attempts"}


def test_a_job_with_two_rows() -> None:
    assert verdict(ledger={"a": Ended(outcome="completed", attempt=1, rows=2)}) == {
        "doubled": ["a is 2 times in the ledger"]
    }


def test_a_job_that_ended_as_it_must_not() -> None:
    assert set(verdict(ledger={"a": Ended(outcome="dead_letter", attempt=1)})) == {"ended wrongly"}


def test_a_job_that_was_rolled_back_and_ran() -> None:
    assert set(verdict(said="rolledback", sold=False)) == {"never submitted"}


@pytest.mark.parametrize(("said", "sold"), [("committed", False), ("rolledback", True)])
def test_a_transaction_that_ended_otherwise_than_it_was_told(said: str, sold: bool) -> None:
    assert "transactions" in verdict(said=said, sold=sold)


def test_a_transaction_of_which_nobody_knows_is_as_it_is_found() -> None:
    assert verdict(said="unknown") == {}
    assert verdict(said="unknown", sold=False, lines=(), ledger={}) == {}


def test_a_key_that_is_two_jobs() -> None:
    second = [line._replace(job_id="b", attempt_id="id-b") for line in RUN]
    found = verdict(
        order("a", key="k"),
        order("b", key="k"),
        lines=(*RUN, *second),
        ledger={"a": ENDED, "b": ENDED},
    )
    assert found == {"one key, several jobs": ["k: ['a', 'b']"]}


def test_a_job_that_starts_before_its_time() -> None:
    assert set(verdict(order(delay=2.0))) == {"too early"}


def test_a_job_that_starts_before_what_it_waits_for() -> None:
    second = [line._replace(job_id="b", at=line.at - 1, attempt_id="id-b") for line in RUN]
    found = verdict(
        order(), order("b", after=("a",)), lines=(*RUN, *second), ledger={"a": ENDED, "b": ENDED}
    )
    assert found == {"too early": ["b starts before a has ended"]}


def test_a_job_that_runs_though_what_it_waits_for_failed() -> None:
    first = (RUN[0], RUN[1]._replace(what="fail"))
    second = [line._replace(job_id="b", at=line.at + 1) for line in RUN[:1]]
    failed = Ended(outcome="failed", attempt=1)
    found = verdict(
        order(fails=-1),
        order("b", after=("a",)),
        lines=(*first, *second),
        ledger={"a": failed, "b": failed},
    )
    assert "b ran though what it waits for failed" in found["ended wrongly"]


def test_two_ends_of_one_attempt_unless_redis_forgot_the_first() -> None:
    lines = (*RUN, RUN[2]._replace(at=12.0))
    assert verdict(lines=lines) == {"doubled": ["a: a second end was taken, of feed 1, attempt 1"]}
    assert verdict(lines=lines, faults=[done("redis", "restart", "empty")]) == {}
    assert "doubled" in verdict(lines=lines, faults=[done("redis", "restart", "killed")])


def test_an_end_that_was_heard_long_after_it_was_taken() -> None:
    lines = (*RUN[:2], RUN[2]._replace(at=15.0), RUN[2]._replace(at=16.0, feed=2, pid=2))
    assert verdict(lines=lines, faults=[done("redis", "flush", begin=12.0)]) == {}


def test_the_end_of_an_attempt_while_a_later_one_runs() -> None:
    late = (RUN[0], AGAIN[0], RUN[1]._replace(at=20.05), AGAIN[1])
    faults = [done("workers", "suspend", pids=[1])]
    assert verdict(lines=(*late, AGAIN[2]), ledger=LATER, faults=faults) == {}
    assert set(verdict(lines=(*late, RUN[2]._replace(at=20.2)), ledger=LATER, faults=faults)) == {
        "doubled"
    }


def test_two_last_ends_of_a_job_whatever_their_attempts() -> None:
    fault = done("workers", "suspend", pids=[1])
    assert verdict(lines=(*RUN[:2], *AGAIN), ledger=LATER, faults=[fault]) == {}
    assert set(verdict(lines=(*RUN, *AGAIN), ledger=LATER, faults=[fault])) == {"doubled"}


def test_two_executions_with_one_attempt_id_are_noticed() -> None:
    first, second = RUN[0], RUN[0]._replace(at=20.0, pid=2)
    lines = (first, second, *RUN[1:])
    kill = done("workers", "kill", begin=10.15, pids=[1])
    for fault in (kill, done("redis", "flush", begin=10.15)):
        assert set(verdict(lines=lines, faults=[fault])) == {"one attempt id, two executions"}
    assert not verdict(lines=(first, second._replace(attempt_id="id-2"), *RUN[1:]), faults=[kill])


def test_two_jobs_with_one_attempt_id_are_noticed() -> None:
    lines = [line._replace(attempt_id="x") for line in RUN]
    other = [line._replace(job_id="b") for line in lines]
    ledger = {"a": ENDED, "b": ENDED}
    found = verdict(order("a"), order("b"), lines=(*lines, *other), ledger=ledger)
    assert set(found) == {"one attempt id, two executions"}


def test_a_start_that_the_ledger_does_not_count_is_noticed() -> None:
    fault = done("workers", "kill", begin=10.15, pids=[1])
    lines = (RUN[0], AGAIN[0], *RUN[1:], AGAIN[1])
    found = verdict(lines=lines, faults=[fault])
    assert found["attempts"] == ["a: attempt 2 started, the ledger has 1"]


@pytest.mark.parametrize(
    ("shown", "uncharged", "wrong"),
    [
        ({1: "system", 2: None}, 0, False),
        ({2: None}, 1, False),
        ({2: None}, 0, True),
        ({1: "temporary", 2: None}, 0, True),
    ],
    ids=["lost", "redelivered uncharged", "not mentioned", "failed without a start"],
)
def test_an_attempt_without_a_start_is_an_orphaned_lease(
    shown: dict[int, str | None], uncharged: int, wrong: bool
) -> None:
    ended = Ended(outcome="completed", attempt=2, at=20.5, shown=shown, uncharged=uncharged)
    assert set(verdict(lines=AGAIN, ledger={"a": ended})) == ({"attempts"} if wrong else set())
    flush = done("redis", "flush")
    assert verdict(lines=AGAIN, ledger={"a": ended}, faults=[flush]) == {}


@pytest.mark.parametrize(
    ("ended", "wrong"),
    [
        (Ended(outcome="dead_letter", attempt=2, shown={2: "system"}, uncharged=1), False),
        (Ended(outcome="dead_letter", attempt=1, shown={1: "system"}), True),
        (Ended(outcome="dead_letter", attempt=2, shown={1: "system", 2: "system"}), True),
    ],
    ids=["two unmarked leases", "one lease", "marked leases"],
)
def test_a_dead_job_without_a_start_needs_two_unmarked_leases(ended: Ended, wrong: bool) -> None:
    poison = order(fails=-1)._replace(poison=True)
    found = verdict(poison, lines=(), ledger={"a": ended})
    assert set(found) == ({"dead without a start"} if wrong else set())


def test_a_poison_job_that_does_not_end_as_a_dead_letter_is_noticed() -> None:
    poison = order(fails=-1)._replace(poison=True)
    assert set(verdict(poison)) == {"ended wrongly"}


def test_a_second_run_after_a_poison_job_has_a_reason() -> None:
    death = Line("poison", "b", 1, 0, 10.15, 1)
    [fault] = deaths([*RUN, death])
    assert fault.name == "worker: poison"
    assert verdict(lines=(*RUN[:2], *AGAIN), ledger=LATER, faults=[fault]) == {}


PAUSE = Pause("work", 1020.0, 1030.0)  # Redis's clock is 1000 s ahead of that of the diaries


def paused(*lines: Line, faults: Iterable[Done] = ()) -> list[str]:
    found = Verdict()
    check_pauses(lines, [PAUSE], list(faults), found, apart=1000.0)
    return found.wrong["begun in a paused queue"]


@pytest.mark.parametrize(
    ("leased", "queue", "wrong"),
    [
        (1019.9, "work", False),
        (1020.0, "work", False),
        (1020.1, "work", True),
        (1029.9, "work", True),
        (1030.0, "work", False),
        (1025.0, "go", False),
    ],
)
def test_a_job_that_is_leased_from_a_paused_queue_is_noticed(
    leased: float, queue: str, wrong: bool
) -> None:
    line = RUN[0]._replace(queue=queue, leased=leased, at=leased - 1000.0 + 0.2)
    assert bool(paused(line)) is wrong
    assert paused(line, faults=[done("redis", "flush", begin=22.0)]) == (
        paused(line) if leased < 1022 else []
    )
    assert bool(paused(line, faults=[done("workers", "suspend", begin=19.0)])) is wrong


def test_more_starts_in_a_paused_queue_than_slots_are_noticed() -> None:
    line = RUN[0]._replace(queue="work", leased=1019.9, at=21.0)
    several = [line._replace(job_id=str(n)) for n in range(CONCURRENCY)]
    assert paused(*several) == []
    assert paused(*several, line._replace(pid=2)) == []
    assert len(paused(*several, line)) == 1
    before = [each._replace(at=19.95) for each in several]
    assert paused(*before, *several) == []


LATER = {"a": Ended(outcome="completed", attempt=2, at=20.5)}


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (done("workers", "kill", pids=[1]), True),
        (done("workers", "kill", pids=[3]), False),
        (done("workers", "clock", pids=[1]), False),
        (done("redis", "flush"), True),
        (done("redis", "flush", begin=21.0), False),
        (done("postgres", "restart", "immediate"), False),
        (done("instances", "kill", pids=[1]), False),
    ],
    ids=["its worker", "another worker", "its clock", "redis", "later", "postgres", "an instance"],
)
def test_a_second_run_needs_a_fault_that_had_the_job(fault: Done, why: bool) -> None:
    found = verdict(lines=(*RUN[:2], *AGAIN), ledger=LATER, faults=[fault])
    assert set(found) == (set() if why else {"run again without a reason"})


def test_a_second_run_after_a_told_failure_needs_none() -> None:
    failed = (RUN[0], RUN[1]._replace(what="fail"))
    assert verdict(order(fails=1), lines=(*failed, *AGAIN), ledger=LATER) == {}


def test_a_run_after_the_end_was_settled_is_no_fault_of_what_came_later() -> None:
    fault = done("redis", "flush", begin=15.0)
    found = verdict(lines=(*RUN, *AGAIN[:2]), faults=[fault])
    assert set(found) == {"run again without a reason", "attempts"}


def test_a_fault_explains_one_run_of_a_job_and_no_third() -> None:
    third = [line._replace(attempt=3, at=line.at + 1) for line in AGAIN]
    ledger = {"a": Ended(outcome="completed", attempt=3, at=22.0)}
    found = verdict(
        lines=(*RUN[:2], *AGAIN[:2], *third), ledger=ledger, faults=[done("redis", "flush")]
    )
    assert len(found["run again without a reason"]) == 1


def test_recovery_is_measured_where_nothing_that_stops_everybody_is_in_the_way() -> None:
    flush, restart = done("redis", "flush", begin=10.0), done("postgres", "restart", begin=10.5)
    assert list(recoveries([flush], [11.5], [9.0, 12.0])) == [Recovery(0.5, 1.0)]
    assert list(recoveries([flush, restart], [11.75], [12.0])) == [
        Recovery(None, None),
        Recovery(0.25, 0.5),
    ]
    kill = done("workers", "kill", begin=9.5)
    assert next(recoveries([kill, flush], [10.75], [10.75])) == Recovery(0.25, None)
