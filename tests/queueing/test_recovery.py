"""Instances reclaim the jobs of dead workers: also if no worker lives, and each job once."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler import NewJob, ReaperRule, RetryPolicy, Scheduler, State, Submission, handler
from scheduler.config import DIALECTS
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Outcomes
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.events import Event, Events, JobsRecovered
from scheduler.model.oneshot import Job
from scheduler.model.policies import RETRY
from scheduler.recovery import recover
from tests.dialects.values import job as queued_job
from tests.queueing.conftest import MakeWorker
from tests.support.leases import begun
from tests.support.waiting import wait_for

REAPER = ReaperRule(interval=timedelta(milliseconds=200))
LATER = RetryPolicy(backoff="constant", initial_delay="1h", jitter=False)
ONCE = RetryPolicy(max_attempts=1).checked()
SOON = RetryPolicy(backoff="constant", initial_delay="10ms", jitter=False)
# A worker whose own default is one attempt. It has the custom backoff that its jobs ask for.
PROGRAM = """
    import os, sys, time
    from datetime import timedelta
    import scheduler

    @scheduler.handler("slow", queue="mail")
    def slow(ctx, payload):
        os.write(1, f"{ctx.worker} {ctx.id}\\n".encode())
        time.sleep(600)

    @scheduler.backoff("fibonacci")
    def fibonacci(attempt, initial, longest):
        return timedelta(seconds=1)

    scheduler.Worker(
        sys.argv[1],
        ["mail"],
        dialect=sys.argv[2],
        lease="1s",
        retry=scheduler.RetryPolicy(max_attempts=int(sys.argv[3])),
        reaper=scheduler.ReaperRule(interval=timedelta(milliseconds=200)),
    ).run()
"""
# A worker with one slot. It has just run quick jobs when it begins the one that holds its slot.
ONE_SLOT = """
    import os, sys, time
    import scheduler

    @scheduler.handler("slow", queue="mail")
    def slow(ctx, payload):
        if payload == "holds":
            os.write(1, f"{ctx.worker}\\n".encode())
            time.sleep(600)

    options = {"concurrency": 1, "lease": "1s"}
    scheduler.Worker(sys.argv[1], ["mail"], dialect=sys.argv[2], **options).run()
"""
MakeInstance = Callable[[], Scheduler]
Kill = Callable[..., dict[str, str]]


@pytest.fixture(params=sorted(DIALECTS))
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_instance(
    dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis, dialect: str
) -> Iterator[MakeInstance]:
    queues = {"mail": {"dialect": dialect}}
    with ExitStack() as stack:
        yield lambda: stack.enter_context(
            Scheduler(dsn, schema=schema, redis=redis_server.url, queues=queues, reaper=REAPER)
        )


@pytest.fixture
def kill_worker(
    redis: Client, redis_server: EmbeddedRedis, dialect: str, tmp_path: Path
) -> Iterator[Kill]:
    """Start a worker, kill it while it runs so many jobs, and return its name by job."""
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(PROGRAM))
    started: list[subprocess.Popen[str]] = []

    def kill(jobs: int, max_attempts: int = 3) -> dict[str, str]:
        command = [sys.executable, str(program), redis_server.url, dialect, str(max_attempts)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(worker)
        assert worker.stdout is not None
        lines = [worker.stdout.readline().split() for _ in range(jobs)]
        # A lease without the mark would be redelivered without a charge.
        name = lines[0][0]
        wait_for(lambda: begun(redis, "mail", name, dialect), "the leases are marked as begun")
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        return {job: name for name, job in lines}

    yield kill
    for worker in started:
        worker.kill()
        worker.communicate()


def recovered(instance: Scheduler, job: Submission) -> Job:
    """Wait until the first attempt of a job is in the ledger."""
    wait_for(lambda: instance.get("acme", job.id).attempts, "the job is reclaimed")
    return instance.get("acme", job.id)


def test_instance_alone_reclaims_jobs_by_their_policies(
    make_instance: MakeInstance, kill_worker: Kill, make_worker: MakeWorker
) -> None:
    instance = make_instance()
    events: list[Event] = []
    instance.subscribe(events.append)
    once = instance.submit("acme", "slow", queue="mail", retry=ONCE)
    later = instance.submit("acme", "slow", queue="mail", retry=LATER)
    soon = instance.submit("acme", "slow", queue="mail", retry=SOON)
    workers = kill_worker(3)
    assert instance.wait("acme", once.id, timeout=60).state is State.DEAD_LETTER
    waiting = recovered(instance, later)
    assert (waiting.state, waiting.attempt) == (State.RETRYING, 1)
    recovered(instance, soon)
    for job in (once, later, soon):
        [attempt] = instance.get("acme", job.id).attempts
        assert attempt["worker"] == workers[str(job.id)]
        assert attempt["category"] == "system"
    found = [each for each in events if isinstance(each, JobsRecovered)]
    assert sum(each.count for each in found) == 3
    assert sum(each.buried for each in found) == 1

    handler("slow", queue="mail")(lambda ctx, payload: ctx.attempt)
    make_worker(queues=["mail"])
    assert instance.wait("acme", soon.id, timeout=60).result == 2


def test_unbegun_jobs_of_a_killed_worker_are_not_charged(
    make_instance: MakeInstance,
    make_worker: MakeWorker,
    redis: Client,
    redis_server: EmbeddedRedis,
    dialect: str,
    tmp_path: Path,
) -> None:
    instance = make_instance()
    payloads = [*["quick"] * 200, "holds", *range(200)]
    made = instance.submit_many(
        [NewJob("acme", "slow", each, queue="mail", retry=ONCE) for each in payloads]
    )
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(ONE_SLOT))
    command = [sys.executable, str(program), redis_server.url, dialect]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        try:
            assert killed.stdout is not None
            worker = killed.stdout.readline().strip()
            wait_for(
                lambda: sum(instance.queue("mail").stats().waiting.values()) == 200,
                "the others wait in Redis",
            )
            # Without the mark the job would be redelivered without a charge.
            wait_for(lambda: begun(redis, "mail", worker, dialect), "its lease is marked as begun")
        finally:
            killed.kill()
    handler("slow", queue="mail")(lambda ctx, payload: ctx.attempt)
    make_worker(queues=["mail"], reaper=REAPER)
    jobs = [instance.wait("acme", each.id, timeout=60) for each in made[201:]]
    assert {(job.state, job.result) for job in jobs} == {(State.COMPLETED, 1)}
    assert instance.wait("acme", made[200].id, timeout=60).state is State.DEAD_LETTER


def test_job_without_policy_follows_the_default_of_its_worker(
    make_instance: MakeInstance, kill_worker: Kill
) -> None:
    instance = make_instance()
    made = instance.submit("acme", "slow", queue="mail")
    kill_worker(1, max_attempts=1)
    assert instance.wait("acme", made.id, timeout=60).state is State.DEAD_LETTER


@pytest.mark.parametrize("dialect", sorted(DIALECTS.keys() - {"bullmq"}))  # it refuses them
def test_unknown_custom_backoff_is_exponential(
    make_instance: MakeInstance, kill_worker: Kill
) -> None:
    instance = make_instance()
    retry = RetryPolicy(backoff="fibonacci", initial_delay="1h", max_delay="1d", jitter=False)
    made = instance.submit("acme", "slow", queue="mail", retry=retry)
    kill_worker(1)
    job = recovered(instance, made)
    assert job.state is State.RETRYING
    assert timedelta(minutes=50) < job.run_at - job.created_at < timedelta(minutes=70)


def test_instances_and_worker_reclaim_each_job_once(
    make_instance: MakeInstance, kill_worker: Kill, make_worker: MakeWorker
) -> None:
    instances = [make_instance() for _ in range(2)]
    events: list[Event] = []
    for each in instances:
        each.subscribe(events.append)
    made = instances[0].submit_many(
        [NewJob("acme", "slow", None, queue="mail", retry=LATER) for _ in range(40)]
    )
    workers = kill_worker(40)
    handler("slow", queue="mail")(lambda ctx, payload: None)
    make_worker(queues=["mail"], reaper=REAPER).subscribe(events.append)
    for job in made:
        [attempt] = recovered(instances[0], job).attempts
        assert attempt["worker"] == workers[str(job.id)]
    wait_for(
        lambda: sum(each.count for each in events if isinstance(each, JobsRecovered)) >= 40,
        "all are reclaimed",
    )
    upkeeps = [each._running().ring.upkeep for each in instances]  # type: ignore[union-attr]
    until = [(each, each._steps + 2) for each in upkeeps]
    wait_for(lambda: all(each._steps >= n for each, n in until), "all have checked again")
    assert sum(each.count for each in events if isinstance(each, JobsRecovered)) == 40
    assert {instances[0].get("acme", job.id).attempt for job in made} == {1}


@pytest.mark.parametrize(
    ("own", "stored", "default", "state"),
    [
        ({"max_attempts": 1}, RETRY, RETRY, State.DEAD_LETTER),
        ({"max_attempts": 2}, ONCE, ONCE, State.RETRYING),
        (None, ONCE, RETRY, State.DEAD_LETTER),
        (None, RETRY, ONCE, State.RETRYING),
        (None, None, ONCE, State.DEAD_LETTER),
        ({"max_attempts": "many"}, ONCE, RETRY, State.FAILED),
        ({"no_such_key": 1}, ONCE, RETRY, State.DEAD_LETTER),
    ],
)
def test_policy_of_job_then_of_worker_then_default(
    redis: Client,
    own: dict[str, Any] | None,
    stored: RetryPolicy | None,
    default: RetryPolicy,
    state: State,
) -> None:
    dead = StandardQueue(redis, "mail", worker="dead", lease=timedelta(milliseconds=50))
    if stored is not None:
        dead.retry_defaults.store(stored)
    dead.push([queued_job(policy=own, expires_at=datetime.max.replace(tzinfo=UTC))], epoch="")
    dead.fetch(1, timeout=0)
    queue = StandardQueue(redis, "mail", installation="3f1e")

    def reclaimed() -> list[Outcomes]:
        recover(queue, Events(), {}, default=default)
        return queue.outcomes(1, timeout=0.05)

    [outcomes] = wait_for(reclaimed, "the lease is recovered")
    [end] = outcomes.ends
    assert (end.state, end.worker) == (state, "dead")


def test_worker_stores_its_default_before_it_leases_a_job(
    redis: Client, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[object] = []
    finish = StandardQueue.finish

    def first(queue: StandardQueue, *args: Any, **options: Any) -> Any:
        stored.append(queue.retry_defaults.read(queue._worker))
        return finish(queue, *args, **options)

    monkeypatch.setattr(StandardQueue, "finish", first)
    handler("slow", queue="mail")(lambda ctx, payload: None)
    make_worker(queues=["mail"], dialect="standard", retry=ONCE)
    wait_for(lambda: stored, "the first fetch")
    assert stored[0] == ONCE
