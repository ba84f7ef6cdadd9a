"""Definitions of several versions of an app, rows that disappear, and definitions that are changed
by SQL, in time that the test moves.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from scheduler import CatchUp, Registration, RetryPolicy, Timeouts
from scheduler.events import JobRolledBack
from scheduler.model.definition import JobSpec
from scheduler.store.job import JobRow
from scheduler.testing import START, ManualClock, Scheduler
from tests.conftest import MakeScheduler
from tests.periodic.conftest import Road
from tests.support.waiting import wait_for

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
Make = Callable[..., Scheduler]
Plain = psycopg.Connection[Any]


def nothing() -> None:
    pass


class JumpingClock(ManualClock):
    """A clock whose database can be set forward: monotonic time does not pass then."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped = timedelta(0)

    def monotonic(self) -> float:
        return super().monotonic() - self.jumped.total_seconds()

    def jump(self, by: timedelta) -> None:
        self.jumped += by
        self._now += by


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
def make(road: Road, schema: str, clock: JumpingClock) -> Iterator[Make]:
    """Instances of the app `shop` that share one clock."""
    made: list[Scheduler] = []

    def start(version: int | None = None, **options: Any) -> Scheduler:
        options = {"app": "shop", "version": version, **options}
        one = Scheduler(road.dsn, schema=schema, clock=clock, prepare=road.prepare, **options)
        made.append(one)
        return one.start()

    yield start
    for one in made:
        if one.is_running():
            one.cancel(timeout=0)


def stored(connection: Plain, job: str = "x") -> tuple[str | None, int | None, int] | None:
    """App, version and hours of the interval in the row of a job."""
    return connection.execute(
        "SELECT app, version, (spec->>'every_us')::bigint / 3600000000 FROM job WHERE id = %s",
        (job,),
    ).fetchone()


def rollbacks(instance: Scheduler) -> list[JobRolledBack]:
    found: list[JobRolledBack] = []
    instance.subscribe(
        lambda event: found.append(event) if isinstance(event, JobRolledBack) else None
    )
    return found


def pass_minutes(clock: ManualClock, count: int, *instances: Scheduler) -> None:
    for _ in range(count):
        clock.advance("1m")
        for instance in instances:
            instance.tick()


def changes(instance: Scheduler, job: str = "x") -> list[str]:
    """Reasons of the changes that `explain` shows, oldest first, without the next run."""
    found = reversed(instance.explain("acme", job).changes)
    return [(change.reason or "").partition(", next run")[0] for change in found]


def test_a_lower_version_yields_while_a_higher_one_is_alive(
    make: Make, clock: JumpingClock, connection: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    new, old = make(7), make(6)
    caplog.set_level(logging.INFO, logger="scheduler")
    events = rollbacks(old)
    new.register("acme", "x", nothing, every="7h")
    old.register("acme", "x", nothing, every="6h")
    assert stored(connection) == ("shop", 7, 7)
    pass_minutes(clock, 10, old, new)
    assert stored(connection) == ("shop", 7, 7)
    assert [(job.every, job.runnable) for job in old.jobs()] == [(7 * HOUR, True)]
    assert events == []
    assert "version 6 of shop does not replace that of version 7 of shop" in caplog.text


def test_a_higher_version_replaces_a_lower_one_and_explain_shows_it(
    make: Make, connection: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = make(6, label="web-6"), make(7, label="web-7")
    caplog.set_level(logging.INFO, logger="scheduler")
    old.register("acme", "x", nothing, every="6h")
    new.register("acme", "x", nothing, every="7h")
    assert stored(connection) == ("shop", 7, 7)
    found = old.explain("acme", "x")
    assert (found.app, found.version) == ("shop", 7)
    assert [(change.outcome, change.holder) for change in found.changes] == [
        ("changed", "web-7"),
        ("registered", "web-6"),
    ]
    assert changes(old) == ["", "version 7 of shop replaced version 6 of shop"]
    assert "version 7 of shop replaced version 6 of shop" in str(found)
    assert "acme/x: version 7 of shop replaced version 6 of shop" in caplog.text


def test_a_lower_version_replaces_the_definition_when_the_higher_one_has_left(
    make: Make, connection: Plain
) -> None:
    new, old = make(7), make(6)
    events = rollbacks(old)
    new.register("acme", "x", nothing, every="7h")
    old.register("acme", "x", nothing, every="6h")
    new.cancel()
    old.tick()
    assert stored(connection) == ("shop", 6, 6)
    assert [job.every for job in old.jobs()] == [6 * HOUR]
    assert events == [
        JobRolledBack(tenant="acme", job_id="x", app="shop", version=6, previous_version=7)
    ]
    assert changes(old)[-1] == "rolled back from version 7 of shop to version 6 of shop"


def test_a_higher_version_that_was_killed_counts_as_dead_after_three_syncs(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    new, old = make(7), make(6)
    new.register("acme", "x", nothing, every="7h")
    old.register("acme", "x", nothing, every="6h")
    pass_minutes(clock, 3, old)
    assert stored(connection) == ("shop", 7, 7)
    pass_minutes(clock, 1, old)
    assert stored(connection) == ("shop", 6, 6)


def test_an_instance_that_starts_waits_before_it_replaces_the_version_of_a_dead_one(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    make(7).register("acme", "x", nothing, every="7h")
    clock.advance("1h")
    old = make(6)
    old.register("acme", "x", nothing, every="6h")
    assert stored(connection) == ("shop", 7, 7)
    pass_minutes(clock, 1, old)
    assert stored(connection) == ("shop", 6, 6)


def test_of_several_lower_versions_the_highest_replaces_the_definition(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    new, middle, old = make(7), make(6), make(5)
    for instance in (new, middle, old):
        version = instance.settings.version
        instance.register("acme", "x", nothing, every=f"{version}h")
    new.cancel()
    pass_minutes(clock, 3, old, middle)
    assert stored(connection) == ("shop", 6, 6)


def test_between_equal_versions_the_last_register_wins_and_no_sync_writes(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    one, other = make(7), make(7)
    one.register("acme", "x", nothing, every="1h")
    other.register("acme", "x", nothing, every="2h")
    before = connection.execute("SELECT xmin, * FROM job").fetchall()
    pass_minutes(clock, 5, one, other)
    assert stored(connection) == ("shop", 7, 2)
    assert connection.execute("SELECT xmin, * FROM job").fetchall() == before


def test_a_rollback_restores_what_the_lower_version_registered_last(
    make: Make, connection: Plain
) -> None:
    first, second, new = make(6), make(6), make(7)
    first.register("acme", "x", nothing, every="1h")
    second.register("acme", "x", nothing, every="2h")
    first.tick()
    new.register("acme", "x", nothing, every="7h")
    new.cancel()
    first.tick()
    assert stored(connection) == ("shop", 6, 2)


def test_a_definition_without_a_version_is_the_lowest(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    plain, new = make(), make(0)
    plain.register("acme", "x", nothing, every="1h")
    new.register("acme", "x", nothing, every="2h")
    assert stored(connection) == ("shop", 0, 2)
    late = make()
    late.register("acme", "x", nothing, every="1h")
    pass_minutes(clock, 2, plain, late, new)
    assert stored(connection) == ("shop", 0, 2)
    new.cancel()
    plain.tick()
    assert stored(connection) == ("shop", None, 1)


@pytest.mark.parametrize("app", ["stock", None])
def test_definitions_of_different_apps_have_no_order(
    make: Make, clock: JumpingClock, connection: Plain, app: str | None
) -> None:
    shop, other = make(7), make(1, app=app)
    shop.register("acme", "x", nothing, every="7h")
    other.register("acme", "x", nothing, every="1h")
    pass_minutes(clock, 2, shop, other)
    assert stored(connection) == (app, 1, 1)


def test_instances_without_an_app_are_one_app(make: Make, connection: Plain) -> None:
    new, old = make(7, app=None), make(6, app=None)
    new.register("acme", "x", nothing, every="7h")
    old.register("acme", "x", nothing, every="6h")
    assert stored(connection) == (None, 7, 7)


def test_an_unchanged_definition_of_another_version_is_no_change(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    old, new = make(6), make(7)
    old.register("acme", "x", nothing, every="1h")
    clock.advance("10m")
    row = connection.execute("SELECT spec_hash, next_run_at, updated_at FROM job").fetchone()
    new.register("acme", "x", nothing, every="1h")
    late = make(6)
    late.register("acme", "x", nothing, every="2h")
    assert stored(connection) == ("shop", 7, 1)
    assert connection.execute("SELECT spec_hash, next_run_at, updated_at FROM job").fetchone() == (
        row
    )
    assert changes(new) == [""]


def test_a_jump_of_the_database_clock_rolls_nothing_back(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    new, old = make(7), make(6)
    events = rollbacks(old)
    new.register("acme", "x", nothing, every="7h")
    old.register("acme", "x", nothing, every="6h")
    pass_minutes(clock, 2, new, old)
    clock.jump(HOUR)
    old.tick()
    assert stored(connection) == ("shop", 7, 7)
    pass_minutes(clock, 3, new, old)
    assert stored(connection) == ("shop", 7, 7)
    assert events == []


def test_a_higher_version_that_was_taken_for_dead_restores_its_definition(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    new, old = make(7), make(6)
    new.register("acme", "x", nothing, every="7h")
    old.register("acme", "x", nothing, every="6h")
    pass_minutes(clock, 5, old)
    assert stored(connection) == ("shop", 6, 6)
    new.tick()  # it was suspended
    assert stored(connection) == ("shop", 7, 7)
    pass_minutes(clock, 5, old, new)
    assert stored(connection) == ("shop", 7, 7)


def test_a_rollback_loses_against_a_higher_version_that_starts_during_it(
    make: Make, connection: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = make(7), make(6)
    new.register("acme", "x", nothing, every="7h")
    old.register("acme", "x", nothing, every="6h")
    new.cancel()
    registrar = old._running().registrar
    change = registrar.jobs.change

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        make(8).register("acme", "x", nothing, every="8h")
        return change(*arguments, **options)

    monkeypatch.setattr(type(registrar.jobs), "change", lambda _, *a, **o: late(*a, **o))
    old.tick()
    assert stored(connection) == ("shop", 8, 8)


def test_a_sync_that_read_old_rows_does_not_replace_newer_definitions(
    make: Make, connection: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = make(6), make(7)
    newest = make(8)
    old.register("acme", "x", nothing, every="6h")
    jobs = type(new._running().control.jobs)
    mirror = jobs.mirror

    def stale(self: Any, tenants: Any) -> list[JobRow]:
        rows = mirror(self, tenants)
        monkeypatch.undo()
        newest.register("acme", "x", nothing, every="8h")
        return rows

    new.register("acme", "x", nothing, every="7h")
    connection.execute("UPDATE job SET version = 6")
    monkeypatch.setattr(jobs, "mirror", stale)
    new.tick()
    assert stored(connection) == ("shop", 8, 8)


def test_versions_that_register_concurrently_agree_on_the_higher(
    make_scheduler: MakeScheduler, connection: Plain
) -> None:
    instances = [
        make_scheduler(app="shop", version=version, sync_every="1s") for version in (6, 7, 6, 7)
    ]
    barrier = threading.Barrier(len(instances))
    errors: list[BaseException] = []

    def go(instance: Any) -> None:
        version = instance.settings.version
        barrier.wait()
        try:
            instance.register_many(
                [
                    {"tenant": "acme", "job_id": f"j{n}", "fn": nothing, "every": f"{version}h"}
                    for n in range(100)
                ]
            )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(instance,)) for instance in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    rows = connection.execute("SELECT DISTINCT version, spec->>'every_us' FROM job").fetchall()
    assert rows == [(7, str(7 * HOUR // timedelta(microseconds=1)))]
    wait_for(
        lambda: {job.every for one in instances for job in one.jobs()} == {7 * HOUR},
        "the definitions of the higher version everywhere",
    )


def test_a_job_unregistered_by_a_higher_version_stays_away_while_that_is_alive(
    make: Make, clock: JumpingClock, connection: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = make(6), make(7)
    caplog.set_level(logging.INFO, logger="scheduler")
    old.register("acme", "x", nothing, every="6h")
    new.register("acme", "x", nothing, every="7h")
    new.unregister("acme", "x")
    late = make(6)
    late.register("acme", "x", nothing, every="6h")
    pass_minutes(clock, 5, old, late, new)
    assert stored(connection) is None
    assert old.jobs() == late.jobs() == []
    assert "not registered by version 6 of shop: it was unregistered by version 7" in caplog.text
    events = rollbacks(late)
    new.cancel()
    late.tick()
    assert stored(connection) == ("shop", 6, 6)
    assert [(event.version, event.previous_version) for event in events] == [(6, 7)]
    assert [job.runnable for job in late.jobs()] == [True]


def test_a_job_unregistered_by_its_version_comes_back_with_that_version(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    one, other = make(7), make(7)
    one.register("acme", "x", nothing, every="7h")
    other.register("acme", "x", nothing, every="7h")
    one.unregister("acme", "x")
    pass_minutes(clock, 3, one, other)
    assert stored(connection) is None
    one.register("acme", "x", nothing, every="1h")
    other.tick()
    assert [(job.every, job.runnable) for job in other.jobs()] == [(HOUR, True)]
    assert connection.execute("SELECT count(*) FROM job_tombstone").fetchone() == (0,)


def test_a_lower_version_does_not_unregister_the_job_of_a_higher_one(
    make: Make, connection: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    new, old = make(7), make(6)
    new.register("acme", "x", nothing, every="7h")
    old.register("acme", "x", nothing, every="6h")
    old.unregister("acme", "x")
    assert stored(connection) == ("shop", 7, 7)
    assert "acme/x is not unregistered" in caplog.text
    old.tick()
    assert [job.runnable for job in old.jobs()] == []
    old.register("acme", "x", nothing, every="6h")
    new.cancel()
    old.unregister("acme", "x")
    assert stored(connection) is None


def test_a_tombstone_outlived_by_a_function_still_orders_versions(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    new, old = make(7), make(6)
    old.register("acme", "x", nothing, every="6h")
    new.unregister("acme", "x")
    old.tick()
    connection.execute("DELETE FROM job_tombstone")  # retention is over
    pass_minutes(clock, 3, old, new)
    assert stored(connection) is None
    new.cancel()
    old.tick()
    assert stored(connection) == ("shop", 6, 6)


def test_a_row_that_disappeared_is_registered_again_as_it_was(
    make: Make, clock: JumpingClock, connection: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = make(7), make(6)
    one.register("acme", "x", nothing, every="7h")
    one.register("acme", "paused", nothing, every="1h")
    other.register("acme", "x", nothing, every="6h")
    one.pause("acme", "paused")
    clock.advance("10m")
    one.tick()
    before = connection.execute(
        "SELECT id, spec, spec_hash, next_run_at, paused_at, app, version FROM job ORDER BY id"
    ).fetchall()
    connection.execute("DELETE FROM job")
    other.tick()
    one.tick()
    after = connection.execute(
        "SELECT id, spec, spec_hash, next_run_at, paused_at, app, version FROM job ORDER BY id"
    ).fetchall()
    assert after == before
    assert "acme/x is registered again: its row in job had disappeared" in caplog.text
    assert "acme/paused is registered again" in caplog.text
    assert changes(one)[-1] == "its row had disappeared"
    assert len(one.advance("7h")) == 1


def test_a_row_that_disappeared_gives_no_fire_out_again(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    one, stale = make(), make()
    for instance in (one, stale):
        instance.register("acme", "x", queue="mail", every="1h")
    one.advance("2h")
    connection.execute("DELETE FROM job")
    stale.tick()
    assert connection.execute("SELECT next_run_at FROM job").fetchall() == [(START + 3 * HOUR,)]
    assert len(connection.execute("SELECT FROM job_queue").fetchall()) == 1
    one.advance("1h")
    fires = "SELECT at FROM job_history WHERE outcome IN ('queued', 'skipped') ORDER BY at"
    assert [at for (at,) in connection.execute(fires)] == [START + n * HOUR for n in (1, 2, 3)]


def test_a_one_time_job_that_has_fired_is_not_registered_again(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    one, other, fired = make(), make(), list[datetime]()
    one.register("acme", "done", lambda ctx: fired.append(ctx.fire_at))
    one.register("acme", "later", nothing, start_at=START + HOUR)
    other.register("acme", "done", nothing)
    one.tick()
    connection.execute("DELETE FROM job_lock")
    connection.execute("DELETE FROM job")
    pass_minutes(clock, 2, other, one)
    assert connection.execute("SELECT id FROM job").fetchall() == [("later",)]
    assert len(fired) == 1


def test_jobs_of_a_deleted_tenant_stay_deleted_until_registered(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    one = make()
    for job in ("x", "y"):
        one.register("acme", job, nothing, every="1h")
    bury = (
        "INSERT INTO job_tombstone (tenant, id, deleted_at) VALUES ('acme', '', %s)"
        " ON CONFLICT (tenant, id) DO UPDATE SET deleted_at = excluded.deleted_at"
    )
    connection.execute("DELETE FROM job")
    connection.execute(bury, (clock.now(),))
    pass_minutes(clock, 2, one)
    assert stored(connection) is None
    one.register("acme", "x", nothing, every="1h")
    connection.execute("DELETE FROM job")  # not by delete_tenant
    pass_minutes(clock, 2, one)
    assert connection.execute("SELECT id FROM job").fetchall() == [("x",)]
    connection.execute("DELETE FROM job")
    connection.execute(bury, (START - DAY,))  # the clock of the database was set back
    pass_minutes(clock, 2, one)
    assert stored(connection) is None


def test_a_sync_that_failed_registers_the_disappeared_row_later(
    make: Make, connection: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make()
    one.register("acme", "x", nothing, every="1h")
    connection.execute("DELETE FROM job")
    connection.execute("ALTER TABLE job_tombstone RENAME TO elsewhere")
    one.tick()
    assert stored(connection) is None
    connection.execute("ALTER TABLE elsewhere RENAME TO job_tombstone")
    one.tick()
    assert stored(connection) == ("shop", None, 1)
    assert [job.runnable for job in one.jobs()] == [True]


def edit(connection: Plain, job: str = "x", **changes: object) -> None:
    """Change parts of a definition by SQL, and not its hash."""
    connection.execute("UPDATE job SET spec = spec || %s WHERE id = %s", (Jsonb(changes), job))


def test_a_definition_changed_by_sql_is_used_after_the_next_sync(
    make: Make, clock: JumpingClock, connection: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, fired = make(), make(), list[datetime]()
    caplog.set_level(logging.INFO, logger="scheduler")
    for instance in (one, other):
        instance.register("acme", "x", lambda ctx: fired.append(ctx.fire_at), every="10h")
    one.tick()
    edit(connection, every_us=HOUR // timedelta(microseconds=1), overlap="queue_one")
    other.tick()
    one.tick()
    row = connection.execute("SELECT spec::text, spec_hash, overlap, next_run_at FROM job")
    text, spec_hash, overlap, next_run_at = row.fetchone() or ("", b"", "", None)
    assert JobSpec.from_json(text).hash() == spec_hash
    assert (overlap, next_run_at) == ("queue_one", START + HOUR)
    assert [job.every for job in (*one.jobs(), *other.jobs())] == [HOUR, HOUR]
    one.advance("2h")
    other.tick()
    assert fired == [START + HOUR, START + 2 * HOUR]
    assert changes(one) == ["", "job.spec was changed by SQL"]
    assert caplog.text.count("acme/x: job.spec was changed by SQL") == 1


def test_a_definition_changed_by_sql_while_its_hash_is_stored_is_not_lost(
    make: Make, connection: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make()
    one.register("acme", "x", nothing, every="10h")
    one.tick()
    edit(connection, every_us=HOUR // timedelta(microseconds=1))
    jobs = type(one._running().control.jobs)
    change = jobs.change

    def late(self: Any, *arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        edit(connection, every_us=2 * HOUR // timedelta(microseconds=1))
        return change(self, *arguments, **options)

    monkeypatch.setattr(jobs, "change", late)
    one.tick()
    one.tick()
    assert [job.every for job in one.jobs()] == [2 * HOUR]
    assert stored(connection) == ("shop", None, 2)


def test_a_registration_replaces_a_definition_changed_by_sql(make: Make, connection: Plain) -> None:
    make().register("acme", "x", nothing, every="10h")
    edit(connection, every_us=HOUR // timedelta(microseconds=1))
    make().register("acme", "x", nothing, every="10h")
    assert stored(connection) == ("shop", None, 10)


def test_a_definition_made_unreadable_by_sql_is_left_alone_until_it_is_repaired(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    one = make()
    one.register("acme", "x", nothing, every="1h")
    one.tick()
    edit(connection, moon="full")
    assert one.advance("2h") == []
    assert [job.runnable for job in one.jobs()] == [False]
    connection.execute("UPDATE job SET spec = spec - 'moon'")
    assert len(one.advance("1h")) > 0


def test_a_function_is_not_needed_to_store_the_hash_of_a_definition(
    make: Make, clock: JumpingClock, connection: Plain
) -> None:
    one, other = make(), make(tenants="all")
    one.register("acme", "x", nothing, every="10h")
    other.tick()
    edit(connection, every_us=HOUR // timedelta(microseconds=1))
    other.tick()
    assert [job.every for job in other.jobs()] == [HOUR]


def test_the_hash_of_every_definition_survives_postgres(connection: Plain) -> None:
    retry = RetryPolicy(multiplier=1.1, initial_delay="70ms", backoff="línear", jitter=False)
    for options in (
        {"every": "1h"},
        {"cron": "0 6 * * MON", "timezone": "Europe/Paris", "start_at": START},
        {"every": "7ms", "jitter": "3ms", "start_at": START + timedelta(microseconds=1)},
        {"misfire": "catch_up", "catch_up": CatchUp(max_count=3, max_age="2h"), "every": "1h"},
        {"overlap": "queue_one", "grace": "90s", "timeout": "5m", "delivery": "at_most_once"},
        {"queue": "q", "payload": {"ü": [1.0, 1e300, 0.1, None]}, "fn": None, "every": "1d"},
        {"queue": "q", "payload": b"\0", "fn": None, "retry": retry, "every": "1d"},
        {"queue": "q", "fn": None, "retry": retry, "timeouts": Timeouts(lifetime="3d")},
    ):
        item: dict[str, Any] = {"tenant": "acme", "job_id": "x", "fn": nothing, **options}
        spec = Registration(**item).checked().spec
        row = connection.execute("SELECT %s::jsonb::text", (spec.to_json(),)).fetchone()
        assert row is not None
        assert JobSpec.from_json(row[0]).hash() == spec.hash(), options
