"""A circuit breaker at work: real jobs out of a real Redis, and a dependency that fails and comes
back.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler import (
    BreakerRule,
    ConfigError,
    JobContext,
    NewJob,
    PermanentError,
    RetryPolicy,
    Scheduler,
    State,
    Worker,
    handler,
)
from scheduler.dialects.client import Client
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.events import Events
from scheduler.model.breaker import Breaker, BreakerState
from scheduler.worker.attempt import Attempt
from scheduler.worker.breaker import BreakerGuard
from tests.dialects.values import NOW, job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import WOKEN, rest, wait_for

RULE = BreakerRule(failure_threshold=0.5, window="1h", cooldown_period="400ms", min_samples=4)
FOR_LONG = BreakerRule(failure_threshold=0.5, window="1h", cooldown_period="1h", min_samples=4)
Push = Callable[..., list[str]]
RETRY_LATER = {
    "max_attempts": 50,
    "backoff": "constant",
    "initial_delay_us": 3_600_000_000,
    "jitter": False,
}
RETRY_SOON = {**RETRY_LATER, "initial_delay_us": 20_000}


@pytest.fixture
def queue(redis: Client, redis_server: EmbeddedRedis) -> Iterator[ReliableQueue]:
    client = Client(redis_server.url)
    yield ReliableQueue(client, "mail", installation="3f1e", worker="test")
    client.close()


@pytest.fixture
def push(queue: ReliableQueue) -> Push:
    def push(
        n: int = 1, payload: str = "{}", policy: dict[str, Any] = RETRY_LATER, **changes: Any
    ) -> list[str]:
        usual = {"type": "mail", "policy": policy, "expires_at": NOW + timedelta(days=36_500)}
        jobs = [job(payload=payload.encode(), **{**usual, **changes}) for _ in range(n)]
        queue.push(jobs, epoch="")
        return [each.id for each in jobs]

    return push


class Mail:
    """A handler that fails while what it depends on is down, and notes every call."""

    def __init__(self) -> None:
        self.down = False
        self.calls: list[tuple[str, int]] = []
        self.go = threading.Event()  # those who wait may go on
        handler("mail", queue="mail")(self.send)

    def send(self, ctx: JobContext, payload: Any) -> None:
        self.calls.append((ctx.id, ctx.attempt))
        what = payload.get("what") if payload else None
        if what == "wait":
            self.go.wait(60)
        if what == "bad":
            raise PermanentError("no such address", code="E1")
        if self.down or what == "fail":
            raise ConnectionError("the mail server is away")


@pytest.fixture
def mail(make_worker: MakeWorker) -> Iterator[Mail]:
    made = Mail()
    yield made
    made.go.set()


def breaker_of(worker: Worker) -> Breaker:
    return worker._consumers[0].guard.breaker


def turns(worker: Worker, state: BreakerState) -> None:
    wait_for(lambda: breaker_of(worker).state is state, f"it is {state.name}", every=0.005)


def outdated_fetches(worker: Worker) -> bool:
    """Return whether a fetch is in progress that was permitted before the last change."""
    consumer, changes = worker._consumers[0], breaker_of(worker).changes
    return any(
        each.slots and each.breaker_changes != changes for each in list(consumer._calls.values())
    )


def open_it(worker: Worker, push: Push) -> None:
    push(4, '{"what":"fail"}')
    wait_for(lambda: breaker_of(worker).trips, "it opens", timeout=60, every=0.005)
    wait_for(lambda: not outdated_fetches(worker), "no fetch from before is left", every=0.005)


def pops(redis: Client) -> int:
    """How often Redis was asked for entries."""
    return int(redis.call("INFO", "commandstats")["cmdstat_rpop"]["calls"])


def test_a_dependency_that_fails_opens_it_and_its_recovery_closes_it(
    ring: Scheduler,
    redis: Client,
    make_worker: MakeWorker,
    mail: Mail,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "scheduler")
    mail.down = True
    rule = BreakerRule(failure_threshold=0.5, window="1h", cooldown_period="1h", min_samples=10)
    retry = RetryPolicy(max_attempts=30, backoff="constant", initial_delay="20ms", jitter=False)
    submitted = ring.submit_many(
        [NewJob("acme", "mail", {}, queue="mail", retry=retry) for _ in range(300)]
    )
    worker = make_worker(breaker=rule, concurrency=4)
    queue = ReliableQueue(redis, "mail")
    turns(worker, BreakerState.OPEN)
    wait_for(
        lambda: queue.depths().running == 0, "what ran has ended, the rest was put back", every=0.01
    )

    asked, called, depths = pops(redis), len(mail.calls), queue.depths()
    submitted += ring.submit_many(
        [NewJob("acme", "mail", {}, queue="mail", retry=retry) for _ in range(20)]
    )
    wait_for(
        lambda: sum(queue.depths().waiting.values()) == sum(depths.waiting.values()) + 20,
        "they are fed",
    )
    rest(0.3)
    assert breaker_of(worker).state is BreakerState.OPEN
    assert pops(redis) == asked, "while it is open nothing is fetched"
    assert len(mail.calls) == called
    assert queue.depths().running == 0

    breaker_of(worker)._cooldown = 1.0
    worker._consumers[0].supervisor.wake()
    wait_for(lambda: breaker_of(worker).trips >= 2, "a probe fails", every=0.01)
    mail.down = False
    jobs = [ring.wait("acme", each.id, timeout=60) for each in submitted]
    assert {each.state for each in jobs} == {State.COMPLETED}
    assert breaker_of(worker).state is BreakerState.CLOSED
    ran = Counter(job_id for job_id, _ in mail.calls)
    assert {str(each.id): each.attempt for each in jobs} == ran, "as many attempts as really ran"
    assert sorted(mail.calls) == sorted(
        (job_id, n) for job_id, count in ran.items() for n in range(1, count + 1)
    )
    said = [
        record.getMessage() for record in caplog.records if "circuit breaker" in record.getMessage()
    ]
    assert said[0].startswith("queue mail: circuit breaker is OPEN; of the last ")
    assert "(100 %)" in said[0]
    assert any("is HALF_OPEN" in each for each in said)
    assert "is CLOSED" in said[-1]


def test_half_open_takes_exactly_one_job_and_nobody_spins(
    queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    worker = make_worker(breaker=RULE)
    open_it(worker, push)
    push(30, '{"what":"wait"}')
    turns(worker, BreakerState.HALF_OPEN)
    wait_for(lambda: len(mail.calls) == 5, "the probe runs")
    spent = time.process_time()
    push(30)
    rest(0.5)
    assert time.process_time() - spent < 0.25
    assert len(mail.calls) == 5
    assert queue.depths().running == 1
    mail.go.set()
    wait_for(lambda: queue.depths().unsettled == 60, "all end")
    assert {attempt for _, attempt in mail.calls} == {1}
    assert breaker_of(worker).state is BreakerState.CLOSED


def test_an_open_breaker_leaves_waiting_jobs_in_the_queue(
    queue: ReliableQueue, make_worker: MakeWorker, push: Push
) -> None:
    """Jobs of a handler at its concurrency are not leased, so nothing has to be put back."""
    calls: list[tuple[str, int]] = []
    up = threading.Event()

    @handler("mail", queue="mail", concurrency=1)
    def one_by_one(ctx: JobContext, payload: Any) -> None:
        calls.append((ctx.id, ctx.attempt))
        if not up.is_set():
            raise ConnectionError

    ids = push(40, policy=RETRY_LATER)
    worker = make_worker(breaker=FOR_LONG, concurrency=30)
    turns(worker, BreakerState.OPEN)
    wait_for(lambda: queue.depths().running == 0, "what ran has ended")
    wait_for(lambda: worker._executor.free == 30, "all slots are free")
    begun = len(calls)
    assert begun in {4, 5}, "the fourth failure opens it; a fetch may have been on its way"
    assert {attempt for _, attempt in calls} == {1}
    assert sum(queue.depths().waiting.values()) == 40 - begun
    up.set()
    make_worker()
    wait_for(lambda: queue.depths().unsettled == 40 - begun, "another worker runs them")
    assert sorted(job_id for job_id, _ in calls) == sorted(ids)


@contextlib.contextmanager
def refusing(redis: Client) -> Iterator[None]:
    """Let Redis refuse whatever changes something."""
    redis.call("CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        yield
    finally:
        redis.call("CONFIG", "SET", "min-replicas-to-write", "0")


def test_ends_that_are_sent_again_count_once(
    redis: Client, queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    worker = make_worker(breaker=RULE)
    push(3, '{"what":"wait"}', policy={**RETRY_LATER, "max_attempts": 1})
    wait_for(lambda: len(mail.calls) == 3, "they run")
    mail.down = True
    with refusing(redis):
        mail.go.set()
        wait_for(lambda: worker._consumers[0].supervisor.failures, "their results are refused")
    wait_for(lambda: queue.depths().unsettled == 3, "they are taken")
    assert (breaker_of(worker).total, breaker_of(worker).failed) == (3, 3)
    assert breaker_of(worker).state is BreakerState.CLOSED


def test_a_probe_that_redis_refused_is_tried_again(
    redis: Client, queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    worker = make_worker(breaker=RULE)
    open_it(worker, push)
    push(5)
    with refusing(redis):
        turns(worker, BreakerState.HALF_OPEN)
        wait_for(lambda: worker._consumers[0].supervisor.failures, "the fetch is refused")
    wait_for(lambda: queue.depths().unsettled == 5, "all end")
    assert (breaker_of(worker).state, breaker_of(worker).trips) == (BreakerState.CLOSED, 1)


def test_another_queue_goes_on(
    queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    ran: list[int] = []
    opened = threading.Event()

    @handler("copy", queue="copies", concurrency=1)
    def copy(ctx: JobContext, payload: Any) -> None:
        ran.append(ctx.attempt)
        opened.wait(60)

    copies = ReliableQueue(queue._client, "copies", installation="3f1e")
    copies.push([job(type="copy", queue="copies") for _ in range(40)], epoch="")
    worker = make_worker(breaker=FOR_LONG, queues=["mail", "copies"], concurrency=50)
    wait_for(lambda: ran, "they run")
    open_it(worker, push)
    assert len(ran) < 40
    opened.set()
    wait_for(lambda: copies.depths().unsettled == 40, "all of the other queue end")
    assert ran == [1] * 40


def test_bad_input_a_missing_handler_and_a_cancel_are_no_results(
    queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    worker = make_worker(breaker=FOR_LONG)
    push(20, '{"what":"bad"}')
    push(20, type="unheard-of", policy={**RETRY_LATER, "max_attempts": 1})
    [asked] = push(1, '{"what":"wait"}')
    wait_for(lambda: (asked, 1) in mail.calls, "it runs")
    queue.cancel([asked])
    wait_for(
        lambda: next(iter(worker._consumers[0].in_flight)).cancelled.reason,
        "it hears that it is to end",
    )
    mail.down = True
    mail.go.set()
    wait_for(lambda: queue.depths().unsettled == 21, "all end that have a handler")
    wait_for(lambda: queue.depths().retrying == 20, "the others are returned")
    assert (breaker_of(worker).total, breaker_of(worker).state) == (0, BreakerState.CLOSED)


def test_a_probe_without_a_result_is_followed_by_another(
    redis: Client, queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    worker = make_worker(breaker=RULE)
    open_it(worker, push)
    push(3, '{"what":"bad"}')
    push(3, type="unheard-of", policy={**RETRY_LATER, "max_attempts": 1})
    wait_for(lambda: queue.depths().unsettled == 3, "one after another is tried")
    returned = "jobqueue:{mail}:unhandled"
    wait_for(lambda: redis.call("ZCARD", returned) == 3, "jobs without a handler are returned")
    assert (breaker_of(worker).state, breaker_of(worker).trips) == (BreakerState.HALF_OPEN, 1)
    push(10)
    wait_for(lambda: queue.depths().unsettled == 13, "all end")
    assert breaker_of(worker).state is BreakerState.CLOSED


def test_a_probe_past_its_timeout_has_failed_though_it_does_not_end(
    make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    worker = make_worker(breaker=RULE)
    open_it(worker, push)
    push(1, '{"what":"wait"}', {**RETRY_LATER, "execution_us": 200_000})
    wait_for(lambda: breaker_of(worker).trips == 2, "it opens again", timeout=60)
    push(5)
    wait_for(lambda: len(mail.calls) == 10, "the next probe, and the rest")
    assert breaker_of(worker).state is BreakerState.CLOSED


def test_a_probe_whose_lease_is_lost_is_followed_by_another(
    redis: Client, queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    worker = make_worker(breaker=RULE, lease="1s")
    open_it(worker, push)
    [probe] = push(1, '{"what":"wait"}')
    wait_for(lambda: (probe, 1) in mail.calls, "the probe runs")
    push(5)
    redis.call("HDEL", "jobqueue:{mail}:attempts", probe)
    wait_for(lambda: queue.depths().unsettled == 5, "another is tried, and the rest follow")
    assert (breaker_of(worker).state, breaker_of(worker).trips) == (BreakerState.CLOSED, 1)


def test_what_was_taken_before_a_change_does_not_count_after_it(
    queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    worker = make_worker(breaker=RULE, concurrency=20)
    push(8, '{"what":"wait"}')
    wait_for(lambda: len(mail.calls) == 8, "they run")
    open_it(worker, push)

    pushed: list[str] = []

    def closed() -> bool:
        # A fetch that was on its way when the breaker opened can take a job, which is no probe.
        pushed.extend(push(1))
        return breaker_of(worker).state is BreakerState.CLOSED

    wait_for(closed, "a probe closes it")
    wait_for(lambda: queue.depths().unsettled == len(pushed), "all of these end")
    mail.down = True
    mail.go.set()
    wait_for(lambda: queue.depths().retrying == 12, "those of before have failed")
    assert (breaker_of(worker).state, breaker_of(worker).failed) == (BreakerState.CLOSED, 0)


def test_an_open_breaker_ends_the_wait_for_jobs_in_redis(
    redis: Client, queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    def waiting() -> int:
        return str(redis.call("CLIENT", "LIST")).count("cmd=blpop")

    first = make_worker(
        breaker=BreakerRule(min_samples=1, cooldown_period="1h"), concurrency=4, block="5m"
    )
    push(1, '{"what":"wait"}', {**RETRY_LATER, "max_attempts": 1})
    wait_for(lambda: mail.calls and waiting() == 1, "it runs one job and waits for others")
    make_worker(concurrency=4, block="5m")
    wait_for(lambda: waiting() == 2, "behind it, another waits")
    mail.down = True
    mail.go.set()
    turns(first, BreakerState.OPEN)
    wait_for(lambda: waiting() == 1, "the first worker waits no longer")
    mail.down = False
    push(1)
    wait_for(lambda: len(mail.calls) == 2, "the other worker runs it", timeout=WOKEN)


def test_a_wait_that_begins_just_after_the_breaker_opened_ends(
    redis: Client,
    make_worker: MakeWorker,
    mail: Mail,
    push: Push,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait was permitted before the breaker opened, and blocks in Redis only afterwards."""
    fetch_next, unblock = ReliableQueue.fetch_next, ReliableQueue.unblock
    permitted, unblocked, calls = threading.Event(), threading.Event(), []

    def delayed(self: ReliableQueue, *args: Any, **options: Any) -> Any:
        if len(worker._consumers[0].in_flight) == 4:
            permitted.set()
            unblocked.wait(60)
            redis.call("DEL", "jobqueue:{mail}:marker")  # it would end the wait immediately
        return fetch_next(self, *args, **options)

    def noted(self: ReliableQueue) -> None:
        unblock(self)
        calls.append(self)
        unblocked.set()

    monkeypatch.setattr(ReliableQueue, "fetch_next", delayed)
    monkeypatch.setattr(ReliableQueue, "unblock", noted)
    worker = make_worker(breaker=FOR_LONG, concurrency=8, block="5m")
    mail.down = True
    push(4, '{"what":"wait"}')
    wait_for(lambda: permitted.is_set() and len(mail.calls) == 4, "they run")
    mail.go.set()
    wait_for(lambda: len(calls) > 1, "it is unblocked once more", timeout=20)
    wait_for(lambda: not outdated_fetches(worker), "the wait ends")


def test_a_job_of_an_older_permission_is_the_probe_of_a_half_open_breaker() -> None:
    guard = BreakerGuard("mail", BreakerRule(min_samples=1, cooldown_period="1ms"), Events())
    permitted, changes = guard.permits(4)
    assert permitted == 4
    guard.breaker.record(0, 1, time.monotonic())
    wait_for(lambda: guard.retry_in() == 0, "it is half-open", every=0.001)
    attempt = cast("Attempt", SimpleNamespace(received=time.monotonic()))
    guard.on_fetched([attempt], changes)
    assert guard.retry_in() > 0, "no second probe"
    assert guard.on_timeout(attempt)
    assert guard.breaker.trips == 2


def test_what_is_found_in_its_own_list_is_put_back_while_it_is_open(
    queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    worker = make_worker(breaker=FOR_LONG)
    open_it(worker, push)
    consumer = worker._consumers[0]
    wait_for(lambda: worker._executor.free == worker.concurrency, "no call is in progress")
    push(3)
    # As if by a fetch whose answer was lost.
    assert len(consumer.queue.fetch(3, timeout=0, first=consumer._next_sequence)) == 3
    consumer._next_sequence += 3
    consumer._suspended = True
    consumer.supervisor.wake()
    wait_for(lambda: sum(queue.depths().waiting.values()) == 3, "they are back")
    assert len(mail.calls) == 4
    wait_for(lambda: worker._executor.free == worker.concurrency, "all slots are free")


def test_without_a_rule_there_is_no_breaker(
    queue: ReliableQueue, make_worker: MakeWorker, mail: Mail, push: Push
) -> None:
    worker = make_worker()
    push(100, '{"what":"fail"}')
    wait_for(lambda: queue.depths().retrying == 100, "all have failed")
    assert breaker_of(worker).state is BreakerState.CLOSED
    with pytest.raises(ConfigError, match="breaker: min_samples must be a number from 1, not 0"):
        make_worker(breaker=BreakerRule(min_samples=0))


@pytest.mark.parametrize("given", [{"breaker": {"min_samples": 5}}, {"reaper": "5s"}])
def test_a_rule_that_is_none_is_refused_by_name(
    mail: Mail, make_worker: MakeWorker, given: dict[str, Any]
) -> None:
    with pytest.raises(
        ConfigError, match=r"^(breaker|reaper): must be a scheduler\.\w+Rule, not (dict|str)"
    ):
        make_worker(**given)
