"""A queue of a worker, step by step: slots, lost answers, lease generations, failovers."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.interface import Delivery, Handled, Queue
from scheduler.dialects.leasing import mark_of
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import QueueUnavailable
from scheduler.model.states import State
from scheduler.worker.attempt import Attempt
from scheduler.worker.consumer import MAX_BATCH
from tests.dialects.values import job
from tests.support.waiting import WOKEN, wait_for
from tests.worker.driver import LEASE, Driver

KINDS = {
    "standard": StandardQueue,
    "reliable": ReliableQueue,
    "bullmq": BullMQQueue,
    "conveyor": ConveyorQueue,
}
every_dialect = pytest.mark.parametrize("dialect", list(KINDS))


@pytest.fixture
def driver(redis: Client, dialect: str) -> Driver:
    return Driver(redis, kind=KINDS[dialect])


def unanswered(monkeypatch: pytest.MonkeyPatch, queue: Queue, method: str) -> None:
    """Let one call reach Redis and lose its answer."""
    plain = getattr(queue, method)

    def lost(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(queue, method, plain)
        plain(*args, **options)
        raise QueueUnavailable("no answer")

    monkeypatch.setattr(queue, method, lost)


def refused(monkeypatch: pytest.MonkeyPatch, queue: Queue, method: str) -> None:
    """Let one call fail before it reaches Redis."""
    plain = getattr(queue, method)

    def fail(*_: object, **__: object) -> None:
        monkeypatch.setattr(queue, method, plain)
        raise QueueUnavailable("connection refused")

    monkeypatch.setattr(queue, method, fail)


def recover(driver: Driver) -> None:
    """Do what the supervisor does after a failed call."""
    with pytest.raises(QueueUnavailable):
        driver.consumer._supervise()
    driver.consumer._read_back()


@every_dialect
def test_a_fetch_leases_no_more_jobs_than_slots(driver: Driver) -> None:
    driver.push(10)
    driver.call()
    assert driver.feed.depths().running == 4
    assert driver.executor.free == 0
    while driver.feed.depths().unsettled < 10:
        driver.step()
        assert driver.feed.depths().running <= 4
    assert len(set(driver.runs)) == len(driver.runs) == 10
    driver.run_all()
    assert driver.executor.free == 4


@every_dialect
def test_a_result_keeps_its_slot_until_it_is_sent(driver: Driver) -> None:
    driver.push(6)
    driver.call()
    driver.run()
    assert driver.executor.free == 0, "Redis still counts the job as leased"
    driver.run()
    driver.call()
    assert driver.feed.depths().running == 4, "two results went out, and two jobs came in"


def test_results_go_first_once_half_of_the_jobs_have_ended(driver: Driver) -> None:
    driver.push(8)
    driver.call()
    driver.run()
    attempt = driver.task()
    assert isinstance(attempt, Attempt), "one of four: the next job goes first"
    driver.executor.ready.appendleft(attempt)
    driver.run()
    assert len(driver.call().results) == 2


def test_a_call_has_a_limited_number_of_results(redis: Client) -> None:
    driver = Driver(redis, concurrency=MAX_BATCH + 10)
    driver.push(MAX_BATCH + 10)
    driver.call()
    assert driver.feed.depths().running == MAX_BATCH
    driver.run_all()
    assert driver.feed.depths().unsettled == MAX_BATCH + 10
    assert driver.executor.free == MAX_BATCH + 10


@every_dialect
def test_slots_of_an_unanswered_fetch_stay_reserved_until_its_leases_are_read(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = driver.push(2)
    unanswered(monkeypatch, driver.queue, "finish")
    driver.call()
    assert (driver.reserved, driver.runs) == (4, [])
    assert driver.task() is None, "it fetches no more until it has read back its leases"
    recover(driver)
    assert driver.reserved == 2
    driver.run_all()
    assert sorted(driver.runs) == sorted(sent)
    assert (driver.feed.depths().unsettled, driver.reserved) == (2, 0)


@every_dialect
def test_a_fetch_that_never_reached_redis_frees_its_slots(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(1)
    refused(monkeypatch, driver.queue, "finish")
    driver.call()
    assert driver.reserved == 4
    recover(driver)
    assert driver.reserved == 0
    driver.run_all()
    assert len(driver.runs) == 1


@every_dialect
def test_an_unanswered_exchange_is_recorded_once_and_its_fetch_runs(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(6)
    driver.call()
    for _ in range(2):
        driver.run()
    unanswered(monkeypatch, driver.queue, "finish")
    driver.call()
    assert driver.feed.depths().unsettled == 2
    recover(driver)
    driver.consumer.renew(LEASE)
    driver.run_all()
    driver.consumer.renew(LEASE)  # the repeated results were refused, so leases are uncertain
    driver.run_all()
    assert (len(driver.runs), len(set(driver.runs))) == (6, 6)
    assert (driver.feed.depths().unsettled, driver.reserved) == (6, 0)


def test_results_of_a_failed_call_are_sent_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(1)
    driver.call()
    driver.run()
    refused(monkeypatch, driver.queue, "finish")
    driver.call()
    assert driver.feed.depths().unsettled == 0
    recover(driver)
    driver.run_all()
    assert (driver.feed.depths().unsettled, len(driver.runs)) == (1, 1)


@every_dialect
def test_a_job_does_not_start_after_a_failure_until_its_lease_is_confirmed(driver: Driver) -> None:
    driver.push(3)
    driver.call()
    driver.run()
    driver.consumer._uncertain()
    driver.run_all()
    assert (len(driver.runs), driver.consumer.uncertain) == (1, True)
    assert driver.renewals_wanted > 0
    driver.consumer.renew(LEASE)
    assert not driver.consumer.uncertain
    driver.run_all()
    assert (len(driver.runs), driver.reserved) == (3, 0)


@every_dialect
def test_jobs_whose_leases_redis_has_lost_do_not_start(driver: Driver, redis: Client) -> None:
    driver.push(3)
    driver.call()
    redis.call("FLUSHALL")
    driver.consumer._uncertain()
    driver.run_all()
    driver.consumer.renew(LEASE)
    driver.run_all()
    assert (driver.runs, driver.reserved, driver.consumer.in_flight) == ([], 0, set())


@every_dialect
def test_a_renewal_that_was_sent_before_the_failure_confirms_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(2)
    driver.call()
    renew = driver.queue.renew

    def interrupted(*args: Any, **options: Any) -> Any:
        answers = renew(*args, **options)
        driver.consumer._uncertain()  # another thread meets a failure before this answer arrives
        return answers

    monkeypatch.setattr(driver.queue, "renew", interrupted)
    driver.consumer.renew(LEASE)
    driver.run_all()
    assert (driver.runs, driver.consumer.uncertain) == ([], True)
    monkeypatch.undo()
    driver.consumer.renew(LEASE)
    driver.run_all()
    assert len(driver.runs) == 2


def test_a_fetch_that_was_sent_before_the_failure_is_confirmed_by_a_renewal(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(1)
    finish = driver.queue.finish

    def interrupted(*args: Any, **options: Any) -> Any:
        answer = finish(*args, **options)
        driver.consumer._uncertain()
        driver.consumer.renew(LEASE)  # does not know of the job that is on its way
        return answer

    monkeypatch.setattr(driver.queue, "finish", interrupted)
    driver.call()
    monkeypatch.undo()
    driver.run_all()
    assert (driver.runs, driver.consumer.uncertain) == ([], True)
    driver.consumer.renew(LEASE)
    driver.run_all()
    assert len(driver.runs) == 1


def test_a_renewal_that_fails_makes_leases_uncertain(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(monkeypatch, driver.queue, "renew")
    with pytest.raises(QueueUnavailable):
        driver.consumer.renew(LEASE)
    assert (driver.consumer.uncertain, driver.renewals_wanted) == (True, 0)


@every_dialect
def test_a_refused_result_makes_the_other_leases_uncertain(driver: Driver, redis: Client) -> None:
    driver.push(1)
    driver.call()
    driver.run()
    redis.call("FLUSHALL")
    assert not driver.consumer.uncertain
    driver.call()
    assert driver.consumer.uncertain


@every_dialect
def test_reading_leases_back_passes_over_calls_in_progress(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(3)
    finish = driver.queue.finish

    def while_read_back(*args: Any, **options: Any) -> Any:
        answer = finish(*args, **options)
        driver.consumer._read_back()  # Redis lists leases whose answer is on its way
        return answer

    monkeypatch.setattr(driver.queue, "finish", while_read_back)
    driver.call()
    monkeypatch.undo()
    driver.run_all()
    assert (len(driver.runs), len(set(driver.runs)), driver.reserved) == (3, 3, 0)


def test_reading_leases_back_passes_over_jobs_that_end_meanwhile(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(1)
    driver.call()
    held = driver.queue.held

    def late() -> list[Delivery]:
        leases = held()
        driver.run_all()  # the result is acknowledged before this answer arrives
        return leases

    monkeypatch.setattr(driver.queue, "held", late)
    driver.consumer._read_back()
    monkeypatch.undo()
    driver.run_all()
    assert (len(driver.runs), driver.reserved) == (1, 0)


@pytest.mark.parametrize("dialect", sorted(KINDS.keys() - {"bullmq"}))  # it repeats the number
def test_a_job_whose_result_a_failover_forgot_runs_under_another_lease(
    driver: Driver, redis: Client
) -> None:
    driver.push(1)
    driver.call()
    driver.run()
    before = [(key, redis.call("DUMP", key)) for key in redis.call("KEYS", "*")]
    driver.run_all()
    assert driver.feed.depths().unsettled == 1
    redis.call("FLUSHALL")
    for key, value in before:
        redis.call("RESTORE", key, 0, value)
    assert driver.feed.depths().running == 1, "the replica did not have the result yet"
    driver.consumer._read_back()
    driver.run_all()
    driver.wake_up()
    driver.run_all()
    first, second = (each.delivery for each in driver.attempts)
    assert (first.job.id, first.sequence < second.sequence) == (second.job.id, True)
    assert (first.attempt, second.attempt) == (1, 2), "two executions, two attempt ids"
    assert (driver.feed.depths().unsettled, driver.reserved) == (1, 0)


def test_an_older_delivery_that_still_runs_does_not_hide_an_unanswered_fetch(
    driver: Driver, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = driver.push(1)
    driver.call()
    running = driver.task()
    redis.call("FLUSHALL")
    driver.push(1, id=job_id, feed=2)
    driver.wake_up()
    unanswered(monkeypatch, driver.queue, "finish")
    driver.call()
    recover(driver)
    assert driver.task().delivery.job.feed == 2
    assert running.delivery.job.feed == 1


@every_dialect
def test_an_attempt_that_lost_its_lease_before_it_started_is_put_back(
    driver: Driver, redis: Client
) -> None:
    [job_id] = driver.push(1)
    driver.call()
    [attempt] = driver.executor.ready
    attempt.lost = True
    driver.consumer._draining = True  # it shall not be fetched again
    driver.run()
    driver.call()
    assert driver.runs == []
    [known] = driver.feed.known([job_id])
    assert known is not None
    assert known.state is State.SCHEDULED


def test_a_job_whose_result_is_on_its_way_is_not_put_back(driver: Driver) -> None:
    driver.push(1)
    driver.call()
    driver.run()
    driver.consumer.put_back_running()
    driver.run_all()
    assert driver.feed.depths().unsettled == 1


def test_a_checkpoint_of_a_failed_renewal_goes_with_the_result(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(1)
    driver.call()
    attempt = driver.task()
    attempt.report("checkpoint", {"row": 7})
    refused(monkeypatch, driver.queue, "renew")
    with pytest.raises(QueueUnavailable):
        driver.consumer.renew(LEASE)
    result = driver.consumer.finish(attempt, None, ConnectionError())
    assert result.note is not None
    assert result.note.checkpoint == {"row": 7}


@every_dialect
def test_a_call_that_fails_while_leases_are_read_back_is_read_back_too(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(2)
    refused(monkeypatch, driver.queue, "finish")
    driver.call()
    with pytest.raises(QueueUnavailable):
        driver.consumer._supervise()
    held = driver.queue.held

    def fails_meanwhile() -> list[Delivery]:
        leases = held()
        monkeypatch.setattr(driver.queue, "held", held)
        with driver.executor.lock:  # another call, which was in progress when the read began
            driver.consumer._suspended = False
            call = driver.consumer._prepare([], 0, wait=False)
            call.slots, driver.consumer._next_sequence = 2, call.first + 2
        unanswered(monkeypatch, driver.queue, "finish")
        call.run()
        return leases

    monkeypatch.setattr(driver.queue, "held", fails_meanwhile)
    driver.consumer._read_back()
    assert driver.task() is None, "it is still suspended"
    recover(driver)
    driver.run_all()
    assert (len(driver.runs), driver.feed.depths().unsettled) == (2, 2)


def test_results_are_sent_after_a_failure_during_a_stop(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(4)
    driver.call()
    driver.run()
    running = driver.task()
    driver.consumer.drain()
    refused(monkeypatch, driver.queue, "finish")
    driver.call()
    recover(driver)
    with driver.executor.lock:
        driver.consumer.add_result(running, driver.consumer.finish(running, None, None))
    driver.run_all()
    assert driver.feed.depths().unsettled == 2
    assert sum(driver.feed.depths().waiting.values()) == 2, "the others were put back"


@every_dialect
def test_a_lost_acknowledgement_does_not_raise_the_number_of_leases(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(30)
    driver.call()
    for _ in range(2):
        driver.run()
    unanswered(monkeypatch, driver.queue, "finish")
    driver.call()
    recover(driver)
    driver.consumer.renew(LEASE)
    while driver.feed.depths().unsettled < 30:
        if not driver.step():
            driver.consumer.renew(LEASE)  # a repeated result was refused
        assert driver.feed.depths().running <= 4


@pytest.mark.parametrize("policy", [{"unknown": 1}, {"execution_us": "soon"}])
def test_a_job_with_an_invalid_policy_fails_alone(driver: Driver, policy: dict[str, Any]) -> None:
    [bad] = driver.push(1, policy=policy)
    driver.push(1)
    driver.run_all()
    assert bad not in driver.runs
    assert (driver.feed.depths().unsettled, driver.reserved) == (2, 0)
    read = wait_for(lambda: driver.feed.outcomes(9, timeout=0.1), "the results")
    assert {end.job_id: end.state for each in read for end in each.ends}[bad] is State.FAILED


@every_dialect
def test_a_lease_of_a_call_that_redis_ran_late_is_put_back(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.push(1)
    refused(monkeypatch, driver.queue, "finish")
    first = driver.call().first
    recover(driver)
    driver.consumer._draining = True
    driver.queue.fetch(1, timeout=0, first=first)  # the script runs although its call has failed
    driver.consumer._read_back_at = 0.0
    driver.consumer._supervise()
    driver.run_all()
    assert (driver.runs, sum(driver.feed.depths().waiting.values())) == ([], 1)


def test_a_worker_that_stops_passes_its_wake_up_on(
    driver: Driver, redis: Client, redis_server: EmbeddedRedis
) -> None:
    driver.run_all()
    waiting = threading.Thread(target=driver.consumer._wait_for_jobs)
    driver.block(60.0)
    waiting.start()
    wait_for(lambda: b"cmd=blpop" in redis.call("CLIENT", "LIST"), "it waits for jobs")
    driver.consumer.drain()
    with closing(Client(redis_server.url)) as client, ThreadPoolExecutor(1) as pool:
        other = pool.submit(StandardQueue(client, "mail", worker="other").fetch, 1, timeout=60)
        wait_for(
            lambda: redis.call("CLIENT", "LIST").count(b"cmd=blpop") == 2, "another worker waits"
        )
        began = time.monotonic()
        driver.push(1)  # Redis wakes the client that has waited longest
        assert len(other.result()) == 1
    assert time.monotonic() - began < WOKEN
    waiting.join(60)


def test_a_busy_queue_shares_its_slots_with_the_others(redis: Client) -> None:
    driver = Driver(redis, concurrency=2)
    others: list[object] = []
    other = StandardQueue(redis, "other", worker="w", lease=LEASE)
    driver.consume(other, lambda ctx, payload: others.append(ctx.id))
    driver.push(30)
    feed = StandardQueue(redis, "other", installation="3f1e")
    feed.push([job(queue="other") for _ in range(30)], epoch="")
    while len(driver.runs) + len(others) < 20:
        driver.step()
    assert len(others) in range(8, 13)


def returns(driver: Driver) -> list[float]:
    """How often each job was returned because there was no handler."""
    found = driver.redis.call("ZRANGE", "jobqueue:{mail}:unhandled", 0, -1, "WITHSCORES")
    return [float(score) % 8 for score in found[1::2]]


def test_a_job_without_a_handler_is_returned_once_if_the_answer_is_lost(
    redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(redis, kind=ReliableQueue)
    driver.push(2, type="unknown")
    sent = driver.push(1)
    driver.call()
    unanswered(monkeypatch, driver.queue, "finish")
    driver.call()
    assert driver.reserved == 4, "two results without an answer, a job, and a lost slot"
    recover(driver)
    driver.run_all()  # the results are refused now, so the lease of the third job is uncertain
    driver.consumer.renew(LEASE)
    driver.run_all()
    assert returns(driver) == [1, 1]
    assert (driver.runs, driver.reserved) == (sent, 0)
    assert (driver.feed.depths().retrying, driver.feed.depths().unsettled) == (2, 1)


def test_jobs_without_a_handler_of_an_unanswered_fetch_are_returned(
    redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(redis, kind=ReliableQueue)
    driver.push(2, type="unknown")
    unanswered(monkeypatch, driver.queue, "finish")
    driver.call()
    recover(driver)
    driver.run_all()
    assert (returns(driver), driver.reserved) == ([1, 1], 0)
    assert driver.feed.depths().retrying == 2


def test_a_worker_that_stops_returns_jobs_without_a_handler(redis: Client) -> None:
    driver = Driver(redis, kind=ReliableQueue)
    driver.push(1, type="unknown")
    driver.call()
    driver.consumer.drain()
    driver.run_all()
    assert (returns(driver), driver.reserved) == ([1], 0)


def test_a_standard_queue_leases_no_job_without_a_handler(redis: Client) -> None:
    driver = Driver(redis, queue="lists")
    driver.consume(StandardQueue(redis, "mail", worker="w", lease=LEASE))
    feed = StandardQueue(redis, "mail", installation="3f1e")
    unknown, known = job(type="unknown"), job()
    feed.push([unknown, known], epoch="")
    driver.run_all()
    assert driver.runs == [known.id]
    assert redis.call("HGET", "jobqueue:{mail}:state", unknown.id).startswith(b"1:blocked:0:0:0:")
    new = StandardQueue(redis, "mail", worker="new")
    [delivery] = new.fetch(1, timeout=0, handled=Handled(["unknown"]))
    assert (delivery.job.id, delivery.attempt) == (unknown.id, 1), "it had no lease before"


def begun(driver: Driver, sequence: int) -> bool:
    """Return whether Redis knows that a lease has begun."""
    mark = mark_of(driver.redis.call("HGET", "jobqueue:{mail}:begun", "w"))
    assert mark is not None
    return mark.includes(sequence)


def test_a_renewal_marks_the_jobs_that_threads_have_taken(driver: Driver) -> None:
    driver.push(2)
    driver.call()
    first = driver.task()
    assert driver.consumer.has_unmarked
    driver.consumer.renew(LEASE)
    second = driver.executor.ready[0]
    assert begun(driver, first.delivery.sequence)
    assert not begun(driver, second.delivery.sequence)
    assert not driver.consumer.has_unmarked


def test_calls_have_a_mark_until_redis_has_one(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without a mark has begun all its leases; calls can overtake each other."""
    renew, calls = driver.queue.renew, []

    def overtaken(*args: Any, **options: Any) -> Any:
        driver.push(1)
        driver.wake_up()
        calls.append(driver.task())
        return renew(*args, **options)

    monkeypatch.setattr(driver.queue, "renew", overtaken)
    driver.consumer._uncertain()  # as after a failed call
    driver.consumer.renew(LEASE)
    [first] = calls
    assert first.begun is not None
    first.run()


def test_a_job_that_a_thread_has_taken_is_put_back_as_begun(driver: Driver) -> None:
    """Its handler can be called after the decision to put it back."""
    driver.push(1)
    driver.call()
    attempt = driver.task()
    driver.consumer.drain()
    driver.consumer.put_back_running()
    driver.call()
    [again] = driver.feed.fetch(1, timeout=0)
    assert (attempt.delivery.attempt, again.attempt, again.charged) == (1, 2, 1)


def test_jobs_that_are_put_back_unbegun_are_not_marked_while_the_call_is_in_progress(
    driver: Driver,
) -> None:
    driver.push(3)
    driver.call()
    driver.consumer.drain()
    call = driver.task()
    driver.consumer.renew(LEASE)
    assert not any(begun(driver, each.sequence) for each in driver.queue.held())
    call.run()
    assert {each.attempt for each in driver.feed.fetch(3, timeout=0)} == {1}


def test_a_fetch_that_redis_runs_late_has_not_begun(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(monkeypatch, driver.queue, "finish")
    call = driver.call()
    recover(driver)
    driver.consumer.renew(LEASE)
    driver.push(1)
    driver.queue.finish([], fetch=1, first=call.first)
    driver.consumer.renew(LEASE)
    assert not begun(driver, call.first)


def test_a_fetch_that_the_breaker_refuses_leaves_the_mark_to_a_renewal(driver: Driver) -> None:
    driver.push(1)
    driver.call()
    driver.task()
    driver.wake_up()
    call = driver.task()
    assert not driver.consumer.has_unmarked
    driver.consumer.refused_by_breaker(call)
    assert driver.consumer.has_unmarked
