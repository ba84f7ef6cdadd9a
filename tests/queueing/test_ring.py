"""Jobs round the whole ring: submitted, fed, run by a worker, settled; with a real Postgres and a
real Redis.
"""

import threading
import time
from typing import Any
from uuid import RFC_4122, UUID

import pytest

import scheduler
from scheduler import (
    NewJob,
    PermanentError,
    Priority,
    RetryPolicy,
    Scheduler,
    State,
    Timeouts,
    handler,
)
from scheduler.dialects.client import Client
from tests.queueing import children
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for

QUICK = RetryPolicy(initial_delay="50ms", jitter=False)


@pytest.fixture(params=["standard", "reliable", "bullmq", "conveyor"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_job_goes_round(ring: Scheduler, make_worker: MakeWorker) -> None:
    seen: list[tuple[Any, ...]] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: dict[str, int]) -> dict[str, int]:
        seen.append(
            (
                ctx.id,
                ctx.tenant,
                ctx.type,
                ctx.queue,
                ctx.attempt,
                dict(ctx.tags),
                ctx.correlation_id,
            )
        )
        return {"twice": payload["n"] * 2}

    make_worker()
    made = ring.submit("acme", "mail", {"n": 21}, queue="mail", tags={"a": "b"}, correlation_id="c")
    job = ring.wait("acme", made.id, timeout=60)
    assert (job.state, job.result, job.attempt) == (State.COMPLETED, {"twice": 42}, 1)
    assert seen == [(str(made.id), "acme", "mail", "mail", 1, {"a": "b"}, "c")]
    (attempt,) = job.attempts
    assert attempt["outcome"] == "completed"
    assert attempt["previous_attempt_id"] is None
    assert UUID(attempt["attempt_id"]).version == 5
    assert job.started_at is not None
    assert job.completed_at is not None
    assert job.created_at <= job.started_at <= job.completed_at


def test_async_and_process_handlers(ring: Scheduler, make_worker: MakeWorker) -> None:
    @handler("async", queue="mail")
    async def run(ctx: scheduler.JobContext, payload: int) -> int:
        return payload + ctx.attempt

    handler("process", queue="mail", executor="process")(children.double)
    handler("raising", queue="mail", executor="process")(children.permanent)
    make_worker()
    first = ring.submit("acme", "async", 1, queue="mail").id
    second = ring.submit("acme", "process", 4, queue="mail").id
    third = ring.submit("acme", "raising", b"\x00\xff", queue="mail").id
    assert ring.wait("acme", first, timeout=60).result == 2
    assert ring.wait("acme", second, timeout=60).result == [8, "process"]
    failed = ring.wait("acme", third, timeout=60)
    assert failed.state is State.FAILED
    assert failed.attempts[0]["code"] == "E7"
    assert "b'\\x00\\xff'" in (failed.error or "")


def test_failures_are_retried_as_the_policy_says(ring: Scheduler, make_worker: MakeWorker) -> None:
    tried: dict[str, list[float]] = {}

    @handler("flaky", queue="mail")
    def flaky(ctx: scheduler.JobContext, payload: str) -> str:
        tried.setdefault(payload, []).append(time.monotonic())
        if payload == "permanent":
            raise PermanentError("never", code="E1")
        if payload == "always" or ctx.attempt < 3:
            raise ValueError(f"not yet, {ctx.attempt}")
        return "at last"

    make_worker()
    ids = {
        name: ring.submit("acme", "flaky", name, queue="mail", retry=QUICK).id
        for name in ("third", "always", "permanent")
    }
    third, always, permanent = (ring.wait("acme", ids[name], timeout=60) for name in ids)
    assert (third.state, third.result, third.attempt) == (State.COMPLETED, "at last", 3)
    assert [each["outcome"] for each in third.attempts] == ["retrying", "retrying", "completed"]
    assert third.attempts[1]["previous_attempt_id"] == third.attempts[0]["attempt_id"]
    assert (always.state, always.attempt) == (State.DEAD_LETTER, 3)
    assert "not yet, 3" in (always.error or "")
    assert (permanent.state, len(tried["permanent"])) == (State.FAILED, 1)
    assert permanent.attempts[0]["code"] == "E1"
    first, second, last = tried["third"]
    assert second - first >= 0.05
    assert last - second >= 0.1


def test_a_timeout_ends_an_attempt(ring: Scheduler, make_worker: MakeWorker) -> None:
    @handler("slow", queue="mail", timeout="200ms")
    def slow(ctx: scheduler.JobContext, payload: object) -> None:
        assert ctx.cancelled.wait(60)
        raise RuntimeError("told to end")

    make_worker()
    policy = RetryPolicy(max_attempts=1)
    made = ring.submit(
        "acme", "slow", queue="mail", retry=policy, timeouts=Timeouts(execution="10s")
    )
    job = ring.wait("acme", made.id, timeout=60)
    assert job.state is State.DEAD_LETTER
    assert job.attempts[0]["category"] == "timeout"


@pytest.mark.parametrize("kind", children.UNSTORABLE)
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_result_that_cannot_be_stored_is_left_out(
    ring: Scheduler, make_worker: MakeWorker, kind: str, executor: Any
) -> None:
    handler("odd", queue="mail", executor=executor)(children.unstorable)
    make_worker()
    made = ring.submit("acme", "odd", kind, queue="mail", retry=RetryPolicy(max_attempts=1))
    job = ring.wait("acme", made.id, timeout=60)
    assert (job.state, job.result, job.error) == (State.COMPLETED, None, None)
    assert "result" in (job.reason or "")
    assert job.attempts[0]["outcome"] == "completed"


def test_progress_and_checkpoints(ring: Scheduler, make_worker: MakeWorker) -> None:
    go = threading.Event()

    @handler("long", queue="mail")
    def long(ctx: scheduler.JobContext, payload: object) -> object:
        if ctx.attempt == 1:
            ctx.progress(40, "nearly half")
            ctx.checkpoint({"row": 7})
            go.wait(60)
            raise ValueError("again")
        return ctx.last_checkpoint

    make_worker()
    made = ring.submit("acme", "long", queue="mail", retry=QUICK)
    job = wait_for(lambda: _with_progress(ring, made.id), "progress")
    assert (job.state, job.progress, job.message) == (State.RUNNING, 40.0, "nearly half")
    assert job.started_at is not None
    running = ring.find("acme", state=State.RUNNING)
    assert [each.id for each in running.jobs] == [made.id]
    assert not ring.find("acme", state=State.SCHEDULED).jobs
    go.set()
    assert ring.wait("acme", made.id, timeout=60).result == {"row": 7}


@pytest.mark.parametrize("dialect", ["standard", "reliable", "bullmq", "conveyor"])
def test_a_checkpoint_just_before_a_failure_is_the_next_attempts(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    @handler("long", queue="mail")
    def long(ctx: scheduler.JobContext, payload: object) -> object:
        if ctx.attempt == 1:
            ctx.checkpoint({"row": 7})
            raise ValueError("again")
        return ctx.last_checkpoint

    make_worker()
    made = [ring.submit("acme", "long", queue="mail", retry=QUICK) for _ in range(3)]
    assert [ring.wait("acme", each.id, timeout=60).result for each in made] == [{"row": 7}] * 3


def _with_progress(ring: Scheduler, job_id: UUID) -> Any:
    job = ring.get("acme", job_id)
    return job if job.progress is not None else None


def test_jobs_that_a_handler_submits_exist_once_it_has_succeeded(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    children: list[Any] = []
    ran: list[object] = []

    @handler("parent", queue="mail")
    def parent(ctx: scheduler.JobContext, payload: object) -> str:
        made = ctx.submit("child", {"of": ctx.attempt}, queue="mail", priority=Priority.HIGH)
        children.append(made.id)
        if ctx.attempt == 1:
            raise ValueError("not this time")
        return str(made.id)

    @handler("child", queue="mail")
    def child(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(payload)

    make_worker()
    job = ring.wait("acme", ring.submit("acme", "parent", queue="mail", retry=QUICK).id, timeout=60)
    assert job.state is State.COMPLETED
    found = ring.wait("acme", str(job.result), timeout=60)
    assert (found.state, found.priority) == (State.COMPLETED, Priority.HIGH)
    assert ran == [{"of": 2}]
    assert children[0] == children[1] == found.id


def test_chains_and_fans(ring: Scheduler, make_worker: MakeWorker) -> None:
    order: list[object] = []

    @handler("step", queue="mail")
    def step(ctx: scheduler.JobContext, payload: object) -> None:
        order.append(payload)
        if payload == "bad":
            raise PermanentError("in the middle")

    make_worker()
    chain = ring.chain("acme", [NewJob("acme", "step", n, queue="mail") for n in range(100)])
    assert ring.wait("acme", chain[-1].id, timeout=60).state is State.COMPLETED
    assert order == list(range(100))
    last = NewJob("acme", "step", "all", queue="mail")
    fan = ring.fan_out(
        "acme", [NewJob("acme", "step", n, queue="mail") for n in range(1000)], then=last
    )
    assert ring.wait("acme", fan[-1].id, timeout=60).state is State.COMPLETED
    assert order[-1] == "all"
    assert len(order) == 1101
    broken = ring.chain(
        "acme", [NewJob("acme", "step", n, queue="mail") for n in ("good", "bad", "never")]
    )
    ended = [ring.wait("acme", each.id, timeout=60).state for each in broken]
    assert ended == [State.COMPLETED, State.FAILED, State.FAILED]
    assert "never" not in order


def test_cancel_before_it_is_fed_while_it_waits_in_redis_and_while_it_runs(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    began, told = threading.Event(), threading.Event()

    @handler("long", queue="mail")
    def long(ctx: scheduler.JobContext, payload: object) -> None:
        began.set()
        if ctx.cancelled.wait(60):
            told.set()
            raise RuntimeError("as asked")

    later = ring.submit("acme", "long", queue="mail", delay="1h").id
    assert ring.cancel_job("acme", later, reason="changed my mind") is State.CANCELLED
    assert ring.get("acme", later).reason == "changed my mind"

    fed = ring.submit("acme", "long", queue="mail").id
    wait_for(lambda: ring.get("acme", fed).state is State.SCHEDULED, "fed")
    assert ring.cancel_job("acme", fed) is State.CANCELLED

    running = ring.submit("acme", "long", queue="mail").id
    make_worker()
    assert began.wait(60)
    assert ring.cancel_job("acme", running, reason="enough") is State.RUNNING
    job = ring.wait("acme", running, timeout=60)
    assert told.is_set()
    assert (job.state, job.reason, job.attempt) == (State.CANCELLED, "enough", 1)


def test_cancel_by_force_does_not_wait_for_the_handler(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    began, go = threading.Event(), threading.Event()

    @handler("deaf", queue="mail")
    def deaf(ctx: scheduler.JobContext, payload: object) -> str:
        began.set()
        go.wait(60)
        return "done all the same"

    make_worker()
    made = ring.submit("acme", "deaf", queue="mail").id
    assert began.wait(60)
    assert ring.cancel_job("acme", made, force=True) is State.CANCELLED
    go.set()
    rest(0.3)
    job = ring.get("acme", made)
    assert (job.state, job.result) == (State.CANCELLED, None)


def test_lifetimes_end_jobs_wherever_they_are(ring: Scheduler, make_worker: MakeWorker) -> None:
    began = threading.Event()

    @handler("long", queue="mail")
    def long(ctx: scheduler.JobContext, payload: object) -> None:
        began.set()
        ctx.cancelled.wait(60)
        raise RuntimeError("as told")

    short = Timeouts(lifetime="1500ms")
    ring.pause_queue("other")
    unfed = ring.submit("acme", "long", queue="other", timeouts=short).id
    waiting = ring.submit(
        "acme", "long", queue="other", after=[unfed], timeouts=Timeouts(lifetime="1s")
    ).id
    fed = ring.submit("acme", "long", queue="nobody", timeouts=short).id
    make_worker()
    for seconds in (2, 8, 32):  # it is to begin first, however slow the machine is
        longer = Timeouts(lifetime=f"{seconds}s")
        running = ring.submit("acme", "long", queue="mail", timeouts=longer).id
        if began.wait(seconds):
            break
    assert began.is_set()
    for each in (unfed, waiting, fed, running):
        job = ring.wait("acme", each, timeout=60)
        assert job.state is State.DEAD_LETTER, job
    assert ring.get("acme", fed).reason == "its lifetime has passed"


def test_state_changes_are_said(ring: Scheduler, make_worker: MakeWorker) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        if ctx.attempt == 1:
            raise ValueError

    make_worker()
    heard: list[scheduler.JobChange] = []
    changes = ring.events("acme")
    enough = threading.Event()

    def listen() -> None:
        for change in changes:
            heard.append(change)
            if enough.is_set():
                return

    thread = threading.Thread(target=listen)
    thread.start()

    def worker_is_heard() -> bool:
        ring.wait("acme", ring.submit("acme", "mail", queue="mail", retry=QUICK).id, timeout=60)
        return any(change.state is State.RUNNING for change in heard)

    wait_for(worker_is_heard, "the worker has noticed that somebody listens", every=0.3)
    other = ring.submit("globex", "mail", queue="mail", retry=QUICK)
    ring.wait("globex", other.id, timeout=60)
    made = ring.submit("acme", "mail", queue="mail", retry=QUICK)

    def states_of_made() -> list[State]:
        # Worker and settler publish independently, so a change can arrive late: `at` orders them.
        found = [change for change in list(heard) if change.id == str(made.id)]
        return [change.state for change in sorted(found, key=lambda change: change.at)]

    wait_for(lambda: State.COMPLETED in states_of_made(), "its end is published")
    enough.set()
    ring.submit("acme", "mail", queue="mail", retry=QUICK)
    thread.join(60)
    assert not thread.is_alive()
    assert {change.tenant for change in heard} == {"acme"}
    states = states_of_made()
    assert set(states) == {State.SCHEDULED, State.RUNNING, State.RETRYING, State.COMPLETED}
    assert states.index(State.RETRYING) < states.index(State.COMPLETED)
    assert states[-1] is State.COMPLETED


def test_a_flushed_redis_loses_nothing(
    ring: Scheduler, redis: Client, make_worker: MakeWorker
) -> None:
    done: list[object] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        done.append(payload)
        rest(0.001)

    made = ring.submit_many([NewJob("acme", "mail", n, queue="mail") for n in range(500)])
    wait_for(lambda: not ring.find("acme", state=State.PENDING, limit=1).jobs, "all are fed")
    redis.call("FLUSHALL")
    make_worker()
    for each in made:
        assert ring.wait("acme", each.id, timeout=60).state is State.COMPLETED
    assert set(done) == set(range(500))
    redis.call("FLUSHALL")
    more = ring.submit("acme", "mail", 501, queue="mail")
    assert ring.wait("acme", more.id, timeout=60).state is State.COMPLETED


def test_an_attempt_that_redis_lost_has_another_id_than_the_next(
    ring: Scheduler, redis: Client, make_worker: MakeWorker
) -> None:
    found: list[tuple[int, object, object]] = []
    go = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        found.append((ctx.attempt, ctx.attempt_id, ctx.previous_attempt_id))
        go.wait(60)

    make_worker()
    made = ring.submit("acme", "mail", queue="mail")
    wait_for(lambda: len(found) == 1, "it runs")
    redis.call("FLUSHALL")
    wait_for(lambda: len(found) == 2, "it runs again")
    go.set()
    job = ring.wait("acme", made.id, timeout=60)
    (first, lost, _), (second, kept, _) = found
    assert (first, second) == (1, 1)
    assert lost != kept
    assert [each["attempt_id"] for each in job.attempts] == [str(kept)]


def test_a_worker_that_stops_puts_back_what_has_not_begun(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    began = threading.Event()
    ran: list[tuple[object, int]] = []

    @handler("slow", queue="mail")
    def slow(ctx: scheduler.JobContext, payload: object) -> None:
        began.set()
        ran.append((payload, ctx.attempt))
        rest(0.3)

    first = make_worker(concurrency=2)
    made = ring.submit_many([NewJob("acme", "slow", n, queue="mail") for n in range(8)])
    assert began.wait(60)
    first.stop(grace=60)
    make_worker(concurrency=8)
    jobs = [ring.wait("acme", each.id, timeout=60) for each in made]
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert {job.attempt for job in jobs} == {1}
    assert len(ran) == 8


def test_concurrency_of_a_handler_is_held(ring: Scheduler, make_worker: MakeWorker) -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    @handler("narrow", queue="mail", concurrency=2)
    def narrow(ctx: scheduler.JobContext, payload: object) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        rest(0.02)
        with lock:
            running[0] -= 1

    make_worker(concurrency=16)
    made = ring.submit_many([NewJob("acme", "narrow", n, queue="mail") for n in range(40)])
    for each in made:
        ring.wait("acme", each.id, timeout=60)
    assert most[0] == 2


def test_without_redis_an_instance_only_submits(dsn: str, schema: str) -> None:
    with Scheduler(dsn, schema=schema) as alone:
        made = alone.submit("acme", "mail")
        with pytest.raises(scheduler.WaitTimeout, match="pending"):
            alone.wait("acme", made.id, timeout=0.1)
        with pytest.raises(scheduler.ConfigError, match="redis"):
            alone.events("acme")


def test_many_small_feeds_do_not_use_up_the_room(ring: Scheduler, make_worker: MakeWorker) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None: ...

    make_worker()
    for number in range(20):  # each is a feed of its own
        ring.wait("acme", ring.submit("acme", "mail", number, queue="mail").id, timeout=60)
    services = ring._running().ring
    assert services is not None
    rooms, _ = services.feeder._rooms["mail"]
    assert rooms[Priority.NORMAL] >= 9_900


def test_repeated_attempts_submit_the_same_jobs(ring: Scheduler, make_worker: MakeWorker) -> None:
    submitted: list[list[UUID]] = []

    @handler("parent", queue="mail")
    def parent(ctx: scheduler.JobContext, payload: object) -> None:
        children = [ctx.submit("child", n, queue="nobody") for n in range(3)]
        submitted.append([each.id for each in children])
        if ctx.attempt == 1:
            raise RuntimeError("again")

    make_worker()
    made = ring.submit("acme", "parent", queue="mail", retry=QUICK)
    assert ring.wait("acme", made.id, timeout=60).state is State.COMPLETED
    first, second = submitted
    assert first == second
    assert {(each.version, each.variant) for each in first} == {(4, RFC_4122)}
    assert {each.id for each in ring.find("acme", queue="nobody").jobs} == set(first)
