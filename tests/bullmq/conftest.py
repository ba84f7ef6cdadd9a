"""A queue of the client."""

from collections.abc import Iterator

import pytest

from scheduler.bullmq import Queue
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis


@pytest.fixture
def queue(redis: Client, redis_server: EmbeddedRedis) -> Iterator[Queue]:
    with Queue("video", redis_server.url) as made:
        yield made
