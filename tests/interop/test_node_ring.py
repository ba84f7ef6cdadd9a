"""Jobs of the ring that Node's workers run: their ends come back, each once, by events or without
them.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from scheduler import IllegalTransition, RetryPolicy, Scheduler, State, UnsupportedByDialect
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client
from scheduler.dialects.interface import BegunMark, Cancelling, Known
from scheduler.dialects.queue_options import QueueOptions
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.model.attempts import AttemptEnd, QueuedJob
from scheduler.model.oneshot import attempt_id
from tests.dialects.values import AT_ONCE, back, ended, fetch_all, job, retried
from tests.interop.conftest import StartPeer
from tests.interop.peers import Peer
from tests.support.waiting import wait_for

QUICK = RetryPolicy(initial_delay="20ms", jitter=False)


@pytest.fixture
def queue(redis_server: EmbeddedRedis) -> Iterator[BullMQQueue]:
    client = Client(redis_server.url)
    client.call("FLUSHALL")
    yield BullMQQueue(
        client, "mail", installation="3f1e", worker="w1", options=QueueOptions(reaper=AT_ONCE)
    )
    client.close()


def settled(queue: BullMQQueue, n: int) -> list[AttemptEnd]:
    """Read so many ends, and acknowledge them; there are no more."""
    found: list[AttemptEnd] = []

    def look() -> bool:
        read = queue.outcomes(100, timeout=0.05)
        found.extend(end for each in read for end in each.ends)
        queue.acknowledge(read)
        return len(found) >= n

    wait_for(look, f"{n} ends", timeout=60)
    assert queue.outcomes(100, timeout=0.05) == []
    return found


def test_every_end_of_a_node_worker_is_read_once(queue: BullMQQueue, node: Peer) -> None:
    policy = {"initial_delay_us": 100_000, "jitter": False}
    jobs = [
        job(payload=payload, policy=policy)
        for payload in (b'{"value":[1]}', b'{"fails":1}', b'{"fails":9}', b'{"fatal":"no way"}')
    ]
    good, flaky, bad, fatal = (each.id for each in jobs)
    queue.push(jobs, epoch="")
    node.work("mail")
    found = settled(queue, 7)
    assert sorted((end.job_id, end.attempt, end.state) for end in found) == sorted(
        [
            (good, 1, State.COMPLETED),
            (flaky, 1, State.RETRYING),
            (flaky, 2, State.COMPLETED),
            (bad, 1, State.RETRYING),
            (bad, 2, State.RETRYING),
            (bad, 3, State.DEAD_LETTER),
            (fatal, 1, State.FAILED),
        ]
    )
    by_job = {end.job_id: end for end in found}
    assert (by_job[good].result, by_job[good].worker, by_job[good].tenant) == (
        b"[1]",
        "node",
        "acme",
    )
    assert (by_job[fatal].error, by_job[fatal].category) == ("no way", "permanent")
    assert (by_job[bad].error, by_job[bad].category) == ("not yet, 3", "temporary")
    assert queue.known([each.id for each in jobs]) == [None] * 4


@pytest.mark.parametrize("left", [0, 1])
def test_ends_are_found_in_the_jobs_when_the_events_are_gone(
    queue: BullMQQueue, node: Peer, left: int
) -> None:
    jobs = [job(payload=b'{"value":1}') for _ in range(30)]
    queue.push(jobs, epoch="")
    assert queue.outcomes(100, timeout=0.01) == []  # so it has read some events
    node.work("mail")
    client = queue._client
    wait_for(lambda: client.call("ZCARD", "bull:mail:completed") == 30, "all have ended")
    client.call("XTRIM", "bull:mail:events", "MAXLEN", left)
    begun = time.monotonic()
    found = settled(queue, 30)
    assert time.monotonic() - begun < 30
    assert {end.job_id for end in found} == {each.id for each in jobs}
    assert client.call("ZCARD", "bull:mail:completed") == 0


def test_ends_are_found_in_the_events_when_the_jobs_are_gone(
    queue: BullMQQueue, node: Peer
) -> None:
    good, bad = job(payload=b'{"value":1}'), job(payload=b'{"fatal":"broken"}')
    queue.push([good, bad], epoch="")
    node.work("mail")
    client = queue._client
    wait_for(
        lambda: (
            client.call("ZCARD", "bull:mail:failed") + client.call("ZCARD", "bull:mail:completed")
            == 2
        ),
        "ends",
    )
    for state in ("completed", "failed"):
        node.queue("mail", "clean", 0, 100, state)
    assert {(end.job_id, end.state, end.result, end.error) for end in settled(queue, 2)} == {
        (good.id, State.COMPLETED, b"1", None),
        (bad.id, State.FAILED, None, "broken"),
    }


def test_limits_of_others_do_not_remove_what_is_not_settled(queue: BullMQQueue, node: Peer) -> None:
    fed = job(payload=b'{"value":1}')
    queue.push([fed], epoch="")
    node.work("mail")
    wait_for(lambda: queue.known([fed.id]) == [Known(None, 1)], "it has ended")
    node.leave("mail")
    for _ in range(3):
        node.add("mail", "send", {}, removeOnComplete=1)
    for delivery in fetch_all(queue):
        queue.finish([ended(delivery)])
    assert queue.known([fed.id]) == [Known(None, 1)]
    assert [end.job_id for end in settled(queue, 1)] == [fed.id]


def test_a_cancel_of_what_node_has_is_refused(queue: BullMQQueue, node: Peer) -> None:
    fed = job(payload=b'{"seconds":0.5}')
    queue.push([fed], epoch="")
    node.work("mail")
    wait_for(lambda: node.ran, "it runs")
    assert queue.cancel([fed.id]) == [Cancelling.REFUSED]
    assert [end.state for end in settled(queue, 1)] == [State.COMPLETED]


def test_force_takes_a_job_from_a_worker_of_node(queue: BullMQQueue, node: Peer) -> None:
    fed, other = job(payload=b'{"seconds":1}'), job(payload=b'{"value":1}')
    queue.push([fed], epoch="")
    node.work("mail")
    wait_for(lambda: node.ran, "it runs")
    assert queue.cancel([fed.id], force=True) == [Cancelling.REMOVED]
    assert queue.known([fed.id]) == [None]
    queue.push([other], epoch="")
    assert [end.job_id for end in settled(queue, 1)] == [other.id]
    assert queue.cancel([fed.id], force=True) == [Cancelling.UNKNOWN]


def test_what_a_killed_node_worker_had_is_taken_back_as_the_ring_decides(
    queue: BullMQQueue, start_node: StartPeer
) -> None:
    node, fed = start_node(), job(payload=b'{"seconds":60}')
    queue.push([fed], epoch="")
    node.work("mail", lockDuration=300, stalledInterval=60_000)
    wait_for(lambda: node.ran, "it runs")
    assert queue.known([fed.id])[0]._replace(started_at=None) == Known(State.RUNNING, 1)  # type: ignore[union-attr]
    node.kill()
    wait_for(lambda: queue.recover(retried) == 1, "it is taken back")
    [delivery] = fetch_all(queue)
    previous = delivery.job.previous_attempt_id
    assert previous is not None
    assert (delivery.job, delivery.attempt) == (replace(fed, previous_attempt_id=previous), 2)
    assert queue.finish([ended(delivery)])[0] == [True]
    assert [(end.attempt, end.state) for end in settled(queue, 2)] == [
        (1, State.RETRYING),
        (2, State.COMPLETED),
    ]


def test_attempts_of_node_are_previous_ones_of_ours(
    queue: BullMQQueue, start_node: StartPeer
) -> None:
    """An attempt of ours fails, one is put back, one of Node fails, then one of ours runs."""
    hour = {"initial_delay_us": 3_600_000_000, "jitter": False}
    fed, node, client = job(payload=b'{"fails":9}', policy=hour), start_node(), queue._client
    queue.push([fed], epoch="")
    [first] = queue.fetch(1, timeout=0)
    queue.finish([retried(first)])
    [second] = queue.fetch(1, timeout=60)
    queue.finish([back(second)])
    node.work("mail")
    wait_for(lambda: client.call("ZCARD", "bull:mail:delayed") == 1, "its attempt has failed")
    node.kill()
    _, third = sorted(settled(queue, 2), key=lambda end: end.attempt)
    assert (third.attempt, third.worker, third.uncharged) == (3, "node", 1)
    assert third.previous_attempt_id == named(fed, "w1", second.sequence)
    client.call("ZADD", "bull:mail:delayed", 0, fed.id)  # it is due
    [fourth] = queue.fetch(1, timeout=60)
    assert (fourth.attempt, fourth.charged) == (4, 3)
    assert fourth.job.previous_attempt_id == named(fed, "node", third.sequence)
    [held] = queue.held()
    assert held.job.previous_attempt_id == fourth.job.previous_attempt_id


def named(job: QueuedJob, worker: str, sequence: int) -> str:
    return str(attempt_id(UUID(job.id), worker, sequence, feed=1, attempt=0))


def test_a_job_that_node_loses_too_often_is_a_dead_letter(
    queue: BullMQQueue, start_node: StartPeer
) -> None:
    fed = job(payload=b'{"seconds":60}')
    queue.push([fed], epoch="")

    def lose(peer: Peer) -> None:
        peer.work("mail", lockDuration=200, stalledInterval=100, maxStalledCount=1)
        wait_for(
            lambda: peer.ran or queue.known([fed.id]) == [Known(None, 3)], "it runs, or has failed"
        )
        peer.kill()

    for _ in range(3):
        lose(start_node())
    [last] = settled(queue, 1)
    assert (last.attempt, last.state, last.category) == (3, State.DEAD_LETTER, "system")
    assert last.error == "job stalled more than allowable limit"


def orphan(redis_url: str, queue: BullMQQueue, fed: QueuedJob) -> None:
    """Lease a job to a worker of this library that dies before it begins the job."""
    queue.push([fed], epoch="")
    client = Client(redis_url)
    dead = BullMQQueue(client, "mail", worker="dead", lease=timedelta(milliseconds=100))
    assert len(dead.fetch(1, timeout=0, begun=BegunMark(1, 0))) == 1
    client.close()


def test_node_gives_all_its_attempts_to_a_job_that_we_have_redelivered(
    queue: BullMQQueue, node: Peer, redis_server: EmbeddedRedis
) -> None:
    policy = {"max_attempts": 2, "initial_delay_us": 100_000, "jitter": False}
    fed = job(payload=b'{"fails":9}', policy=policy)
    orphan(redis_server.url, queue, fed)
    wait_for(lambda: queue.recover(retried) == 1, "it is redelivered")
    node.work("mail")
    last = settled(queue, 2)[-1]
    assert (last.state, last.attempt, last.uncharged) == (State.DEAD_LETTER, 3, 1)
    assert len(node.ran) == 2


def test_node_charges_an_unbegun_lease_that_it_finds_first(
    queue: BullMQQueue, node: Peer, redis_server: EmbeddedRedis
) -> None:
    """Its check for stalled jobs knows no begun marks."""
    fed = job(payload=b'{"value":1}')
    orphan(redis_server.url, queue, fed)
    node.work("mail", lockDuration=1000, stalledInterval=100, maxStalledCount=1)
    found: list[AttemptEnd] = []

    def has_ended() -> bool:
        for each in queue.outcomes(100, timeout=0.05):
            found.extend(each.ends)
        return bool(found) and found[-1].state.terminal

    wait_for(has_ended, "it has ended", timeout=60)
    assert (found[-1].state, found[-1].attempt, found[-1].uncharged) == (State.COMPLETED, 2, 0)


def test_jobs_go_round_the_ring_through_node(
    dsn: str, schema: str, redis_server: EmbeddedRedis, node: Peer
) -> None:
    client = Client(redis_server.url)
    client.call("FLUSHALL")
    queues = {"mail": {"dialect": "bullmq"}}
    with Scheduler(dsn, schema=schema, redis=redis_server.url, queues=queues) as ring:
        node.work("mail")
        flaky = ring.submit("acme", "send", {"fails": 2, "value": 7}, queue="mail", retry=QUICK).id
        fatal = ring.submit("acme", "send", {"fatal": "never"}, queue="mail").id
        done = ring.wait("acme", flaky, timeout=60)
        assert (done.state, done.result, done.attempt) == (State.COMPLETED, 7, 3)
        # BullMQ keeps only the newest failure of a job, so an attempt is missing where Node
        # retries before the instance has read the one before.
        *earlier, last = [each["outcome"] for each in done.attempts]
        assert (set(earlier) | {"retrying"}, last) == ({"retrying"}, "completed")
        assert ring.wait("acme", fatal, timeout=60).state is State.FAILED
        slow = ring.submit("acme", "send", {"seconds": 0.7}, queue="mail").id
        wait_for(lambda: any(ran.id == str(slow) for ran in node.ran), "it runs")
        with pytest.raises(IllegalTransition, match="in the hands of a worker of BullMQ"):
            ring.cancel_job("acme", slow)
        assert ring.wait("acme", slow, timeout=60).state is State.COMPLETED
        left = {str(key) for key in (flaky, fatal, slow)}
        wait_for(
            lambda: not any(client.call("EXISTS", f"bull:mail:{each}") for each in left),
            "nothing of them is left",
        )
    client.close()


@pytest.mark.parametrize(
    ("retry", "reason"),
    [
        (RetryPolicy(backoff="linear"), "backoff 'linear' is unknown to workers of BullMQ"),
        (RetryPolicy(backoff="mine"), "backoff 'mine' is unknown to workers of BullMQ"),
        (RetryPolicy(multiplier=3), "multiplier must be 2, not 3"),
    ],
)
def test_what_bullmq_cannot_say_is_refused_at_submit(
    dsn: str, schema: str, retry: RetryPolicy, reason: str
) -> None:
    with Scheduler(dsn, schema=schema, queues={"mail": {"dialect": "bullmq"}}) as instance:
        with pytest.raises(UnsupportedByDialect, match=reason):
            instance.submit("acme", "send", {}, queue="mail", retry=retry)
        with pytest.raises(UnsupportedByDialect, match=reason):
            instance.register("acme", "nightly", every="1d", queue="mail", retry=retry)
        assert instance.submit("acme", "send", {}, queue="other", retry=retry).duplicate is False
