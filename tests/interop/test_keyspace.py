"""The same, done by BullMQ on Node and by us, leaves the same in Redis."""

from typing import Any

import pytest

from scheduler.embedded.redis import EmbeddedRedis
from tests.interop.keyspace import differences, dump
from tests.interop.peers import Peer
from tests.interop.scenarios import SCENARIOS
from tests.interop.sides import NodeSide, OurSide

PENDING = {
    "delay_worked", "success", "retry", "retry_later", "failure", "removal", "stall_for_good", "clean",
    "flow_of_three_generations", "flow_with_failParentOnFailure", "flow_with_continueParentOnFailure",
    "flow_with_ignoreDependencyOnFailure", "flow_with_removeDependencyOnFailure",
    "flow_whose_child_fails_without_a_policy",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - PENDING))
def test_the_same_is_left_in_redis(name: str, node: Peer, redis: Any, redis_server: EmbeddedRedis) -> None:
    SCENARIOS[name](NodeSide(redis, node))
    theirs = dump(redis)
    redis.flushall()
    SCENARIOS[name](OurSide(redis, redis_server.url))
    assert differences(dump(redis), theirs) == []
