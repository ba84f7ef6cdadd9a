"""A registered job with queue=: each fire becomes a submitted job, once in the fleet, without a
function anywhere.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from scheduler import InvalidOption, Outcome, Priority, RetryPolicy, State, Timeouts
from scheduler.testing import START, ManualClock, Scheduler
from tests.queueing.test_submit import finish

HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pair(dsn: str, schema: str, clock: ManualClock) -> Iterator[tuple[Scheduler, Scheduler]]:
    """Two instances; only the first has registered anything."""
    with (
        Scheduler(dsn, schema=schema, clock=clock) as one,
        Scheduler(dsn, schema=schema, clock=clock, tenants="all") as other,
    ):
        yield one, other


def queued(instance: Scheduler) -> list[UUID]:
    rows = instance.history("acme", "report", 1000)
    return [
        UUID(row.job["id"]) for row in reversed(rows) if row.outcome is Outcome.QUEUED and row.job
    ]


def test_each_fire_becomes_a_job(
    pair: tuple[Scheduler, Scheduler], connection: psycopg.Connection[Any]
) -> None:
    one, _ = pair
    one.register(
        "acme",
        "report",
        queue="mail",
        type="send",
        payload={"n": 1},
        every="1h",
        priority=Priority.HIGH,
        retry=RetryPolicy(max_attempts=5),
        timeouts=Timeouts(lifetime="2h"),
        overlap="skip",
    )
    one.advance("1h")
    (first,) = queued(one)
    job = one.get("acme", first)
    assert (job.type, job.queue, job.priority, job.payload) == (
        "send",
        "mail",
        Priority.HIGH,
        {"n": 1},
    )
    assert (job.retry.max_attempts, job.created_at, job.expires_at) == (
        5,
        START + HOUR,
        START + 3 * HOUR,
    )
    assert job.state is State.PENDING
    finish(one, first)
    one.advance("1h")
    assert len(queued(one)) == 2
    assert connection.execute(
        "SELECT count(*) FROM job_lock WHERE owner IS NOT NULL"
    ).fetchone() == (0,)


def test_any_instance_that_mirrors_it_may_do_it_and_only_one_does(
    pair: tuple[Scheduler, Scheduler], clock: ManualClock
) -> None:
    one, other = pair
    one.register("acme", "report", queue="mail", cron="0 * * * *")
    for _ in range(3):
        clock.advance("1h")
        other._running().sync.sync()
        one._running().sync.sync()
        other.tick()
        one.tick()
        finish(one, *[job for job in queued(one) if not one.get("acme", job).state.terminal])
    assert len(queued(one)) == 3
    assert other.jobs()[0].runnable
    one.cancel(timeout=0)
    other.advance("1h")
    assert len(queued(other)) == 4


def test_a_fire_is_skipped_or_waits_while_the_job_before_it_lives(
    pair: tuple[Scheduler, Scheduler], clock: ManualClock
) -> None:
    one, _ = pair
    one.register("acme", "report", queue="mail", every="1h")
    one.register("acme", "patient", queue="mail", every="1h", overlap="queue_one")
    one.advance("3h")
    outcomes = [
        (row.outcome, row.reason)
        for row in reversed(one.history("acme", "report"))
        if row.kind == "fire"
    ]
    assert outcomes == [
        (Outcome.QUEUED, None),
        (Outcome.SKIPPED, "overlap"),
        (Outcome.SKIPPED, "overlap"),
    ]
    rows = [row for row in one.history("acme", "patient") if row.kind == "fire"]
    assert [row.outcome for row in rows] == [Outcome.QUEUED]
    assert rows[0].job is not None
    finish(one, UUID(rows[0].job["id"]))
    clock.advance("2s")
    one.tick()
    newest = one.history("acme", "patient")[0]
    assert (newest.outcome, newest.at, newest.missed_count) == (Outcome.QUEUED, START + 3 * HOUR, 1)


def test_triggers_and_pauses_work_as_for_functions(
    pair: tuple[Scheduler, Scheduler], clock: ManualClock
) -> None:
    one, other = pair
    one.register("acme", "report", queue="mail", every="1h")
    other.pause("acme", "report")
    one.advance("2h30m")
    assert queued(one) == []
    at = other.trigger("acme", "report")
    one.tick()
    (first,) = queued(one)
    assert one.history("acme", "report")[0].kind == "trigger"
    assert at == START + timedelta(hours=2, minutes=30)
    other.trigger("acme", "report")
    one.tick()
    assert queued(one) == [first]  # it waits for the first
    finish(one, first)
    clock.advance("2s")
    one.tick()
    assert len(queued(one)) == 2
    finish(one, queued(one)[1])
    assert one.resume("acme", "report") == START + 3 * HOUR
    one.advance("1h")
    assert len(queued(one)) == 3


def test_the_type_is_the_jobs_id_by_default_and_bytes_travel(
    pair: tuple[Scheduler, Scheduler],
) -> None:
    one, other = pair
    one.register("acme", "report", queue="mail", payload=b"\0\xff", start_at=START + HOUR)
    other.advance("1h")
    (job,) = [other.get("acme", each) for each in queued(other)]
    assert (job.type, job.payload) == ("report", b"\0\xff")
    assert other.jobs()[0].next_run_at is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "mail", "fn": print}, "fn and queue exclude"),
        ({"queue": "a b"}, "queue must be"),
        ({"queue": "mail", "timeout": "1m"}, "timeout is for functions"),
        ({"queue": "mail", "executor": "process"}, "executor is for functions"),
        ({"queue": "mail", "payload": {1, 2}}, "type set"),
        ({"fn": print, "type": "x"}, "type belongs to queue="),
        ({"fn": print, "payload": 1}, "payload belongs to queue="),
        ({"fn": print, "retry": RetryPolicy(max_attempts=5)}, "retry belongs to queue="),
    ],
)
def test_what_does_not_go_together_is_refused(
    instance: Scheduler, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(Exception, match=says) as caught:
        instance.register("acme", "x", options.pop("fn", None), every="1h", **options)
    assert (
        isinstance(caught.value, InvalidOption | ValueError)
        or type(caught.value).__module__ == "scheduler.errors"
    )
    assert instance.jobs() == []


def test_an_unchanged_definition_touches_nothing(pair: tuple[Scheduler, Scheduler]) -> None:
    for instance in pair:
        instance.register("acme", "report", queue="mail", payload={"b": 1, "a": [2]}, every="1h")
    assert [row.outcome for row in pair[0].history("acme")] == [Outcome.REGISTERED]
