"""Progress of running jobs: published to clients that listen, and readable with `get()`."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler import JobChange, JobContext, Scheduler, State, handler
from scheduler.config import DIALECTS
from scheduler.dialects.client import Client
from tests.queueing import children
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

Changes = Callable[[Any], list[JobChange]]


@pytest.fixture(params=list(DIALECTS))
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def changes(ring: Scheduler) -> Iterator[Changes]:
    """What `events()` yields of the tenant acme, by job, as it was received."""
    received: list[JobChange] = []
    ended = threading.Event()

    def listen() -> None:
        for change in ring.events("acme", until=ended.is_set):
            received.append(change)  # noqa: PERF402 - each as it comes

    thread = threading.Thread(target=listen)
    thread.start()
    yield lambda job_id: [each for each in list(received) if each.id == str(job_id)]
    ended.set()
    thread.join(60)


def test_first_and_last_progress_are_published_before_the_end(
    ring: Scheduler, make_worker: MakeWorker, changes: Changes
) -> None:
    @handler("thread", queue="mail")
    def in_thread(ctx: JobContext, payload: int) -> None:
        children.reports(ctx, payload)

    @handler("loop", queue="mail")
    async def on_loop(ctx: JobContext, payload: int) -> None:
        children.reports(ctx, payload)

    handler("process", queue="mail", executor="process")(children.reports)
    make_worker()

    def is_noticed() -> bool:
        made = ring.submit("acme", "thread", 1, queue="mail")
        ring.wait("acme", made.id, timeout=60)
        return any(change.progress for change in changes(made.id))

    wait_for(is_noticed, "the worker knows of the listener", every=0.3)
    for kind in ("thread", "loop", "process"):
        made = ring.submit("acme", kind, 50, queue="mail")
        wait_for(lambda: State.COMPLETED in states(changes(made.id)), "its end")  # noqa: B023
        of_worker = [change for change in changes(made.id) if change.state is not State.SCHEDULED]
        start, *progress, end = of_worker
        assert (start.state, start.progress, end.state) == (State.RUNNING, None, State.COMPLETED)
        assert {(each.tenant, each.state) for each in progress} == {("acme", State.RUNNING)}
        values = [each.progress for each in progress]
        assert (values[0], values[-1]) == (1.0, 50.0)
        assert values == sorted(values, key=float)  # type: ignore[arg-type]
        assert [each.message for each in progress] == [f"row {value:g}" for value in values]
        assert all(start.at <= each.at for each in progress)


def states(found: list[JobChange]) -> list[State]:
    return [change.state for change in found]


def test_without_listeners_nothing_is_published(
    ring: Scheduler, redis: Client, make_worker: MakeWorker
) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: int) -> None:
        children.reports(ctx, payload)

    make_worker()
    redis.call("CONFIG", "RESETSTAT")
    made = ring.submit("acme", "mail", 100, queue="mail")
    assert ring.wait("acme", made.id, timeout=60).state is State.COMPLETED
    assert "cmdstat_publish" not in redis.call("INFO", "commandstats")
