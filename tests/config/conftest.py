"""A configuration out of a text and an environment, as a process would read it, and workers out of
that.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest
import redis as plain_redis

from scheduler import ConfigError, JobContext, Worker, handler
from scheduler.cli import roles
from scheduler.cli.configuration import Effective, effective
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from tests.support.waiting import rest

Read = Callable[..., Effective]
Wrong = Callable[..., list[str]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a file that says this, in an environment that says that."""

    def read(text: str = "", **environment: str) -> Effective:
        path = tmp_path / "scheduler.yaml"
        path.write_text(dedent(text))
        return effective(path, environment)

    return read


@pytest.fixture
def wrong(read: Read) -> Wrong:
    """The lines that say what is wrong with it."""

    def wrong(text: str = "", **environment: str) -> list[str]:
        with pytest.raises(ConfigError) as raised:
            read(text, **environment)
        return str(raised.value).splitlines()

    return wrong


ENTRY = '{"id":"%s","filepath":"%s","filesize":1,"priority":"%s","retries":0,"creation_time":"","trace_id":"","span_id":""}'

Work = Callable[..., Worker]


@pytest.fixture
def work(redis: Client, redis_server: EmbeddedRedis, tmp_path: Path) -> Iterator[Work]:
    """Start a worker out of a configuration, with the handlers that the test registered."""
    made: list[Worker] = []

    def work(text: str = "", redis_addr: str = redis_server.url) -> Worker:
        path = tmp_path / "scheduler.yaml"
        path.write_text(dedent(text))
        worker = roles._worker(effective(path, {"REDIS_ADDR": redis_addr}).values, None)
        made.append(worker)
        worker.start()
        return worker

    yield work
    for worker in made:
        worker.stop(grace=0)


class Files:
    """A handler of files that can be held up, and that fails as often as it is told."""

    def __init__(self, fails: int = 0, *, held: bool = False) -> None:
        self.names: list[str] = []
        self.at: list[float] = []
        self.fails = fails
        self.go = threading.Event()
        if not held:
            self.go.set()
        handler("file", queue="files")(self.file)

    def file(self, ctx: JobContext, payload: dict[str, Any]) -> None:
        self.names.append(payload["filepath"])
        self.at.append(time.monotonic())
        self.go.wait(20)
        rest(0.02)
        if len(self.names) <= self.fails:
            raise ValueError("not yet")


def put(
    redis: Client, *names: str, where: str = "jobqueue:low_priority", priority: str = "low"
) -> None:
    for name in names:
        redis.call("LPUSH", where, ENTRY % (name, name, priority))


class Heard(NamedTuple):
    """A command that Redis ran, and when by its clock."""

    at: float
    words: list[str]


@contextlib.contextmanager
def monitored(server: EmbeddedRedis) -> Iterator[Callable[[str], Heard]]:
    """Hear the commands that a server runs; what is yielded waits for one that begins so."""
    client = plain_redis.Redis.from_url(server.url, socket_timeout=10)
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]

        def heard(begin: str) -> Heard:
            for said in monitor.listen():
                command = str(said["command"])
                if command.startswith(begin):
                    return Heard(said["time"], command.split())
            raise AssertionError("nobody says anything any more")

        yield heard
    client.close()
