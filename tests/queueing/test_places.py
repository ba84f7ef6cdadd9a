"""How many handlers run at once, and what becomes of jobs that were taken and have not begun."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

import scheduler
from scheduler import handler
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Renewed
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.errors import QueueUnavailable
from scheduler.model.handling import Handler
from scheduler.model.states import State
from scheduler.queueing.attempt import Attempt, Tie
from scheduler.queueing.leases import Leases
from scheduler.queueing.pool import Pool
from tests.dialects.values import job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for


class Crowd:
    """Counts those who are inside, and the most that ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = self.came = 0

    def __enter__(self) -> None:
        with self._lock:
            self.came += 1
            self.inside += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


@pytest.mark.parametrize("kinds", [("sync",), ("async",), ("sync", "async")], ids="+".join)
def test_no_more_handlers_run_at_once_than_there_are_places(
    redis: Client, make_worker: MakeWorker, kinds: tuple[str, ...]
) -> None:
    crowd = Crowd()

    @handler("async", queue="mail")
    async def slowly(ctx: scheduler.JobContext, payload: object) -> None:
        with crowd:
            await asyncio.sleep(0.005)

    @handler("sync", queue="mail")
    def slow(ctx: scheduler.JobContext, payload: object) -> None:
        with crowd:
            rest(0.005)

    queue = ReliableQueue(redis, "mail", installation="3f1e")
    queue.push([job(type=kinds[number % len(kinds)]) for number in range(1000)], epoch="")
    make_worker(concurrency=5)
    wait_for(lambda: queue.depths().unsettled == 1000, "all have ended")
    assert (crowd.came, crowd.most) == (1000, 5)


def test_what_an_async_handler_keeps_in_its_context_is_gone_for_the_next(
    redis: Client, make_worker: MakeWorker
) -> None:
    mine: ContextVar[str] = ContextVar("mine", default="")
    found: list[str] = []

    @handler("mail", queue="mail")
    async def mail(ctx: scheduler.JobContext, payload: object) -> None:
        found.append(mine.get())
        mine.set(ctx.id)

    queue = ReliableQueue(redis, "mail", installation="3f1e")
    queue.push([job(type="mail") for _ in range(50)], epoch="")
    make_worker(concurrency=2)
    wait_for(lambda: queue.depths().unsettled == 50, "all have ended")
    assert found == [""] * 50


class Hands:
    """One place, and three jobs in the hands of a worker: the first runs until it is told to go on."""

    def __init__(self, redis: Client) -> None:
        self.runs: list[str] = []
        self.ends: list[Attempt] = []
        self.go = threading.Event()
        self.asked = 0
        self.queue = ReliableQueue(redis, "mail", worker="w")
        self.pool = Pool(1, lambda attempt, *_: self.ends.append(attempt))
        self.leases = Leases(self.queue, self.pool, self._ask)
        made = Handler.of(self._body, executor="thread", type="mail", queue="mail", timeout=None, concurrency=None)
        ReliableQueue(redis, "mail").push([job(type="mail") for _ in range(3)], epoch="")
        tie = self.leases.tie
        self.flight = [Attempt(each, made, "w", lambda _: None, tie=tie) for each in self.queue.fetch(3, timeout=0)]
        self.pool.free(-3)
        self.pool.take(self.flight)
        wait_for(lambda: len(self.runs) == 1, "the first runs")

    def _ask(self) -> None:
        self.asked += 1

    def _body(self, ctx: scheduler.JobContext, payload: object) -> None:
        self.runs.append(ctx.id)
        self.go.wait(20)

    def fail(self) -> None:
        """Redis fails us, and the first job comes to its end."""
        self.leases.doubt()
        self.go.set()
        wait_for(lambda: len(self.ends) == 1, "the first has ended")
        rest(0.05)
        assert (len(self.runs), self.asked, self.leases.doubtful) == (1, 1, True)

    def bring(self, tie: Tie) -> Attempt:
        """Another job comes, by a call that was made while `tie` held."""
        ReliableQueue(self.queue._client, "mail").push([job(type="mail")], epoch="")
        [delivery] = self.queue.fetch(1, timeout=0)
        brought = Attempt(delivery, self.flight[0].handler, "w", lambda _: None, tie=tie)
        self.flight.append(brought)
        self.leases.brought(tie)
        self.pool.free(-1)
        self.pool.take([brought])
        return brought

    def renew(self) -> list[Attempt]:
        return self.leases.renew(self.flight, timedelta(seconds=30), None)


@pytest.fixture
def hands(redis: Client) -> Iterator[Hands]:
    made = Hands(redis)
    yield made
    made.go.set()
    made.pool.stop()


def test_what_has_not_begun_when_redis_fails_begins_once_it_is_known_to_be_ours(hands: Hands) -> None:
    hands.fail()
    assert hands.renew() == []
    wait_for(lambda: len(hands.ends) == 3, "all have ended")
    assert hands.runs == [attempt.delivery.job.id for attempt in hands.flight], "in their order"
    assert not hands.leases.doubtful
    assert hands.pool.count() == 0


def test_what_redis_has_forgotten_does_not_begin(hands: Hands, redis: Client) -> None:
    redis.call("FLUSHALL")
    hands.leases.heard([True, False])
    hands.go.set()
    assert hands.renew() == hands.flight
    wait_for(lambda: len(hands.ends) == 3, "all are over")
    assert len(hands.runs) == 1
    assert [attempt.end(None, None, {}).end for attempt in hands.ends[1:]] == [None, None], "they are put back"


def test_an_answer_that_is_older_than_the_failure_proves_nothing(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    renew = hands.queue.renew

    def slowly(*args: Any, **options: Any) -> list[Renewed]:
        answers = renew(*args, **options)
        hands.fail()  # others hear of it while the answer is on its way to us
        return answers

    monkeypatch.setattr(hands.queue, "renew", slowly)
    hands.renew()
    rest(0.05)
    assert (len(hands.runs), hands.leases.doubtful) == (1, True)
    monkeypatch.undo()
    hands.renew()
    wait_for(lambda: len(hands.ends) == 3, "all have ended")


def test_a_lease_that_cannot_be_renewed_is_in_doubt(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> list[Renewed]:
        raise QueueUnavailable("away")

    monkeypatch.setattr(hands.queue, "renew", away)
    with pytest.raises(QueueUnavailable):
        hands.renew()
    assert (hands.leases.doubtful, hands.asked) == (True, 0), "whoever renews tries again by himself"


def test_what_waits_apart_is_given_back(hands: Hands) -> None:
    hands.fail()
    assert hands.pool.give_back(of=hands.flight[2:]) == hands.flight[2:]
    assert hands.pool.give_back() == [hands.flight[1]]
    assert hands.pool.count() == 0
    hands.renew()
    rest(0.05)
    assert len(hands.runs) == 1


def test_what_a_call_brings_that_was_made_before_the_failure_is_asked_for(hands: Hands) -> None:
    before = hands.leases.tie
    hands.fail()
    hands.renew()
    wait_for(lambda: len(hands.ends) == 3, "all have ended")
    assert not hands.leases.doubtful
    hands.bring(before)  # by one who waited in Redis all the time
    rest(0.05)
    assert (len(hands.runs), hands.leases.doubtful, hands.asked) == (3, True, 2)
    hands.renew()
    wait_for(lambda: len(hands.ends) == 4, "it has ended too")
    assert not hands.leases.doubtful


def test_a_job_for_which_a_worker_waited_while_redis_failed_others_of_its_threads_runs(
    redis: Client, make_worker: MakeWorker
) -> None:
    ran = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.set()

    [carrier] = make_worker(lease="60s")._carriers
    wait_for(lambda: carrier._watch.waits, "it waits in Redis, with a tie that is to break")
    rest(0.1)
    carrier.leases.doubt()
    wait_for(lambda: not carrier.leases.doubtful, "Redis was asked")
    ReliableQueue(redis, "mail").push([job(type="mail")], epoch="")
    assert ran.wait(3)


def test_what_is_brought_while_a_renewal_is_under_way_is_asked_for_by_the_next(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hands.leases.tie
    hands.fail()
    renew = hands.queue.renew

    def meanwhile(*args: Any, **options: Any) -> list[Renewed]:
        monkeypatch.undo()
        hands.bring(before)
        return renew(*args, **options)

    monkeypatch.setattr(hands.queue, "renew", meanwhile)
    hands.renew()
    wait_for(lambda: len(hands.ends) == 3, "the others have ended")
    assert hands.leases.doubtful
    hands.renew()
    wait_for(lambda: len(hands.ends) == 4, "it has ended too")


def test_what_waits_apart_takes_no_room_from_other_queues(hands: Hands) -> None:
    assert hands.pool.reserve(9) == 0
    hands.fail()
    assert hands.pool.reserve(9) >= 1


def test_two_who_hear_of_a_failure_leave_no_tie_that_nobody_breaks(hands: Hands) -> None:
    ties: list[Tie] = []

    def fail() -> None:
        for _ in range(2000):
            hands.leases.doubt()
            ties.append(hands.leases.tie)

    threads = [threading.Thread(target=fail) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hands.leases.doubt()
    assert not any(tie.holds for tie in ties)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_end_that_cannot_be_told_keeps_nobody_from_running(
    redis: Client, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    refused: list[str] = []

    @handler("async", queue="mail")
    async def slowly(ctx: scheduler.JobContext, payload: object) -> None:
        raise scheduler.PermanentError("no")

    @handler("sync", queue="mail")
    def slow(ctx: scheduler.JobContext, payload: object) -> None:
        raise scheduler.PermanentError("no")

    def broken(record: logging.LogRecord) -> bool:
        if not refused and "attempt" in record.getMessage():
            refused.append(record.getMessage())
            raise RuntimeError("of the app's own")
        return True

    worker = make_worker(concurrency=2)
    log = logging.getLogger("scheduler")
    log.addFilter(broken)
    try:
        queue = ReliableQueue(redis, "mail", installation="3f1e")
        queue.push([job(type=kind) for _ in range(4)], epoch="")
        wait_for(lambda: queue.depths().unsettled == 3, "the others have ended")
    finally:
        log.removeFilter(broken)
    assert worker._pool._running == 0
    assert "could not be told" in caplog.text


class Unreadable:
    def __str__(self) -> str:
        raise OSError("nobody may look")


def test_a_job_whose_end_cannot_be_read_has_failed(
    redis: Client, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        raise scheduler.PermanentError("no", code=Unreadable())  # type: ignore[arg-type]

    queue = ReliableQueue(redis, "mail", installation="3f1e")
    queue.push([job(type="mail")], epoch="")
    make_worker()
    [read] = wait_for(lambda: queue.outcomes(5, timeout=0.1), "its end")
    [end] = read.ends
    assert (end.state, end.error) == (State.FAILED, "OSError: when its end was read")
    assert "failed: OSError" in caplog.text


def test_a_queue_that_cannot_be_asked_keeps_no_other_from_it(
    redis: Client, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> list[Renewed]:
        raise QueueUnavailable("its part of the cluster is away")

    for name in ("a", "b", "c"):
        handler(name, queue=name)(lambda ctx, payload: None)
    worker = make_worker()
    monkeypatch.setattr(worker._carriers[1].queue, "renew", away)
    for carrier in worker._carriers:
        carrier.leases.doubt()
    wait_for(
        lambda: [carrier.leases.doubtful for carrier in worker._carriers] == [False, True, False],
        "the others are asked",
    )


def test_a_tie_that_breaks_while_jobs_are_listed_is_asked_for_again(hands: Hands) -> None:
    class Flight(list[Attempt]):
        def __iter__(self) -> Iterator[Attempt]:
            listed = super().__iter__()
            hands.leases.doubt()  # another thread hears of a failure, with a job that is not listed
            return listed

    hands.leases.renew(Flight(hands.flight), timedelta(seconds=30), None)
    assert hands.leases.doubtful
