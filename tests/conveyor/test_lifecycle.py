"""What our workers do with jobs of Conveyor: parents, heirs, retries, times, and what a worker in
Go sees of it.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.dialects.client import Client
from scheduler.dialects.conveyor import add as adding
from scheduler.dialects.conveyor.keys import Keys
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.interface import BegunMark, Cancelling, Delivery, Known, Renewed, Result
from scheduler.errors import ConfigError, QueueError
from scheduler.model.labels import Priority
from scheduler.model.states import State
from tests.conveyor.conftest import MakeQueue, contents, new
from tests.conveyor.encoder import decode, encode
from tests.dialects.values import back, ended, fetch_all, ids, retried
from tests.dialects.values import job as fed
from tests.support.waiting import WOKEN, rest

LEASE = timedelta(seconds=30)
RUNNING, COMPLETED, FAILED = 2, 3, 4


def take(queue: ConveyorQueue, *wanted: Any) -> list[Delivery]:
    """Fetch all that there is, which is these."""
    taken = fetch_all(queue)
    assert sorted(ids(taken)) == sorted(job.uuid for job in wanted)
    return taken


def complete(queue: ConveyorQueue, taken: list[Delivery]) -> None:
    assert all(queue.finish([ended(each) for each in taken])[0])


def left(redis: Client) -> list[str]:
    """The keys that say something of a job."""
    return [
        key
        for key in contents(redis)
        if not key.endswith(("workers:active", "queues:active", ":workers"))
    ]


# What a worker in Go sees


def test_a_fetch_writes_everything_that_go_looks_at(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    job = new()
    adding.push(redis, keys, job)
    take(make_queue(), job)
    found, uuid = contents(redis), job.uuid.encode()
    assert found[keys.job(job.uuid)] == job.SerializeToString()
    assert found[keys.worker("w1:mail")] == [uuid]
    assert found[f"{keys.base}jobs:active"] == [uuid]
    [(name, heard)] = found[f"{keys.base}workers:active"]
    assert (name, abs(heard - time.time()) < 5) == (b"w1:mail", True)
    [(queue, seen)] = found[f"{keys.base}queues:active"]
    assert (queue, abs(seen - time.time()) < 5) == (b"mail", True)


def test_a_renewal_is_a_heartbeat(redis: Client, keys: Keys, make_queue: MakeQueue) -> None:
    heartbeats = f"{keys.base}workers:active"
    redis.call("ZADD", heartbeats, 1, "w1:mail")
    make_queue().renew({}, lease=LEASE)
    assert abs(float(redis.call("ZSCORE", heartbeats, "w1:mail")) - time.time()) < 5


def test_a_lease_is_no_longer_than_go_waits(make_queue: MakeQueue) -> None:
    with pytest.raises(ConfigError, match="lease: must be at most 30s"):
        make_queue(lease=timedelta(seconds=31))


def test_an_end_leaves_nothing_behind(redis: Client, keys: Keys, make_queue: MakeQueue) -> None:
    job, queue = new(), make_queue()
    adding.push(redis, keys, job)
    complete(queue, take(queue, job))
    assert left(redis) == []


@contextmanager
def heard(redis: Client, keys: Keys) -> Iterator[list[tuple[str, int]]]:
    said: list[tuple[str, int]] = []
    with redis.subscribed(keys.events) as hear:
        yield said
        while messages := hear(0.2):
            said += [(decode(message)[1].decode(), decode(message)[12]) for message in messages]


def test_events_are_said_with_the_status_set(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    good, bad, queue = new(), new(), make_queue()
    with heard(redis, keys) as said:
        for job in (good, bad):
            adding.push(redis, keys, job)
        one, two = take(queue, good, bad)
        queue.finish([ended(one), ended(two, State.FAILED, error="why")])
    assert said == [(job.uuid, status) for status in (1, RUNNING) for job in (good, bad)] + [
        (good.uuid, COMPLETED),
        (bad.uuid, FAILED),
    ]


def test_what_go_pushes_wakes_us_at_once(redis: Client, keys: Keys, make_queue: MakeQueue) -> None:
    queue, took = make_queue(), [1.0]
    queue.fetch(1, timeout=0)
    with ThreadPoolExecutor(1) as pool:
        while len(took) < 20 and min(took) >= 0.3:  # one that is quick is enough
            job = new()
            waiting = pool.submit(queue.fetch, 1, timeout=60)
            rest(0.2)
            begun = time.monotonic()
            redis.call("LPUSH", keys.queue("mail"), job.SerializeToString())
            assert ids(waiting.result()) == [job.uuid]
            took.append(time.monotonic() - begun)
    assert min(took) < 0.3, "it looked again by itself"


def test_what_go_schedules_runs_in_time(redis: Client, keys: Keys, make_queue: MakeQueue) -> None:
    queue, job = make_queue(), new()
    queue.fetch(1, timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.fetch, 1, timeout=60)
        rest(0.1)
        redis.call("ZADD", keys.scheduled, int(time.time()) + 1, job.SerializeToString())
        begun = time.monotonic()
        assert ids(waiting.result()) == [job.uuid]
    assert time.monotonic() - begun < WOKEN


def test_a_fetch_that_waits_leaves_the_job_where_it_is(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    job = new()
    adding.push(redis, keys, job)
    assert make_queue().fetch(0, timeout=1) == []
    assert redis.call("LRANGE", keys.queue("mail"), 0, -1) == [job.SerializeToString()]


# Parents and heirs


def test_children_begin_after_their_parent_and_heirs_after_all_of_them(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), new()
    children = [new(parent_uuid=parent.uuid) for _ in range(3)]
    heirs = [new(predecessor_uuid=parent.uuid) for _ in range(2)]
    for job in (parent, *children, *heirs):
        adding.add(redis, keys, job)
    complete(queue, take(queue, parent))
    assert redis.call("GET", keys.job(parent.uuid)) == parent.SerializeToString()
    one, two, three = take(queue, *children)
    complete(queue, [one, two])
    take(queue)
    complete(queue, [three])
    assert redis.call("EXISTS", keys.job(parent.uuid)) == 0
    complete(queue, take(queue, *heirs))
    assert left(redis) == []


def test_three_levels_deep_with_a_thousand_children(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, root = make_queue(), new()
    middle = [new(parent_uuid=root.uuid) for _ in range(10)]
    leaves = [new(parent_uuid=middle[number % 10].uuid) for number in range(1000)]
    heir, inner = new(predecessor_uuid=root.uuid), new(predecessor_uuid=middle[0].uuid)
    for job in (root, *middle, *leaves, heir, inner):
        adding.add(redis, keys, job)
    for level in ([root], middle, leaves):
        complete(queue, take(queue, *level))
    complete(queue, take(queue, inner, heir))
    assert left(redis) == []


def test_a_child_that_is_tried_again_holds_up_its_parent_and_no_longer(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), new()
    child, heir = new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)
    for job in (parent, child, heir):
        adding.add(redis, keys, job)
    complete(queue, take(queue, parent))
    for _ in range(2):
        [delivery] = take(queue, child)
        queue.finish([retried(delivery)])
    [delivery] = take(queue, child)
    assert delivery.attempt == 3
    complete(queue, [delivery])
    complete(queue, take(queue, heir))
    assert left(redis) == []


def test_a_child_that_fails_for_good_is_waited_for_no_longer(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), new()
    child, heir = new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)
    for job in (parent, child, heir):
        adding.add(redis, keys, job)
    complete(queue, take(queue, parent))
    queue.finish([ended(each, State.DEAD_LETTER, error="so") for each in take(queue, child)])
    complete(queue, take(queue, heir))
    assert left(redis) == [keys.failed]


def test_what_waited_for_a_job_that_failed_is_kept_with_it(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), new()
    child, heir = new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)
    for job in (parent, child, heir):
        adding.add(redis, keys, job)
    queue.finish([ended(each, State.FAILED, error="so") for each in take(queue, parent)])
    found = redis.call("LRANGE", keys.failed, 0, -1)
    assert found[:2] == [heir.SerializeToString(), child.SerializeToString()]
    assert (decode(found[2])[9], decode(found[2])[11]) == (1, b"so")
    assert left(redis) == [keys.failed]


def test_a_job_that_is_tried_again_keeps_what_waits_for_it(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), new()
    child, heir = new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)
    for job in (parent, child, heir):
        adding.add(redis, keys, job)
    queue.finish([retried(each) for each in take(queue, parent)])
    complete(queue, take(queue, parent))
    complete(queue, take(queue, child))
    complete(queue, take(queue, heir))
    assert left(redis) == []


@pytest.mark.parametrize("holder", ["ours", "others"])
def test_a_parent_that_runs_is_not_closed_by_its_child(
    redis: Client, keys: Keys, make_queue: MakeQueue, holder: str
) -> None:
    queue, parent = make_queue(), new()
    child, heir = new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)
    for job in (parent, heir):
        adding.add(redis, keys, job)
    taken = take(queue, parent)
    if holder == "others":
        redis.call("SMOVE", keys.worker("w1:mail"), keys.worker("go"), parent.uuid)
        redis.call("ZADD", f"{keys.base}workers:active", int(time.time()), "go")
    adding.add(redis, keys, child, dead_parent=True)
    complete(queue, take(queue, child))
    take(queue)
    if holder == "ours":
        complete(queue, taken)
        take(queue, heir)


def test_parent_and_child_that_end_together(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    for order in (1, -1):
        queue, parent = make_queue(), new()
        child, heir = new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)
        for job in (parent, heir):
            adding.add(redis, keys, job)
        adding.add(redis, keys, child, dead_parent=True)
        complete(queue, take(queue, parent, child)[::order])
        complete(queue, take(queue, heir))
        assert left(redis) == []


def test_a_parent_that_is_tried_again_together_with_its_child_is_not_closed(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), new()
    child, heir = new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)
    for job in (parent, heir):
        adding.add(redis, keys, job)
    adding.add(redis, keys, child, dead_parent=True)
    one, two = take(queue, parent, child)
    queue.finish([ended(two), retried(one)])
    complete(queue, take(queue, parent))
    complete(queue, take(queue, heir))
    assert left(redis) == []


def test_children_that_end_at_once_bring_the_heir_once(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), new()
    children = [new(parent_uuid=parent.uuid) for _ in range(200)]
    heir = new(predecessor_uuid=parent.uuid)
    for job in (parent, *children, heir):
        adding.add(redis, keys, job)
    complete(queue, take(queue, parent))

    def work(number: int) -> None:
        worker = make_queue(f"w{number}")
        while taken := worker.fetch(3, timeout=0):
            if heir.uuid in ids(taken):
                worker.finish([back(each) for each in taken])
                return
            complete(worker, taken)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    complete(queue, take(queue, heir))
    assert left(redis) == []


def test_a_scheduled_child_of_a_dead_parent_is_waited_for(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), new()
    due = time.time() + 0.5
    child = new(
        parent_uuid=parent.uuid, run_at=Timestamp(seconds=int(due), nanos=int(due % 1 * 1e9))
    )
    heir = new(predecessor_uuid=parent.uuid)
    for job in (parent, child, heir):
        adding.add(redis, keys, job)
    complete(queue, take(queue, parent))
    take(queue)
    [delivery] = queue.fetch(1, timeout=3)
    assert time.time() >= due - 0.01
    complete(queue, [delivery])
    complete(queue, take(queue, heir))
    assert left(redis) == []


def test_a_child_that_go_scheduled_is_waited_for_once_it_is_due(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), new()
    child, late = new(parent_uuid=parent.uuid), new(parent_uuid=parent.uuid)
    heir = new(predecessor_uuid=parent.uuid)
    for job in (parent, child, heir):
        adding.add(redis, keys, job)
    complete(queue, take(queue, parent))
    redis.call(
        "ZADD", keys.scheduled, int(time.time()) - 1, late.SerializeToString()
    )  # it does not follow it
    one, two = take(queue, child, late)
    complete(queue, [one])
    take(queue)
    complete(queue, [two])
    take(queue, heir)


# Times, retries, bytes


def test_what_is_due_goes_to_its_queue_once_however_many_look(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    jobs = [new() for _ in range(500)]
    for job in jobs:
        redis.call("ZADD", keys.scheduled, int(time.time()) - 1, job.SerializeToString())
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda n: fetch_all(make_queue(f"w{n}"), 7), range(4)))
    assert sorted(name for some in taken for name in ids(some)) == sorted(job.uuid for job in jobs)


def test_a_retry_is_the_raw_bytes_with_its_number_and_reason(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    fields = {"uuid": str(uuid4()), "type": "t", "queue": "mail", "payload": b"p", "max_retries": 5}
    unknown = [(999, b"theirs"), (2000, b"more")]
    redis.call("LPUSH", keys.queue("mail"), encode(fields, unknown))
    [delivery] = make_queue().fetch(1, timeout=0)
    assert delivery.raw == encode(fields, unknown)
    begun = time.time()
    make_queue().finish([ended(delivery, State.RETRYING, delay=timedelta(seconds=2), error="no")])
    [(raw, due)] = contents(redis)[keys.scheduled]
    assert raw == encode({**fields, "retry": 1, "last_failure": "no"}, unknown)
    assert 1.9 < due - begun < 3


def test_bytes_that_are_no_job_are_in_nobodys_way(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    job, broken = (
        new(),
        [
            b"",
            b"\xff\xff",
            b"nonsense",
            encode({"type": "t"}),
            encode({"uuid": "x", "queue": b"\xff"}),
        ],
    )
    redis.call("LPUSH", keys.queue("mail"), *broken, job.SerializeToString())
    redis.call("ZADD", keys.scheduled, 1, b"\x0a\x7f")
    queue = make_queue()
    take(queue, job)
    assert set(redis.call("LRANGE", keys.failed, 0, -1)) == {*broken, b"\x0a\x7f"}
    assert queue.depths().running == 1


HOSTILE = [
    {"uuid": "active"},
    {"uuid": "0883941b-55d2-498c-8032-a114b8eb9dc7:children"},
    {"uuid": "*"},
    {"parent_uuid": "a:active"},
    {"predecessor_uuid": "b c"},
]
QUEUES = ["scheduled", "failed", "jobs:active", "workers:active", "ring:mail:jobs"]


@pytest.mark.parametrize("fields", [*HOSTILE, *({"queue": name} for name in QUEUES)], ids=str)
def test_a_job_whose_names_would_be_other_keys_is_in_nobodys_way(
    redis: Client, keys: Keys, make_queue: MakeQueue, fields: dict[str, str]
) -> None:
    queue, parent, broken = make_queue(), new(), new(**fields).SerializeToString()
    adding.add(redis, keys, parent)
    adding.add(redis, keys, heir := new(predecessor_uuid=parent.uuid))
    redis.call("LPUSH", keys.queue("mail"), broken)
    redis.call("ZADD", keys.scheduled, 1, broken)
    redis.call("LPUSH", keys.job(parent.uuid, "children"), broken)
    ran: list[str] = []
    while taken := fetch_all(queue):
        complete(queue, taken)
        ran += ids(taken)
    wrong = (
        keys.names == "seed" or "queue" not in fields
    )  # in the Go project's names any queue is one
    assert (parent.uuid in ran, heir.uuid in ran) == (True, wrong)
    assert set(redis.call("LRANGE", keys.failed, 0, -1)) == ({broken} if wrong else set())


def test_what_others_write_into_our_fields_reaches_no_ledger(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    job = new(installation="3f1e", tenant="acme", tags=b"[", checkpoint=b"{")
    redis.call("LPUSH", keys.queue("mail"), job.SerializeToString())
    queue = make_queue()
    [delivery] = take(queue, job)
    assert (delivery.job.installation, delivery.job.tenant, delivery.job.tags) == ("", "", None)
    complete(queue, [delivery])
    assert left(redis) == []


@given(st.data())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_scripts_read_what_others_write(redis: Client, data: st.DataObject) -> None:
    redis.call("FLUSHALL")
    texts, parent, heir = (
        st.text(st.characters(codec="utf-8"), max_size=300),
        str(uuid4()),
        str(uuid4()),
    )
    fields: Any = data.draw(
        st.fixed_dictionaries(
            {"uuid": st.just(str(uuid4())), "queue": st.just("mail")},
            optional={
                "type": texts,
                "payload": st.binary(max_size=300),
                "parent_uuid": st.just(parent),
                "status": st.integers(0, 4),
                "predecessor_uuid": st.just(heir),
                "run_at": st.tuples(st.integers(-5, 2**33), st.integers(0, 999_999_999)),
                "started_at": st.tuples(st.integers(-5, 2**33), st.just(0)),
                "retry": st.integers(-(2**31), 2**31 - 1),
            },
        )
    )
    raw = encode(
        fields, data.draw(st.lists(st.tuples(st.integers(13, 999), st.binary(max_size=200))))
    )
    later = fields.get("run_at", (0, 0))[0] > time.time()
    places = [f"jobs:{parent}:children"] if "parent_uuid" in fields else [f"jobs:{heir}:onComplete"]
    if not {"parent_uuid", "predecessor_uuid"} & set(fields):
        places = ["scheduled" if later else "mail"]
    adding._run(redis, Keys(), "add", raw)
    assert list(contents(redis)) == places


def test_everything_ends_or_is_forgotten(redis: Client, keys: Keys, make_queue: MakeQueue) -> None:
    queue, parent = make_queue(kept=5), new()
    for job in (parent, new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)):
        adding.add(redis, keys, job)
    complete(queue, fetch_all(queue))
    for _ in range(20):
        adding.push(redis, keys, new(queue="other"))
    other = make_queue(name="other", kept=5)
    other.finish([ended(each, State.FAILED) for each in fetch_all(other)])
    adding.add_to_parent(redis, keys, new(parent_uuid=str(uuid4())))
    assert redis.call("LLEN", keys.failed) == 5
    for key in (key for key in contents(redis) if key.startswith(keys.job(""))):
        if key != f"{keys.base}jobs:active":
            assert redis.call("TTL", key) > 0, key
    assert redis.call("TTL", f"{keys.base}workers:active") > 0


# A fleet of both


def test_what_a_worker_in_go_held_when_it_died_runs_again(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, workers = make_queue(), f"{keys.base}workers:active"
    jobs = {"dead": new(), "alive": new(), "elsewhere": new(queue="other")}
    for name, job in jobs.items():
        redis.call("SET", keys.job(job.uuid), job.SerializeToString())
        redis.call("SADD", keys.worker("dead" if name == "elsewhere" else name), job.uuid)
        redis.call("SADD", f"{keys.base}jobs:active", job.uuid)
    redis.call(
        "SADD", keys.worker("dead"), "failed-before"
    )  # it has no body any more: Go leaves those
    redis.call("ZADD", workers, int(time.time()) - 31, "dead", int(time.time()), "alive")
    assert queue.recover(retried) == 1
    [delivery] = take(queue, jobs["dead"])
    assert delivery.attempt == 2
    complete(queue, [delivery])
    assert redis.call("SMEMBERS", keys.worker("alive")) == {jobs["alive"].uuid.encode()}
    assert redis.call("SMEMBERS", keys.worker("dead")) == {jobs["elsewhere"].uuid.encode()}
    assert make_queue(name="other").recover(retried) == 1
    assert redis.call("ZSCORE", workers, "dead") is None


def test_a_worker_in_go_has_begun_what_it_holds(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, job, seen = make_queue(), new(retry=1), []
    redis.call("SET", keys.job(job.uuid), job.SerializeToString())
    redis.call("SADD", keys.worker("go"), job.uuid)
    redis.call("ZADD", f"{keys.base}workers:active", int(time.time()) - 31, "go")
    redis.call("HSET", keys.ring("mail", "begun"), "go", "1:1:0:")

    def decide(delivery: Delivery) -> Result:
        seen.append((delivery.begun, delivery.charged))
        return retried(delivery)

    assert queue.recover(decide) == 1
    assert seen == [(True, 2)]


def test_a_job_of_others_that_never_began_is_not_charged(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, job, seen = make_queue(), new(retry=1), []
    raw = job.SerializeToString()
    redis.call("LPUSH", keys.queue("mail"), raw)

    def decide(delivery: Delivery) -> Result:
        seen.append((delivery.attempt, delivery.charged))
        return retried(delivery)

    for number in (1, 2):
        dead = make_queue("dead", lease=timedelta(milliseconds=50))
        assert dead.fetch(1, timeout=0, first=number, begun=BegunMark(number, 0))
        rest(0.1)
        assert queue.recover(decide) == 1
        if number == 1:
            assert redis.call("LRANGE", keys.queue("mail"), 0, -1) == [raw]
    assert seen == [(3, 2)]
    [again] = queue.fetch(1, timeout=1)
    assert (again.attempt, again.charged) == (4, 3)
    assert decode(again.raw)[9] == 2
    complete(queue, [again])
    assert not redis.call("EXISTS", keys.ring("mail", "returned"))


def test_a_job_that_go_took_back_from_us_is_not_ours_any_more(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, job = make_queue(), new()
    adding.push(redis, keys, job)
    [first] = take(queue, job)
    go_restarts(redis, keys, "w1:mail")
    assert queue.renew({first: None}, lease=LEASE) == [Renewed.LOST]
    assert queue.finish([ended(first)])[0] == [False]
    [second] = take(queue, job)
    assert second.attempt == 2
    assert queue.finish([ended(first), ended(second)])[0] == [False, True]


def go_restarts(redis: Client, keys: Keys, worker: str) -> None:
    """As a worker in Go does with what a silent one holds."""
    uuid = redis.call("SPOP", keys.worker(worker)).decode()
    body = redis.call("GET", keys.job(uuid))
    redis.call("DEL", keys.job(uuid), keys.job(uuid, "onComplete"), keys.job(uuid, "children"))
    redis.call("SREM", f"{keys.base}jobs:active", uuid)
    redis.call("LPUSH", keys.queue("mail"), body)


def test_a_ledger_does_not_feed_a_queue_that_a_worker_in_go_works(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, seen = make_queue(installation="3f1e"), f"{keys.base}queues:active"
    redis.call("ZADD", seen, int(time.time()), "mail")
    queue.fetch(1, timeout=0)  # a worker of ours says so too, and does not hide it
    with pytest.raises(QueueError, match="queue 'mail' is worked by a worker of Conveyor itself"):
        queue.push([fed()], epoch="")
    redis.call("ZADD", seen, int(time.time()) - 11, "mail")
    queue.push([fed()], epoch="")
    queue.fetch(1, timeout=0)
    queue.push([fed()], epoch="")


def test_what_a_worker_in_go_took_cannot_be_cancelled_and_is_not_known(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, job = make_queue(installation="3f1e"), fed()
    queue.push([job], epoch="")
    raw = redis.call("RPOP", keys.queue("mail"))
    redis.call("SET", keys.job(job.id), raw)
    redis.call("SADD", f"{keys.base}jobs:active", job.id)
    redis.call("SADD", keys.worker("go"), job.id)
    redis.call("ZADD", f"{keys.base}workers:active", int(time.time()), "go")
    assert queue.cancel([job.id]) == [Cancelling.REFUSED]
    redis.call("SREM", f"{keys.base}jobs:active", job.id)
    redis.call("SREM", keys.worker("go"), job.id)
    redis.call("LPUSH", keys.queue("mail"), raw)
    [delivery] = queue.fetch(1, timeout=0)
    assert queue.known([job.id]) == [Known(State.RUNNING, 1, delivery.started_at)]
    go_restarts(redis, keys, "w1:mail")
    assert queue.known([job.id]) == [None]


def test_what_a_silent_worker_held_and_another_took_is_not_its_own_any_more(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    silent, queue, job = make_queue("silent", lease=timedelta(milliseconds=50)), make_queue(), new()
    adding.push(redis, keys, job)
    [first] = take(silent, job)
    rest(0.1)
    adding.push(redis, keys, job)
    [second] = take(queue, job)
    assert (first.attempt, second.attempt) == (1, 2)
    assert queue.recover(retried) == 0
    assert redis.call("ZRANGE", f"{keys.base}workers:active", 0, -1) == [b"w1:mail"]
    assert silent.finish([ended(first)])[0] == [False]
    complete(queue, [second])


def test_an_entry_of_an_earlier_feed_takes_nothing_from_a_silent_worker(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    silent, queue, job = make_queue("silent", lease=timedelta(milliseconds=50)), make_queue(), fed()
    silent.push([replace(job, priority=Priority.BULK)], epoch="")
    silent.push([replace(job, feed=2)], epoch="")
    [first] = silent.fetch(1, timeout=0)
    rest(0.1)
    assert fetch_all(queue) == []  # it meets the earlier one, and drops it
    assert queue.recover(retried) == 1
    assert [each.attempt for each in fetch_all(queue)] == [first.attempt + 1]


def test_queues_of_one_worker_are_apart(redis: Client, keys: Keys, make_queue: MakeQueue) -> None:
    one, other = make_queue(name="mail"), make_queue(name="other")
    jobs = [new(), new(queue="other")]
    for job in jobs:
        adding.push(redis, keys, job)
    take(one, jobs[0])
    take(other, jobs[1])
    assert [ids(queue.held()) for queue in (one, other)] == [[jobs[0].uuid], [jobs[1].uuid]]


@pytest.mark.parametrize("name", ["scheduled", "failed"])
def test_a_queue_that_would_be_something_else_is_refused(redis: Client, name: str) -> None:
    with pytest.raises(ConfigError, match=f"queue '{name}' would be"):
        ConveyorQueue(redis, name)


@pytest.mark.parametrize(
    "left_by_go", ["retried child", "died before its children", "died before its heirs"]
)
def test_a_parent_that_go_left_half_closed_is_closed(
    redis: Client,
    keys: Keys,
    make_queue: MakeQueue,
    monkeypatch: pytest.MonkeyPatch,
    left_by_go: str,
) -> None:
    queue, parent = make_queue(), new()
    child, heir = new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)
    adding.add(redis, keys, heir)
    redis.call("SET", keys.job(parent.uuid), parent.SerializeToString())
    redis.call("SADD", f"{keys.base}jobs:active", parent.uuid)
    if left_by_go != "died before its heirs":
        adding.add(redis, keys, child)
    if left_by_go == "retried child":
        redis.call("SADD", keys.job(parent.uuid, "active"), child.uuid)
    for _ in range(3):
        assert queue.recover(retried) == 0
        take(queue)  # whoever began it may be about to go on
    monkeypatch.setattr("scheduler.dialects.conveyor.queue.STUCK_FOR", timedelta())
    queue.recover(retried)
    if left_by_go != "died before its heirs":
        complete(queue, take(queue, child))
    complete(queue, take(queue, heir))
    assert left(redis) == []


def test_a_parent_that_waits_for_its_children_is_left_alone(
    redis: Client, keys: Keys, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.dialects.conveyor.queue.STUCK_FOR", timedelta())
    queue, parent = make_queue(), new()
    child, heir = new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)
    for job in (parent, child, heir):
        adding.add(redis, keys, job)
    taken = take(queue, parent)
    for _ in range(3):
        queue.recover(retried)
    complete(queue, taken)
    for _ in range(3):
        queue.recover(retried)
    complete(queue, take(queue, child))
    take(queue, heir)


def test_whoever_is_about_to_close_a_parent_is_given_its_time(
    redis: Client, keys: Keys, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.dialects.conveyor.queue.STUCK_FOR", timedelta(seconds=0.2))
    queue, parent = make_queue(), new()
    child, heir = new(parent_uuid=parent.uuid), new(predecessor_uuid=parent.uuid)
    for job in (parent, child, heir):
        adding.add(redis, keys, job)
    complete(queue, take(queue, parent))
    take(queue, child)
    queue.recover(retried)
    rest(0.3)
    redis.call(
        "SREM", keys.job(parent.uuid, "active"), child.uuid
    )  # as Go does just before it looks at the parent
    queue.recover(retried)
    take(queue)
    rest(0.3)
    queue.recover(retried)
    take(queue, heir)
