"""Producers as processes: the rate that they share, and that none of them, however it ends, queues
a file twice.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.reliable.keys import Keys
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.model.files import ProducerRule
from scheduler.queueing.producer import Producer
from tests.support.waiting import rest, wait_for

LOW = "jobqueue:low_priority"
RATE = 100
PROGRAM = """
import sys, threading
from scheduler.dialects.client import Client
from scheduler.dialects.reliable.keys import Keys
from scheduler.model.files import ProducerRule
from scheduler.queueing.producer import Producer

rule = ProducerRule(scan_dir=sys.argv[2], rate_limit_per_sec=int(sys.argv[3]))
Producer(Client(sys.argv[1]), rule, Keys.original()).run(threading.Event())
"""
Process = subprocess.Popen[bytes]
Start = Callable[[Path, int], Process]


@pytest.fixture
def start(redis: Client, redis_server: EmbeddedRedis) -> Iterator[Start]:
    """Start producers; they are killed at the end."""
    made: list[Process] = []

    def begin(folder: Path, rate: int) -> Process:
        command = [sys.executable, "-c", PROGRAM, redis_server.url, str(folder), str(rate)]
        made.append(subprocess.Popen(command))
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.wait()


def folder_of(parent: Path, name: str, count: int) -> Path:
    folder = parent / name
    folder.mkdir()
    for number in range(count):
        os.close(os.open(f"{folder}/{number}", os.O_CREAT))
    return folder


def paths(redis: Client) -> list[str]:
    return [orjson.loads(each)["filepath"] for each in redis.call("LRANGE", LOW, 0, -1)]


def now_and_count(redis: Client) -> tuple[float, int]:
    """By Redis' clock, at the same moment."""
    both = "return {redis.call('TIME'), redis.call('LLEN', KEYS[1])}"
    (seconds, microseconds), count = redis.call("EVAL", both, 1, LOW)
    return int(seconds) + int(microseconds) / 1e6, count


def test_two_producers_and_a_limit_of_100_a_second_also_across_a_restart(
    redis: Client, start: Start, tmp_path: Path, full: bool
) -> None:
    seconds = 10.0 if full else 4.0
    folders = [folder_of(tmp_path, name, 1500) for name in ("one", "two")]
    running = [start(folder, RATE) for folder in folders]
    wait_for(
        lambda: {Path(path).parent for path in paths(redis)} == set(folders), "both are at work"
    )
    samples = [now_and_count(redis)]
    while samples[-1][0] < samples[0][0] + seconds:
        rest(0.02)
        samples.append(now_and_count(redis))
        if running[0].poll() is None and samples[-1][0] > samples[0][0] + seconds / 4:
            running[0].kill()
            running[0].wait()
        if len(running) == 2 and samples[-1][0] > samples[0][0] + seconds / 2:
            running.append(start(folders[0], RATE))
    (begun, before), (ended, after) = samples[0], samples[-1]
    assert before < after
    assert after - before <= RATE * (ended - begun) + 0.15 * RATE
    for at, count in samples:
        within = [later for moment, later in samples if at <= moment <= at + 1.0]
        assert max(within) - count <= 1.15 * RATE, "twice the rate across the edge of a second"
    found = paths(redis)
    assert len(found) == len(set(found))


def test_kill_9_neither_loses_nor_doubles_a_file(
    redis: Client, start: Start, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, "data", 2000)
    for enough in (100, 400, 700):
        process = start(folder, 300)
        wait_for(lambda: redis.call("LLEN", LOW) >= enough, "some are queued", every=0.005)  # noqa: B023
        process.kill()
        assert process.wait() != 0
    assert redis.call("LLEN", LOW) < 2000
    summary = Producer(
        redis, ProducerRule(scan_dir=str(folder), rate_limit_per_sec=0), Keys.original()
    ).run(threading.Event())
    found = paths(redis)
    assert summary.queued.total() + summary.unchanged == len(set(found)) == len(found) == 2000
