"""Our worker and a worker in Go, simulated, on one queue; both are killed with handlers under
way.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.conveyor import Client as Conveyor
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from tests.conveyor.work import FAILS_ONCE, HANGS_ONCE, NORMAL, log
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
LEAVES = 1000
MIDDLE = 10
MODULES = {"go": ("tests.conveyor.go_peer", "1"), "ours": ("tests.conveyor.our_worker",)}


class Fleet:
    """Processes by kind; one that is killed gets a successor."""

    def __init__(self, url: str, redis: Client) -> None:
        self._url = url
        self._redis = redis
        self._log = log(url)
        self.running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.killed: list[str] = []

    def start(self, kind: str) -> None:
        module, *more = MODULES[kind]
        command = [sys.executable, "-m", module, self._url, "work", *more]
        self.running.append((kind, subprocess.Popen(command, cwd=ROOT)))

    def kill_who_hangs(self) -> None:
        while (said := self._log.lpop("hangs")) is not None:
            kind, pid = said.split()
            process = next((each for _, each in self.running if each.pid == int(pid)), None)
            if process is None:  # two of its handlers hung
                continue
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            self.running.remove((kind, process))
            self.killed.append(kind)
            if (
                kind == "go"
            ):  # nobody wants to wait for 30 s: it was heard for the last time so long ago
                self._redis.call(
                    "ZADD", "conv:workers:active", "XX", int(time.time()) - 31, f"go-{pid}"
                )
            self.start(kind)

    def records(self) -> list[list[str]]:
        return [line.split() for line in self._log.lrange("log", 0, -1)]

    def ended(self, uuid: str) -> bool:
        return any(record[:2] == ["end", uuid] for record in self.records())

    def stop(self) -> None:
        for _, process in self.running:
            process.kill()
            process.wait(60)
        self._log.close()


@pytest.fixture
def fleet(redis: Client, redis_server: EmbeddedRedis) -> Iterator[Fleet]:
    made = Fleet(redis_server.url, redis)
    try:
        yield made
    finally:
        made.stop()


def test_a_fleet_of_both_loses_nothing_when_any_of_them_is_killed(
    fleet: Fleet, redis: Client, redis_server: EmbeddedRedis
) -> None:
    with Conveyor(redis_server.url, "upstream") as conveyor:

        def add(payload: bytes = NORMAL, **options: Any) -> str:
            return str(conveyor.add(payload, type="work", **options))

        root = add()
        middle = [add(parent=root) for _ in range(MIDDLE)]
        heir, inner = add(predecessor=root), [add(predecessor=each) for each in middle]
        leaves: dict[str, list[str]] = {each: [] for each in middle}
        for number in range(LEAVES):
            payload = (
                HANGS_ONCE if number % 20 == 11 else FAILS_ONCE if number % 45 == 7 else NORMAL
            )
            parent = middle[number % MIDDLE]
            leaves[parent].append(add(payload, parent=parent))
    fleet.start("ours")
    wait_for(fleet.records, "ours has begun, and so has some that hang", timeout=60)
    for kind in ("go", "go"):
        fleet.start(kind)

    def done() -> bool:
        fleet.kill_who_hangs()
        return fleet.ended(heir)

    wait_for(done, "the heir of all has run", timeout=90)
    records = fleet.records()
    ends: dict[str, int] = {}
    for place, (what, uuid, _) in enumerate(records):
        if what == "end":
            ends.setdefault(uuid, place)
    everything = {root, *middle, *inner, heir, *(leaf for some in leaves.values() for leaf in some)}
    assert set(ends) == everything, "none lost"
    assert sum(record[:2] == ["begin", heir] for record in records) == 1, "the heir ran once"
    for parent, after in [(root, heir), *zip(middle, inner, strict=True)]:
        begun = records.index(next(record for record in records if record[:2] == ["begin", after]))
        waited = (
            {root, *middle, *(leaf for some in leaves.values() for leaf in some)}
            if parent == root
            else set()
        )
        assert all(ends[each] < begun for each in waited | {parent, *leaves.get(parent, [])})
    assert {who for _, _, who in records} == {"go", "ours"}
    assert set(fleet.killed) == {"go", "ours"}
    wait_for(lambda: not left(redis), "everything is closed", timeout=60)


def left(redis: Client) -> list[bytes]:
    """What is there of jobs; Go may put a child that it tries again to a parent that is closed
    already.
    """
    found = [*redis.call("KEYS", "conv:job:*"), *redis.call("SMEMBERS", "conv:jobs:active")]
    return [each for each in found if not each.endswith(b":children")]
