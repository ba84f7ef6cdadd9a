"""Workers as others see them: what each says of itself with its heartbeats, in every dialect."""

import threading
from collections.abc import Iterator

import pytest

from scheduler import BreakerRule, NewJob, Scheduler, TemporaryError, handler
from scheduler.model.breaker import BreakerState
from scheduler.model.workers import WorkerInfo
from scheduler.worker.status import MAX_REPORTED_TYPES
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

RULE = BreakerRule(min_samples=2, cooldown_period="1h")


@pytest.fixture(params=["standard", "reliable", "bullmq", "conveyor"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def named(ring: Scheduler, name: str) -> WorkerInfo | None:
    return next((each for each in ring.workers() if each.name == name), None)


def test_a_worker_is_seen_with_its_queues_and_what_it_holds(
    ring: Scheduler, make_worker: MakeWorker, release: threading.Event
) -> None:
    @handler("hold", queue="mail")
    def hold(context: object, payload: object) -> None:
        release.wait(60)

    handler("rest", queue="other")(hold)

    worker = make_worker(queues=["mail", "other"], concurrency=5)
    made = ring.submit_many([NewJob("acme", "hold", None, queue="mail") for _ in range(2)])
    wait_for(
        lambda: (named(ring, worker.name) or WorkerInfo(name="")).holds == 2,
        "it says that it holds them",
    )
    seen = named(ring, worker.name)
    assert seen is not None
    assert (seen.kind, seen.concurrency, sorted(each.name for each in seen.queues)) == (
        "scheduler",
        5,
        ["mail", "other"],
    )
    [at] = [each for each in seen.queues if each.name == "mail"]
    assert {(each.id, each.tenant, each.type) for each in at.jobs} == {
        (str(each.id), "acme", "hold") for each in made
    }
    assert (at.breaker, at.types) == (None, ("hold",))
    assert all((seen.host, seen.pid, seen.started_at, seen.seen_at))
    assert [each.name for each in ring.queue("other").workers()] == [worker.name]
    assert ring.queue("mail").stats().breakers == {}


def test_a_worker_reports_every_type_as_none(ring: Scheduler, make_worker: MakeWorker) -> None:
    handler("*", queue="mail")(print)
    for number in range(MAX_REPORTED_TYPES + 1):
        handler(f"type-{number}", queue="other")(print)
    handler("hold", queue="mail")(print)
    worker = make_worker(queues=["mail", "other"])

    def reported() -> WorkerInfo | None:
        seen = named(ring, worker.name)
        has_reported = seen is not None and [each.holds for each in seen.queues] == [0, 0]
        return seen if has_reported else None

    seen = wait_for(reported, "it reports")
    assert seen is not None
    assert [each.types for each in seen.queues] == [None, None]


def test_the_parts_of_an_idle_worker_show_signs_of_life(make_worker: MakeWorker) -> None:
    handler("hold", queue="mail")(print)
    worker = make_worker(queues=["mail"], block="5m")
    for consumer in worker._consumers:
        for _ in range(2):
            before = consumer.supervisor.passed
            wait_for(lambda: consumer.supervisor.passed > before, "another pass")  # noqa: B023
    assert {part.name for part in worker.look().parts} == {
        "worker-keep",
        "worker-recover",
        "worker-fetch",
    }


def test_an_open_breaker_is_seen_before_the_next_heartbeat(
    ring: Scheduler, make_worker: MakeWorker, dialect: str
) -> None:
    @handler("fail", queue="mail")
    def fail(context: object, payload: object) -> None:
        raise TemporaryError("the dependency is away")

    lease = "30s" if dialect == "conveyor" else "1h"  # a heartbeat in each third of it
    worker = make_worker(queues=["mail"], lease=lease, breaker=RULE)
    wait_for(
        lambda: ring.queue("mail").stats().breakers == {BreakerState.CLOSED: 1}, "it is closed"
    )
    ring.submit_many([NewJob("acme", "fail", None, queue="mail") for _ in range(2)])
    wait_for(
        lambda: ring.queue("mail").stats().breakers == {BreakerState.OPEN: 1},
        "it is seen to be open",
    )
    seen = named(ring, worker.name)
    assert seen is not None
    [at] = seen.queues
    assert at.breaker_until is not None
    assert seen.seen_at is not None
    assert 3500 < (at.breaker_until - seen.seen_at).total_seconds() <= 3600
