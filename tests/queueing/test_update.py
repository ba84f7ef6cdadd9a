"""`update_job`: what changes of a job, wherever it waits, and what its handler sees."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from scheduler import JobContext, NewJob, Priority, RetryPolicy, Scheduler, State, handler
from scheduler.config import DIALECTS
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Cancelling
from scheduler.errors import IllegalTransition, InvalidOption, QueueUnavailable
from scheduler.model.fairness import Share
from scheduler.model.policies import Timeouts
from scheduler.queueing.ending import end
from scheduler.queueing.services import RingServices
from scheduler.store.job_queue import Ending, JobKey, QueueTable
from scheduler.store.steps import Statement, run_inside
from scheduler.testing import Scheduler as ManualScheduler
from tests.queueing.conftest import MakeWorker, steps
from tests.support.waiting import wait_for

HOUR = timedelta(hours=1)
LATE = RetryPolicy(backoff="constant", initial_delay="1h", jitter=False)


@pytest.fixture(params=sorted(DIALECTS))
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def seen() -> list[tuple[Any, ...]]:
    """What the handler saw: payload, tags, correlation id, key."""
    found: list[tuple[Any, ...]] = []

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        found.append((payload, dict(ctx.tags), ctx.correlation_id, ctx.idempotency_key))

    return found


@pytest.fixture
def go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def services(ring: Scheduler) -> RingServices:
    found = ring._running().ring
    assert found is not None
    return found


def in_redis(ring: Scheduler, *jobs: Any) -> bool:
    known = services(ring).ring.queue("mail").known([str(each.id) for each in jobs])
    return all(each is not None for each in known)


def test_a_handler_sees_what_changed_while_its_job_waited_in_redis(
    ring: Scheduler, make_worker: MakeWorker, seen: list[Any]
) -> None:
    made = ring.submit(
        "acme", "mail", 7, queue="mail", tags={"a": "1"}, correlation_id="c", idempotency_key="k"
    )
    wait_for(lambda: in_redis(ring, made), "it was fed")
    job = ring.update_job("acme", made.id, tags={"b": "2"}, correlation_id="d", idempotency_key="")
    assert job.state is State.PENDING
    wait_for(lambda: in_redis(ring, made), "it was fed again")
    ring.update_job("acme", made.id, priority=Priority.CRITICAL)
    make_worker()
    done = ring.wait("acme", made.id, timeout=60)
    assert seen == [(7, {"b": "2"}, "d", None)]
    assert (done.state, done.attempt, done.priority) == (State.COMPLETED, 1, Priority.CRITICAL)
    assert (done.tags, done.correlation_id) == ({"b": "2"}, "d")


def test_a_job_in_redis_can_be_postponed_and_brought_forward(
    ring: Scheduler, make_worker: MakeWorker, seen: list[Any]
) -> None:
    made, other = ring.submit_many([NewJob("acme", "mail", n, queue="mail") for n in (1, 2)])
    wait_for(lambda: in_redis(ring, made, other), "they were fed")
    later = datetime.now(UTC) + 30 * HOUR
    job = ring.update_job("acme", made.id, run_at=later)
    assert (job.state, job.run_at) == (State.DELAYED, later)
    assert job.expires_at == later + timedelta(days=7)
    make_worker()
    ring.wait("acme", other.id, timeout=60)
    assert [each[0] for each in seen] == [2]
    ring.update_job("acme", made.id, delay="1ms")
    assert ring.wait("acme", made.id, timeout=60).attempt == 1
    assert [each[0] for each in seen] == [2, 1]


def test_a_retry_is_brought_forward_and_postponed(ring: Scheduler, make_worker: MakeWorker) -> None:
    seen: list[tuple[Any, ...]] = []

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        previous = ctx.previous_attempt_id
        seen.append((ctx.attempt, ctx.attempt_id, previous, ctx.last_checkpoint, dict(ctx.tags)))
        ctx.checkpoint(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")

    make_worker()
    made = ring.submit("acme", "mail", queue="mail", retry=LATE)
    wait_for(lambda: ring.get("acme", made.id).state is State.RETRYING, "it failed")
    before = ring.get("acme", made.id).run_at
    job = ring.update_job("acme", made.id, run_at=datetime.now(UTC) + 2 * HOUR)
    assert job.state is State.RETRYING
    assert job.run_at > before
    ring.update_job("acme", made.id, delay="1ms")
    wait_for(lambda: len(seen) == 2, "it runs again")
    wait_for(lambda: ring.get("acme", made.id).state is State.RETRYING, "it failed again")
    ring.update_job("acme", made.id, delay="1ms", tags={"a": "b"})
    job = ring.wait("acme", made.id, timeout=60)
    first, second, third = seen
    assert (first[0], first[2:]) == (1, (None, None, {}))
    assert (second[0], second[2:]) == (2, (first[1], 1, {}))
    assert (third[0], third[2:]) == (3, (second[1], 2, {"a": "b"}))
    assert [each["attempt_id"] for each in job.attempts] == [str(each[1]) for each in seen]


def test_a_job_that_has_begun_keeps_its_time_and_is_not_cancelled(
    ring: Scheduler, make_worker: MakeWorker, go: threading.Event
) -> None:
    seen: list[JobContext] = []

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        seen.append(ctx)
        go.wait(60)
        ctx.raise_if_cancelled()

    make_worker(lease="1s")
    made = ring.submit("acme", "mail", queue="mail")
    wait_for(lambda: ring.get("acme", made.id).state is State.RUNNING, "it runs")
    for change in ({"delay": "1h"}, {"priority": Priority.HIGH}):
        with pytest.raises(IllegalTransition, match="may have begun"):
            ring.update_job("acme", made.id, **change)
    job = ring.update_job("acme", made.id, tags={"a": "b"})
    assert job.tags == {"a": "b"}
    go.set()
    job = ring.wait("acme", made.id, timeout=60)
    assert (job.state, job.attempt, job.tags) == (State.COMPLETED, 1, {"a": "b"})
    assert [dict(each.tags) for each in seen] == [{}]
    with pytest.raises(IllegalTransition, match="has ended"):
        ring.update_job("acme", made.id, delay="1h")


def test_racing_updates_and_workers_agree_on_every_job(
    ring: Scheduler, make_worker: MakeWorker, seen: list[Any]
) -> None:
    """If an update succeeds, its handler sees it; if it raises, the handler does not."""
    jobs = ring.submit_many([NewJob("acme", "mail", n, queue="mail") for n in range(200)])
    wait_for(lambda: in_redis(ring, *jobs), "they were fed")
    changed = set()

    def update(number: int) -> None:
        try:
            high = Priority.HIGH
            ring.update_job("acme", jobs[number].id, tags={"v": "new"}, priority=high)
            changed.add(number)
        except IllegalTransition:
            pass

    make_worker(concurrency=2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(update, reversed(range(200))))
    for each in jobs:
        assert ring.wait("acme", each.id, timeout=60).state is State.COMPLETED
    assert sorted(number for number, *_ in seen) == list(range(200))
    assert {number for number, tags, *_ in seen if tags} == changed
    assert 0 < len(changed) < 200


def test_two_updates_of_one_job_both_take_effect(
    ring: Scheduler, make_worker: MakeWorker, seen: list[Any]
) -> None:
    jobs = ring.submit_many([NewJob("acme", "mail", n, queue="mail") for n in range(20)])
    wait_for(lambda: in_redis(ring, *jobs), "they were fed")
    calls: list[Callable[[Any], object]] = [
        lambda job: ring.update_job("acme", job.id, tags={"a": "b"}),
        lambda job: ring.update_job("acme", job.id, correlation_id="c"),
    ]
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(call, job) for job in jobs for call in calls]
    assert [each.exception() for each in answers] == [None] * 40
    make_worker()
    for each in jobs:
        ring.wait("acme", each.id, timeout=60)
    assert sorted(seen) == [(n, {"a": "b"}, "c", None) for n in range(20)]


@pytest.mark.parametrize("dialect", ["standard", "bullmq"])
def test_an_update_after_redis_lost_its_data_is_fed_once(
    ring: Scheduler, redis: Client, make_worker: MakeWorker, seen: list[Any]
) -> None:
    jobs = ring.submit_many([NewJob("acme", "mail", n, queue="mail") for n in range(10)])
    wait_for(lambda: in_redis(ring, *jobs), "they were fed")
    redis.call("FLUSHALL")
    for each in jobs:
        ring.update_job("acme", each.id, tags={"a": "b"})
    make_worker()
    for each in jobs:
        ring.wait("acme", each.id, timeout=60)
    assert sorted(seen) == [(n, {"a": "b"}, None, None) for n in range(10)]


@pytest.mark.parametrize("dialect", ["standard"])
@pytest.mark.parametrize("committed", [True, False])
def test_an_update_waits_for_the_feeder_that_has_the_job(
    ring: Scheduler, dsn: str, make_worker: MakeWorker, seen: list[Any], committed: bool
) -> None:
    """Also if the feeder has pushed the job and cannot commit."""
    first = ring.submit("acme", "other", queue="mail")
    wait_for(lambda: in_redis(ring, first), "the queue was fed")
    parts = services(ring)
    parts._feeding.stop(timeout=5)
    made = ring.submit("acme", "mail", queue="mail", delay="1ms")
    locks = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(dsn) as own,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        feed = parts.feeder._steps(parts.ring.queue("mail"), [Share(2, "acme", 1)])
        assert run_inside(own, feed)
        assert in_redis(ring, made)
        update = pool.submit(ring.update_job, "acme", made.id, tags={"a": "b"}, delay="1ms")
        wait_for(lambda: other.execute(locks).rowcount, "the update waits")
        own.commit() if committed else own.rollback()
        assert update.result().tags == {"a": "b"}
    assert not in_redis(ring, made)
    wait_for(lambda: parts.feeder.step() and in_redis(ring, made), "it is fed again")
    make_worker()
    ring.wait("acme", made.id, timeout=60)
    assert seen == [(None, {"a": "b"}, None, None)]


@pytest.mark.parametrize("dialect", ["standard"])
def test_an_update_that_cannot_commit_loses_no_job(
    ring: Scheduler, make_worker: MakeWorker, seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts = Timeouts(visibility="1s")
    made = ring.submit("acme", "mail", queue="mail", timeouts=timeouts)
    wait_for(lambda: in_redis(ring, made), "it was fed")
    plain = QueueTable.of_job

    def dies(self: QueueTable, name: str, *args: Any, **parameters: Any) -> Statement:
        if name == "update":
            raise KeyboardInterrupt
        return plain(self, name, *args, **parameters)

    monkeypatch.setattr(QueueTable, "of_job", dies)
    with pytest.raises(KeyboardInterrupt):
        ring.update_job("acme", made.id, tags={"a": "b"})
    monkeypatch.setattr(QueueTable, "of_job", plain)
    assert not in_redis(ring, made)
    make_worker()
    ring.wait("acme", made.id, timeout=60)
    assert seen == [(None, {}, None, None)]


@pytest.mark.parametrize("dialect", ["standard"])
def test_nothing_changes_if_redis_cannot_be_asked(
    ring: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ring.submit("acme", "mail", queue="mail", tags={"a": "1"})
    waiting = ring.submit("acme", "mail", queue="mail", delay="1h")
    wait_for(lambda: in_redis(ring, made), "it was fed")

    def away(job: object) -> Cancelling:
        raise QueueUnavailable("Redis: connection refused")

    monkeypatch.setattr(services(ring).ring.queue("mail"), "withdraw", away)
    with pytest.raises(QueueUnavailable):
        ring.update_job("acme", made.id, tags={"a": "2"})
    assert ring.get("acme", made.id).tags == {"a": "1"}
    assert ring.update_job("acme", made.id, callback_url="https://x.example/").callback_url
    assert ring.update_job("acme", waiting.id, tags={"a": "2"}, delay="2h").tags == {"a": "2"}


def test_run_at_changes_while_a_job_waits_in_postgres(instance: ManualScheduler) -> None:
    first = instance.submit("acme", "x")
    last = instance.submit("acme", "y", after=[first])
    lasting = Timeouts(lifetime="1h")
    delayed = instance.submit("acme", "z", delay="1h", timeouts=lasting)
    now = instance.clock.now()
    job = instance.update_job("acme", delayed.id, run_at=now + 30 * HOUR)
    assert (job.state, job.run_at, job.expires_at) == (
        State.DELAYED,
        now + 30 * HOUR,
        now + 31 * HOUR,
    )
    assert job.updated_at == job.created_at
    instance.clock.advance("1m")
    job = instance.update_job("acme", delayed.id, run_at=now)
    assert (job.state, job.updated_at) == (State.PENDING, now + timedelta(minutes=1))
    assert job.expires_at == now + timedelta(minutes=61)
    job = instance.update_job("acme", last.id, delay="1h")
    assert (job.state, job.run_at) == (State.PENDING, now + timedelta(minutes=61))
    assert instance.cancel_job("acme", first.id) is State.CANCELLED
    assert instance.get("acme", last.id).state is State.CANCELLED
    with pytest.raises(InvalidOption, match="exclude"):
        instance.update_job("acme", delayed.id, run_at=now, delay="1h")


def test_a_job_that_waits_for_another_keeps_its_new_time(instance: ManualScheduler) -> None:
    first = instance.submit("acme", "x")
    last = instance.submit("acme", "y", after=[first])
    instance.update_job("acme", last.id, delay="1h")
    table = instance._running().queue
    steps(instance, end(table, [Ending(key=JobKey("acme", first.id), state=State.COMPLETED)]))
    assert instance.get("acme", last.id).state is State.DELAYED
