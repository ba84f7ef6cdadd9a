"""The standard dialect: its layout in Redis, fairness, parked jobs, recovery and formats."""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid5

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
    Note,
    Pushed,
    Renewed,
    Result,
)
from scheduler.dialects.queue_options import QueueOptions
from scheduler.dialects.standard import messages
from scheduler.dialects.standard.admin import StandardAdmin
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.errors import ConfigError, QueueUnavailable
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.states import State
from tests.dialects.servers import House
from tests.dialects.values import ABOUT, back, ended, fetch_all, ids, job, retried
from tests.support.waiting import WOKEN, rest, wait_for

MakeStandard = Callable[..., StandardQueue]
SOON = timedelta(milliseconds=150)
LEASE = timedelta(seconds=30)
P = "jobqueue:{mail}"
SPAN = 2**50
MAIL, SMS = Handled(types=["mail"]), Handled(types=["sms"])
BOTH = Handled(types=["mail", "sms"])


@pytest.fixture
def plain(lone_servers: House) -> Iterator[Any]:
    """A plain client of an empty Redis."""
    [server] = lone_servers.servers
    server.admin("FLUSHALL")
    with redis.Redis(port=server.port, protocol=2) as connection:
        yield connection


@pytest.fixture
def make(lone_servers: House, plain: Any) -> Iterator[MakeStandard]:
    clients: list[Client] = []

    def made(worker: str = "w1", **options: Any) -> StandardQueue:
        clients.append(Client(lone_servers.url))
        return StandardQueue(clients[-1], "mail", worker=worker, installation="3f1e", **options)

    yield made
    for each in clients:
        each.close()


@pytest.fixture
def admin(lone_servers: House, plain: Any) -> Iterator[StandardAdmin]:
    client = Client(lone_servers.url)
    yield StandardAdmin(client, "mail", installation="3f1e")
    client.close()


def reason(plain: Any, letter: bytes) -> bytes | None:
    found: bytes | None = plain.hget(f"{P}:reasons", hashlib.sha1(letter).hexdigest())
    return found


def settle(queue: StandardQueue) -> int:
    queue.outcomes(1, timeout=0)
    found = 0
    while read := queue.outcomes(1000, timeout=0.05):
        queue.acknowledge(read)
        found += sum(len(each.ends) for each in read)
    return found


def waiting(queue: StandardQueue) -> int:
    return sum(queue.depths().waiting.values())


# Keys and formats


def test_values_have_the_documented_formats(make: MakeStandard, plain: Any) -> None:
    queue = make("w1")
    queue.begin("1")
    uuids = "00000000-0000-4000-8000-00000000000%d"
    names = ["a", uuids % 1, uuids % 2, "d"]
    jobs = [job(id=name, tenant="acme", type="mail") for name in names]
    queue.push([*jobs, job(id="e", type="sms", priority=Priority.LOW)], epoch="1")
    assert plain.zrange(f"{P}:waiting", 0, 1, withscores=True) == [
        (b"1\x1fa\x1fmail\x1facme", 2.0 * SPAN),
        (b"1\x1f%b\x1fmail\x1facme" % names[1].encode(), 2.0 * SPAN + 1000),
    ]
    assert plain.hget(f"{P}:jobs", "a").startswith(b'1:1:0:0:94:["acme","mail",2,"2026-')
    one, two, three = queue.fetch(3, timeout=0, handled=MAIL, first=7, begun=BegunMark(0, 0))
    now = int(one.started_at.timestamp() * 1000)
    number, score, started, *rest_ = plain.hget(f"{P}:leases", "a").split(b":")
    assert (number, int(score), int(started)) == (b"1", 2 * SPAN, now)
    assert rest_ == [b"1", b"0", b"", b"w1", b"1", b"1", b"7"]
    assert plain.smembers(f"{P}:worker:w1") == {each.encode() for each in names[:3]}
    assert plain.hgetall(f"{P}:begun") == {b"w1": b"1:0:0:"}
    queue.finish([ended(one), retried(two, timedelta(hours=1)), back(three)])
    [(entry, fields)] = plain.xrange(f"{P}:results:3f1e")
    assert [each[1] for each in orjson.loads(fields[b"1"])] == names[:2]
    assert plain.hget(f"{P}:finished", "a").startswith(b"1:1:1:%b:" % entry)
    due = int(plain.zscore(f"{P}:retrying", b"1\x1f%b\x1fmail\x1facme" % names[1].encode()))
    lasts = [
        str(uuid5(UUID(id_), f"w1:{n}")).encode() for id_, n in zip(names[1:3], (8, 9), strict=True)
    ]
    assert plain.hget(f"{P}:state", names[1]) == b"1:retrying:1:1:1:0:%b:2:%d" % (lasts[0], due)
    assert plain.hget(f"{P}:state", names[2]) == b"1:waiting:1:1:0:0:%b" % lasts[1]
    queue.fetch(5, timeout=0, handled=MAIL)
    low = 3 * SPAN
    assert plain.zrange(f"{P}:blocked", 0, -1) == [b"type:sms\0%016d1\x1fe\x1fsms\x1facme" % low]
    assert plain.hgetall(f"{P}:blocked:counts") == {b"type:sms": b"1"}
    assert plain.hget(f"{P}:state", "e") == b"1:blocked:0:0:0:0::%016d:type:sms" % low
    assert all(key.startswith(b"jobqueue:{mail}:") for key in plain.keys("*"))


def test_a_worker_name_with_a_colon_is_refused(lone_servers: House) -> None:
    with pytest.raises(ConfigError, match="':'"):
        StandardQueue(Client(lone_servers.url), "mail", worker="a:b")


def test_small_hashes_of_leases_and_results_are_not_searched_linearly(
    make: MakeStandard, plain: Any
) -> None:
    queue = make("w")
    queue.push([job()], epoch="")
    [taken] = queue.fetch(1, timeout=0)
    assert plain.object("encoding", f"{P}:leases") == b"hashtable"
    queue.finish([ended(taken)])
    assert plain.object("encoding", f"{P}:finished") == b"hashtable"
    assert plain.hlen(f"{P}:finished") == 1


# Fairness


def test_tenants_are_served_in_turn(make: MakeStandard) -> None:
    queue = make()
    queue.push([job(tenant="large") for _ in range(50)], epoch="")
    queue.push([job(tenant="small") for _ in range(3)], epoch="")
    found = [each.job.tenant for each in fetch_all(queue, 10)]
    assert found[:6].count("small") == 3
    assert found.count("large") == 50


def test_a_late_tenant_does_not_wait_for_the_backlog_of_another(make: MakeStandard) -> None:
    queue = make()
    queue.push([job(tenant="large") for _ in range(300)], epoch="")
    queue.finish([ended(each) for each in queue.fetch(100, timeout=0)])
    late = job(tenant="late")
    queue.push([late], epoch="")
    assert late.id in ids(queue.fetch(3, timeout=0))


def test_an_idle_tenant_earns_no_credit(make: MakeStandard) -> None:
    queue = make()
    queue.push([job(tenant="idle"), *(job(tenant="busy") for _ in range(200))], epoch="")
    queue.finish([ended(each) for each in queue.fetch(101, timeout=0)])
    queue.push([job(tenant="idle") for _ in range(50)], epoch="")
    found = [each.job.tenant for each in queue.fetch(20, timeout=0)]
    assert 8 <= found.count("idle") <= 12


def test_tenants_with_one_job_each_are_served_in_order_of_arrival(make: MakeStandard) -> None:
    queue = make()
    jobs = [job(tenant=f"t{number}") for number in range(300)]
    for each in jobs:
        queue.push([each], epoch="")
    assert ids(fetch_all(queue, 7)) == [each.id for each in jobs]


def test_fairness_is_within_a_level(make: MakeStandard) -> None:
    queue = make()
    queue.push([job(tenant="a", priority=Priority.HIGH) for _ in range(20)], epoch="")
    queue.push([job(tenant="b", priority=Priority.LOW) for _ in range(2)], epoch="")
    assert [each.job.tenant for each in fetch_all(queue, 5)] == ["a"] * 20 + ["b"] * 2


def test_a_returned_job_keeps_its_place(make: MakeStandard, plain: Any) -> None:
    queue = make()
    jobs = [job() for _ in range(5)]
    queue.push(jobs, epoch="")
    before = plain.zrange(f"{P}:waiting", 0, 1, withscores=True)
    queue.finish([back(each) for each in queue.fetch(2, timeout=0)])
    assert plain.zrange(f"{P}:waiting", 0, 1, withscores=True) == before


def test_a_retried_job_starts_as_a_pushed_one(make: MakeStandard) -> None:
    queue, one = make(), job()
    queue.push([one, *(job() for _ in range(5))], epoch="")
    [first] = queue.fetch(1, timeout=0)
    queue.finish([retried(first)])
    rest(0.01)
    assert ids(fetch_all(queue, 2))[-1] == one.id


def test_virtual_times_are_deleted_with_the_last_job(make: MakeStandard, plain: Any) -> None:
    queue = make()
    queue.push([job(tenant=f"t{number}") for number in range(20)], epoch="")
    taken = fetch_all(queue)
    assert plain.exists(f"{P}:turns")
    queue.finish([ended(each) for each in taken[1:]])
    assert plain.exists(f"{P}:turns")
    queue.finish([ended(taken[0])])
    assert not plain.exists(f"{P}:turns")


def test_tenants_that_the_virtual_time_has_passed_are_removed(
    make: MakeStandard, plain: Any
) -> None:
    queue = make()
    queue.push([job(tenant=f"t{number}") for number in range(100)], epoch="")
    queue.push([job(tenant="busy") for _ in range(50)], epoch="")
    queue.fetch(145, timeout=0)
    assert plain.zcard(f"{P}:turns") < 5


# Leases and attempts


def test_a_returned_attempt_is_not_charged_but_uses_its_number(make: MakeStandard) -> None:
    queue = make()
    queue.push([job(attempt=2)], epoch="")
    numbers = []
    for end in (back, back, retried, back):
        [delivery] = queue.fetch(1, timeout=1)
        numbers.append((delivery.attempt, delivery.charged))
        queue.finish([end(delivery)])
    [delivery] = queue.fetch(1, timeout=1)
    assert [*numbers, (delivery.attempt, delivery.charged)] == [
        (3, 3),
        (4, 3),
        (5, 3),
        (6, 4),
        (7, 4),
    ]


def test_a_retry_can_be_uncharged(make: MakeStandard) -> None:
    queue = make()
    queue.push([job()], epoch="")
    [first] = queue.fetch(1, timeout=0)
    end = ended(first, State.RETRYING, delay=timedelta(), charged=False)
    queue.finish([end])
    [second] = queue.fetch(1, timeout=1)
    assert (second.attempt, second.charged, second.uncharged) == (2, 1, 1)
    queue.outcomes(1, timeout=0)
    [read] = queue.outcomes(5, timeout=1)
    assert [each.charged for each in read.ends] == [False]


def test_counts_continue_from_the_ledger_after_data_loss(make: MakeStandard, plain: Any) -> None:
    queue, one = make(), job()
    queue.push([one], epoch="")
    queue.fetch(1, timeout=0)
    plain.flushall()
    queue.push([replace(one, feed=2, attempt=5, uncharged=3)], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    assert (delivery.attempt, delivery.charged) == (6, 3)
    queue.finish([back(delivery)])
    [delivery] = queue.fetch(1, timeout=0)
    assert (delivery.attempt, delivery.charged) == (7, 3)
    [held] = queue.held()
    assert (held.attempt, held.charged, held.sequence) == (7, 3, delivery.sequence)


def test_a_job_that_a_call_returns_is_not_leased_by_it(make: MakeStandard) -> None:
    queue = make()
    queue.push([job(), job()], epoch="")
    taken = queue.fetch(2, timeout=0)
    assert queue.finish([back(each) for each in taken], fetch=5) == ([True, True], [])
    assert sorted(ids(queue.fetch(5, timeout=0))) == sorted(ids(taken))


def test_a_checkpoint_comes_with_the_next_attempt(make: MakeStandard, plain: Any) -> None:
    queue = make()
    queue.push([job(), job()], epoch="")
    one, two = queue.fetch(2, timeout=0)
    queue.renew({one: Note(0.5, "half", {"page": 3}), two: Note(0.1)}, lease=LEASE)
    plain.hset(f"{P}:notes", two.job.id, "garbage")
    queue.finish([retried(one), retried(two)])
    again = {each.job.id: each.job.checkpoint for each in fetch_all(queue)}
    assert again == {one.job.id: {"page": 3}, two.job.id: None}


# Recovery and the begun mark


def orphan(make: MakeStandard, n: int, **options: Any) -> list[Delivery]:
    """Lease n jobs to a worker that dies."""
    dead = make("dead", lease=SOON)
    taken = dead.fetch(n, timeout=0, **options)
    rest(0.3)
    return taken


def test_an_orphaned_lease_that_was_not_begun_is_redelivered_uncharged_once(
    make: MakeStandard,
) -> None:
    queue, seen = make("w1"), []
    queue.push([job(), job()], epoch="")

    def decide(delivery: Delivery) -> Result:
        seen.append((delivery.job.id, delivery.begun, delivery.attempt, delivery.charged))
        return retried(delivery)

    first, second = orphan(make, 2, first=11, begun=BegunMark(11, 11))
    assert queue.recover(decide) == 2
    assert seen == [(first.job.id, True, 1, 1)]
    again = {each.job.id: each for each in fetch_all(make("w2"))}
    assert (again[first.job.id].attempt, again[first.job.id].charged) == (2, 2)
    assert (again[second.job.id].attempt, again[second.job.id].charged) == (2, 1)
    make("w2").finish([back(each) for each in again.values()])
    seen.clear()
    orphan(make, 2, first=21, begun=BegunMark(20, 20))
    assert queue.recover(decide) == 2
    # The first job was never redelivered uncharged, the second one was.
    assert seen == [(second.job.id, False, 3, 1)]
    last = {each.job.id: each for each in fetch_all(queue)}
    assert (last[first.job.id].attempt, last[first.job.id].charged) == (4, 2)
    assert (last[second.job.id].attempt, last[second.job.id].charged) == (4, 2)


def test_leases_of_a_worker_that_reports_no_begun_mark_are_charged(make: MakeStandard) -> None:
    queue, seen = make("w1"), []
    queue.push([job()], epoch="")
    orphan(make, 1)

    def decide(delivery: Delivery) -> Result:
        seen.append(delivery.begun)
        return back(delivery)

    assert queue.recover(decide) == 1
    assert seen == [True]


def test_the_newest_begun_mark_is_kept(make: MakeStandard, plain: Any) -> None:
    queue = make("w1")
    queue.fetch(1, timeout=0, begun=BegunMark(5, 5))
    queue.renew({}, lease=LEASE, begun=BegunMark(9, 9))
    queue.finish([], begun=BegunMark(7, 7))
    queue.renew({}, lease=LEASE, begun=BegunMark(3, 3))
    queue.renew({}, lease=LEASE)
    assert plain.hget(f"{P}:begun", "w1") == b"1:9:9:"
    queue.leave()
    assert not plain.exists(f"{P}:begun")


def test_recovery_forgets_a_worker_without_leases(make: MakeStandard, plain: Any) -> None:
    queue = make("w1")
    make("gone", lease=SOON).fetch(1, timeout=0, begun=BegunMark(0, 0))
    rest(0.3)
    assert queue.recover(back) == 0
    assert plain.zscore(f"{P}:workers", "gone") is None
    assert not plain.exists(f"{P}:begun")


# Parked jobs


def test_jobs_of_other_types_are_parked_and_taken_by_a_worker_of_the_type(
    make: MakeStandard,
) -> None:
    mail, sms = make("w1"), make("w2")
    jobs = [job(type=name) for name in ("sms", "mail", "sms", "mail")]
    mail.push(jobs, epoch="")
    assert ids(mail.fetch(4, timeout=0, handled=MAIL)) == [jobs[1].id, jobs[3].id]
    assert waiting(mail) == 2
    assert mail.known([jobs[0].id]) == [Known(State.SCHEDULED, parked="sms")]
    assert mail.fetch(4, timeout=0, handled=MAIL) == []
    found = sms.fetch(4, timeout=0, handled=SMS)
    assert ids(found) == [jobs[0].id, jobs[2].id]
    assert [(each.attempt, each.charged) for each in found] == [(1, 1), (1, 1)]
    assert waiting(mail) == 0


@pytest.mark.parametrize("handled", [BOTH, Handled(), Handled(free={"fax": 1})])
def test_parked_jobs_come_before_the_other_jobs_of_their_level(
    make: MakeStandard, handled: Handled
) -> None:
    queue = make()
    parked = [job(type="sms", priority=each) for each in (Priority.NORMAL, Priority.LOW) * 2]
    queue.push(parked, epoch="")
    assert queue.fetch(9, timeout=0, handled=MAIL) == []
    others = [job(type="mail", priority=each) for each in Priority]
    queue.push(others, epoch="")
    assert ids(
        fetch_all(queue, 2) if not handled.free else queue.fetch(9, timeout=0, handled=handled)
    ) == [
        others[0].id,
        others[1].id,
        parked[0].id,
        parked[2].id,
        others[2].id,
        parked[1].id,
        parked[3].id,
        others[3].id,
        others[4].id,
    ]


def test_parked_jobs_of_several_types_are_taken_in_order_of_their_scores(
    make: MakeStandard,
) -> None:
    queue = make()
    jobs = [job(type=("sms", "fax")[number % 2]) for number in range(8)]
    queue.push(jobs, epoch="")
    assert queue.fetch(9, timeout=0, handled=MAIL) == []
    handled = Handled(types=["fax", "sms"])
    assert ids(queue.fetch(3, timeout=0, handled=handled)) == [each.id for each in jobs[:3]]
    assert ids(queue.fetch(9, timeout=0, handled=handled)) == [each.id for each in jobs[3:]]


def test_a_type_without_a_free_slot_is_parked(make: MakeStandard) -> None:
    queue, other = make("w1"), make("w2")
    jobs = [job(type="sms") for _ in range(4)] + [job(type="mail") for _ in range(2)]
    queue.push(jobs, epoch="")
    full = Handled(types=["sms", "mail"], free={"sms": 1})
    first = queue.fetch(5, timeout=0, handled=full)
    assert ids(first) == [jobs[0].id, jobs[4].id, jobs[5].id]
    none = Handled(free={"sms": 0})
    assert queue.fetch(5, timeout=0, handled=none) == []
    assert ids(other.fetch(2, timeout=0, handled=Handled(free={"sms": 1}))) == [jobs[1].id]
    _, more = queue.finish([ended(first[0])], fetch=5, handled=full)
    assert ids(more) == [jobs[2].id]
    assert ids(fetch_all(other)) == [jobs[3].id]


def test_a_parked_retry_keeps_its_counts(make: MakeStandard) -> None:
    queue = make()
    queue.push([job(type="sms")], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    queue.finish([retried(delivery)])
    rest(0.01)
    assert queue.fetch(1, timeout=0, handled=MAIL) == []
    assert queue.known([delivery.job.id]) == [Known(State.SCHEDULED, 1, parked="sms")]
    [again] = queue.fetch(1, timeout=0, handled=SMS)
    assert (again.attempt, again.charged) == (2, 2)


def test_parked_jobs_obey_pause_and_cancel(
    make: MakeStandard, admin: StandardAdmin, plain: Any
) -> None:
    queue = make()
    jobs = [job(type="sms") for _ in range(3)]
    queue.push(jobs, epoch="")
    queue.fetch(3, timeout=0, handled=MAIL)
    assert queue.cancel([jobs[0].id, jobs[2].id]) == [Cancelling.REMOVED] * 2
    assert waiting(queue) == 1
    assert plain.hgetall(f"{P}:blocked:counts") == {b"type:sms": b"1"}
    admin.pause()
    assert queue.fetch(3, timeout=0, handled=SMS) == []
    admin.resume()
    assert ids(queue.fetch(3, timeout=0, handled=SMS)) == [jobs[1].id]
    assert not plain.exists(f"{P}:blocked", f"{P}:blocked:counts", f"{P}:state")


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([], {"sms": 2, "fax": 1}),
        ([["mail"]], {"sms": 2, "fax": 1}),
        ([["mail"], ["sms"]], {"fax": 1}),
        ([["mail"], ["sms", "fax"]], {}),
        ([["mail"], None], {}),
    ],
)
def test_parked_types_that_no_live_worker_handles_are_unhandled(
    make: MakeStandard,
    admin: StandardAdmin,
    reports: list[list[str] | None],
    expected: dict[str, int],
) -> None:
    queue = make("parks")
    queue.push([job(type=name) for name in ("sms", "fax", "sms")], epoch="")
    assert queue.unhandled_types() == {}, "nothing is parked"
    queue.fetch(3, timeout=0, handled=MAIL)
    assert queue.unhandled_types() == {}, "the worker has not reported its types yet"
    queue.leave()
    make("dead").renew({}, lease=timedelta(milliseconds=1), about=ABOUT._replace(types=["fax"]))
    for number, types in enumerate(reports):
        make(f"w{number}").renew({}, lease=LEASE, about=ABOUT._replace(types=types))
    wait_for(lambda: admin.workers(9).alive == len(reports), "the dead worker has expired")
    assert list(queue.unhandled_types().items()) == list(expected.items())
    assert admin.unhandled_types() == expected


def test_unhandled_types_are_unknown_beside_workers_that_are_not_read(
    make: MakeStandard, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make("w1")
    queue.push([job(type="sms")], epoch="")
    queue.fetch(1, timeout=0, handled=MAIL)
    for each in (queue, make("w2")):
        each.renew({}, lease=LEASE, about=ABOUT._replace(types=["mail"]))
    assert queue.unhandled_types() == {"sms": 1}
    monkeypatch.setattr("scheduler.dialects.standard.queue.MAX_REPORTS", 1)
    assert queue.unhandled_types() == {}


def test_a_type_with_separators_in_its_name_is_parked_by_that_name(make: MakeStandard) -> None:
    queue, one = make(), job(type='a:b "c"\n')
    queue.push([one], epoch="")
    queue.fetch(1, timeout=0, handled=MAIL)
    queue.leave()
    assert queue.known([one.id]) == [Known(State.SCHEDULED, parked=one.type)]
    assert queue.unhandled_types() == {one.type: 1}


def test_a_later_epoch_of_a_parked_job_runs_once(make: MakeStandard) -> None:
    queue, one = make(), job(type="sms")
    queue.push([one], epoch="")
    queue.fetch(3, timeout=0, handled=MAIL)
    later = replace(one, feed=2, attempt=3, priority=Priority.HIGH)
    assert queue.push([later], epoch="") == [Pushed.KNOWN]
    [delivery] = fetch_all(queue)
    assert (delivery.job, delivery.attempt) == (later, 4)


def test_at_most_a_thousand_jobs_are_parked_by_one_call(make: MakeStandard, plain: Any) -> None:
    queue = make()
    one = job(type="mail")
    queue.push([*(job(type="sms") for _ in range(1200)), one], epoch="")
    assert queue.fetch(50, timeout=0, handled=MAIL) == []
    assert plain.zcard(f"{P}:blocked") == 1000
    assert ids(queue.fetch(50, timeout=0, handled=MAIL)) == [one.id]
    assert queue.depths().waiting[Priority.NORMAL] == 1200


def test_a_catch_all_worker_takes_parked_jobs_of_many_types(make: MakeStandard) -> None:
    queue = make()
    jobs = [job(type=f"type-{number}") for number in range(1100)]
    queue.push(jobs, epoch="")
    for _ in range(2):
        queue.fetch(1000, timeout=0, handled=MAIL)
    assert sorted(ids(fetch_all(queue, 300))) == sorted(each.id for each in jobs)
    assert waiting(queue) == 0


def test_parked_jobs_have_their_share_of_a_weighted_fetch(make: MakeStandard) -> None:
    queue = make(options=QueueOptions(weighted=True))
    queue.push([job(type="sms", priority=Priority.BULK) for _ in range(5)], epoch="")
    queue.fetch(9, timeout=0, handled=MAIL)
    queue.push([job(type="mail", priority=Priority.CRITICAL) for _ in range(200)], epoch="")
    found = queue.fetch(62, timeout=0, handled=BOTH)
    assert [each.job.type for each in found].count("sms") in (2, 3, 4)


@pytest.mark.parametrize("handled", [SMS, Handled()])
def test_parking_wakes_a_worker_that_can_run_the_type(make: MakeStandard, handled: Handled) -> None:
    mail, other = make("w1"), make("w2")
    taken: list[Delivery] = []
    waiter = threading.Thread(
        target=lambda: taken.extend(other.fetch(1, timeout=60, handled=handled))
    )
    waiter.start()
    wait_for(lambda: other._client.call("INFO", "clients")["blocked_clients"] == 1, "it waits")
    began = time.monotonic()
    # The marker wakes either worker; `mail` parks the job if it is first.
    for _ in range(20):
        mail.push([job(type="sms")], epoch="")
        mail.fetch(1, timeout=0, handled=MAIL)
    waiter.join(60)
    assert len(taken) == 1
    assert time.monotonic() - began < WOKEN


def test_several_workers_wake_for_parked_jobs(make: MakeStandard) -> None:
    mail, workers = make("w1"), [make(f"s{number}") for number in range(3)]
    mail.push([job(type="sms") for _ in range(3)], epoch="")
    mail.fetch(5, timeout=0, handled=MAIL)
    mail._client.call("DEL", mail._keys.wake("sms"), f"{P}:marker")
    taken: list[Delivery] = []

    def wait_and_fetch(queue: StandardQueue) -> None:
        queue.fetch(0, timeout=60, handled=SMS)
        taken.extend(queue.fetch(1, timeout=0, handled=SMS))

    waiters = [threading.Thread(target=wait_and_fetch, args=(each,)) for each in workers]
    for each in waiters:
        each.start()
    wait_for(lambda: mail._client.call("INFO", "clients")["blocked_clients"] == 3, "they wait")
    began = time.monotonic()
    mail._finish.signal([b"sms"])
    for each in waiters:
        each.join(60)
    assert len(taken) == 3
    assert time.monotonic() - began < WOKEN


def test_workers_do_not_spin_on_jobs_that_they_cannot_take(make: MakeStandard, plain: Any) -> None:
    queue = make()
    queue.push([job(type="sms") for _ in range(5)], epoch="")
    queue.fetch(1, timeout=0, handled=MAIL)
    plain.config_resetstat()
    full = Handled(types=["mail", "sms"], free={"sms": 0})
    assert queue.fetch(5, timeout=1.2, handled=full) == []
    assert plain.info("commandstats")["cmdstat_evalsha"]["calls"] <= 6


def test_a_lost_signal_is_made_up_for_by_polling(make: MakeStandard, plain: Any) -> None:
    queue, other = make("w1"), make("w2")
    queue.push([job(type="fax")], epoch="")
    queue.fetch(1, timeout=0, handled=MAIL)  # so that jobs are parked, and workers poll
    taken: list[Delivery] = []
    waiter = threading.Thread(target=lambda: taken.extend(other.fetch(1, timeout=30, handled=SMS)))
    waiter.start()
    wait_for(lambda: other._client.call("INFO", "clients")["blocked_clients"] == 1, "it waits")
    queue._finish.signal = lambda types: None  # type: ignore[method-assign]
    queue.push([job(type="sms")], epoch="")
    queue.fetch(1, timeout=0, handled=MAIL)
    waiter.join(30)
    assert len(taken) == 1


def test_the_order_of_peek_is_that_of_a_fetch(make: MakeStandard, admin: StandardAdmin) -> None:
    queue = make()
    queue.push([job(type="sms", priority=Priority(number % 5)) for number in range(10)], epoch="")
    queue.fetch(20, timeout=0, handled=MAIL)
    queue.push(
        [job(tenant=f"t{number}", priority=Priority(number % 5)) for number in range(10)], epoch=""
    )
    seen = [each.id for each in admin.peek(30)]
    assert [each.id for each in admin.peek(7)] == seen[:7]
    assert ids(fetch_all(queue, 6)) == seen


# Marks of finished jobs


def test_a_finished_mark_is_believed_only_while_its_result_exists(
    make: MakeStandard, plain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make()
    jobs = [job() for _ in range(4)]
    queue.push(jobs, epoch="")
    queue.finish([ended(each) for each in queue.fetch(2, timeout=0)])
    queue.finish([ended(each) for each in queue.fetch(2, timeout=0)])
    (first, _), _ = plain.xrange(f"{P}:results:3f1e")
    plain.xdel(f"{P}:results:3f1e", first)
    names = [each.id for each in jobs]
    assert queue.known(names) == [None, None, Known(None, 1), Known(None, 1)]
    assert queue.cancel(names)[:3] == [*[Cancelling.UNKNOWN] * 2, Cancelling.FINISHED]
    with caplog.at_level(logging.WARNING):
        assert queue.push(jobs, epoch="") == [Pushed.NEW] * 2 + [Pushed.FINISHED] * 2
    assert "lost the results of 2 finished jobs" in caplog.text
    assert queue.depths().unsettled == 2
    assert ids(fetch_all(queue)) == names[:2]


# Formats


NEWER: dict[str, Callable[[Any, QueuedJob], Any]] = {
    "record": lambda plain, each: plain.hset(f"{P}:jobs", each.id, b"2:what:ever"),
    "state": lambda plain, each: plain.hset(f"{P}:state", each.id, b"2:what:ever"),
}


@pytest.mark.parametrize("where", NEWER)
def test_a_job_with_a_newer_format_is_set_aside(
    make: MakeStandard, plain: Any, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue, newer, other = make(), job(), job()
    queue.push([newer, other], epoch="")
    NEWER[where](plain, newer)
    with caplog.at_level(logging.WARNING):
        assert ids(fetch_all(queue)) == [other.id]
        assert queue.fetch(1, timeout=0) == []
    assert caplog.text.count("values of format 2, this version reads format 1") == 1
    assert plain.hgetall(f"{P}:blocked:counts") == {b"format:2": b"1"}
    key = {"record": "jobs"}.get(where, where)
    assert plain.hget(f"{P}:{key}", newer.id) == b"2:what:ever"
    assert queue.cancel([newer.id]) == [Cancelling.REFUSED]
    assert queue.push([replace(newer, feed=2)], epoch="") == [Pushed.KNOWN]
    assert queue.known([newer.id]) == [Known(State.SCHEDULED)]
    assert waiting(queue) == 1


def test_an_entry_of_a_newer_format_is_set_aside(make: MakeStandard, plain: Any) -> None:
    queue, one = make(), job()
    queue.push([one], epoch="")
    plain.zadd(f"{P}:waiting", {b"12\x1fnew": 5.0, b"2\x1fdue": 7.0})
    plain.zadd(f"{P}:retrying", {b"3\x1fretry": 5.0})
    assert ids(fetch_all(queue)) == [one.id]
    assert plain.zrange(f"{P}:blocked", 0, -1) == [
        b"format:12\0%016d12\x1fnew" % 5,
        b"format:2\0%016d2\x1fdue" % 7,
        b"format:3\0%016d3\x1fretry" % (2 * SPAN),
    ]
    assert waiting(queue) == 3


def test_a_lease_of_a_newer_format_is_left_alone(make: MakeStandard, plain: Any) -> None:
    queue = make("w1", lease=SOON)
    queue.push([job()], epoch="")
    [delivery] = queue.fetch(1, timeout=0)
    plain.hset(f"{P}:leases", delivery.job.id, b"2:lease")
    assert queue.renew({delivery: None}, lease=SOON) == [Renewed.LOST]
    assert queue.finish([ended(delivery)])[0] == [False]
    assert queue.held() == []
    assert queue.push([replace(delivery.job, feed=2)], epoch="") == [Pushed.KNOWN]
    assert queue.known([delivery.job.id]) == [Known(State.RUNNING)]
    assert queue.cancel([delivery.job.id]) == [Cancelling.RUNNING]
    rest(0.3)
    assert make("w2").recover(retried) == 0
    assert plain.hget(f"{P}:leases", delivery.job.id) == b"2:lease"
    assert plain.smembers(f"{P}:worker:w1") == {delivery.job.id.encode()}


def test_a_result_of_a_newer_format_is_left_unacknowledged(
    make: MakeStandard, plain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make()
    queue.push([job()], epoch="")
    queue.outcomes(1, timeout=0)
    plain.xadd(f"{P}:results:3f1e", {"2": "what ever"})
    queue.finish([ended(each) for each in queue.fetch(1, timeout=0)])
    with caplog.at_level(logging.WARNING):
        assert settle(queue) == 1
    assert "format 2" in caplog.text
    assert plain.xlen(f"{P}:results:3f1e") == 1
    assert plain.xpending(f"{P}:results:3f1e", "settlers")["pending"] == 1
    assert queue.depths().dead == 0


# Unreadable values

GARBAGE = [b"", b"x", b"1", b"1:", b"1\x1f", b"1\x1f\x1f\x1f", b"\x00\xff\xfe", b"{}", b"99999:x"]


@pytest.mark.parametrize("text", GARBAGE)
def test_an_unreadable_entry_is_a_dead_letter(
    make: MakeStandard, admin: StandardAdmin, plain: Any, text: bytes
) -> None:
    queue, one = make(), job()
    queue.push([one], epoch="")
    plain.zadd(f"{P}:waiting", {text: 0.0})
    assert ids(queue.fetch(5, timeout=0, handled=Handled(types=["send"]))) == [one.id]
    [letter] = plain.lrange(f"{P}:dead_letter", 0, -1)
    assert letter == text
    assert b"unreadable" in (reason(plain, text) or b"")
    assert [each.payload for each in admin.dead(5)] == [text]
    assert admin.requeue(admin.dead(5)) == [False]


@pytest.mark.parametrize(
    "record",
    [b"x", b"", b"1:1:0:0:2:{", b"1:1:0:0:2:{}", b"1:1:0:0:900:[]", b"1::::", b"1:1:0:0:-1:{}"],
)
def test_an_unreadable_record_is_a_dead_letter(
    make: MakeStandard, plain: Any, record: bytes
) -> None:
    queue, bad, good = make(), job(), job()
    queue.push([bad, good], epoch="")
    plain.hset(f"{P}:jobs", bad.id, record)
    assert ids(fetch_all(queue)) == [good.id]
    assert ids(queue.held()) == [good.id]
    assert queue.known([bad.id]) == [None]
    assert queue.cancel([bad.id]) == [Cancelling.UNKNOWN]
    [letter] = plain.lrange(f"{P}:dead_letter", 0, -1)
    assert b"unreadable" in (reason(plain, letter) or b"")


@pytest.mark.parametrize("place", [0, 1, 5], ids=["tenant", "type", "installation"])
def test_a_record_with_a_value_of_another_type_is_unreadable(
    make: MakeStandard, plain: Any, place: int
) -> None:
    queue, bad, good = make(), job(), job()
    queue.push([bad, good], epoch="")
    head: list[Any] = ["acme", "send", 2, bad.created_at, bad.expires_at, ""]
    head[place] = [1]
    text = orjson.dumps(head)
    plain.hset(f"{P}:jobs", bad.id, b"1:1:0:0:%d:%b1" % (len(text), text))
    assert ids(fetch_all(queue)) == [good.id]
    assert queue.depths().dead == 1


@pytest.mark.parametrize("place", [1, 2, 3], ids=["epoch", "attempts", "charged"])
def test_a_record_with_a_number_that_is_too_large_blocks_no_result(
    make: MakeStandard, plain: Any, place: int
) -> None:
    queue, bad, good = make(), job(), job()
    queue.push([bad, good], epoch="")
    parts = plain.hget(f"{P}:jobs", bad.id).split(b":", 5)
    parts[place] = b"1" + b"0" * 30
    plain.hset(f"{P}:jobs", bad.id, b":".join(parts))
    taken = fetch_all(queue)
    assert ids(taken) == [good.id]
    assert queue.finish([ended(each) for each in taken])[0] == [True]
    assert queue.depths().dead == 1


@pytest.mark.parametrize("record", [b"x", None])
def test_an_unreadable_record_of_a_leased_job_is_a_dead_letter(
    make: MakeStandard, plain: Any, record: bytes | None
) -> None:
    dead, queue = make("dead", lease=SOON), make("w1")
    queue.push([job() for _ in range(3)], epoch="")
    bad, good, _ = dead.fetch(3, timeout=0)
    plain.hdel(f"{P}:jobs", bad.job.id)
    if record is not None:
        plain.hset(f"{P}:jobs", bad.job.id, record)
    rest(0.3)
    assert queue.recover(retried) == 3
    assert len(fetch_all(queue)) == 2
    assert queue.depths().dead == 1
    assert queue.known([bad.job.id, good.job.id])[0] is None


@pytest.mark.parametrize("text", [b"", b"x", b"1:2:3", b"1:1:1:1:1:w1:1:1:nan"])
def test_an_unreadable_lease_is_no_lease(make: MakeStandard, plain: Any, text: bytes) -> None:
    queue = make("w1", lease=SOON)
    queue.push([job(), job()], epoch="")
    bad, good = queue.fetch(2, timeout=0)
    plain.hset(f"{P}:leases", bad.job.id, text)
    assert ids(queue.held()) == [good.job.id]
    assert queue.known([bad.job.id]) == [None]
    assert queue.renew({bad: None, good: None}, lease=SOON) == [Renewed.LOST, Renewed.KEPT]
    assert queue.finish([retried(bad)])[0] == [False]
    rest(0.3)
    assert make("w2").recover(retried) == 1
    assert queue.push([replace(bad.job, feed=2)], epoch="") == [Pushed.KNOWN]
    assert sorted(ids(fetch_all(queue))) == sorted([bad.job.id, good.job.id])


def test_a_return_of_a_lease_without_its_score_is_refused(make: MakeStandard, plain: Any) -> None:
    queue = make()
    queue.push([job(), job()], epoch="")
    bad, good = queue.fetch(2, timeout=0)
    plain.hset(f"{P}:leases", bad.job.id, f"1:x:w1:1:1:{bad.sequence}")
    assert queue.finish([back(bad), back(good)])[0] == [False, True]
    assert queue.finish([ended(bad)])[0] == [True]


def test_other_unreadable_values_cost_no_job(make: MakeStandard, plain: Any) -> None:
    queue = make("w1")
    jobs = [job(id=name) for name in "abcd"]
    queue.push(jobs, epoch="")
    plain.hset(f"{P}:state", "a", "garbage")
    plain.hset(f"{P}:finished", "x", "garbage")
    plain.hset(f"{P}:begun", "w1", "garbage")
    plain.zadd(f"{P}:retrying", {b"garbage": 1.0, messages.entry_of(jobs[3]): 2.0})
    plain.zadd(f"{P}:blocked", {b"garbage": 0.0, b"type:send\0garbage": 0.0})
    plain.hset(f"{P}:blocked:counts", mapping={"type:send": 1, "garbage": "x"})
    assert queue.known(["a", "x"]) == [Known(State.SCHEDULED), None]
    assert sorted(ids(fetch_all(queue))) == ["a", "b", "c", "d"]
    assert queue.push([job(id="x")], epoch="") == [Pushed.NEW]
    assert queue.depths().running == 4
    queue.renew({}, lease=LEASE)


def test_a_result_that_is_unreadable_is_a_dead_letter(make: MakeStandard, plain: Any) -> None:
    queue = make()
    queue.push([job()], epoch="")
    plain.xadd(f"{P}:results:3f1e", {"1": "[{]"})
    queue.finish([ended(each) for each in queue.fetch(1, timeout=0)])
    assert settle(queue) == 1
    assert plain.lrange(f"{P}:dead_letter", 0, -1) == [b"[{]"]
    assert plain.xlen(f"{P}:results:3f1e") == 0


# A full Redis


def test_a_full_redis_refuses_pushes_and_takes_results(make: MakeStandard, plain: Any) -> None:
    queue = make()
    queue.push([job() for _ in range(30)], epoch="")
    taken = queue.fetch(20, timeout=0)
    plain.config_set("maxmemory", 1)
    try:
        assert queue.renew(dict.fromkeys(taken), lease=LEASE) == [Renewed.KEPT] * 20
        accepted, more = queue.finish([ended(each) for each in taken], fetch=5)
        assert (accepted, len(more)) == ([True] * 20, 5)
        assert len(queue.fetch(5, timeout=0)) == 5
        with pytest.raises(QueueUnavailable, match="maxmemory"):
            queue.push([job()], epoch="")
    finally:
        plain.config_set("maxmemory", 0)
    assert settle(queue) == 20
