"""Jobs of a BullMQ queue that are not as one expects: each ends, and takes no other with it."""

from collections.abc import Iterator
from datetime import timedelta
from random import Random
from typing import Any

import orjson
import pytest

from scheduler.dialects.bullmq.add import NewJob, add
from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import Delivery, Note, Renewed, Result
from scheduler.dialects.queue_options import QueueOptions
from scheduler.model.states import State
from tests.dialects.servers import House
from tests.dialects.values import AT_ONCE, ended, fetch_all, job, retried

PLACES = {"ZSCORE": ("completed", "failed", "delayed", "prioritized"), "LPOS": ("wait", "active")}
STRANGE: list[dict[str, Any]] = [
    {"attempts": 3, "backoff": {"type": "fixed", "delay": 1000, "jitter": 5000}},
    {"attempts": 3, "backoff": {"type": "mine", "delay": 1e300, "jitter": -5}},
    {"removeOnComplete": {"age": 10, "limit": -1}, "removeOnFail": {"count": 3, "limit": -1}},
    {
        "removeOnComplete": {"age": None, "count": 1e300},
        "removeOnFail": {"age": 1e300, "count": None},
    },
    {"stackTraceLimit": None},
    {"attempts": 1e300, "removeOnComplete": -7, "removeOnFail": -7},
    {"repeat": "daily"},
    {"repeat": [1]},
    {"repeat": {"count": "x"}},
    {"repeat": {"pattern": "* * * * *", "startDate": 1e17}},
    {"repeat": {"pattern": "* * * * *"}, "prevMillis": 1e17},
]


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
def queue(client: Client) -> BullMQQueue:
    return BullMQQueue(client, "mail", worker="w1", installation="3f1e")


def end(delivery: Delivery, how: str) -> Result:
    if how == "retried":
        return retried(delivery, timedelta(seconds=1))
    return ended(delivery, State(how), error="ValueError: no")


def added(client: Client, count: int = 3, **fields: Any) -> None:
    """Add some, and make the second a strange one."""
    add(client, Keys("mail"), [NewJob(name="send") for _ in range(count)])
    if fields:
        client.call("HSET", "bull:mail:2", *(each for pair in fields.items() for each in pair))


def places(client: Client, id_: str) -> list[str]:
    found = [
        (name, client.call(command, f"bull:mail:{name}", id_))
        for command, names in PLACES.items()
        for name in names
    ]
    return [name for name, where in found if where is not None]


@pytest.mark.parametrize("how", ["completed", "failed", "retried"])
@pytest.mark.parametrize("opts", STRANGE, ids=str)
def test_strange_options_cost_no_job(
    client: Client, queue: BullMQQueue, opts: dict[str, Any], how: str
) -> None:
    added(client, opts=orjson.dumps(opts), rjk="daily" if "repeat" in opts else "")
    taken = fetch_all(queue)
    assert {"1", "3"} <= {each.job.id for each in taken}
    accepted, _ = queue.finish([end(each, how) for each in taken])
    assert all(accepted)
    assert [len(places(client, id_)) for id_ in "123"] == [1, 1, 1]


@pytest.mark.parametrize(
    "rule", [{"count": 3, "limit": -1}, {"age": 10, "limit": "x"}, {"count": 5, "limit": 0}]
)
def test_what_has_failed_before_it_is_taken_has_strange_options(
    client: Client, queue: BullMQQueue, rule: dict[str, Any]
) -> None:
    added(client, opts=orjson.dumps({"removeOnFail": rule}), defa="child failed")
    assert [each.job.id for each in fetch_all(queue)] == ["1", "3"]
    assert places(client, "2") == ["failed"]


@pytest.mark.parametrize("option", ["removeOnComplete", "removeOnFail"])
def test_a_limit_of_none_at_once_removes_no_more_than_is_to_be_kept(
    client: Client, queue: BullMQQueue, option: str
) -> None:
    how = "completed" if option == "removeOnComplete" else "failed"
    add(
        client,
        Keys("mail"),
        [NewJob(name="send", options={option: {"count": 2, "limit": 0}}) for _ in range(4)],
    )
    for each in fetch_all(queue):
        queue.finish([end(each, how)])
    assert client.call("ZCARD", f"bull:mail:{how}") == 2


@pytest.mark.parametrize("how", ["completed", "failed"])
@pytest.mark.parametrize(
    ("parent_key", "parent"),
    [
        ("bull:mail:9", b"{bad"),
        ("bull:mail:9", b"[]"),
        ("bull:mail:9", b"7"),
        ("bull:mail:9", b'{"id":9}'),
        ("bull:mail:9", b'{"id":null,"queueKey":null}'),
        ("9", b""),
        ("", b""),
    ],
)
def test_a_parent_that_cannot_be_read_costs_no_job(
    client: Client, queue: BullMQQueue, parent_key: str, parent: bytes, how: str
) -> None:
    added(client, parentKey=parent_key, parent=parent)
    accepted, _ = queue.finish([end(each, how) for each in fetch_all(queue)])
    assert accepted == [True] * 3
    assert [places(client, id_) for id_ in "123"] == [[how]] * 3


def test_a_parent_is_found_by_its_key_when_its_description_cannot_be_read(
    client: Client, queue: BullMQQueue
) -> None:
    add(client, Keys("mail"), [NewJob(name="join", id="p", children=True)])
    add(client, Keys("mail"), [NewJob(name="part", parent=(Keys("mail"), "p"))])
    client.call("HSET", "bull:mail:2", "parent", "{bad")
    queue.finish([ended(each) for each in queue.fetch(1, timeout=0)])
    assert [each.job.id for each in queue.fetch(1, timeout=0)] == ["p"]


def test_thousands_that_have_failed_before_they_are_taken_are_all_kept(
    client: Client, queue: BullMQQueue
) -> None:
    count = 5000
    added(client, count, defa="child failed")
    for number in range(1, count + 1):
        client.call("HSET", f"bull:mail:{number}", "defa", "child failed")
    assert queue.fetch(1, timeout=0) == []
    assert client.call("ZCARD", "bull:mail:failed") == count


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("failedReason", b"\xff\xfe"),
        ("returnvalue", b'"\xff"'),
        ("pb", b"\xff"),
        ("processedOn", b"nan"),
        ("finishedOn", b"9" * 400),
    ],
)
def test_an_end_that_others_wrote_strangely_is_settled(
    client: Client, queue: BullMQQueue, field: str, value: bytes
) -> None:
    state = "failed" if field == "failedReason" else "completed"
    fed = [job(), job()]
    queue.push(fed, epoch="")
    client.call("DEL", "bull:mail:prioritized")
    for each in fed:
        client.call(
            "HSET",
            f"bull:mail:{each.id}",
            "atm",
            1,
            "processedOn",
            1,
            "finishedOn",
            2,
            "returnvalue",
            "1",
        )
        client.call("ZADD", f"bull:mail:{state}", 2, each.id)
        client.call("XADD", "bull:mail:events", "*", "event", state, "jobId", each.id)
    client.call("HSET", f"bull:mail:{fed[0].id}", field, value)
    found = []
    for _ in range(4):
        read = queue.outcomes(10, timeout=0.02)
        found += [one.job_id for each in read for one in each.ends]
        queue.acknowledge(read)
    assert sorted(found) == sorted(each.id for each in fed)


@pytest.mark.parametrize(
    "end_date", ["2999-01-01", "2999-01-01T00:00:00", "2999-01-01T00:00:00.000Z", 32472144000000]
)
def test_a_scheduler_goes_on_however_its_end_is_written(
    client: Client, queue: BullMQQueue, end_date: object
) -> None:
    added(
        client, rjk="daily", opts=orjson.dumps({"repeat": {"every": 60_000, "endDate": end_date}})
    )
    client.call("HSET", "bull:mail:repeat:daily", "name", "send", "every", 60_000, "ic", 1)
    client.call("ZADD", "bull:mail:repeat", 1000, "daily")
    client.call("RENAME", "bull:mail:2", "bull:mail:repeat:daily:1000")
    client.call("LPUSH", "bull:mail:wait", "repeat:daily:1000")
    fetch_all(queue)
    assert client.call("ZCARD", "bull:mail:delayed") == 1


def test_an_id_that_means_another_key_stops_nobody(client: Client, queue: BullMQQueue) -> None:
    added(client)
    client.call("RPUSH", "bull:mail:wait", "id", "wait", "meta", "nobody")
    client.call("ZADD", "bull:mail:prioritized", 1, "events")
    client.call("ZADD", "bull:mail:delayed", 1, "events", 2, "nobody", 3, "meta")
    assert [each.job.id for each in fetch_all(queue)] == ["1", "2", "3"]
    assert client.call("LRANGE", "bull:mail:active", 0, -1) == [b"3", b"2", b"1"]
    assert client.call("EXISTS", "bull:mail:nobody") == 0


def test_what_is_active_and_no_job_is_lost_without_others(client: Client) -> None:
    queue = BullMQQueue(client, "mail", worker="w1", options=QueueOptions(reaper=AT_ONCE))
    added(client)
    fetch_all(queue)
    client.call("LPUSH", "bull:mail:active", "events", "meta", "nobody")
    client.call("DEL", *(f"bull:mail:{id_}:lock" for id_ in "123"))
    assert [queue.recover(lambda delivery: ended(delivery)) for _ in range(2)] == [0, 3]
    assert client.call("LLEN", "bull:mail:active") == client.call("EXISTS", "bull:mail:nobody") == 0
    assert sorted(each.job.id for each in fetch_all(queue)) == ["1", "2", "3"]


@pytest.mark.parametrize("delay", [1e300, 1e306, 1e16, -5, "nan", None])
def test_a_delay_before_the_next_attempt_is_a_year_at_most(
    client: Client, queue: BullMQQueue, delay: object
) -> None:
    added(client, opts=orjson.dumps({"attempts": 3, "backoff": {"type": "fixed", "delay": delay}}))
    policies = [each.job.policies()[0] for each in fetch_all(queue)]
    assert len(policies) == 3
    assert timedelta() < policies[1].delay(1, rng=Random(1)) <= timedelta(days=365)


def test_a_job_that_somebody_removed_is_lost_to_its_worker_and_not_made_anew(
    client: Client, queue: BullMQQueue
) -> None:
    added(client)
    taken = fetch_all(queue)
    client.call("DEL", "bull:mail:2")
    told = queue.renew(dict.fromkeys(taken, Note(10, "far", None)), lease=queue.lease)
    assert told == [Renewed.KEPT, Renewed.LOST, Renewed.KEPT]
    assert queue.finish([ended(each) for each in taken])[0] == [True, False, True]
    assert client.call("EXISTS", "bull:mail:2") == 0


@pytest.mark.parametrize("how", ["fails", "drained", "trimmed"])
def test_a_parent_whose_id_has_colons_waits_for_no_child_that_is_removed(
    client: Client, queue: BullMQQueue, how: str
) -> None:
    keep = {"removeOnFail": {"count": 1} if how == "trimmed" else True}
    add(client, Keys("other"), [NewJob(name="join", id="film:7:b", children=True)])
    add(
        client,
        Keys("mail"),
        [NewJob(name="part", options=keep, parent=(Keys("other"), "film:7:b"))],
    )
    if how == "drained":
        client.run(script("bullmq", "drain"), ["bull:mail:meta"], ["auto", 10, "wait"])
    else:
        queue.finish([ended(each, State.FAILED, error="no") for each in fetch_all(queue)])
    if how == "trimmed":
        add(client, Keys("mail"), [NewJob(name="part", options=keep)])
        queue.finish([ended(each, State.FAILED, error="no") for each in fetch_all(queue)])
    assert client.call("LRANGE", "bull:other:wait", 0, -1) == [b"film:7:b"]


def test_a_limit_that_never_runs_out_limits_nobody(client: Client, queue: BullMQQueue) -> None:
    added(client)
    client.call("HSET", "bull:mail:meta", "max", 1, "duration", 1000)
    client.call("SET", "bull:mail:limiter", 5)
    assert queue.fetch(1, timeout=0)
