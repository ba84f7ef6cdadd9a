"""`scheduler.bullmq`: a client of BullMQ in Python. That BullMQ understands it is shown in
tests/interop.
"""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.bullmq import Event, NewJob, Options, Queue
from scheduler.dialects.bullmq.checks import CHECKS
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import (
    ConfigError,
    InvalidOption,
    InvalidPayload,
    QueueError,
    UnknownJob,
    WireError,
)
from tests.dialects.servers import any_binary, cluster

PLACES = (
    "wait",
    "active",
    "delayed",
    "prioritized",
    "waiting-children",
    "paused",
    "completed",
    "failed",
)
NOTHING = dict.fromkeys(PLACES, 0)


def test_a_job_is_read_as_it_was_added(queue: Queue) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    job_id = queue.add("encode", {"id": 7, "title": "é"}, attempts=3, priority=2, backoff=500)
    job = queue.get_job(job_id)
    assert (job.id, job.name, job.data, job.state, job.priority) == (
        "1",
        "encode",
        {"id": 7, "title": "é"},
        "prioritized",
        2,
    )
    assert job.options == {"attempts": 3, "priority": 2, "backoff": {"type": "fixed", "delay": 500}}
    assert before <= job.created_at <= datetime.now(UTC)
    assert (job.attempts_made, job.attempts_started, job.value, job.finished_at, job.children) == (
        0,
        0,
        None,
        None,
        {},
    )


def test_what_became_of_a_job_is_read(queue: Queue, redis: Client) -> None:
    job_id = queue.add("encode")
    redis.call("LMOVE", "bull:video:wait", "bull:video:active", "RIGHT", "LEFT")
    redis.call(
        "HSET",
        "bull:video:1",
        "atm",
        2,
        "ats",
        3,
        "stc",
        1,
        "processedOn",
        1_700_000_000_000,
        "pb",
        "w1",
        "progress",
        "50",
        "failedReason",
        "no",
        "stacktrace",
        '["a", "b"]',
    )
    redis.call("HSET", "bull:video:1:processed", "bull:audio:9", '{"ok":true}')
    job = queue.get_job(job_id)
    assert (job.state, job.attempts_made, job.attempts_started, job.stalled) == ("active", 2, 3, 1)
    assert job.processed_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert (job.worker, job.progress, job.failed_reason, job.stacktrace) == (
        "w1",
        50,
        "no",
        ["a", "b"],
    )
    assert job.children == {"bull:audio:9": {"ok": True}}


def test_a_job_that_is_unknown_or_unreadable_says_so(queue: Queue, redis: Client) -> None:
    with pytest.raises(UnknownJob, match="queue video has no job '7'"):
        queue.get_job("7")
    redis.call("HSET", "bull:video:8", "name", "encode", "data", "{broken")
    with pytest.raises(WireError, match="job 8 cannot be read"):
        queue.get_job("8")


def test_many_are_added_in_order_and_counted(queue: Queue) -> None:
    ids = queue.add_many(NewJob("encode", number, priority=number % 2) for number in range(1201))
    assert ids == [str(number) for number in range(1, 1202)]
    queue.add("encode", delay=60_000)
    assert queue.counts() == NOTHING | {"wait": 601, "prioritized": 600, "delayed": 1}
    assert queue.add_many([]) == []


def test_of_two_with_one_id_there_is_one(queue: Queue) -> None:
    assert queue.add("encode", 1, jobId="mine") == queue.add("encode", 2, jobId="mine") == "mine"
    first = queue.add("encode", 1, deduplication={"id": "7", "ttl": 60_000})
    assert queue.add("encode", 2, deduplication={"id": "7", "ttl": 60_000}) == first
    assert queue.counts()["wait"] == 2
    assert queue.get_job("mine").data == 1


def test_a_flow_is_added_with_children_that_come_first(
    queue: Queue, redis_server: EmbeddedRedis
) -> None:
    parts = [
        NewJob("part", number, queue="parts", failParentOnFailure=True) for number in range(600)
    ]
    root = queue.add_flow(NewJob("join", {"n": 600}, children=parts, jobId="film"))
    with Queue("parts", redis_server.url) as other:
        assert root == "film"
        assert queue.get_job("film").state == "waiting-children"
        assert other.counts()["wait"] == 600
        assert other.drain() == 600
    assert queue.get_job("film").state == "wait", "it waits for nobody any more"


def test_a_job_may_be_given_a_parent_that_waits(queue: Queue, redis: Client) -> None:
    queue.add_flow(NewJob("join", children=[NewJob("part")], jobId="film"))
    child = queue.add("part", parent={"id": "film", "queue": "bull:video"})
    assert queue.get_job(child).parent == "bull:video:film"
    assert f"bull:video:{child}".encode() in redis.call("SMEMBERS", "bull:video:film:dependencies")
    with pytest.raises(QueueError, match="parent does not exist"):
        queue.add("part", parent={"id": "nobody", "queue": "bull:video"})


def test_what_waits_is_drained_and_what_ended_is_cleaned(queue: Queue, redis: Client) -> None:
    queue.add_many([NewJob("encode"), NewJob("encode", priority=1), NewJob("encode", delay=60_000)])
    assert queue.drain() == 2
    assert queue.counts() == NOTHING | {"delayed": 1}
    assert queue.drain(delayed=True) == 1
    assert redis.call("EXISTS", "bull:video:1", "bull:video:2", "bull:video:3") == 0
    for number in range(5):
        redis.call(
            "HSET",
            f"bull:video:x{number}",
            "name",
            "encode",
            "timestamp",
            5,
            "finishedOn",
            1000 + number,
        )
        redis.call("ZADD", "bull:video:completed", 1000 + number, f"x{number}")
    assert queue.clean(limit=2) == ["x0", "x1"]
    assert queue.clean(10**15) == []
    assert queue.clean() == ["x2", "x3", "x4"]
    assert queue.counts() == NOTHING


def test_what_waits_is_cleaned_by_its_age(queue: Queue) -> None:
    old, new = queue.add("encode", timestamp=1000), queue.add("encode")
    for state, options in (("delayed", {"delay": 10**14}), ("prioritized", {"priority": 1})):
        older = queue.add("encode", timestamp=1000, **options)  # type: ignore[arg-type]
        queue.add("encode", **options)  # type: ignore[arg-type]
        assert queue.clean(60_000, state=state) == [older]
    assert queue.clean(60_000, state="wait") == [old]
    assert queue.counts() == NOTHING | {"wait": 1, "delayed": 1, "prioritized": 1}
    assert queue.get_job(new).state == "wait"


def test_what_a_scheduler_has_planned_is_neither_drained_nor_cleaned(
    queue: Queue, redis: Client
) -> None:
    queue.add("encode", delay=60_000, jobId="repeat:nightly:1234", timestamp=5)
    redis.call("ZADD", "bull:video:repeat", 1234, "nightly")
    assert queue.drain(delayed=True) == 0
    assert queue.clean(state="delayed") == []
    redis.call("ZADD", "bull:video:repeat", 5678, "nightly")
    assert queue.drain(delayed=True) == 1


def test_one_that_is_worked_on_is_not_cleaned(queue: Queue, redis: Client) -> None:
    held, left = queue.add("encode", timestamp=5), queue.add("encode", timestamp=5)
    for _ in range(2):
        redis.call("LMOVE", "bull:video:wait", "bull:video:active", "RIGHT", "LEFT")
    redis.call("SET", f"bull:video:{held}:lock", "w1:1", "PX", 30_000)
    assert queue.clean(state="active") == [left]


def test_removal_frees_a_deduplication_id(queue: Queue) -> None:
    first = queue.add("encode", deduplication={"id": "7"})
    queue.drain()
    assert queue.add("encode", deduplication={"id": "7"}) != first


@pytest.mark.parametrize("compat", ["auto", "5", "6"])
def test_pause_and_resume_keep_the_order(
    redis: Client, redis_server: EmbeddedRedis, compat: str
) -> None:
    with Queue("video", redis_server.url, compat=compat) as queue:
        first = queue.add("encode")
        queue.pause()
        second = queue.add("encode")
        assert queue.counts()["paused"] == (2 if compat == "5" else 0)
        assert redis.call("EXISTS", "bull:video:marker") == 0
        queue.resume()
        assert redis.call("LRANGE", "bull:video:wait", 0, -1) == [second.encode(), first.encode()]
        assert redis.call("EXISTS", "bull:video:marker") == 1
        assert queue.counts() == NOTHING | {"wait": 2}


def test_resume_joins_what_two_versions_left(queue: Queue, redis: Client) -> None:
    """While it was paused, version 6 has added to wait, and version 5 to paused, which came
    first.
    """
    redis.call("HSET", "bull:video:meta", "paused", 1)
    redis.call("LPUSH", "bull:video:paused", "a", "b")
    redis.call("LPUSH", "bull:video:wait", "c", "d")
    queue.resume()
    assert redis.call("LRANGE", "bull:video:wait", 0, -1) == [b"d", b"c", b"b", b"a"]


def test_events_are_heard_from_now_on_or_since_one(queue: Queue) -> None:
    queue.add("before")
    heard: list[Event] = []
    listening = threading.Thread(target=lambda: heard.extend(queue.events(silence="1s")))
    listening.start()

    while not heard:  # it may not listen yet
        queue.add("during")
        listening.join(timeout=0.05)
    listening.join()
    assert {event.fields["name"] for event in heard if event.event == "added"} == {"during"}
    since = list(queue.events(since="0", silence="50ms"))
    assert [(event.event, event.job_id) for event in since[:2]] == [
        ("added", "1"),
        ("waiting", "1"),
    ]
    assert list(queue.events(since=since[1].id, silence="50ms")) == since[2:]


def test_async_twins(queue: Queue) -> None:
    async def calls() -> list[str]:
        job_id = await queue.aadd("encode", {"id": 7}, priority=1)
        await queue.aadd_many([NewJob("encode")])
        await queue.aadd_flow(NewJob("join", children=[NewJob("part")]))
        assert (await queue.aget_job(job_id)).data == {"id": 7}
        assert (await queue.acounts())["waiting-children"] == 1
        await queue.apause()
        await queue.aresume()
        assert await queue.aclean() == []
        assert await queue.adrain() > 1
        return [event.event async for event in queue.aevents(since="0", silence="50ms")]

    assert asyncio.run(calls())[-3:] == ["paused", "resumed", "cleaned"]


def test_every_option_is_checked() -> None:
    assert CHECKS.keys() == Options.__annotations__.keys()


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"remove_on_complete": True},
        "remove_on_complete is no option in BullMQ; did you mean removeOnComplete?",
    ),
    ({"atempts": 3}, "did you mean attempts?"),
    ({"zzz": 3}, "zzz is no option in BullMQ; there are attempts, backoff, "),
    ({"backoff": {"typ": "fixed"}}, "typ is no part of backoff in BullMQ; did you mean type?"),
    ({"backoff": {"delay": 5}}, "backoff must be milliseconds or "),
    (
        {"backoff": {"type": "fixed", "delay": -5}},
        "backoff.delay must be a whole number from 0 to 9007199254740991",
    ),
    ({"backoff": {"type": "fixed", "jitter": 2}}, "backoff.jitter must be from 0 to 1, not 2"),
    ({"priority": 2**21}, "priority must be a whole number from 0 to 2097151, not 2097152"),
    ({"delay": "5s"}, "delay must be a whole number from 0 to 9007199254740991, not '5s'"),
    ({"attempts": True}, "attempts must be a whole number"),
    ({"attempts": 2**64}, "attempts must be a whole number"),
    ({"lifo": 1}, "lifo must be True or False, not 1"),
    ({"removeOnFail": -1}, "removeOnFail must be True, False, how many to keep, or "),
    ({"removeOnFail": 2**64}, "removeOnFail must be True, False, how many to keep, or "),
    ({"removeOnFail": {"age": "1h"}}, "removeOnFail.age must be a whole number"),
    ({"jobId": "17"}, "jobId must not be a number, BullMQ gives those itself: call it job-17"),
    ({"jobId": "a:b"}, "jobId must not have a colon"),
    ({"jobId": ""}, "jobId must be a text"),
    ({"jobId": "\ud800"}, "jobId must be a text"),
    (
        {"jobId": "pc"},
        "jobId must not be the name of a key that a queue has itself: call it job-pc",
    ),
    ({"jobId": "ring:3f1e:fed"}, "jobId must not be the name of a key"),
    ({"deduplication": {"id": ""}}, "deduplication.id must be a text"),
    ({"deduplication": {"ttl": 5}}, "deduplication must be like "),
    ({"parent": {"id": "7"}}, "parent must be like "),
    (
        {"parent": {"id": "7", "queue": "video"}},
        'parent must be like {"id": "7", "queue": "bull:video"}',
    ),
    ({"parent": {"id": 7, "queue": "bull:video"}}, "parent.id must be a text, not 7"),
    (
        {"parent": {"id": "7", "queue": "bull:x"}, "deduplication": {"id": "7"}},
        "deduplication and parent exclude",
    ),
    (
        {"failParentOnFailure": True, "ignoreDependencyOnFailure": True},
        "exclude each other: choose one",
    ),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_a_wrong_option_is_named_with_its_cure(queue: Queue, options: Options, said: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        queue.add("encode", **options)
    assert said in str(raised.value)
    assert queue.counts() == NOTHING


def test_data_that_is_no_json_or_too_large_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidPayload, match="the data of a job must be JSON"):
        queue.add("encode", object())
    with pytest.raises(InvalidPayload, match="has 12 bytes, and sizeLimit is 11"):
        queue.add("encode", "0123456789", sizeLimit=11)


def test_a_call_that_makes_no_sense_is_refused(queue: Queue, redis_server: EmbeddedRedis) -> None:
    with pytest.raises(InvalidOption, match="the name of a job must be a text, not {'id': 7}"):
        queue.add({"id": 7})  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="use add_flow"):
        queue.add_many([NewJob("join", children=[NewJob("part")])])
    with pytest.raises(InvalidOption, match="state must be one of wait, active, "):
        queue.clean(state="done")
    with pytest.raises(ConfigError, match="compat: must be one of auto, 5, 6, not '4'"):
        Queue("video", redis_server.url, compat="4")
    with pytest.raises(ConfigError, match="queue: must be a text without ':'"):
        Queue("a:b", redis_server.url)


def test_in_a_cluster_the_prefix_needs_a_hash_tag() -> None:
    with cluster(any_binary()) as house:
        with (
            Queue("video", house.url) as untagged,
            pytest.raises(ConfigError, match="prefix: needs a hash tag"),
        ):
            untagged.add("encode")
        with Queue("video", house.url, prefix="{bull}") as queue:
            queue.add("encode")
            queue.add_flow(NewJob("join", children=[NewJob("part", queue="parts")]))
            queue.pause()
            queue.resume()
            assert [event.event for event in queue.events(since="0", silence="50ms")][:2] == [
                "added",
                "waiting",
            ]
            assert queue.drain() == 1
            assert queue.counts() == NOTHING | {"waiting-children": 1}
