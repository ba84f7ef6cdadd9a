"""The thread that waited for a job runs it, and somebody else goes on taking jobs meanwhile."""

import threading
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
