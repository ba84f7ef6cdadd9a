"""The threads of a worker: slots, the thread that waits for a job, the event loop."""

import asyncio
import logging
import threading
import time
from contextvars import ContextVar
from typing import Any

import pytest

import scheduler
from scheduler import handler
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Renewed
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.errors import QueueUnavailable
from scheduler.model.states import State
from tests.dialects.values import job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for

fetch_next = StandardQueue.fetch_next


class Waits:
    """Which threads wait for jobs, and what they are given instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        self.took: list[threading.Thread] = []
        self.waiting = 0
        self.error: Exception | None = None

        def noted(queue: StandardQueue, n: int, **options: Any) -> Any:
            self.threads.append(threading.current_thread())
            self.waiting += 1
            try:
                taken = fetch_next(queue, n, **options)
            finally:
                self.waiting -= 1
            if self.error is not None:
                raise self.error
            if taken:
                self.took.append(threading.current_thread())
            return taken

        monkeypatch.setattr(StandardQueue, "fetch_next", noted)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)


@pytest.fixture
def queue(redis: Client) -> StandardQueue:
    return StandardQueue(redis, "mail", installation="3f1e")


def test_the_thread_that_waited_for_a_job_runs_it(
    queue: StandardQueue, make_worker: MakeWorker, waits: Waits
) -> None:
    ran: list[threading.Thread] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(threading.current_thread())

    make_worker(concurrency=3)
    for number in range(1, 6):
        wait_for(lambda: waits.waiting, "a thread waits")
        queue.push([job(type="mail")], epoch="")
        wait_for(lambda: queue.depths().unsettled == number, "it has ended")  # noqa: B023
    assert len(ran) == 5
    assert waits.took == ran


@pytest.mark.parametrize("places", [1, 2])
def test_others_are_taken_while_it_runs_as_long_as_there_is_a_place(
    queue: StandardQueue, make_worker: MakeWorker, waits: Waits, places: int
) -> None:
    began: list[object] = []
    go = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        began.append(ctx.id)
        assert go.wait(60)

    make_worker(concurrency=places)
    wait_for(lambda: waits.threads, "a thread waits")
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


def test_a_wait_that_fails_is_logged_and_retried(
    queue: StandardQueue, make_worker: MakeWorker, waits: Waits, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(ctx.id)

    waits.error = QueueUnavailable("Redis: the line is cut")
    make_worker(concurrency=2)
    wait_for(lambda: waits.threads, "a thread waits")
    sent = job(type="mail")
    queue.push([sent], epoch="")
    wait_for(
        lambda: "fetch-mail: Redis: the line is cut; trying again" in caplog.text, "it is logged"
    )
    waits.error = None
    wait_for(
        lambda: queue.depths().unsettled == 1, "what the failed call took was found, and has ended"
    )
    assert ran == [sent.id]


def started_threads(before: set[threading.Thread]) -> int:
    """Count the threads of executors that were started since."""
    return sum(
        thread.name.startswith("scheduler-job-") for thread in set(threading.enumerate()) - before
    )


def test_coroutines_take_no_threads(
    queue: StandardQueue, make_worker: MakeWorker, waits: Waits
) -> None:
    inside: list[str] = []
    go = threading.Event()

    @handler("mail", queue="mail")
    async def mail(ctx: scheduler.JobContext, payload: object) -> None:
        inside.append(ctx.id)
        while not go.is_set():  # noqa: ASYNC110 - who sets it is on another thread
            await asyncio.sleep(0.01)

    before = set(threading.enumerate())
    make_worker(concurrency=40)
    queue.push([job(type="mail") for _ in range(30)], epoch="")
    try:
        wait_for(lambda: len(inside) == 30, "all are inside")
        wait_for(lambda: waits.waiting, "a thread waits for more")
        assert started_threads(before) <= 3, "one waits in Redis, and results need another"
    finally:
        go.set()
    wait_for(lambda: queue.depths().unsettled == 30, "all have ended")


def test_where_no_more_threads_can_be_had_jobs_wait_for_those_that_there_are(
    queue: StandardQueue,
    make_worker: MakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[str] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(ctx.id)

    start, before = threading.Thread.start, set(threading.enumerate())

    def starved(thread: threading.Thread) -> None:
        if thread.name.startswith("scheduler-job-") and started_threads(before):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starved)
    worker = make_worker(concurrency=8)
    queue.push([job(type="mail") for _ in range(50)], epoch="")
    wait_for(lambda: queue.depths().unsettled == 50, "all have ended")
    assert (len(set(ran)), started_threads(before)) == (50, 1)
    assert "cannot start more than 1 threads for handlers: can't start new thread" in caplog.text
    began = time.monotonic()
    worker.stop(grace=1.0)
    assert time.monotonic() - began < 30


def test_ends_are_kept_whatever_is_raised_when_they_are_sent(
    queue: StandardQueue, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(ctx.id)

    finish = StandardQueue.finish

    def stumbles(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(StandardQueue, "finish", finish)
        raise AttributeError("'NoneType' object has no attribute 'sendall'")

    monkeypatch.setattr(StandardQueue, "finish", stumbles)
    make_worker(concurrency=2)
    sent = job(type="mail")
    queue.push([sent], epoch="")
    wait_for(lambda: queue.depths().unsettled == 1, "its end was sent again")
    assert ran == [sent.id]


class Running:
    """Counts the handlers that run, and the most that ever ran concurrently."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = self.came = 0

    def __enter__(self) -> None:
        with self._lock:
            self.came += 1
            self.inside += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


@pytest.mark.parametrize("kinds", [("sync",), ("async",), ("sync", "async")], ids="+".join)
def test_no_more_handlers_run_concurrently_than_slots(
    redis: Client, make_worker: MakeWorker, kinds: tuple[str, ...]
) -> None:
    running = Running()

    @handler("async", queue="mail")
    async def slowly(ctx: scheduler.JobContext, payload: object) -> None:
        with running:
            await asyncio.sleep(0.005)

    @handler("sync", queue="mail")
    def slow(ctx: scheduler.JobContext, payload: object) -> None:
        with running:
            rest(0.005)

    queue = StandardQueue(redis, "mail", installation="3f1e")
    queue.push([job(type=kinds[number % len(kinds)]) for number in range(1000)], epoch="")
    make_worker(concurrency=5)
    wait_for(lambda: queue.depths().unsettled == 1000, "all have ended")
    assert (running.came, running.most) == (1000, 5)


def test_results_of_async_handlers_are_sent_together(
    queue: StandardQueue, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    finish = StandardQueue.finish

    def counted(self: StandardQueue, results: Any, **options: Any) -> Any:
        sent.append(len(results))
        return finish(self, results, **options)

    monkeypatch.setattr(StandardQueue, "finish", counted)

    @handler("mail", queue="mail")
    async def mail(ctx: scheduler.JobContext, payload: object) -> None:
        time.sleep(0.001)  # noqa: ASYNC251 - lets other threads run

    queue.push([job(type="mail") for _ in range(200)], epoch="")
    make_worker(concurrency=10)
    wait_for(lambda: queue.depths().unsettled == 200, "all have ended")
    assert sent.count(10) >= 18


def test_an_async_handler_has_a_context_of_its_own(redis: Client, make_worker: MakeWorker) -> None:
    mine: ContextVar[str] = ContextVar("mine", default="")
    found: list[str] = []

    @handler("mail", queue="mail")
    async def mail(ctx: scheduler.JobContext, payload: object) -> None:
        found.append(mine.get())
        mine.set(ctx.id)

    queue = StandardQueue(redis, "mail", installation="3f1e")
    queue.push([job(type="mail") for _ in range(50)], epoch="")
    make_worker(concurrency=2)
    wait_for(lambda: queue.depths().unsettled == 50, "all have ended")
    assert found == [""] * 50


def test_a_job_that_a_wait_from_before_a_failure_fetched_runs(
    redis: Client, make_worker: MakeWorker, waits: Waits
) -> None:
    ran = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.set()

    [consumer] = make_worker(lease="1h")._consumers
    wait_for(lambda: waits.waiting, "a thread waits in Redis")
    rest(0.1)
    consumer._uncertain()
    wait_for(lambda: not consumer.uncertain, "the leases are renewed")
    StandardQueue(redis, "mail").push([job(type="mail")], epoch="")
    assert ran.wait(60)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_failure_that_cannot_be_logged_is_still_recorded(
    redis: Client, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    refused: list[str] = []

    @handler("async", queue="mail")
    async def slowly(ctx: scheduler.JobContext, payload: object) -> None:
        raise scheduler.PermanentError("no")

    @handler("sync", queue="mail")
    def slow(ctx: scheduler.JobContext, payload: object) -> None:
        raise scheduler.PermanentError("no")

    def broken(record: logging.LogRecord) -> bool:
        if not refused and "attempt" in record.getMessage():
            refused.append(record.getMessage())
            raise RuntimeError("of the app's own")
        return True

    worker = make_worker(concurrency=2)
    log = logging.getLogger("scheduler")
    log.addFilter(broken)
    try:
        queue = StandardQueue(redis, "mail", installation="3f1e")
        queue.push([job(type=kind) for _ in range(4)], epoch="")
        wait_for(lambda: queue.depths().unsettled == 4, "all have ended")
    finally:
        log.removeFilter(broken)
    wait_for(lambda: not worker._in_flight(), "all are acknowledged")
    assert refused
    assert "could not log how it ended" in caplog.text


class Unreadable:
    def __str__(self) -> str:
        raise OSError("not readable")


def test_an_exception_without_readable_text_fails_the_job(
    redis: Client, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        raise scheduler.PermanentError("no", code=Unreadable())  # type: ignore[arg-type]

    queue = StandardQueue(redis, "mail", installation="3f1e")
    queue.push([job(type="mail")], epoch="")
    make_worker()
    [read] = wait_for(lambda: queue.outcomes(5, timeout=0.1), "its end")
    [end] = read.ends
    assert (end.state, end.error) == (State.FAILED, "OSError: when its result was read")
    assert "failed: OSError" in caplog.text


def test_a_queue_that_cannot_be_renewed_does_not_stop_the_others(
    redis: Client, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> list[Renewed]:
        raise QueueUnavailable("its part of the cluster is unavailable")

    for name in ("a", "b", "c"):
        handler(name, queue=name)(lambda ctx, payload: None)
    worker = make_worker()
    monkeypatch.setattr(worker._consumers[1].queue, "renew", away)
    for consumer in worker._consumers:
        consumer._uncertain()
    wait_for(
        lambda: [each.uncertain for each in worker._consumers] == [False, True, False],
        "the others are renewed",
    )
