"""A Redis that is empty, with keys as either preset names them."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.conveyor.job_pb2 import Job
from scheduler.dialects.conveyor.keys import PRESETS, Keys
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.embedded.redis import EmbeddedRedis
from tests.dialects.values import with_options

MakeQueue = Callable[..., ConveyorQueue]


@pytest.fixture
def redis(redis_server: EmbeddedRedis) -> Iterator[Client]:
    client = Client(redis_server.url)
    client.call("FLUSHALL")
    yield client
    client.close()


@pytest.fixture(params=PRESETS)
def keys(request: pytest.FixtureRequest) -> Keys:
    return Keys(request.param)


@pytest.fixture
def make_queue(redis: Client, keys: Keys) -> MakeQueue:
    def make(worker: str = "w1", name: str = "mail", **options: Any) -> ConveyorQueue:
        return ConveyorQueue(redis, name, worker=worker, keys=keys.names, **with_options(options))

    return make


def new(**fields: Any) -> Any:
    """A job that anybody might add."""
    return Job(**{"uuid": str(uuid4()), "type": "send", "queue": "mail", "payload": b"x", **fields})


def contents(redis: Client) -> dict[str, Any]:
    """Everything in Redis; of sorted sets pairs with the score."""
    found: dict[str, Any] = {}
    for key in sorted(redis.call("KEYS", "*")):
        match redis.call("TYPE", key):
            case b"list":
                value = redis.call("LRANGE", key, 0, -1)
            case b"zset":
                flat = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
                value = [
                    (member, float(score))
                    for member, score in zip(flat[::2], flat[1::2], strict=True)
                ]
            case b"set":
                value = sorted(redis.call("SMEMBERS", key))
            case b"hash":
                value = redis.call("HGETALL", key)
            case _:
                value = redis.call("GET", key)
        found[key.decode()] = value
    return found
