"""A fleet of one Python and one Node worker: neither leases jobs that it cannot begin."""

import random
import threading
from collections import Counter
from typing import Any

from scheduler import JobContext
from scheduler.bullmq import NewJob, Queue
from scheduler.embedded.redis import EmbeddedRedis
from tests.interop.peers import Peer
from tests.interop.sides import body, working
from tests.support.waiting import rest, wait_for

JOBS, SLOW, SLOTS = 3000, 90, 16


def most_active(events: list[tuple[str, dict[str, str]]]) -> int:
    """Return the largest number of active jobs. A script writes ends before starts."""
    active, most = set[str](), 0
    for _, fields in events:
        if fields["event"] == "active":
            active.add(fields["jobId"])
        elif fields.get("prev") == "active":
            active.discard(fields["jobId"])
        most = max(most, len(active))
    return most


def test_a_mixed_fleet_has_no_more_active_jobs_than_slots(
    node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    ours: list[str] = []
    sampled: list[int] = []
    done = threading.Event()

    def run(ctx: JobContext, data: dict[str, Any]) -> Any:
        ours.append(ctx.id)
        return body(ctx, data)

    def sample() -> None:
        while not done.is_set():
            sampled.append(redis.llen("bull:mail:active"))
            rest(0.002)

    slow = set(random.Random(1).sample(range(JOBS), SLOW))
    jobs = [NewJob("job", {"seconds": 0.5} if number in slow else {}) for number in range(JOBS)]
    redis.hset("bull:mail:meta", "opts.maxLenEvents", 100 * JOBS)
    with Queue("mail", redis_server.url) as queue:
        queue.pause()
        ids = queue.add_many(jobs)
        # Locks are checked often, but do not expire if a process does not run for a while.
        node.work("mail", concurrency=SLOTS, stalledInterval=500)
        with working(redis_server.url, "mail", run=run, concurrency=SLOTS, stalled_ms=500):
            sampler = threading.Thread(target=sample)
            sampler.start()
            queue.resume()
            try:
                wait_for(
                    lambda: queue.counts()["completed"] + queue.counts()["failed"] == JOBS,
                    "all jobs have ended",
                )
            finally:
                done.set()
                sampler.join()
        node.leave("mail")
        assert queue.counts()["failed"] == 0
    events = redis.xrange("bull:mail:events")
    assert max(sampled) <= 2 * SLOTS
    assert most_active(events) <= 2 * SLOTS
    assert not [fields for _, fields in events if fields["event"] in ("stalled", "failed")]
    theirs = [each.id for each in node.ran]
    assert Counter([*ours, *theirs]) == Counter(ids), "each job has run once"
    assert ours, "the Python worker has run some jobs"
    assert theirs, "the Node worker has run some jobs"
