"""Job schedulers of BullMQ: our workers keep them going."""

import json
from typing import Any

import pytest

from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from tests.dialects.values import ended
from tests.interop.peers import Peer
from tests.support.waiting import wait_for


@pytest.mark.parametrize(
    "repeat", [{"every": 60_000}, {"pattern": "*/5 * * * *", "tz": "Europe/Berlin"}]
)
def test_who_takes_a_job_of_a_scheduler_adds_the_next_as_node_does(
    redis: Any, redis_server: EmbeddedRedis, node: Peer, repeat: dict[str, Any]
) -> None:
    client = Client(redis_server.url)
    queue, left = BullMQQueue(client, "mail", worker="w1"), []
    for ours in (True, False):
        redis.flushall()
        template = {"name": "tick", "data": {"a": 1}, "opts": {"priority": 2}}
        node.queue("mail", "upsertJobScheduler", "tick", repeat, template)
        for waiting in redis.zrange("bull:mail:delayed", 0, -1):  # whenever that is: now
            node.job("mail", waiting, "promote")
        if ours:
            [delivery] = queue.fetch(1, timeout=0)
            queue.finish([ended(delivery)])
        else:
            node.work("mail")
            wait_for(lambda: redis.zcard("bull:mail:completed") == 1, "it has run")
            node.leave("mail")
        [following] = redis.zrange("bull:mail:delayed", 0, -1)
        scheduler = redis.hgetall("bull:mail:repeat:tick")
        scheduler.pop("offset", None)  # depends on when it was made
        left.append((scheduler, following.split(":")[:2], _fields(redis, following)))
    assert left[0] == left[1]
    client.close()


def _fields(redis: Any, job: str) -> tuple[Any, ...]:
    fields = redis.hgetall(f"bull:mail:{job}")
    opts = json.loads(fields["opts"])
    return (
        fields["name"],
        fields["data"],
        fields["priority"],
        fields["rjk"],
        sorted(opts),
        opts["repeat"]["count"],
    )


def test_a_scheduler_that_has_come_to_its_end_is_left_alone(
    redis: Any, redis_server: EmbeddedRedis, node: Peer
) -> None:
    client = Client(redis_server.url)
    queue = BullMQQueue(client, "mail", worker="w1")
    node.queue("mail", "upsertJobScheduler", "tick", {"every": 10, "limit": 3}, {"name": "tick"})
    ran = 0
    while taken := queue.fetch(1, timeout=0.3):
        queue.finish([ended(each) for each in taken])
        ran += 1
    assert ran == 3
    client.close()
