"""What users get for their own tests: time that they move, a fixture, and a way to wait for an
event.
"""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import scheduler
from scheduler import Outcome, testing
from scheduler.events import FireEnded, FireStarted
from tests.conftest import MakeScheduler

USERS_TEST = '''
import scheduler
from scheduler.testing import START

sent = []

def remind() -> None:
    sent.append("hello")

async def report() -> None:
    sent.append("report")

def start_app() -> None:
    """The user's own code, as it is in production."""
    scheduler.register("acme", "remind", remind, cron="0 9 * * 1-5", timezone="Europe/Paris")
    scheduler.register("acme", "report", report, every="1d")

def test_three_days(manual_scheduler):
    start_app()
    ended = manual_scheduler.advance("3 days")
    assert [event.job_id for event in ended] == ["remind", "report"] * 3
    assert sent == ["hello", "report"] * 3
    assert START == manual_scheduler.clock.now() - __import__("datetime").timedelta(days=3)

def test_each_test_begins_anew(manual_scheduler):
    assert scheduler.jobs() == []
    scheduler.register("acme", "remind", remind)
    scheduler.cancel()
'''


def test_the_fixture_gives_an_initialised_scheduler_on_a_temporary_postgres(
    tmp_path: Path, dsn: str
) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["scheduler.pytest_plugin"]\n')
    (tmp_path / "test_mine.py").write_text(USERS_TEST)
    for given in (dsn, None):
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        if given is not None:
            environment["SCHEDULER_TEST_DATABASE_URL"] = given
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:postgresql", str(tmp_path)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert "2 passed" in run.stdout, run.stdout + run.stderr


def test_time_stands_still_until_it_is_moved(dsn: str, schema: str) -> None:
    clock = testing.ManualClock(datetime(2031, 5, 1, tzinfo=UTC))
    with testing.Scheduler(dsn, schema=schema, clock=clock) as instance:
        fires: list[datetime] = []
        instance.register("acme", "x", lambda context: fires.append(context.fire_at), every="6h")
        assert instance.tick() == []
        assert instance.advance("5h") == []
        (ended,) = instance.advance(timedelta(hours=1))
        assert (ended.outcome, ended.fire_at) == (
            Outcome.SUCCESS,
            datetime(2031, 5, 1, 6, tzinfo=UTC),
        )
        assert fires == [ended.fire_at]
        assert clock.now() == datetime(2031, 5, 1, 6, tzinfo=UTC)


def test_a_body_that_raises_is_an_outcome_and_the_test_goes_on(dsn: str, schema: str) -> None:
    def fails() -> None:
        raise ValueError("no paper")

    async def waits() -> None:
        raise RuntimeError("no ink")

    with testing.Scheduler(dsn, schema=schema) as instance:
        instance.register("acme", "a", fails)
        instance.register("acme", "b", waits)
        errors = [(event.error or "").splitlines()[0] for event in instance.tick()]
        assert errors == ["ValueError: no paper", "RuntimeError: no ink"]


def test_two_instances_on_one_clock_share_the_fires(dsn: str, schema: str) -> None:
    clock = testing.ManualClock()
    runs: list[str] = []
    with (
        testing.Scheduler(dsn, schema=schema, clock=clock) as one,
        testing.Scheduler(dsn, schema=schema, clock=clock) as other,
    ):
        one.register("acme", "x", lambda: runs.append("one"), every="1m")
        other.register("acme", "x", lambda: runs.append("other"), every="1m")
        one.advance("2m")
        other.tick()
        clock.advance("1m")
        other.tick()
        one.tick()
    assert runs == ["one", "one", "other"]


def test_the_process_scheduler_can_be_a_manual_one(dsn: str, schema: str) -> None:
    made = testing.initialise(dsn, schema=schema)
    try:
        with pytest.raises(scheduler.AlreadyInitialised):
            testing.initialise(dsn, schema=schema)
        scheduler.register("acme", "x", lambda: None, every="1h")
        assert len(made.advance("2h")) == 2
    finally:
        scheduler.cancel()
    with pytest.raises(scheduler.NotInitialised):
        made.tick()


def test_wait_for_sees_what_happens_in_its_block(make_scheduler: MakeScheduler) -> None:
    instance = make_scheduler()
    instance.register("acme", "x", lambda: None, every="1h")
    with testing.wait_for(instance, FireEnded, job_id="x") as seen:
        at = instance.trigger("acme", "x")
    assert (seen.event.fire_at, seen.event.outcome) == (at, "success")
    with (
        pytest.raises(TimeoutError, match="no FireStarted with {'job_id': 'y'} within 0.1 s"),
        testing.wait_for(instance, FireStarted, job_id="y", timeout=0.1),
    ):
        pass
