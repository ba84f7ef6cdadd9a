"""Orphans on their last attempt: jobs whose earlier worker died. One runs at a time in a process."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.interface import BegunMark, Delivery, Result
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.model.states import State
from scheduler.recovery import orphaned_result
from scheduler.worker.attempt import Attempt
from scheduler.worker.consumer import QueueConsumer
from scheduler.worker.executor import MAX_ORPHAN_DELAY_S, ORPHAN_INTERVAL_S, Executor
from tests.dialects.values import job
from tests.support.waiting import rest, wait_for
from tests.worker.driver import Driver

TWICE = {"max_attempts": 2, "backoff": "constant", "initial_delay_us": 1000, "jitter": False}
LATER = datetime(9999, 1, 1, tzinfo=UTC)
SOON = timedelta(milliseconds=100)


@pytest.fixture
def driver(redis: Client) -> Driver:
    return Driver(redis)


def push_orphans(driver: Driver, count: int, queue: str = "mail", **policy: object) -> set[str]:
    """Push jobs, and lease them to a worker that dies; return their ids.

    The worker had begun them, unless their policy does not retry a lost worker.
    """
    dead = StandardQueue(driver.redis, queue, worker="dead", lease=SOON)
    feed = StandardQueue(driver.redis, queue, installation="3f1e")
    options = {**TWICE, **policy}
    jobs = [job(queue=queue, policy=options, expires_at=LATER) for _ in range(count)]
    feed.push(jobs, epoch="")
    has_begun = options.get("retry_system", True)
    mark = BegunMark(1, count if has_begun else 0)
    assert len(dead.fetch(count, timeout=0, first=1, begun=mark)) == count
    rest(0.2)
    assert feed.recover(decide) == count
    return {each.id for each in jobs}


def decide(delivery: Delivery) -> Result:
    retry, _ = delivery.job.policies()
    return orphaned_result(delivery, retry)


def make_queue(driver: Driver, name: str, worker: str = "w") -> StandardQueue:
    return StandardQueue(driver.redis, name, worker=worker, lease=driver.queue.lease)


def call_until(driver: Driver, consumer: QueueConsumer, done: Callable[[], object]) -> None:
    """Make calls of one queue until something is done."""

    def is_done() -> bool:
        with driver.executor.lock:
            consumer._may_have_jobs = True
            call = consumer.next_call()
        assert call is not None
        call.run()
        return bool(done())

    wait_for(is_done, "calls of the queue have done it", every=0.01)


def leased(driver: Driver) -> set[str]:
    """The jobs in flight whose handlers can run, of all queues."""
    consumers = driver.executor.consumers
    running = [x for each in consumers for x in each.in_flight if not x.acknowledging]
    return {each.delivery.job.id for each in running}


def fetch(driver: Driver) -> None:
    """Make calls until a job is ready to run."""

    def is_ready() -> bool:
        if not driver.executor.ready:
            driver.wake_up()
            driver.call()
        return bool(driver.executor.ready)

    wait_for(is_ready, "a job is ready", every=0.01)


def test_second_orphan_on_its_last_attempt_is_returned(driver: Driver) -> None:
    orphans = push_orphans(driver, 3)
    fetch(driver)
    [first] = leased(driver)
    driver.call()  # returns the other ones
    assert leased(driver) == {first}
    assert driver.reserved == 1, "those that wait occupy no slot"
    known = driver.feed.known(sorted(orphans - {first}))
    assert {each and (each.state, each.attempt) for each in known} == {(State.RETRYING, 1)}


def test_ordinary_jobs_run_next_to_an_orphan(driver: Driver) -> None:
    push_orphans(driver, 2)
    fetch(driver)
    driver.call()  # returns the second one
    orphan = driver.task()  # it runs
    assert isinstance(orphan, Attempt)
    ordinary = driver.push(5)
    driver.wake_up()
    while driver.step():
        driver.wake_up()
        if set(ordinary) <= set(driver.runs):
            break
    assert set(ordinary) <= set(driver.runs)
    assert leased(driver) == {orphan.delivery.job.id}


def test_orphan_slot_is_free_after_the_acknowledgement(driver: Driver) -> None:
    [first] = push_orphans(driver, 1)
    fetch(driver)
    assert driver.run().delivery.job.id == first
    other = driver.consume(make_queue(driver, "other"))
    [second] = push_orphans(driver, 1, queue="other")
    call_until(driver, other, lambda: other.in_flight)
    assert leased(driver) == set(), "the result of the first one is not acknowledged"
    driver.call()
    call_until(driver, other, lambda: leased(driver) == {second})


def test_orphans_with_attempts_left_run_together(driver: Driver) -> None:
    orphans = push_orphans(driver, 3, max_attempts=3)
    fetch(driver)
    assert leased(driver) == orphans


def test_orphans_that_no_policy_retries_run_alone(driver: Driver) -> None:
    orphans = push_orphans(driver, 3, max_attempts=9, retry_system=False)
    fetch(driver)
    assert len(leased(driver) & orphans) == 1


def test_orphans_of_two_queues_share_one_slot(driver: Driver) -> None:
    other = driver.consume(make_queue(driver, "other"))
    [first], [second] = push_orphans(driver, 1), push_orphans(driver, 1, queue="other")
    call_until(driver, driver.consumer, lambda: driver.consumer.in_flight)
    call_until(driver, other, lambda: other.in_flight)
    assert leased(driver) == {first}
    assert {each.delivery.job.id for each in other.in_flight} == {second}


def test_orphans_that_wait_come_due_one_after_another() -> None:
    executor = Executor(4)
    with executor.lock:
        delays = [executor.orphan_delay().total_seconds() for _ in range(1000)]
    for before, after in pairwise(delays):
        assert after < before + 1.01 * ORPHAN_INTERVAL_S
    assert delays[0] == pytest.approx(ORPHAN_INTERVAL_S)
    assert delays[-1] == pytest.approx(MAX_ORPHAN_DELAY_S)


def test_another_worker_takes_the_orphan_that_waits(driver: Driver) -> None:
    orphans = push_orphans(driver, 2)
    fetch(driver)
    [first] = leased(driver)
    driver.call()
    idle = make_queue(driver, "mail", worker="idle")
    [second] = wait_for(lambda: idle.fetch(5, timeout=1), "it is due")
    assert {first, second.job.id} == orphans
    assert (second.attempt, second.charged) == (2, 2)


def test_a_worker_that_stops_returns_its_orphan(driver: Driver) -> None:
    push_orphans(driver, 1)
    fetch(driver)
    [first] = leased(driver)
    driver.consumer.drain()
    driver.call()
    other = make_queue(driver, "mail", worker="other")
    [again] = other.fetch(5, timeout=0)
    assert (again.job.id, again.attempt, again.orphaned) == (first, 2, True)
    assert driver.runs == []
