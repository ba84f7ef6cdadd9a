"""A push that Redis hears of too late is refused, and what was settled lately is not taken in again."""

import time
from dataclasses import replace

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.interface import Fencing, Pushed
from scheduler.dialects.reliable import queue as reliable
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.errors import QueueUnavailable
from tests.dialects.servers import House
from tests.dialects.values import ended, job
from tests.support.waiting import rest

INSTALLATION = "3f1e"


@pytest.fixture
def queue(client: Client) -> ReliableQueue:
    return ReliableQueue(client, "mail", worker="w1", installation=INSTALLATION)


def settled(queue: ReliableQueue) -> None:
    """Let the next job end, and settle it."""
    [delivery] = queue.fetch(1, timeout=1)
    queue.outcomes(10, timeout=0.01)  # the stream is there
    queue.finish([ended(delivery)])
    queue.acknowledge(queue.outcomes(10, timeout=1))


def test_a_push_that_comes_too_late_is_refused_whole(queue: ReliableQueue, house: House) -> None:
    assert isinstance(queue, Fencing)
    one, two = job(), job()
    assert queue.push_soon([one], epoch="", began=time.monotonic()) == [Pushed.NEW]
    if house.clustered:
        return  # its servers have clocks of their own
    with pytest.raises(QueueUnavailable, match="too long"):
        queue.push_soon([two], epoch="", began=time.monotonic() - reliable.SOON - 0.5)
    assert [each is not None for each in queue.known([one.id, two.id])] == [True, False]
    assert queue.push_soon([two], epoch="", began=time.monotonic() - reliable.SOON + 2) == [Pushed.NEW]


def test_what_was_settled_lately_is_finished_also_for_who_says_it_late(queue: ReliableQueue) -> None:
    one = job(installation=INSTALLATION)
    queue.push([one], epoch="")
    settled(queue)
    assert queue.known([one.id]) == [None]
    assert queue.push([one], epoch="") == [Pushed.FINISHED]
    assert queue.fetch(1, timeout=0) == []


def test_a_later_feed_of_a_job_whose_earlier_one_ended_is_taken_in(queue: ReliableQueue) -> None:
    one = job(installation=INSTALLATION)
    queue.push([one], epoch="")
    settled(queue)
    assert queue.push([replace(one, feed=one.feed + 1)], epoch="") == [Pushed.NEW]


def test_it_is_forgotten_after_a_while(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliable, "REMEMBERED_MS", 200)
    queue = ReliableQueue(client, "mail", worker="w1", installation=INSTALLATION)
    first = job(installation=INSTALLATION)
    queue.push([first], epoch="")
    settled(queue)
    for _ in range(2):
        rest(0.25)
        queue.push([job(installation=INSTALLATION)], epoch="")
        settled(queue)
    now, before = Keys.of("mail").named("settled", "settled:before")
    assert (client.call("HLEN", now), client.call("HLEN", before)) == (1, 1)
    assert 0 < client.call("PTTL", before) <= 400
    assert queue.push([first], epoch="") == [Pushed.NEW]
