"""What is removed after the retention: finished one-time jobs, and lock rows without a job. What was
removed never runs again.
"""

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from scheduler import UnknownJob
from scheduler.testing import START, ManualClock, Scheduler
from tests.periodic.test_claim import dies_with_its_claims
from tests.support.recorder import Recorder

HOUR = timedelta(hours=1)
Make = Callable[..., Scheduler]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(dsn: str, schema: str, clock: ManualClock) -> Iterator[Make]:
    """Instances that share one clock; their ledger is kept for 30 days."""
    made: list[Scheduler] = []

    def start(**options: Any) -> Scheduler:
        made.append(Scheduler(dsn, schema=schema, clock=clock, **options))
        return made[-1].start()

    yield start
    for one in made:
        if one.is_running():
            one.cancel(timeout=0)


def pass_days(instance: Scheduler, days: int) -> None:
    """Let time pass, and what is older than the retention be removed."""
    instance.advance(timedelta(days=days))
    instance._running()._tend()
    instance.tick()


def count(connection: psycopg.Connection[Any], table: str) -> int:
    ((rows,),) = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchall()
    return int(rows)


def skips(instance: Scheduler) -> list[tuple[Any, str | None]]:
    rows = instance.history("acme", "x")
    return [(row.at, row.reason) for row in rows if row.outcome == "skipped"]


def test_a_finished_one_time_job_is_removed_after_the_retention(
    make: Make, connection: psycopg.Connection[Any], recorder: Recorder
) -> None:
    instance = make()
    instance.register("acme", "x", recorder.body, start_at=START + HOUR)
    pass_days(instance, 29)
    assert [job.job_id for job in instance.jobs()] == ["x"]
    pass_days(instance, 2)
    assert len(recorder.runs) == 1
    assert instance.jobs() == []
    assert (count(connection, "job"), count(connection, "job_lock")) == (0, 0)
    with pytest.raises(UnknownJob):
        instance.explain("acme", "x")


def test_one_time_jobs_that_have_not_ended_are_kept(
    make: Make, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, dying = make(), make(tenants=["acme"])
    instance.register("acme", "coming", lambda: None, start_at=START + timedelta(days=90))
    instance.register("acme", "paused", lambda: None, start_at=START + HOUR)
    instance.pause("acme", "paused")
    pass_days(instance, 40)
    assert sorted(job.job_id for job in instance.jobs()) == ["coming", "paused"]
    dying.register("other", "running", lambda: None, start_at=START + timedelta(days=40, hours=1))
    instance.clock.advance("2h")
    dies_with_its_claims(dying, monkeypatch)
    instance.clock.advance("31d")
    instance._running()._tend()
    assert count(connection, "job") == 3


@pytest.mark.parametrize("options", [{"start_at": START + HOUR}, {}], ids=["start", "no start"])
def test_a_removed_one_time_job_never_runs_again(
    make: Make,
    connection: psycopg.Connection[Any],
    recorder: Recorder,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    instance = make()
    instance.register("acme", "x", recorder.body, **options)
    instance.advance("1h")
    pass_days(instance, 33)  # its ledger row is gone too
    assert count(connection, "job") == 0
    for days in (1, 31):  # the next deploys, before and after it is removed once more
        instance.cancel(timeout=0)
        instance = make()
        instance.register("acme", "x", recorder.body, **options)
        instance.tick()
        assert instance.jobs()[0].next_run_at is None
        assert skips(instance) == ([(START + HOUR, "retention")] if options else [])
        pass_days(instance, days)
    assert len(recorder.runs) == 1
    assert count(connection, "job") == 0
    levels = {record.levelno for record in caplog.records if "one-time job" in record.message}
    assert levels <= {logging.WARNING, logging.INFO}


def test_a_removed_one_time_job_does_not_run_with_a_longer_retention(
    make: Make, recorder: Recorder
) -> None:
    instance = make()
    instance.register("acme", "x", recorder.body, start_at=START + HOUR)
    pass_days(instance, 32)
    for retention in ("90d", None):
        deployed = make(retention=retention)
        deployed.register("acme", "x", recorder.body, start_at=START + HOUR)
        deployed.advance("1h")
        deployed.unregister("acme", "x")
        deployed.cancel(timeout=0)
    assert len(recorder.runs) == 1


def test_a_new_one_time_job_older_than_the_retention_is_skipped(
    make: Make, recorder: Recorder
) -> None:
    instance = make()
    late, old = START - timedelta(days=29), START - timedelta(days=31)
    instance.register("acme", "late", recorder.body, start_at=late)
    instance.register("acme", "x", recorder.body, start_at=old)
    instance.advance("1h")
    assert [run.job_id for run in recorder.runs] == ["late"]
    assert skips(instance) == [(old, "retention")]
    (shown,) = [job for job in instance.jobs() if job.job_id == "x"]
    assert (shown.last_fire_at, shown.last_outcome) == (old, "skipped")


def test_lock_rows_without_a_job_are_removed_after_the_retention(
    make: Make, connection: psycopg.Connection[Any], recorder: Recorder
) -> None:
    instance = make()
    instance.register("acme", "x", recorder.body, every="1h")
    instance.advance("3h")
    instance.unregister("acme", "x")
    pass_days(instance, 29)
    assert count(connection, "job_lock") == 1
    pass_days(instance, 2)
    assert count(connection, "job_lock") == 0
    instance.register("acme", "x", recorder.body, every="1h")
    instance.advance("1h")
    assert [run.fence for run in recorder.runs] == [1, 2, 3, 4], "a fence only grows"


def test_a_lock_row_with_a_lease_is_not_removed(
    make: Make, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = make()
    instance.register("acme", "x", lambda: None, every="1h")
    instance.clock.advance("1h")
    dies_with_its_claims(instance, monkeypatch)
    connection.execute("DELETE FROM job")
    instance.clock.advance("40d")
    instance._running()._tend()
    assert count(connection, "job_lock") == 1


def test_no_fire_runs_again_after_its_lock_row_was_removed(make: Make, recorder: Recorder) -> None:
    options: dict[str, Any] = {"every": "60d", "start_at": START + HOUR}
    instance = make()
    instance.register("acme", "x", recorder.body, **options)
    instance.advance("1h")
    instance.unregister("acme", "x")
    pass_days(instance, 32)
    instance.register("acme", "x", recorder.body, **options)
    instance.advance("1h")
    assert [run.fire_at for run in recorder.runs] == [START + HOUR]
    instance.advance("30d")
    assert [run.fire_at for run in recorder.runs][1:] == [START + HOUR + timedelta(days=60)]


def test_a_sweep_waits_for_no_transaction(
    dsn: str, schema: str, make: Make, connection: psycopg.Connection[Any]
) -> None:
    instance = make()
    instance.register("acme", "x", lambda: None, start_at=START + HOUR)
    instance.register("acme", "y", lambda: None, start_at=START + HOUR)
    instance.advance("1h")
    instance.clock.advance("40d")
    with psycopg.connect(dsn) as other:
        other.execute(f"SELECT FROM \"{schema}\".job WHERE id = 'x' FOR UPDATE".encode())
        instance._running()._tend()
        assert connection.execute("SELECT id FROM job").fetchall() == [("x",)]


@pytest.mark.parametrize("options", [{"start_at": START + HOUR}, {}], ids=["start", "no start"])
def test_no_sync_registers_a_removed_one_time_job_again(
    make: Make,
    connection: psycopg.Connection[Any],
    recorder: Recorder,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    one, other, stale = make(), make(), make()
    for instance in (one, other, stale):
        instance.register("acme", "x", recorder.body, **options)
    one.advance("1h")
    other.tick()
    pass_days(one, 31)
    for instance in (other, stale, one, other):  # `stale` has not seen the end of the job
        instance.tick()
    assert (count(connection, "job"), len(recorder.runs)) == (0, 1)
    assert "registered again" not in caplog.text
    registered = "SELECT reason FROM job_history WHERE outcome = 'registered'"
    assert connection.execute(registered).fetchall() in ([], [(None,)])


def test_a_removed_job_with_an_unreadable_definition_is_not_registered_again(
    make: Make, connection: psycopg.Connection[Any], recorder: Recorder
) -> None:
    instance = make()
    instance.register("acme", "x", recorder.body, start_at=START + HOUR)
    instance.advance("1h")
    connection.execute("""UPDATE job SET spec = spec || '{"gravity": 0.38}'""")
    pass_days(instance, 31)
    instance.tick()
    assert (count(connection, "job"), len(recorder.runs)) == (0, 1)
