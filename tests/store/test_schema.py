"""The schema: created once, named anything, and refusing illegal rows."""

import threading
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from scheduler import ConfigError, Scheduler, SchemaMismatch
from scheduler.store import schema as store_schema
from scheduler.store.engine import Database
from tests.conftest import MakeScheduler


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
    with pytest.raises(
        SchemaMismatch, match=rf"version 0.*needs version {store_schema.VERSION}.*scheduler migrate"
    ):
        make_scheduler(migrate=False)
    make_scheduler()
    make_scheduler(migrate=False)
    connection.execute("INSERT INTO schema_version VALUES (99)")
    for migrate in (True, False):
        with pytest.raises(
            SchemaMismatch, match=f"version 99.*needs version {store_schema.VERSION}.*upgrade"
        ):
            make_scheduler(migrate=migrate)


def test_a_schema_of_an_unreleased_version_is_refused(
    make_scheduler: MakeScheduler, connection: psycopg.Connection[Any]
) -> None:
    make_scheduler()
    connection.execute("UPDATE schema_version SET version = 10")
    for migrate in (True, False):
        with pytest.raises(SchemaMismatch, match="version 10, which was never released.*drop it"):
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
