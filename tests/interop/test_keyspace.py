"""The same, done by BullMQ on Node and by us, leaves the same in Redis."""

from typing import Any

import pytest

from scheduler.embedded.redis import EmbeddedRedis
from tests.interop.keyspace import differences, dump
from tests.interop.peers import Peer
from tests.interop.scenarios import SCENARIOS
from tests.interop.sides import NodeSide, OurSide


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_is_left_in_redis(
    name: str, node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    SCENARIOS[name](NodeSide(redis, node))
    theirs = dump(redis)
    redis.flushall()
    SCENARIOS[name](OurSide(redis, redis_server.url))
    assert differences(dump(redis), theirs) == []
