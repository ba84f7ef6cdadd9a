"""Claims and reclaims: deleted lock rows, jobs that change their form, runs that did not begin, the
database's clock.
"""

import logging
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, cast

import psycopg
import pytest

from scheduler import Outcome, RunContext
from scheduler.clock import DatabaseClock, SystemClock
from scheduler.coroutines import Coroutines
from scheduler.events import Events
from scheduler.periodic.run import Run, Runner
from scheduler.processes import Processes
from scheduler.testing import ManualClock, Scheduler
from tests.conftest import MakeScheduler
from tests.periodic.conftest import only_direct
from tests.support.recorder import Recorder, until

LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)


class JumpingClock(ManualClock):
    """A clock whose database can be set forward and back."""

    jump = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.jump


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
def pair(dsn: str, schema: str, clock: JumpingClock) -> Iterator[tuple[Scheduler, Scheduler]]:
    with (
        Scheduler(dsn, schema=schema, clock=clock) as one,
        Scheduler(dsn, schema=schema, clock=clock) as other,
    ):
        yield one, other


def outcomes(instance: Scheduler, *, kind: str = "fire") -> list[tuple[str, str | None]]:
    rows = reversed(instance.history("acme", "x", 100))
    return [(str(row.outcome), row.reason) for row in rows if row.kind == kind]


def dies_with_its_claims(instance: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Let this instance claim and then stop, as a process that is killed."""
    claimed: list[Run] = []
    monkeypatch.setattr(instance._running().runner, "take", claimed.extend)
    instance.tick()
    assert claimed
    monkeypatch.setattr(instance._running().leases, "step", lambda: 1.0)
    return claimed


def outlive(clock: ManualClock, instance: Scheduler) -> None:
    """Let a lease expire while an instance watches it."""
    for _ in range(6):
        clock.advance(LEASE / 4)
        instance.tick()


def test_a_deleted_lock_row_is_inserted_by_the_next_claim(
    pair: tuple[Scheduler, Scheduler], connection: psycopg.Connection[Any], recorder: Recorder
) -> None:
    one, other = pair
    for instance in pair:
        instance.register("acme", "x", recorder.body, every="1h")
    one.advance("1h")
    connection.execute("DELETE FROM job_lock")
    one.advance("1h")
    connection.execute("DELETE FROM job_lock")
    other.advance("1h")
    assert [run.fence for run in recorder.runs] == [1, 2, 3]
    assert len({run.fire_at for run in recorder.runs}) == 3
    assert connection.execute("SELECT fence, owner FROM job_lock").fetchall() == [(3, None)]
    assert one.explain("acme", "x").last_outcome is Outcome.SUCCESS


def test_a_job_without_a_lock_row_can_be_triggered(
    pair: tuple[Scheduler, Scheduler],
    connection: psycopg.Connection[Any],
    recorder: Recorder,
    clock: JumpingClock,
) -> None:
    one, _ = pair
    one.register("acme", "x", recorder.body, every="1h")
    for _ in range(2):
        clock.advance("1s")  # two triggers at one instant are one run
        connection.execute("DELETE FROM job_lock")
        one.trigger("acme", "x")
        one.tick()
    assert outcomes(one, kind="trigger") == [("success", None)] * 2
    assert [run.fence for run in recorder.runs] == [1, 2]


def test_a_fire_of_a_queue_needs_no_lock_row(
    pair: tuple[Scheduler, Scheduler], connection: psycopg.Connection[Any]
) -> None:
    one, _ = pair
    one.register("acme", "x", queue="mail", every="1h", overlap="queue_one")
    connection.execute("DELETE FROM job_lock")
    one.advance("1h")
    assert outcomes(one) == [("queued", None)]


def test_a_run_whose_lock_row_was_deleted_is_recorded(
    pair: tuple[Scheduler, Scheduler], connection: psycopg.Connection[Any]
) -> None:
    one, _ = pair
    one.register(
        "acme", "x", lambda: connection.execute("DELETE FROM job_lock"), every="1h", timeout="1h"
    )
    one.advance("2h")
    assert outcomes(one) == [("success", None)] * 2


def test_a_body_learns_that_its_lock_row_was_deleted(
    pair: tuple[Scheduler, Scheduler], connection: psycopg.Connection[Any], clock: JumpingClock
) -> None:
    one, _ = pair
    asked: list[bool] = []

    def body(context: RunContext) -> None:
        connection.execute("DELETE FROM job_lock")
        clock.advance(LEASE / 2)
        one._running().leases.step()
        asked.append(bool(context.cancelled))

    one.register("acme", "x", body, every="1h")
    one.advance("1h")
    assert asked == [True]
    assert outcomes(one) == [("failed", None)]
    assert "job_lock was deleted" in str(one.history("acme", "x")[0].error)


def test_no_function_is_called_for_a_job_with_a_queue(
    pair: tuple[Scheduler, Scheduler], recorder: Recorder
) -> None:
    old, new = pair
    old.register("acme", "x", queue="mail", every="1h")
    new.register("acme", "x", recorder.body, every="1h")
    for _ in range(4):
        old.advance("30m")
        new.tick()
    assert outcomes(new) == [("success", None)] * len(recorder.runs)
    assert len(recorder.runs) == 2
    assert not old.jobs()[0].runnable
    assert old._running().registry.runs()[1] == []


def test_an_instance_with_a_function_leaves_jobs_with_a_queue(
    pair: tuple[Scheduler, Scheduler], recorder: Recorder
) -> None:
    old, new = pair
    old.register("acme", "x", recorder.body, every="1h")
    new.register("acme", "x", queue="mail", every="1h")
    old.advance("1h")
    assert outcomes(new) == []
    new.tick()
    assert outcomes(new) == [("queued", None)]
    assert recorder.runs == []


def test_reclaimed_fires_of_jobs_with_a_queue_are_submitted(
    pair: tuple[Scheduler, Scheduler],
    clock: JumpingClock,
    monkeypatch: pytest.MonkeyPatch,
    recorder: Recorder,
) -> None:
    old, new = pair
    old.register("acme", "x", recorder.body, every="1h")
    clock.advance("1h")
    (run,) = dies_with_its_claims(old, monkeypatch)
    new.register("acme", "x", queue="mail", every="1h")
    outlive(clock, new)
    assert outcomes(new) == [("queued", None)]
    (row,) = [row for row in new.history("acme", "x") if row.kind == "fire"]
    assert row.at == run.fire_at
    assert row.job
    assert new.get("acme", row.job["id"]).queue == "mail"


def test_a_begun_fire_is_recorded_as_crashed_after_a_redefinition(
    pair: tuple[Scheduler, Scheduler],
    clock: JumpingClock,
    monkeypatch: pytest.MonkeyPatch,
    recorder: Recorder,
) -> None:
    old, new = pair
    old.register("acme", "x", recorder.body, every="1h", delivery="at_most_once")
    clock.advance("1h")
    (run,) = dies_with_its_claims(old, monkeypatch)
    assert old._running().runner.note_begun(run)
    new.register("acme", "x", queue="mail", every="1h")
    outlive(clock, new)
    assert outcomes(new) == [("crashed", "its process died, and the job runs at most once")]


def test_fires_overlap_a_dead_run_until_its_lease_expires(
    pair: tuple[Scheduler, Scheduler],
    clock: JumpingClock,
    monkeypatch: pytest.MonkeyPatch,
    recorder: Recorder,
) -> None:
    one, other = pair
    for instance in pair:
        instance.register("acme", "x", recorder.body, every="10s")
    clock.advance("10s")
    dies_with_its_claims(one, monkeypatch)
    for _ in range(2):
        clock.advance("10s")
        other.tick()
    assert outcomes(other) == [("skipped", "overlap")] * 2
    outlive(clock, other)
    assert [each.attempt for each in recorder.runs][:1] == [2]


@pytest.mark.parametrize("begun", [False, True])
def test_at_most_once_counts_only_what_began(
    pair: tuple[Scheduler, Scheduler],
    clock: JumpingClock,
    monkeypatch: pytest.MonkeyPatch,
    recorder: Recorder,
    begun: bool,
) -> None:
    one, other = pair
    for instance in pair:
        instance.register("acme", "x", recorder.body, every="1h", delivery="at_most_once")
    clock.advance("1h")
    (run,) = dies_with_its_claims(one, monkeypatch)
    if begun:
        assert one._running().runner.note_begun(run)
    outlive(clock, other)
    assert [each.attempt for each in recorder.runs] == [1] * (not begun)
    assert [outcome for outcome, _ in outcomes(other)] == ["crashed" if begun else "success"]
    if not begun:  # the first process continues, and must not call the function
        assert not one._running().runner.note_begun(run)


def test_a_database_clock_set_forward_starts_no_run_again(
    pair: tuple[Scheduler, Scheduler], clock: JumpingClock
) -> None:
    one, other = pair
    runs: list[RunContext] = []

    def body(context: RunContext) -> None:
        runs.append(context)
        if len(runs) > 1:
            return
        clock.jump = timedelta(days=1)
        for _ in range(10):
            clock.advance(LEASE / 6)
            other.tick()
            one._running().leases.step()
        assert not context.cancelled

    for instance in pair:
        instance.register("acme", "x", body, every="48h")
    one.advance("48h")
    assert [run.attempt for run in runs] == [1]
    assert outcomes(one) == [("success", None)]


def test_a_jump_of_the_database_clock_is_logged(
    pair: tuple[Scheduler, Scheduler], clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = pair
    for jump, text in ((HOUR, "forward by 3600.0 s"), (-HOUR, "back by 7200.0 s")):
        clock.jump = jump
        clock.advance("1m")
        with caplog.at_level(logging.WARNING, "scheduler"):
            one.tick()
        assert f"the clock of the database jumped {text}" in caplog.text
    caplog.clear()
    clock.advance("1m")
    one.tick()
    assert caplog.text == ""


class PlayedClock(SystemClock):
    """A monotonic clock that a test moves."""

    at = 0.0

    def monotonic(self) -> float:
        return self.at


def test_a_runner_takes_no_more_than_can_begin_soon() -> None:
    clock, gate = PlayedClock(), threading.Event()
    database_clock = DatabaseClock(clock)
    database_clock.observe(clock.wall(), sent=0.0, received=0.0)
    runner = Runner(
        workers=2,
        clock=clock,
        database_clock=database_clock,
        events=Events(),
        coroutines=Coroutines(None),
        processes=Processes(),
        ended=lambda _: None,
    )
    monkeypatched = cast("Any", runner)
    monkeypatched.execute = lambda run: gate.wait(60)
    assert runner.room() == 2
    runner.take([_Named(n) for n in range(2)])  # type: ignore[misc]
    clock.at = 8.0
    gate.set()
    until(lambda: runner.count() == 0)
    assert runner.room() == 2  # two runs ended in eight seconds
    runner.stop()


class _Named:
    """As much of a run as a runner needs."""

    started = True
    queued_at = 0.0

    def __init__(self, key: int) -> None:
        self.key = key


@only_direct("the runner is under test, not the road")
def test_fires_that_cannot_begin_are_handed_to_another_instance(
    make_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def body(context: RunContext) -> None:
        recorder.body(context)
        release.wait(120)

    names = [f"j{n}" for n in range(5)]
    busy = make_scheduler(max_workers=1)
    monkeypatch.setattr(busy._running().runner, "room", lambda: 100)  # as after quick functions
    jobs = [{"tenant": "acme", "job_id": name, "fn": body} for name in names]
    busy.register_many(jobs)
    recorder.wait(lambda: recorder.runs)
    other = make_scheduler()
    other.register_many(jobs)
    try:
        recorder.wait(lambda: len(recorder.runs) == 5, timeout=50)
        assert busy._running().runner.count() == 1
    finally:
        release.set()
    assert [run.attempt for run in recorder.runs] == [1] * 5
