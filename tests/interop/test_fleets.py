"""Fleets with BullMQ 5 and 6, what the queue as a whole is told, and jobs that nobody should have
written so.
"""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import JobContext
from scheduler.bullmq import Queue
from scheduler.embedded.redis import EmbeddedRedis
from tests.interop.peers import Peer
from tests.interop.sides import working
from tests.support.waiting import rest, wait_for

NAMES = ("five", "six", "ours")


class Fleet:
    """Who can pause, add to and resume the queue mail."""

    def __init__(self, five: Peer, six: Peer, url: str, compat: str = "auto") -> None:
        self._peers = {"five": five, "six": six}
        self._ours = Queue("mail", url, compat=compat)

    def pause(self, who: str) -> None:
        self._ours.pause() if who == "ours" else self._peers[who].queue("mail", "pause")

    def resume(self, who: str) -> None:
        self._ours.resume() if who == "ours" else self._peers[who].queue("mail", "resume")

    def add(self, who: str) -> str:
        return (
            self._ours.add("job", {}) if who == "ours" else self._peers[who].add("mail", "job", {})
        )

    def close(self) -> None:
        self._ours.close()


@pytest.fixture
def fleet(node5: Peer, node: Peer, redis_server: EmbeddedRedis) -> Iterator[Fleet]:
    made = Fleet(node5, node, redis_server.url)
    yield made
    made.close()


@pytest.mark.parametrize("paused_by", NAMES)
def test_what_was_added_while_it_was_paused_is_orphaned_by_nobody(
    paused_by: str, fleet: Fleet, redis: Any, redis_server: EmbeddedRedis
) -> None:
    """Version 5 has a list of its own for what is added meanwhile, version 6 has none."""
    before = [fleet.add(who) for who in NAMES]
    fleet.pause(paused_by)
    ids = {*before, *(fleet.add(who) for _ in range(2) for who in NAMES)}
    fleet.resume("ours")
    assert set(redis.lrange("bull:mail:wait", 0, -1)) == ids
    assert not redis.exists("bull:mail:paused")
    with working(redis_server.url, "mail"):
        wait_for(lambda: redis.zcard("bull:mail:completed") == len(ids), "all have run")


@pytest.mark.parametrize(
    ("compat", "paused_by", "resumed_by"),
    list(itertools.product(("5", "auto"), ("five", "ours"), ("five", "six"))),
)
def test_what_we_add_while_it_is_paused_survives_whoever_resumes(
    compat: str,
    paused_by: str,
    resumed_by: str,
    node5: Peer,
    node: Peer,
    redis: Any,
    redis_server: EmbeddedRedis,
) -> None:
    """Version 5 puts its list in place of the other: what is not in it is lost to workers."""
    fleet = Fleet(node5, node, redis_server.url, compat)
    ids = {fleet.add("six"), fleet.add("five"), fleet.add("ours")}
    if compat == "auto":
        redis.hset(
            "bull:mail:meta", "version", "bullmq:5.81.5"
        )  # as one of version 5 leaves it that opens it last
    fleet.pause(paused_by)
    ids |= {fleet.add(who) for who in ("ours", "five", "ours")}
    fleet.resume(resumed_by)
    with working(
        redis_server.url, "mail", dialect={"mail": {"dialect": "bullmq", "compat": compat}}
    ):
        wait_for(lambda: redis.zcard("bull:mail:completed") == len(ids), "all have run")
    fleet.close()


@pytest.mark.parametrize("who", NAMES)
def test_nobody_takes_a_job_of_a_queue_that_is_paused(
    who: str, fleet: Fleet, redis: Any, redis_server: EmbeddedRedis
) -> None:
    with working(redis_server.url, "mail"):
        fleet.pause(who)
        ids = [fleet.add(each) for each in NAMES]
        rest(0.3)
        assert redis.zcard("bull:mail:completed") == 0
        fleet.resume("ours")
        wait_for(lambda: redis.zcard("bull:mail:completed") == len(ids), "all have run")


@pytest.mark.parametrize("who", NAMES)
def test_nothing_begins_after_a_pause_of_bullmq(
    who: str, fleet: Fleet, redis: Any, redis_server: EmbeddedRedis
) -> None:
    ran: list[str] = []
    began: list[str] = []
    go = threading.Event()

    def held(ctx: JobContext, data: object) -> None:
        if (
            len(ran) < 200
        ):  # a worker that has just run many jobs must not lease more than its slots
            ran.append(ctx.id)
            return
        began.append(ctx.id)
        go.wait(60)

    ids = [fleet.add(NAMES[number % 3]) for number in range(220)]
    try:
        with working(redis_server.url, "mail", run=held, concurrency=2):
            wait_for(lambda: len(began) == 2, "two run")
            fleet.pause(who)
            go.set()
            wait_for(lambda: redis.zcard("bull:mail:completed") == 202, "what had begun has ended")
            rest(0.3)
            assert (len(began), redis.llen("bull:mail:active")) == (2, 0)
            fleet.resume("ours")
            wait_for(lambda: redis.zcard("bull:mail:completed") == 220, "all have run")
    finally:
        go.set()
    assert sorted(ran + began) == sorted(ids)


def written_literally(redis: Any, priority: int, delay: int = 10) -> str:
    """Submit a job as the sketch of the protocol says, word by word."""
    job_id = str(redis.incr("bull:mail:id"))
    backoff = {"type": "exponential", "delay": delay}
    opts = {
        "priority": priority,
        "attempts": 3,
        "backoff": backoff,
        "removeOnComplete": False,
        "removeOnFail": False,
    }
    redis.hset(
        f"bull:mail:{job_id}",
        mapping={
            "name": "job",
            "data": json.dumps({"fails": 9}),
            "opts": json.dumps(opts),
            "progress": "0",
            "delay": "0",
            "timestamp": str(int(time.time() * 1000)),
            "attemptsMade": "0",
        },
    )
    if priority > 0:
        redis.zadd("bull:mail:prioritized", {job_id: priority})
    else:
        redis.rpush("bull:mail:wait", job_id)
    redis.xadd(
        "bull:mail:events",
        {"event": "waiting", "jobId": job_id, "timestamp": int(time.time() * 1000)},
    )
    return job_id


@pytest.mark.parametrize("priority", [0, 1])
def test_a_job_written_as_the_sketch_says_is_repaired_and_runs_its_three_attempts(
    priority: int, node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    job_id = written_literally(redis, priority)
    with working(redis_server.url, "mail", block="300ms"):
        wait_for(lambda: redis.zscore("bull:mail:failed", job_id), "it has failed for good")
    fields = redis.hgetall(f"bull:mail:{job_id}")
    assert (fields["ats"], fields["atm"]) == ("3", "3")
    assert "attemptsMade" not in fields
    assert node.call("read", queue="mail", job=job_id)["attemptsMade"] == 3


def test_one_that_we_picked_up_and_put_back_is_safe_for_node(
    node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    """Node alone would try such a job for ever: its counter is hidden by the field that the sketch
    adds.
    """
    job_id = written_literally(redis, 0, delay=400)
    with working(redis_server.url, "mail", block="300ms"):
        wait_for(lambda: redis.hget(f"bull:mail:{job_id}", "atm") == "1", "we have tried it")
    node.work("mail")
    wait_for(lambda: redis.zscore("bull:mail:failed", job_id), "it has failed for good")
    assert redis.hget(f"bull:mail:{job_id}", "ats") == "3"


def test_a_limit_of_the_whole_queue_is_kept(
    node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    node.queue("mail", "setGlobalConcurrency", 2)
    node.queue("mail", "addBulk", [{"name": "job", "data": {"seconds": 0.05}}] * 12)
    most = 0
    with working(redis_server.url, "mail", concurrency=8):
        while redis.zcard("bull:mail:completed") < 12:
            most = max(most, redis.llen("bull:mail:active"))
    assert most == 2


def test_a_rate_of_the_whole_queue_is_kept(
    node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    node.queue("mail", "setGlobalRateLimit", 3, 400)
    node.queue("mail", "addBulk", [{"name": "job", "data": {}}] * 9)
    with working(redis_server.url, "mail", concurrency=8):
        wait_for(lambda: redis.zcard("bull:mail:completed") == 9, "all have run")
    started = sorted(
        int(redis.hget(f"bull:mail:{job_id}", "processedOn")) for job_id in range(1, 10)
    )
    assert started[3] - started[0] >= 390, started
    assert started[6] - started[3] >= 390, started


def test_a_schedule_of_node_goes_on_with_our_workers(
    node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    template = {"name": "job", "data": {"value": 1}, "opts": {}}
    node.queue("mail", "upsertJobScheduler", "often", {"every": 200}, template)
    with working(redis_server.url, "mail"):
        wait_for(
            lambda: redis.zcard("bull:mail:completed") >= 3,
            "three of its jobs have run",
            timeout=60,
        )
    assert redis.zscore("bull:mail:repeat", "often") is not None
    fires = sorted(
        int(job_id.rsplit(":", 1)[-1]) for job_id in redis.zrange("bull:mail:completed", 0, -1)
    )
    # A worker that is late skips fires, as BullMQ's own do; no fire is off the grid or repeated.
    gaps = {later - earlier for earlier, later in itertools.pairwise(fires)}
    assert all(gap > 0 and gap % 200 == 0 for gap in gaps), gaps
