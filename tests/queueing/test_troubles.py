"""Redis in trouble under a ring and a worker that are at work: each goes on by itself."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import scheduler
from scheduler import NewJob, RetryPolicy, Scheduler, State, Worker, handler
from scheduler.dialects.client import Client
from tests.dialects.servers import Server, any_binary
from tests.queueing import children
from tests.support.leases import begun
from tests.support.waiting import rest, wait_for


@pytest.fixture
def server() -> Iterator[Server]:
    """A Redis that the test may harm."""
    made = Server(any_binary()).start()
    yield made
    made.stop()


@pytest.fixture
def own(dsn: str, schema: str, server: Server) -> Iterator[Scheduler]:
    with Scheduler(dsn, schema=schema, redis=server.url) as made:
        yield made


@pytest.fixture
def worker(server: Server) -> Iterator[Worker]:
    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        rest(0.01)

    handler("endless", queue="mail", executor="process", timeout="700ms")(children.endless)
    made = Worker(server.url, ["mail"], concurrency=4, lease="10s")
    made.start()
    yield made
    made.stop(grace=1.0)


def all_complete(ring: Scheduler, count: int = 30) -> None:
    made = ring.submit_many([NewJob("acme", "mail", n, queue="mail") for n in range(count)])
    for each in made:
        assert ring.wait("acme", each.id, timeout=60).state is State.COMPLETED


def test_connections_scripts_and_roles_come_and_go(
    own: Scheduler, worker: Worker, server: Server
) -> None:
    client = Client(server.url)
    all_complete(own)
    for trouble in ("CLIENT KILL TYPE normal SKIPME yes", "SCRIPT FLUSH", "REPLICAOF 127.0.0.1 1"):
        client.call(*trouble.split())
        if trouble.startswith("REPLICAOF"):  # a failover: for a while it only reads
            rest(1.5)
            client.call("REPLICAOF", "NO", "ONE")
        all_complete(own)
    client.close()


def test_a_redis_that_hangs_and_one_that_restarts_empty(
    own: Scheduler, worker: Worker, server: Server
) -> None:
    all_complete(own)
    made = own.submit_many([NewJob("acme", "mail", n, queue="mail") for n in range(100)])
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    rest(6.0)  # longer than the deadline of a command
    os.kill(pid, signal.SIGCONT)
    for each in made:
        assert own.wait("acme", each.id, timeout=60).state is State.COMPLETED
    made = own.submit_many([NewJob("acme", "mail", n, queue="mail") for n in range(100)])
    server.stop()
    rest(2.0)
    assert own.get("acme", made[0].id).id == made[0].id  # what one sees is then what Postgres has
    server.start()
    for each in made:
        assert own.wait("acme", each.id, timeout=60).state is State.COMPLETED


def test_while_redis_is_away_nothing_spins_and_a_cancel_is_kept(
    own: Scheduler, worker: Worker, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = own.submit("acme", "mail", queue="nobody")
    wait_for(lambda: own.get("acme", waiting.id).state is State.SCHEDULED, "fed")
    server.stop()
    rest(1.0)
    caplog.clear()
    began = os.times()
    assert own.cancel_job("acme", waiting.id, reason="in vain") is State.SCHEDULED
    assert own.get("acme", waiting.id).cancel_requested_at is not None
    rest(3.0)
    ended = os.times()
    assert ended.user + ended.system - began.user - began.system < 1.5
    assert len(caplog.records) < 60
    server.start()
    job = own.wait("acme", waiting.id, timeout=60)
    assert (job.state, job.reason) == (State.CANCELLED, "in vain")


def test_a_handler_in_a_process_is_killed_at_its_timeout(own: Scheduler, worker: Worker) -> None:
    made = own.submit("acme", "endless", queue="mail", retry=RetryPolicy(max_attempts=1))
    job = own.wait("acme", made.id, timeout=60)
    assert (job.state, job.attempts[0]["category"]) == (State.DEAD_LETTER, "timeout")
    assert "killed" in (job.error or "")


PROGRAM = """
    import os, sys, time
    import scheduler

    @scheduler.handler("slow", queue="mail")
    def slow(ctx, payload):
        os.write(1, b"began %d %s\\n" % (ctx.attempt, ctx.worker.encode()))
        time.sleep(payload)

    scheduler.Worker(sys.argv[1], ["mail"], concurrency=2, lease=sys.argv[3], grace="60s", processes=int(sys.argv[2])).run()
    print("ended", flush=True)
"""


@contextmanager
def started(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_lets_handlers_end_and_puts_back_the_rest(
    own: Scheduler, server: Server, tmp_path: Path, processes: int
) -> None:
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(program), server.url, str(processes), "30s"]
    made = own.submit_many(
        [NewJob("acme", "slow", 1, queue="mail") for _ in range(2 * processes + 4)]
    )
    with started(command) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("began 1 ")
        rest(0.3)
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert out.endswith("ended\n")
    states = [own.get("acme", each.id) for each in made]
    wait_for(
        lambda: sum(own.get("acme", each.id).state.terminal for each in made) >= 2,
        "what ran is settled",
    )
    assert {job.attempt for job in states} <= {0, 1}
    with started(command) as again:
        for each in made:
            job = own.wait("acme", each.id, timeout=60)
            assert (job.state, job.attempt) == (State.COMPLETED, 1)
        again.terminate()
        again.communicate(timeout=60)


def test_a_second_signal_ends_a_worker_at_once_and_nothing_is_lost(
    own: Scheduler, server: Server, tmp_path: Path
) -> None:
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(PROGRAM))
    retry = RetryPolicy(initial_delay="10ms")
    made = own.submit("acme", "slow", 60, queue="mail", retry=retry)
    with started([sys.executable, str(program), server.url, "1", "2s"]) as running:
        assert running.stdout is not None
        began, attempt, worker = running.stdout.readline().split()
        assert (began, attempt) == ("began", "1")
        with contextlib.closing(Client(server.url)) as client:
            wait_for(lambda: begun(client, "mail", worker), "its lease is marked as begun")
        for _ in range(50):  # two that come while it is busy are one to it
            running.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.communicate(timeout=0.5)
                break
    assert running.returncode == 128 + signal.SIGTERM
    attempts: list[int] = []
    done = threading.Event()

    @handler("slow", queue="mail")
    def slow(ctx: scheduler.JobContext, payload: object) -> None:
        attempts.append(ctx.attempt)
        done.set()

    other = Worker(server.url, ["mail"], lease="2s")
    other.start()
    try:
        job = own.wait("acme", made.id, timeout=60)
    finally:
        other.stop(grace=1)
    assert (job.state, attempts) == (State.COMPLETED, [2])
    lost, last = job.attempts
    assert (lost["category"], lost["worker"], last["outcome"]) == ("system", worker, "completed")
