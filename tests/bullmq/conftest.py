"""A queue of the client, on a Redis that is empty."""

from collections.abc import Iterator

import pytest

from scheduler.bullmq import Queue
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis


@pytest.fixture
def redis(redis_server: EmbeddedRedis) -> Iterator[Client]:
    client = Client(redis_server.url)
    client.call("FLUSHALL")
    yield client
    client.close()


@pytest.fixture
def queue(redis: Client, redis_server: EmbeddedRedis) -> Iterator[Queue]:
    with Queue("video", redis_server.url) as made:
        yield made
