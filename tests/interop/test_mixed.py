"""BullMQ's producers and workers, and ours, on one queue."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler import JobContext
from scheduler.bullmq import NewJob, Queue
from scheduler.embedded.redis import EmbeddedRedis
from tests.interop import peers
from tests.interop.conftest import StartPeer
from tests.interop.peers import Peer
from tests.interop.sides import Ends, working
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
HURRY: dict[str, Any] = {
    "lockDuration": 1000,
    "stalledInterval": 300,
    "concurrency": 5,
    "drainDelay": 1,
}
MIXED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"value": {"number": 1}}, {}),
    ({"value": 2}, {"priority": 3}),
    ({"value": 3}, {"delay": 100}),
    ({"value": 4, "fails": 2}, {"attempts": 3, "backoff": {"type": "exponential", "delay": 20}}),
    ({"value": 5}, {"lifo": True}),
    ({"value": 6}, {"jobId": "mine-6"}),
    ({"fails": 9}, {"attempts": 2}),
]


def ended(redis: Any, queue: str = "mail") -> int:
    return Ends(redis).ended(queue)


def assert_whole(redis: Any, ids: set[str], queue: str = "mail") -> None:
    """Each job is in one place, ended; and has a hash; nothing else is left."""
    completed, failed = (
        set(redis.zrange(f"bull:{queue}:{state}", 0, -1)) for state in ("completed", "failed")
    )
    assert completed | failed == ids
    assert completed & failed == set()
    for place in ("wait", "active", "prioritized", "delayed", "stalled", "paused"):
        assert not redis.exists(f"bull:{queue}:{place}"), place
    hashes = {
        key.rsplit(":", 1)[-1] for key in redis.scan_iter(f"bull:{queue}:*", _type="hash")
    } - {"meta"}
    assert hashes == ids
    assert not list(redis.scan_iter(f"bull:{queue}:*:lock"))


@pytest.fixture(params=["node", "node5", "official"])
def other(
    request: pytest.FixtureRequest, redis: Any, redis_server: EmbeddedRedis
) -> Iterator[Peer]:
    """Each of those with whom we share queues."""
    if request.param != "official":
        yield request.getfixturevalue(request.param)
    else:
        request.getfixturevalue("installed")
        with peers.official(redis_server.url) as peer:
            yield peer


def test_what_others_add_we_work(other: Peer, redis: Any, redis_server: EmbeddedRedis) -> None:
    ids = {str(other.queue("mail", "add", "job", data, opts)) for data, opts in MIXED}
    with working(redis_server.url, "mail"):
        wait_for(lambda: ended(redis) == len(MIXED), "all have ended")
    assert_whole(redis, ids)
    seen = {job: other.call("read", queue="mail", job=job) for job in ids}
    values = [seen[job]["returnvalue"] for job in redis.zrange("bull:mail:completed", 0, -1)]
    assert sorted(map(str, values)) == ["2", "3", "4", "5", "6", "{'number': 1}"]
    assert sorted(each["attemptsMade"] for each in seen.values()) == [1, 1, 1, 1, 1, 2, 3]


def test_what_we_add_others_work(other: Peer, redis: Any, redis_server: EmbeddedRedis) -> None:
    with Queue("mail", redis_server.url) as queue:
        ids = queue.add_many([NewJob("job", data, **opts) for data, opts in MIXED])
        other.work("mail", concurrency=3)
        wait_for(lambda: ended(redis) == len(MIXED), "all have ended")
        other.leave("mail")
        assert_whole(redis, set(ids))
        jobs = [queue.get_job(job_id) for job_id in ids]
    assert [job.value for job in jobs] == [{"number": 1}, 2, 3, 4, 5, 6, None]
    assert [job.attempts_made for job in jobs] == [1, 1, 1, 3, 1, 1, 2]
    assert (jobs[-1].state, jobs[-1].failed_reason) == ("failed", "not yet, 2")


def test_others_work_what_we_have_no_handler_for(
    other: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    data = {"value": 7}
    ids = {str(other.queue("mail", "add", "unknown", data, {"attempts": 1})) for _ in range(3)}
    with working(redis_server.url, "mail"):
        wait_for(lambda: redis.zcard("bull:mail:ring:unhandled") == 3, "we have returned them")
        other.work("mail", concurrency=3)
        wait_for(lambda: ended(redis) == 3, "all have ended")
        other.leave("mail")
    assert_whole(redis, ids)
    seen = [other.call("read", queue="mail", job=job) for job in ids]
    assert [(each["returnvalue"], each["attemptsMade"]) for each in seen] == [(7, 1)] * 3


def test_a_handler_of_ours_may_be_async(
    node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    together = asyncio.Barrier(2)

    async def meet(_: JobContext, data: dict[str, Any]) -> Any:
        async with together:
            return data["value"]

    first, second = node.add("mail", "job", {"value": 1}), node.add("mail", "job", {"value": 2})
    with working(redis_server.url, "mail", run=meet, concurrency=2):
        wait_for(lambda: ended(redis) == 2, "both have ended")
    assert [
        node.call("read", queue="mail", job=each)["returnvalue"] for each in (first, second)
    ] == [1, 2]


@contextmanager
def our_process(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of ours that can be killed."""
    command = [sys.executable, "-m", "tests.interop.ours", url, "mail"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def test_whoever_is_killed_no_job_is_lost(
    start_node: StartPeer, redis: Any, redis_server: EmbeddedRedis, full: bool
) -> None:
    jobs, seconds = (
        (2000, 0.05) if full else (300, 0.25)
    )  # four of five at once: long enough to be met at work
    url = redis_server.url
    first, second = start_node(), start_node()
    with Queue("mail", url) as queue, our_process(url) as doomed, our_process(url):
        first.work("mail", **HURRY, name="doomed")
        second.work("mail", **HURRY)
        ids = set(queue.add_many([NewJob("job", {"seconds": seconds}) for _ in range(jobs)]))
        wait_for(
            lambda: ended(redis) > jobs // 4 and held(redis, "doomed"), "Node has some in hand"
        )
        first.kill()
        lost = held(redis, "doomed")
        wait_for(lambda: ended(redis) > jobs // 2 and held(redis, f"-{doomed.pid}-"), "so have we")
        doomed.kill()
        doomed.wait()
        lost |= held(redis, f"-{doomed.pid}-")
        wait_for(
            lambda: queue.counts()["completed"] + queue.counts()["failed"] == jobs,
            "all have ended",
            timeout=60,
        )
        ended_by = {queue.get_job(job_id).worker for job_id in ids}
        assert_whole(redis, ids)
        stalled = {job_id: count for job_id in ids if (count := queue.get_job(job_id).stalled)}
        assert stalled.keys() <= lost, "only what the two had in hand runs again"
        assert stalled
        assert all(stalled.get(job_id, 0) > 1 for job_id in redis.zrange("bull:mail:failed", 0, -1))
    assert len(ended_by) == 4, "all have worked"


def held(redis: Any, worker: str, queue: str = "mail") -> set[str]:
    """The jobs in the hands of a worker whose name has this in it."""
    active = redis.lrange(f"bull:{queue}:active", 0, -1)
    return {
        job_id for job_id in active if worker in (redis.hget(f"bull:{queue}:{job_id}", "pb") or "")
    }


def test_node_hears_our_events(node: Peer, redis: Any, redis_server: EmbeddedRedis) -> None:
    node.call("listen", queue="mail")
    with Queue("mail", redis_server.url) as queue, working(redis_server.url, "mail"):
        good = queue.add("job", {"value": {"sent": 1}, "progress": 50, "seconds": 0.3})
        bad = queue.add("job", {"fails": 9}, attempts=2, backoff=20)
        wait_for(lambda: ended(redis) == 2, "both have ended")
        queue.pause()
        queue.resume()
        queue.clean()
    wait_for(lambda: "cleaned" in node.events("mail"), "all was heard")
    heard = [(each.event, each.fields) for each in node.heard if ":" not in each.event]
    of_good = [(event, fields) for event, fields in heard if fields.get("jobId") == good]
    assert of_good == [
        ("added", {"jobId": good, "name": "job"}),
        ("waiting", {"jobId": good}),
        ("active", {"jobId": good, "prev": "waiting"}),
        ("progress", {"jobId": good, "data": 50}),
        ("completed", {"jobId": good, "returnvalue": {"sent": 1}, "prev": "active"}),
    ]
    of_bad = [event for event, fields in heard if fields.get("jobId") == bad]
    assert of_bad == [
        "added",
        "waiting",
        "active",
        "delayed",
        "waiting",
        "active",
        "failed",
        "retries-exhausted",
    ]
    assert [event for event, fields in heard if "jobId" not in fields] == [
        "drained",
        "paused",
        "resumed",
        "cleaned",
    ]


def test_node_waits_for_the_end_of_a_job_that_we_work(
    node: Peer, redis: Any, redis_server: EmbeddedRedis
) -> None:
    node.call("listen", queue="mail")
    job_id = node.add("mail", "job", {"seconds": 0.2, "value": 7})
    with working(redis_server.url, "mail"):
        wait_for(lambda: "completed" in node.events("mail"), "Node has heard of it")
    assert node.job("mail", job_id, "getState") == "completed"
    assert node.call("read", queue="mail", job=job_id)["returnvalue"] == 7


def test_node_sees_our_worker(node: Peer, redis_server: EmbeddedRedis) -> None:
    with working(redis_server.url, "mail") as worker:
        [listed] = wait_for(lambda: node.queue("mail", "getWorkers"), "it is listed")
    assert listed["name"] == "mail"
    assert listed["rawname"].endswith(f":w:{worker.name}")
