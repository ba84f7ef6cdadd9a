"""Metrics of a real scheduler and a real worker: the names of the seed, bounded labels, and what
they count.
"""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from scheduler import BreakerRule, PermanentError, RetryPolicy, Scheduler, Worker, handler
from scheduler.dialects.client import Client
from scheduler.events import (
    BreakerChanged,
    Event,
    JobsEnded,
    JobsFed,
    JobsProduced,
    JobsRecovered,
    JobsTaken,
)
from scheduler.model.attempts import AttemptEnd
from scheduler.model.breaker import BreakerState
from scheduler.model.reaper import ReaperRule
from scheduler.model.states import State
from scheduler.observe.health import Pages, Server, reasons
from scheduler.observe.metrics import Metrics, exposed
from scheduler.observe.watched import Watched
from tests.conftest import MakeScheduler
from tests.observe.scrapes import Scrape, needs_promtool, promtool
from tests.queueing.conftest import MakeWorker
from tests.support.leases import begun
from tests.support.waiting import wait_for

ONCE = RetryPolicy(max_attempts=1)
Served = Callable[..., str]


@pytest.fixture
def served() -> Iterator[Served]:
    """Serve what schedulers and workers count, and return where."""
    servers: list[Server] = []

    def serve(*watched: Watched, queues: tuple[str, ...] = ("mail",)) -> str:
        metrics = Metrics(queues, sample_every=timedelta())
        for each in watched:
            metrics.watch(each)
        servers.append(
            Server("127.0.0.1", 0, Pages(lambda: reasons(watched), exposed(metrics)).answer)
        )
        return servers[-1].address

    yield serve
    for server in servers:
        server.stop()


def ended(
    state: State = State.COMPLETED, *, category: str | None = None, seconds: float = 0.02
) -> AttemptEnd:
    now = datetime.now(UTC)
    return AttemptEnd(
        tenant="acme",
        job_id="1",
        feed=1,
        attempt=1,
        state=state,
        started_at=now,
        worker="w",
        category=category,
        ended_at=now + timedelta(seconds=seconds),
    )


def test_what_a_worker_does(ring: Scheduler, make_worker: MakeWorker, served: Served) -> None:
    @handler("send", queue="mail")
    def send(_: Any, payload: Any) -> None:
        if payload == "bad":
            raise PermanentError("no such address")
        if payload == "flaky":
            raise RuntimeError

    worker = make_worker()
    address = served(ring, worker)
    for payload in ("good", "good", "bad", "flaky"):
        ring.submit(
            "acme",
            "send",
            payload,
            queue="mail",
            retry=RetryPolicy(max_attempts=2, initial_delay="10ms"),
        )

    wait_for(
        lambda: Scrape.of(address).value("jobs_dead_letter_total", queue="mail") == 2,
        "two dead letters",
    )
    scrape = Scrape.of(address)
    assert scrape.value("jobs_produced_total", queue="mail") == 4
    assert scrape.value("jobs_consumed_total", queue="mail") == 5
    assert scrape.value("jobs_completed_total", queue="mail") == 2
    assert scrape.value("jobs_retried_total", queue="mail") == 1
    assert scrape.value("jobs_failed_total", queue="mail", reason="permanent") == 1
    assert scrape.value("jobs_failed_total", queue="mail", reason="temporary") == 2
    assert scrape.value("job_processing_duration_seconds_count", queue="mail") == 5
    assert scrape.value("job_processing_duration_seconds_bucket", queue="mail", le="1800.0") == 5
    assert scrape.value("circuit_breaker_state", queue="mail") == 0
    assert scrape.value("scheduler_ends_refused_total", queue="mail") == 0


def test_what_waits(ring: Scheduler, served: Served) -> None:
    address = served(ring)
    for _ in range(3):
        ring.submit("acme", "send", queue="mail")
    wait_for(lambda: Scrape.of(address).value("queue_length", queue="mail") == 3, "three that wait")
    first = Scrape.of(address).value("scheduler_oldest_waiting_seconds", queue="mail")
    assert first is not None
    wait_for(
        lambda: (
            (Scrape.of(address).value("scheduler_oldest_waiting_seconds", queue="mail") or 0)
            > first + 0.2
        ),
        "the first has been the first for longer",
    )
    assert Scrape.of(address).value("scheduler_feed_lag_seconds", queue="mail") == 0


def test_unhandled_jobs_are_counted_by_instances(
    ring: Scheduler, make_worker: MakeWorker, served: Served
) -> None:
    handler("send", queue="mail")(print)
    worker = make_worker(queues=["mail"])
    address = served(ring, worker)
    for name in ("fax", "fax", "sms"):
        ring.submit("acme", name, queue="mail")
    wait_for(
        lambda: Scrape.of(address).value("scheduler_unhandled_jobs", queue="mail") == 3,
        "jobs without a handler",
    )
    assert Scrape.of(address).value("queue_length", queue="mail") == 3
    alone = Scrape.of(served(worker))
    assert alone.value("queue_length", queue="mail") == 3
    assert alone.value("scheduler_unhandled_jobs", queue="mail") is None
    handler("*", queue="mail")(lambda _, __: None)
    make_worker(queues=["mail"])
    wait_for(
        lambda: Scrape.of(address).value("scheduler_unhandled_jobs", queue="mail") == 0,
        "none is left",
    )


def test_how_far_the_feeder_is_behind(ring: Scheduler, redis: Client, served: Served) -> None:
    address = served(ring)
    ring.submit("acme", "send", queue="mail")
    wait_for(lambda: Scrape.of(address).value("queue_length", queue="mail") == 1, "it is fed")
    redis.call("DEL", "jobqueue:{mail}:waiting")
    redis.call("SET", "jobqueue:{mail}:waiting", "no sorted set: nothing can be pushed")
    ring.submit("acme", "send", queue="mail")
    for name in ("scheduler_feed_lag_seconds", "scheduler_oldest_waiting_seconds"):
        wait_for(lambda: (Scrape.of(address).value(name, queue="mail") or 0) > 0.5, name)  # noqa: B023
    assert Scrape.of(address).value("queue_length", queue="mail") is None
    redis.call("DEL", "jobqueue:{mail}:waiting")
    wait_for(
        lambda: Scrape.of(address).value("scheduler_feed_lag_seconds", queue="mail") == 0,
        "it is fed at last",
    )


def test_how_far_the_settler_is_behind(
    ring: Scheduler, make_worker: MakeWorker, served: Served, connection: psycopg.Connection[Any]
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @handler("send", queue="mail")
    def send(_: Any, __: Any) -> None:
        begun.set()
        may_end.wait(20)

    def lag() -> float | None:
        return Scrape.of(address).value("scheduler_settle_lag_seconds", queue="mail")

    address = served(ring)
    make_worker()
    job = ring.submit("acme", "send", queue="mail")
    assert begun.wait(20)
    with connection.transaction():
        connection.execute("SELECT FROM job_queue WHERE id = %s FOR UPDATE", (job.id,))
        may_end.set()
        wait_for(lambda: (lag() or 0) > 0.3, "it waits")
    wait_for(lambda: lag() == 0, "it is settled")


def test_due_jobs_of_tenants_that_no_instance_mirrors_are_counted(
    make_scheduler: MakeScheduler, served: Served
) -> None:
    gone = make_scheduler()
    gone.register("globex", "report", queue="mail", every="1s", start_at=datetime.now(UTC))
    gone.cancel(timeout=5)
    scheduler = make_scheduler(sync_every="1s")
    address = served(scheduler)
    scheduler.register("acme", "x", lambda: None, every="1h")
    wait_for(
        lambda: Scrape.of(address).value("scheduler_jobs_stranded") == 1, "a job that is counted"
    )


def test_what_recurring_jobs_do(make_scheduler: MakeScheduler, served: Served) -> None:
    scheduler = make_scheduler()
    address = served(scheduler)
    scheduler.register("acme", "good", lambda: None, start_at=datetime.now(UTC))
    scheduler.register("acme", "bad", lambda: 1 / 0, start_at=datetime.now(UTC))
    for outcome in ("success", "failed"):
        wait_for(
            lambda: Scrape.of(address).value("scheduler_fires_total", outcome=outcome) == 1,  # noqa: B023
            outcome,
        )
    scrape = Scrape.of(address)
    assert scrape.value("scheduler_fires_total", outcome="crashed") == 0
    assert scrape.value("scheduler_fire_lateness_seconds_count") == 2
    assert abs(scrape.value("scheduler_clock_skew_seconds") or 0) < 1
    assert scrape.value("scheduler_jobs_stranded") == 0
    assert scrape.value("scheduler_leases_lost_total") == 0
    assert {"loop", "lease", "finish", "upkeep", "listen"} <= scrape.labels("part")
    assert (scrape.value("scheduler_last_pass_age_seconds", part="loop") or 0) < 60


def test_the_breaker_is_seen_and_said(
    ring: Scheduler, make_worker: MakeWorker, served: Served
) -> None:
    @handler("send", queue="mail")
    def send(_: Any, __: Any) -> None:
        raise RuntimeError

    worker = make_worker(breaker=BreakerRule(min_samples=3, cooldown_period="1h"))
    events: list[Event] = []
    worker.subscribe(events.append)
    address = served(worker)
    for _ in range(3):
        ring.submit("acme", "send", queue="mail", retry=ONCE)
    wait_for(
        lambda: Scrape.of(address).value("circuit_breaker_state", queue="mail") == 2,
        "the breaker is open",
    )
    assert BreakerChanged(queue="mail", state=BreakerState.OPEN) in events


def test_what_is_taken_back_from_a_silent_worker(
    ring: Scheduler, redis: Client, make_worker: MakeWorker, served: Served
) -> None:
    """A worker whose leases nobody keeps: another takes its job back, and the end that comes too
    late is refused.
    """
    release: list[bool] = []

    @handler("slow", queue="mail")
    def slow(ctx: Any, _: Any) -> None:
        if ctx.attempt == 1:
            wait_for(lambda: release, "the other has run it")

    silent = make_worker(lease="1s", reaper=ReaperRule(interval=timedelta(milliseconds=200)))
    ring.submit("acme", "slow", queue="mail")
    wait_for(lambda: begun(redis, "mail", silent.name), "its lease is marked as begun")
    silent._keeper.stop()
    other = make_worker(lease="1s", reaper=ReaperRule(interval=timedelta(milliseconds=200)))
    address = served(ring, other, silent)  # any of them reclaims it
    wait_for(
        lambda: (Scrape.of(address).value("reaper_jobs_moved_total") or 0) >= 1, "it is taken back"
    )
    wait_for(
        lambda: Scrape.of(address).value("jobs_completed_total", queue="mail") == 1,
        "the other has run it",
    )
    release.append(True)
    wait_for(
        lambda: Scrape.of(address).value("scheduler_ends_refused_total", queue="mail") == 1,
        "it came too late",
    )


def test_a_job_that_costs_its_worker_its_last_attempt_is_a_dead_letter(
    ring: Scheduler, redis: Client, make_worker: MakeWorker, served: Served
) -> None:
    release: list[bool] = []

    @handler("slow", queue="mail")
    def slow(_: Any, __: Any) -> None:
        wait_for(lambda: release, "it was given up")

    silent = make_worker(lease="1s", reaper=ReaperRule(interval=timedelta(hours=1)))
    ring.submit("acme", "slow", queue="mail", retry=ONCE)
    wait_for(lambda: begun(redis, "mail", silent.name), "its lease is marked as begun")
    silent._keeper.stop()
    address = served(ring)  # no worker is left that could reclaim it
    wait_for(
        lambda: Scrape.of(address).value("jobs_dead_letter_total", queue="mail") == 1,
        "it is given up",
    )
    assert Scrape.of(address).value("reaper_jobs_moved_total") == 1
    release.append(True)


def test_jobs_that_redis_lost_are_counted(ring: Scheduler, redis: Client, served: Served) -> None:
    address = served(ring)
    ring.submit("acme", "send", queue="mail")
    wait_for(lambda: Scrape.of(address).value("queue_length", queue="mail") == 1, "it is fed")
    redis.call("FLUSHALL")
    wait_for(
        lambda: Scrape.of(address).value("scheduler_jobs_refed_total", queue="mail") == 1,
        "it is fed again",
    )


def test_labels_stay_bounded_under_hostile_names() -> None:
    metrics = Metrics([f"q{number}" for number in range(200)])
    for number in range(10_000):
        for name in (f"q{number}", f'x{{"\n}}{number}'):
            metrics.hear(JobsTaken(queue=name, count=1))
            metrics.hear(JobsFed(queue=name, count=1, seconds=0.0, jobs=()))
            metrics.hear(JobsProduced(queue=name, count=1))
            metrics.hear(JobsRecovered(queue=name, count=1))
            failed = ended(State.DEAD_LETTER, category=f"why {number}")
            metrics.hear(JobsEnded(queue=name, ends=(ended(), failed), refused=1))
    scrape = Scrape(exposed(metrics)()[1].decode())
    assert len(scrape.labels("queue")) == 50
    assert scrape.labels("reason") == {"other"}
    assert scrape.value("jobs_consumed_total", queue="other") == 20_000 - 49
    assert len(scrape.text) < 200_000


def test_queues_that_nobody_named_are_one(ring: Scheduler, served: Served) -> None:
    address = served(ring)
    for number in range(60):
        ring.submit("acme", "send", queue=f"hostile-{number}")
    ring.submit("acme", "send", queue="mail")
    wait_for(
        lambda: Scrape.of(address).value("queue_length", queue="other") == 50,
        "some of the others are seen",
    )
    wait_for(lambda: Scrape.of(address).value("queue_length", queue="mail") == 1, "ours is seen")
    assert Scrape.of(address).labels("queue") == {"mail", "other"}


def test_durations_are_counted_by_their_length() -> None:
    metrics = Metrics(["mail"])
    metrics.hear(
        JobsEnded(
            queue="mail",
            ends=tuple(ended(seconds=each) for each in (0.02, 0.05, 7.0, 1e6)),
            refused=0,
        )
    )
    scrape = Scrape(exposed(metrics)()[1].decode())
    buckets = {
        le: scrape.value("job_processing_duration_seconds_bucket", queue="mail", le=le)
        for le in ("0.01", "0.05", "5.0", "10.0", "1800.0", "+Inf")
    }
    assert buckets == {"0.01": 0, "0.05": 2, "5.0": 2, "10.0": 3, "1800.0": 3, "+Inf": 4}
    assert scrape.value("job_processing_duration_seconds_sum", queue="mail") == pytest.approx(
        1e6 + 7.07
    )


@needs_promtool
def test_promtool_has_nothing_to_say(
    ring: Scheduler, make_worker: MakeWorker, served: Served
) -> None:
    @handler("send", queue="mail")
    def send(_: Any, payload: Any) -> None:
        if payload:
            raise PermanentError("so")

    worker = make_worker()
    instance_at, worker_at = served(ring), served(worker)
    ring.submit("acme", "send", queue="mail")
    ring.submit("acme", "send", True, queue="mail")
    wait_for(
        lambda: Scrape.of(worker_at).value("jobs_dead_letter_total", queue="mail") == 1, "it ran"
    )
    wait_for(
        lambda: Scrape.of(instance_at).value("queue_length", queue="mail") == 0,
        "the instance sees the queue",
    )
    for address in (instance_at, worker_at):
        promtool("check", "metrics", given=Scrape.of(address).text)


def test_a_worker_that_is_not_started_has_nothing_to_see(redis_server: Any, served: Served) -> None:
    @handler("send", queue="unstarted")
    def send(_: Any, __: Any) -> None: ...

    worker = Worker(redis_server.url, ["unstarted"], handlers=[send])
    assert Scrape.of(served(worker)).value("circuit_breaker_state", queue="mail") is None


def test_a_worker_is_seen_as_soon_as_it_is_started(redis_server: Any) -> None:
    @handler("send", queue="mail")
    def send(_: Any, __: Any) -> None: ...

    worker = Worker(redis_server.url, ["mail"], handlers=[send])
    metrics = Metrics(["mail"], sample_every=timedelta(hours=1)).watch(worker)

    def seen() -> set[str]:
        return {sample.name for metric in metrics.collect() for sample in metric.samples}

    assert "circuit_breaker_state" not in seen()
    worker.start()
    try:
        assert "circuit_breaker_state" in seen()
    finally:
        worker.stop(grace=0)
