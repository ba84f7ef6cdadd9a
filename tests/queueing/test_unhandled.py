"""Jobs whose type no live worker handles: how they are reported, and what still applies to them."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler import JobContext, NewJob, Scheduler, State, Timeouts, handler
from scheduler.dialects.client import Client
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

REASON = 'no live worker handles type "fax"'
Function = Callable[[JobContext, Any], object]


@pytest.fixture
def old() -> Function:
    """A handler of type `mail`, which the workers of the tests have."""

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        """Do nothing."""

    return mail


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def parked(redis: Client, kind: str = "fax") -> int:
    return int(redis.call("HGET", "jobqueue:{mail}:blocked:counts", f"type:{kind}") or 0)


@pytest.mark.parametrize("kind", ["fax", "*"])
def test_unhandled_jobs_are_reported_until_a_worker_handles_them(
    ring: Scheduler, make_worker: MakeWorker, old: Function, kind: str
) -> None:
    make_worker(queues=["mail"], handlers=[old])
    jobs = ring.submit_many([NewJob("acme", "fax", n, queue="mail") for n in range(3)])
    wait_for(
        lambda: [each.reason for each in ring.find("acme", type="fax").jobs] == [REASON] * 3,
        "they are reported",  # a job that is in Redis already can be PENDING in Postgres
    )
    job = ring.get("acme", jobs[0].id)
    assert (job.state, job.reason, job.attempt) == (State.SCHEDULED, REASON, 0)
    assert ring.queue("mail").stats().unhandled == {"fax": 3}
    assert sum(ring.queue("mail").stats().waiting.values()) == 3

    @handler(kind, queue="mail")
    def fax(ctx: JobContext, payload: object) -> str:
        return ctx.type

    make_worker(queues=["mail"], handlers=[old, fax])
    for each in jobs:
        ended = ring.wait("acme", each.id, timeout=60)
        assert (ended.state, ended.reason, ended.result) == (State.COMPLETED, None, "fax")
    assert ring.queue("mail").stats().unhandled == {}


def test_a_type_at_its_concurrency_limit_is_handled(
    ring: Scheduler, make_worker: MakeWorker, redis: Client, release: threading.Event
) -> None:
    @handler("fax", queue="mail", concurrency=1)
    def fax(ctx: JobContext, payload: object) -> None:
        release.wait(60)

    worker = make_worker(queues=["mail"])
    wait_for(lambda: any(each.seen_at for each in ring.workers()), "its report")
    jobs = ring.submit_many([NewJob("acme", "fax", n, queue="mail") for n in range(3)])
    wait_for(lambda: parked(redis) == 2, "two are parked")
    assert ring.queue("mail").stats().unhandled == {}
    assert {ring.get("acme", each.id).reason for each in jobs} == {None}
    release.set()
    assert {ring.wait("acme", each.id, timeout=60).state for each in jobs} == {State.COMPLETED}
    worker.stop(grace=1.0)


def test_unhandled_jobs_obey_cancel_and_lifetime(
    ring: Scheduler, make_worker: MakeWorker, redis: Client, old: Function
) -> None:
    make_worker(queues=["mail"], handlers=[old])
    cancelled = ring.submit("acme", "fax", queue="mail")
    short = Timeouts(lifetime="2s")
    expired = ring.submit("acme", "fax", queue="mail", timeouts=short)
    wait_for(lambda: parked(redis) == 2, "both are parked")
    assert ring.cancel_job("acme", cancelled.id) is State.CANCELLED
    ended = ring.wait("acme", expired.id, timeout=60)
    assert (ended.state, ended.reason) == (State.DEAD_LETTER, "its lifetime has passed")
    wait_for(lambda: parked(redis) == 0, "Redis has neither")
    assert ring.queue("mail").stats().unhandled == {}


def test_unhandled_jobs_obey_a_pause(
    ring: Scheduler, make_worker: MakeWorker, redis: Client, old: Function
) -> None:
    make_worker(queues=["mail"], handlers=[old])
    job = ring.submit("acme", "fax", queue="mail")
    wait_for(lambda: parked(redis) == 1, "it is parked")
    ring.pause_queue("mail")

    @handler("fax", queue="mail")
    def fax(ctx: JobContext, payload: object) -> None:
        assert resumed.is_set()

    resumed = threading.Event()
    worker = make_worker(queues=["mail"], handlers=[old, fax])
    for consumer in worker._consumers:
        for _ in range(3):
            before = consumer.supervisor.passed
            wait_for(lambda: consumer.supervisor.passed > before, "another pass")  # noqa: B023
    assert (parked(redis), ring.get("acme", job.id).reason) == (1, None)
    resumed.set()
    ring.resume_queue("mail")
    assert ring.wait("acme", job.id, timeout=60).state is State.COMPLETED


@pytest.mark.parametrize("dialect", ["reliable", "bullmq", "conveyor"])
def test_queues_with_foreign_workers_report_no_types(
    ring: Scheduler, make_worker: MakeWorker, old: Function
) -> None:
    worker = make_worker(queues=["mail"], handlers=[old], concurrency=1)
    wait_for(lambda: any(each.seen_at for each in ring.workers()), "its report")
    job = ring.submit("acme", "fax", queue="mail")
    wait_for(lambda: ring.queue("mail").stats().retrying == 1, "the worker returns it")
    assert ring.queue("mail").stats().unhandled == {}
    assert ring.get("acme", job.id).reason is None
    worker.stop(grace=1.0)
