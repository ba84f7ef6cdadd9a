"""Queues as a person sees them, with a real ledger, a real Redis and real workers, in every
dialect.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from scheduler import (
    ConfigError,
    InvalidOption,
    JobContext,
    NewJob,
    PermanentError,
    Priority,
    Requeued,
    RetryPolicy,
    Scheduler,
    State,
    UnknownQueue,
    handler,
)
from scheduler.dialects.client import Client
from scheduler.queueing.pausing import Pausing
from scheduler.queueing.ring import Ring
from tests.conftest import MakeScheduler
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for

ONCE = RetryPolicy(max_attempts=1)
QUEUES = {dialect: {"mail": {"dialect": dialect}} for dialect in ("standard", "bullmq", "conveyor")}


@pytest.fixture(params=QUEUES)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def broken() -> threading.Event:
    """Set: the handler `send` of queue mail fails."""
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def send(broken: threading.Event, make_worker: MakeWorker) -> Callable[[], None]:
    """Start a worker of queue mail."""

    def start() -> None:
        @handler("send", queue="mail")
        def run(ctx: JobContext, payload: object) -> object:
            if broken.is_set():
                raise PermanentError("no such address")
            return payload

        make_worker()

    return start


def test_a_paused_queue_is_neither_fed_nor_worked_and_goes_on_when_it_is_resumed(
    ring: Scheduler, send: Callable[[], None], broken: threading.Event
) -> None:
    broken.clear()
    send()
    first = ring.submit("acme", "send", 1, queue="mail")
    assert ring.wait("acme", first.id, timeout=60).state is State.COMPLETED
    since = ring.pause_queue("mail")
    assert ring.pause_queue("mail") == since, "it is paused already"
    jobs = ring.submit_many([_new(n) for n in range(20)])
    rest(0.7)
    told = ring.queue("mail").stats()
    assert (told.paused, told.paused_at, told.ready, sum(told.waiting.values())) == (
        True,
        since,
        20,
        0,
    )
    assert ring.resume_queue("mail") is True
    for each in jobs:
        assert ring.wait("acme", each.id, timeout=60).state is State.COMPLETED
    assert ring.resume_queue("mail") is False


def test_what_was_fed_before_the_pause_waits_in_redis(
    ring: Scheduler, send: Callable[[], None], broken: threading.Event
) -> None:
    broken.clear()
    jobs = ring.submit_many([_new(n) for n in range(5)])
    wait_for(lambda: sum(ring.queue("mail").stats().waiting.values()) == 5, "they are fed")
    ring.pause_queue("mail")
    send()
    rest(0.7)
    assert sum(ring.queue("mail").stats().waiting.values()) == 5
    ring.resume_queue("mail")
    for each in jobs:
        assert ring.wait("acme", each.id, timeout=60).state is State.COMPLETED


def test_a_redis_that_lost_its_memory_is_told_of_the_pause_again(
    ring: Scheduler, redis: Client, send: Callable[[], None], broken: threading.Event
) -> None:
    broken.clear()
    ring.submit_many([_new(n) for n in range(3)])
    wait_for(lambda: sum(ring.queue("mail").stats().waiting.values()) == 3, "they are fed")
    ring.pause_queue("mail")
    redis.call("FLUSHALL")
    wait_for(lambda: ring.queue("mail").redis.paused().ours, "the flag is back")
    wait_for(lambda: ring.queue("mail").stats().ready == 3, "they are to be fed again")
    send()
    rest(0.5)
    assert ring.queue("mail").stats().ready == 3
    ring.resume_queue("mail")
    wait_for(lambda: len(ring.find("acme", state=State.COMPLETED).jobs) == 3, "they run")


def test_a_flag_that_was_left_behind_is_taken_away(
    ring: Scheduler, send: Callable[[], None], broken: threading.Event
) -> None:
    broken.clear()
    send()
    first = ring.submit("acme", "send", 1, queue="mail")
    ring.wait("acme", first.id, timeout=60)
    ring.queue("mail").redis.pause()  # as if Redis had been away when it was resumed
    second = ring.submit("acme", "send", 2, queue="mail")
    assert ring.wait("acme", second.id, timeout=60).state is State.COMPLETED


def test_a_redis_that_is_away_hears_of_the_pause_later(
    ring: Scheduler, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    ring.submit("acme", "send", 1, queue="mail")
    wait_for(lambda: ring.queue("mail").peek(), "it is fed")
    services = ring._running().ring
    assert services is not None
    nobody = Client("redis://127.0.0.1:1")
    away = Pausing(services._ledger, Ring(nobody, QUEUES[dialect], "", lambda: datetime.now(UTC)))
    away.pause("mail")
    assert "hear of it later" in caplog.text
    assert ring.queue("mail").stats().paused_at is not None
    wait_for(lambda: ring.queue("mail").redis.paused().ours, "upkeep has told it")
    away.resume("mail")
    wait_for(lambda: not ring.queue("mail").redis.paused().at_all, "and that it goes on")


def test_a_feeder_is_idle_beside_a_paused_queue_and_feeds_the_others(ring: Scheduler) -> None:
    ring.submit("acme", "send", 1, queue="mail")
    wait_for(lambda: ring.queue("mail").peek(), "it is fed")
    ring.pause_queue("mail")
    services = ring._running().ring
    assert services is not None
    ring.submit_many([_new(n) for n in range(3)])
    assert services.feeder.step() > 0.5, "due, and not to be fed: nothing to hurry for"
    made = ring.submit("acme", "send", 1, queue="other")
    wait_for(
        lambda: [each.id for each in ring.queue("other").peek()] == [str(made.id)],
        "the other is fed",
    )
    assert ring.queue("mail").stats().ready == 3


def test_a_letter_that_many_requeue_at_once_is_one_job(
    ring: Scheduler, send: Callable[[], None]
) -> None:
    send()
    [made] = ring.submit_many([_new(1)])
    assert ring.wait("acme", made.id, timeout=60).state.terminal
    answers: list[Requeued] = []
    together = threading.Barrier(5)

    def ask() -> None:
        queue = ring.queue("mail")
        together.wait()
        answers.append(queue.requeue([str(made.id)]))

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [again] = [job for each in answers for job in each.jobs.values()]
    assert ring.wait("acme", again, timeout=60).retried_from == made.id
    assert {str(job.id) for job in ring.find("acme").jobs} == {str(made.id), again}


def test_dead_letters_of_the_ledger_are_requeued_once(
    ring: Scheduler, send: Callable[[], None], broken: threading.Event
) -> None:
    send()
    jobs = ring.submit_many([_new(n) for n in range(4)])
    for each in jobs:
        assert ring.wait("acme", each.id, timeout=60).state in (State.FAILED, State.DEAD_LETTER)
    queue = ring.queue("mail")
    letters = queue.dead()
    assert {each.id for each in letters} == {str(each.id) for each in jobs}
    assert {(each.tenant, each.type, each.attempts) for each in letters} == {("acme", "send", 1)}
    assert all("no such address" in str(each.reason) for each in letters)
    assert [each.id for each in queue.dead(2, skip=1)] == [each.id for each in letters[1:3]]
    assert queue.stats().dead == 4
    ring.retry_job("acme", letters[3].id)
    broken.clear()
    made = queue.requeue([letters[0].id, "no such", letters[3].id])
    assert list(made.jobs) == [letters[0].id]
    assert set(made.refused) == {"no such", letters[3].id}, "it was retried already"
    job = ring.wait("acme", made.jobs[letters[0].id], timeout=60)
    assert (job.state, str(job.retried_from)) == (State.COMPLETED, letters[0].id)
    assert set(queue.requeue().jobs) == {each.id for each in letters[1:3]}
    assert queue.requeue().jobs == {}
    assert queue.stats().dead == 0
    wait_for(
        lambda: queue.redis.depths().dead <= 1,
        "what they left in Redis is gone, but for the one of `retry_job`",
    )


def test_dead_letters_are_purged_and_the_ledger_keeps_its_rows(
    ring: Scheduler, send: Callable[[], None]
) -> None:
    send()
    [made] = ring.submit_many([_new(1)])
    assert ring.wait("acme", made.id, timeout=60).state.terminal
    assert ring.queue("mail").purge() == 1
    assert ring.queue("mail").dead() == []
    assert ring.queue("mail").purge() == 0
    assert ring.get("acme", made.id).state.terminal


def test_a_job_that_waited_for_one_that_failed_is_no_dead_letter(
    ring: Scheduler, send: Callable[[], None]
) -> None:
    send()
    first, second = ring.chain("acme", [_new(1), _new(2)])
    assert ring.wait("acme", second.id, timeout=60).state is State.FAILED
    assert [each.id for each in ring.queue("mail").dead()] == [str(first.id)]


def test_the_numbers_of_every_queue(
    ring: Scheduler, send: Callable[[], None], dialect: str
) -> None:
    ring.submit("acme", "later", None, queue="other", delay=timedelta(hours=1))
    [parent, _] = ring.chain("acme", [_new(1, queue="other"), _new(2, queue="other")])
    wait_for(lambda: sum(ring.queue("other").stats().waiting.values()) == 1, "it is fed")
    told = {each.name: each for each in ring.queues()}
    assert set(told) == {"mail", "nobody", "other"}
    other = told["other"]
    assert (other.dialect, other.waiting[Priority.NORMAL], other.ready, other.pending) == (
        dialect,
        1,
        1,
        1,
    )
    assert (other.oldest, other.error, other.dead, other.paused) == (None, None, 0, False)
    assert [each.id for each in ring.queue("other").peek()] == [str(parent.id)]
    send()
    made = ring.submit("acme", "send", 1, queue="mail")
    assert ring.wait("acme", made.id, timeout=60).state.terminal
    wait_for(lambda: ring.queue("mail").stats().workers == 1, "its worker is seen")
    totals = ring.totals("1m")
    assert totals.ended == {"mail": {State.FAILED: 1}}
    assert totals.now - totals.since == timedelta(minutes=1)
    assert abs(totals.now - datetime.now(UTC)) < timedelta(minutes=1)


def test_what_is_wrong_is_said(ring: Scheduler, make_scheduler: MakeScheduler) -> None:
    with pytest.raises(UnknownQueue, match="no queue 'x'; there are mail, nobody, other"):
        ring.queue("x")
    with pytest.raises(UnknownQueue):
        ring.pause_queue("x")
    with pytest.raises(InvalidOption, match="n must be a number from 1"):
        ring.queue("mail").peek(0)
    with pytest.raises(ConfigError, match="redis"):
        make_scheduler().queues()


def _new(n: int, queue: str = "mail") -> NewJob:
    return NewJob("acme", "send", n, queue=queue, retry=ONCE)
