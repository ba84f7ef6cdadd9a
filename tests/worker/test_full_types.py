"""Jobs of a type at its handler's concurrency, in lists that foreign workers share."""

import threading
from collections import Counter
from typing import Any

import pytest

from scheduler import JobContext, Priority, handler
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.interface import Queue
from scheduler.dialects.reliable.queue import ReliableQueue
from tests.dialects.values import job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

KINDS: dict[str, Any] = {
    "reliable": ReliableQueue,
    "conveyor": ConveyorQueue,
    "bullmq": BullMQQueue,
}
SLOTS = 2


class Handlers:
    """Handlers of `big`, of which one runs at a time, and of `mail`. They count their jobs."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.mails: list[str] = []
        self.goes_on = threading.Semaphore(0)  # once for each job of the type `big`

        @handler("big", queue="mail", concurrency=1)
        def big(_: JobContext, payload: Any) -> None:
            self.ran["begun"] += 1
            self.goes_on.acquire(timeout=120)
            self.ran["ended"] += 1

        @handler("mail", queue="mail")
        def mail(ctx: JobContext, payload: Any) -> None:
            self.mails.append(ctx.id)


@pytest.fixture(params=KINDS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def feed(redis: Client, dialect: str) -> Queue:
    return KINDS[dialect](redis, "mail", installation="3f1e")  # type: ignore[no-any-return]


def push(feed: Queue, *types: str, priority: Priority = Priority.NORMAL) -> list[str]:
    jobs = [job(type=kind, priority=priority) for kind in types]
    feed.push(jobs, epoch="")
    return [each.id for each in jobs]


@pytest.mark.parametrize(("ahead", "is_found"), [(100, True), (101, False)])
def test_a_fetch_passes_over_100_jobs_of_a_full_type(
    feed: Queue, make_worker: MakeWorker, ahead: int, *, is_found: bool
) -> None:
    handlers = Handlers()
    *_, last = push(feed, "big", *["big"] * ahead, "mail")
    worker = make_worker(concurrency=SLOTS)
    wait_for(lambda: handlers.ran["begun"] == 1, "a job of the type runs")
    if is_found:
        wait_for(lambda: handlers.mails == [last], "the job behind them has run")
    [urgent] = push(feed, "mail", priority=Priority.CRITICAL)
    wait_for(lambda: urgent in handlers.mails, "the free slot runs a job that arrives")
    assert handlers.mails == ([last, urgent] if is_found else [urgent])
    assert handlers.ran == {"begun": 1}
    [consumer] = worker._consumers
    assert len(consumer.in_flight) <= SLOTS
    handlers.goes_on.release()
    wait_for(lambda: handlers.ran["begun"] == 2, "the type has a free slot again")
    wait_for(lambda: last in handlers.mails, "the job behind them has run")
    for _ in range(ahead):
        handlers.goes_on.release()
    wait_for(lambda: feed.depths().unsettled == ahead + 3, "all jobs have ended")
    assert handlers.ran == {"begun": ahead + 1, "ended": ahead + 1}
