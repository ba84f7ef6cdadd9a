"""BullMQ's own producers and workers, and a Redis that is empty at the beginning of each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from subprocess import SubprocessError
from typing import Any

import pytest
import redis as redis_py

from scheduler.embedded.redis import EmbeddedRedis
from tests.interop import peers
from tests.interop.peers import Peer

StartPeer = Callable[..., Peer]


@pytest.fixture(scope="session")
def installed() -> None:
    """The peers; without them, and without a way to get them, nothing here can be tried."""
    try:
        peers.install()
    except (OSError, SubprocessError) as error:
        pytest.skip(f"BullMQ cannot be installed: {error}")


@pytest.fixture
def redis(redis_server: EmbeddedRedis) -> Iterator[Any]:
    """An empty Redis; its URL is `redis_server.url`."""
    with closing(redis_py.Redis.from_url(redis_server.url, decode_responses=True)) as client:
        client.flushall()
        yield client


@pytest.fixture
def start_node(installed: None, redis: Any, redis_server: EmbeddedRedis) -> Iterator[StartPeer]:
    """Start BullMQ on Node; it is killed at the end of the test."""
    with ExitStack() as stack:

        def start(version: int = 6, **options: Any) -> Peer:
            url = options.pop("url", redis_server.url)
            return stack.enter_context(peers.node(url, version, **options))

        yield start


@pytest.fixture(scope="session")
def shared(installed: None, redis_server: EmbeddedRedis) -> Iterator[dict[int, Peer]]:
    """BullMQ 5 and 6 on Node, for tests that kill nobody."""
    with peers.node(redis_server.url, 5) as five, peers.node(redis_server.url, 6) as six:
        yield {5: five, 6: six}


@pytest.fixture
def node(shared: dict[int, Peer], redis: Any) -> Iterator[Peer]:
    """BullMQ 6 on Node."""
    yield shared[6]
    shared[6].rest()


@pytest.fixture
def node5(shared: dict[int, Peer], redis: Any) -> Iterator[Peer]:
    """BullMQ 5 on Node."""
    yield shared[5]
    shared[5].rest()
