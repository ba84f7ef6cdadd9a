"""The members: processes of `tests.chaos.member`, each in a slot that keeps its roads and its
clock.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos.house import House
from tests.chaos.member import Options
from tests.chaos.plan import SERVERS
from tests.chaos.roads import Road, Roads
from tests.support.lines import read_lines
from tests.support.skew import shift, shifting
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]


class Crew:
    """Starts and ends processes; leaves none behind. Its calls are of several threads, each with
    slots of its own.
    """

    def __init__(self, house: House, folder: Path, options: Options) -> None:
        self._house = house
        self._folder = folder
        self._options = options
        self._roads = Roads(house.postgres.socket, house.redis.port)
        self._lanes: dict[tuple[str, str], Road] = {}
        self._starts = 0
        self._lock = threading.RLock()  # a process that ended by itself is started once
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        self.killed: set[int] = set()
        self.died: list[str] = []

    def open(self, slots: Iterable[str]) -> None:
        """Open the roads of each slot, and start its first process."""
        for slot in slots:
            for server in SERVERS:
                self._lanes[slot, server] = self._roads.open(server)
            self.shift(slot, 0)
            self.start(slot)

    def start(self, slot: str) -> None:
        """Start a process in a slot."""
        with self._lock:
            self._starts += 1
            number = self._starts
        options = replace(
            self._options,
            slot=slot,
            seed=f"{self._options.seed} {slot} {number}",
            dsn=f"postgresql://postgres@127.0.0.1:{self._lanes[slot, 'postgres'].port}/postgres",
            redis=f"redis://127.0.0.1:{self._lanes[slot, 'redis'].port}/0",
        )
        with (self._folder / "log").open("ab") as log:
            self._members[slot] = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.member", options.to_json()],
                cwd=ROOT,
                env={**os.environ, **shifting(self._clock(slot))},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def pid(self, slot: str) -> int:
        """The process of a slot."""
        return self._members[slot].pid

    def ready(self, slots: Iterable[str]) -> None:
        """Wait until the processes of these slots work."""
        chosen = list(slots)

        def all_work() -> bool:
            self.look()  # a poison job can end a process before it is ready
            paths = [self._folder / f"{slot}.{self.pid(slot)}.ready" for slot in chosen]
            return all(path.exists() for path in paths)

        wait_for(all_work, "all members work", timeout=60)

    def kill(self, slot: str) -> None:
        """SIGKILL."""
        with self._lock:
            self._look(slot)
            process = self._members[slot]
            self.killed.add(process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self._bury(process)

    def suspend(self, slot: str) -> None:
        """SIGSTOP."""
        self._members[slot].send_signal(signal.SIGSTOP)

    def wake(self, slot: str) -> None:
        """SIGCONT."""
        self._members[slot].send_signal(signal.SIGCONT)

    def block(self, slot: str, server: str, state: str) -> None:
        """Break the road from a slot to a server, or open it."""
        self._roads.change(self._lanes[slot, server], state)

    def shift(self, slot: str, seconds: int) -> None:
        """Put the clock of a slot wrong by so much, at once."""
        shift(self._clock(slot), seconds)

    def stop(self, slots: Iterable[str]) -> None:
        """SIGTERM, and wait until they have ended in order."""
        chosen = list(slots)
        for slot in chosen:
            self._look(slot)
            self._members[slot].terminate()
        for slot in chosen:
            process = self._members[slot]
            try:
                status = process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.died.append(f"{slot}, process {process.pid}, does not end")
                continue
            self.killed.add(process.pid)
            if status not in (0, -signal.SIGTERM):
                self.died.append(f"{slot}, process {process.pid}, ended with {status}")

    def look(self) -> None:
        """Start others in the place of those that have ended, and note which ones no poison job
        has killed.
        """
        for slot in list(self._members):
            with self._lock:
                if self._look(slot):
                    self.start(slot)

    def __enter__(self) -> Self:
        self._roads.__enter__()
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
            self._bury(process)
        self._roads.__exit__(kind, error, trace)

    def _look(self, slot: str) -> bool:
        process = self._members[slot]
        status = process.poll()
        if status is None or process.pid in self.killed:
            return False
        self.killed.add(process.pid)
        diary = self._folder / f"{slot}.{process.pid}.diary"
        if status == -signal.SIGKILL and any(
            line.startswith("poison ") for line in read_lines(diary)
        ):
            self._bury(process)
        else:
            self.died.append(f"{slot}, process {process.pid}, ended by itself with {status}")
        return True

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _clock(self, slot: str) -> Path:
        return self._folder / f"{slot}.clock"
