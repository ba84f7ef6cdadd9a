"""What every dialect holds, on the oldest Redis that we support, on the newest at hand, and in a
cluster.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID, uuid4

import pytest

from scheduler.dialects.bullmq import wire as bullmq
from scheduler.dialects.client import Client, Script
from scheduler.dialects.interface import (
    BegunMark,
    Cancelling,
    Delivery,
    Handled,
    Known,
    Note,
    Outcomes,
    Pushed,
    Queue,
    Renewed,
    Result,
)
from scheduler.errors import EpochLost, QueueUnavailable
from scheduler.model.attempts import AttemptEnd
from scheduler.model.body import Cancelled
from scheduler.model.handling import JobContext
from scheduler.model.labels import Priority
from scheduler.model.oneshot import attempt_id
from scheduler.model.policies import RETRY
from scheduler.model.retries import RetryPolicy
from scheduler.model.states import State
from tests.dialects.conftest import MakeQueue, Protocol
from tests.dialects.servers import House
from tests.dialects.values import NOW, back, ended, fetch_all, ids, job, retried
from tests.support.waiting import WOKEN, rest, wait_for

SOON = timedelta(milliseconds=150)
LEASE = timedelta(seconds=30)
OURS = ["standard", "reliable", "conveyor"]  # dialects in which results come only from our workers


def settle(queue: Queue, n: int = 1000) -> list[AttemptEnd]:
    """Read all outcomes that there are, and acknowledge them."""
    found: list[AttemptEnd] = []
    while read := queue.outcomes(n, timeout=0.05) or queue.outcomes(
        n, timeout=0.05
    ):  # the first may only make room
        found += [end for each in read for end in each.ends]
        queue.acknowledge(read)
    return found


def every_key(house: House) -> set[bytes]:
    return {key for keys in house.everywhere("KEYS", "*") for key in keys}


def recovered(queue: Queue, decide: Callable[[Delivery], Result], n: int = 1) -> int:
    """Recover until so many are back; a dialect may want to look twice."""
    moved = 0

    def look() -> bool:
        nonlocal moved
        moved += queue.recover(decide)
        return moved >= n

    wait_for(look, f"{n} are back", timeout=60)
    return moved


# Push


def test_a_push_is_idempotent_until_the_end_is_acknowledged(make_queue: MakeQueue) -> None:
    queue, one = make_queue(), job()
    assert queue.push([one], epoch="") == [Pushed.NEW]
    assert queue.push([one, one], epoch="") == [Pushed.KNOWN, Pushed.KNOWN]
    [delivery] = queue.fetch(10, timeout=0)
    assert queue.push([one], epoch="") == [Pushed.KNOWN]
    assert queue.finish([ended(delivery)]) == ([True], [])
    assert queue.push([one], epoch="") == [Pushed.FINISHED]
    assert queue.known([one.id]) == [Known(None, 1)]
    assert [end.job_id for end in settle(queue)] == [one.id]
    assert queue.known([one.id]) == [None]
    assert queue.push([one], epoch="") == [Pushed.FINISHED]  # for a while
    assert queue.fetch(10, timeout=0) == []


def test_one_id_twice_in_a_batch_is_one_job(make_queue: MakeQueue) -> None:
    queue, one = make_queue(), job()
    assert queue.push([one, one, one], epoch="") == [Pushed.NEW, Pushed.KNOWN, Pushed.KNOWN]
    assert ids(fetch_all(queue)) == [one.id]


def test_without_its_epoch_nothing_is_pushed(make_queue: MakeQueue) -> None:
    queue = make_queue()
    assert queue.epoch() is None
    with pytest.raises(EpochLost):
        queue.push([job()], epoch="1")
    queue.begin("2")
    assert queue.epoch() == "2"
    with pytest.raises(EpochLost):
        queue.push([job()], epoch="1")
    assert queue.depths().waiting == dict.fromkeys(Priority, 0)
    assert queue.push([job()], epoch="2") == [Pushed.NEW]


def test_an_older_epoch_does_not_replace_a_newer_one(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.begin("10")
    queue.begin("9")
    assert queue.epoch() == "10"


def test_epochs_of_two_ledgers_are_apart(make_queue: MakeQueue) -> None:
    one, other = make_queue(installation="a"), make_queue(installation="b")
    one.begin("1")
    assert other.epoch() is None


def test_an_empty_batch_is_nothing(make_queue: MakeQueue) -> None:
    queue = make_queue()
    assert queue.push([], epoch="") == []
    assert queue.finish([]) == ([], [])
    assert queue.known([]) == []
    assert queue.cancel([]) == []
    assert queue.renew({}, lease=LEASE) == []
    assert queue.fetch(0, timeout=0) == []
    queue.acknowledge([])


# Fetch


def test_higher_priorities_first_and_in_the_order_of_their_coming_within_one(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue()
    jobs = [job(priority=priority) for _ in range(7) for priority in reversed(Priority)]
    queue.push(jobs, epoch="")
    wanted = [each.id for each in sorted(jobs, key=lambda each: each.priority)]
    found: list[str] = []
    while taken := queue.fetch(4, timeout=0):
        found += ids(taken)
    assert found == wanted


def test_what_is_fetched_is_what_was_pushed(make_queue: MakeQueue) -> None:
    queue = make_queue()
    hostile = "a\"b\\c{}[]:,\u00e9\u4e2d\U0001f600'%s \x7f"
    jobs = [
        job(),
        job(form="bytes", payload=bytes(range(256)) * 3),
        job(payload=b""),
        job(
            tenant=hostile,
            type=hostile,
            tags={hostile: hostile},
            correlation_id=hostile,
            idempotency_key=hostile,
            payload=b"null",
        ),
        job(installation="", created_at=NOW.replace(microsecond=0)),
        job(
            policy={"max_attempts": 3},
            checkpoint={"page": [1, None]},
            attempt=2,
            feed=4,
            priority=Priority.BULK,
        ),
    ]
    queue.push(jobs, epoch="")
    taken = {delivery.job.id: delivery for delivery in fetch_all(queue)}
    assert [taken[each.id].job for each in jobs] == jobs
    assert [taken[each.id].attempt for each in jobs] == [1, 1, 1, 1, 1, 3]


def test_payloads_of_a_megabyte(make_queue: MakeQueue) -> None:
    queue, size = make_queue(), 1 << 20
    jobs = [job(payload=bytes([65 + number]) * size, form="bytes") for number in range(20)]
    assert queue.push(jobs, epoch="") == [Pushed.NEW] * 20
    taken = fetch_all(queue)
    assert [delivery.job.payload for delivery in taken] == [each.payload for each in jobs]
    result = b'"' + b"x" * size + b'"'
    assert queue.finish([ended(delivery, result=result) for delivery in taken])[0] == [True] * 20
    assert [end.result for end in settle(queue)] == [result] * 20


def test_batches_of_thousands(make_queue: MakeQueue) -> None:
    queue = make_queue()
    jobs = [job() for _ in range(3500)]
    assert queue.push(jobs, epoch="") == [Pushed.NEW] * 3500
    assert len(queue.known([each.id for each in jobs])) == 3500
    taken = fetch_all(queue, 5000)
    assert ids(taken) == [each.id for each in jobs]
    assert sorted(ids(queue.held())) == sorted(ids(taken))
    assert queue.renew(dict.fromkeys(taken, Note(0.5)), lease=LEASE) == [Renewed.KEPT] * 3500
    queue.push([job()], epoch="")
    accepted, more = queue.finish([ended(delivery) for delivery in taken], fetch=5000)
    assert (accepted, len(more)) == ([True] * 3500, 1)
    assert queue.depths().unsettled == 3500
    assert len(settle(queue)) == 3500
    assert queue.cancel([each.id for each in jobs]) == [Cancelling.UNKNOWN] * 3500


def test_two_workers_never_have_the_same_job(make_queue: MakeQueue) -> None:
    jobs = [job() for _ in range(600)]
    make_queue().push(jobs, epoch="")
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda n: ids(fetch_all(make_queue(f"w{n}"), 7)), range(4)))
    assert sorted(chain.from_iterable(taken)) == sorted(each.id for each in jobs)


def test_a_push_from_elsewhere_wakes_one_who_waits(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue("other")
    found: list[Any] = []
    took: list[float] = []
    queue.fetch(1, timeout=0.01)

    def wait() -> None:
        found.extend(queue.fetch(1, timeout=60))
        found.append(time.monotonic())

    other.depths()
    while len(took) < 20 and min(took, default=1.0) >= 0.3:  # one that is quick is enough
        found.clear()
        thread = threading.Thread(target=wait)
        thread.start()
        rest(0.1)
        pushed = time.monotonic()
        other.push([job()], epoch="")
        thread.join(60)
        delivery, moment = found
        took.append(moment - pushed)
        queue.finish([ended(delivery)])
    assert min(took) < 0.3, "they looked again by themselves"


def test_each_of_those_who_wait_gets_one(make_queue: MakeQueue) -> None:
    queues = [make_queue(f"w{number}") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(queue.fetch, 1, timeout=60) for queue in queues]
        rest(0.3)
        begun = time.monotonic()
        make_queue().push([job() for _ in range(4)], epoch="")
        assert sum(len(each.result()) for each in waiting) == 4
    assert time.monotonic() - begun < WOKEN


@pytest.mark.parametrize("timeout", [0.0, 0.0004, 0.003, 0.05, 0.4])
def test_a_fetch_never_waits_longer_than_it_was_told(make_queue: MakeQueue, timeout: float) -> None:
    queue = make_queue()
    queue.fetch(1, timeout=0)
    begun = time.monotonic()
    assert queue.fetch(1, timeout=timeout) == []
    assert timeout * 0.9 <= time.monotonic() - begun < timeout + WOKEN


# Finish


def test_a_second_finish_is_refused(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job()], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    assert queue.finish([ended(delivery), ended(delivery, State.FAILED)])[0] == [True, False]
    assert queue.finish([ended(delivery)])[0] == [False]
    assert queue.finish([back(delivery)])[0] == [False]
    assert [end.state for end in settle(queue)] == [State.COMPLETED]
    assert fetch_all(queue) == []


def test_a_finish_of_another_worker_is_refused(make_queue: MakeQueue) -> None:
    queue, other = make_queue("w1"), make_queue("w2")
    queue.push([job()], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    assert other.finish([ended(delivery)])[0] == [False]
    assert queue.renew({delivery: None}, lease=LEASE) == [Renewed.KEPT]
    assert queue.finish([ended(delivery)])[0] == [True]


def test_a_finish_of_an_earlier_attempt_by_the_same_worker_is_refused(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue()
    queue.push([job()], epoch="")
    [first] = queue.fetch(1, timeout=0)
    queue.finish([retried(first)])
    [second] = queue.fetch(1, timeout=0)
    assert (first.attempt, second.attempt) == (1, 2)
    assert queue.finish([ended(first)])[0] == [False]
    assert queue.renew({first: None, second: None}, lease=LEASE) == [Renewed.LOST, Renewed.KEPT]
    assert queue.finish([ended(second)])[0] == [True]


def test_finish_and_fetch_are_one_call(make_queue: MakeQueue) -> None:
    queue = make_queue()
    jobs = [job() for _ in range(5)]
    queue.push(jobs, epoch="")
    taken = queue.fetch(2, timeout=0)
    accepted, more = queue.finish([ended(delivery) for delivery in taken], fetch=2)
    assert (accepted, ids(more)) == ([True, True], [each.id for each in jobs[2:4]])
    assert ids(queue.held()) == ids(more)


def test_every_end_comes_back_as_it_was_said(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job() for _ in range(4)], epoch="")
    one, two, three, four = queue.fetch(4, timeout=0)
    results = [
        ended(one, result=b'{"a":[1.0,"\xc3\xa9"]}', spawned=[{"type": "next"}], checkpoint=[1]),
        ended(two, State.FAILED, category="permanent", code="E1", error='no "way" \\ \u4e2d'),
        ended(three, State.DEAD_LETTER, category="temporary", error="again"),
        ended(four, State.RETRYING, delay=timedelta(hours=1), category="temporary", error="later"),
    ]
    assert queue.finish(results)[0] == [True] * 4
    found = settle(queue)
    assert all(end.recorded_at is not None for end in found)
    assert [replace(end, spawned=list(end.spawned), recorded_at=None) for end in found] == [
        replace(result.end, spawned=list(result.end.spawned)) for result in results if result.end
    ]


def test_one_end_that_cannot_be_written_as_it_is_harms_no_other(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job() for _ in range(3)], epoch="")
    taken = queue.fetch(3, timeout=0)
    results = [
        ended(taken[0]),
        ended(taken[1], State.FAILED, error="\ud800 x"),
        ended(taken[2], result=b"{not json"),
    ]
    assert queue.finish(results)[0] == [True] * 3
    found = settle(queue)
    assert [end.job_id for end in found] == ids(taken)
    assert (found[1].error or "").endswith(" x")


def test_what_no_ledger_fed_has_no_outcome(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job(installation="")], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    assert queue.finish([ended(delivery)])[0] == [True]
    assert settle(queue) == []
    assert queue.depths().unsettled == 0
    assert queue.known([delivery.job.id]) == [None]


def test_ends_go_to_the_ledger_that_fed(make_queue: MakeQueue) -> None:
    one, other = make_queue(installation="a"), make_queue(installation="b")
    first, second = job(installation="a"), job(installation="b")
    one.push([first], epoch="")
    other.push([second], epoch="")
    taken = one.fetch(2, timeout=0)
    assert one.finish([ended(delivery) for delivery in taken])[0] == [True, True]
    assert [end.job_id for end in settle(other)] == [second.id]
    assert [end.job_id for end in settle(one)] == [first.id]


# Retries, and what is put back


def test_a_retry_waits_until_it_is_due(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job(attempt=2)], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    assert delivery.attempt == 3
    begun = time.monotonic()
    assert queue.finish([retried(delivery, timedelta(seconds=2))], fetch=5) == ([True], [])
    assert queue.known([delivery.job.id]) == [Known(State.RETRYING, 3)]
    assert queue.depths().retrying == 1
    again: list[Delivery] = []
    while not again and time.monotonic() < begun + 60:
        again = queue.fetch(1, timeout=60)
    assert 1.95 < time.monotonic() - begun < 2 + WOKEN
    assert [each.attempt for each in again] == [4]
    assert queue.depths().retrying == 0
    assert [end.state for end in settle(queue)] == [State.RETRYING]


def test_a_retry_of_another_worker_wakes_one_who_waits_for_long(make_queue: MakeQueue) -> None:
    queue, other = make_queue("w1"), make_queue("w2")
    queue.push([job()], epoch="")
    [delivery] = other.fetch(1, timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.fetch, 1, timeout=60)
        rest(0.3)
        begun = time.monotonic()
        other.finish([retried(delivery, timedelta(seconds=0.4))])
        assert ids(waiting.result()) == [delivery.job.id]
    assert time.monotonic() - begun < WOKEN


def test_what_is_put_back_was_not_an_attempt_and_is_the_next(make_queue: MakeQueue) -> None:
    queue = make_queue()
    jobs = [job(attempt=number % 2) for number in range(6)]
    queue.push(jobs, epoch="")
    taken = queue.fetch(3, timeout=0)
    assert queue.finish([back(delivery) for delivery in taken])[0] == [True] * 3
    assert queue.depths().running == 0
    again = fetch_all(queue)
    assert ids(again) == [each.id for each in jobs]
    assert [delivery.charged for delivery in again] == [1, 2, 1, 2, 1, 2]
    assert settle(queue) == []


def test_what_is_put_back_wakes_one_who_waits(make_queue: MakeQueue) -> None:
    queue, other = make_queue("w1"), make_queue("w2")
    queue.push([job()], epoch="")
    taken = other.fetch(1, timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.fetch, 1, timeout=60)
        rest(0.2)
        begun = time.monotonic()
        other.finish([back(delivery) for delivery in taken])
        assert ids(waiting.result()) == ids(taken)
    assert time.monotonic() - begun < WOKEN


# Cancel


def test_cancel_removes_what_waits_and_it_is_never_delivered(make_queue: MakeQueue) -> None:
    queue = make_queue()
    jobs = [job() for _ in range(4)]
    queue.push(jobs, epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    queue.finish([retried(delivery, timedelta(seconds=2))])
    wanted = [jobs[0].id, jobs[2].id, str(uuid4())]
    assert queue.cancel(wanted) == [Cancelling.REMOVED, Cancelling.REMOVED, Cancelling.UNKNOWN]
    assert queue.known(wanted) == [None] * 3
    rest(2.2)
    assert ids(fetch_all(queue)) == [jobs[1].id, jobs[3].id]
    assert queue.cancel(wanted[:1]) == [Cancelling.UNKNOWN]
    assert queue.depths().retrying == 0


def test_a_running_job_hears_of_its_cancel(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue("w2")
    queue.push([job(), job()], epoch="")
    one, two = queue.fetch(2, timeout=0)
    assert other.cancel([one.job.id]) == [Cancelling.RUNNING]
    assert queue.renew({one: None, two: None}, lease=LEASE) == [Renewed.CANCEL, Renewed.KEPT]
    assert queue.finish([ended(one, State.CANCELLED)])[0] == [True]
    for force in (False, True):
        assert other.cancel([one.job.id], force=force) == [Cancelling.FINISHED]
    assert [end.state for end in settle(queue)] == [State.CANCELLED]
    assert other.cancel([one.job.id]) == [Cancelling.UNKNOWN]
    queue.push([job(id=one.job.id, feed=2)], epoch="")
    [again] = queue.fetch(1, timeout=0)
    assert queue.renew({again: None}, lease=LEASE) == [Renewed.KEPT]


def test_force_removes_a_leased_job_and_its_late_result_is_refused(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue("w2")
    queue.push([job(), job()], epoch="")
    one, two = queue.fetch(2, timeout=0)
    assert other.cancel([one.job.id], force=True) == [Cancelling.REMOVED]
    assert other.known([one.job.id]) == [None]
    assert other.cancel([one.job.id], force=True) == [Cancelling.UNKNOWN]
    note = Note(progress=0.5)
    assert queue.renew({one: note, two: None}, lease=LEASE) == [Renewed.LOST, Renewed.KEPT]
    assert ids(queue.held()) == [two.job.id]
    assert queue.finish([ended(one), ended(two)])[0] == [False, True]
    assert [end.job_id for end in settle(queue)] == [two.job.id]
    assert fetch_all(queue) == fetch_all(other) == []
    queue.push([job(id=one.job.id, feed=2)], epoch="")
    [again] = queue.fetch(1, timeout=0)
    assert queue.finish([ended(one)])[0] == [False]
    assert queue.renew({again: None}, lease=LEASE) == [Renewed.KEPT]
    assert queue.finish([ended(again)])[0] == [True]


def test_force_removes_what_waits_and_what_is_retried(make_queue: MakeQueue) -> None:
    queue = make_queue()
    jobs = [job() for _ in range(3)]
    queue.push(jobs, epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    queue.finish([retried(delivery, timedelta(minutes=1))])
    wanted = [jobs[0].id, jobs[1].id, jobs[1].id]
    found = queue.cancel(wanted, force=True)
    assert found == [Cancelling.REMOVED, Cancelling.REMOVED, Cancelling.UNKNOWN]
    assert queue.known(wanted) == [None] * 3
    assert ids(fetch_all(queue)) == [jobs[2].id]


def test_a_dead_worker_brings_no_removed_job_back(make_queue: MakeQueue) -> None:
    dead, queue = make_queue("dead", lease=timedelta(milliseconds=50)), make_queue()
    dead.push([job(), job()], epoch="")
    one, two = dead.fetch(2, timeout=0)
    assert queue.cancel([one.job.id], force=True) == [Cancelling.REMOVED]
    decided: list[str] = []

    def decide(delivery: Delivery) -> Result:
        decided.append(delivery.job.id)
        return ended(delivery, State.DEAD_LETTER)

    wait_for(lambda: queue.recover(decide), "the worker is silent")
    assert decided == [two.job.id]
    assert [end.job_id for end in settle(queue)] == [two.job.id]
    assert queue.known([one.job.id]) == [None]
    assert fetch_all(queue) == []
    assert dead.finish([ended(one)])[0] == [False]


def test_a_job_that_was_removed_and_is_fed_anew_runs_once(make_queue: MakeQueue) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    assert queue.cancel([one.id]) == [Cancelling.REMOVED]
    anew = replace(one, feed=2, priority=Priority.CRITICAL)
    assert queue.push([anew], epoch="") == [Pushed.NEW]
    [delivery] = fetch_all(queue)
    assert delivery.job == anew
    assert queue.renew({delivery: None}, lease=LEASE) == [Renewed.KEPT]
    assert queue.finish([ended(delivery)])[0] == [True]
    assert fetch_all(queue) == []


def test_a_retry_is_not_brought_forward_by_what_a_cancel_left_behind(make_queue: MakeQueue) -> None:
    queue, one = make_queue(), job(priority=Priority.BULK)
    queue.push([one], epoch="")
    queue.cancel([one.id])
    queue.push([replace(one, feed=2, priority=Priority.HIGH)], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    queue.finish([retried(delivery, timedelta(seconds=30))])
    assert fetch_all(queue) == []
    assert queue.known([one.id]) == [Known(State.RETRYING, 1)]


def test_a_malformed_id_of_a_previous_attempt_is_none(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue, one = make_queue(), job(previous_attempt_id="a:b:c")
    queue.push([one], epoch="")
    for _ in range(2):
        [delivery] = fetch_all(queue)
        assert (delivery.charged, delivery.job.payload) == (1, one.payload)
        assert previous_of(delivery) is None
        assert "malformed" in caplog.text
        queue.finish([replace(back(delivery), begun=False)])
    [delivery] = fetch_all(queue)
    queue.finish([retried(delivery)])
    [again] = fetch_all(queue)
    assert (again.charged, again.job.payload) == (2, one.payload)
    assert previous_of(again) == attempt_id(
        UUID(one.id), "w1", delivery.sequence, feed=1, attempt=1
    )


def previous_of(delivery: Delivery) -> UUID | None:
    """The attempt before, as a handler sees it."""
    context = JobContext(delivery.job, 1, NOW, Cancelled(), None, "w1", 1, lambda *_: None)
    return context.previous_attempt_id


# Withdraw


def test_a_withdrawn_job_is_delivered_once_with_its_new_values(make_queue: MakeQueue) -> None:
    queue, one, other = make_queue(), job(priority=Priority.HIGH), job()
    queue.push([one, other], epoch="")
    assert queue.withdraw(one) is Cancelling.REMOVED
    assert queue.known([one.id]) == [None]
    assert queue.withdraw(one) is Cancelling.UNKNOWN
    anew = replace(one, feed=2, priority=Priority.LOW, tags={"a": "b"})
    assert queue.push([one], epoch="") == [Pushed.FINISHED]  # late
    assert queue.push([anew], epoch="") == [Pushed.NEW]
    assert queue.push([one], epoch="") == [Pushed.KNOWN]
    assert [delivery.job for delivery in fetch_all(queue)] == [other, anew]


def test_a_job_that_was_never_pushed_is_not_pushed_after_its_withdrawal(
    make_queue: MakeQueue,
) -> None:
    queue, one = make_queue(), job()
    assert queue.withdraw(one) is Cancelling.UNKNOWN
    assert queue.push([one], epoch="") == [Pushed.FINISHED]
    assert fetch_all(queue) == []
    queue.push([replace(one, feed=2)], epoch="")
    assert ids(fetch_all(queue)) == [one.id]


def test_a_leased_job_is_not_withdrawn_and_not_cancelled(make_queue: MakeQueue) -> None:
    queue, other, one = make_queue(), make_queue("w2"), job()
    queue.push([one], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    assert other.withdraw(one) is Cancelling.RUNNING
    assert queue.renew({delivery: None}, lease=LEASE) == [Renewed.KEPT]
    assert queue.finish([ended(delivery)])[0] == [True]
    assert other.withdraw(one) is Cancelling.FINISHED
    assert [end.state for end in settle(queue)] == [State.COMPLETED]


def test_a_retry_is_withdrawn_once_its_attempt_is_recorded(make_queue: MakeQueue) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    queue.finish([retried(delivery, timedelta(seconds=1))])
    assert queue.withdraw(one) is Cancelling.RUNNING
    assert queue.known([one.id]) == [Known(State.RETRYING, 1)]
    assert queue.withdraw(replace(one, attempt=1)) is Cancelling.REMOVED
    anew = replace(one, feed=2, attempt=1)
    queue.push([anew], epoch="")
    [again] = fetch_all(queue)
    assert (again.job, again.attempt) == (anew, 2)
    rest(1.1)
    assert queue.finish([ended(again)])[0] == [True]
    assert fetch_all(queue) == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_returned_job_is_withdrawn_unless_it_had_begun(
    make_queue: MakeQueue, begun: bool
) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    queue.finish([replace(back(delivery), begun=begun)])
    assert queue.withdraw(one) is (Cancelling.RUNNING if begun else Cancelling.REMOVED)
    assert ids(fetch_all(queue)) == [one.id] * begun


# Renew, known, held


def test_what_a_handler_says_is_seen(make_queue: MakeQueue) -> None:
    queue, one = make_queue(), job()
    assert queue.known([one.id]) == [None]
    queue.push([one], epoch="")
    assert queue.known([one.id]) == [Known(State.SCHEDULED)]
    [delivery] = queue.fetch(1, timeout=0)
    assert queue.known([one.id]) == [Known(State.RUNNING, 1, delivery.started_at)]
    note = Note(0.25, 'a "quarter"', {"page": 3})
    queue.renew({delivery: note}, lease=LEASE)
    queue.renew({delivery: None}, lease=LEASE)
    assert queue.known([one.id]) == [Known(State.RUNNING, 1, delivery.started_at, note)]


def test_one_note_that_cannot_be_written_costs_no_lease(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job(), job()], epoch="")
    one, two = queue.fetch(2, timeout=0)
    notes: dict[Delivery, Note | None] = {one: Note(message="\ud800"), two: Note(0.5)}
    assert queue.renew(notes, lease=LEASE) == [Renewed.KEPT] * 2


def test_held_finds_what_an_unanswered_fetch_took(make_queue: MakeQueue) -> None:
    queue, same, other = make_queue("w1"), make_queue("w1"), make_queue("w2")
    queue.push([job() for _ in range(3)], epoch="")
    taken = queue.fetch(2, timeout=0)
    other.fetch(1, timeout=0)
    held = same.held()
    assert {(each.job.id, each.attempt, each.started_at) for each in held} == {
        (each.job.id, each.attempt, each.started_at) for each in taken
    }
    assert same.finish([ended(each) for each in held])[0] == [True, True]
    assert queue.held() == []


# Attempts, charges and the begun mark


def test_a_returned_attempt_is_not_charged_but_uses_its_number(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job(attempt=2)], epoch="")
    numbers = []
    for end in (back, back, retried, back):
        [delivery] = queue.fetch(1, timeout=1)
        numbers.append((delivery.attempt, delivery.charged))
        assert queue.held()[0].uncharged == delivery.uncharged
        queue.finish([end(delivery)])
    [delivery] = queue.fetch(1, timeout=1)
    numbers.append((delivery.attempt, delivery.charged))
    assert numbers == [(3, 3), (4, 3), (5, 3), (6, 4), (7, 4)]


def test_a_return_that_never_began_leaves_its_number(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job()], epoch="")
    numbers = []
    for begun in (False, True, False):
        [delivery] = queue.fetch(1, timeout=0)
        numbers.append((delivery.attempt, delivery.charged))
        queue.finish([Result(delivery, None, begun=begun)])
    [delivery] = queue.fetch(1, timeout=0)
    numbers.append((delivery.attempt, delivery.charged))
    assert numbers == [(1, 1), (1, 1), (2, 1), (2, 1)]


@pytest.mark.parametrize("dialect", OURS)
def test_a_retry_can_be_uncharged(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job()], epoch="")
    [first] = queue.fetch(1, timeout=0)
    queue.finish([ended(first, State.RETRYING, delay=timedelta(), charged=False)])
    [second] = queue.fetch(1, timeout=1)
    assert (second.attempt, second.charged) == (2, 1)
    assert [end.charged for end in settle(queue)] == [False]


def test_counts_continue_from_the_ledger_after_data_loss(
    make_queue: MakeQueue, house: House
) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    queue.finish([back(each) for each in queue.fetch(1, timeout=0)])
    house.everywhere("FLUSHALL")
    again = replace(one, feed=2, attempt=5, uncharged=3)
    queue.push([again], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    assert (delivery.job, delivery.attempt, delivery.charged) == (again, 6, 3)
    queue.finish([back(delivery)])
    [delivery] = queue.fetch(1, timeout=0)
    assert (delivery.attempt, delivery.charged) == (7, 3)
    [held] = queue.held()
    assert (held.attempt, held.charged, held.sequence) == (7, 3, delivery.sequence)


def test_a_later_feed_starts_with_its_own_counts(make_queue: MakeQueue) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    for _ in range(3):
        queue.finish([back(each) for each in queue.fetch(1, timeout=0)])
    queue.push([replace(one, feed=2, attempt=1)], epoch="")
    [delivery] = fetch_all(queue)
    assert (delivery.job.feed, delivery.attempt, delivery.charged) == (2, 2, 2)


def own_id(delivery: Delivery) -> str:
    """The id that the handler of a delivery sees."""
    job_id, feed = UUID(delivery.job.id), delivery.job.feed
    lease = delivery.worker, delivery.sequence
    return str(attempt_id(job_id, *lease, feed=feed, attempt=delivery.attempt))


def test_a_lease_knows_the_last_attempt_that_began(make_queue: MakeQueue) -> None:
    queue, other, last = make_queue("w1"), make_queue("w2"), None
    queue.push([job()], epoch="")
    unbegun = partial(Result, end=None, begun=False)
    unhandled = partial(Result, end=None, begun=False, unhandled=True)
    seen = []
    turns: list[tuple[Queue, Callable[[Delivery], Result]]] = [
        (queue, back),
        (other, unbegun),
        (queue, retried),
        (other, unbegun),
    ]
    for each, end in turns * 2:
        [delivery] = each.fetch(1, timeout=60)
        assert delivery.job.previous_attempt_id == last
        [held] = each.held()
        assert (held.job.previous_attempt_id, own_id(held)) == (last, own_id(delivery))
        assert delivery.worker == ("w1" if each is queue else "w2")
        last = last if end is unbegun else own_id(delivery)
        seen.append(own_id(delivery))
        each.finish([end(delivery)])
    [delivery] = queue.fetch(1, timeout=60)
    queue.finish([unhandled(delivery)])
    [delivery] = queue.fetch(1, timeout=60)
    assert delivery.job.previous_attempt_id == last
    assert len({*seen, own_id(delivery)}) == 9


def test_the_last_attempt_travels_with_a_feed(make_queue: MakeQueue, house: House) -> None:
    queue, before, later = make_queue(), str(uuid4()), str(uuid4())
    queue.push([one := job(attempt=2, previous_attempt_id=before)], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    assert delivery.job.previous_attempt_id == before
    queue.finish([back(delivery)])
    [delivery] = queue.fetch(1, timeout=0)
    queue.push([replace(one, feed=2, attempt=3, previous_attempt_id=later)], epoch="")
    [delivery] = fetch_all(queue)
    assert (delivery.job.feed, delivery.job.previous_attempt_id) == (2, later)
    queue.finish([Result(delivery, None, begun=False)])
    [delivery] = queue.fetch(1, timeout=0)
    assert delivery.job.previous_attempt_id == later


def test_an_orphaned_lease_that_never_began_is_no_previous_attempt(make_queue: MakeQueue) -> None:
    queue = make_queue("w1")
    queue.push([job(), job()], epoch="")
    first, second = orphan(make_queue, 2, first=11, begun=BegunMark(11, 11))
    assert recovered(queue, retried, 2) == 2
    again = {each.job.id: each.job.previous_attempt_id for each in fetch_all(make_queue("w2"))}
    assert again == {first.job.id: own_id(first), second.job.id: None}


def orphan(make_queue: MakeQueue, n: int, **options: Any) -> list[Delivery]:
    """Lease n jobs to a worker that dies."""
    dead = make_queue("dead", lease=SOON)
    taken = dead.fetch(n, timeout=0, **options)
    rest(0.3)
    return taken


def test_an_orphaned_lease_that_was_not_begun_is_redelivered_uncharged_once(
    make_queue: MakeQueue,
) -> None:
    queue, seen = make_queue("w1"), []
    queue.push([job(), job()], epoch="")

    def decide(delivery: Delivery) -> Result:
        seen.append((delivery.job.id, delivery.begun, delivery.attempt, delivery.charged))
        return retried(delivery)

    first, second = orphan(make_queue, 2, first=11, begun=BegunMark(11, 11))
    assert recovered(queue, decide, 2) == 2
    assert seen == [(first.job.id, True, 1, 1)]
    again = {each.job.id: each for each in fetch_all(make_queue("w2"))}
    assert (again[first.job.id].attempt, again[first.job.id].charged) == (2, 2)
    assert (again[second.job.id].attempt, again[second.job.id].charged) == (2, 1)
    make_queue("w2").finish([back(each) for each in again.values()])
    seen.clear()
    orphan(make_queue, 2, first=21, begun=BegunMark(20, 20))
    assert recovered(queue, decide, 2) == 2
    # The first job was never redelivered uncharged, the second one was.
    assert seen == [(second.job.id, False, 3, 1)]
    last = {each.job.id: each for each in fetch_all(queue)}
    assert (last[first.job.id].attempt, last[first.job.id].charged) == (4, 2)
    assert (last[second.job.id].attempt, last[second.job.id].charged) == (4, 2)


def test_a_lease_that_its_worker_lost_before_it_left_is_redelivered_uncharged(
    make_queue: MakeQueue,
) -> None:
    """The worker could not return the job, because Redis was unavailable longer than a lease."""
    dead, queue, seen = make_queue("dead", lease=SOON), make_queue("w1"), []
    queue.push([job()], epoch="")
    dead.fetch(1, timeout=0, first=1, begun=BegunMark(1, 0))
    rest(2 * SOON.total_seconds())
    dead.leave()

    def decide(delivery: Delivery) -> Result:
        seen.append(delivery.begun)
        return retried(delivery)

    assert recovered(queue, decide) == 1
    assert not seen


def test_leases_of_a_worker_that_reports_no_begun_mark_are_charged(make_queue: MakeQueue) -> None:
    queue, seen = make_queue("w1"), []
    queue.push([job()], epoch="")
    orphan(make_queue, 1)

    def decide(delivery: Delivery) -> Result:
        seen.append(delivery.begun)
        return back(delivery)

    assert recovered(queue, decide) == 1
    assert seen == [True]


@pytest.mark.parametrize("last", ["fetch", "finish", "renew"])
def test_the_newest_begun_mark_is_kept(make_queue: MakeQueue, last: str) -> None:
    dead, queue, seen = make_queue("dead", lease=SOON), make_queue(), []
    queue.push([job(), job()], epoch="")
    dead.fetch(2, timeout=0, first=1, begun=BegunMark(1, 0))
    newest, older = BegunMark(9, 1), BegunMark(7, 2)
    for mark in (newest, older, None):
        if last == "fetch":
            dead.fetch(1, timeout=0, begun=mark)
        elif last == "finish":
            dead.finish([], begun=mark)
        else:
            dead.renew({}, lease=SOON, begun=mark)
    rest(0.3)

    def decide(delivery: Delivery) -> Result:
        seen.append(delivery.sequence)
        return back(delivery)

    assert recovered(queue, decide, 2) == 2
    assert seen == [1]


def test_marks_go_with_their_worker(make_queue: MakeQueue, house: House) -> None:
    queue, gone = make_queue("w1"), make_queue("gone", lease=SOON)
    for each in (queue, gone):
        each.fetch(1, timeout=0, begun=BegunMark(0, 0))
    rest(0.3)
    assert queue.recover(back) == 0
    assert [key for key in every_key(house) if b"begun" in key]
    queue.leave()
    left = [key for key in every_key(house) if b"begun" in key]
    assert all(house.run("PTTL", key) > 0 for key in left), "that of the dead worker stays for ever"
    assert not [key for key in left if b"w1" in key]


@pytest.mark.parametrize("ends", ["finish", "cancel"])
def test_no_count_of_a_returned_job_stays(make_queue: MakeQueue, house: House, ends: str) -> None:
    queue = make_queue()
    queue.push([job()], epoch="")
    orphan(make_queue, 1, first=1, begun=BegunMark(1, 0))
    assert recovered(queue, back) == 1
    [delivery] = queue.fetch(1, timeout=0)
    queue.finish([back(delivery)])
    if ends == "cancel":
        assert queue.cancel([delivery.job.id]) == [Cancelling.REMOVED]
    else:
        queue.finish([ended(each) for each in queue.fetch(1, timeout=0)])
    assert not [key for key in every_key(house) if b"returned" in key or b":state" in key]


# Orphans


def test_a_lease_after_a_lost_worker_is_an_orphan(make_queue: MakeQueue) -> None:
    queue, one = make_queue("w1"), job()
    queue.push([one], epoch="")
    [first] = orphan(make_queue, 1)
    assert not first.orphaned
    assert recovered(queue, retried) == 1
    for number in (2, 3, 4):  # also after attempts that fail in an ordinary way
        [delivery] = queue.fetch(1, timeout=1)
        assert (delivery.attempt, delivery.charged, delivery.orphaned) == (number, number, True)
        assert [each.orphaned for each in queue.held()] == [True]
        queue.finish([retried(delivery)])
    assert queue.cancel([one.id]) == [Cancelling.REMOVED]


def test_other_jobs_are_no_orphans(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job()], epoch="")
    for end in (back, retried, back):
        [delivery] = queue.fetch(1, timeout=1)
        assert not delivery.orphaned
        queue.finish([end(delivery)])
    [delivery] = queue.fetch(1, timeout=1)
    assert not delivery.orphaned
    assert [each.orphaned for each in queue.held()] == [False]


def test_a_lease_that_was_redelivered_uncharged_is_an_orphan(make_queue: MakeQueue) -> None:
    queue, seen = make_queue("w1"), []
    queue.push([job()], epoch="")

    def decide(delivery: Delivery) -> Result:
        seen.append((delivery.begun, delivery.orphaned))
        return retried(delivery)

    for number, charged in ((1, 1), (2, 1), (3, 2)):
        [lost] = orphan(make_queue, 1, first=number, begun=BegunMark(number, number - 1))
        assert (lost.charged, lost.orphaned) == (charged, number > 1)
        assert recovered(queue, decide) == 1
    assert seen == [(False, True), (False, True)], "only the first lease was uncharged"


@pytest.mark.parametrize("installation", ["3f1e", ""])
def test_a_delayed_return_uses_no_attempt_and_no_charge(
    make_queue: MakeQueue, installation: str
) -> None:
    queue, one, last = make_queue("w1"), job(installation=installation), None
    queue.push([one], epoch="")
    if installation:  # else BullMQ puts the job back by itself
        [lost] = orphan(make_queue, 1)
        last = own_id(lost)
        assert recovered(queue, retried) == 1
    [first] = fetch_all(queue)
    for _ in range(2):
        delayed = Result(first, None, begun=False, delay=timedelta(seconds=1))
        assert queue.finish([delayed, delayed], fetch=1) == ([True, False], [])
        assert queue.fetch(1, timeout=0) == [], "it is not due yet"
        assert queue.known([one.id])[0] in (
            Known(State.SCHEDULED),
            Known(State.RETRYING, first.attempt - 1),
        )
        [again] = wait_for(lambda: queue.fetch(1, timeout=1), "it is due")
        assert (again.attempt, again.charged) == (first.attempt, first.charged)
        assert again.orphaned is bool(installation)
        assert again.job.previous_attempt_id == last
        first = again
    assert queue.finish([ended(again)]) == ([True], [])


# Results that disappear


@pytest.mark.parametrize("dialect", OURS)
def test_a_finished_mark_is_believed_only_while_its_result_exists(
    make_queue: MakeQueue, client: Client, house: House, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue()
    jobs = [job() for _ in range(6)]
    queue.push(jobs, epoch="")
    queue.finish([ended(each) for each in queue.fetch(3, timeout=0)])
    queue.finish([ended(each) for each in queue.fetch(3, timeout=0)])
    [stream] = [
        key for key in every_key(house) if key.endswith((b":results:3f1e", b":outcomes:3f1e"))
    ]
    (first, _), _ = client.call("XRANGE", stream, "-", "+")
    client.call("XDEL", stream, first)
    names = [each.id for each in jobs]
    assert queue.known(names) == [None] * 3 + [Known(None, 1)] * 3
    assert queue.cancel(names[2:4]) == [Cancelling.UNKNOWN, Cancelling.FINISHED]
    assert queue.cancel(names[2:4], force=True) == [Cancelling.UNKNOWN, Cancelling.FINISHED]
    with caplog.at_level(logging.WARNING):
        found = queue.push([*jobs[:2], *jobs[3:]], epoch="")
    assert found == [Pushed.NEW] * 2 + [Pushed.FINISHED] * 3
    assert "lost the results of 2 finished jobs" in caplog.text
    again = fetch_all(queue)
    assert ids(again) == names[:2]
    queue.finish([ended(each) for each in again])
    assert sorted(end.job_id for end in settle(queue)) == sorted([*names[:2], *names[3:]])
    assert queue.depths().unsettled <= 1  # the mark of the job that was not pushed again


# Recover


def test_recover_takes_back_what_a_silent_worker_holds_as_it_is_told(make_queue: MakeQueue) -> None:
    dead, alive, reaper = make_queue("dead"), make_queue("alive"), make_queue("reaper")
    dead.push([job() for _ in range(4)], epoch="")
    taken, kept = dead.fetch(3, timeout=0), alive.fetch(1, timeout=0)
    assert reaper.recover(retried) == 0
    fate = dict(
        zip(ids(taken), [retried, lambda each: ended(each, State.DEAD_LETTER), back], strict=True)
    )
    dead.renew(dict.fromkeys(taken), lease=timedelta(milliseconds=1))
    rest(0.05)
    assert recovered(reaper, lambda delivery: fate[delivery.job.id](delivery), 3) == 3
    assert alive.renew(dict.fromkeys(kept), lease=LEASE) == [Renewed.KEPT]
    assert dead.renew(dict.fromkeys(taken), lease=LEASE) == [Renewed.LOST] * 3
    assert dead.finish([ended(each) for each in taken])[0] == [False] * 3
    again = {each.job.id: each.charged for each in fetch_all(reaper)}
    assert again == {taken[0].job.id: 2, taken[2].job.id: 1}
    states = [end.state for end in settle(reaper)]
    assert sorted(states) == [State.DEAD_LETTER, State.RETRYING]
    assert dead.held() == []
    assert reaper.recover(retried) == 0


def test_recover_tells_which_attempt_it_was(make_queue: MakeQueue) -> None:
    dead, seen = make_queue("dead", lease=SOON), []
    dead.push([job(attempt=4)], epoch="")
    [delivery] = dead.fetch(1, timeout=0)
    rest(0.3)

    def decide(found: Delivery) -> Result:
        seen.append(found)
        return ended(found, State.DEAD_LETTER)

    recovered(make_queue("reaper"), decide)
    [found] = seen
    assert (found.job, found.attempt, found.started_at) == (delivery.job, 5, delivery.started_at)


@pytest.mark.parametrize("foreign", [True, False])
def test_recovered_delivery_names_its_worker(make_queue: MakeQueue, foreign: bool) -> None:
    dead, seen = make_queue("dead", lease=SOON), []
    dead.push([job()], epoch="")
    dead.fetch(1, timeout=0)

    def decide(found: Delivery) -> Result:
        seen.append(found.worker)
        return ended(found, State.DEAD_LETTER)

    reaper = make_queue("reaper")
    wait_for(lambda: reaper.recover(decide, foreign=foreign), "the lease is recovered")
    assert seen == ["dead"]
    assert [end.state for end in settle(reaper)] == [State.DEAD_LETTER]


def test_default_retry_policy_outlives_its_worker(make_queue: MakeQueue) -> None:
    worker, reaper = make_queue("w1", lease=SOON), make_queue("reaper")
    assert reaper.retry_defaults.read("w1") is None
    policy = RetryPolicy(max_attempts=7, backoff="mine", initial_delay="3s").checked()
    worker.retry_defaults.store(policy)
    worker.push([job()], epoch="")
    worker.fetch(1, timeout=0)
    recovered(reaper, retried)
    assert reaper.retry_defaults.read("w1") == policy
    worker.retry_defaults.store(RETRY)
    assert reaper.retry_defaults.read("w1") == RETRY


def test_unreadable_default_retry_policy_is_none(make_queue: MakeQueue, client: Client) -> None:
    queue = make_queue("w1")
    for text in ("", "{", "[1]", "7", '{"max_attempts":0}', '{"later":1}', '{"max_delay_us":"x"}'):
        client.call("SET", queue.retry_defaults.key("w1"), text)
        assert queue.retry_defaults.read("w1") is None, text


def test_worker_that_leaves_takes_its_default_retry_policy(
    make_queue: MakeQueue, client: Client
) -> None:
    queue = make_queue("w1")
    queue.retry_defaults.store(RETRY)
    queue.push([job()], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    queue.leave()
    assert queue.retry_defaults.read("w1") == RETRY, "it still leases a job"
    queue.finish([ended(delivery)])
    queue.leave()
    assert not client.call("EXISTS", queue.retry_defaults.key("w1"))


def test_of_two_reapers_one_takes_it_back(make_queue: MakeQueue) -> None:
    dead = make_queue("dead", lease=SOON)
    jobs = [job() for _ in range(300)]
    dead.push(jobs, epoch="")
    fetch_all(dead)
    rest(0.3)
    with ThreadPoolExecutor(3) as pool:
        moved = list(pool.map(lambda n: make_queue(f"r{n}").recover(retried), range(3)))
    assert sum(moved) == 300
    again = fetch_all(make_queue("w2"))
    assert sorted(ids(again)) == sorted(each.id for each in jobs)
    assert {each.attempt for each in again} == {2}


def test_one_who_wakes_up_meanwhile_keeps_its_jobs(make_queue: MakeQueue) -> None:
    queue, reaper = make_queue("w1", lease=SOON), make_queue("reaper")
    queue.push([job()], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    rest(0.3)

    def decide(found: Delivery) -> Result:
        assert queue.renew({delivery: None}, lease=LEASE) == [Renewed.KEPT]
        return retried(found)

    assert reaper.recover(decide) == 0
    assert queue.finish([ended(delivery)])[0] == [True]
    assert [end.state for end in settle(queue)] == [State.COMPLETED]


def test_more_than_a_batch_comes_back_from_a_silent_worker(make_queue: MakeQueue) -> None:
    dead, reaper = make_queue("dead", lease=timedelta(seconds=0.5)), make_queue("reaper")
    dead.push([job() for _ in range(1700)], epoch="")
    assert len(fetch_all(dead)) == 1700
    rest(0.7)
    assert recovered(reaper, back, 1700) == 1700
    assert reaper.depths().running == 0


# Outcomes


def test_what_is_not_acknowledged_comes_to_another_settler(make_queue: MakeQueue) -> None:
    queue = make_queue("s1", settler_silence=timedelta(seconds=3))
    other = make_queue("s2", settler_silence=timedelta(seconds=3))
    queue.push([job(), job()], epoch="")
    one, two = queue.fetch(2, timeout=0)
    queue.outcomes(1, timeout=0)
    queue.finish([ended(one)])
    queue.finish([ended(two)])
    [first] = queue.outcomes(1, timeout=WOKEN)
    [second] = other.outcomes(1, timeout=WOKEN)
    assert {end.job_id for end in (*first.ends, *second.ends)} == {one.job.id, two.job.id}
    other.acknowledge([second])
    assert other.outcomes(1, timeout=0.01) == []
    rest(3.1)
    [again] = other.outcomes(5, timeout=1)
    assert again == first
    other.acknowledge([again])
    rest(3.1)
    assert queue.outcomes(5, timeout=0.05) == []
    queue.acknowledge([first])
    assert queue.depths().unsettled == 0


def test_ends_that_an_unanswered_read_took_come_again_to_it_soon(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = make_queue("s1"), make_queue("s2")
    queue.push([job(), job()], epoch="")
    one, two = queue.fetch(2, timeout=0)
    queue.outcomes(1, timeout=0)
    queue.finish([ended(one)])
    command = Client.await_entries

    def unanswered(*args: Any) -> None:
        command(*args)
        raise QueueUnavailable("Redis: Connection closed by server")

    with monkeypatch.context() as patch:
        patch.setattr(Client, "await_entries", unanswered)
        with pytest.raises(QueueUnavailable):
            queue.outcomes(1, timeout=1)
    assert queue.outcomes(1, timeout=0) == []  # another settler may have them, and needs a moment
    assert other.outcomes(1, timeout=0.05) == []
    rest(1.1)
    queue.finish([ended(two)])
    read = queue.outcomes(5, timeout=0) + queue.outcomes(5, timeout=0)
    assert {end.job_id for each in read for end in each.ends} == {one.job.id, two.job.id}
    queue.acknowledge(read)
    assert queue.outcomes(5, timeout=0) == []
    assert queue.depths().unsettled == 0


def test_ends_that_are_handed_over_come_to_another_settler_at_once(make_queue: MakeQueue) -> None:
    queue, other = make_queue("s1"), make_queue("s2")
    queue.push([job(), job()], epoch="")
    one, two = queue.fetch(2, timeout=0)
    queue.outcomes(1, timeout=0)
    queue.finish([ended(one)])
    kept = queue.outcomes(5, timeout=1)
    queue.finish([ended(two)])
    read = queue.outcomes(5, timeout=1)
    assert other.outcomes(5, timeout=0) == []
    queue.hand_over(read)
    assert other.outcomes(5, timeout=0) == read
    assert queue.outcomes(5, timeout=0) == []
    other.acknowledge(read)
    queue.hand_over(read)  # too late, as one who was suspended
    assert other.outcomes(5, timeout=0) == []
    queue.acknowledge(kept)
    queue.hand_over([])
    assert queue.depths().unsettled == 0


def test_a_late_acknowledgement_forgets_no_later_end(make_queue: MakeQueue) -> None:
    queue, one = make_queue(), job()
    queue.outcomes(1, timeout=0)
    queue.push([one], epoch="")
    queue.finish([ended(each) for each in queue.fetch(1, timeout=0)])
    read = queue.outcomes(5, timeout=1)
    queue.acknowledge(read)
    queue.push([replace(one, feed=2)], epoch="")
    queue.finish([ended(each) for each in queue.fetch(1, timeout=0)])
    queue.acknowledge(read)  # of another settler, which had read the same
    assert queue.push([replace(one, feed=2)], epoch="") == [Pushed.FINISHED]


def test_outcomes_wake_one_who_waits(make_queue: MakeQueue) -> None:
    queue, settler = make_queue(), make_queue("s1")
    settler.outcomes(1, timeout=0)
    queue.push([job()], epoch="")
    taken = queue.fetch(1, timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(settler.outcomes, 5, timeout=60)
        rest(0.2)
        begun = time.monotonic()
        queue.finish([ended(each) for each in taken])
        assert len(waiting.result()) == 1
    assert time.monotonic() - begun < WOKEN


def test_outcomes_are_read_about_as_many_as_wanted(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.outcomes(1, timeout=0)
    queue.push([job() for _ in range(1000)], epoch="")
    while taken := queue.fetch(20, timeout=0):
        queue.finish([ended(each) for each in taken])
    sizes = []
    while read := queue.outcomes(100, timeout=0.01):
        sizes.append(sum(len(each.ends) for each in read))
        queue.acknowledge(read)
    assert sum(sizes) == 1000
    assert max(sizes[1:]) <= 200


def test_settlers_that_begin_together(make_queue: MakeQueue) -> None:
    settlers = [make_queue(f"s{number}") for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda each: each.outcomes(1, timeout=0.05), settlers)) == [[]] * 6


def test_above_the_bound_of_unsettled_ends_nothing_is_fetched_nor_does_anybody_spin(
    make_queue: MakeQueue,
) -> None:
    queue, settler = make_queue(most_unsettled=5), make_queue("s1")
    queue.push([job() for _ in range(12)], epoch="")
    taken = queue.fetch(6, timeout=0)
    [late] = taken[5:]
    queue.finish([retried(late)])
    _, more = queue.finish([ended(each) for each in taken[:5]], fetch=5)
    assert more == []
    begun, rounds = time.monotonic(), 0
    while time.monotonic() - begun < 0.5:
        assert queue.fetch(5, timeout=0.25) == []
        rounds += 1
    assert rounds <= 3
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.fetch, 5, timeout=60)
        settle(settler)
        begun = time.monotonic()
        assert len(waiting.result()) == 5
    assert time.monotonic() - begun < WOKEN


# A job that is fed again


@pytest.mark.parametrize("when", ["waiting", "running", "retrying", "due", "put back"])
def test_a_later_feed_fences_the_earlier_one_and_runs_once(
    make_queue: MakeQueue, when: str
) -> None:
    queue, other, one = make_queue("w1"), make_queue("w2"), job()
    queue.push([one], epoch="")
    taken = queue.fetch(1, timeout=0) if when != "waiting" else []
    if when in ("retrying", "due"):
        queue.finish([retried(taken[0], timedelta(seconds=0.2 if when == "retrying" else 0))])
    if when == "put back":
        queue.finish([back(taken[0])])
    anew = replace(one, feed=2, attempt=3, payload=b"2")
    assert other.push([anew], epoch="") == [Pushed.KNOWN]
    if taken:
        assert queue.renew({taken[0]: None}, lease=LEASE) == [Renewed.LOST]
        assert queue.finish([ended(taken[0])])[0] == [False]
    rest(0.3)
    [delivery] = fetch_all(other)
    assert (delivery.job, delivery.attempt >= 4) == (anew, True)
    assert other.push([one, anew], epoch="") == [Pushed.KNOWN, Pushed.KNOWN]
    assert other.finish([ended(delivery)])[0] == [True]
    assert fetch_all(other) == []
    assert {end.feed for end in settle(queue) if end.state is State.COMPLETED} == {2}
    assert queue.depths()[1:] == (0, 0, 0, 0, 0)


def test_what_a_silent_worker_held_and_was_fed_again_comes_back_once(make_queue: MakeQueue) -> None:
    dead, reaper, one = make_queue("dead", lease=SOON), make_queue("reaper"), job()
    dead.push([one], epoch="")
    dead.fetch(1, timeout=0)
    reaper.push([replace(one, feed=2)], epoch="")
    rest(0.3)
    for _ in range(3):
        assert reaper.recover(retried) == 0
        rest(0.02)
    [delivery] = fetch_all(reaper)
    assert delivery.job.feed == 2
    assert reaper.depths().waiting[Priority.NORMAL] == 0


def test_one_worker_with_both_feeds_of_a_job_holds_the_later(make_queue: MakeQueue) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    [first] = queue.fetch(1, timeout=0)
    queue.push([replace(one, feed=2)], epoch="")
    [second] = queue.fetch(1, timeout=0)
    assert [each.job.feed for each in queue.held()] == [2]
    assert queue.finish([ended(first), ended(second)])[0] == [False, True]
    assert queue.held() == []


def test_what_was_put_back_and_taken_again_is_another_delivery(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue("w2")
    queue.push([job()], epoch="")
    [first] = queue.fetch(1, timeout=0)
    assert queue.finish([back(first)])[0] == [True]
    rest(0.002)
    [second] = queue.fetch(1, timeout=0)
    assert (second.job.id, second.charged) == (first.job.id, first.charged)
    assert first.sequence != second.sequence
    assert queue.finish([back(first)])[0] == [
        False
    ]  # somebody says it again, because its answer was not heard
    assert queue.finish([ended(first)])[0] == [False]
    assert queue.renew({first: None, second: None}, lease=LEASE) == [Renewed.LOST, Renewed.KEPT]
    assert other.fetch(1, timeout=0) == []
    assert [each.sequence for each in queue.held()] == [second.sequence]
    assert queue.finish([ended(second)])[0] == [True]
    assert queue.held() == []


def test_leases_carry_the_sequence_numbers_of_the_call(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job() for _ in range(12)], epoch="")
    first = queue.fetch(3, timeout=0, first=41)
    assert [each.sequence for each in first] == [41, 42, 43]
    _, second = queue.finish([ended(first[0])], fetch=2, first=100)
    assert [each.sequence for each in second] == [100, 101]
    third = queue.fetch(2, timeout=0)
    assert [each.sequence for each in third] == [102, 103], "by default they count on"
    _, fourth = queue.finish([back(first[1])], fetch=1)
    assert [each.sequence for each in fourth] == [104]
    held = [*first[2:], *second, *third, *fourth]
    assert [(each.job.id, each.sequence) for each in queue.held()] == [
        (each.job.id, each.sequence) for each in held
    ]
    large = 2**53 - 9  # the largest numbers that scripts count exactly
    assert [each.sequence for each in queue.fetch(2, timeout=0, first=large)] == [large, large + 1]
    assert [each.sequence for each in queue.held()][-2:] == [large, large + 1]


def test_the_sequence_number_tells_two_leases_of_a_job_apart(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job()], epoch="")
    [lease] = queue.fetch(1, timeout=0, first=5)
    other = replace(lease, sequence=6)
    if isinstance(lease, bullmq.Taken):  # the whole lease is in its lock
        other = replace(other, raw=lease.raw.removesuffix(b":5") + b":6")
    assert queue.renew({lease: None, other: None}, lease=LEASE) == [Renewed.KEPT, Renewed.LOST]
    assert queue.finish([back(other)])[0] == [False]
    assert queue.finish([ended(other)])[0] == [False]
    assert queue.finish([ended(lease)])[0] == [True]


def test_sequence_numbers_count_on_after_leases_of_the_previous_process(
    make_queue: MakeQueue,
) -> None:
    before = make_queue("w1")
    before.push([job() for _ in range(4)], epoch="")
    taken = before.fetch(3, timeout=0)
    restarted = make_queue("w1")
    held = restarted.held()
    assert [each.sequence for each in held] == [each.sequence for each in taken]
    [new] = restarted.fetch(1, timeout=0)
    assert new.sequence > max(each.sequence for each in held)


@pytest.mark.parametrize("many", [1, 6, 1200])
@pytest.mark.parametrize("priority", [Priority.CRITICAL, Priority.NORMAL])
def test_a_call_does_not_lease_what_it_puts_back(
    make_queue: MakeQueue, many: int, priority: Priority
) -> None:
    queue = make_queue()
    jobs = [job(priority=priority) for _ in range(many)]
    queue.push(jobs, epoch="")
    taken = [*queue.fetch(min(many, 900), timeout=0), *queue.fetch(max(0, many - 900), timeout=0)]
    later = [job(priority=priority) for _ in range(2)]
    queue.push(later, epoch="")
    accepted, more = queue.finish([back(each) for each in taken], fetch=5)
    assert accepted == [True] * many
    leased = later if many <= 500 else []  # none if the results need several calls
    assert ids(more) == [each.id for each in leased]
    left = [*(each for each in later if each not in leased), job(priority=priority)]
    queue.push(left[-1:], epoch="")
    assert ids(fetch_all(queue)) == [*ids(taken), *(x.id for x in left)], "they are the next"
    assert [each.sequence for each in queue.held()] == sorted(
        each.sequence for each in queue.held()
    )


def test_a_put_back_job_is_leased_by_the_next_fetch(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.push([job()], epoch="")
    [first] = queue.fetch(1, timeout=0)
    assert queue.finish([back(first)], fetch=1) == ([True], [])
    begun = time.monotonic()
    [second] = queue.fetch(1, timeout=60)
    assert (second.job.id, second.charged) == (first.job.id, first.charged)
    assert time.monotonic() - begun < WOKEN
    assert queue.renew({first: None, second: None}, lease=LEASE) == [Renewed.LOST, Renewed.KEPT]


def test_leases_never_exceed_the_slots_if_results_need_several_calls(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, slots = make_queue(), 501  # one more than the results of a call
    queue.push([job() for _ in range(2 * slots)], epoch="")
    first = queue.fetch(slots, timeout=0)
    assert len(first) == slots
    leased: list[int] = []
    run = Client.run

    def counted(client: Client, what: Script, *given: Any) -> Any:
        answer = run(client, what, *given)
        if what.name == "finish":
            leased.append(queue.depths().running)
        return answer

    monkeypatch.setattr(Client, "run", counted)
    accepted, second = queue.finish([ended(each) for each in first], fetch=slots)
    assert (accepted, len(second)) == ([True] * slots, slots)
    assert len(leased) == 2, "it took two calls"
    assert max(leased) == slots
    assert len({each.job.id for each in (*first, *second)}) == 2 * slots


def test_what_several_calls_put_back_is_not_leased_by_them(make_queue: MakeQueue) -> None:
    queue, jobs = make_queue(), [job() for _ in range(501)]
    queue.push(jobs, epoch="")
    first = queue.fetch(len(jobs), timeout=0)
    accepted, second = queue.finish([back(each) for each in first], fetch=len(jobs))
    assert (accepted, second) == ([True] * len(jobs), [])
    begun = time.monotonic()
    assert ids(queue.fetch(len(jobs), timeout=60)) == [each.id for each in jobs]
    assert time.monotonic() - begun < WOKEN


# Types at their limit


def test_types_at_their_limit_are_left_in_the_queue(make_queue: MakeQueue, dialect: str) -> None:
    queue = make_queue()
    jobs = [job(type=name) for name in ("big", "mail", "big", "other", "big", "mail", "big")]
    queue.push(jobs, epoch="")
    before = queue.depths()
    taken = queue.fetch(10, timeout=0, handled=Handled(free={"big": 1, "mail": 5}))
    assert ids(taken) == [jobs[place].id for place in (0, 1, 3, 5)]
    assert ids(queue.held()) == ids(taken)
    left = [jobs[place] for place in (2, 4, 6)]
    known = queue.known([each.id for each in left])
    assert known == [Known(State.SCHEDULED, parked="big" if dialect == "standard" else None)] * 3
    assert queue.fetch(10, timeout=0, handled=Handled(free={"big": 0})) == []
    assert queue.depths().waiting == {**before.waiting, Priority.NORMAL: 3}
    assert ids(queue.finish([ended(taken[0])], fetch=10, handled=Handled(free={"big": 1}))[1]) == [
        left[0].id
    ]
    queue.push([job(type="big")], epoch="")
    assert ids(queue.fetch(2, timeout=0)) == [left[1].id, left[2].id], "they keep their order"


def test_types_at_their_limit_are_left_at_every_priority(make_queue: MakeQueue) -> None:
    queue = make_queue()
    jobs = [
        job(priority=priority, type=name)
        for priority in Priority
        for name in ("big", "mail", "big", "mail", "big")
    ]
    queue.push(jobs, epoch="")
    taken = queue.fetch(20, timeout=0, handled=Handled(free={"big": 0}))
    assert ids(taken) == [each.id for each in jobs if each.type == "mail"]
    assert ids(fetch_all(queue)) == [each.id for each in jobs if each.type == "big"]


@pytest.mark.parametrize("fetch", [1, 3, 500])
@pytest.mark.parametrize("ahead", [100, 101, 250])
def test_a_fetch_looks_past_at_most_100_jobs_of_full_types(
    make_queue: MakeQueue, protocol: Protocol, ahead: int, fetch: int
) -> None:
    queue = make_queue()
    jobs = [*(job(type="big") for _ in range(ahead)), *(job() for _ in range(3)), job(type="big")]
    queue.push(jobs, epoch="")
    taken = queue.fetch(fetch, timeout=0, handled=Handled(free={"big": 0}))
    found = jobs[ahead : ahead + min(fetch, 3)] if ahead <= protocol.looks_past else []
    assert ids(taken) == [each.id for each in found]
    assert ids(fetch_all(queue)) == [each.id for each in jobs if each not in found]


def test_what_a_handled_type_has_left_counts_leases_only(make_queue: MakeQueue) -> None:
    """A removed job takes no slot of its type."""
    queue = make_queue()
    jobs = [job(type="big") for _ in range(3)]
    queue.push(jobs, epoch="")
    assert queue.cancel([jobs[0].id]) == [Cancelling.REMOVED]
    assert ids(queue.fetch(3, timeout=0, handled=Handled(free={"big": 1}))) == [jobs[1].id]


def test_a_worker_at_a_limit_does_not_spin_while_it_waits(
    make_queue: MakeQueue, house: House
) -> None:
    queue = make_queue()
    queue.push([job(type="big") for _ in range(2)], epoch="")
    handled = Handled(free={"big": 0})
    assert queue.fetch(5, timeout=0, handled=handled) == []
    house.everywhere("CONFIG", "RESETSTAT")
    assert queue.fetch(5, timeout=0.55, handled=handled) == []
    for _ in range(3):  # as a worker that waits without a slot reserved
        queue.fetch(0, timeout=0.2)
        assert queue.fetch(5, timeout=0, handled=handled) == []
    assert 4 <= _calls_of(house, "evalsha") <= 14
    queue.push([mail := job()], epoch="")
    begun = time.monotonic()
    assert ids(queue.fetch(5, timeout=60, handled=handled)) == [mail.id]
    assert time.monotonic() - begun < WOKEN


def test_a_job_that_one_worker_passes_over_wakes_another(make_queue: MakeQueue) -> None:
    full, able, feeder = make_queue("full"), make_queue("able"), make_queue("feeder")
    handled = Handled(free={"big": 0})
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            stop = threading.Event()

            def wait_full(stop: threading.Event = stop) -> None:
                while not stop.is_set():
                    assert full.fetch(1, timeout=0.3, handled=handled) == []

            passing = pool.submit(wait_full)
            rest(0.05)  # the worker at its limit waits first, and so it is woken first
            waiting = pool.submit(able.fetch, 1, timeout=60)
            rest(0.05)
            feeder.push([big := job(type="big")], epoch="")
            begun = time.monotonic()
            try:
                [taken] = waiting.result()
                assert taken.job.id == big.id
                assert time.monotonic() - begun < WOKEN
            finally:
                stop.set()
                passing.result()
            able.finish([ended(taken)])


def _calls_of(house: House, command: str) -> int:
    """Count the calls of a command on all servers."""
    found = [each.get(f"cmdstat_{command}") for each in house.everywhere("INFO", "commandstats")]
    return sum(each["calls"] for each in found if each)


@pytest.mark.parametrize("many", [1, 6])
def test_an_end_that_is_refused_takes_nothing_of_what_was_given_again(
    make_queue: MakeQueue, house: House, many: int
) -> None:
    queue, jobs = make_queue(), [job() for _ in range(many)]
    queue.push(jobs, epoch="")
    before = fetch_all(queue)
    house.everywhere("FLUSHALL")
    queue.push([replace(each, feed=2) for each in jobs], epoch="")
    again = fetch_all(queue)
    assert queue.finish([ended(each) for each in before])[0] == [False] * many
    assert sorted(each.sequence for each in queue.held()) == sorted(each.sequence for each in again)
    queue.renew(dict.fromkeys(again), lease=timedelta(milliseconds=1))
    rest(0.05)
    assert recovered(make_queue("w2"), back, many) == many, "who dies with them is missed"
    assert sorted(ids(fetch_all(make_queue("w3")))) == sorted(each.id for each in jobs)


def test_an_end_that_is_refused_beside_the_one_that_counts(
    make_queue: MakeQueue, house: House
) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    [first] = queue.fetch(1, timeout=0)
    house.everywhere("FLUSHALL")
    queue.push([replace(one, feed=2)], epoch="")
    [second] = queue.fetch(1, timeout=0)
    assert queue.finish([ended(first), ended(second)])[0] == [False, True]
    assert queue.held() == []
    assert queue.depths().running == 0


# What there is


def test_depths(make_queue: MakeQueue, protocol: Protocol) -> None:
    queue = make_queue()
    queue.push([job(priority=priority) for priority in Priority for _ in range(3)], epoch="")
    one, two, three, four, five = queue.fetch(5, timeout=0)
    queue.finish(
        [
            ended(one),
            ended(two, State.DEAD_LETTER),
            retried(three, timedelta(hours=1)),
            retried(four),
            back(five),
        ]
    )
    found, at_once = queue.depths(), protocol.retries_at_once
    assert found[1:] == (2 - at_once, 0, 2, 1, 0)
    assert list(found.waiting.values()) == [0, 2 + at_once, 3, 3, 3]
    queue.fetch(1, timeout=0)
    found = queue.depths()
    assert found[1:] == (1, 1, 2, 1, 0)
    assert sum(found.waiting.values()) == 11


def test_what_waits_and_what_is_first(make_queue: MakeQueue) -> None:
    queue = make_queue()
    assert queue.waits() == (0, (b"",) * 5)
    queue.push([job(priority=priority) for priority in Priority for _ in range(2)], epoch="")
    waiting, heads = queue.waits()
    assert waiting == 10
    assert len({*heads, b""}) == 6
    queue.fetch(3, timeout=0)
    waiting, later = queue.waits()
    assert waiting == 7
    assert later[0] == b""
    assert later[1] not in (b"", heads[1])
    assert later[2:] == heads[2:]


def test_dead_letters_and_completed_are_bounded(
    make_queue: MakeQueue, house: House, protocol: Protocol
) -> None:
    queue = make_queue(kept=10)
    before = sum(house.everywhere("DBSIZE"))
    for state in (State.DEAD_LETTER, State.COMPLETED):
        queue.push([job(installation="") for _ in range(50)], epoch="")
        while taken := queue.fetch(15, timeout=0):
            queue.finish([ended(each, state, error="so") for each in taken])
    queue.fetch(1, timeout=0)
    assert queue.depths() == (dict.fromkeys(Priority, 0), 0, 0, 0, 10, 0)
    assert sum(house.everywhere("DBSIZE")) - before < 12 + 20 * protocol.keys_of_a_job


def test_nothing_stays_behind(make_queue: MakeQueue, house: House, protocol: Protocol) -> None:
    queue, settler = make_queue("w1", lease=SOON), make_queue("s1")
    queue.push([job() for _ in range(30)], epoch="")
    for number, delivery in enumerate(fetch_all(queue)):
        queue.renew({delivery: Note(0.5)}, lease=SOON)
        queue.cancel([delivery.job.id])
        queue.finish([[ended(delivery), retried(delivery), back(delivery)][number % 3]])
    queue.finish([ended(delivery, State.CANCELLED) for delivery in fetch_all(queue)])
    assert len(settle(settler)) == 40
    rest(0.3)
    settler.recover(retried)
    settler.recover(retried)
    left = every_key(house)
    assert {key.rsplit(b":", 1)[-1] for key in left} <= {
        b"completed",
        b"3f1e",
        b"marker",
    } | protocol.stays


# Misfortune


def test_after_a_flush_everything_goes_on(make_queue: MakeQueue, house: House) -> None:
    queue, settler = make_queue(), make_queue("s1")
    queue.begin("1")
    queue.push([job(), job()], epoch="1")
    taken = queue.fetch(1, timeout=0)
    settler.outcomes(1, timeout=0)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(settler.outcomes, 5, timeout=1)
        fetching = pool.submit(make_queue("w2", name="empty").fetch, 5, timeout=1)
        rest(0.2)
        house.everywhere("FLUSHALL")
        assert waiting.result() == []
        assert fetching.result() == []
    assert queue.finish([ended(each) for each in taken])[0] == [False]
    with pytest.raises(EpochLost):
        queue.push([job()], epoch="1")
    queue.begin("2")
    again = replace(taken[0].job, feed=2)
    assert queue.push([again], epoch="2") == [Pushed.NEW]
    [delivery] = queue.fetch(5, timeout=1)
    assert queue.finish([ended(delivery)])[0] == [True]
    assert [end.job_id for end in settle(settler)] == [again.id]


def test_forgotten_scripts_are_said_again(make_queue: MakeQueue, house: House) -> None:
    queue = make_queue()
    for call in _calls(queue):
        house.everywhere("SCRIPT", "FLUSH")
        call()


def test_cut_connections_cost_one_error_at_most(make_queue: MakeQueue, house: House) -> None:
    queue = make_queue()
    queue.depths()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.fetch, 1, timeout=60)
        wait_for(
            lambda: any(each["blocked_clients"] for each in house.everywhere("INFO", "clients")),
            "it waits in Redis",
        )
        house.kill_clients()
        with pytest.raises(QueueUnavailable):
            waiting.result()
    for call in _calls(queue):
        house.kill_clients()
        for left in (1, 0):
            try:
                call()
                break
            except QueueUnavailable:
                assert left


def _calls(queue: Queue) -> list[Callable[[], Any]]:
    held: list[Delivery] = []
    read: list[Outcomes] = []
    return [
        lambda: queue.push([job()], epoch=""),
        lambda: held.extend(queue.fetch(1, timeout=0.1)),
        lambda: queue.renew(dict.fromkeys(held), lease=LEASE),
        lambda: queue.held(),
        lambda: queue.finish([ended(each) for each in held], fetch=1),
        lambda: queue.recover(retried),
        lambda: read.extend(queue.outcomes(1, timeout=0.1)),
        lambda: queue.acknowledge(read),
        lambda: queue.known(["x"]),
        lambda: queue.cancel(["x"]),
        lambda: queue.depths(),
        lambda: queue.begin("1"),
        lambda: queue.epoch(),
    ]
