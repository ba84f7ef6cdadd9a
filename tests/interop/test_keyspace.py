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
    def delayed() -> Any:
        """Dump what is left once both jobs are delayed."""
        wait_for(lambda: redis.zcard("bull:mail:delayed") == 2, "both are delayed", every=0.01)
        found = dump(redis)
        for number in ("1", "2"):
            left = int(found[f"bull:mail:{number}"].pop("delay"))
            assert 59_900 <= left <= 60_000, "Node's is what was left when it was moved"
        return found

    def add(side: NodeSide | OurSide) -> None:
        side.add("unknown", {"later": 60_000}, attempts=1)
        side.add("unknown", {"later": 60_000}, attempts=2, priority=3)

    add(NodeSide(redis, node))
    node.work("mail", concurrency=1)
    theirs = delayed()
    node.leave("mail")
    redis.flushall()
    add(OurSide(redis, redis_server.url))
    # Returned often enough for the longest delay, so that no job is due again meanwhile.
    redis.zadd(COUNTS, {each: 8 * 1000 * int(redis.time()[0]) + 7 for each in ("1", "2")})
    with working(redis_server.url, "mail"):
        ours = delayed()
    ours = {key: value for key, value in ours.items() if ":ring:" not in key}
    assert differences(ours, theirs) == []
