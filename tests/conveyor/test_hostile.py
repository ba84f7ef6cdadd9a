"""Jobs and keys that are not as they should be: whoever is near them is none the worse for it."""

import random
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.conveyor import add as adding
from scheduler.dialects.conveyor.admin import ConveyorAdmin
from scheduler.dialects.conveyor.keys import Keys
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.interface import Pushed, Renewed
from scheduler.errors import QueueError
from scheduler.model.states import State
from tests.conveyor.conftest import MakeQueue, contents, new
from tests.conveyor.encoder import block, encode, varint
from tests.dialects.values import ended, fetch_all, ids, retried
from tests.dialects.values import job as fed
from tests.support.waiting import rest

WRONG = {"hash": ("HSET", "a", "b"), "string": ("SET", "a")}


def spoil(redis: Client, key: str, kind: str = "hash") -> None:
    """Let somebody else have a key."""
    command, *values = WRONG[kind]
    redis.call("DEL", key)
    redis.call(command, key, *values)


def work_off(queue: ConveyorQueue) -> list[str]:
    """Complete whatever there is, and whatever that brings."""
    ran: list[str] = []
    while taken := fetch_all(queue) or fetch_all(
        queue
    ):  # what cannot be read may have brought others
        assert all(queue.finish([ended(each) for each in taken])[0])
        ran += ids(taken)
    return ran


# What a job says


def test_the_largest_number_of_tries_harms_no_other(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, jobs = make_queue(), [new(retry=2**31 - 1), new(), new(retry=-1)]
    for job in jobs:
        adding.push(redis, keys, job)
    taken = fetch_all(queue)
    assert queue.finish([ended(each, State.FAILED, error="so") for each in taken])[0] == [True] * 3
    assert redis.call("LLEN", keys.failed) == 3


@pytest.mark.parametrize(
    "field", [block(1, b"other"), block(6, b"active"), block(3, b"scheduled")], ids=str
)
def test_fields_behind_ours_change_nothing_that_scripts_read(
    redis: Client, keys: Keys, make_queue: MakeQueue, field: bytes
) -> None:
    queue, job = make_queue(), new()
    odd = encode({"uuid": str(uuid4()), "type": "send", "queue": "mail"}, [(1002, b"x")]) + field
    redis.call("LPUSH", keys.queue("mail"), odd)
    adding.push(redis, keys, job)
    assert job.uuid in work_off(queue)
    assert queue.held() == []
    redis.call("LPUSH", keys.queue("mail"), odd)
    fetch_all(queue)
    queue.renew({}, lease=timedelta(milliseconds=1))
    rest(0.01)
    other = make_queue("other")
    for _ in range(5):
        other.recover(retried)
        fetch_all(other)
    assert redis.call("ZRANGE", f"{keys.base}workers:active", 0, -1) == [b"other:mail"]


@pytest.mark.parametrize("fields", [{"type": b"\xff"}, {"priority": 7}], ids=str)
def test_a_child_that_nobody_can_read_is_waited_for_no_longer(
    redis: Client, keys: Keys, make_queue: MakeQueue, fields: dict[str, Any]
) -> None:
    queue, parent = make_queue(), new()
    heir = new(predecessor_uuid=parent.uuid)
    written = {
        "uuid": str(uuid4()),
        "type": "t",
        "queue": "mail",
        "parent_uuid": parent.uuid,
        **fields,
    }
    child = encode(written) + (
        varint(1001 << 3) + varint(fields["priority"]) if "priority" in fields else b""
    )
    adding.add(redis, keys, parent)
    adding.add(redis, keys, heir)
    redis.call("LPUSH", keys.job(parent.uuid, "children"), child)
    assert work_off(queue) == [parent.uuid, heir.uuid]
    assert redis.call("LRANGE", keys.failed, 0, -1) == [child]


def test_what_a_worker_in_go_held_and_nobody_can_read_is_buried(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    redis.call("SET", keys.job("odd"), b"\xff")
    redis.call("SADD", keys.worker("dead"), "odd")
    redis.call("ZADD", f"{keys.base}workers:active", int(time.time()) - 31, "dead")
    make_queue().recover(retried)
    assert redis.call("LRANGE", keys.failed, 0, -1) == [b"\xff"]
    assert redis.call("ZSCORE", f"{keys.base}workers:active", "dead") is None


def test_a_job_with_the_id_of_a_ledgers_job_does_not_displace_it(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, job = make_queue(installation="3f1e"), fed()
    redis.call("LPUSH", keys.queue("mail"), new(uuid=job.id).SerializeToString())
    queue.push([job], epoch="")
    [delivery] = fetch_all(queue)
    assert delivery.job == job


def test_a_job_that_is_its_own_parent_is_done_when_it_is(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    uuid = str(uuid4())
    queue, job, heir = make_queue(), new(uuid=uuid, parent_uuid=uuid), new(predecessor_uuid=uuid)
    redis.call("ZADD", keys.scheduled, 1, job.SerializeToString())
    adding.add(redis, keys, heir)
    assert work_off(queue) == [uuid, heir.uuid]


def test_a_chain_of_thousands_of_parents_is_closed(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, above, other = make_queue(), str(uuid4()), fed()
    root, active = above, f"{keys.base}jobs:active"
    chain = [new(uuid=root)]
    for _ in range(9000):
        chain.append(new(parent_uuid=chain[-1].uuid))
    above, uuids = chain[-1].uuid, [job.uuid for job in chain]
    redis.call(
        "MSET", *(part for job in chain for part in (keys.job(job.uuid), job.SerializeToString()))
    )
    redis.call("SADD", active, *uuids)
    redis.call(
        "EVAL",
        "for i = 2, #ARGV do redis.call('SADD', ARGV[1] .. ARGV[i - 1] .. ':active', ARGV[i]) end",
        0,
        keys.job(""),
        *uuids,
    )
    leaf, heir = new(parent_uuid=above), new(predecessor_uuid=root)
    adding.add(redis, keys, leaf, dead_parent=True)
    adding.add(redis, keys, heir)
    queue.push([other], epoch="")
    taken = fetch_all(queue)
    assert queue.finish([ended(each) for each in taken])[0] == [True] * 2
    assert work_off(queue) == [heir.uuid]
    assert redis.call("SCARD", active) == 0
    assert queue.depths().unsettled == 1


def test_more_children_and_heirs_than_begin_in_one_call(
    redis: Client, keys: Keys, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.dialects.conveyor.queue.STUCK_FOR", timedelta())
    queue, parent = make_queue(), new()
    adding.add(redis, keys, parent)
    waiting = {
        "children": [new(parent_uuid=parent.uuid) for _ in range(7000)],
        "onComplete": [new() for _ in range(6000)],
    }
    for what, jobs in waiting.items():
        redis.call("LPUSH", keys.job(parent.uuid, what), *(job.SerializeToString() for job in jobs))
    queue.finish([ended(each) for each in queue.fetch(1, timeout=0)])
    assert redis.call("LLEN", keys.queue("mail")) == 5000
    ran = work_off(queue)
    for _ in range(2):  # what is left of the heirs is found as what somebody left half closed
        queue.recover(retried)
    ran += work_off(queue)
    assert sorted(ran) == sorted(job.uuid for jobs in waiting.values() for job in jobs)
    assert list(contents(redis)) == sorted(
        f"{keys.base}{name}" for name in ("queues:active", "ring:mail:workers", "workers:active")
    )


@pytest.mark.parametrize("seed", range(3))
def test_any_bytes_anywhere_are_in_nobodys_way(
    redis: Client, keys: Keys, make_queue: MakeQueue, seed: int
) -> None:
    chance, queue, job, parent = random.Random(seed), make_queue(), new(), new()
    for _ in range(200):
        raw = bytearray(new(parent_uuid=parent.uuid).SerializeToString())
        for _ in range(chance.randint(1, 3)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        place = chance.choice(
            [keys.queue("mail"), keys.job(parent.uuid, "children"), keys.scheduled]
        )
        redis.call(
            *(("ZADD", place, 1) if place == keys.scheduled else ("LPUSH", place)), bytes(raw)
        )
    for each in (parent, job):
        adding.add(redis, keys, each)
    ran = work_off(queue)
    assert (ran.count(parent.uuid), ran.count(job.uuid)) == (1, 1)
    assert queue.depths().running == 0


def test_a_child_that_pretends_to_be_of_a_ledger_is_not_waited_for(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), new()
    child, heir = new(parent_uuid=parent.uuid, feed=1), new(predecessor_uuid=parent.uuid)
    adding.add(redis, keys, parent)
    adding.add(redis, keys, heir)
    redis.call("LPUSH", keys.job(parent.uuid, "children"), child.SerializeToString())
    assert work_off(queue) == [parent.uuid, heir.uuid]
    assert redis.call("LRANGE", keys.failed, 0, -1) == [child.SerializeToString()]


# What a key is


@pytest.mark.parametrize("way", ["due", "child", "heir", "put back", "tried again"])
def test_a_queue_that_is_no_list_costs_its_own_jobs_alone(
    redis: Client, keys: Keys, make_queue: MakeQueue, way: str
) -> None:
    spoil(redis, keys.queue("taken"))
    queue, parent, odd = make_queue(), new(), new(queue="taken")
    neighbours = [new() for _ in range(5)]
    for job in (parent, *neighbours):
        if way == "due":
            redis.call("ZADD", keys.scheduled, 1, job.SerializeToString())
        else:
            adding.push(redis, keys, job)
    match way:
        case "due":
            redis.call("ZADD", keys.scheduled, 0, odd.SerializeToString())
        case "child":
            odd.parent_uuid = parent.uuid
            adding.add(redis, keys, odd)
        case "heir":
            odd.predecessor_uuid = parent.uuid
            adding.add(redis, keys, odd)
        case _:
            redis.call("RPUSH", keys.queue("mail"), odd.SerializeToString())
    heir = new(predecessor_uuid=parent.uuid)
    adding.add(redis, keys, heir)
    if way in ("put back", "tried again"):
        taken = fetch_all(queue)
        results = [ended(each) for each in taken]
        results[0].end = None if way == "put back" else retried(taken[0]).end
        assert all(queue.finish(results)[0])
        assert work_off(queue) == [heir.uuid]
    else:
        assert set(work_off(queue)) == {parent.uuid, heir.uuid, *(job.uuid for job in neighbours)}
    assert [decoded(raw) for raw in redis.call("LRANGE", keys.failed, 0, -1)] == [odd.uuid]
    assert contents(redis)[keys.queue("taken")] == {b"a": b"b"}


def decoded(raw: bytes) -> str:
    return raw[2:38].decode()


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("what", ["children", "active", "onComplete"])
def test_what_belongs_to_a_job_and_is_something_else_costs_no_other(
    redis: Client, keys: Keys, make_queue: MakeQueue, what: str, kind: str
) -> None:
    queue, odd, jobs = make_queue(), new(), [new() for _ in range(5)]
    spoil(redis, keys.job(odd.uuid, what), kind)
    for job in (jobs[0], odd, *jobs[1:]):
        adding.push(redis, keys, job)
    redis.call("ZADD", keys.scheduled, 1, new(parent_uuid=odd.uuid).SerializeToString())
    assert {job.uuid for job in jobs} <= set(work_off(queue))
    assert work_off(queue) == []


def test_a_parent_whose_body_is_something_else_costs_no_other(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, parent = make_queue(), str(uuid4())
    spoil(redis, keys.job(parent))
    jobs = [new(), new(parent_uuid=parent), new()]
    for job in jobs:
        adding.add(redis, keys, job, dead_parent=True)
    assert set(work_off(queue)) == {job.uuid for job in jobs}


@pytest.mark.parametrize(
    "what", ["scheduled", "failed", "jobs:active", "workers:active", "queues:active", "queue"]
)
def test_nothing_is_taken_or_ended_where_a_key_of_all_is_something_else(
    redis: Client, keys: Keys, make_queue: MakeQueue, what: str
) -> None:
    queue, job = make_queue(), new()
    adding.push(redis, keys, job)
    taken = fetch_all(queue)
    adding.push(redis, keys, new())
    adding.push(redis, keys, new(queue="other"))
    key = keys.queue("mail") if what == "queue" else f"{keys.base}{what}"
    spoil(redis, key)
    before = contents(redis)
    for call in (
        lambda: queue.finish([ended(taken[0])], fetch=5),
        lambda: queue.fetch(1, timeout=0),
    ):
        with pytest.raises(QueueError, match="WRONGTYPE"):
            call()
    if what == "queue":
        with pytest.raises(QueueError, match="WRONGTYPE"):
            queue.push([fed()], epoch="")
    assert contents(redis) == before


def test_a_dead_letter_whose_queue_is_no_list_stays_one(redis: Client, keys: Keys) -> None:
    spoil(redis, keys.queue("taken"))
    parent = str(uuid4())
    redis.call("LPUSH", keys.failed, new(queue="taken", parent_uuid=parent).SerializeToString())
    before, admin = contents(redis), ConveyorAdmin(redis, "taken", keys=keys.names)
    assert admin.requeue(admin.dead(10)) == [False]
    assert contents(redis) == before


# What is left behind


def test_a_lease_that_a_worker_in_go_took_over_is_forgotten(
    redis: Client, keys: Keys, make_queue: MakeQueue
) -> None:
    queue, job, ours = make_queue(), new(), new()
    adding.push(redis, keys, job)
    adding.push(redis, keys, ours)
    fetch_all(queue)
    redis.call(
        "SREM", keys.worker("w1:mail"), job.uuid
    )  # as Go does before it runs it and closes it
    redis.call("SREM", f"{keys.base}jobs:active", job.uuid)
    redis.call("DEL", keys.job(job.uuid))
    queue.recover(retried)
    assert queue.depths().running == 2
    leases = keys.ring("mail", "attempts")
    for uuid in (job.uuid, ours.uuid):
        lease, _, number = redis.call("HGET", leases, uuid).rsplit(b":", 2)
        started = (time.time() - 3601) * 1000
        redis.call("HSET", leases, uuid, b"%b:%d:%b" % (lease, started, number))
    queue.recover(retried)
    assert redis.call("HKEYS", leases) == [ours.uuid.encode()]


@pytest.mark.parametrize("lease", [b"", b"x", b"1:1:w1:mail:5", b"1:1:w1:x:1", b":::::"])
def test_a_value_that_is_no_lease_stops_nobody(
    redis: Client, keys: Keys, make_queue: MakeQueue, lease: bytes
) -> None:
    queue, leases = make_queue(), keys.ring("mail", "attempts")
    jobs = [fed(), fed()]
    queue.push(jobs, epoch="")
    taken = fetch_all(queue)
    redis.call("HSET", leases, jobs[0].id, lease)
    renewed = queue.renew(dict.fromkeys(taken), lease=timedelta(seconds=30))
    assert renewed == [Renewed.LOST, Renewed.KEPT]
    assert queue.known([each.id for each in jobs])[1] is not None
    assert queue.push([replace(jobs[0], feed=2)], epoch="") == [Pushed.KNOWN]
    redis.call("HSET", leases, jobs[0].id, lease)
    again = fetch_all(queue)
    assert ids(again) == [jobs[0].id]
    redis.call("HSET", leases, jobs[0].id, lease)
    assert ids(queue.held()) == [jobs[1].id]
    queue.recover(retried)
    assert queue.finish([ended(each) for each in taken])[0] == [False, True]
