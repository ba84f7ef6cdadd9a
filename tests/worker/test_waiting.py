"""A worker whose queue waits for jobs in Redis: what else it does, and which clients are woken."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import BreakerRule, JobContext, TemporaryError, handler
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client
from scheduler.dialects.conveyor import queue as conveyor
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.interface import Handled
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import QueueUnavailable
from scheduler.model.breaker import BreakerState
from tests.dialects.values import job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import WOKEN, wait_for
from tests.worker.driver import Driver


def waiting(redis: Client) -> int:
    """Count the clients that wait for jobs."""
    clients: bytes = redis.call("CLIENT", "LIST")
    return clients.count(b" flags=b ")


@contextmanager
def in_background(redis: Client, target: Callable[[], Any]) -> Iterator[threading.Thread]:
    """Run a call that waits for jobs; yield when it waits."""
    before = waiting(redis)
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    wait_for(lambda: waiting(redis) > before, "it waits for jobs")
    yield thread


def test_a_failed_call_recovers_while_its_queue_waits_for_jobs(
    redis: Client, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = StandardQueue(redis, "mail", installation="3f1e")
    StandardQueue(redis, "other", installation="3f1e")
    returns = threading.Event()

    @handler("send", queue="mail")
    def send(_: JobContext, payload: Any) -> None:
        returns.wait(60)

    @handler("send", queue="other")
    def other(_: JobContext, payload: Any) -> None: ...

    worker = make_worker(queues=["mail", "other"], concurrency=4, block="60s")
    feed.push([job()], epoch="")
    wait_for(lambda: feed.depths().running == 1 and waiting(redis) == 2, "it waits for more")
    queue = next(each.queue for each in worker._consumers if each.queue.name == "mail")
    finish = queue.finish

    def fail(*_: object, **__: object) -> None:
        monkeypatch.setattr(queue, "finish", finish)
        raise QueueUnavailable("connection refused")

    monkeypatch.setattr(queue, "finish", fail)
    began = time.monotonic()
    returns.set()
    wait_for(lambda: feed.depths().unsettled == 1, "the result is sent again")
    assert time.monotonic() - began < WOKEN


def test_a_breaker_closes_half_while_its_queue_waits_for_jobs(
    redis: Client, make_worker: MakeWorker
) -> None:
    feed = StandardQueue(redis, "mail", installation="3f1e")
    fails = threading.Event()

    @handler("send", queue="mail")
    def send(_: JobContext, payload: Any) -> None:
        fails.wait(60)
        raise TemporaryError("down")

    @handler("send", queue="other")
    def other(_: JobContext, payload: Any) -> None: ...

    rule = BreakerRule(min_samples=1, cooldown_period="1s")
    worker = make_worker(queues=["mail", "other"], concurrency=4, block="60s", breaker=rule)
    feed.push([job(policy={"max_attempts": 1})], epoch="")
    wait_for(lambda: feed.depths().running == 1 and waiting(redis) == 2, "it waits for more")
    breaker = next(each.guard.breaker for each in worker._consumers if each.queue.name == "mail")
    began = time.monotonic()
    fails.set()
    wait_for(lambda: breaker.state is BreakerState.HALF_OPEN, "it would take a job to try")
    assert time.monotonic() - began < WOKEN


def test_a_worker_that_handles_parked_jobs_receives_their_signal(
    redis: Client, redis_server: EmbeddedRedis
) -> None:
    driver = Driver(redis)
    driver.push(2, type="other")
    driver.run_all()  # they are parked
    for key in redis.call("KEYS", "jobqueue:{mail}:*"):
        if redis.call("TYPE", key) == b"list":
            redis.call("DEL", key)  # signals that no worker has received
    driver.block(60.0)
    catch_all = StandardQueue(Client(redis_server.url), "mail", worker="catch-all")
    with (
        in_background(redis, driver.consumer._wait_for_jobs) as ours,
        in_background(redis, lambda: catch_all.fetch(0, timeout=60)) as theirs,
    ):
        other = StandardQueue(redis, "mail", worker="other")
        assert len(other.fetch(1, timeout=0, handled=Handled(["other"]))) == 1
        theirs.join(WOKEN)
        assert (theirs.is_alive(), ours.is_alive()) == (False, True)
        driver.push(1)  # ends the wait
        ours.join(60)


def test_a_due_retry_is_leased_while_its_queue_waits(
    redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of Conveyor are not notified of retries that others schedule."""
    monkeypatch.setattr(conveyor, "LONGEST_WAIT", 60.0)
    driver = Driver(redis, kind=ConveyorQueue)
    policy = {"max_attempts": 2, "initial_delay_us": 200_000, "jitter": False}
    driver.push(1, policy=policy, expires_at=datetime.now(UTC) + timedelta(days=1))
    driver.call()
    attempt = driver.task()
    driver.block(60.0)
    driver.consumer._may_have_jobs = False
    with in_background(redis, driver.consumer._wait_for_jobs) as thread:
        result = driver.consumer.finish(attempt, None, TemporaryError("once more"))
        with driver.executor.lock:
            driver.consumer.add_result(attempt, result)
        driver.call()
        assert driver.feed.depths().retrying == 1

        def runs_again() -> bool:
            driver.consumer._supervise()
            driver.run_all()
            return bool(driver.runs)

        wait_for(runs_again, "it runs again")
        assert thread.is_alive(), "no signal came"
        driver.push(1)  # ends the wait
        thread.join(60)


def test_a_worker_that_takes_some_jobs_wakes_another(
    redis: Client, redis_server: EmbeddedRedis
) -> None:
    driver = Driver(redis, concurrency=2, kind=BullMQQueue)
    driver.push(1)
    driver.call()
    driver.run()
    driver.consumer._may_have_jobs = False
    driver.block(60.0)
    redis.call("DEL", "bull:mail:marker")  # the signal that no worker has received
    other = BullMQQueue(Client(redis_server.url), "mail", worker="other")
    with in_background(redis, driver.consumer._wait_for_jobs) as first:
        taken: list[Any] = []
        with in_background(redis, lambda: taken.extend(other.fetch(1, timeout=60))) as second:
            driver.push(3)  # Redis wakes the client that has waited longest
            first.join(60)
            call = driver.call()
            assert (len(call.results), call.slots) == (1, 2)
            second.join(WOKEN)
            assert len(taken) == 1
