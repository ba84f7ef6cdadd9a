"""The schema: fresh, migrated, raced for, named anything, and refusing illegal rows."""

import threading
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from scheduler import ConfigError, Priority, Scheduler, SchemaMismatch, State
from scheduler.store import schema as store_schema
from scheduler.store.engine import Database
from scheduler.store.queries import read
from tests.conftest import MakeScheduler

DESCRIBE = """
SELECT 'column', c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' '
       || coalesce(pg_get_expr(d.adbin, d.adrelid), '') || ' ' || coalesce(l.collname, '')
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind IN ('r', 'p')
UNION ALL SELECT 'constraint', conrelid::regclass::text || '.' || conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = %(schema)s::regnamespace
UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = %(plain)s
UNION ALL SELECT 'options', relname, reloptions::text FROM pg_class WHERE relnamespace = %(schema)s::regnamespace
ORDER BY 1, 2, 3
"""


BEFORE = [  # 3 is fed; 1 and 2 were submitted together, in this order; 9 has ended
    "INSERT INTO job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json,"
    " payload) SELECT 't', lpad(n::text, 32, '0')::uuid, 'x', 'q', 2, now(), now() - n / 3 * interval '1 s', now(),"
    " now() + interval '1 day', true, 'null' FROM generate_series(1, 3) n",
    "INSERT INTO job_ready (queue, priority, run_at, tenant, id)"
    " SELECT 'q', 1, now(), 't', lpad(n::text, 32, '0')::uuid FROM unnest(ARRAY[1, 2, 9]) n",
]


def describe(dsn: str, schema: str) -> list[tuple[str, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        quoted = Identifier(schema).as_string(connection)
        rows = connection.execute(DESCRIBE, {"schema": quoted, "plain": schema}).fetchall()
        connection.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(schema)))
    return [tuple(str(cell).replace(f"{schema}.", "") for cell in row) for row in rows]


def test_a_migrated_database_equals_a_fresh_one(dsn: str, schema: str) -> None:
    database = Database.open(dsn, schema=schema, prepare=True)
    assert store_schema.migrate(database) == (0, store_schema.VERSION)
    fresh = describe(dsn, schema)
    with database.transaction() as connection:
        store_schema.create(connection, schema, read("migrations/001.sql"), 1)
    assert store_schema.migrate(database) == (1, store_schema.VERSION)
    store_schema.check(database)
    database.close()
    assert describe(dsn, schema) == fresh
    assert len(fresh) > 50


def test_jobs_that_wait_are_found_after_the_migration_in_their_order(dsn: str, schema: str) -> None:
    database = Database.open(dsn, schema=schema, prepare=True)
    with database.transaction() as connection:
        store_schema.create(connection, schema, read("migrations/001.sql"), 1)
        for version in (2, 3):
            store_schema.upgrade(connection, schema, version)
        for row in BEFORE:
            connection.execute(row.encode())
    assert store_schema.migrate(database) == (3, store_schema.VERSION)
    database.close()
    with Scheduler(dsn, schema=schema, lease="2s") as instance:
        last = instance.submit("t", "x")
        assert [job.id.int for job in instance.find("t").jobs] == [last.id.int, 2, 1, 3]
        assert {job.state for job in instance.find("t").jobs if job.id.int != 3} == {State.PENDING}
        assert instance.cancel_job("t", UUID(int=1)) is State.CANCELLED
        assert instance.get("t", UUID(int=3)).state is State.SCHEDULED
    with psycopg.connect(dsn, autocommit=True) as connection:
        ready = SQL("SELECT id FROM {}.job_ready ORDER BY seq").format(Identifier(schema))
        assert connection.execute(ready).fetchall() == [(UUID(int=2),), (last.id,)]


ENDED = """
INSERT INTO job_history (at, tenant, job_id, kind, outcome, attempt, started_at, finished_at, attempts, job, payload)
VALUES (now(), 't', '00000000-0000-0000-0000-000000000001', 'job', 'completed', 1, now(), now(),
  '[{"attempt": 1, "outcome": "completed", "worker": "w"}]',
  '{"type": "x", "queue": "mail", "priority": 1, "run_at": "2026-01-01T00:00:00+00:00",
    "created_at": "2026-01-01T00:00:00+00:00", "json": true, "tags": {"a": "b"}}', 'null'),
  (now(), 't', '00000000-0000-0000-0000-000000000002', 'job', 'cancelled', 0, NULL, now(), NULL,
  '{"type": "y", "queue": "mail", "priority": 2, "run_at": "2026-01-01T00:00:00+00:00",
    "created_at": "2026-01-01T00:00:00+00:00", "json": true}', 'null')"""


def test_jobs_that_ended_before_the_migration_are_found_after_it(dsn: str, schema: str) -> None:
    database = Database.open(dsn, schema=schema, prepare=True)
    with database.transaction() as connection:
        store_schema.create(connection, schema, read("migrations/001.sql"), 1)
        for version in (2, 3, 4):
            store_schema.upgrade(connection, schema, version)
        connection.execute(ENDED.encode())
    assert store_schema.migrate(database) == (4, store_schema.VERSION)
    database.close()
    with Scheduler(dsn, schema=schema, lease="2s") as instance:
        first, second = instance.get("t", UUID(int=1)), instance.get("t", UUID(int=2))
        assert (first.type, first.queue, first.priority, first.tags) == (
            "x",
            "mail",
            Priority.HIGH,
            {"a": "b"},
        )
        assert [each["worker"] for each in first.attempts] == ["w"]
        assert (second.type, second.tags, second.attempts) == ("y", {}, ())
        assert [job.type for job in instance.find("t", queue="mail", type="y").jobs] == ["y"]


KEYED = """
INSERT INTO job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json, payload)
SELECT 't', ('00000000-0000-0000-0000-00000000000' || n)::uuid, 'x', 'mail', 2, now(), now(), now(),
  now() + interval '1 day', true, 'null' FROM generate_series(1, 2) n;
INSERT INTO job_key (tenant, type, key, job_id, expires_at)
VALUES ('t', 'x', 'k', '00000000-0000-0000-0000-000000000001', now() + interval '1 day')"""


def test_migration_gives_live_jobs_their_keys(dsn: str, schema: str) -> None:
    database = Database.open(dsn, schema=schema, prepare=True)
    with database.transaction() as connection:
        store_schema.create(connection, schema, read("migrations/001.sql"), 1)
        for version in range(2, 7):
            store_schema.upgrade(connection, schema, version)
        connection.execute(KEYED.encode())
    assert store_schema.migrate(database) == (6, store_schema.VERSION)
    database.close()
    with Scheduler(dsn, schema=schema, lease="2s") as instance:
        found = [instance.get("t", UUID(int=n)).idempotency_key for n in (1, 2)]
        assert found == ["k", None]


def test_twenty_instances_that_start_at_once_apply_it_once(dsn: str, schema: str) -> None:
    results: list[object] = []

    def go() -> None:
        database = Database.open(dsn, schema=schema, prepare=True)
        try:
            results.append(store_schema.migrate(database))
        except Exception as error:
            results.append(error)
        database.close()

    threads = [threading.Thread(target=go) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    version = store_schema.VERSION
    assert sorted(map(str, results)) == sorted(map(str, [(0, version)] + [(version, version)] * 19))


@pytest.mark.parametrize(
    "name", ['we"ird; DROP TABLE x; --', "with space", "ünï", "UPPER", "%s{schema}"]
)
def test_any_schema_name_is_quoted(dsn: str, name: str, recorder: Any) -> None:
    with Scheduler(dsn, schema=name, lease="2s") as instance:
        instance.register("acme", "x", recorder.body, every="100ms")
        recorder.wait(lambda: len(recorder.runs) >= 2)
        assert instance.history("acme")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(name)))


@pytest.mark.parametrize("name", ["", "a\0b", "pg_mine", "x" * 64, "a\nb", 7])
def test_a_bad_schema_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="schema"):
        Scheduler("postgresql://nowhere", schema=name)


def test_without_migrate_a_mismatch_names_both_versions(
    dsn: str, schema: str, make_scheduler: MakeScheduler, connection: psycopg.Connection[Any]
) -> None:
    with pytest.raises(SchemaMismatch, match=r"version 0.*needs version 10.*scheduler migrate"):
        make_scheduler(migrate=False)
    make_scheduler()
    make_scheduler(migrate=False)
    connection.execute("INSERT INTO schema_version VALUES (99)")
    for migrate in (True, False):
        with pytest.raises(SchemaMismatch, match="version 99.*needs version 10.*upgrade"):
            make_scheduler(migrate=migrate)


@pytest.mark.parametrize(
    "row",
    [
        "INSERT INTO job_lock (tenant, id, owner) VALUES ('t', 'x', gen_random_uuid())",
        "INSERT INTO job_lock (tenant, id, starts) VALUES ('t', 'x', 1)",
        "INSERT INTO job_lock (tenant, id, fence) VALUES ('t', 'x', -1)",
        "INSERT INTO job (tenant, id, spec, spec_hash, delivery, overlap, created_at, updated_at)"
        " VALUES ('', 'x', '{}', decode(repeat('00', 32), 'hex'), 'at_least_once', 'skip', now(), now())",
        "INSERT INTO job (tenant, id, spec, spec_hash, delivery, overlap, created_at, updated_at)"
        " VALUES ('t', 'x', '{}', decode(repeat('00', 32), 'hex'), 'exactly_once', 'skip', now(), now())",
        "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at)"
        " VALUES (now(), 't', 'x', 'fire', 'skipped', now())",
        "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, fence)"
        " VALUES (now(), 't', 'x', 'audit', 'success', now(), 1)",
        "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at)"
        " VALUES (now(), 't', 'x', 'fire', 'success', now())",
        "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, fence, missed_count)"
        " VALUES (now(), 't', 'x', 'fire', 'success', now(), 1, 3)",
    ],
)
def test_illegal_rows_are_impossible(
    make_scheduler: MakeScheduler, connection: psycopg.Connection[Any], row: str
) -> None:
    make_scheduler()
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(row.encode())
