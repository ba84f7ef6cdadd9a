"""A fleet: real processes of `tests.support.instance` on one schema, to be killed, stopped,
restarted at will.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.instance import Job, Options
from tests.support.records import Phase, Record
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that was killed, and when."""

    pid: int
    monotonic: float


class Fleet:
    """Starts and ends processes; leaves none behind, whatever the test does.

    With the DSN of a transaction pooler, the processes know no other road; the ledger is read past
    it.
    """

    def __init__(
        self,
        dsn: str,
        schema: str,
        folder: Path,
        jobs: Sequence[Job],
        *,
        lease: float = 2.0,
        workers: int = 16,
        pooler: str | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.dsn = dsn
        self.schema = schema
        self.folder = folder
        self.jobs = tuple(jobs)
        self.lease = lease
        self.kills: list[Kill] = []
        self._options = Options(
            dsn=pooler or dsn,
            schema=schema,
            folder=str(folder),
            jobs=self.jobs,
            lease=f"{lease}s",
            workers=workers,
            prepare=pooler is None,
        )
        self._members: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self,
        count: int = 1,
        *,
        dsn: str | None = None,
        forks: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Start processes and return their ids at once; `ready` waits for them."""
        options = replace(self._options, dsn=dsn or self._options.dsn, forks=forks)
        return [self._spawn(options, environment or {}) for _ in range(count)]

    def ready(self, *pids: int, forks: int = 0) -> list[int]:
        """Wait until these processes (by default all) are registered; return everybody who is,
        forks included.
        """
        chosen = pids or tuple(self.alive())
        wanted = {f"ready.{pid}" for pid in chosen}

        def there() -> list[int]:
            self._check_alive(chosen)
            names = {path.name for path in self.folder.glob("ready.*")}
            found = [int(name.removeprefix("ready.")) for name in names]
            return found if wanted <= names and len(names) >= len(wanted) + forks else []

        return wait_for(there, "the processes are registered", timeout=60)

    def alive(self) -> list[int]:
        """List the processes that run (or are stopped)."""
        return [pid for pid, process in self._members.items() if process.poll() is None]

    def kill(self, pid: int) -> None:
        """SIGKILL."""
        self.kills.append(Kill(pid, time.monotonic()))
        self._members[pid].kill()
        self._members[pid].wait()

    def kill_one(self) -> None:
        """Kill a random process, in the middle of a run if there is one, and start another for
        it.
        """
        alive = self.alive()
        self.kill(random.choice([pid for pid in self.busy() if pid in alive] or alive))
        self.start()

    def replace_dead(self, count: int) -> None:
        """Do what an orchestrator does: start others for those that died."""
        for pid, process in self._members.items():
            if process.poll() is not None and pid not in {kill.pid for kill in self.kills}:
                self.kills.append(Kill(pid, time.monotonic()))
        self.start(count - len(self.alive()))

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send any other signal, to a fork of ours too."""
        os.kill(pid, number)

    def stop(self, *pids: int) -> None:
        """SIGTERM, by default to all, and wait until they have drained."""
        chosen = pids or tuple(self.alive())
        self.ready(*chosen)  # before that they do not listen to SIGTERM
        for pid in chosen:
            os.killpg(pid, signal.SIGTERM)
        for pid in chosen:
            status = self._members[pid].wait(timeout=60)
            assert status == 0, f"process {pid} ended with {status}; its log:\n{self.log()}"

    def records(
        self, job_id: str | None = None, phase: Phase | None = None, attempt: int | None = None
    ) -> list[Record]:
        """Read what the bodies wrote, all of it or of one job, phase or attempt."""
        return [
            record
            for record in self._options.journal.read()
            if job_id in (None, record.job_id)
            and phase in (None, record.phase)
            and attempt in (None, record.attempt)
        ]

    def busy(self) -> set[int]:
        """Name the processes in the middle of a run, as far as the records tell."""
        ended = {(r.pid, r.job_id, r.fire_at, r.attempt) for r in self.records(phase="end")}
        return {
            r.pid
            for r in self.records(phase="start")
            if (r.pid, r.job_id, r.fire_at, r.attempt) not in ended
        }

    def log(self) -> str:
        """Read what the processes logged."""
        log = self.folder / "log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def warnings(self, pid: int) -> list[str]:
        """List what a process logged as a warning or worse."""
        marks = (f" {pid} WARNING ", f" {pid} ERROR ")
        return [line for line in self.log().splitlines() if any(mark in line for mark in marks)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._members.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # stopped ones and forks too
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        sys.stderr.write(
            "\n".join(["the end of the fleet's log:", *self.log().splitlines()[-80:], ""])
        )

    def _spawn(self, options: Options, environment: Mapping[str, str]) -> int:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.instance", options.to_json()],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._members[process.pid] = process
        return process.pid

    def _check_alive(self, pids: Sequence[int]) -> None:
        for pid in pids:
            status = self._members[pid].poll()
            assert status is None, (
                f"process {pid} ended with {status} before it was ready; its log:\n{self.log()}"
            )
