"""The same, done by BullMQ on Node and by us, leaves the same in Redis."""

from typing import Any

import pytest

from scheduler.embedded.redis import EmbeddedRedis
from tests.interop.keyspace import differences, dump
from tests.interop.peers import Peer
from tests.interop.scenarios import SCENARIOS
from tests.interop.sides import NodeSide, OurSide, working
from tests.support.waiting import wait_for

COUNTS = "bull:mail:ring:unhandled"


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_is_left_in_redis(
    name: str, node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    SCENARIOS[name](NodeSide(redis, node))
    theirs = dump(redis)
    redis.flushall()
    SCENARIOS[name](OurSide(redis, redis_server.url))
    assert differences(dump(redis), theirs) == []


def test_a_job_that_we_return_is_left_as_by_move_to_delayed(
    node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    def add(side: NodeSide | OurSide) -> None:
        side.add("unknown", {"later": 60_000}, attempts=1)
        side.add("unknown", {"later": 60_000}, attempts=2, priority=3)

    def wait() -> None:
        wait_for(lambda: redis.zcard("bull:mail:delayed") == 2, "both are delayed")

    def left() -> Any:
        found = dump(redis)
        for number in ("1", "2"):
            delay = int(found[f"bull:mail:{number}"].pop("delay"))
            assert 50_000 < delay <= 60_000, "Node's is less by the time until it was moved"
        return {key: value for key, value in found.items() if ":ring:" not in key}

    add(NodeSide(redis, node))
    node.work("mail", concurrency=1)
    wait()
    node.leave("mail")
    theirs = left()
    redis.flushall()
    add(OurSide(redis, redis_server.url))
    # Returned often enough for the longest delay, so that no job is due again meanwhile.
    redis.zadd(COUNTS, {each: 8 * 1000 * int(redis.time()[0]) + 7 for each in ("1", "2")})
    with working(redis_server.url, "mail"):
        wait()
    assert differences(left(), theirs) == []
