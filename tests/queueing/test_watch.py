"""The thread that waited for a job runs it, and somebody else goes on taking jobs meanwhile."""

import asyncio
import threading
import time
from typing import Any

import pytest

import scheduler
from scheduler import handler
from scheduler.dialects.client import Client
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.errors import QueueUnavailable
from tests.dialects.values import job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

fetch_next = ReliableQueue.fetch_next


class Waits:
    """Which threads wait for jobs, and what they are given instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        self.took: list[threading.Thread] = []
        self.error: Exception | None = None

        def noted(queue: ReliableQueue, n: int, *, timeout: float) -> Any:
            self.threads.append(threading.current_thread())
            taken = fetch_next(queue, n, timeout=timeout)
            if self.error is not None:
                raise self.error
            if taken:
                self.took.append(threading.current_thread())
            return taken

        monkeypatch.setattr(ReliableQueue, "fetch_next", noted)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)


@pytest.fixture
def queue(redis: Client) -> ReliableQueue:
    return ReliableQueue(redis, "mail", installation="3f1e")


def test_the_thread_that_waited_for_a_job_runs_it(queue: ReliableQueue, make_worker: MakeWorker, waits: Waits) -> None:
    ran: list[threading.Thread] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(threading.current_thread())

    [carrier] = make_worker(concurrency=3)._carriers
    for number in range(1, 6):
        wait_for(lambda: carrier._watch.waits, "somebody waits")
        queue.push([job(type="mail")], epoch="")
        wait_for(lambda: queue.depths().unsettled == number, "it has ended")  # noqa: B023
    assert len(ran) == 5
    assert waits.took == ran


@pytest.mark.parametrize("places", [1, 2])
def test_others_are_taken_while_it_runs_as_long_as_there_is_a_place(
    queue: ReliableQueue, make_worker: MakeWorker, waits: Waits, places: int
) -> None:
    began: list[object] = []
    go = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        began.append(ctx.id)
        assert go.wait(20)

    make_worker(concurrency=places)
    wait_for(lambda: waits.threads, "somebody waits")
    try:
        for number in range(places):
            queue.push([job(type="mail")], epoch="")
            wait_for(lambda: len(began) > number, "it has begun")  # noqa: B023
        queue.push([job(type="mail")], epoch="")
        wait_for(lambda: queue.depths().running >= places, "they run")
        assert len(began) == places
    finally:
        go.set()
    wait_for(lambda: queue.depths().unsettled == places + 1, "all have ended")


def test_a_wait_that_fails_is_told_and_tried_again(
    queue: ReliableQueue, make_worker: MakeWorker, waits: Waits, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(ctx.id)

    waits.error = QueueUnavailable("Redis: the line is cut")
    make_worker(concurrency=2)
    wait_for(lambda: waits.threads, "somebody waits")
    sent = job(type="mail")
    queue.push([sent], epoch="")
    wait_for(lambda: "fetch-mail: Redis: the line is cut; trying again" in caplog.text, "it is told")
    waits.error = None
    wait_for(lambda: queue.depths().unsettled == 1, "what the failed call took was found, and has ended")
    assert ran == [sent.id]


def hired(before: set[threading.Thread]) -> int:
    """How many threads of pools there are more than before."""
    return sum(thread.name.startswith("scheduler-job-") for thread in set(threading.enumerate()) - before)


def test_coroutines_take_no_threads(queue: ReliableQueue, make_worker: MakeWorker, waits: Waits) -> None:
    inside: list[str] = []
    go = threading.Event()

    @handler("mail", queue="mail")
    async def mail(ctx: scheduler.JobContext, payload: object) -> None:
        inside.append(ctx.id)
        while not go.is_set():  # noqa: ASYNC110 - who sets it is on another thread
            await asyncio.sleep(0.01)

    before = set(threading.enumerate())
    [carrier] = make_worker(concurrency=40)._carriers
    queue.push([job(type="mail") for _ in range(30)], epoch="")
    try:
        wait_for(lambda: len(inside) == 30, "all are inside")
        wait_for(lambda: carrier._watch.waits, "somebody waits for more")
        assert hired(before) == 1
    finally:
        go.set()
    wait_for(lambda: queue.depths().unsettled == 30, "all have ended")


def test_where_no_more_threads_can_be_had_jobs_wait_for_those_that_there_are(
    queue: ReliableQueue, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(ctx.id)

    start, before = threading.Thread.start, set(threading.enumerate())

    def starved(thread: threading.Thread) -> None:
        if thread.name.startswith("scheduler-job-") and hired(before):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starved)
    worker = make_worker(concurrency=8)
    queue.push([job(type="mail") for _ in range(50)], epoch="")
    wait_for(lambda: queue.depths().unsettled == 50, "all have ended")
    assert (len(set(ran)), hired(before)) == (50, 1)
    assert "1 threads run handlers, and there cannot be more: can't start new thread" in caplog.text
    began = time.monotonic()
    worker.stop(grace=1.0)
    assert time.monotonic() - began < 5


def test_ends_are_kept_whatever_is_raised_when_they_are_sent(
    queue: ReliableQueue, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(ctx.id)

    finish = ReliableQueue.finish

    def stumbles(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(ReliableQueue, "finish", finish)
        raise AttributeError("'NoneType' object has no attribute 'sendall'")

    monkeypatch.setattr(ReliableQueue, "finish", stumbles)
    make_worker(concurrency=2)
    sent = job(type="mail")
    queue.push([sent], epoch="")
    wait_for(lambda: queue.depths().unsettled == 1, "its end was sent again")
    assert ran == [sent.id]
