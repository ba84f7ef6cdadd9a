"""The reliable dialect's keys and bytes, and how it gets on with producers and workers of the
original.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
import pytest
import redis

from scheduler.dialects.client import Client
from scheduler.dialects.interface import (
    BegunMark,
    Cancelling,
    Delivery,
    Handled,
    Known,
    Pushed,
    Renewed,
    Result,
)
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.errors import ConfigError
from scheduler.model.labels import Priority
from scheduler.model.oneshot import attempt_id
from scheduler.model.states import State
from tests.dialects.servers import House, Server, cluster, one
from tests.dialects.values import back, ended, fetch_all, ids, job, retried
from tests.support.waiting import rest

MakeReliable = Callable[..., ReliableQueue]
PLAIN = {
    "id": "f-1",
    "filepath": "/data/a.pdf",
    "filesize": 12,
    "priority": "high",
    "retries": 2,
    "creation_time": "2025-09-12T10:00:00.5Z",
    "trace_id": "t",
    "span_id": "s",
}


@pytest.fixture(scope="module")
def server(binary: str) -> Iterator[Server]:
    with one(binary) as started:
        yield started


@pytest.fixture
def plain(server: Server) -> Iterator[Any]:
    """A client as any producer or worker of the original has it."""
    server.admin("FLUSHALL")
    with redis.Redis(port=server.port, protocol=2) as connection:
        yield connection


@pytest.fixture
def make(server: Server, plain: Any) -> Iterator[MakeReliable]:
    client = Client(server.url)

    def made(worker: str = "w1", **options: Any) -> ReliableQueue:
        return ReliableQueue(client, "mail", worker=worker, installation="3f1e", **options)

    yield made
    client.close()


def entry(**changes: Any) -> bytes:
    return orjson.dumps({**PLAIN, **changes})


def reason(plain: Any, text: bytes, prefix: str = "jobqueue:{mail}") -> bytes | None:
    found: bytes | None = plain.hget(f"{prefix}:reasons", hashlib.sha1(text).hexdigest())
    return found


# Keys and bytes


def test_a_worker_without_a_name_takes_jobs(make: MakeReliable) -> None:
    queue = make("")
    queue.push([job()], epoch="")
    assert len(queue.fetch(1, timeout=0)) == 1


def test_the_keys_of_a_queue(make: MakeReliable, plain: Any) -> None:
    queue = make("w1")
    jobs = [job(id=f"j{priority}", priority=priority) for priority in Priority]
    queue.begin("1")
    queue.push(
        [*jobs, job(id="x", priority=Priority.CRITICAL), job(id="y", priority=Priority.CRITICAL)],
        epoch="1",
    )
    one, two, three = queue.fetch(3, timeout=0)
    queue.finish([ended(one), ended(two, State.DEAD_LETTER)])
    assert plain.lrange("jobqueue:{mail}:worker:w1:processing", 0, -1) == [three.raw]
    assert 29_000 < plain.pttl("jobqueue:{mail}:processing:worker:w1") <= 30_000
    assert plain.lrange("jobqueue:{mail}:completed", 0, -1) == [one.raw]
    assert plain.lrange("jobqueue:{mail}:dead_letter", 0, -1) == [two.raw]
    assert plain.get("jobqueue:{mail}:epoch:3f1e") == b"1"
    assert plain.xlen("jobqueue:{mail}:outcomes:3f1e") == 1
    assert [
        plain.llen(f"jobqueue:{{mail}}:{name}")
        for name in ("critical", "high", "normal", "low", "bulk")
    ] == [
        0,
        1,
        1,
        1,
        1,
    ]
    assert all(key.startswith(b"jobqueue:{mail}:") for key in plain.keys("*"))


def test_an_entry_is_the_originals_json(make: MakeReliable, plain: Any) -> None:
    make().push([job(id="0b5e", attempt=3)], epoch="")
    [written] = plain.lrange("jobqueue:{mail}:normal", 0, -1)
    assert written == (
        b'{"id":"0b5e","filepath":"","filesize":0,"priority":"normal","retries":3,'
        b'"creation_time":"2026-03-01T12:30:15.123456Z","trace_id":"","span_id":""}'
    )


def test_a_retry_counts_in_its_entry(make: MakeReliable, plain: Any) -> None:
    queue = make()
    queue.push([job(id="0b5e", attempt=3)], epoch="")
    queue.finish([retried(delivery) for delivery in queue.fetch(1, timeout=0)])
    [(member, due)] = plain.zrange("jobqueue:{mail}:retries", 0, -1, withscores=True)
    assert member[:1] == b"3"
    assert orjson.loads(member[1:])["retries"] == 4
    seconds, _ = plain.time()
    assert abs(due / 1000 - seconds) < 5


def test_the_names_of_the_original(make: MakeReliable, plain: Any) -> None:
    queue = make("w1", keys=Keys.original())
    queue.push([job(id=f"j{priority}", priority=priority) for priority in Priority], epoch="")
    words = {
        name: [orjson.loads(each)["priority"] for each in plain.lrange(f"jobqueue:{name}", 0, -1)]
        for name in ("high_priority", "low_priority")
    }
    assert words == {"high_priority": ["high"] * 2, "low_priority": ["low"] * 3}
    taken = queue.fetch(10, timeout=0)
    assert [delivery.job.priority for delivery in taken] == list(Priority)
    assert plain.llen("jobqueue:worker:w1:processing") == 5
    assert plain.exists("jobqueue:processing:worker:w1")
    queue.finish([ended(taken[0]), ended(taken[1], State.FAILED)])
    assert (plain.llen("jobqueue:completed"), plain.llen("jobqueue:dead_letter")) == (1, 1)


def test_the_names_of_the_original_are_refused_in_a_cluster(binary: str) -> None:
    with cluster(binary) as house, pytest.raises(ConfigError, match="hash tag"):
        ReliableQueue(Client(house.url), "mail", keys=Keys.original())


def test_a_worker_whose_name_would_break_a_key_is_refused(server: Server) -> None:
    with pytest.raises(ConfigError, match="':'"):
        ReliableQueue(Client(server.url), "mail", worker="a:b")


# Producers and workers of the original


@pytest.mark.parametrize("keys", [Keys.of("mail"), Keys.original()], ids=["ours", "original"])
def test_a_job_of_the_originals_producer_is_worked(
    make: MakeReliable, plain: Any, keys: Keys
) -> None:
    queue = make(keys=keys)
    text = entry()
    plain.lpush(keys.levels[1], text)
    [delivery] = queue.fetch(5, timeout=0)
    assert (delivery.job.id, delivery.job.type, delivery.job.payload) == ("f-1", "file", text)
    assert (delivery.attempt, delivery.job.priority, delivery.job.installation) == (
        3,
        Priority.HIGH,
        "",
    )
    assert queue.known(["f-1"]) == [Known(State.RUNNING, 3, delivery.started_at)]
    assert queue.finish([ended(delivery)])[0] == [True]
    assert plain.lrange(keys.completed, 0, -1) == [text]
    assert plain.llen(keys.processing("w1")) == 0
    assert queue.depths()[1:] == (0, 0, 0, 0, 0)


def test_a_job_of_the_original_is_retried_put_back_and_buried(
    make: MakeReliable, plain: Any
) -> None:
    queue = make()
    plain.lpush("jobqueue:{mail}:high", entry())
    [delivery] = queue.fetch(5, timeout=0)
    queue.finish([back(delivery)])
    assert plain.lrange("jobqueue:{mail}:high", 0, -1) == [entry()]
    [delivery] = queue.fetch(5, timeout=0)
    assert (delivery.attempt, delivery.charged) == (4, 3)
    _, [again] = queue.finish([retried(delivery)], fetch=1)
    # A worker of the original compares its retries with a limit of its own: they are charged ones.
    assert (again.attempt, again.charged, orjson.loads(again.raw)["retries"]) == (5, 4, 3)
    queue.finish([ended(again, State.DEAD_LETTER, error="it is torn")])
    assert plain.lrange("jobqueue:{mail}:dead_letter", 0, -1) == [again.raw]
    assert reason(plain, again.raw) == b"it is torn"
    for name in ("between", "attempts", "returned"):
        assert not plain.exists(f"jobqueue:{{mail}}:{name}")


@pytest.mark.parametrize("text", ["with \\u003cescapes\\u003e", "a b", "\u00e9"])
def test_ids_are_read_as_they_stand(make: MakeReliable, plain: Any, text: str) -> None:
    queue = make()
    plain.lpush(
        "jobqueue:{mail}:low", (f'{{"filepath": "/x", "id": "{text}", "retries": 0}}').encode()
    )
    [delivery] = queue.fetch(5, timeout=0)
    assert queue.held()[0].job == delivery.job
    assert queue.finish([ended(delivery)])[0] == [True]


def test_a_dead_worker_of_the_original_loses_its_job_to_its_list(
    make: MakeReliable, plain: Any
) -> None:
    queue, seen = make("reaper"), []
    plain.lpush("jobqueue:{mail}:worker:host-1-2:processing", entry())

    def decide(delivery: Delivery) -> Result:
        seen.append(delivery)
        return retried(delivery)

    assert queue.recover(decide) == 0  # its heartbeat may be about to come
    assert queue.recover(decide) == 1
    assert [(each.job.id, each.attempt) for each in seen] == [("f-1", 3)]
    assert not plain.exists("jobqueue:{mail}:worker:host-1-2:processing")
    [again] = queue.fetch(5, timeout=0)
    assert (again.attempt, orjson.loads(again.raw)) == (4, {**PLAIN, "retries": 3})


def test_a_live_worker_of_the_original_keeps_its_job(make: MakeReliable, plain: Any) -> None:
    queue = make("reaper")
    plain.lpush("jobqueue:{mail}:worker:host-1-2:processing", entry())
    assert queue.recover(retried) == 0
    plain.set("jobqueue:{mail}:processing:worker:host-1-2", entry(), ex=30)
    assert [queue.recover(retried) for _ in range(3)] == [0, 0, 0]


def test_a_worker_of_ours_whose_heartbeat_has_just_run_out_is_no_stranger(
    make: MakeReliable, plain: Any
) -> None:
    reaper, silent, other = make("reaper"), make("w1"), make("w2")
    twice = job()
    reaper.push([twice], epoch="")
    silent.fetch(1, timeout=0)
    reaper.push([replace(twice, feed=2)], epoch="")
    assert other.finish([ended(each) for each in other.fetch(1, timeout=0)])[0] == [True]
    plain.delete(
        "jobqueue:{mail}:processing:worker:w1"
    )  # a moment before the registry has it among the silent

    def decide(_: Delivery) -> Result:
        raise AssertionError("what is left of a job that has ended is not a job of the original")

    assert [reaper.recover(decide) for _ in range(3)] == [0, 0, 0]


def test_our_job_in_the_hands_of_a_dead_worker_of_the_original_comes_back(
    make: MakeReliable, plain: Any
) -> None:
    queue, ours = make("reaper"), job(attempt=1)
    queue.push([ours], epoch="")
    plain.brpoplpush("jobqueue:{mail}:normal", "jobqueue:{mail}:worker:go:processing", 1)
    assert [queue.recover(back) for _ in range(2)] == [0, 1]
    [delivery] = fetch_all(queue)
    last = str(attempt_id(UUID(ours.id), "go", 0, feed=1, attempt=2))  # nobody numbered its lease
    known = replace(ours, previous_attempt_id=last)
    assert (delivery.job, delivery.attempt, delivery.charged) == (known, 3, 2)


def test_a_worker_of_the_original_has_begun_what_it_holds(make: MakeReliable, plain: Any) -> None:
    queue, seen = make("reaper"), []
    plain.hset("jobqueue:{mail}:begun", "go", "1:1:0:")  # left by a worker of ours of that name
    plain.lpush("jobqueue:{mail}:worker:go:processing", entry())

    def decide(delivery: Delivery) -> Result:
        seen.append((delivery.begun, delivery.charged))
        return retried(delivery)

    assert [queue.recover(decide) for _ in range(2)] == [0, 1]
    assert seen == [(True, 3)]


def test_a_file_that_never_began_is_redelivered_uncharged_once(
    make: MakeReliable, plain: Any
) -> None:
    queue, seen = make("reaper"), []
    plain.lpush("jobqueue:{mail}:high", entry())

    def decide(delivery: Delivery) -> Result:
        seen.append((delivery.attempt, delivery.charged))
        return retried(delivery)

    for number in (1, 2):
        dead = make("dead", lease=timedelta(milliseconds=50))
        assert dead.fetch(1, timeout=0, first=number, begun=BegunMark(number, 0))
        rest(0.1)
        assert queue.recover(decide) == 1
    assert seen == [(4, 3)]
    [again] = queue.fetch(1, timeout=1)
    assert (again.attempt, again.charged, orjson.loads(again.raw)["retries"]) == (5, 4, 3)


def test_counts_of_files_that_others_ended_are_forgotten(make: MakeReliable, plain: Any) -> None:
    queue = make()
    seconds, _ = plain.time()
    week = 7 * 24 * 3600 * 1000
    old, later = seconds * 1000 - week - 1000, seconds * 1000 - week + 60_000
    plain.hset(
        "jobqueue:{mail}:returned",
        mapping={"f-7": f"0:1:1:{old}", "f-8": f"0:1:0:{later}", "ours": f"1:1:1:{old}"},
    )
    plain.lpush("jobqueue:{mail}:high", entry())
    queue.finish([back(each) for each in queue.fetch(1, timeout=0)])
    assert sorted(plain.hkeys("jobqueue:{mail}:returned")) == [b"f-1", b"f-8", b"ours"]


def test_a_worker_of_the_original_that_puts_our_entry_back_leaves_the_record(
    make: MakeReliable, plain: Any
) -> None:
    queue, ours = make(), job(payload=b"[1]", tags={"a": "b"})
    queue.push([ours], epoch="")
    text = plain.brpoplpush("jobqueue:{mail}:normal", "jobqueue:{mail}:worker:go:processing", 1)
    again = text.replace(b'"retries":0', b'"retries":1')
    plain.lpush("jobqueue:{mail}:normal", again)
    plain.lrem("jobqueue:{mail}:worker:go:processing", 1, text)
    [delivery] = queue.fetch(1, timeout=0)
    assert (delivery.job, delivery.attempt) == (ours, 2)
    assert queue.finish([ended(delivery)])[0] == [True]


def test_what_the_originals_reaper_took_from_a_worker_of_ours_runs_once_more(
    make: MakeReliable, plain: Any
) -> None:
    ours, other = make("w1", lease=timedelta(seconds=0.1)), make("w2")
    ours.push([job()], epoch="")
    [first] = ours.fetch(1, timeout=0)
    rest(0.2)
    plain.rpoplpush("jobqueue:{mail}:worker:w1:processing", "jobqueue:{mail}:normal")
    [second] = other.fetch(1, timeout=0)
    assert (second.job, second.attempt) == (first.job, 2)
    assert ours.finish([ended(first)])[0] == [False]
    assert other.finish([ended(second)])[0] == [True]


def test_each_ledger_is_told_its_ends_that_count_and_no_others(
    make: MakeReliable, plain: Any
) -> None:
    ours, other = make("w1"), make("w2")
    jobs = [
        job(id=f"j{number}", installation=("3f1e", "77aa", "")[number % 3]) for number in range(12)
    ]
    ours.push(jobs, epoch="")
    taken = fetch_all(ours)
    lost = [each for each in taken if each.job.id in ("j0", "j4", "j9")]
    other.push(
        [replace(each.job, feed=2) for each in lost], epoch=""
    )  # whoever has them loses them
    results = [
        back(each) if each.job.id == "j6" else ended(each, error='[1,2], "ü"') for each in taken
    ]
    accepted, _ = ours.finish(results)
    assert [each.job.id for each, yes in zip(taken, accepted, strict=True) if not yes] == [
        "j0",
        "j4",
        "j9",
    ]
    told = {name: plain.xrange(f"jobqueue:{{mail}}:outcomes:{name}") for name in ("3f1e", "77aa")}
    read = {
        name: [[end[1] for end in orjson.loads(fields[b"ends"])] for _, fields in told[name]]
        for name in told
    }
    assert read == {"3f1e": [["j3"]], "77aa": [["j1", "j7", "j10"]]}
    again = other.fetch(10, timeout=0)
    assert (
        other.finish([ended(each) for each in again if each.job.id == "j0"] + [ended(taken[0])])[0][
            -1
        ]
        is False
    )
    assert len(plain.xrange("jobqueue:{mail}:outcomes:3f1e")) == 2


# What cannot be read

CORRUPT = [
    b"",
    b"{",
    b"no json",
    b"[]",
    b"null",
    b'{"filepath":"/x"}',
    b'{"id":7,"filepath":"/x"}',
    b'{"id":""}',
    b'{"id":"a","filepath":',
    b'{"id":"b","retries":"many"}',
    b'{"id":"c\xff","filepath":"/x"}',
    b"\x00\xff\xfe",
    b'{"id":"d","retries":null}',
    b'["id","id":"e"]',
    b'"id":"f"',
]


@pytest.mark.parametrize("text", CORRUPT)
def test_a_corrupt_entry_is_a_dead_letter_with_a_reason_and_blocks_nobody(
    make: MakeReliable, plain: Any, text: bytes
) -> None:
    queue = make()
    plain.lpush("jobqueue:{mail}:high", entry(id="before"), text, text, entry(id="after"))
    assert ids(fetch_all(queue)) == ["before", "after"]
    assert set(plain.lrange("jobqueue:{mail}:dead_letter", 0, -1)) == {text}
    assert reason(plain, text)
    assert sorted(ids(queue.held())) == ["after", "before"]
    assert queue.depths().running == 2


@pytest.mark.parametrize("text", CORRUPT)
def test_a_corrupt_entry_in_a_dead_workers_list_blocks_no_reaper(
    make: MakeReliable, plain: Any, text: bytes
) -> None:
    queue = make("reaper")
    plain.lpush("jobqueue:{mail}:worker:go:processing", entry(id="before"), text, entry(id="after"))
    queue.recover(retried)
    queue.recover(retried)
    assert sorted(ids(fetch_all(queue))) == ["after", "before"]
    assert plain.lrange("jobqueue:{mail}:dead_letter", 0, -1) == [text]
    assert reason(plain, text)


@pytest.mark.parametrize(
    "record", [b"x", b"1:0:2:{", b"1:0:2:{}", b"1:0:900:{}", b"::::", b"1:0:-1:{}", b'1:0:4:"ab"']
)
def test_a_corrupt_record_is_in_nobodys_way(make: MakeReliable, plain: Any, record: bytes) -> None:
    queue, bad, good = make(), job(), job()
    queue.push([bad, good], epoch="")
    plain.hset("jobqueue:{mail}:jobs", bad.id, record)
    assert ids(fetch_all(queue)) == [good.id]
    assert ids(queue.held()) == [good.id]
    assert queue.known([bad.id]) == [None]
    assert queue.cancel([bad.id]) == [Cancelling.UNKNOWN]
    assert plain.llen("jobqueue:{mail}:dead_letter") == 1


@pytest.mark.parametrize("place", [0, 1, 5], ids=["tenant", "type", "installation"])
def test_a_record_with_a_value_of_another_type_is_unreadable(
    make: MakeReliable, plain: Any, place: int
) -> None:
    queue, bad, good = make(), job(), job()
    queue.push([bad, good], epoch="")
    head: list[Any] = ["acme", "send", 2, bad.created_at, bad.expires_at, ""]
    head[place] = [1]
    text = orjson.dumps(head)
    plain.hset("jobqueue:{mail}:jobs", bad.id, b"1:0:%d:%b1" % (len(text), text))
    assert ids(queue.fetch(2, timeout=0)) == [good.id]


@pytest.mark.parametrize("place", [0, 1], ids=["feed", "attempts"])
def test_a_record_with_a_number_that_is_too_large_blocks_no_result(
    make: MakeReliable, plain: Any, place: int
) -> None:
    queue, bad, good = make(), job(), job()
    queue.push([bad, good], epoch="")
    parts = plain.hget("jobqueue:{mail}:jobs", bad.id).split(b":", 3)
    parts[place] = b"1" + b"0" * 30
    plain.hset("jobqueue:{mail}:jobs", bad.id, b":".join(parts))
    taken = fetch_all(queue)
    assert ids(taken) == [good.id]
    assert queue.finish([ended(each) for each in taken])[0] == [True]


def test_an_outcome_that_cannot_be_read_is_a_dead_letter(make: MakeReliable, plain: Any) -> None:
    queue = make()
    queue.push([job()], epoch="")
    plain.xadd("jobqueue:{mail}:outcomes:3f1e", {"ends": "[{]"})
    plain.xadd("jobqueue:{mail}:outcomes:3f1e", {"other": "x"})
    queue.finish([ended(delivery) for delivery in queue.fetch(1, timeout=0)])
    queue.outcomes(300, timeout=0)
    [read] = queue.outcomes(300, timeout=1)
    assert len(read.ends) == 1
    assert plain.lrange("jobqueue:{mail}:dead_letter", 0, -1) == [b"", b"[{]"]
    assert plain.xlen("jobqueue:{mail}:outcomes:3f1e") == 1


def test_of_a_batch_that_has_an_unreadable_end_the_others_are_read_and_its_job_may_be_fed_again(
    make: MakeReliable, plain: Any
) -> None:
    queue = make()
    queue.push([job(), job()], epoch="")
    good, bad = queue.fetch(2, timeout=0)
    queue.finish([ended(good), ended(bad)])
    [(token, fields)] = plain.xrange("jobqueue:{mail}:outcomes:3f1e")
    first, second = orjson.loads(fields[b"ends"])
    plain.xdel("jobqueue:{mail}:outcomes:3f1e", token)
    plain.xadd(
        "jobqueue:{mail}:outcomes:3f1e",
        {"ends": orjson.dumps([first, [*second[:4], "odd", *second[5:]]])},
    )
    queue.outcomes(300, timeout=0)
    [read] = queue.outcomes(300, timeout=1)
    assert [end.job_id for end in read.ends] == [good.job.id]
    assert plain.hkeys("jobqueue:{mail}:finished") == [good.job.id.encode()]
    queue.acknowledge([read])
    assert plain.xlen("jobqueue:{mail}:outcomes:3f1e") == 0
    assert queue.push([bad.job], epoch="") == [Pushed.NEW]


def test_a_reapers_scan_goes_on_where_it_stopped(
    make: MakeReliable, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plain.pipeline() as pipe:
        for number in range(5000):
            pipe.set(f"other:{number}", "x")
        pipe.execute()
    plain.lpush("jobqueue:{mail}:worker:go:processing", entry())
    monkeypatch.setattr("scheduler.dialects.reliable.reaper.SCAN_SECONDS", 0.005)
    queue = make("reaper")
    assert any(queue.recover(retried) for _ in range(300))


def test_in_a_cluster_too_the_lists_of_strangers_are_found(house: House) -> None:
    client = Client(house.url)
    queue = ReliableQueue(client, "mail", worker="w1", installation="3f1e")
    house.run("LPUSH", "jobqueue:{mail}:worker:go:processing", entry())
    assert [queue.recover(retried) for _ in range(2)] == [0, 1]
    client.close()


@pytest.mark.parametrize("count", [3, 20])
def test_what_many_are_asked_for_in_is_a_real_hash(
    make: MakeReliable, plain: Any, count: int
) -> None:
    """Redis goes through a small one from its beginning for every id."""
    queue = make()
    queue.push([job() for _ in range(count)], epoch="")
    assert len(queue.fetch(100, timeout=0)) == count
    assert (plain.object("encoding", "jobqueue:{mail}:attempts") == b"hashtable") == (count == 20)
    assert plain.hlen("jobqueue:{mail}:attempts") == count


@pytest.mark.parametrize(
    "text", ['{"id":"","x":"\\"id\\":\\"no\\"","id":"b"}', '{"x":1,"id": "b"}', '{"id":"b"}']
)
def test_an_id_is_read_as_anybody_wrote_it(make: MakeReliable, plain: Any, text: str) -> None:
    plain.lpush("jobqueue:{mail}:low", text)
    assert [each.job.id for each in make().fetch(10, timeout=0)] == ["b"]


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("the oldest", range(250)),
        ("the newest", range(1150, 1200)),
        ("every third", range(0, 1200, 3)),
        ("a few", range(100, 103)),
        ("some far away", (0, 600, 1199, 598, 3)),
    ],
)
def test_what_ends_together_is_let_go_and_the_rest_stays_in_its_order(
    make: MakeReliable, plain: Any, name: str, some: Sequence[int]
) -> None:
    queue, hands = make(), Keys.of("mail").processing("w1")
    queue.push([job() for _ in range(1200)], epoch="")
    taken = fetch_all(queue)
    before = plain.lrange(hands, 0, -1)
    over = [taken[place] for place in some]
    random.Random(7).shuffle(over)
    plain.config_resetstat()
    twice = [ended(each) for each in (*over, *over[:2])]
    accepted, _ = queue.finish(twice)
    assert accepted == [True] * len(over) + [False] * 2
    gone = {each.raw for each in over}
    assert plain.lrange(hands, 0, -1) == [each for each in before if each not in gone]
    looked_for = plain.info("commandstats").get("cmdstat_lrem", {"calls": 0})["calls"]
    assert looked_for == 2 or name not in ("the oldest", "every third")
    assert sorted(ids(queue.held())) == sorted(
        each.job.id for each in taken if each.raw not in gone
    )


def test_of_two_equal_entries_one_is_let_go_for_each_end(make: MakeReliable, plain: Any) -> None:
    """A worker of the original may have put one in beside ours."""
    queue, hands = make(), Keys.of("mail").processing("w1")
    queue.push([job() for _ in range(20)], epoch="")
    taken = fetch_all(queue)
    plain.lpush(hands, taken[3].raw)
    accepted, _ = queue.finish([ended(each) for each in taken])
    assert all(accepted)
    assert plain.lrange(hands, 0, -1) == [taken[3].raw]


def test_a_full_redis_takes_ends_from_the_middle_and_loses_no_entry(
    make: MakeReliable, plain: Any
) -> None:
    queue, hands = make(), Keys.of("mail").processing("w1")
    queue.push([job() for _ in range(60)], epoch="")
    taken = fetch_all(queue)
    before = plain.lrange(hands, 0, -1)
    plain.config_set("maxmemory", 1)
    try:
        accepted, _ = queue.finish([ended(each) for each in taken[::3]])
    finally:
        plain.config_set("maxmemory", 0)
    assert accepted == [True] * 20
    gone = {each.raw for each in taken[::3]}
    assert plain.lrange(hands, 0, -1) == [each for each in before if each not in gone]


def test_a_lease_of_a_redis_whose_clock_was_never_set(make: MakeReliable, plain: Any) -> None:
    queue = make()
    queue.push([job()], epoch="")
    [taken] = queue.fetch(1, timeout=0)
    [attempts] = Keys.of("mail").named("attempts")
    plain.hset(attempts, taken.job.id, "1:1:w1:86400000:1")  # a day after 1970
    [held] = queue.held()
    assert held.started_at.year == 1970
    assert queue.renew({held: None}, lease=timedelta(seconds=30)) == [Renewed.KEPT]
    assert queue.finish([ended(held)])[0] == [True]


def test_a_job_that_a_worker_of_the_original_has_is_not_withdrawn(
    make: MakeReliable, plain: Any
) -> None:
    queue, fed = make(), job()
    queue.push([fed], epoch="")
    plain.rpoplpush("jobqueue:{mail}:normal", "jobqueue:{mail}:processing:original")
    assert queue.withdraw(fed) is Cancelling.RUNNING
    plain.rpoplpush("jobqueue:{mail}:processing:original", "jobqueue:{mail}:normal")
    assert queue.withdraw(fed) is Cancelling.REMOVED
    assert queue.withdraw(fed) is Cancelling.UNKNOWN


def test_files_of_the_original_are_of_one_type(make: MakeReliable, plain: Any) -> None:
    queue = make()
    first, second = entry(id="f-1"), entry(id="f-2")
    plain.lpush("jobqueue:{mail}:high", first, second)
    queue.push([other := job()], epoch="")
    assert ids(queue.fetch(5, timeout=0, handled=Handled(free={"file": 0}))) == [other.id]
    assert plain.lrange("jobqueue:{mail}:high", 0, -1) == [second, first]
    assert ids(queue.fetch(5, timeout=0, handled=Handled(free={"file": 1}))) == ["f-1"]
    assert plain.lrange("jobqueue:{mail}:high", 0, -1) == [second]
    assert plain.lrange("jobqueue:{mail}:worker:w1:processing", 0, -1)[0] == first


def test_limits_over_lists_that_levels_share(server: Server, plain: Any) -> None:
    client = Client(server.url)
    queue = ReliableQueue(client, "files", worker="w1", keys=Keys.original())
    files = [entry(id=f"f-{number}") for number in range(4)]
    plain.lpush("jobqueue:high_priority", *files)
    assert queue.fetch(9, timeout=0, handled=Handled(free={"file": 0})) == []
    assert plain.lrange("jobqueue:high_priority", 0, -1) == files[::-1]
    assert len(queue.fetch(9, timeout=0, handled=Handled(free={"file": 2}))) == 2
    assert plain.lrange("jobqueue:high_priority", 0, -1) == files[:1:-1]
    client.close()


@pytest.mark.parametrize(
    "head",
    [b"1", b"1:0:", b"1:0:9:{bad", b"1:0:2:[]", b'1:0:7:{"2":1}', b"1:0:99999999999999:x"],
)
def test_a_record_without_a_type_costs_no_other_job(
    make: MakeReliable, plain: Any, head: bytes
) -> None:
    queue = make()
    jobs = [job(), job(), job(type="big")]
    queue.push(jobs, epoch="")
    plain.hset("jobqueue:{mail}:jobs", jobs[0].id, head)
    assert ids(queue.fetch(3, timeout=0, handled=Handled(free={"big": 0}))) == [jobs[1].id]
    assert ids(fetch_all(queue)) == [jobs[2].id]


@pytest.mark.parametrize(
    "lease", [b"", b"x", b"1:1:w1:5", b"1:1:w1:x:1", b":::::", b"1:1:\xff:1:1"]
)
def test_a_value_that_is_no_lease_stops_nobody(
    make: MakeReliable, plain: Any, lease: bytes
) -> None:
    queue, other = make(), make("w2")
    jobs = [job(), job()]
    queue.push(jobs, epoch="")
    taken = fetch_all(queue)
    plain.hset("jobqueue:{mail}:attempts", jobs[0].id, lease)
    assert queue.renew(dict.fromkeys(taken), lease=timedelta(seconds=30)) == [
        Renewed.LOST,
        Renewed.KEPT,
    ]
    assert ids(queue.held()) == [jobs[1].id]
    plain.lpush("jobqueue:{mail}:normal", taken[0].raw)
    assert set(ids(fetch_all(other))) <= {jobs[0].id}
    assert queue.finish([ended(each) for each in taken])[0] == [False, True]
