"""Jobs of a type for which a worker has no handler: another worker runs them."""

import logging
from typing import Any

import pytest

from scheduler import JobContext, RetryPolicy, Scheduler, State, Timeouts, handler
from scheduler.dialects.client import Client
from scheduler.events import Event, JobsEnded, JobsTaken
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

SHARED = ("reliable", "bullmq", "conveyor")  # their queues can have foreign workers
ONCE = RetryPolicy(max_attempts=1)
RETURNED = {
    "reliable": "jobqueue:{mail}:unhandled",
    "bullmq": "bull:mail:ring:unhandled",
    "conveyor": "ring:mail:unhandled",
}


@pytest.fixture(params=SHARED)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def known() -> None:
    """The types of the old version of an application."""

    @handler("known", queue="mail")
    def run(ctx: JobContext, payload: Any) -> None: ...


def deploy() -> None:
    """Register the type that only the new version of the application has."""

    @handler("new", queue="mail")
    def run(ctx: JobContext, payload: Any) -> int:
        return ctx.attempt


def submit(ring: Scheduler, count: int, type_: str = "new") -> list[Any]:
    return [ring.submit("acme", type_, queue="mail", retry=ONCE).id for _ in range(count)]


def test_a_rolling_deploy_completes_jobs_of_a_new_type(
    ring: Scheduler, make_worker: MakeWorker, redis: Client, dialect: str, known: None
) -> None:
    old = make_worker()
    made, other = submit(ring, 30), submit(ring, 1, "known")
    key = RETURNED[dialect]
    wait_for(lambda: redis.call("ZCARD", key) == 30, "the old worker has returned all")
    assert ring.wait("acme", other[0], timeout=60).state is State.COMPLETED
    deploy()
    make_worker()
    wait_for(
        lambda: any(ring.get("acme", each).state is State.COMPLETED for each in made),
        "the new worker takes some, and the old worker also fetches",
    )
    old.stop(grace=2.0)
    jobs = [ring.wait("acme", each, timeout=120) for each in made]
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert {(job.result, len(job.attempts)) for job in jobs} == {(1, 1)}
    assert redis.call("EXISTS", key) == 0


def test_returns_are_logged_once_and_are_no_attempts(
    ring: Scheduler,
    make_worker: MakeWorker,
    redis: Client,
    dialect: str,
    known: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[Event] = []
    worker = make_worker()
    worker.subscribe(events.append)
    with caplog.at_level(logging.INFO, "scheduler"):
        made = submit(ring, 5)
        again = wait_for(
            lambda: [
                score
                for score in redis.call("ZRANGE", RETURNED[dialect], 0, -1, "WITHSCORES")[1::2]
                if float(score) % 8 >= 2
            ],
            "jobs are returned twice",
        )
    assert again
    lines = [each for each in caplog.records if "no handler for type 'new'" in each.getMessage()]
    assert [(each.levelname, each.__dict__["queue"]) for each in lines] == [("WARNING", "mail")]
    assert not [each for each in caplog.records if "attempt" in each.getMessage()]
    assert not [each for each in events if isinstance(each, JobsTaken)]
    assert not [each for each in events if isinstance(each, JobsEnded) and (each.ends)]
    jobs = [ring.get("acme", each) for each in made]
    assert not any(job.attempts or job.state.terminal for job in jobs)


def test_returned_jobs_obey_pause_and_cancel(
    ring: Scheduler, make_worker: MakeWorker, redis: Client, dialect: str, known: None
) -> None:
    make_worker()
    job, cancelled = submit(ring, 2)
    key = RETURNED[dialect]
    wait_for(lambda: redis.call("ZCARD", key) == 2, "both are returned")
    ring.pause_queue("mail")
    deploy()
    worker = make_worker()
    wait_for(
        lambda: redis.call("ZCARD", key) == 2 and ring.queue("mail").stats().running == 0,
        "no worker has them",
    )
    ring.cancel_job("acme", cancelled)
    assert ring.wait("acme", cancelled, timeout=60).state is State.CANCELLED
    for consumer in worker._consumers:
        for _ in range(3):  # a second each: the other job is due
            before = consumer.supervisor.passed
            wait_for(lambda: consumer.supervisor.passed > before, "another pass")  # noqa: B023
    assert not ring.get("acme", job).state.terminal
    assert ring.queue("mail").stats().running == 0
    ring.resume_queue("mail")
    assert ring.wait("acme", job, timeout=120).state is State.COMPLETED


def test_a_catch_all_handler_takes_returned_jobs(
    ring: Scheduler, make_worker: MakeWorker, redis: Client, dialect: str, known: None
) -> None:
    make_worker()
    made = submit(ring, 3)
    wait_for(lambda: redis.call("ZCARD", RETURNED[dialect]) == 3, "all are returned")
    handler("*", queue="mail")(lambda ctx, payload: [ctx.type, ctx.attempt])
    make_worker()
    jobs = [ring.wait("acme", each, timeout=120) for each in made]
    assert [(job.state, job.result) for job in jobs] == [(State.COMPLETED, ["new", 1])] * 3


def test_the_lifetime_of_a_returned_job_ends_it(
    ring: Scheduler, make_worker: MakeWorker, known: None
) -> None:
    make_worker()
    made = ring.submit("acme", "new", queue="mail", timeouts=Timeouts(lifetime="2s"))
    job = ring.wait("acme", made.id, timeout=120)
    assert (job.state, job.reason) == (State.DEAD_LETTER, "its lifetime has passed")
    assert not job.attempts
