"""What the BullMQ dialect writes and reads, to the key and field; real ones are asked in
tests/interop.
"""

import logging
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from scheduler.dialects.bullmq import wire
from scheduler.dialects.bullmq.add import NewJob, add
from scheduler.dialects.bullmq.admin import BullMQAdmin
from scheduler.dialects.bullmq.exchange import written_of
from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.bullmq.options import keep, read_options
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import (
    BegunMark,
    Cancelling,
    Delivery,
    Handled,
    Known,
    Note,
    Pushed,
    Renewed,
    Result,
)
from scheduler.dialects.queue_options import QueueOptions
from scheduler.errors import ConfigError, QueueError
from scheduler.model.labels import Priority
from scheduler.model.oneshot import previous_id_of
from scheduler.model.policies import RETRY
from scheduler.model.reaper import ReaperRule
from scheduler.model.states import State
from scheduler.recovery import orphaned_result
from tests.dialects.servers import House
from tests.dialects.values import (
    ABOUT,
    AT_ONCE,
    NOW,
    back,
    ended,
    fetch_all,
    job,
    retried,
    with_options,
)
from tests.support.waiting import rest, wait_for

KEYS = Keys("mail")
SOON = timedelta(milliseconds=50)
DOCUMENT = (Path(__file__).parents[2] / "docs/bullmq.md").read_text("utf-8")
LINES = {
    words[2]: words[1:]
    for words in map(str.split, re.findall(r"^ACL SETUSER .+$", DOCUMENT, re.MULTILINE))
}
SCRIPTS = {
    "worker": ["finish", "held", "iterate", "leave", "renew", "stalled", "waits", "crew/store"],
    "scheduler": [
        "abandoned",
        "acknowledge",
        "begin",
        "cancel",
        "collect",
        "crew/live",
        "depths",
        "finish",
        "known",
        "pause",
        "push",
        "settling/hand_over",
        "waits",
    ],
}
MakeOpen = Callable[..., BullMQQueue]


@pytest.fixture(scope="module")
def lone(lone_servers: House) -> House:
    return lone_servers


@pytest.fixture
def client(lone: House) -> Iterator[Client]:
    lone.everywhere("FLUSHALL")
    opened = Client(lone.url)
    yield opened
    opened.close()


@pytest.fixture
def open_queue(client: Client) -> MakeOpen:
    def make(worker: str = "w1", **options: Any) -> BullMQQueue:
        usual: dict[str, Any] = {"installation": "3f1e", "reaper": AT_ONCE}
        return BullMQQueue(client, "mail", worker=worker, **with_options({**usual, **options}))

    return make


def text(found: dict[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in found.items()}


def test_a_job_of_the_ring_is_a_job_of_bullmq(client: Client, open_queue: MakeOpen) -> None:
    policy = {"max_attempts": 5, "initial_delay_us": 2_000_000}
    fed = job(priority=Priority.HIGH, tags={"a": "b"}, policy=policy, attempt=1)
    open_queue().push([fed], epoch="")
    found = text(client.call("HGETALL", f"bull:mail:{fed.id}"))
    assert orjson.loads(found.pop("opts")) == {
        "jobId": fed.id,
        "attempts": 5,
        "backoff": {"type": "exponential", "delay": 2000, "jitter": 0.1},
        "priority": 1,
        "removeOnComplete": False,
        "removeOnFail": False,
    }
    assert orjson.loads(found.pop("ring")) == {
        "created": "2026-03-01T12:30:15.123456+00:00",
        "expires": "2026-03-02T12:30:15.123456+00:00",
        "policy": policy,
        "tags": {"a": "b"},
    }
    assert found == {
        "name": "send",
        "data": '{"to":"you"}',
        "timestamp": str(int(NOW.timestamp() * 1000)),
        "delay": "0",
        "priority": "1",
        "tenant": "acme",
        "feed": "1",
        "attempt": "1",
        "atm": "1",
        "ats": "1",
        "installation": "3f1e",
    }
    assert client.call("ZSCORE", "bull:mail:prioritized", fed.id) == 2**32 + 1
    assert client.call("ZRANGE", "bull:mail:marker", 0, -1, "WITHSCORES") == [b"0", b"0"]
    assert client.call("HGET", "bull:mail:ring:3f1e:fed", fed.id) == b"1:1:acme"


def test_bytes_are_a_text_of_base64_to_others(client: Client, open_queue: MakeOpen) -> None:
    fed = job(form="bytes", payload=b"\x00\xff")
    open_queue().push([fed], epoch="")
    assert client.call("HGET", f"bull:mail:{fed.id}", "data") == b'"AP8="'


def test_settled_jobs_leave_nothing(client: Client, open_queue: MakeOpen) -> None:
    queue = open_queue()
    queue.push([job() for _ in range(3)], epoch="")
    good, bad, again = fetch_all(queue)
    queue.renew({good: Note(10, "x", [1])}, lease=queue.lease)
    queue.finish([ended(good), ended(bad, State.FAILED, error="ValueError: no"), retried(again)])
    assert client.call("HGET", f"bull:mail:{bad.job.id}", "failedReason") == b"no"
    queue.finish([ended(each) for each in fetch_all(queue)])
    settled = 0
    while settled < 4:  # three ends and a retry
        read = queue.outcomes(100, timeout=1)
        settled += sum(len(each.ends) for each in read)
        queue.acknowledge(read)
    left = {key.decode().removeprefix("bull:mail:") for key in client.call("KEYS", "bull:*")}
    known = {"meta", "id", "events", "marker", "stalled", "ring:3f1e:cursor", "ring:3f1e:outcomes"}
    assert left <= known | {"ring:settled"}
    assert client.call("PTTL", "bull:mail:ring:settled") > 0


def test_a_put_back_leaves_the_counters_of_bullmq(client: Client, open_queue: MakeOpen) -> None:
    queue = open_queue()
    counters = ("atm", "stc", "attemptsMade")
    fed, other = job(), job(installation="", feed=0)
    queue.push([fed], epoch="")
    client.call("HSET", f"bull:mail:{other.id}", "name", "send", "data", "{}", "opts", "{}")
    client.call("LPUSH", "bull:mail:wait", other.id)
    before = [client.call("HMGET", f"bull:mail:{each.id}", *counters) for each in (fed, other)]
    for attempt in (1, 2, 3):
        taken = {each.job.id: each for each in fetch_all(queue)}
        assert (taken[fed.id].attempt, taken[fed.id].charged) == (attempt, 1)
        assert (taken[other.id].attempt, taken[other.id].charged) == (1, 1)
        queue.finish([back(each) for each in taken.values()])
        [known] = queue.known([fed.id])
        assert (known and known.state, known and known.attempt) == (State.SCHEDULED, attempt)
    assert queue.outcomes(100, timeout=0.05) == []  # no attempt has ended
    after = [client.call("HMGET", f"bull:mail:{each.id}", *counters) for each in (fed, other)]
    assert after == before
    own = client.call("HKEYS", f"bull:mail:{other.id}")
    assert sorted(own) == [b"ats", b"data", b"name", b"opts", b"pb", b"processedOn"]


def test_an_end_that_cannot_be_read_is_found_anew_in_its_job(
    client: Client, open_queue: MakeOpen
) -> None:
    queue, stream = open_queue(), "bull:mail:ring:3f1e:outcomes"
    queue.push([job(), job()], epoch="")
    one, two = fetch_all(queue)
    queue.finish([ended(one, result=b"1"), ended(two, result=b"2")])
    [(entry, _)] = client.call("XRANGE", stream, "-", "+")
    broken = f'[["ac\\"me","{one.job.id}",1,1,"?"],["acme","{two.job.id}",1,1,"completed"]]'
    client.call("XDEL", stream, entry)
    entry = client.call("XADD", stream, "*", "ends", broken)
    for each in (one, two):
        client.call("HSET", "bull:mail:ring:finished", each.job.id, b"1:1:" + entry)
    assert results_of(queue) == sorted(
        [(one.job.id, State.COMPLETED, b"1"), (two.job.id, State.COMPLETED, b"2")]
    )
    assert client.call("LRANGE", f"{stream}:unreadable", 0, -1) == [broken.encode()]


@pytest.mark.parametrize("field", ["feed", "tenant"])
def test_a_replaced_job_does_not_block_the_results_of_others(
    client: Client, open_queue: MakeOpen, field: str
) -> None:
    """Somebody removed a job of a ledger and added one with its id."""
    queue = open_queue()
    queue.push([job(), job()], epoch="")
    bad, good = fetch_all(queue)
    client.call("LREM", "bull:mail:active", 0, bad.job.id)
    client.call("HDEL", f"bull:mail:{bad.job.id}", field)
    client.call("ZADD", "bull:mail:completed", 1, bad.job.id)
    event = ("event", "completed", "jobId", bad.job.id, "returnvalue", "7")
    client.call("XADD", "bull:mail:events", "*", *event)
    queue.finish([ended(good, result=b"1")])
    assert results_of(queue) == sorted(
        [(bad.job.id, State.COMPLETED, b"7"), (good.job.id, State.COMPLETED, b"1")]
    )


@pytest.mark.parametrize("value", ["0:w:x", "0:w:", "0:\xff", "0:w:1.5"])
def test_a_malformed_previous_attempt_does_not_make_a_job_unreadable(
    client: Client, open_queue: MakeOpen, value: str
) -> None:
    queue, one = open_queue(), job()
    queue.push([one], epoch="")
    client.call("HSET", f"bull:mail:{one.id}", "previous", value.encode("latin-1"))
    [delivery] = fetch_all(queue)
    assert previous_id_of(delivery.job) is None
    assert queue.finish([ended(delivery)])[0] == [True]


@pytest.mark.parametrize("value", ["-9", "1.5", "1e300", "x"])
@pytest.mark.parametrize("field", ["uncharged", "stc", "atm"])
def test_a_count_that_is_none_blocks_no_result(
    client: Client, open_queue: MakeOpen, field: str, value: str
) -> None:
    queue = open_queue()
    bad, good = job(), job()
    queue.push([bad, good], epoch="")
    client.call("HSET", f"bull:mail:{bad.id}", field, value)
    taken = fetch_all(queue)
    accepted, _ = queue.finish([ended(each, result=b"1") for each in taken])
    assert all(accepted)
    assert (good.id, State.COMPLETED, b"1") in results_of(queue)


LARGE = "1" + "0" * 30


@pytest.mark.parametrize(
    ("field", "value"),
    [("feed", LARGE), ("feed", "-1"), ("ats", LARGE), ("uncharged", LARGE), ("attempt", LARGE)],
)
def test_malformed_numbers_of_a_job_block_no_result(
    client: Client, open_queue: MakeOpen, field: str, value: str
) -> None:
    queue = open_queue()
    bad, good = job(), job()
    queue.push([bad, good], epoch="")
    client.call("HSET", f"bull:mail:{bad.id}", field, value)
    accepted, _ = queue.finish([ended(each, result=b"1") for each in fetch_all(queue)])
    assert all(accepted)
    assert (good.id, State.COMPLETED, b"1") in results_of(queue)
    assert client.call("LLEN", "bull:mail:active") == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("feed", LARGE), ("feed", "x"), ("uncharged", LARGE), ("lease", f"1:{LARGE}")),
        *(("processedOn", "x"), ("processedOn", "12.5"), ("processedOn", LARGE)),
    ],
)
def test_malformed_numbers_of_a_lost_job_do_not_keep_others_from_their_queue(
    client: Client, open_queue: MakeOpen, field: str, value: str
) -> None:
    queue, dead = open_queue(), open_queue("dead", lease=SOON)
    bad, good = job(), job()
    queue.push([bad, good], epoch="")
    dead.fetch(2, timeout=0, first=1, begun=BegunMark(1, 2))
    client.call("HSET", f"bull:mail:{bad.id}", field, value)
    moved = 0

    def look() -> bool:
        nonlocal moved
        moved += queue.recover(orphaned_result)
        return moved == 2

    wait_for(look, "both are reclaimed")
    assert client.call("LLEN", "bull:mail:active") == 0


def test_a_full_redis_renews_leases_fetches_and_takes_results(
    client: Client, open_queue: MakeOpen
) -> None:
    queue = open_queue()
    queue.push([job(), job()], epoch="")
    [first] = queue.fetch(1, timeout=0, first=1, begun=BegunMark(1, 0))
    client.call("CONFIG", "SET", "maxmemory", "1")
    try:
        kept = queue.renew({first: None}, lease=timedelta(minutes=5), begun=BegunMark(2, 1))
        [second] = queue.fetch(1, timeout=0, first=2, begun=BegunMark(3, 1))
        accepted, _ = queue.finish([ended(first), ended(second)])
    finally:
        client.call("CONFIG", "SET", "maxmemory", "0")
    assert (kept, accepted) == ([Renewed.KEPT], [True, True])
    assert len(results_of(queue)) == 2


def test_a_begun_mark_that_is_no_string_stops_nobody(client: Client, open_queue: MakeOpen) -> None:
    queue, dead = open_queue(), open_queue("dead", lease=SOON)
    queue.push([job(), job()], epoch="")
    dead.fetch(1, timeout=0, first=1)
    client.call("HSET", "bull:mail:ring:begun:dead", "a", "b")
    wait_for(lambda: queue.recover(retried) == 1, "it is reclaimed")
    assert len(dead.fetch(1, timeout=0, first=2, begun=BegunMark(1, 1))) == 1
    assert client.call("GET", "bull:mail:ring:begun:dead") == b"1:1:1:"


def results_of(queue: BullMQQueue) -> list[tuple[str, State, bytes | None]]:
    """Read and acknowledge all results."""
    found = []
    for _ in range(5):
        read = queue.outcomes(10, timeout=0.05)
        found += [(end.job_id, end.state, end.result) for each in read for end in each.ends]
        queue.acknowledge(read)
    return sorted(found)


def test_results_lost_by_the_stream_are_read_from_their_jobs(
    client: Client, open_queue: MakeOpen, caplog: pytest.LogCaptureFixture
) -> None:
    queue, stream = open_queue(), "bull:mail:ring:3f1e:outcomes"
    queue.push([job(), job(), job()], epoch="")
    one, two, three = fetch_all(queue)
    queue.finish([ended(one, result=b"1"), ended(two, result=b"2")])
    client.call("XTRIM", stream, "MAXLEN", 0)
    queue.finish([ended(three, result=b"3")])
    names = [each.job.id for each in (one, two, three)]
    assert queue.push([one.job, two.job, three.job], epoch="") == [Pushed.FINISHED] * 3
    with caplog.at_level(logging.WARNING):
        found = results_of(open_queue())  # a new settler checks all jobs of its ledger
    assert found == sorted(
        (name, State.COMPLETED, b"%d" % n) for n, name in enumerate(names, start=1)
    )
    assert "lost the results of 2 finished jobs" in caplog.text
    assert queue.known(names) == [None] * 3
    assert queue.depths().unsettled == 0


@pytest.mark.parametrize("force", [False, True])
def test_a_job_lost_with_its_result_runs_again(
    client: Client, open_queue: MakeOpen, caplog: pytest.LogCaptureFixture, force: bool
) -> None:
    queue, stream = open_queue(), "bull:mail:ring:3f1e:outcomes"
    queue.push([job(), job(), job()], epoch="")
    one, two, three = fetch_all(queue)
    names = [one.job.id, two.job.id]
    queue.finish([ended(one), ended(two)])
    client.call("DEL", *(f"bull:mail:{name}" for name in names))
    client.call("ZREM", "bull:mail:completed", *names)
    assert queue.push([one.job], epoch="") == [Pushed.FINISHED], "its result is in the stream"
    assert queue.cancel(names, force=force) == [Cancelling.FINISHED] * 2
    client.call("XTRIM", stream, "MAXLEN", 0)
    client.call("DEL", "bull:mail:events")
    assert queue.known(names) == [None] * 2
    assert queue.cancel(names[1:], force=force) == [Cancelling.UNKNOWN]
    with caplog.at_level(logging.WARNING):
        assert queue.push([one.job, three.job], epoch="") == [Pushed.NEW, Pushed.KNOWN]
    assert "lost the results of 1 finished jobs" in caplog.text
    [again] = fetch_all(queue)
    assert again.job.id == one.job.id
    queue.finish([ended(again), ended(three)])
    assert [name for name, *_ in results_of(queue)] == sorted([one.job.id, three.job.id])
    assert queue.depths().unsettled == 0


@pytest.mark.parametrize(
    "opts", [b"{not json", b"[]", b'{"attempts":"many"}', b'{"backoff":{"delay":[1]}}']
)
def test_a_job_that_cannot_be_read_fails_with_the_reason(
    client: Client, open_queue: MakeOpen, opts: bytes
) -> None:
    queue = open_queue()
    add(client, KEYS, [NewJob(name="send"), NewJob(name="send")])
    client.call("HSET", "bull:mail:1", "opts", opts)
    assert [each.job.id for each in fetch_all(queue)] == ["2"]
    assert b"options of a job cannot be read" in client.call("HGET", "bull:mail:1", "failedReason")
    assert client.call("ZRANGE", "bull:mail:failed", 0, -1) == [b"1"]


def test_an_id_without_a_job_is_passed_over(client: Client, open_queue: MakeOpen) -> None:
    add(client, KEYS, [NewJob(name="send"), NewJob(name="send")])
    client.call("DEL", "bull:mail:1")
    assert [each.job.id for each in fetch_all(open_queue())] == ["2"]
    assert client.call("LRANGE", "bull:mail:active", 0, -1) == [b"2"]


def test_a_lock_that_ran_out_is_ours_until_somebody_takes_the_job(
    client: Client, open_queue: MakeOpen
) -> None:
    queue, other = open_queue(lease=SOON), open_queue("w2")
    add(client, KEYS, [NewJob(name="send"), NewJob(name="send")])
    one, two = fetch_all(queue)
    rest(0.1)
    assert queue.renew({one: None}, lease=queue.lease) == [Renewed.KEPT]
    rest(0.1)
    other.recover(back)
    other.recover(back)
    assert len(fetch_all(other)) == 2
    assert queue.renew({one: None, two: None}, lease=queue.lease) == [Renewed.LOST] * 2
    assert queue.finish([ended(one), ended(two)])[0] == [False, False]


def test_a_job_of_others_that_is_lost_too_often_fails_without_being_run(
    client: Client, open_queue: MakeOpen
) -> None:
    queue = open_queue(lease=SOON)
    add(client, KEYS, [NewJob(name="send", options={"attempts": 3, "priority": 3})])
    for lost in (1, 2):
        assert len(fetch_all(queue)) == 1
        assert queue.recover(back) == 0  # the first look only marks what is active
        rest(0.1)
        assert queue.recover(back) == 1
        assert client.call("HGET", "bull:mail:1", "stc") == b"%d" % lost
        assert client.call("LRANGE", "bull:mail:wait", 0, -1) == [b"1"]
    assert fetch_all(queue) == []
    found = text(client.call("HGETALL", "bull:mail:1"))
    assert (found["failedReason"], found["atm"]) == ("job stalled more than allowable limit", "1")
    assert "defa" not in found


def test_a_mark_is_only_of_leases_of_the_worker_that_set_it(
    client: Client, open_queue: MakeOpen
) -> None:
    """A worker of BullMQ without a name counts its start, and leaves the name of the one before."""
    queue, dead, seen = open_queue(), open_queue("dead", lease=SOON), []
    jobs = [job(), job()]
    queue.push(jobs, epoch="")
    dead.fetch(2, timeout=0, first=1, begun=BegunMark(1, 0))
    client.call("HINCRBY", f"bull:mail:{jobs[0].id}", "ats", 1)

    def decide(delivery: Delivery) -> Result:
        seen.append((delivery.job.id, delivery.begun))
        return retried(delivery)

    moved = 0

    def look() -> bool:
        nonlocal moved
        moved += queue.recover(decide)
        return moved == 2

    wait_for(look, "both are reclaimed")
    assert seen == [(jobs[0].id, True)]


def test_a_redelivered_job_is_next_and_keeps_the_counters_of_bullmq(
    client: Client, open_queue: MakeOpen
) -> None:
    queue, dead = open_queue(), open_queue("dead", lease=SOON)
    jobs = [job(), job()]
    queue.push(jobs, epoch="")
    dead.fetch(1, timeout=0, first=1, begun=BegunMark(1, 0))
    wait_for(lambda: queue.recover(retried) == 1, "it is redelivered")
    fields = client.call("HMGET", f"bull:mail:{jobs[0].id}", "atm", "stc", "uncharged", "attempt")
    assert fields == [b"0", None, b"1", b"1"]
    events = [each for _, each in client.call("XRANGE", "bull:mail:events", "-", "+")[-2:]]
    assert [each[b"event"] for each in events] == [b"waiting", b"stalled"]
    assert {each[b"jobId"] for each in events} == {jobs[0].id.encode()}
    assert [each.job.id for each in queue.fetch(2, timeout=0)] == [each.id for each in jobs]


def test_instance_leaves_foreign_jobs_and_their_check_alone(
    client: Client, open_queue: MakeOpen
) -> None:
    queue, instance = open_queue(lease=SOON), open_queue("s1", reaper=ReaperRule(interval=SOON))
    add(client, KEYS, [NewJob(name="send")])
    fed = job()
    queue.push([fed], epoch="")
    fetch_all(queue)
    reclaimed: list[str] = []

    def decide(delivery: Delivery) -> Result:
        reclaimed.append(delivery.job.id)
        return retried(delivery)

    wait_for(lambda: instance.recover(decide, foreign=False), "the job of the ledger is reclaimed")
    assert reclaimed == [fed.id]
    assert client.call("LRANGE", "bull:mail:active", 0, -1) == [b"1"]
    assert client.call("HGET", "bull:mail:1", "stc") is None
    assert client.call("EXISTS", "bull:mail:stalled-check", "bull:mail:stalled") == 0


def test_instance_leaves_jobs_to_workers_that_check(client: Client, open_queue: MakeOpen) -> None:
    queue, instance = open_queue(lease=SOON), open_queue("s1", reaper=ReaperRule(interval=SOON))
    queue.push([job()], epoch="")
    fetch_all(queue)
    wait_for(lambda: not client.call("KEYS", "bull:mail:*:lock"), "the lock expires")
    client.call("SET", "bull:mail:stalled-check", "1", "PX", 3_600_000)  # as a worker on Node does
    for _ in range(3):
        assert instance.recover(retried, foreign=False) == 0
    assert client.call("EXISTS", "bull:mail:ring:stalled") == 0
    client.call("DEL", "bull:mail:stalled-check")
    wait_for(lambda: instance.recover(retried, foreign=False), "the job is reclaimed")


def test_instance_waits_an_interval_for_each_lease(client: Client, open_queue: MakeOpen) -> None:
    hour = timedelta(hours=1)
    queue, instance = open_queue(lease=SOON), open_queue("s1", reaper=ReaperRule(interval=hour))
    queue.push([job()], epoch="")
    checks = "bull:mail:ring:stalled-check"
    for attempt in (1, 2):  # an earlier lease of the job that was seen does not count
        assert [each.attempt for each in fetch_all(queue)] == [attempt]
        wait_for(lambda: not client.call("KEYS", "bull:mail:*:lock"), "the lock expires")
        assert instance.recover(retried, foreign=False) == 0
        assert instance.recover(retried, foreign=False) == 0
        assert 0 < client.call("PTTL", checks) <= 3_600_000
        client.call("DEL", checks)  # as if the hour had passed
        assert instance.recover(retried, foreign=False) == 1
        client.call("DEL", checks)


def test_looks_for_lost_jobs_are_an_interval_apart_whoever_looks(
    client: Client, open_queue: MakeOpen
) -> None:
    hour = timedelta(hours=1)
    queue = open_queue(lease=SOON, reaper=ReaperRule(interval=hour))
    add(client, KEYS, [NewJob(name="send")])
    fetch_all(queue)
    queue.recover(back)
    rest(0.1)
    assert open_queue("w2", reaper=ReaperRule(interval=hour)).recover(back) == 0
    assert 0 < client.call("PTTL", "bull:mail:stalled-check") <= 3_600_000
    client.call("DEL", "bull:mail:stalled-check")  # as if the hour had passed
    assert queue.recover(back) == 1


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (None, 9),
        (False, 9),
        (True, 0),
        (3, 3),
        ({"count": 2}, 2),
        ({"age": 3600}, 9),
        ({"age": 0}, 0),
    ],
)
@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
def test_what_has_ended_is_kept_as_the_job_asks(
    client: Client, open_queue: MakeOpen, rule: Any, left: int, state: State
) -> None:
    option = "removeOnComplete" if state is State.COMPLETED else "removeOnFail"
    add(
        client,
        KEYS,
        [NewJob(name="send", options={} if rule is None else {option: rule}) for _ in range(9)],
    )
    queue = open_queue()
    for delivery in fetch_all(queue):
        queue.finish([ended(delivery, state, error="no")])
        rest(0.002)
    kept = client.call("ZRANGE", f"bull:mail:{state}", 0, -1)
    assert abs(len(kept) - left) <= (
        rule == {"age": 0}
    )  # the last of them is not older than itself
    assert sum(client.call("EXISTS", f"bull:mail:{number}") for number in range(1, 10)) == len(kept)


def test_backoffs_of_others_are_theirs() -> None:
    policy, rules = read_options(
        b'{"attempts":4,"backoff":{"type":"exponential","delay":100,"jitter":0.5}}'
    )
    retry = job(policy=policy).policies()[0]
    assert [retry.delay(n, rng=None) // timedelta(milliseconds=1) for n in (1, 2, 3)] == [  # type: ignore[arg-type]
        100,
        200,
        400,
    ]
    assert (retry.max_attempts, rules.jitter) == (4, 0.5)
    fixed = job(policy=read_options(b'{"attempts":4,"backoff":70}')[0]).policies()[0]
    assert [fixed.delay(n, rng=None) // timedelta(milliseconds=1) for n in (1, 2)] == [70, 70]  # type: ignore[arg-type]


def test_jitter_shortens_a_delay_by_no_more_than_its_share(
    client: Client, open_queue: MakeOpen
) -> None:
    add(
        client,
        KEYS,
        [NewJob(name="send", options={"backoff": {"type": "fixed", "delay": 1000, "jitter": 0.5}})],
    )
    [delivery] = fetch_all(open_queue())
    heads = [str(written_of(retried(delivery, timedelta(seconds=1)))[1]) for _ in range(200)]
    delays = [int(head.split(":")[1]) for head in heads]
    assert 500 <= min(delays) < 600
    assert 900 < max(delays) <= 1000


def test_keeping_is_read_in_every_form() -> None:
    assert [
        keep(rule)
        for rule in (None, False, True, 7, {"age": 5}, {"count": 1, "age": 2, "limit": 3})
    ] == [
        "-1:-1:1000",
        "-1:-1:1000",
        "0:-1:1000",
        "7:-1:1000",
        "-1:5:1000",
        "1:2:3",
    ]


def test_a_worker_has_no_colon_and_compat_is_one_of_three(client: Client) -> None:
    with pytest.raises(ConfigError, match="worker must not contain ':'"):
        BullMQQueue(client, "mail", worker="a:b")
    with pytest.raises(ConfigError, match="compat: must be one of auto, 5, 6"):
        BullMQQueue(client, "mail", compat="7")
    with pytest.raises(ConfigError, match="queue: must be a text without ':'"):
        BullMQQueue(client, "a:b")


@pytest.mark.parametrize("prefix", ["bull", "{}bull", "bull}"])
def test_in_a_cluster_a_prefix_has_a_hash_tag(house: House, prefix: str) -> None:
    client = Client(house.url)
    try:
        if house.clustered:
            with pytest.raises(ConfigError, match="in a cluster the prefix needs a hash tag"):
                BullMQQueue(client, "mail", prefix=prefix)
        assert BullMQQueue(client, "mail", prefix="{bull}").push([job()], epoch="") == [Pushed.NEW]
    finally:
        client.close()


def test_few_rights_are_enough(lone: House, client: Client) -> None:
    lone.everywhere("ACL", *LINES["worker"])
    lone.everywhere("ACL", *LINES["scheduler"])
    as_worker = Client(lone.url.replace("//", "//worker:secret@"))
    as_scheduler = Client(lone.url.replace("//", "//scheduler:secret@"))
    queue = BullMQQueue(as_worker, "mail", worker="w1", options=QueueOptions(reaper=AT_ONCE))
    ring = BullMQQueue(as_scheduler, "mail", installation="3f1e", worker="s1")
    ring.begin("1")
    ring.push([job() for _ in range(4)], epoch="1")
    assert ring.epoch() == "1"
    for compat in ("5", "6"):
        admin = BullMQAdmin(as_scheduler, "mail", installation="3f1e", compat=compat)
        admin.pause()
        assert admin.paused() == (True, True)
        admin.resume()
    one, two, three, four = queue.fetch(4, timeout=0.1)
    queue.fetch(0, timeout=0.01)
    assert ring.cancel([one.job.id]) == [Cancelling.RUNNING]
    assert queue.renew({one: Note(1.0)}, lease=queue.lease, about=ABOUT) == [Renewed.CANCEL]
    assert [each.holds for each in BullMQAdmin(as_scheduler, "mail").workers(9).workers] == [
        ABOUT.holds
    ]
    assert len(queue.held()) == 4
    assert queue.recover(retried) == 0
    queue.retry_defaults.store(RETRY)
    assert ring.retry_defaults.read("w1") == queue.retry_defaults.read("w1") == RETRY
    queue.finish(
        [ended(one), ended(two, State.FAILED, error="x"), retried(three, SOON), back(four)], fetch=0
    )
    assert ring.known([one.job.id]) == [Known(None, 1)]
    assert ring.depths().unsettled == 2
    queue.leave()
    lost = BullMQQueue(as_worker, "mail", worker="w2", lease=SOON)
    assert len(lost.fetch(1, timeout=1, begun=BegunMark(1, 0))) == 1
    ring._stalled_ms = 1
    client.call("DEL", "bull:mail:stalled-check")
    wait_for(lambda: ring.recover(back, foreign=False), "the job is reclaimed")
    ring.outcomes(10, timeout=0)
    ring.hand_over(ring.outcomes(10, timeout=1))
    ring.acknowledge(wait_for(lambda: ring.outcomes(10, timeout=1), "what was handed over"))
    for opened in (as_worker, as_scheduler):
        with pytest.raises(QueueError):
            opened.call("GET", "elsewhere")
        opened.close()


@pytest.mark.parametrize("role", SCRIPTS)
def test_the_line_has_every_command_of_the_scripts_of_bullmq(role: str) -> None:
    allowed = {word[1:].upper() for word in LINES[role] if word.startswith("+")}
    texts = [script(*f"bullmq/{name}".split("/")[-2:]).text for name in SCRIPTS[role]]
    used = {command for each in texts for command in re.findall(r"redis\.p?call\('(\w+)'", each)}
    used |= {"RPUSH", "LPUSH"} if any("'RPUSH' or 'LPUSH'" in each for each in texts) else set()
    assert used <= allowed


def _contents(client: Client) -> dict[bytes, Any]:
    """Read all keys of the queue but the marker, by their last part."""
    readers = {
        b"hash": ("HGETALL",),
        b"list": ("LRANGE", 0, -1),
        b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
        b"stream": ("XRANGE", "-", "+"),
        b"string": ("GET",),
    }
    found = {}
    for key in client.call("KEYS", "bull:mail:*"):
        command, *rest = readers[client.call("TYPE", key)]
        found[key.removeprefix(b"bull:mail:")] = client.call(command, key, *rest)
    found.pop(b"marker", None)
    return found


def test_jobs_of_full_types_stay_as_they_were(client: Client, open_queue: MakeOpen) -> None:
    queue = open_queue()
    priorities = (0, 0, 3, 3, 1, 1, 2**21 - 1)
    added = [NewJob(name="big", options={"priority": each}) for each in priorities]
    add(client, KEYS, added)
    before = _contents(client)
    assert queue.fetch(9, timeout=0, handled=Handled(free={"big": 0})) == []
    assert _contents(client) == before
    assert client.call("ZRANGE", "bull:mail:marker", 0, -1) == [b"0"], "workers of Node look"
    add(client, KEYS, [NewJob(name="mail", options={"priority": each}) for each in (0, 3)])
    taken = queue.fetch(9, timeout=0, handled=Handled(free={"big": 0}))
    assert [each.job.id for each in taken] == ["8", "9"]
    after = _contents(client)
    assert {name: after[name] for name in (b"wait", b"prioritized", b"pc")} == {
        name: before[name] for name in (b"wait", b"prioritized")
    } | {b"pc": b"6"}
    assert [after[each] for each in (b"1", b"3", b"7")] == [
        before[each] for each in (b"1", b"3", b"7")
    ]
    assert [each.job.id for each in fetch_all(queue)] == ["1", "2", "5", "6", "3", "4", "7"]


@pytest.mark.parametrize(
    "lock", ["", "x", "a:b", f"{'9' * 400}:1", "w1:1:1:1:1:", "w1:::::::", "w1:1:1:1:x::1"]
)
def test_a_lock_that_is_no_lease_of_ours_stops_nobody(
    client: Client, open_queue: MakeOpen, lock: str
) -> None:
    queue = open_queue()
    fed = [job(), job()]
    queue.push(fed, epoch="")
    taken = fetch_all(queue)
    client.call("SET", f"bull:mail:{fed[0].id}:lock", lock)
    assert queue.renew(dict.fromkeys(taken), lease=queue.lease) == [Renewed.LOST, Renewed.KEPT]
    assert queue.cancel([fed[0].id]) == [Cancelling.REFUSED]
    assert [each.job.id for each in queue.held()][-1:] == [fed[1].id]
    assert queue.known([fed[0].id])[0] is not None
    assert queue.finish([ended(each) for each in taken])[0] == [False, True]


def test_force_takes_a_job_from_a_worker_that_hears_nothing(
    client: Client, open_queue: MakeOpen
) -> None:
    queue = open_queue()
    fed = [job(), job()]
    queue.push(fed, epoch="")
    fetch_all(queue)
    client.call("SET", f"bull:mail:{fed[0].id}:lock", "a lock of Node")
    client.call("SADD", "bull:mail:stalled", fed[0].id)
    assert queue.cancel([fed[0].id], force=True) == [Cancelling.REMOVED]
    assert client.call("EXISTS", f"bull:mail:{fed[0].id}", f"bull:mail:{fed[0].id}:lock") == 0
    assert client.call("LRANGE", "bull:mail:active", 0, -1) == [fed[1].id.encode()]
    assert client.call("SMEMBERS", "bull:mail:stalled") in ([], set())
    assert queue.known([fed[0].id]) == [None]


def test_force_finds_a_result_that_is_in_the_events_alone(
    client: Client, open_queue: MakeOpen
) -> None:
    """A worker of Node removed the job at its end, and nobody has read the events since."""
    queue, fed = open_queue(), job()
    queue.push([fed], epoch="")
    fetch_all(queue)
    client.call("LREM", "bull:mail:active", 0, fed.id)
    client.call("DEL", f"bull:mail:{fed.id}", f"bull:mail:{fed.id}:lock")
    event = ("event", "completed", "jobId", fed.id, "returnvalue", "7", "at", "1")
    entry = client.call("XADD", "bull:mail:events", "*", *event)
    assert queue.cancel([fed.id], force=True) == [Cancelling.FINISHED]
    [read] = wait_for(lambda: queue.outcomes(10, timeout=0), "it is read")
    [end] = read.ends
    assert (end.job_id, end.state, end.result) == (fed.id, State.COMPLETED, b"7")
    assert end.recorded_at == wire.instant_of(int(entry.partition(b"-")[0]))
