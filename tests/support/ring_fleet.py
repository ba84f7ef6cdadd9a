"""Processes of `tests.support.ring_process` on one schema and one Redis, to be killed and stopped;
and their jobs.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.sql import SQL, Identifier

from scheduler import NewJob, RetryPolicy, Scheduler
from scheduler.embedded.redis import redis_binary
from tests.support.lines import read_lines
from tests.support.ring_checker import Expected, Line, Verdict, check, read_ended, read_journal
from tests.support.ring_process import OWN, QUIET, UNMARKED, Options
from tests.support.waiting import rest, wait_for

ROOT = Path(__file__).parents[2]
TENANT = "acme"
PATIENT = RetryPolicy(max_attempts=20, initial_delay="50ms", max_delay="200ms", jitter=False)


class RingFleet:
    """Starts and ends processes; leaves none behind, whatever the test does."""

    def __init__(self, dsn: str, schema: str, redis: str, folder: Path, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.dsn = dsn
        self.redis = redis
        self.schema = schema
        self.folder = folder
        self.jobs: dict[str, Expected] = {}
        self.killed: set[int] = set()
        self._options = Options(
            role="", dsn=dsn, schema=schema, redis=redis, folder=str(folder), **options
        )
        self._members: dict[int, subprocess.Popen[bytes]] = {}
        self._submitter = Scheduler(dsn, schema=schema)

    def start(self, role: str, **changes: Any) -> int:
        """Start a process; `ready` waits for it."""
        options = replace(self._options, role=role, **changes)
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.ring_process", options.to_json()],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._members[process.pid] = process
        return process.pid

    def ready(self, *pids: int) -> None:
        """Wait until these processes work; one that was killed meanwhile counts."""

        def there() -> bool:
            return all(
                (self.folder / f"ready.{pid}").exists() or self.ended(pid) == -signal.SIGKILL
                for pid in pids
            )

        wait_for(there, f"processes {pids} work; their log:\n{self.log()}", timeout=60)

    def ended(self, pid: int) -> int | None:
        """Say how a process ended; None: it runs."""
        status = self._members[pid].poll()
        if status == -signal.SIGKILL:
            self.killed.add(pid)
        return status

    def kill(self, pid: int) -> None:
        """SIGKILL."""
        self._members[pid].kill()
        self._members[pid].wait()
        self.killed.add(pid)

    def stop(self, *pids: int) -> None:
        """SIGTERM, and wait until they have ended."""
        for pid in pids:
            self._members[pid].terminate()
        for pid in pids:
            assert self._members[pid].wait(timeout=60) == 0, self.log()

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send any other signal."""
        os.kill(pid, number)

    def submit(self, payloads: Sequence[dict[str, Any]], **options: Any) -> list[str]:
        """Submit jobs that are to complete; `fails` in a payload says how often it fails first."""
        (self.folder / QUIET).unlink(missing_ok=True)
        options = {"queue": self._options.queue, "retry": PATIENT, **options}
        kind = options.pop("type", "job")
        made = self._submitter.submit_many(
            [NewJob(TENANT, kind, payload, **options) for payload in payloads]
        )
        ids = [str(each.id) for each in made]
        for job_id, payload in zip(ids, payloads, strict=True):
            self.jobs[job_id] = Expected(fails=payload.get("fails", 0))
        return ids

    @property
    def submitter(self) -> Scheduler:
        """A scheduler that feeds nothing."""
        return self._submitter

    def journal(self) -> list[Line]:
        """Read what handlers wrote."""
        return read_journal(self._options.journal)

    def died(self) -> list[tuple[int, int, str]]:
        """Read who died of a fault: (pid, attempts in its hands, the point)."""
        lines = read_lines(self.folder / "died")
        return [
            (int(pid), int(flight), name)
            for pid, flight, name in (line.split(" ", 2) for line in lines)
        ]

    def left(self) -> int:
        """Count the jobs that have not ended."""
        with self.connection() as connection:
            query = SQL("SELECT count(*) FROM {}.job_queue").format(Identifier(self.schema))
            (count,) = connection.execute(query).fetchone() or (0,)
        return int(count)

    def all_end(self, *, timeout: float) -> None:
        """Wait until no job is live; who submits jobs of its own meanwhile ceases."""
        quiet = self.folder / QUIET
        quiet.touch()
        try:
            wait_for(lambda: self.left() == 0, "all jobs have ended", timeout=timeout, every=0.1)
        except AssertionError:  # the verdict names them too
            with self.connection() as connection:
                query = SQL("SELECT to_jsonb(q) - 'payload' FROM {}.job_queue q LIMIT 20")
                for (row,) in connection.execute(query.format(Identifier(self.schema))):
                    sys.stderr.write(f"has not ended: {row}\n")

    def verdict(self, *, most_again: int, memory_lost: bool = False) -> Verdict:
        """Count what is wrong."""
        with self.connection() as connection:
            ended = read_ended(connection, self.schema)
            self.jobs |= read_own(connection, self.schema)
        return check(
            self.jobs,
            self.journal(),
            ended,
            killed=self.killed,
            most_again=most_again,
            memory_lost=memory_lost,
        )

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Connect to the database."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            yield connection

    def log(self) -> str:
        """Read what the processes logged."""
        log = self.folder / "log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def __enter__(self) -> Self:
        self._submitter.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._members.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._submitter.cancel(timeout=1.0)
        sys.stderr.write(
            "\n".join(["the end of the fleet's log:", *self.log().splitlines()[-60:], ""])
        )


def read_own(connection: psycopg.Connection[Any], schema: str) -> dict[str, Expected]:
    """Read what instances submitted themselves, as far as it was committed; nobody works at one of
    their queues.
    """
    query = SQL(
        "SELECT id::text, queue FROM {0}.job_queue WHERE tags ? %(own)s UNION ALL"
        " SELECT job_id, queue FROM {0}.job_history WHERE kind = 'job' AND job -> 'tags' ? %(own)s"
    ).format(Identifier(schema))
    rows = connection.execute(query, {"own": OWN}).fetchall()
    return {
        job_id: Expected(("dead_letter",)) if queue == UNMARKED else Expected()
        for job_id, queue in rows
    }


def suspended(fleet: RingFleet) -> Verdict:
    """Stop a worker in the middle of jobs until all have ended elsewhere, let it go on, and
    count.
    """
    instance, worker = fleet.start("instance"), fleet.start("worker")
    fleet.ready(instance, worker)
    fleet.submit([{"seconds": 3.0}] * 4)
    wait_for(lambda: len(fleet.journal()) == 4, "all four run", every=0.01)
    fleet.signal(worker, signal.SIGSTOP)
    fleet.killed.add(worker)  # as far as the others can tell
    other = fleet.start("worker")
    wait_for(
        lambda: sum(line.what == "accepted" for line in fleet.journal()) >= 4,
        "they end elsewhere",
        timeout=60,
    )
    fleet.all_end(timeout=60)
    fleet.signal(worker, signal.SIGCONT)
    wait_for(
        lambda: ("end", worker) in {(line.what, line.pid) for line in fleet.journal()},
        "they end late",
    )
    rest(1.0)
    fleet.stop(instance, worker, other)
    return fleet.verdict(most_again=4)


class MortalRedis:
    """A Redis without persistence that is killed, and another, empty one that takes its place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of whichever is there."""
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        """Start an empty one."""
        command = [
            redis_binary(),
            "--port",
            str(self._port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(self._folder),
        ]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
