"""Jobs that are returned because the worker has no handler for their type."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.interface import Cancelling, Delivery, Known, Pushed, Queue, Result
from scheduler.model.attempts import QueuedJob
from scheduler.model.states import State
from tests.dialects.conftest import MakeQueue
from tests.dialects.servers import House
from tests.dialects.values import back, ended, ids, job, retried
from tests.support.waiting import wait_for

DELAYS_S = (1, 2, 4, 8, 16, 32, 60, 60)
SCALE = {"reliable": 1, "bullmq": 4096, "conveyor": 0.001, "standard": 1}  # of scores, for 1 ms
COUNTING = ("reliable", "bullmq", "conveyor")  # standard counts leases without a charge


class Due:
    """The due times of the jobs of the queue `mail`, in Redis."""

    def __init__(self, house: House, client: Client, dialect: str) -> None:
        names = {
            "reliable": ("jobqueue:{mail}:retries", "jobqueue:{mail}:unhandled"),
            "bullmq": ("bull:mail:delayed", "bull:mail:ring:unhandled"),
            "conveyor": ("scheduled", "ring:mail:unhandled"),
            "standard": ("jobqueue:{mail}:retrying", "none"),
        }[dialect]
        if house.clustered and dialect == "bullmq":
            names = ("{bull}:mail:delayed", "{bull}:mail:ring:unhandled")
        if house.clustered and dialect == "conveyor":
            names = ("{conv}:scheduled", "{conv}:ring:mail:unhandled")
        self.key, self.returns = names
        self.dialect = dialect
        self.run = client.call

    def now(self) -> int:
        seconds, microseconds = map(int, self.run("TIME"))
        return seconds * 1000 + microseconds // 1000

    def times(self) -> list[int]:
        """The due times, in ms."""
        found = self.run("ZRANGE", self.key, 0, -1, "WITHSCORES")
        return [round(float(score) / SCALE[self.dialect]) for score in found[1::2]]

    def arrive(self) -> None:
        """Let all jobs be due."""
        for member in self.run("ZRANGE", self.key, 0, -1):
            self.run("ZADD", self.key, 1, member)
        if self.dialect == "reliable":  # the due time is also in the state of the job
            between = "jobqueue:{mail}:between"
            for id_ in self.run("HKEYS", between):
                state = self.run("HGET", between, id_)
                self.run("HSET", between, id_, state.rpartition(b":")[0] + b":1")

    def counted(self) -> int:
        """How many jobs have a number of returns."""
        return int(self.run("ZCARD", self.returns))

    def return_delay(self, queue: Queue, delivery: Delivery) -> float:
        """Return a job, and say how many seconds later it is due, to the second."""
        before = self.now()
        assert queue.finish([unhandled(delivery)], fetch=10) == ([True], [])
        [due] = self.times()
        after = self.now()
        seconds = (due - before) // 1000
        assert before + 1000 * seconds <= due <= after + 1000 * seconds
        return seconds


@pytest.fixture
def due(house: House, client: Client, dialect: str) -> Due:
    return Due(house, client, dialect)


def unhandled(delivery: Delivery) -> Result:
    return Result(delivery, None, unhandled=True)


def fetched(queue: Queue) -> Delivery:
    [delivery] = queue.fetch(10, timeout=0)
    return delivery


@pytest.mark.parametrize("installation", ["3f1e", ""])
def test_an_unhandled_job_is_delayed_longer_with_each_return(
    make_queue: MakeQueue, due: Due, installation: str
) -> None:
    workers, one = [make_queue("w1"), make_queue("w2")], job(installation=installation)
    workers[0].push([one], epoch="")
    for number, seconds in enumerate(DELAYS_S):
        queue = workers[number % 2]
        delivery = fetched(queue)
        assert (delivery.job.id, delivery.charged) == (one.id, 1)
        assert due.return_delay(queue, delivery) == seconds
        assert queue.fetch(10, timeout=0) == []
        due.arrive()


def test_a_returned_job_completes_without_a_charge(
    make_queue: MakeQueue, due: Due, dialect: str
) -> None:
    old, new, one = make_queue("w1"), make_queue("w2"), job()
    old.push([one], epoch="")
    for _ in range(3):
        old.finish([unhandled(fetched(old))])
        due.arrive()
    assert due.counted() == (dialect != "standard")
    delivery = fetched(new)
    assert (delivery.charged, delivery.attempt) == (1, 4 if dialect == "standard" else 1)
    assert new.finish([ended(delivery)]) == ([True], [])
    assert due.counted() == 0
    [[end]] = [read.ends for read in wait_for(lambda: new.outcomes(10, timeout=1), "its end")]
    assert (end.state, end.attempt) == (State.COMPLETED, delivery.attempt)


def test_a_repeated_return_changes_nothing(make_queue: MakeQueue, due: Due) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    first = fetched(queue)
    assert queue.finish([unhandled(first), unhandled(first)]) == ([True, False], [])
    before = due.times()
    assert queue.finish([unhandled(first)]) == ([False], [])
    assert due.times() == before
    due.arrive()
    second = fetched(queue)
    assert queue.finish([unhandled(first)]) == ([False], []), "the same worker leases it again"
    assert ids(queue.held()) == [one.id]
    assert due.return_delay(queue, second) == 2


def test_a_returned_job_is_scheduled_and_can_be_cancelled(make_queue: MakeQueue, due: Due) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    queue.finish([unhandled(fetched(queue))])
    [known] = queue.known([one.id])
    assert known in (Known(State.SCHEDULED), Known(State.RETRYING, 1))
    assert queue.cancel([one.id]) == [Cancelling.REMOVED]
    assert due.counted() == 0
    due.arrive()
    assert queue.fetch(10, timeout=0) == []
    assert queue.known([one.id]) == [None]


@pytest.mark.parametrize("dialect", COUNTING)
@pytest.mark.parametrize("result", [back, retried])
def test_a_worker_that_handles_the_type_ends_the_count(
    make_queue: MakeQueue, due: Due, result: Callable[[Delivery], Result]
) -> None:
    queue = make_queue()
    queue.push([job()], epoch="")
    for _ in range(3):
        queue.finish([unhandled(fetched(queue))])
        due.arrive()
    queue.finish([result(fetched(queue))])
    assert due.counted() == 0
    assert due.return_delay(queue, fetched(queue)) == 1


@pytest.mark.parametrize("installation", ["3f1e", ""])
def test_a_return_keeps_the_attempts_before(
    make_queue: MakeQueue, due: Due, installation: str
) -> None:
    queue = make_queue()
    queue.push([job(installation=installation)], epoch="")
    queue.finish([retried(fetched(queue))])
    second = fetched(queue)
    assert second.charged == 2
    queue.finish([unhandled(second)])
    due.arrive()
    assert fetched(queue).charged == 2


def test_a_later_feed_of_a_returned_job_runs_once(make_queue: MakeQueue, due: Due) -> None:
    queue, one = make_queue(), job()
    queue.push([one], epoch="")
    queue.finish([unhandled(fetched(queue))])
    again: QueuedJob = replace(one, feed=2)
    assert queue.push([again], epoch="") == [Pushed.KNOWN]
    assert queue.fetch(10, timeout=0) == []
    due.arrive()
    delivery = fetched(queue)
    assert (delivery.job.id, delivery.job.feed, delivery.attempt) == (one.id, 2, 1)
    assert queue.finish([ended(delivery)], fetch=10) == ([True], [])
    due.arrive()
    assert queue.fetch(10, timeout=0) == []


def test_a_returned_job_wakes_a_waiting_worker_when_it_is_due(make_queue: MakeQueue) -> None:
    queue, one = make_queue("w1"), job()
    queue.push([one], epoch="")
    queue.finish([unhandled(fetched(queue))])
    assert ids(make_queue("w2").fetch(1, timeout=60)) == [one.id]


@pytest.mark.parametrize("dialect", COUNTING)
def test_counts_of_jobs_that_are_gone_are_dropped(make_queue: MakeQueue, due: Due) -> None:
    queue, hour = make_queue(), timedelta(hours=1) // timedelta(milliseconds=1)
    queue.push([job()], epoch="")
    past = due.now() - hour
    due.run("ZADD", due.returns, 8 * (past - 1000) + 3, "gone", 8 * (past + 60_000) + 3, "there")
    queue.finish([unhandled(fetched(queue))])
    assert due.counted() == 2
    assert due.run("ZSCORE", due.returns, "gone") is None
    assert int(due.run("PTTL", due.returns)) > hour


@pytest.mark.parametrize("dialect", ["conveyor"])
def test_a_job_that_is_returned_keeps_its_bytes(make_queue: MakeQueue, due: Due) -> None:
    queue = make_queue()
    queue.push([job()], epoch="")
    delivery = fetched(queue)
    queue.finish([unhandled(delivery)])
    assert due.run("ZRANGE", due.key, 0, -1) == [delivery.raw]
