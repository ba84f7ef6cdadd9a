"""Who works at a queue, in every dialect: as workers say it with their heartbeats, and others as
far as they show.
"""

from collections.abc import Callable
from datetime import timedelta

import pytest

from scheduler.dialects.client import Client
from scheduler.model.breaker import BreakerState
from scheduler.model.workers import HeldJob, WorkerInfo
from tests.dialects.conftest import MakeAdmin, MakeQueue
from tests.dialects.servers import House
from tests.dialects.values import ABOUT, job
from tests.support.waiting import wait_for

LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)


@pytest.fixture
def ours(make_admin: MakeAdmin) -> Callable[[], list[WorkerInfo]]:
    return lambda: [each for each in make_admin().workers(9).workers if each.kind == "scheduler"]


def test_a_worker_is_seen_as_it_says_it_is(make_queue: MakeQueue, make_admin: MakeAdmin) -> None:
    queue = make_queue("w1")
    queue.push([job()], epoch="")
    deliveries = queue.fetch(1, timeout=1)
    queue.renew(dict.fromkeys(deliveries), lease=LEASE, about=ABOUT)
    crew = make_admin().workers(9)
    [worker] = crew.workers
    [at] = worker.queues
    assert (worker.name, worker.kind, worker.host, worker.pid) == ("w1", "scheduler", "box", 7)
    assert (worker.concurrency, worker.holds, at.name, at.holds) == (50, 3, "mail", 3)
    assert at.jobs == (
        HeldJob(id="a", tenant="acme", type="send"),
        HeldJob(id="b", tenant=None, type="file"),
    )
    assert at.types == ("send", "file")
    assert worker.seen_at is not None
    assert crew.at - SECOND <= worker.seen_at <= crew.at
    assert worker.started_at == worker.seen_at - timedelta(seconds=60)
    assert (at.breaker, at.breaker_until) == (
        BreakerState.OPEN,
        worker.seen_at + timedelta(seconds=12.5),
    )


def test_what_was_said_last_holds_and_a_renewal_that_says_nothing_changes_nothing(
    make_queue: MakeQueue, ours: Callable[[], list[WorkerInfo]]
) -> None:
    queue = make_queue("w1")
    queue.renew({}, lease=LEASE, about=ABOUT)
    [first] = ours()
    queue.renew({}, lease=LEASE)
    assert ours() == [first]
    queue.renew(
        {}, lease=LEASE, about=ABOUT._replace(holds=0, jobs=[], breaker=None, breaker_left=None)
    )
    [worker] = ours()
    assert (worker.holds, worker.queues[0].jobs, worker.queues[0].breaker) == (0, (), None)


def test_what_a_dead_worker_said_is_gone_by_itself(
    make_queue: MakeQueue, make_admin: MakeAdmin, house: House
) -> None:
    admin = make_admin()
    make_queue("alive").renew({}, lease=LEASE, about=ABOUT)
    make_queue("dead").renew({}, lease=SECOND, about=ABOUT)
    assert {each.name for each in admin.workers(9).workers} == {"dead", "alive"}
    wait_for(lambda: [each.name for each in admin.workers(9).workers] == ["alive"], "one is left")
    wait_for(lambda: not any(house.everywhere("KEYS", "*said*dead*")), "no key has its name")
    assert any(house.everywhere("KEYS", "*said*alive*"))


def test_no_more_are_read_than_wanted_and_all_are_counted(
    make_queue: MakeQueue, make_admin: MakeAdmin, house: House
) -> None:
    for number in range(4):
        make_queue(f"w{number}").renew({}, lease=LEASE + number * SECOND, about=ABOUT)
    crew = make_admin().workers(2)
    assert [each.name for each in crew.workers] == ["w3", "w2"]
    assert crew.alive in (4, None)
    assert crew.alive == 4 or house.clustered


def test_workers_of_another_queue_are_of_another_queue(
    make_queue: MakeQueue, make_admin: MakeAdmin
) -> None:
    make_queue("w1").renew({}, lease=LEASE, about=ABOUT)
    make_queue("w1", name="mail2").renew({}, lease=LEASE, about=ABOUT._replace(holds=1))
    [here], [there] = make_admin().workers(9).workers, make_admin(name="mail2").workers(9).workers
    assert (here.holds, there.holds) == (3, 1)
    assert {here.name, there.name} == {"w1"}
    both = here.also(there)
    assert (both.holds, [each.name for each in both.queues]) == (4, ["mail", "mail2"])


def test_what_nobody_can_read_is_a_worker_that_says_nothing(
    make_queue: MakeQueue, make_admin: MakeAdmin, client: Client, house: House
) -> None:
    make_queue("w1").renew({}, lease=LEASE, about=ABOUT)
    [said] = [key for keys in house.everywhere("KEYS", "*said*") for key in keys]
    for text in (
        "",
        "1",
        "x [",
        '1 ["box"]',
        '1 {"a":1}',
        '1 ["box","x",1,1,1,1]',
        '99999999999999999 ["box",1,1,1,1,[]]',
    ):
        client.call("SET", said, text)
        [worker] = make_admin().workers(9).workers
        assert (worker.name, worker.seen_at, worker.holds) == ("w1", None, None)
        assert [each.name for each in worker.queues] == ["mail"]
    for text in (
        '1000 ["box",1,2,3,4,[]]',
        '1000 ["box",1,2,3,4,[],null,null,7,"a later version"]',
    ):
        client.call("SET", said, text)
        [worker] = make_admin().workers(9).workers
        assert (worker.holds, worker.concurrency) == (4, 2)
        assert worker.queues[0].types is None, "it can handle every type"


def test_a_worker_that_ends_is_not_seen_any_more_unless_it_holds_something(
    make_queue: MakeQueue, make_admin: MakeAdmin, house: House
) -> None:
    admin = make_admin()
    holds, ends = make_queue("holds"), make_queue("ends")
    holds.push([job()], epoch="")
    [delivery] = holds.fetch(1, timeout=1)
    for each in (holds, ends):
        each.renew({delivery: None} if each is holds else {}, lease=LEASE, about=ABOUT)
        each.leave()
    assert "ends" not in {each.name for each in admin.workers(9).workers}
    assert not any(house.everywhere("KEYS", "*ends*"))
    assert len(holds.held()) == 1
