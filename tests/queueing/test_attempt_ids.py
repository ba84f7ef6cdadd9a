"""Ids of attempts: no two executions share one, and the ledger has those that the handlers saw."""

import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest

import scheduler
from scheduler import ReaperRule, RetryPolicy, Scheduler, State, Worker, handler
from scheduler.config import DIALECTS
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis, redis_binary
from scheduler.errors import QueueError
from scheduler.model.oneshot import Job
from scheduler.queueing.ledger import alone
from scheduler.store.job_queue import JobKey
from scheduler.store.ring import RingTable
from tests.queueing.conftest import MakeWorker, steps
from tests.support.lines import read_lines
from tests.support.waiting import wait_for

SOON = RetryPolicy(max_attempts=5, backoff="constant", initial_delay="10ms", jitter=False)
# It kills itself in its first job, after a renewal has reported that the lease has begun.
PROGRAM = """
    import os, signal, sys, threading
    from datetime import timedelta
    import scheduler
    from scheduler.worker.consumer import QueueConsumer

    url, dialect, journal, dies = sys.argv[1:]
    renewed, plain = threading.Semaphore(0), QueueConsumer.renew

    def renew(self, *args, **options):
        plain(self, *args, **options)
        renewed.release()

    QueueConsumer.renew = renew

    @scheduler.handler("mail", queue="mail")
    def mail(ctx, payload):
        with open(journal, "a") as file:
            file.write(f"{ctx.attempt} {ctx.attempt_id} {ctx.previous_attempt_id}\\n")
        if dies == "dies":
            while renewed.acquire(blocking=False):
                pass
            renewed.acquire()  # the first renewal can be older than the handler's start
            renewed.acquire()
            os.kill(os.getpid(), signal.SIGKILL)

    scheduler.Worker(
        url,
        ["mail"],
        dialect=dialect,
        lease="1s",
        reaper=scheduler.ReaperRule(interval=timedelta(milliseconds=200)),
    ).run()
"""


class Run(NamedTuple):
    """What a handler saw."""

    attempt: int
    id: str
    previous: str | None

    @classmethod
    def from_context(cls, ctx: scheduler.JobContext) -> "Run":
        previous = ctx.previous_attempt_id
        return cls(ctx.attempt, str(ctx.attempt_id), None if previous is None else str(previous))


@pytest.fixture(params=sorted(DIALECTS))
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runs() -> list[Run]:
    return []


@pytest.fixture
def go(runs: list[Run]) -> Iterator[threading.Event]:
    """Register a handler that waits for this event."""
    event = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        runs.append(Run.from_context(ctx))
        event.wait(120)

    yield event
    event.set()


def named(job: Job) -> list[Run]:
    """The attempts of a job as the ledger has them."""
    return [
        Run(each["attempt"], each["attempt_id"], each["previous_attempt_id"])
        for each in job.attempts
    ]


def settled(ring: Scheduler, job_id: UUID, number: int) -> None:
    """Wait until the ledger has this many attempts."""
    wait_for(lambda: len(ring.get("acme", job_id).attempts) == number, "they are settled")


def fail_often(runs: list[Run], times: int) -> None:
    """Register a handler that fails this many times."""

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        runs.append(Run.from_context(ctx))
        if len(runs) <= times:
            raise ValueError("not yet")


def test_retried_attempts_name_each_other(
    ring: Scheduler, make_worker: MakeWorker, runs: list[Run]
) -> None:
    fail_often(runs, times=3)
    first = make_worker()
    made = ring.submit("acme", "mail", queue="mail", retry=SOON)
    wait_for(lambda: runs, "it runs")
    first.stop(grace=60)
    make_worker()
    job = ring.wait("acme", made.id, timeout=60)
    assert [each.attempt for each in runs] == [1, 2, 3, 4]
    assert [each.previous for each in runs] == [None, *(each.id for each in runs[:-1])]
    assert len({each.id for each in runs}) == 4
    assert named(job) == runs


def test_put_back_attempt_is_the_previous_one(
    ring: Scheduler, make_worker: MakeWorker, runs: list[Run], go: threading.Event
) -> None:
    first = make_worker()
    made = ring.submit("acme", "mail", queue="mail")
    wait_for(lambda: runs, "it runs")
    first.stop(grace=0.1)
    wait_for(lambda: ring.get("acme", made.id).state is State.SCHEDULED, "it is put back")
    assert ring.get("acme", made.id).attempts == ()
    second = make_worker()
    wait_for(lambda: len(runs) == 2, "it runs again")
    second.stop(grace=0.1)
    make_worker()
    wait_for(lambda: len(runs) == 3, "it runs once more")
    go.set()
    job = ring.wait("acme", made.id, timeout=60)
    assert [each.attempt for each in runs] == [1, 2, 3]
    assert [each.previous for each in runs] == [None, runs[0].id, runs[1].id]
    assert len({each.id for each in runs}) == 3
    assert named(job) == runs[2:]
    assert job.attempts[0]["uncharged"] == 2


def test_unbegun_return_keeps_the_previous_attempt(
    ring: Scheduler, redis: Client, make_worker: MakeWorker, runs: list[Run]
) -> None:
    """A worker without a handler returns a job unbegun."""
    fail_often(runs, times=1)
    other = handler("other", queue="mail")(lambda ctx, payload: None)
    slow = RetryPolicy(backoff="constant", initial_delay="2s", jitter=False)
    first = make_worker()
    made = ring.submit("acme", "mail", queue="mail", retry=slow)
    settled(ring, made.id, 1)
    first.stop(grace=60)
    without = make_worker(queues=["mail"], handlers=[other])
    # Parked in the standard dialect, returned with a delay in the others.
    wait_for(
        lambda: redis.call("KEYS", "*blocked") or redis.call("KEYS", "*unhandled"), "it is met"
    )
    without.stop(grace=60)
    make_worker()
    job = ring.wait("acme", made.id, timeout=60)
    assert [each.attempt for each in runs] == [1, 2]
    assert runs[1].previous == runs[0].id
    assert named(job) == runs


def test_killed_attempt_is_the_previous_one(
    dsn: str,
    schema: str,
    redis: Client,
    redis_server: EmbeddedRedis,
    dialect: str,
    tmp_path: Path,
) -> None:
    program, journal = tmp_path / "worker.py", tmp_path / "journal"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(program), redis_server.url, dialect, str(journal)]
    queues, reaper = {"mail": {"dialect": dialect}}, ReaperRule(interval=timedelta(seconds=0.2))
    with Scheduler(
        dsn, schema=schema, redis=redis_server.url, queues=queues, reaper=reaper
    ) as made:
        submitted = made.submit("acme", "mail", queue="mail", retry=SOON)
        assert subprocess.run([*command, "dies"], timeout=120).returncode == -signal.SIGKILL
        survivor = subprocess.Popen([*command, "lives"])
        try:
            job = made.wait("acme", submitted.id, timeout=120)
        finally:
            survivor.kill()
            survivor.wait()
    lines = [line.split() for line in read_lines(journal)]
    runs = [Run(int(n), id_, None if last == "None" else last) for n, id_, last in lines]
    assert [each.previous for each in runs] == [None, runs[0].id]
    assert named(job) == runs
    assert [each["outcome"] for each in job.attempts] == ["retrying", "completed"]


class RestartableRedis:
    """A Redis that restarts from its last snapshot and so loses its last writes."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._start()

    def _start(self) -> None:
        options = {"--port": self.port, "--bind": "127.0.0.1", "--dir": self._folder, "--save": ""}
        command = [redis_binary(), *(str(each) for pair in options.items() for each in pair)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = Client(self.url)
        wait_for(self._answers, "Redis answers")

    def _answers(self) -> bool:
        try:
            return bool(self.client.call("PING"))
        except QueueError:
            return False

    def restart(self) -> None:
        """Kill the server, and start it with the last snapshot."""
        self.stop()
        self._start()

    def stop(self) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[RestartableRedis]:
    server = RestartableRedis(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def both(
    dsn: str, schema: str, restartable: RestartableRedis, dialect: str
) -> Iterator[tuple[Scheduler, MakeWorker]]:
    """A scheduler on the Redis that can restart, and workers."""
    workers: list[Worker] = []

    def make(**options: Any) -> Worker:
        worker = Worker(restartable.url, ["mail"], dialect=dialect, lease="5s", **options)
        workers.append(worker)
        worker.start()
        return worker

    queues = {"mail": {"dialect": dialect}}
    with Scheduler(dsn, schema=schema, redis=restartable.url, queues=queues) as made:
        yield made, make
        for worker in workers:
            worker.stop(grace=2.0)


def test_redis_without_its_last_writes_repeats_no_id(
    both: tuple[Scheduler, MakeWorker],
    restartable: RestartableRedis,
    runs: list[Run],
    go: threading.Event,
) -> None:
    made, make = both
    job = made.submit("acme", "mail", queue="mail")
    wait_for(lambda: made.get("acme", job.id).state is State.SCHEDULED, "it is fed")
    wait_for(lambda: restartable.client.call("DBSIZE") > 1, "it is in Redis")
    restartable.client.call("SAVE")
    make(concurrency=2)
    wait_for(lambda: runs, "it runs")
    restartable.restart()
    make(concurrency=2)
    wait_for(lambda: len(runs) == 2, "it runs again")
    go.set()
    ended = made.wait("acme", job.id, timeout=120)
    # The epoch and the feed are the same, so Redis counts from the same number.
    assert [each.attempt for each in runs[:2]] == [1, 1]
    assert len({each.id for each in runs}) == len(runs)
    assert "feed" not in ended.attempts[0]
    assert named(ended)[0] in runs


def test_same_feed_pushed_twice_repeats_no_id(
    ring: Scheduler,
    schema: str,
    redis: Client,
    make_worker: MakeWorker,
    runs: list[Run],
    go: threading.Event,
) -> None:
    """The answer to a push was lost, and a failover lost the job but not the epoch."""
    make_worker()
    ring.submit("acme", "mail", queue="mail")  # so that the queue has an epoch
    wait_for(lambda: runs, "the epoch is set")
    made = ring.submit("acme", "mail", queue="mail")
    wait_for(lambda: len(runs) == 2, "it runs")
    for name in redis.call("KEYS", "*"):
        if b"epoch" not in name:
            redis.call("DEL", name)
    again = RingTable(schema, lambda: None).leave_to_feeders([JobKey("acme", made.id)])
    assert steps(cast("Any", ring), alone(again)), "it waits to be fed again"
    wait_for(lambda: len(runs) == 3, "it runs again", timeout=120)
    go.set()
    ended = ring.wait("acme", made.id, timeout=60)
    assert [each.attempt for each in runs] == [1, 1, 1]
    assert len({each.id for each in runs}) == 3
    assert "feed" not in ended.attempts[0]
    assert named(ended)[0] in runs[1:]


def test_previous_attempt_is_the_last_settled_after_data_loss(
    ring: Scheduler, redis: Client, make_worker: MakeWorker, runs: list[Run]
) -> None:
    fail_often(runs, times=2)
    later = RetryPolicy(backoff="constant", initial_delay="3s", jitter=False, max_attempts=5)
    make_worker()
    made = ring.submit("acme", "mail", queue="mail", retry=later)
    for number in (1, 2):
        settled(ring, made.id, number)
        redis.call("FLUSHALL")
    job = ring.wait("acme", made.id, timeout=60)
    assert [each.attempt for each in runs] == [1, 2, 3]
    assert [each.previous for each in runs] == [None, runs[0].id, runs[1].id]
    assert named(job) == runs
    assert [each.get("feed", 1) for each in job.attempts] == [1, 2, 3]


def test_retried_job_continues_from_the_last_attempt(
    ring: Scheduler, make_worker: MakeWorker, runs: list[Run]
) -> None:
    fail_often(runs, times=2)
    once = RetryPolicy(max_attempts=1)
    make_worker()
    jobs = [ring.submit("acme", "mail", queue="mail", retry=once).id]
    for _ in range(2):
        ring.wait("acme", jobs[-1], timeout=60)
        jobs.append(ring.retry_job("acme", jobs[-1]).id)
    ring.wait("acme", jobs[-1], timeout=60)
    assert [each.attempt for each in runs] == [1, 1, 1]
    assert [each.previous for each in runs] == [None, runs[0].id, runs[1].id]
    assert [named(ring.get("acme", each)) for each in jobs] == [[each] for each in runs]
