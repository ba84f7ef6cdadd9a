"""Poison jobs: jobs that kill the process of their worker whenever they run."""

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from scheduler import RetryPolicy, Scheduler, State
from scheduler.config import DIALECTS
from scheduler.embedded.redis import EmbeddedRedis
from tests.support.lines import read_lines

QUEUES = ("mail", "other")
PROCESSES = 2
# Each attempt that is lost with its process counts, and the second one is the last.
TWICE = RetryPolicy(max_attempts=2, backoff="constant", initial_delay="1ms", jitter=False)


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_poison_jobs_on_their_last_attempt_never_share_a_process(
    dsn: str, schema: str, redis_server: EmbeddedRedis, tmp_path: Path, redis: object, dialect: str
) -> None:
    queues = {name: {"dialect": dialect} for name in QUEUES}
    journal = tmp_path / "journal"
    command = [sys.executable, "-m", "tests.worker.poisonous", redis_server.url, dialect]
    command += [str(journal), *QUEUES]
    with Scheduler(dsn, schema=schema, redis=redis_server.url, queues=queues) as scheduler:

        def submit(kind: str, number: int, seconds: float = 0.0) -> str:
            queue, payload = QUEUES[number % len(QUEUES)], {"seconds": seconds}
            return str(scheduler.submit("acme", kind, payload, queue=queue, retry=TWICE).id)

        poison = [submit("poison", number) for number in range(3)]
        # Those of 2 s run when a poison job kills their process, so they become orphans too.
        ordinary = [submit("ordinary", n, 2.0 if n < 4 else 0.1) for n in range(12)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            left = {*poison, *ordinary}
            while left:
                processes = [each for each in processes if each.poll() is None]
                while len(processes) < PROCESSES:
                    processes.append(subprocess.Popen(command))
                threading.Event().wait(0.1)
                left = {each for each in left if not scheduler.get("acme", each).state.terminal}
        finally:
            for process in processes:
                process.kill()
                process.wait()
        ended = {each: scheduler.get("acme", each) for each in (*poison, *ordinary)}
    last_start = {}  # the process of the last attempt of each poison job
    for line in read_lines(journal):
        kind, job, _, pid = line.split()
        if kind == "poison":
            last_start[job] = pid
    assert {ended[each].state for each in ordinary} == {State.COMPLETED}
    assert {ended[each].state for each in poison} == {State.DEAD_LETTER}
    assert set(Counter(last_start.values()).values()) == {1}, "two of them in one process"
