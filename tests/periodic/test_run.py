"""What bodies do, and what it does to the loop: nothing."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from scheduler import Outcome, RunContext, Scheduler
from scheduler.events import FireEnded, FireSkipped
from scheduler.model.body import Cancelled
from scheduler.model.failures import describe, outcome_of
from tests.conftest import MakeScheduler
from tests.support.recorder import Recorder, until


class Hostile(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def exit_process() -> None:
    raise SystemExit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


def nul() -> None:
    raise ValueError("a\0b \ud800 end")


def huge() -> None:
    raise ValueError("x" * 50_000_000)


def hostile() -> None:
    raise Hostile


def unpicklable() -> object:
    return threading.Lock()


async def async_failure() -> None:
    await asyncio.sleep(0)
    raise LookupError("async")


async def async_cancels_itself() -> None:
    raise asyncio.CancelledError


BODIES: dict[str, tuple[Any, Outcome, str]] = {
    "exit": (exit_process, Outcome.FAILED, "SystemExit: 3"),
    "interrupt": (interrupt, Outcome.FAILED, "KeyboardInterrupt"),
    "nul": (nul, Outcome.FAILED, "a\\x00b \\ud800 end"),
    "huge": (huge, Outcome.FAILED, "[cut from 50000000 characters]"),
    "hostile": (hostile, Outcome.FAILED, "its text raised KeyboardInterrupt"),
    "unpicklable": (unpicklable, Outcome.SUCCESS, ""),
    "async failure": (async_failure, Outcome.FAILED, "LookupError: async"),
    "async cancelled": (async_cancels_itself, Outcome.FAILED, "cancelled"),
}


def test_no_body_harms_the_batch_or_the_loop(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler())
    start = datetime.now(UTC)
    instance.register_many(
        [
            {"tenant": "acme", "job_id": name, "fn": fn, "start_at": start}
            for name, (fn, _, _) in BODIES.items()
        ]
    )
    instance.register("acme", "good", recorder.body, every="100ms")
    recorder.wait(lambda: {event.job_id for event in recorder.of(FireEnded)} >= BODIES.keys())
    seen = len(recorder.runs)
    recorder.wait(lambda: len(recorder.runs) >= seen + 3)
    for name, (_, outcome, says) in BODIES.items():
        (entry,) = [entry for entry in instance.history("acme", name) if entry.kind == "fire"]
        assert (name, entry.outcome, entry.attempt) == (name, outcome, 1)
        assert says in (entry.error or "")
        assert len((entry.error or "").encode()) <= 16_384


def test_a_fire_whose_partition_does_not_exist_is_recorded_all_the_same(
    make_scheduler: MakeScheduler, recorder: Recorder, connection: psycopg.Connection[Any]
) -> None:
    instance = recorder.listen(make_scheduler(retention=None))
    start = datetime(1999, 1, 1, tzinfo=UTC)
    instance.register("acme", "old", recorder.body, start_at=start)
    recorder.wait(lambda: recorder.of(FireEnded))
    rows = connection.execute(
        "SELECT tableoid::regclass::text, at FROM job_history WHERE kind = 'fire'"
    ).fetchall()
    assert rows == [("job_history_default", start)]


def test_a_row_that_postgres_refuses_holds_back_nobody_else(
    make_scheduler: MakeScheduler, recorder: Recorder, connection: psycopg.Connection[Any]
) -> None:
    instance = recorder.listen(make_scheduler())
    connection.execute(
        "ALTER TABLE job_history ADD CONSTRAINT trap CHECK (job_id <> 'bad' OR kind = 'audit')"
    )
    start = datetime.now(UTC)
    instance.register_many(
        [
            {"tenant": "acme", "job_id": name, "fn": recorder.body, "start_at": start}
            for name in ("a", "bad", "z")
        ]
    )
    recorder.wait(lambda: len(recorder.of(FireEnded)) == 2)
    assert {event.job_id for event in recorder.of(FireEnded)} == {"a", "z"}
    connection.execute("ALTER TABLE job_history DROP CONSTRAINT trap")
    recorder.wait(lambda: len(recorder.of(FireEnded)) == 3)
    assert (recorder.of(FireEnded)[2].job_id, recorder.of(FireEnded)[2].attempt) == ("bad", 2)


def test_a_timeout_cancels_the_context_and_an_async_body(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler())
    reasons: list[str | None] = []

    @instance.register("acme", "sync", timeout="200ms")
    def sync_body(ctx: RunContext) -> None:
        assert ctx.deadline is not None
        ctx.cancelled.wait(60)
        reasons.append(ctx.cancelled.reason)

    @instance.register("acme", "async", timeout="200ms")
    async def async_body() -> None:
        await asyncio.sleep(60)

    recorder.wait(lambda: len(recorder.of(FireEnded)) == 2)
    assert reasons == ["timeout"]
    assert {event.outcome for event in recorder.of(FireEnded)} == {Outcome.TIMEOUT}
    assert all(event.duration < timedelta(seconds=30) for event in recorder.of(FireEnded))


def test_a_body_that_ignores_its_timeout_keeps_slot_and_lease_until_it_returns(
    make_scheduler: MakeScheduler, recorder: Recorder, connection: psycopg.Connection[Any]
) -> None:
    first, second = (
        recorder.listen(make_scheduler(lease="3s")),
        recorder.listen(make_scheduler(lease="3s")),
    )
    go_on = threading.Event()
    calls: list[int] = []

    def stubborn(ctx: RunContext) -> None:
        calls.append(ctx.attempt)
        go_on.wait(60)

    for instance in (first, second):
        instance.register("acme", "x", stubborn, timeout="100ms")
    until(lambda: calls)
    threading.Event().wait(4.5)  # longer than the lease: only renewals keep it
    go_on.set()
    recorder.wait(lambda: recorder.of(FireEnded))
    assert calls == [1]
    assert [event.outcome for event in recorder.of(FireEnded)] == [Outcome.TIMEOUT]


def test_a_fire_that_comes_due_while_its_job_runs_is_skipped(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    first, second = recorder.listen(make_scheduler()), recorder.listen(make_scheduler())
    go_on = threading.Event()
    for instance in (first, second):
        instance.register("acme", "x", lambda: go_on.wait(60), every="300ms")
    recorder.wait(lambda: len(recorder.of(FireSkipped)) >= 3)
    go_on.set()
    recorder.wait(lambda: recorder.of(FireEnded))
    skipped = [entry for entry in first.history("acme", "x") if entry.outcome is Outcome.SKIPPED]
    assert {entry.reason for entry in skipped} == {"overlap"}
    assert len({entry.at for entry in skipped}) == len(skipped) >= 3


def test_late_fires_within_the_grace_each_run_one_after_another(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler())
    start = datetime.now(UTC) - timedelta(seconds=20)
    instance.register("acme", "x", recorder.body, every="1s", start_at=start)
    recorder.wait(lambda: len(recorder.runs) >= 20)
    fires = [run.fire_at for run in recorder.runs[:20]]
    assert fires == [start + timedelta(seconds=n) for n in range(20)]
    assert recorder.of(FireSkipped) == []


def test_cancel_waits_for_bodies_and_keeps_their_leases(
    make_scheduler: MakeScheduler, recorder: Recorder, connection: psycopg.Connection[Any]
) -> None:
    instance = recorder.listen(make_scheduler(lease="3s"))
    other = make_scheduler(lease="3s")
    started = threading.Event()
    attempts: list[int] = []

    def slow(ctx: RunContext) -> None:
        attempts.append(ctx.attempt)
        started.set()
        threading.Event().wait(4.5)

    instance.register("acme", "x", slow)
    started.wait(60)
    other.register("acme", "x", slow)
    instance.cancel(timeout=60)
    assert attempts == [1]
    assert connection.execute("SELECT outcome FROM job_history WHERE kind = 'fire'").fetchall() == [
        ("success",)
    ]


def test_cancel_past_its_timeout_leaves_the_lease_to_run_out_and_the_fire_to_another(
    make_scheduler: MakeScheduler, recorder: Recorder, connection: psycopg.Connection[Any]
) -> None:
    instance, other = make_scheduler(lease="2s"), recorder.listen(make_scheduler(lease="2s"))
    started, release = threading.Event(), threading.Event()
    seen: list[tuple[int, Cancelled]] = []

    def stubborn(ctx: RunContext) -> None:
        seen.append((ctx.attempt, ctx.cancelled))
        started.set()
        if ctx.attempt == 1:
            release.wait(60)

    instance.register("acme", "x", stubborn)
    started.wait(60)
    other.register("acme", "x", stubborn)
    before = time.monotonic()
    instance.cancel(timeout=0.2)
    assert time.monotonic() - before < 30
    assert seen[0][1].reason == "the process is stopping"
    row = connection.execute("SELECT owner IS NOT NULL FROM job_lock").fetchone()
    assert row == (True,)
    recorder.wait(lambda: recorder.of(FireEnded))
    assert [attempt for attempt, _ in seen] == [1, 2]
    release.set()


def test_cancel_hands_back_what_has_not_started(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance, other = make_scheduler(max_workers=1), recorder.listen(make_scheduler())
    go_on = threading.Event()
    start = datetime.now(UTC)
    names = [f"j{n}" for n in range(10)]

    def body(ctx: RunContext) -> None:
        recorder.body(ctx)
        go_on.wait(60)

    instance.register_many(
        [{"tenant": "t", "job_id": name, "fn": body, "start_at": start} for name in names]
    )
    recorder.wait(lambda: recorder.runs)
    threading.Timer(0.3, go_on.set).start()
    instance.cancel(timeout=10)
    other.register_many(
        [{"tenant": "t", "job_id": name, "fn": body, "start_at": start} for name in names]
    )
    recorder.wait(lambda: len(recorder.runs) == 10)
    assert {run.attempt for run in recorder.runs} == {1}


def test_many_due_at_once_run_each_once_over_three_instances(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instances = [recorder.listen(make_scheduler()) for _ in range(3)]
    start = datetime.now(UTC) + timedelta(seconds=1)
    for instance in instances:
        instance.register_many(
            [
                {"tenant": f"t{n % 9}", "job_id": f"j{n}", "fn": recorder.body, "start_at": start}
                for n in range(1500)
            ]
        )
    recorder.wait(lambda: len(recorder.of(FireEnded)) == 1500)
    assert len({(run.tenant, run.job_id) for run in recorder.runs}) == len(recorder.runs) == 1500


def test_the_context_says_what_runs(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    instance = recorder.listen(make_scheduler())
    start = datetime.now(UTC).replace(microsecond=0)
    instance.register("acme", "x", recorder.body, start_at=start, timeout="1h")
    recorder.wait(lambda: recorder.of(FireEnded))
    (run,) = recorder.runs
    assert (run.tenant, run.job_id, run.fire_at, run.attempt, run.fence) == (
        "acme",
        "x",
        start,
        1,
        1,
    )
    assert run.deadline is not None
    assert run.deadline - start > timedelta(minutes=59)
    assert not run.cancelled
    named = {
        "namespace": "acme",
        "job_id": "x",
        "fire_at": start.isoformat(),
        "attempt": 1,
        "fence": 1,
    }
    assert run.logger.extra == named


@pytest.mark.parametrize(
    "fn", [lambda: None, lambda ctx: None, lambda ctx=None: None, lambda *a: None]
)
def test_bodies_take_nothing_or_a_context(
    make_scheduler: MakeScheduler, recorder: Recorder, fn: Any
) -> None:
    instance: Scheduler = recorder.listen(make_scheduler(listen=False))
    instance.register("acme", "x", fn)
    recorder.wait(lambda: recorder.of(FireEnded))
    assert recorder.of(FireEnded)[0].outcome is Outcome.SUCCESS


def test_classify_and_describe() -> None:
    cancelled = Cancelled()
    assert outcome_of(None, cancelled) is Outcome.SUCCESS
    assert outcome_of(ValueError(), cancelled) is Outcome.FAILED
    cancelled.because("timeout")
    cancelled.because("later reasons do not count")
    assert outcome_of(None, cancelled) is Outcome.TIMEOUT
    assert describe(ValueError("é" * 20_000)).encode().isascii() is False
    assert len(describe(ValueError("é" * 20_000)).encode()) <= 16_384


def test_an_async_body_that_outlives_cancel_is_ended_with_its_loop(
    make_scheduler: MakeScheduler,
) -> None:
    instance = make_scheduler()
    started, ended = threading.Event(), threading.Event()

    @instance.register("acme", "x")
    async def long() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    started.wait(60)
    instance.cancel(timeout=0.1)
    assert ended.wait(60)


def test_a_body_that_ends_because_the_process_stops_is_started_again_by_another(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance, other = make_scheduler(lease="20s"), recorder.listen(make_scheduler(lease="20s"))
    started = threading.Event()

    def cut_short(ctx: RunContext) -> None:
        recorder.body(ctx)
        started.set()
        if ctx.attempt == 1:
            ctx.cancelled.wait(60)

    instance.register("acme", "x", cut_short)
    started.wait(60)
    other.register("acme", "x", cut_short)
    instance.cancel(timeout=0.1)
    recorder.wait(
        lambda: recorder.of(FireEnded), timeout=8
    )  # handed back: long before the lease runs out
    assert [run.attempt for run in recorder.runs] == [1, 2]
    (entry,) = [entry for entry in other.history("acme", "x") if entry.kind == "fire"]
    assert (entry.outcome, entry.attempt, entry.attempts[0]["outcome"]) == (
        Outcome.SUCCESS,
        2,
        "lost",
    )


def test_an_async_body_keeps_its_slot_until_it_has_really_ended(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler())
    cleaned = threading.Event()

    @instance.register("acme", "x", timeout="100ms")
    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.5)
            cleaned.set()

    recorder.wait(lambda: recorder.of(FireEnded))
    assert cleaned.is_set()
    assert recorder.of(FireEnded)[0].outcome is Outcome.TIMEOUT
    assert recorder.of(FireEnded)[0].duration > timedelta(seconds=0.5)


def test_a_listener_that_raises_anything_harms_no_worker(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = make_scheduler(max_workers=1)

    def hostile_listener(event: object) -> None:
        raise SystemExit

    instance.subscribe(hostile_listener)
    recorder.listen(instance)
    instance.register("acme", "x", recorder.body, every="100ms")
    recorder.wait(lambda: len(recorder.of(FireEnded)) >= 3)


class Slippery(str):
    __slots__ = ()

    def __getitem__(self, key: object) -> str:
        raise KeyboardInterrupt


class Sly(Exception):
    def __str__(self) -> str:
        return Slippery("sly")


class AsyncCall:
    async def __call__(self) -> None:
        await asyncio.sleep(0)


def sly() -> None:
    raise Sly


async def async_exit() -> None:
    raise SystemExit(3)


async def exit_in_a_task() -> None:
    await asyncio.gather(async_exit(), asyncio.sleep(0.01))


async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()


def test_no_async_or_sly_body_takes_the_loop_or_a_worker_with_it(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler(max_workers=1))
    bodies: dict[str, Any] = {
        "sly": sly,
        "exit": async_exit,
        "task": exit_in_a_task,
        "stop": stop_the_loop,
        "class": AsyncCall,
        "call": AsyncCall(),
    }
    for name, body in bodies.items():
        instance.register("acme", name, body)
    recorder.wait(lambda: len(recorder.of(FireEnded)) == len(bodies))
    outcomes = {event.job_id: event.outcome for event in recorder.of(FireEnded)}
    assert outcomes == {
        **dict.fromkeys(["sly", "exit", "task"], Outcome.FAILED),
        **dict.fromkeys(["stop", "class", "call"], Outcome.SUCCESS),
    }

    @instance.register("acme", "after")
    async def after() -> None:
        await asyncio.sleep(0.01)

    recorder.wait(lambda: [event for event in recorder.of(FireEnded) if event.job_id == "after"])
    instance.cancel()


def test_a_claim_that_postgres_refuses_holds_back_no_other_job(
    make_scheduler: MakeScheduler, recorder: Recorder, connection: psycopg.Connection[Any]
) -> None:
    instance = make_scheduler()
    connection.execute(
        "ALTER TABLE job_lock ADD CONSTRAINT trap CHECK (id <> 'bad' OR owner IS NULL)"
    )
    start = datetime.now(UTC)
    for name in ("a", "bad", "z"):
        instance.register("acme", name, recorder.body, every="200ms", start_at=start)
    recorder.wait(lambda: len([run for run in recorder.runs if run.job_id == "z"]) >= 4)
    assert {run.job_id for run in recorder.runs} == {"a", "z"}


def test_decades_of_missed_milliseconds_are_one_run(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler())
    instance.register(
        "acme", "x", recorder.body, every="1ms", start_at=datetime(1980, 1, 1, tzinfo=UTC)
    )
    recorder.wait(lambda: recorder.of(FireEnded))
    fires = [
        entry for entry in instance.history("acme", "x", limit=1000) if entry.missed_count > 2**31
    ]
    assert len(fires) == 1


def test_where_no_thread_can_be_started_fires_are_handed_back_and_run_later(
    make_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = recorder.listen(make_scheduler())
    allowed, refused = threading.Event(), threading.Event()
    start = threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        if thread.name.startswith("scheduler-run") and not allowed.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    instance.register("acme", "x", recorder.body)
    assert refused.wait(60)
    allowed.set()
    recorder.wait(lambda: recorder.of(FireEnded))
    assert [run.attempt for run in recorder.runs] == [1]
