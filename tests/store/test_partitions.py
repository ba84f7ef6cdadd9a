"""The ledger's partitions: made ahead, one a day in UTC, dropped when they are too old, by one
instance at a time.
"""

import threading
from datetime import timedelta
from typing import Any

import psycopg

from scheduler.testing import START, ManualClock, Scheduler
from tests.support.recorder import until


def partitions(connection: psycopg.Connection[Any]) -> list[str]:
    rows = connection.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'job_history'::regclass ORDER BY 1"
    ).fetchall()
    return [name for (name,) in rows]


def counts(connection: psycopg.Connection[Any]) -> dict[str, int]:
    return {
        name: connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchall()[0][0]
        for name in partitions(connection)
    }


def test_a_week_is_made_ahead_and_each_row_is_in_its_day(
    dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    with Scheduler(dsn, schema=schema) as instance:
        names = [f"job_history_{START + n * timedelta(days=1):%Y%m%d}" for n in range(8)]
        assert partitions(connection) == [*names, "job_history_default"]
        instance.register("acme", "x", lambda: None, every="12h")
        instance.advance("2d12h")
        found = counts(connection)
        assert [found[name] for name in names[:3]] == [2, 2, 2]
        assert found["job_history_default"] == 0


def test_what_is_too_old_is_dropped_and_nothing_else(
    dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    clock = ManualClock()
    with Scheduler(dsn, schema=schema, clock=clock, retention="3d") as instance:
        instance.register("acme", "x", lambda: None, every="1d")
        instance.submit("acme", "y", idempotency_key="k", idempotency_window="1d")
        for _ in range(12):
            instance.advance("1d")
            instance._running()._tend()
        kept = [row.at for row in instance.history("acme", "x") if row.kind == "fire"]
        assert kept == [START + n * timedelta(days=1) for n in (12, 11, 10, 9, 8)]
        assert counts(connection)["job_history_default"] == 0
        assert connection.execute("SELECT count(*) FROM job_key").fetchone() == (0,)


def test_a_run_that_ended_within_the_retention_is_kept_however_old_its_fire(
    dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    clock = ManualClock()
    with Scheduler(dsn, schema=schema, clock=clock) as instance:
        fires = {"early": START + timedelta(days=3), "late": START + timedelta(days=13)}
        for job, fire in fires.items():  # the day of the second has no partition
            instance.register("acme", job, lambda: None, start_at=fire)
        clock.advance("45d")
        instance.tick()
        instance._running()._tend()
        clock.advance("29d")
        instance._running()._tend()
        rows = {job: [row.at for row in instance.history("acme", job)] for job in fires}
        assert rows == {job: [fire] for job, fire in fires.items()}
        clock.advance("3d")
        instance._running()._tend()
        assert [instance.history("acme", job) for job in fires] == [[], []]
        assert f"job_history_{fires['early']:%Y%m%d}" not in partitions(connection)


def test_a_dead_letter_is_kept_as_long_as_its_ledger_row(
    dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    clock = ManualClock()
    with Scheduler(dsn, schema=schema, clock=clock) as instance:
        created = START + timedelta(days=1)
        clock.advance("45d")
        connection.execute(
            "WITH h AS (INSERT INTO job_history (at, tenant, job_id, kind, outcome, fence, finished_at, type,"
            " queue, priority, run_at, created_at, json, payload)"
            " SELECT %s, 'acme', gen_random_uuid(), 'job', 'failed', 1, %s, 'x', 'mail', 2, %s, %s, true, 'null'"
            " RETURNING tenant, job_id, queue, at)"
            " INSERT INTO job_letter (tenant, id, queue, at) SELECT tenant, job_id::uuid, queue, at FROM h",
            (created, clock.now(), created, created),
        )
        instance._running()._tend()
        assert counts(connection)[f"job_history_{created:%Y%m%d}"] == 1
        assert connection.execute("SELECT count(*) FROM job_letter").fetchone() == (1,)
        clock.advance("33d")
        instance._running()._tend()
        assert connection.execute("SELECT count(*) FROM job_letter").fetchone() == (0,)


def test_without_a_retention_nothing_is_dropped(
    dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    with Scheduler(dsn, schema=schema, retention=None) as instance:
        instance.clock.advance("400d")
        instance._running()._tend()
        assert len(partitions(connection)) == 17


def test_days_that_already_have_rows_in_the_default_partition_stay_there(
    dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    clock = ManualClock()
    with Scheduler(dsn, schema=schema, clock=clock) as instance:
        instance.register("acme", "x", lambda: None, every="1d")
        instance.advance("9d")
        assert counts(connection)["job_history_default"] == 2  # nobody tended meanwhile
        instance._running()._tend()
        instance.advance("1d")
        found = counts(connection)
        assert (found["job_history_default"], found[f"job_history_{clock.now():%Y%m%d}"]) == (2, 1)
        assert len([row for row in instance.history("acme", "x") if row.kind == "fire"]) == 10


def test_many_may_tend_at_once_and_nobody_waits_for_a_reader(
    dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    with Scheduler(dsn, schema=schema) as instance:
        instance.clock.advance("30d")
        errors: list[BaseException] = []

        def tend() -> None:
            try:
                instance._running().history.tend(timedelta(days=3))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=tend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(partitions(connection)) == 9
        instance.clock.advance("30d")
        with psycopg.connect(dsn) as reader:
            reader.execute(f'SELECT count(*) FROM "{schema}".job_history'.encode())
            instance._running()._tend()  # gives up within a second
            assert len(partitions(connection)) == 9
        until(lambda: instance._running()._tend() and len(partitions(connection)) == 17)
