"""Flows whose parent is worked by the one and whose children by the other, whoever has added
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scheduler.bullmq import NewJob, Queue
from scheduler.embedded.redis import EmbeddedRedis
from tests.interop.peers import Peer
from tests.interop.scenarios import POLICIES
from tests.interop.sides import working
from tests.support.waiting import wait_for

ROADS = ["children are ours", "children are Node's"]


@contextmanager
def worked(road: str, node: Peer, url: str) -> Iterator[None]:
    """The one works the queue children, the other the queue parents."""
    ours, theirs = (
        ("children", "parents") if road == "children are ours" else ("parents", "children")
    )
    node.work(theirs)
    with working(url, ours):
        yield
    node.leave(theirs)


def add(road: str, node: Peer, url: str, child: dict[str, Any], **policy: Any) -> str:
    """Add a parent with two children, one of which is like this; whoever works the parent adds
    them.
    """
    if road == "children are ours":
        children = [
            {"name": "job", "queueName": "children", "data": {"value": 1}},
            {"name": "job", "queueName": "children", "data": child, "opts": policy},
        ]
        flow = {
            "name": "job",
            "queueName": "parents",
            "data": {"value": "all"},
            "children": children,
        }
        return str(node.call("flow", flow=flow)["id"])
    with Queue("parents", url) as queue:
        parts = [
            NewJob("job", {"value": 1}, queue="children"),
            NewJob("job", child, queue="children", **policy),
        ]
        return queue.add_flow(NewJob("job", {"value": "all"}, children=parts))


@pytest.mark.parametrize("road", ROADS)
def test_a_parent_runs_when_its_children_have(
    road: str, node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    parent = add(road, node, redis_server.url, {"value": {"number": 2}})
    with worked(road, node, redis_server.url), Queue("parents", redis_server.url) as queue:
        wait_for(lambda: queue.get_job(parent).state == "completed", "the parent has run")
        job = queue.get_job(parent)
    assert sorted(map(str, job.children.values())) == ["1", "{'number': 2}"]
    assert sorted(map(str, node.job("parents", parent, "getChildrenValues").values())) == [
        "1",
        "{'number': 2}",
    ]
    assert job.value == "all"


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_child_that_fails_does_what_its_policy_says(
    policy: str, road: str, node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    parent = add(road, node, redis_server.url, {"fatal": "broken"}, **{policy: True})
    fails = policy == "failParentOnFailure"
    with worked(road, node, redis_server.url), Queue("parents", redis_server.url) as queue:
        wait_for(
            lambda: queue.get_job(parent).state == ("failed" if fails else "completed"),
            "the parent has ended",
        )
        job = queue.get_job(parent)
    key = f"bull:parents:{parent}"
    assert (job.value, job.failed_reason) == (
        (None, f"child {redis.zrange(f'{key}:unsuccessful', 0, -1)[0]} failed")
        if fails
        else ("all", None)
    )
    ignored = policy in ("continueParentOnFailure", "ignoreDependencyOnFailure")
    assert list(redis.hvals(f"{key}:failed")) == (["broken"] if ignored else [])
    assert job.attempts_started == 1


@pytest.mark.parametrize("road", ROADS)
def test_a_child_that_fails_without_a_policy_holds_its_parent(
    road: str, node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    parent = add(road, node, redis_server.url, {"fatal": "broken"})
    with worked(road, node, redis_server.url), Queue("children", redis_server.url) as queue:
        wait_for(
            lambda: (queue.counts()["completed"], queue.counts()["failed"]) == (1, 1),
            "the children have ended",
        )
        assert node.job("parents", parent, "getState") == "waiting-children"
        assert redis.scard(f"bull:parents:{parent}:dependencies") == 1
