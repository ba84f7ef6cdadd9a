"""Handlers that stop early: what the ledger records after a cancel, a timeout and a stop."""

import asyncio
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
from tests.dialects.values import NOW, job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for
from tests.worker import children

Handle = Callable[[JobContext, Any], Any]


@pytest.fixture(params=["standard", "reliable", "bullmq", "conveyor"])
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


STOPS = [asks, waits, reads_the_reason, raises, is_cancelled]


@pytest.mark.parametrize("handle", STOPS)
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


@pytest.mark.parametrize("handle", STOPS)
def test_a_handler_that_stops_with_its_worker_is_put_back_uncharged(
    ring: Scheduler, make_worker: MakeWorker, began: threading.Event, handle: Handle
) -> None:
    handler("mail", queue="mail")(handle)
    worker = make_worker()
    job = ring.submit("acme", "mail", queue="mail", retry=RetryPolicy(max_attempts=1))
    assert began.wait(60)
    worker.stop(grace=0.0)
    wait_for(lambda: sum(ring.queue("mail").stats().waiting.values()) == 1, "it is put back")
    assert ring.get("acme", job.id).state is State.SCHEDULED


@pytest.mark.parametrize("handle", [asks, raises, is_cancelled])
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
        retry=RetryPolicy(max_attempts=1),
    )
    done = ring.wait("acme", job.id, timeout=60)
    assert (done.state, done.attempts[-1]["category"]) == (State.DEAD_LETTER, "timeout")


def test_a_timeout_wins_over_a_cancel(
    ring: Scheduler, make_worker: MakeWorker, began: threading.Event
) -> None:
    go = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        began.set()
        go.wait(60)
        ctx.raise_if_cancelled()

    worker = make_worker(lease="1s")
    timeouts, retry = Timeouts(execution="2s"), RetryPolicy(max_attempts=1)
    job = ring.submit("acme", "mail", queue="mail", timeouts=timeouts, retry=retry)
    assert began.wait(60)
    ring.cancel_job("acme", job.id)
    wait_for(lambda: len(worker._in_flight()[0].cancelled.causes) == 2, "both apply")
    go.set()
    done = ring.wait("acme", job.id, timeout=60)
    assert done.attempts[-1]["category"] == "timeout"


def test_a_handler_in_a_process_that_stops_after_a_cancel_is_cancelled(
    ring: Scheduler, make_worker: MakeWorker, dialect: str
) -> None:
    for name in ("asks", "raises"):
        handler(name, queue="mail", executor="process")(getattr(children, name))
    make_worker(lease="1s")
    for name in ("asks", "raises"):
        job = ring.submit("acme", name, queue="mail")
        wait_for(lambda: ring.get("acme", job.id).progress == 1, "it runs")  # noqa: B023
        ring.cancel_job("acme", job.id)
        assert ring.wait("acme", job.id, timeout=60).state is State.CANCELLED


def test_raise_if_cancelled_does_nothing_without_a_cancel() -> None:
    ctx = JobContext(job(), 1, NOW, Cancelled(), None, "w", print)
    ctx.raise_if_cancelled()
    ctx.cancelled.because("cancelled")
    with pytest.raises(JobCancelled, match="cancelled"):
        ctx.raise_if_cancelled()
