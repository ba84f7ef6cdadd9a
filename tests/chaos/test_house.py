"""The servers under attack come back, whatever their disks have gone through."""

import contextlib
from collections.abc import Iterator

import pytest
import redis

from tests.chaos.house import Redis


@pytest.fixture
def server() -> Iterator[Redis]:
    made = Redis()
    try:
        assert not made.start()
        yield made
    finally:
        made.stop()


def client(server: Redis) -> "contextlib.closing[redis.Redis]":
    return contextlib.closing(redis.Redis(port=server.port))


@pytest.mark.parametrize(("how", "forgot", "left"), [("killed", False, 100), ("empty", True, 0)])
def test_a_redis_that_is_restarted_says_what_it_forgot(
    server: Redis, how: str, forgot: bool, left: int
) -> None:
    with client(server) as before:
        for number in range(100):
            before.set(f"key-{number}", "x" * 100)
        before.bgrewriteaof()
    assert server.restart(how, 0.0) is forgot
    with client(server) as after:
        assert after.dbsize() == left


def test_a_redis_that_cannot_read_its_file_comes_back_without_it_and_says_so(server: Redis) -> None:
    with client(server) as before:
        for number in range(100):
            before.set(f"key-{number}", "x" * 100)
        before.config_set("appendfsync", "always")
        before.set("last", "y")
    (spoiled,) = (path for path in server._files(".aof") if path.stat().st_size > 5000)
    with spoiled.open("r+b") as file:
        file.seek(3000)
        file.write(b"?" * 200)
    assert server.restart("killed", 0.0) is True
    with client(server) as after:
        assert after.dbsize() == 0
