"""A worker alone on its queue: what it takes, and when."""

import logging
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest

import scheduler
from scheduler import PermanentError, QueueError, handler
from scheduler.dialects.channel import Channel
from scheduler.dialects.client import Client
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.reliable.reaper import ReaperRule
from scheduler.embedded.redis import EmbeddedRedis
from tests.dialects.values import NOW, job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for


def test_a_job_that_comes_while_an_end_is_sent_is_taken_at_once(
    redis: Client, redis_server: EmbeddedRedis, make_worker: MakeWorker
) -> None:
    ran = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.set()

    make_worker()
    queue = ReliableQueue(Client(redis_server.url), "mail")
    for _ in range(500):  # each comes while the end of the one before is on its way
        ran.clear()
        pushed = time.monotonic()
        queue.push([job(installation="", type="mail")], epoch="")
        assert ran.wait(10)
        assert time.monotonic() - pushed < 2.0


def test_leases_are_kept_although_nobody_can_be_told(
    redis: Client, redis_server: EmbeddedRedis, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        attempts.append(ctx.attempt)
        rest(4.0)

    def refused(_: Channel) -> bool:
        raise QueueError("no permission for that key")

    monkeypatch.setattr(Channel, "watched", refused)
    for _ in range(2):  # what one loses, the other takes
        make_worker(lease="1s", reaper=ReaperRule(interval=timedelta(seconds=0.3)))
    queue = ReliableQueue(Client(redis_server.url), "mail", installation="3f1e")
    queue.push([job(type="mail", expires_at=NOW + timedelta(days=36_500))], epoch="")
    wait_for(lambda: queue.depths().unsettled == 1, "its end", timeout=15)
    assert attempts == [1]


def test_that_an_attempt_failed_is_in_the_log_once_and_a_warning_when_it_was_the_last(
    redis: Client, redis_server: EmbeddedRedis, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "scheduler")

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("the server is away\nsecond line")
        raise PermanentError("no such address")

    queue = ReliableQueue(redis, "mail", installation="3f1e")
    policy = {"max_attempts": 5, "initial_delay_us": 1000, "jitter": False}
    sent = job(type="mail", policy=policy, expires_at=NOW + timedelta(days=36_500))
    queue.push([sent], epoch="")
    make_worker()
    wait_for(lambda: queue.depths().unsettled == 1, "its end")
    said = [(each.levelno, each.getMessage()) for each in caplog.records if sent.id in each.getMessage()]
    assert said == [
        (logging.INFO, f"queue mail: attempt 1 of mail {sent.id}: retrying: ConnectionError"),
        (logging.WARNING, f"queue mail: attempt 2 of mail {sent.id}: failed: PermanentError"),
    ]


class Slow(set[Any]):
    """A set that loses things slowly: others look at it meanwhile."""

    def difference_update(self, *others: Iterable[Any]) -> None:
        rest(0.05)
        super().difference_update(*others)


def test_whoever_looks_for_a_place_while_an_end_is_under_way_looks_again(
    redis: Client, make_worker: MakeWorker
) -> None:
    queue = ReliableQueue(redis, "mail", installation="3f1e")
    ended: SimpleQueue[float] = SimpleQueue()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ended.put(time.monotonic())

    worker = make_worker(concurrency=1)
    worker._carriers[0].flight = Slow()
    took = []
    for _ in range(4):
        begun = time.monotonic()
        queue.push([job(type="mail", payload=b"null")], epoch="")
        took.append(ended.get(timeout=5) - begun)
        rest(0.02)  # now it has been sent, and is still in our hands
    assert min(took[1:]) < 0.5, "it looked again after a second"
