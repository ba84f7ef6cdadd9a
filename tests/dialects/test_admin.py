"""What a person does with a queue, in every dialect: look, see to dead letters, stop it and let it
go on.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from scheduler.dialects.bullmq.add import NewJob, add
from scheduler.dialects.bullmq.keys import Keys as BullMQKeys
from scheduler.dialects.client import Client
from scheduler.dialects.conveyor import wire as conveyor_wire
from scheduler.dialects.conveyor.job_pb2 import Job
from scheduler.dialects.conveyor.keys import Keys as ConveyorKeys
from scheduler.dialects.interface import Paused
from scheduler.dialects.opening import open_admin
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.model.labels import Priority
from scheduler.model.states import State
from tests.dialects.conftest import MakeAdmin, MakeQueue
from tests.dialects.servers import House
from tests.dialects.values import ended, fetch_all, ids, job
from tests.support.waiting import WOKEN, wait_for

FILE = '{{"id":"{id}","filepath":"/a","filesize":1,"priority":"low","retries":{retries},"creation_time":"","trace_id":""}}'


@pytest.fixture
def add_foreign(dialect: str, house: House, client: Client) -> Callable[[str], None]:
    """Add a job that no ledger has, as its own producers do; it has one attempt."""

    def make(id_: str) -> None:
        if dialect == "reliable":
            client.call(
                "LPUSH", Keys.of("mail").levels[Priority.LOW], FILE.format(id=id_, retries=0)
            )
        elif dialect == "standard":  # has no foreign producers, but jobs without a ledger
            queue = StandardQueue(client, "mail")
            queue.push([job(id=id_, tenant="", installation="")], epoch="")
        elif dialect == "bullmq":
            keys = BullMQKeys("mail", "{bull}" if house.clustered else "bull")
            add(
                client,
                keys,
                [NewJob(name="send", data=b"[1]", options={"jobId": id_, "attempts": 1})],
            )
        else:
            keys_of = ConveyorKeys(namespace="{conv}") if house.clustered else ConveyorKeys()
            raw = conveyor_wire.marshal(
                Job(uuid=id_, type="send", queue="mail", payload=b"[1]", json=True)
            )
            client.call("LPUSH", keys_of.queue("mail"), raw)

    return make


def test_nothing_is_taken_while_it_is_paused_and_who_waits_is_woken(
    make_queue: MakeQueue, make_admin: MakeAdmin
) -> None:
    queue, admin = make_queue(), make_admin()
    assert admin.paused() == Paused(ours=False, at_all=False)
    admin.pause()
    jobs = [job() for _ in range(3)]
    queue.push(jobs, epoch="")
    assert admin.paused() == Paused(ours=True, at_all=True)
    assert queue.fetch(5, timeout=0) == []
    taken: list[str] = []
    waiter = threading.Thread(target=lambda: taken.extend(ids(queue.fetch(5, timeout=60))))
    waiter.start()
    make_queue("w2").fetch(5, timeout=0.3)
    assert not taken
    began = time.monotonic()
    admin.resume()
    waiter.join(60)
    assert sorted(taken) == sorted(each.id for each in jobs)
    assert time.monotonic() - began < WOKEN
    assert admin.paused() == Paused(ours=False, at_all=False)


def test_a_worker_that_waits_at_a_paused_queue_is_idle(
    make_queue: MakeQueue, make_admin: MakeAdmin, house: House
) -> None:
    queue, admin = make_queue(), make_admin()
    queue.push([job() for _ in range(3)], epoch="")
    [first] = queue.fetch(1, timeout=1)
    admin.pause()
    assert queue.finish([ended(first)], fetch=5) == ([True], [])
    house.everywhere("CONFIG", "RESETSTAT")
    assert queue.fetch(5, timeout=1.2) == []
    calls = sum(
        each["calls"]
        for stats in house.everywhere("INFO", "commandstats")
        for name, each in stats.items()
        if name == "cmdstat_evalsha"
    )
    assert calls <= 6


def test_one_ledger_does_not_resume_what_another_paused(
    make_queue: MakeQueue, make_admin: MakeAdmin
) -> None:
    ours, others, queue = make_admin(), make_admin("4a2b"), make_queue()
    queue.push([job()], epoch="")
    ours.pause()
    assert others.paused() == Paused(ours=False, at_all=True)
    if queue.__class__.__name__ == "BullMQQueue":
        # it knows no owner: whoever resumes it does, and the one who paused it does so again
        return
    others.resume()
    assert queue.fetch(1, timeout=0) == []


def test_the_next_jobs_are_seen_in_their_order_and_stay(
    make_queue: MakeQueue, make_admin: MakeAdmin
) -> None:
    queue, admin = make_queue(), make_admin()
    jobs = [
        job(priority=level)
        for level in (Priority.LOW, Priority.NORMAL, Priority.NORMAL, Priority.CRITICAL)
    ]
    queue.push(jobs, epoch="")
    seen = admin.peek(10)
    assert [each.id for each in seen] == [jobs[3].id, jobs[1].id, jobs[2].id, jobs[0].id]
    assert [each.id for each in admin.peek(2)] == [jobs[3].id, jobs[1].id]
    assert (seen[0].tenant, seen[0].type, seen[0].priority, seen[0].attempts) == (
        "acme",
        "send",
        Priority.CRITICAL,
        0,
    )
    assert seen[0].payload == {"to": "you"}
    assert "you" not in repr(seen[0])
    assert ids(fetch_all(queue)) == [each.id for each in seen]


def test_dead_letters_of_others_go_back_to_their_queue_with_all_attempts(
    make_queue: MakeQueue, make_admin: MakeAdmin, add_foreign: Callable[[str], None]
) -> None:
    queue, admin = make_queue(), make_admin()
    queue.push([job()], epoch="")
    for name in ("a", "b", "c"):
        add_foreign(name)
    for delivery in fetch_all(queue):
        assert queue.finish([ended(delivery, State.DEAD_LETTER, error="no such file")])[0] == [True]
    letters = admin.dead(10)
    assert sorted(each.id for each in letters) == ["a", "b", "c"], "not that of the ledger"
    assert {each.tenant for each in letters} == {None}
    assert all("no such file" in (each.reason or "") for each in letters)
    assert [each.id for each in admin.dead(1, skip=1)] == [letters[1].id]
    assert admin.requeue([letters[0], letters[1], letters[0]]) == [True, True, False]
    assert sorted(each.id for each in admin.dead(10)) == [letters[2].id]
    again = fetch_all(queue)
    assert sorted(ids(again)) == sorted([letters[0].id, letters[1].id])
    assert [each.attempt for each in again] == [1, 1]
    while admin.purge(2):
        pass
    assert (admin.dead(10), admin.depths().dead - admin.dead_count()) in (([], 0), ([], 1))
    assert len(queue.held()) == 2


def test_a_waiter_hears_of_a_letter_that_goes_back(
    make_queue: MakeQueue, make_admin: MakeAdmin, add_foreign: Callable[[str], None]
) -> None:
    queue, admin = make_queue(), make_admin()
    add_foreign("a")
    [delivery] = queue.fetch(1, timeout=1)
    queue.finish([ended(delivery, State.DEAD_LETTER)])
    taken: list[Any] = []
    waiter = threading.Thread(target=lambda: taken.extend(queue.fetch(1, timeout=60)))
    waiter.start()
    wait_for(lambda: admin.requeue(admin.dead(1)) == [True], "it goes back")
    waiter.join(60)
    assert ids(taken) == ["a"]


def test_workers_are_counted_while_they_live(
    make_queue: MakeQueue, make_admin: MakeAdmin, house: House
) -> None:
    admin = make_admin()
    if house.clustered and admin.workers(9).alive is None:
        return  # in a cluster connections have no names, by which BullMQ knows its workers
    assert admin.workers(9).alive == 0
    waiters = [make_queue(name) for name in ("w1", "w2")]
    threads = [
        threading.Thread(target=each.fetch, args=(1,), kwargs={"timeout": 2}) for each in waiters
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: admin.workers(9).alive == 2, "both are seen")
    for thread in threads:
        thread.join()


def test_keys_are_listed_and_erased_and_those_of_another_queue_stay(
    make_queue: MakeQueue, make_admin: MakeAdmin
) -> None:
    queue, other = make_queue(), make_queue(name="mail2")
    other.push([job(queue="mail2")], epoch="")
    queue.push([job() for _ in range(3)], epoch="")
    queue.fetch(1, timeout=1)
    admin = make_admin()
    listed = admin.keys()
    assert {("list", 2), ("zset", 2)} & {(key.type, key.size) for key in listed}, "what waits"
    before = sum(len(names) for names in admin.names())
    assert before >= len(listed)
    assert sum(admin.erase(names) for names in list(admin.names())) == before
    assert admin.keys() == []
    assert queue.fetch(1, timeout=0) == []
    assert len(other.fetch(1, timeout=1)) == 1


def test_queues_of_the_originals_names(lone_servers: House) -> None:
    lone_servers.everywhere("FLUSHALL")
    client, keys = Client(lone_servers.url), Keys.original()
    admin = open_admin(client, "files", original=keys)
    queue = ReliableQueue(client, "files", worker="w1", keys=keys)
    for name in ("a", "b"):
        client.call("LPUSH", "jobqueue:low_priority", FILE.format(id=name, retries=3))
    client.call("LPUSH", "jobqueue:high_priority", FILE.format(id="c", retries=0))
    client.call("SET", "jobqueue:{mail}:low", "of another")
    assert [each.id for each in admin.peek(5)] == ["c", "a", "b"]
    waiting = admin.depths().waiting
    assert {level: count for level, count in waiting.items() if count} == {
        Priority.HIGH: 1,
        Priority.LOW: 2,
    }
    admin.pause()
    assert queue.fetch(5, timeout=0) == []
    admin.resume()
    for delivery in fetch_all(queue):
        queue.finish([ended(delivery, State.DEAD_LETTER, error="x")])
    client.call("LPUSH", "jobqueue:dead_letter", "not a job")
    assert sorted(each.type for each in admin.dead(9)) == ["", "file", "file", "file"]
    letters = [each for each in admin.dead(9) if each.type]
    client.call("HSET", "jobqueue:origins", "c", "jobqueue:high_priority")
    assert admin.requeue(letters) == [True] * 3
    low = client.call("LRANGE", "jobqueue:low_priority", 0, -1)
    assert [b'"retries":0' in entry for entry in low] == [True, True]
    assert client.call("LLEN", "jobqueue:high_priority") == 1, "where its producer had put it"
    listed = {key.name for key in list(admin.keys())}
    assert listed >= {"jobqueue:low_priority", "jobqueue:dead_letter", "jobqueue:workers"}
    for names in list(admin.names()):
        admin.erase(names)
    assert client.call("KEYS", "*") == [b"jobqueue:{mail}:low"]
    client.close()
