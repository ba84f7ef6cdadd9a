"""SIGKILL at four points of an attempt: how often the handler started, what was charged, the end."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from scheduler import RetryPolicy, Scheduler, State
from scheduler.embedded.redis import EmbeddedRedis
from tests.support.lines import read_lines

ONCE, ALWAYS = 1, 99
COMPLETED, DEAD = State.COMPLETED, State.DEAD_LETTER


class Outcome(NamedTuple):
    starts: int
    attempts: int
    charged: int
    state: State


class Case(NamedTuple):
    point: str
    deaths: int
    max_attempts: int
    expected: Outcome


# A lease that was not marked as begun is redelivered uncharged, once for each job. So a job that
# kills every process kills at most max_attempts + 1 of them.
CASES = [
    Case("script done", ONCE, 1, Outcome(1, 2, 1, COMPLETED)),
    Case("answer received", ONCE, 1, Outcome(1, 2, 1, COMPLETED)),
    Case("handler entered", ONCE, 1, Outcome(2, 2, 1, COMPLETED)),
    Case("handler entered, lease marked", ONCE, 1, Outcome(1, 1, 1, DEAD)),
    Case("handler entered, lease marked", ONCE, 3, Outcome(2, 2, 2, COMPLETED)),
    Case("result not sent", ONCE, 1, Outcome(2, 2, 1, COMPLETED)),
    Case("script done", ALWAYS, 1, Outcome(0, 2, 1, DEAD)),
    Case("script done", ALWAYS, 3, Outcome(0, 4, 3, DEAD)),
    Case("handler entered", ALWAYS, 1, Outcome(2, 2, 1, DEAD)),
    Case("handler entered", ALWAYS, 3, Outcome(4, 4, 3, DEAD)),
    Case("handler entered, lease marked", ALWAYS, 3, Outcome(3, 3, 3, DEAD)),
    Case("result not sent", ALWAYS, 3, Outcome(4, 4, 3, DEAD)),
]


class Trial:
    """One job, and worker processes that die at a point of it, one after another."""

    def __init__(
        self, number: int, case: Case, scheduler: Scheduler, worker: list[str], folder: Path
    ) -> None:
        self._case = case
        self._scheduler = scheduler
        self._journal = folder / f"{number}"
        self._queue = f"q{number}"
        self._command = [sys.executable, "-m", "tests.worker.mortal", *worker, self._queue]
        self._command += [case.point, str(self._journal), str(case.deaths)]

    def run(self) -> Outcome:
        retry = RetryPolicy(
            max_attempts=self._case.max_attempts, backoff="constant", initial_delay="1ms"
        )
        job = self._scheduler.submit("acme", "job", queue=self._queue, retry=retry)
        process = subprocess.Popen(self._command)
        try:
            while not self._scheduler.get("acme", job.id).state.terminal:
                if process.poll() is not None:
                    process = subprocess.Popen(self._command)
                threading.Event().wait(0.1)
        finally:
            process.kill()
            process.wait()
        ended = self._scheduler.get("acme", job.id)
        lines = [line.split()[1:] for line in read_lines(self._journal) if line != "death"]
        starts = dict(lines)
        assert len(starts) == len(lines), "two executions share an attempt id"
        # A lease without a mark is in the ledger once it is charged, though it may not have begun.
        named = {each["attempt_id"]: str(each["previous_attempt_id"]) for each in ended.attempts}
        assert all(named[id_] == starts[id_] for id_ in named.keys() & starts.keys())
        known = [*named.keys(), "None"]
        assert all(previous in known for previous in starts.values()), "not begun, but previous"
        uncharged = ended.attempts[-1].get("uncharged", 0)
        return Outcome(len(starts), ended.attempt, ended.attempt - uncharged, ended.state)


@pytest.mark.parametrize("dialect", ["standard", "reliable", "bullmq", "conveyor"])
def test_jobs_of_killed_workers_are_charged_for_attempts_that_began(
    dsn: str, schema: str, redis_server: EmbeddedRedis, tmp_path: Path, redis: object, dialect: str
) -> None:
    queues = {f"q{number}": {"dialect": dialect} for number in range(len(CASES))}
    with Scheduler(dsn, schema=schema, redis=redis_server.url, queues=queues) as scheduler:
        worker = [redis_server.url, dialect]
        trials = [
            Trial(number, case, scheduler, worker, tmp_path) for number, case in enumerate(CASES)
        ]
        with ThreadPoolExecutor(6) as pool:
            outcomes = list(pool.map(Trial.run, trials))
    table = [case._replace(expected=found) for case, found in zip(CASES, outcomes, strict=True)]
    assert table == CASES
