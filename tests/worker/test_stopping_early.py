"""Handlers that stop early: what the ledger records after a cancel, a timeout and a stop."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from scheduler import (
    Cancelled,
    JobCancelled,
    JobContext,
    RetryPolicy,
    Scheduler,
    State,
    Timeouts,
    handler,
)
from scheduler.worker.attempt import STOPPING
from tests.dialects.values import NOW, job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for
from tests.worker import children

Handle = Callable[[JobContext, Any], Any]
DIALECTS = ("standard", "reliable", "bullmq", "conveyor")
ONCE = RetryPolicy(max_attempts=1)
IN_PROCESSES = ("asks", "raises", "waits", "reads_the_reason")


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Began:
    """Set by handlers once they run."""

    event = threading.Event()


@pytest.fixture(autouse=True)
def began() -> threading.Event:
    Began.event = threading.Event()
    return Began.event


def asks(ctx: JobContext, payload: object) -> None:
    Began.event.set()
    while not ctx.cancelled:
        rest(0.01)


def waits(ctx: JobContext, payload: object) -> None:
    Began.event.set()
    ctx.cancelled.wait(60)


def is_set(ctx: JobContext, payload: object) -> None:
    Began.event.set()
    while not ctx.cancelled.is_set():
        rest(0.01)


def reads_the_reason(ctx: JobContext, payload: object) -> None:
    Began.event.set()
    while ctx.cancelled.reason is None:
        rest(0.01)


def raises(ctx: JobContext, payload: object) -> None:
    Began.event.set()
    while True:
        ctx.raise_if_cancelled()
        rest(0.01)


async def is_cancelled(ctx: JobContext, payload: object) -> None:
    Began.event.set()
    await asyncio.sleep(60)


async def asks_on_the_loop(ctx: JobContext, payload: object) -> None:
    Began.event.set()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    assert ctx.cancelled


async def raises_on_the_loop(ctx: JobContext, payload: object) -> None:
    Began.event.set()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    ctx.raise_if_cancelled()


STOPS = [
    asks,
    waits,
    is_set,
    reads_the_reason,
    raises,
    is_cancelled,
    asks_on_the_loop,
    raises_on_the_loop,
]
# Every way to stop where it is decided, and every dialect.
CASES = [("standard", each) for each in STOPS]
CASES += [(other, each) for other in DIALECTS[1:] for each in (asks, raises, is_cancelled)]


@pytest.mark.parametrize(("dialect", "handle"), CASES)
def test_a_handler_that_stops_after_a_cancel_is_cancelled(
    ring: Scheduler, make_worker: MakeWorker, began: threading.Event, handle: Handle
) -> None:
    handler("mail", queue="mail")(handle)
    make_worker(lease="1s")
    job = ring.submit("acme", "mail", queue="mail")
    dependent = ring.submit("acme", "mail", queue="mail", after=[job.id])
    assert began.wait(60)
    ring.cancel_job("acme", job.id)
    assert ring.wait("acme", job.id, timeout=60).state is State.CANCELLED
    assert ring.wait("acme", dependent.id, timeout=60).state is State.CANCELLED


def test_a_handler_that_completes_although_it_was_cancelled_succeeds(
    ring: Scheduler, make_worker: MakeWorker, began: threading.Event
) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> dict[str, bool]:
        asks(ctx, payload)
        return {"finished": True}

    make_worker(lease="1s")
    job = ring.submit("acme", "mail", queue="mail")
    assert began.wait(60)
    ring.cancel_job("acme", job.id)
    done = ring.wait("acme", job.id, timeout=60)
    assert (done.state, done.result) == (State.COMPLETED, {"finished": True})


def test_a_handler_that_does_not_notice_a_cancel_succeeds(
    ring: Scheduler, make_worker: MakeWorker, began: threading.Event
) -> None:
    cancelled = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        began.set()
        cancelled.wait(60)

    worker = make_worker(lease="1s")
    job = ring.submit("acme", "mail", queue="mail")
    assert began.wait(60)
    ring.cancel_job("acme", job.id)
    wait_for(lambda: worker._in_flight()[0].cancelled.causes, "the worker knows of the cancel")
    cancelled.set()
    assert ring.wait("acme", job.id, timeout=60).state is State.COMPLETED


def test_a_handler_that_completes_while_its_worker_stops_succeeds(
    ring: Scheduler, make_worker: MakeWorker, began: threading.Event
) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> dict[str, bool]:
        asks(ctx, payload)
        return {"finished": True}

    worker = make_worker()
    job = ring.submit("acme", "mail", queue="mail")
    assert began.wait(60)
    worker.stop(grace=0.0)
    done = ring.wait("acme", job.id, timeout=60)
    assert (done.state, done.result) == (State.COMPLETED, {"finished": True})


@pytest.mark.parametrize(("dialect", "handle"), CASES)
def test_a_handler_that_stops_with_its_worker_is_put_back_uncharged(
    ring: Scheduler, make_worker: MakeWorker, began: threading.Event, handle: Handle
) -> None:
    handler("mail", queue="mail")(handle)
    worker = make_worker()
    job = ring.submit("acme", "mail", queue="mail", retry=ONCE)
    assert began.wait(60)
    dependent = ring.submit("acme", "mail", queue="other", after=[job.id])
    worker.stop(grace=0.0)
    wait_for(lambda: sum(ring.queue("mail").stats().waiting.values()) == 1, "it is put back")
    found = ring.get("acme", job.id)
    assert (found.state, found.attempts) == (State.SCHEDULED, ())
    assert ring.get("acme", dependent.id).state is State.PENDING


@pytest.mark.parametrize(("dialect", "handle"), CASES)
def test_a_handler_that_stops_at_its_timeout_follows_the_timeout_rule(
    ring: Scheduler, make_worker: MakeWorker, handle: Handle
) -> None:
    handler("mail", queue="mail")(handle)
    make_worker()
    job = ring.submit(
        "acme",
        "mail",
        queue="mail",
        timeouts=Timeouts(execution="300ms"),
        retry=ONCE,
    )
    dependent = ring.submit("acme", "mail", queue="other", after=[job.id])
    done = ring.wait("acme", job.id, timeout=60)
    assert (done.state, done.attempts[-1]["category"]) == (State.DEAD_LETTER, "timeout")
    assert ring.wait("acme", dependent.id, timeout=60).state is State.DEAD_LETTER


@pytest.mark.parametrize("causes", ["timeout, cancel", "timeout, stop", "cancel, stop"])
def test_the_first_cause_of_the_documented_order_decides(
    ring: Scheduler,
    make_worker: MakeWorker,
    began: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    causes: str,
) -> None:
    monkeypatch.setattr("scheduler.worker.worker.CANCEL_GRACE_S", 60.0)
    go = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        began.set()
        go.wait(60)
        ctx.raise_if_cancelled()

    worker = make_worker(lease="1s")
    timeouts = Timeouts(execution="2s" if "timeout" in causes else "10m")
    job = ring.submit("acme", "mail", queue="mail", timeouts=timeouts, retry=ONCE)
    assert began.wait(60)
    [attempt] = worker._in_flight()
    if "stop" in causes:
        stopping = threading.Thread(target=worker.stop, kwargs={"grace": 0.0})
        stopping.start()
        wait_for(lambda: STOPPING in attempt.cancelled.causes, "it is stopping")
    if "cancel" in causes:
        ring.cancel_job("acme", job.id)
    wait_for(lambda: len(attempt.cancelled.causes) == 2, "both apply")
    go.set()
    done = ring.wait("acme", job.id, timeout=60)
    first = causes.partition(",")[0]
    expected = {"timeout": State.DEAD_LETTER, "cancel": State.CANCELLED}
    assert done.state is expected[first]
    assert done.attempts[-1]["category"] == {"timeout": "timeout", "cancel": "cancelled"}[first]


def test_a_handler_in_a_process_that_stops_after_a_cancel_is_cancelled(
    ring: Scheduler, make_worker: MakeWorker, dialect: str
) -> None:
    for name in IN_PROCESSES:
        handler(name, queue="mail", executor="process")(getattr(children, name))
    make_worker(lease="1s")
    for name in IN_PROCESSES:
        job = ring.submit("acme", name, queue="mail")
        wait_for(lambda: ring.get("acme", job.id).progress == 1, "it runs")  # noqa: B023
        ring.cancel_job("acme", job.id)
        assert ring.wait("acme", job.id, timeout=60).state is State.CANCELLED


def test_process_handlers_that_stop_with_their_worker_are_put_back(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    for name in IN_PROCESSES:
        handler(name, queue="mail", executor="process")(getattr(children, name))
    worker = make_worker()
    jobs = [ring.submit("acme", each, queue="mail", retry=ONCE).id for each in IN_PROCESSES]
    wait_for(lambda: [ring.get("acme", each).progress for each in jobs] == [1] * 4, "they run")
    worker.stop(grace=0.0)
    wait_for(lambda: sum(ring.queue("mail").stats().waiting.values()) == 4, "they are put back")
    assert {ring.get("acme", each).state for each in jobs} == {State.SCHEDULED}


def test_process_handlers_that_stop_at_their_timeout_follow_its_rule(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    for name in IN_PROCESSES:
        handler(name, queue="mail", executor="process")(getattr(children, name))
    make_worker()
    timeouts = Timeouts(execution="1s")
    jobs = [
        ring.submit("acme", each, queue="mail", retry=ONCE, timeouts=timeouts).id
        for each in IN_PROCESSES
    ]
    for each in jobs:
        done = ring.wait("acme", each, timeout=60)
        assert (done.state, done.attempts[-1]["category"]) == (State.DEAD_LETTER, "timeout")


def test_raise_if_cancelled_does_nothing_without_a_cancel() -> None:
    ctx = JobContext(job(), 1, NOW, Cancelled(), None, "w", 1, print)
    ctx.raise_if_cancelled()
    ctx.cancelled.because("cancelled")
    with pytest.raises(JobCancelled, match="cancelled"):
        ctx.raise_if_cancelled()
