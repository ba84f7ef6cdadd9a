"""The sync: the outcomes that the mirror shows, and the cost of reading them."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from scheduler.store.queries import statement
from scheduler.testing import ManualClock, Scheduler
from tests.periodic.test_claim import dies_with_its_claims, outlive

SPEC = '{"every_us": 60000000}'


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pair(dsn: str, schema: str, clock: ManualClock) -> Iterator[tuple[Scheduler, Scheduler]]:
    with (
        Scheduler(dsn, schema=schema, clock=clock) as one,
        Scheduler(dsn, schema=schema, clock=clock) as other,
    ):
        yield one, other


def pages(connection: psycopg.Connection[Any], schema: str, name: str) -> int:
    """Count the pages that a statement reads."""
    parameters = {"tenants": None, "now": None, "tenant": "t", "after": "", "limit": 1000}
    query = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) " + statement("job", name, schema)
    plan = "\n".join(row[0] for row in connection.execute(query, parameters, prepare=True))
    return max(map(int, re.findall(r"shared hit=(\d+)", plan.split("\nPlanning")[0])))


@pytest.mark.parametrize("name", ["mirror", "page"])
def test_a_sync_costs_the_same_with_many_partitions(
    dsn: str, schema: str, connection: psycopg.Connection[Any], name: str
) -> None:
    with Scheduler(dsn, schema=schema):
        connection.execute(
            "INSERT INTO job (tenant, id, spec, spec_hash, delivery, overlap, next_run_at, "
            "created_at, updated_at)"
            " SELECT 't', 'j' || n, %s::jsonb, decode(repeat('00', 32), 'hex'), 'at_least_once',"
            " 'skip', now(), now(), now() FROM generate_series(1, 1000) n",
            (SPEC,),
        )
        connection.execute("INSERT INTO job_lock (tenant, id) SELECT tenant, id FROM job")
        connection.execute(
            "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, fence)"
            " SELECT now() - d * interval '1 day', tenant, id, 'fire', 'success', now(), 1"
            " FROM job, generate_series(0, 1) d"
        )
        connection.execute("ANALYZE")
        few = pages(connection, schema, name)
        connection.execute("SELECT tend_history(now() - interval '40 days', 31, NULL)")
        assert pages(connection, schema, name) < 1.1 * few


def succeeds(one: Scheduler, other: Scheduler, clock: ManualClock, patch: Any) -> None:
    one.advance("1h")


def is_triggered(one: Scheduler, other: Scheduler, clock: ManualClock, patch: Any) -> None:
    one.advance("1h")
    clock.advance("1m")
    one.trigger("acme", "x")
    one.tick()


def is_paused(one: Scheduler, other: Scheduler, clock: ManualClock, patch: Any) -> None:
    one.advance("1h")
    one.pause("acme", "x")
    one.advance("2h")
    one.resume("acme", "x")


def has_a_paused_tenant(one: Scheduler, other: Scheduler, clock: ManualClock, patch: Any) -> None:
    one.advance("1h")
    one.pause_tenant("acme")
    one.advance("2h")
    one.resume_tenant("acme")


def crashes(one: Scheduler, other: Scheduler, clock: ManualClock, patch: Any) -> None:
    one.advance("1h")
    one.register("acme", "y", lambda: None, every="1h")
    one.unregister("acme", "x")
    other.register("acme", "x", lambda: None, every="1h", delivery="at_most_once")
    clock.advance("1h")
    for run in dies_with_its_claims(other, patch):
        other._running().locks.begin(run)
    outlive(clock, one)


def is_unregistered(one: Scheduler, other: Scheduler, clock: ManualClock, patch: Any) -> None:
    one.advance("1h")
    one.pause("acme", "x")
    one.advance("2h")
    one.resume("acme", "x")
    one.unregister("acme", "x")
    one.register("acme", "x", lambda: None, every="2h")


def is_queued(one: Scheduler, other: Scheduler, clock: ManualClock, patch: Any) -> None:
    one.advance("1h")
    one.unregister("acme", "x")
    one.register("acme", "x", queue="mail", every="1h")
    one.advance("1h")


def overlaps_its_job(one: Scheduler, other: Scheduler, clock: ManualClock, patch: Any) -> None:
    is_queued(one, other, clock, patch)
    one.advance("1h")


def is_missed(one: Scheduler, other: Scheduler, clock: ManualClock, patch: Any) -> None:
    one.unregister("acme", "x")
    one.register("acme", "x", lambda: None, every="1h", misfire="skip")
    clock.advance("2h30m")
    one.tick()


CASES: dict[Callable[..., None], str] = {
    succeeds: "success",
    is_triggered: "success",
    is_paused: "skipped",
    has_a_paused_tenant: "skipped",
    crashes: "crashed",
    is_unregistered: "skipped",
    is_queued: "queued",
    overlaps_its_job: "skipped",
    is_missed: "skipped",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_mirror_shows_the_newest_ledger_row(
    pair: tuple[Scheduler, Scheduler],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    case: Callable[..., None],
) -> None:
    one, other = pair
    one.register("acme", "x", lambda: None, every="1h")
    case(one, other, clock, monkeypatch)
    one._running().sync.sync()
    shown = next(job for job in one.jobs() if job.job_id == "x")
    newest = next(row for row in one.history("acme", "x") if row.kind != "audit")
    assert shown.last_outcome == CASES[case]
    assert (shown.last_fire_at, shown.last_outcome, shown.last_finished_at) == (
        newest.at,
        newest.outcome,
        newest.finished_at,
    )


def test_an_older_fire_that_ends_last_is_not_shown_as_newest(
    pair: tuple[Scheduler, Scheduler], clock: ManualClock
) -> None:
    one, _ = pair
    fails = True

    def body() -> None:
        nonlocal fails
        fails = not fails
        if fails:
            raise ValueError

    one.register("acme", "x", body, every="1h", overlap="queue_one")
    clock.advance(timedelta(hours=1))
    clock.advance("5s")
    at = one.trigger("acme", "x")
    one.tick()
    one._running().sync.sync()
    (shown,) = one.jobs()
    newest = next(row for row in one.history("acme", "x") if row.kind != "audit")
    assert (newest.at, newest.kind) == (at, "trigger")
    assert (shown.last_fire_at, shown.last_outcome) == (at, newest.outcome)
