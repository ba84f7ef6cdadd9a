"""A worker leases a job only when it can begin it: order, pause, cancel and other workers count.

Each test holds handlers back, so that nothing depends on how fast the machine is.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import BreakerRule, JobContext, NewJob, Priority, Scheduler, State, handler
from scheduler.model.breaker import BreakerState
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for

QUICK = "quick"
MANY = [QUICK] * 200  # a worker that has just run many jobs must not lease more than its slots


@pytest.fixture(params=["standard", "reliable", "bullmq", "conveyor"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Gate:
    """Handlers that note that they began and wait until they are let through."""

    def __init__(self) -> None:
        self.began: list[Any] = []
        self._permits = threading.Semaphore(0)
        self.opened = threading.Event()

    def handle(self, ctx: object, payload: Any) -> None:
        if payload == QUICK:
            return
        self.began.append(payload)
        while not self.opened.is_set() and not self._permits.acquire(timeout=0.02):
            pass

    def let_one_through(self) -> None:
        self._permits.release()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    handler("gated", queue="mail")(made.handle)
    yield made
    made.opened.set()


def waiting(ring: Scheduler) -> int:
    return sum(ring.queue("mail").stats().waiting.values())


def running(ring: Scheduler, *queues: str) -> int:
    """Count the leased jobs, as Redis does."""
    return sum(ring.queue(name).stats().running or 0 for name in queues or ("mail",))


def submit(ring: Scheduler, *payloads: Any, **options: Any) -> list[Any]:
    """Submit jobs, and wait until they are in Redis."""
    before = waiting(ring)
    made = ring.submit_many(
        [NewJob("acme", "gated", each, queue="mail", **options) for each in payloads]
    )
    wait_for(lambda: waiting(ring) > before, "they are in Redis")
    return [each.id for each in made]


def test_a_critical_job_does_not_interrupt_a_running_one(
    ring: Scheduler, make_worker: MakeWorker, gate: Gate
) -> None:
    (bulk,) = submit(ring, "bulk", priority=Priority.BULK)
    make_worker(concurrency=1)
    wait_for(lambda: gate.began == ["bulk"], "it runs")
    (critical,) = submit(ring, "critical", priority=Priority.CRITICAL)
    assert ring.get("acme", bulk).state is State.RUNNING
    gate.let_one_through()
    wait_for(lambda: gate.began == ["bulk", "critical"], "the critical one runs")
    gate.let_one_through()
    for each in (bulk, critical):
        job = ring.wait("acme", each, timeout=60)
        assert (job.state, job.attempt) == (State.COMPLETED, 1)


def test_a_critical_job_begins_before_waiting_bulk_jobs(
    ring: Scheduler, make_worker: MakeWorker, gate: Gate
) -> None:
    submit(ring, *MANY, *range(20), priority=Priority.BULK)
    make_worker(concurrency=2)
    wait_for(lambda: len(gate.began) == 2, "two run")
    wait_for(lambda: waiting(ring) == 18, "the others wait in Redis")
    submit(ring, "critical", priority=Priority.CRITICAL)
    wait_for(lambda: waiting(ring) == 19, "so does the critical one")
    gate.let_one_through()
    wait_for(lambda: len(gate.began) == 3, "the next begins")
    assert gate.began[2] == "critical"


def test_nothing_begins_after_a_pause(ring: Scheduler, make_worker: MakeWorker, gate: Gate) -> None:
    submit(ring, *MANY, *range(20))
    make_worker(concurrency=2)
    wait_for(lambda: len(gate.began) == 2, "two run")
    wait_for(lambda: waiting(ring) == 18, "the others wait in Redis")
    ring.pause_queue("mail")
    gate.opened.set()
    wait_for(lambda: ring.queue("mail").stats().running == 0, "what had begun has ended")
    rest(0.2)
    assert len(gate.began) == 2
    ring.resume_queue("mail")
    wait_for(lambda: len(gate.began) == 20, "the others begin")


def test_nothing_begins_after_a_stop(ring: Scheduler, make_worker: MakeWorker, gate: Gate) -> None:
    jobs = submit(ring, *range(20))
    worker = make_worker(concurrency=2)
    wait_for(lambda: len(gate.began) == 2, "two run")
    stopping = threading.Thread(target=worker.stop, kwargs={"grace": 60.0})
    stopping.start()
    wait_for(lambda: all(each._draining for each in worker._consumers), "it is stopping")
    gate.opened.set()
    stopping.join(120)
    assert not stopping.is_alive()
    assert len(gate.began) == 2
    assert (waiting(ring), running(ring)) == (18, 0)
    make_worker(concurrency=2)
    ended = [ring.wait("acme", each, timeout=60) for each in jobs]
    assert {(each.state, each.attempt) for each in ended} == {(State.COMPLETED, 1)}
    assert sorted(gate.began) == list(range(20))


def test_nothing_begins_after_the_breaker_opened(
    ring: Scheduler, make_worker: MakeWorker, gate: Gate
) -> None:
    @handler("failing", queue="mail")
    def failing(ctx: JobContext, payload: Any) -> None:
        gate.handle(ctx, payload)
        raise ConnectionError

    ring.submit_many([NewJob("acme", "failing", each, queue="mail") for each in range(20)])
    make_worker(concurrency=2, breaker=BreakerRule(min_samples=1, cooldown_period="1h"))
    wait_for(lambda: len(gate.began) == 2 and waiting(ring) == 18, "two run")
    gate.let_one_through()  # the first failure opens it
    wait_for(
        lambda: ring.queue("mail").stats().breakers == {BreakerState.OPEN: 1}, "the breaker is open"
    )
    gate.opened.set()
    wait_for(lambda: running(ring) == 0, "what had begun has ended")
    rest(0.2)
    assert len(gate.began) == 2
    assert waiting(ring) >= 18, "and what failed, once it is due again"


def test_every_fetch_takes_the_most_urgent_job(
    ring: Scheduler, make_worker: MakeWorker, gate: Gate
) -> None:
    submit(ring, "first", priority=Priority.BULK)
    make_worker(concurrency=1)
    wait_for(lambda: gate.began == ["first"], "the first runs")
    for number in range(3):
        for priority in (Priority.BULK, Priority.LOW, Priority.CRITICAL):
            submit(ring, f"{priority.name} {number}", priority=priority)
        expected = [*gate.began, f"CRITICAL {number}"]
        gate.let_one_through()
        wait_for(lambda: len(gate.began) == len(expected), "the next begins")  # noqa: B023
        submit(ring, f"NORMAL {number}", priority=Priority.NORMAL)
        expected.append(f"NORMAL {number}")
        gate.let_one_through()
        wait_for(lambda: len(gate.began) == len(expected), "the next begins")  # noqa: B023
        assert gate.began == expected
    gate.opened.set()
    wait_for(lambda: len(gate.began) == 13, "all run in the end")
    assert gate.began[-6:] == [f"{level} {n}" for level in ("LOW", "BULK") for n in range(3)]


def test_a_job_that_is_cancelled_before_it_begins_does_not_run(
    ring: Scheduler, make_worker: MakeWorker, gate: Gate
) -> None:
    *_, second = submit(ring, *MANY, "first", "second")
    make_worker(concurrency=1)
    wait_for(lambda: gate.began == ["first"], "the first runs")
    wait_for(lambda: waiting(ring) == 1, "the second waits in Redis")
    assert ring.get("acme", second).state is State.SCHEDULED
    assert ring.get("acme", second).attempt == 0
    ring.cancel_job("acme", second)
    assert ring.wait("acme", second, timeout=60).state is State.CANCELLED
    gate.opened.set()
    wait_for(lambda: ring.queue("mail").stats().running == 0, "the first has ended")
    rest(0.2)
    assert gate.began == ["first"]


def test_jobs_behind_a_slow_one_go_to_an_idle_worker(
    ring: Scheduler, make_worker: MakeWorker, gate: Gate
) -> None:
    submit(ring, *MANY, "slow")
    quick = submit(ring, *[QUICK] * 30)
    make_worker(concurrency=1)
    wait_for(lambda: gate.began == ["slow"], "the slow job runs")
    make_worker(concurrency=1)
    for each in quick:
        assert ring.wait("acme", each, timeout=60).state is State.COMPLETED
    assert gate.began == ["slow"]
    assert ring.queue("mail").stats().running == 1


def test_a_handler_at_its_concurrency_leaves_slots_to_other_types(
    ring: Scheduler, make_worker: MakeWorker, gate: Gate
) -> None:
    began: list[Any] = []
    done = threading.Event()

    @handler("limited", queue="mail", concurrency=1)
    def limited(ctx: object, payload: Any) -> None:
        began.append(payload)
        done.wait(60)

    make_worker(concurrency=3)
    ring.submit_many([NewJob("acme", "limited", each, queue="mail") for each in range(10)])
    try:
        wait_for(lambda: began and waiting(ring) == 9, "one runs, the others wait in Redis")
        assert ring.queue("mail").stats().running == 1
        ring.submit("acme", "gated", "other", queue="mail", priority=Priority.BULK)
        wait_for(lambda: gate.began == ["other"], "a job of another type begins behind them")
    finally:
        done.set()
    wait_for(lambda: sorted(began) == list(range(10)), "all run in the end")


def test_a_worker_leases_no_more_jobs_than_it_has_slots(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    running: list[int] = []
    ran: list[object] = []

    @handler("quick", queue="mail")
    def quick(ctx: object, payload: object) -> None:
        ran.append(payload)
        if len(ran) % 20 == 0:
            running.append(ring.queue("mail").stats().running or 0)

    make_worker(concurrency=4)
    ring.submit_many([NewJob("acme", "quick", each, queue="mail") for each in range(400)])
    wait_for(lambda: len(ran) == 400, "all run")
    assert max(running) <= 4


def test_the_queues_of_a_worker_share_its_slots(
    ring: Scheduler, make_worker: MakeWorker, gate: Gate
) -> None:
    handler("gated", queue="other")(gate.handle)
    for name in ("mail", "other"):
        ring.submit_many([NewJob("acme", "gated", each, queue=name) for each in range(10)])
    make_worker(concurrency=3)
    for ended in range(6):
        began = 3 + ended
        wait_for(lambda: len(gate.began) == began, "three run")  # noqa: B023
        assert running(ring, "mail", "other") == 3
        gate.let_one_through()
    gate.opened.set()
    wait_for(lambda: sorted(gate.began) == sorted([*range(10)] * 2), "all run in the end")


def test_an_idle_worker_reserves_no_slot_for_a_queue(
    ring: Scheduler, make_worker: MakeWorker, gate: Gate
) -> None:
    gate.opened.set()
    handler("gated", queue="other")(gate.handle)
    make_worker(concurrency=1, block="10m")
    for number in range(4):  # a slot that one queue had reserved would keep the other waiting
        queue = ("other", "mail")[number % 2]
        job = ring.submit("acme", "gated", number, queue=queue)
        assert ring.wait("acme", job.id, timeout=60).state is State.COMPLETED


def test_a_catch_all_handler_runs_types_without_a_handler(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    ran: list[tuple[str, str]] = []
    handler("known", queue="mail")(lambda ctx, payload: ran.append(("known", ctx.type)))
    handler("*", queue="mail")(lambda ctx, payload: ran.append(("*", ctx.type)))
    make_worker(concurrency=2)
    made = ring.submit_many(
        [NewJob("acme", each, queue="mail") for each in ("known", "new", "other")]
    )
    for each in made:
        assert ring.wait("acme", each.id, timeout=60).state is State.COMPLETED
    assert sorted(ran) == [("*", "new"), ("*", "other"), ("known", "known")]
