"""What BullMQ's own queues, limits and dashboards see of workers of ours, and what ours see of
theirs.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Note
from scheduler.embedded.redis import EmbeddedRedis
from tests.dialects.values import ended, fetch_all, retried
from tests.interop.conftest import StartPeer
from tests.interop.peers import Peer
from tests.support.waiting import WOKEN, wait_for


@pytest.fixture
def queue(redis: Any, redis_server: EmbeddedRedis) -> Any:
    client = Client(redis_server.url)
    yield BullMQQueue(client, "mail", worker="w1", compat="auto")
    client.close()


def test_dashboards_list_our_workers(queue: BullMQQueue, node: Peer) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.fetch, 0, timeout=2)
        wait_for(
            lambda: (
                [each["rawname"] for each in node.queue("mail", "getWorkers")]
                == ["bull:bWFpbA==:w:w1"]
            ),
            "it is",
        )
        node.add("mail", "send", {})
        waiting.result()


def test_a_global_limit_of_concurrency_is_kept(queue: BullMQQueue, node: Peer) -> None:
    node.queue("mail", "setGlobalConcurrency", 3)
    for _ in range(8):
        node.add("mail", "send", {})
    taken = queue.fetch(5, timeout=0)
    assert len(taken) == 3
    assert queue.fetch(5, timeout=0) == []
    _, more = queue.finish([ended(taken[0])], fetch=5)
    assert len(more) == 1


def test_a_global_rate_is_kept(queue: BullMQQueue, node: Peer) -> None:
    node.queue("mail", "setGlobalRateLimit", 2, 400)
    for _ in range(5):
        node.add("mail", "send", {})
    begun = time.monotonic()
    found: list[float] = []
    while len(found) < 5:
        taken = queue.fetch(5, timeout=60)
        found += [time.monotonic() - begun] * len(taken)
        queue.finish([ended(each) for each in taken])
    assert found[2] > 0.35
    assert found[4] > 0.75


def test_a_limit_set_by_hand_is_kept(queue: BullMQQueue, node: Peer) -> None:
    node.add("mail", "send", {})
    node.queue("mail", "rateLimit", 300)
    begun = time.monotonic()
    assert len(queue.fetch(5, timeout=60)) == 1
    assert 0.25 < time.monotonic() - begun < WOKEN


def test_a_paused_queue_is_left_alone_and_wakes_us_when_it_goes_on(
    queue: BullMQQueue, node: Peer
) -> None:
    node.queue("mail", "pause")
    node.add("mail", "send", {})
    assert queue.fetch(5, timeout=0.1) == []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.fetch, 5, timeout=60)
        begun = time.monotonic()
        node.queue("mail", "resume")
        assert len(waiting.result()) == 1
    assert time.monotonic() - begun < WOKEN


def test_version_5_pauses_and_resumes_and_no_job_is_lost(
    queue: BullMQQueue, start_node: StartPeer
) -> None:
    five, six = start_node(5), start_node(6)
    ids = [five.add("mail", "send", {}), six.add("mail", "send", {})]
    five.queue("mail", "pause")
    ids += [five.add("mail", "send", {}), six.add("mail", "send", {})]
    assert fetch_all(queue) == []
    ids.append(six.add("mail", "send", {}))
    assert fetch_all(queue) == []
    five.queue("mail", "resume")
    assert sorted(each.job.id for each in fetch_all(queue)) == sorted(ids)


def test_a_retry_while_version_5_has_paused_is_not_lost(
    queue: BullMQQueue, start_node: StartPeer
) -> None:
    five = start_node(5)
    five.add("mail", "send", {}, attempts=3)
    [delivery] = fetch_all(queue)
    five.queue("mail", "pause")
    five.add("mail", "send", {})
    queue.finish([retried(delivery)])
    five.queue("mail", "resume")
    assert len(fetch_all(queue)) == 2


def test_a_job_that_waits_for_one_that_is_active_follows_it(queue: BullMQQueue, node: Peer) -> None:
    keep = {"id": "one", "keepLastIfActive": True}
    first = node.add("mail", "send", {"n": 1}, deduplication=keep)
    [delivery] = fetch_all(queue)
    for n in (2, 3):
        assert node.add("mail", "send", {"n": n}, deduplication=keep) == first
    queue.finish([ended(delivery)])
    [following] = fetch_all(queue)
    assert following.job.payload == b'{"n":3}'
    queue.finish([ended(following)])
    assert queue._client.call("EXISTS", "bull:mail:de:one", "bull:mail:dn:one") == 0


def test_what_a_handler_says_is_progress_to_node(queue: BullMQQueue, node: Peer) -> None:
    job = node.add("mail", "send", {})
    node.call("listen", queue="mail")
    [delivery] = fetch_all(queue)
    queue.renew({delivery: Note(50.0, "half")}, lease=queue.lease)
    wait_for(lambda: "progress" in node.events("mail"), "it is heard")
    assert node.call("read", queue="mail", job=job)["progress"] == 50
    [heard] = [each.fields for each in node.heard if each.event == "progress"]
    assert heard == {"jobId": job, "data": 50}


def test_a_job_that_hides_its_attempts_is_repaired_and_has_all_of_them(
    queue: BullMQQueue, redis: Any
) -> None:
    fields = {
        "name": "send",
        "data": "{}",
        "opts": '{"attempts":3}',
        "timestamp": 1,
        "attemptsMade": 0,
    }
    redis.hset("bull:mail:7", mapping=fields)
    redis.rpush("bull:mail:wait", "7")
    for number in (1, 2, 3):
        [delivery] = fetch_all(queue)
        assert (delivery.attempt, delivery.job.policies()[0].max_attempts) == (number, 3)
        queue.finish([retried(delivery)])
        assert not redis.hexists("bull:mail:7", "attemptsMade")
    assert redis.hget("bull:mail:7", "atm") == "3"
