"""A queue that is waited at and taken from in one round trip: what comes is taken once, whoever
ends loses nothing.
"""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from scheduler import Worker, handler
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Delivery, Prompt
from scheduler.dialects.opening import open_queue
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.standard.queue import StandardQueue
from tests.dialects.conftest import INSTALLATION
from tests.dialects.servers import House
from tests.dialects.values import ended, fetch_all, job, retried
from tests.support.waiting import WOKEN, wait_for


@pytest.fixture
def lone(lone_servers: House) -> House:
    lone_servers.everywhere("FLUSHALL")
    return lone_servers


@pytest.fixture
def clients(lone: House) -> Iterator[list[Client]]:
    made = [Client(lone.url) for _ in range(2)]
    yield made
    for each in made:
        each.close()


WaitingQueue = ReliableQueue | StandardQueue
Queues = tuple[WaitingQueue, WaitingQueue]


@pytest.fixture(params=[ReliableQueue, StandardQueue], ids=["reliable", "standard"])
def opened(request: pytest.FixtureRequest) -> type[WaitingQueue]:
    found: type[WaitingQueue] = request.param
    return found


@pytest.fixture
def queues(clients: list[Client], opened: type[WaitingQueue]) -> Queues:
    """The queue of a worker, and the same queue in another process."""
    ours, others = clients
    return opened(ours, "mail", worker="w1"), opened(others, "mail", worker="w2")


class Waiting(threading.Thread):
    """Somebody who waits for a job."""

    def __init__(self, queue: WaitingQueue, timeout: float = 60) -> None:
        super().__init__()
        self.queue, self.timeout = queue, timeout
        self.taken: list[Delivery] | None = None
        self.start()
        wait_for(lambda: queue._client._blocked or not self.is_alive(), "it waits")

    def run(self) -> None:
        self.taken = self.queue.fetch_next(1, timeout=self.timeout)


def test_what_comes_while_one_waits_is_taken_with_its_lease(
    queues: Queues,
) -> None:
    ours, others = queues
    assert isinstance(ours, Prompt)
    assert ours.fetch(1, timeout=0) == []
    waiting = Waiting(ours)
    jobs = [job(), job()]
    others.push(jobs, epoch="")
    waiting.join(60)
    assert waiting.taken is not None
    assert [each.job.id for each in waiting.taken] == [jobs[0].id]
    assert [each.job.id for each in ours.held()] == [jobs[0].id]
    assert ours.finish([ended(each) for each in waiting.taken])[0] == [True]
    assert [each.job.id for each in fetch_all(others)] == [
        jobs[1].id
    ]  # whoever waits is told of the other


def test_nothing_comes_and_it_ends_when_it_said(
    queues: Queues,
) -> None:
    began = time.monotonic()
    assert queues[0].fetch_next(1, timeout=0.2) == []
    assert 0.15 < time.monotonic() - began < WOKEN


def test_whoever_is_to_end_ends_at_once_and_has_what_it_was_given(
    queues: Queues,
) -> None:
    ours, others = queues
    for _ in range(20):
        waiting = Waiting(ours)
        pushing = threading.Thread(target=others.push, args=([job()],), kwargs={"epoch": ""})
        pushing.start()
        began = time.monotonic()
        while waiting.is_alive():
            ours.unblock()
            waiting.join(0.01)
        assert time.monotonic() - began < WOKEN
        pushing.join()
        assert waiting.taken is not None
        assert {each.sequence for each in waiting.taken} == {each.sequence for each in ours.held()}
        ours.finish([ended(each) for each in waiting.taken])
        others.finish([ended(each) for each in fetch_all(others)])


def test_unblocking_a_settler_ends_its_wait_for_results(
    clients: list[Client], dialect: str
) -> None:
    ours, through = clients
    queue = open_queue(ours, "mail", {"dialect": dialect}, installation=INSTALLATION)
    waiting = threading.Thread(target=queue.outcomes, args=(10,), kwargs={"timeout": 60})
    waiting.start()
    began = time.monotonic()
    while waiting.is_alive():
        ours.unblock(through)
        waiting.join(0.01)
    assert time.monotonic() - began < WOKEN


def test_a_retry_that_comes_due_ends_the_wait(queues: Queues) -> None:
    ours, _ = queues
    ours.push([job()], epoch="")
    [delivery] = ours.fetch(1, timeout=1)
    ours.finish([retried(delivery, timedelta(seconds=0.3))])
    assert ours.fetch_next(1, timeout=0.01) == []
    waiting = Waiting(ours)
    waiting.join(60)
    assert waiting.taken is not None
    assert [each.attempt for each in waiting.taken] == [2]


def test_redis_forgets_the_script_meanwhile(queues: Queues, clients: list[Client]) -> None:
    ours, others = queues
    waiting = Waiting(ours)
    clients[1].call("SCRIPT", "FLUSH")
    others.push([job()], epoch="")
    waiting.join(60)
    assert waiting.taken is not None
    assert len(waiting.taken) == 1


def test_where_nobody_may_ask_for_names_it_is_not_done_again(
    lone: House, clients: list[Client], opened: type[WaitingQueue]
) -> None:
    clients[0].call("ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", "-client")
    user = Client(lone.url.replace("redis://", "redis://plain:secret@"))
    queue = opened(user, "mail", worker="w1")
    try:
        assert queue.fetch_next(1, timeout=0.05) == []
        assert queue.fetch_next(1, timeout=5) is None
    finally:
        user.close()
        clients[0].call("ACL", "DELUSER", "plain")


def test_in_a_cluster_it_is_not_done(house: House, opened: type[WaitingQueue]) -> None:
    client = Client(house.url)
    assert (
        opened(client, "mail", worker="w1").fetch_next(1, timeout=0.05) is None
    ) is house.clustered
    client.close()


def test_an_idle_worker_stops_at_once_and_leaves_nothing(
    lone: House, clients: list[Client]
) -> None:
    ran: list[int] = []
    handler("send", queue="mail")(lambda _, payload: ran.append(payload))
    for _ in range(3):
        worker = Worker(lone.url, ["mail"], concurrency=1)
        worker.start()
        wait_for(lambda: worker._client._blocked, "it waits")  # noqa: B023
        began = time.monotonic()
        worker.stop()
        assert time.monotonic() - began < WOKEN
    assert clients[0].call("KEYS", "*processing*") == []
