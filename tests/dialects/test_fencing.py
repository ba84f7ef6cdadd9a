"""A push that Redis hears of too late is refused, and what was settled lately is not taken in
again.
"""

import time
from dataclasses import replace

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.interface import Pushed, Queue
from scheduler.dialects.settling import fence, reading
from scheduler.errors import QueueUnavailable
from tests.dialects.conftest import MakeQueue
from tests.dialects.servers import House
from tests.dialects.values import ended, job
from tests.support.waiting import rest


def settled(queue: Queue) -> None:
    """Let the next job end, and settle it."""
    [delivery] = queue.fetch(1, timeout=1)
    queue.outcomes(10, timeout=0.01)  # the stream is there
    queue.finish([ended(delivery)])
    queue.acknowledge(queue.outcomes(10, timeout=1))


def remembered(client: Client) -> list[int]:
    """Say for how long it is remembered what was settled, in ms: in both hashes, each of one
    job.
    """
    names = [key for key in client.call("KEYS", "*settled*") if client.call("HLEN", key) == 1]
    return [client.call("PTTL", name) for name in sorted(names, key=len)]


def test_a_push_that_comes_too_late_is_refused_whole(make_queue: MakeQueue, house: House) -> None:
    queue, one, two = make_queue(), job(), job()
    assert queue.push([one], epoch="", began=time.monotonic()) == [Pushed.NEW]
    if house.clustered:
        return  # its servers have clocks of their own
    with pytest.raises(QueueUnavailable, match="too long"):
        queue.push([two], epoch="", began=time.monotonic() - fence.SOON - 0.5)
    assert [each is not None for each in queue.known([one.id, two.id])] == [True, False]
    assert queue.push([two], epoch="", began=time.monotonic() - fence.SOON + 2) == [Pushed.NEW]


def test_what_was_settled_lately_is_finished_also_for_who_says_it_late(
    make_queue: MakeQueue,
) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    settled(queue)
    assert queue.known([one.id]) == [None]
    assert queue.push([job(), one, job()], epoch="") == [Pushed.NEW, Pushed.FINISHED, Pushed.NEW]
    assert one.id not in [each.job.id for each in queue.fetch(10, timeout=0)]


def test_a_later_feed_of_a_job_whose_earlier_one_ended_is_taken_in(make_queue: MakeQueue) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    settled(queue)
    later = replace(one, feed=one.feed + 1)
    assert queue.push([later], epoch="") == [Pushed.NEW]
    settled(queue)
    assert queue.push([one, later], epoch="") == [Pushed.FINISHED, Pushed.FINISHED]


def test_it_is_forgotten_after_a_while(
    make_queue: MakeQueue, client: Client, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "REMEMBERED_MS", 2000)
    queue, first = make_queue(), job()
    queue.push([first], epoch="")
    settled(queue)
    for _ in range(2):
        rest(2.1)
        queue.push([job()], epoch="")
        settled(queue)
    if not house.clustered:
        now, before = remembered(client)
        assert 0 < now <= 12_000
        assert 0 < before <= 4000
    assert queue.push([first], epoch="") == [Pushed.NEW]
