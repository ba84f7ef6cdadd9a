"""The times of submitted jobs: when they were scheduled and started, and when their state changed."""

import threading
from typing import Any

import psycopg
import pytest

import scheduler
from scheduler import JobChange, RetryPolicy, Scheduler, State, TemporaryError, handler
from scheduler.queueing.services import RingServices
from scheduler.store.job_queue import JobKey
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for


@pytest.fixture(params=["standard", "reliable", "bullmq", "conveyor"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def services(ring: Scheduler) -> RingServices:
    found = ring._running().ring
    assert found is not None
    return found


def test_times_of_a_job_follow_its_states(ring: Scheduler, make_worker: MakeWorker) -> None:
    handler("mail", queue="mail")(lambda ctx, payload: None)
    ring.pause_queue("mail")
    made = ring.submit("acme", "mail", queue="mail")
    late = ring.submit("acme", "mail", queue="mail", delay="100ms")
    assert ring.get("acme", made.id).scheduled_at is None
    rest(0.5)
    resumed = services(ring)._now()
    ring.resume_queue("mail")
    for each in (made, late):
        wait_for(lambda: ring.get("acme", each.id).state is State.SCHEDULED, "fed")  # noqa: B023
    make_worker()
    for each in (made, late):
        job = ring.wait("acme", each.id, timeout=60)
        assert job.scheduled_at is not None
        assert job.started_at is not None
        assert resumed < job.scheduled_at <= job.started_at
        assert job.updated_at == job.completed_at


def test_a_waiting_job_was_scheduled_when_its_state_changed(ring: Scheduler) -> None:
    made = ring.submit("acme", "mail", queue="nobody", delay="300ms")
    assert ring.get("acme", made.id).state is State.DELAYED

    def scheduled() -> Any:
        job = ring.get("acme", made.id)
        return job.state is State.SCHEDULED and job

    job = wait_for(scheduled, "fed")
    assert job.scheduled_at is not None
    assert job.updated_at == job.scheduled_at >= job.run_at


def test_a_running_job_changed_its_state_when_it_started(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    go = threading.Event()

    @handler("long", queue="mail")
    def long(ctx: scheduler.JobContext, payload: object) -> None:
        go.wait(60)

    make_worker()
    made = ring.submit("acme", "long", queue="mail")

    def running() -> Any:
        job = ring.get("acme", made.id)
        return job.state is State.RUNNING and job

    job = wait_for(running, "runs")
    go.set()
    assert job.scheduled_at is not None
    assert job.scheduled_at <= job.started_at == job.updated_at


def test_a_retry_is_scheduled_when_its_backoff_is_over(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    @handler("flaky", queue="mail")
    def flaky(ctx: scheduler.JobContext, payload: object) -> None:
        if ctx.attempt == 1:
            raise TemporaryError("again")

    worker = make_worker()
    changes: list[JobChange] = []
    ended = threading.Event()
    listener = threading.Thread(
        target=lambda: changes.extend(ring.events("acme", until=ended.is_set))
    )
    listener.start()
    wait_for(services(ring).ring.channel.watched, "listened")
    policy = RetryPolicy(initial_delay="3s", jitter=False)
    made = ring.submit("acme", "flaky", queue="mail", retry=policy)
    wait_for(lambda: ring.get("acme", made.id).state is State.RETRYING, "retried")
    worker.stop(grace=1.0)
    retrying = ring.get("acme", made.id)
    wait_for(lambda: ring.get("acme", made.id).state is State.SCHEDULED, "its backoff is over")
    job = ring.get("acme", made.id)
    found = ring.find("acme", state=State.SCHEDULED).jobs
    assert [each.id for each in found] == [made.id]
    assert ring.find("acme", state=State.RETRYING).jobs == ()
    assert job.updated_at == job.scheduled_at
    assert job.scheduled_at is not None
    assert job.scheduled_at > retrying.updated_at
    wait_for(lambda: State.SCHEDULED in _after(changes, State.RETRYING), "published")
    make_worker()
    done = ring.wait("acme", made.id, timeout=60)
    wait_for(lambda: State.COMPLETED in _after(changes, State.RETRYING), "published")
    ended.set()
    listener.join(60)
    assert done.scheduled_at is not None
    assert done.started_at is not None
    assert retrying.updated_at < done.scheduled_at <= done.started_at
    states = [State.SCHEDULED, State.COMPLETED]  # a worker that starts finds listeners later
    assert [each for each in _after(changes, State.RETRYING) if each in states] == states


def _after(changes: list[JobChange], state: State) -> list[State]:
    states = [each.state for each in changes]
    return states[states.index(state) + 1 :] if state in states else []


@pytest.mark.parametrize("dialect", ["standard"])
def test_only_state_changes_move_updated_at(
    ring: Scheduler, connection: psycopg.Connection[Any]
) -> None:
    first = ring.submit("acme", "mail", queue="nobody", delay="1h")
    second = ring.submit("acme", "mail", queue="nobody", delay="1h")
    last = ring.submit("acme", "mail", queue="nobody", after=[first, second])
    before = ring.get("acme", last.id).updated_at
    ring.update_job("acme", last.id, tags={"a": "b"}, correlation_id="c")
    fed = ring.submit("acme", "mail", queue="nobody")
    wait_for(lambda: ring.get("acme", fed.id).state is State.SCHEDULED, "fed")
    query = "SELECT updated_at FROM job_queue WHERE id = %s"
    known = connection.execute(query, (fed.id,)).fetchone()
    ledger = services(ring)._ledger
    assert ledger.rows(ledger.ring.feed_again([(JobKey("acme", fed.id), 1)]))
    wait_for(lambda: ring.get("acme", fed.id).state is State.SCHEDULED, "fed again")
    assert connection.execute(query, (fed.id,)).fetchone() == known
    assert ring.get("acme", last.id).updated_at == before
