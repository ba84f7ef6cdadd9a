"""The plans of the hot statements on large tables: probes by primary key, never a scan."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from scheduler.store.engine import Database
from scheduler.store.queries import statement
from scheduler.store.schema import migrate

JOBS = 20_000
AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def large(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Large tables, for all of these tests: their statements are only explained."""
    database = Database.open(dsn, schema="large", prepare=True)
    migrate(database)
    database.close()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET search_path = large")
        connection.execute(
            "INSERT INTO job (tenant, id, spec, spec_hash, delivery, overlap, next_run_at, "
            "created_at, updated_at)"
            " SELECT 't' || n %% 100, 'j' || n, '{}', decode(repeat('00', 32), 'hex'), "
            "'at_least_once', 'skip', now(),"
            " now(), now() FROM generate_series(1, %s) n",
            (JOBS,),
        )
        connection.execute("INSERT INTO job_lock (tenant, id) SELECT tenant, id FROM job")
        connection.execute(
            "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, fence)"
            " SELECT now() - n * interval '1 minute', tenant, id, 'fire', 'success', now(), 1"
            " FROM job, generate_series(1, 5) n"
        )
        connection.execute("ANALYZE")
        yield connection
        connection.execute("DROP SCHEMA large CASCADE")


PARAMETERS: dict[str, Any] = {
    "now": None,
    "owner": uuid4(),
    "label": "x",
    "lease": timedelta(seconds=30),
    "tenants": ["t1"] * 1000,
    "ids": [f"j{n}" for n in range(1000)],
    "hashes": [b"0" * 32] * 1000,
    "seen": [AT] * 1000,
    "fires": [AT] * 1000,
    "nexts": [AT] * 1000,
    "missed_from": [AT] * 1000,
    "missed_count": [0] * 1000,
    "skipped": [None] * 1000,
    "triggers": [AT] * 1000,
    "id": "j101",
    "holder": "x",
    "channel": "x",
    "fences": [1] * 1000,
    "outcomes": ["success"] * 1000,
    "errors": ["x"] * 1000,
    "started": [AT] * 1000,
    "finished": [AT] * 1000,
    "reasons": ["x"] * 1000,
    "once": [False] * 1000,
    "kinds": ["fire"] * 1000,
    "attempts": [1] * 1000,
    "fence": 1,
    "fire_at": AT,
    "tenant": "t1",
    "job_id": "j101",
    "limit": 50,
    "after": "j101",
    "before": AT,
    "before_id": "j101",
    "before_kind": "fire",
    "note": None,
    "since": [AT] * 1000,
}


HOT = [
    ("job_lock", "claim"),
    ("job_lock", "claim_triggers"),
    ("job_lock", "renew"),
    ("job_lock", "finish"),
    ("job_lock", "record"),
    ("job_lock", "begin"),
    ("job_lock", "redrive"),
    ("job_lock", "bury"),
    ("job", "lookup"),
    ("job", "newest_fires"),
    ("job", "page"),
    ("job", "trigger"),
    ("job", "pause"),
    ("job", "explain"),
    ("job", "changes"),
    ("job_history", "newest"),
    ("job_history", "newest_of_job"),
]


@pytest.mark.parametrize(("table", "name"), HOT)
def test_hot_statements_probe_by_key(large: psycopg.Connection[Any], table: str, name: str) -> None:
    query = statement(table, name, "large").decode()
    wanted = set(re.findall(r"%\((\w+)\)", query))
    parameters = {key: value for key, value in PARAMETERS.items() if key in wanted}
    rows = large.execute(
        f"EXPLAIN {query}".encode(), parameters, prepare=True
    ).fetchall()  # a custom plan: the worst
    plan = "\n".join(row[0] for row in rows)
    assert not re.search(r"Seq Scan on (job|job_lock|job_history\w*)\b", plan), plan
    assert "Hash Join" not in plan, plan
    assert "Merge Join" not in plan, plan
    if name == "newest_of_job":
        assert "tenant_job_id_at" in plan, plan


@pytest.mark.parametrize(("table", "name"), [one for one in HOT if one[0] != "job_history"])
def test_a_plan_made_while_the_tables_were_empty_scans_none_of_them(
    dsn: str, schema: str, table: str, name: str
) -> None:
    database = Database.open(dsn, schema=schema, prepare=True)
    migrate(database)
    query = statement(table, name, schema).decode()
    wanted = set(re.findall(r"%\((\w+)\)", query))
    parameters = {key: value for key, value in PARAMETERS.items() if key in wanted}
    with database.connection() as connection:
        rows = connection.execute(f"EXPLAIN {query}".encode(), parameters, prepare=True).fetchall()
    database.close()
    plan = "\n".join(row[0] for row in rows)
    assert not re.search(r"Seq Scan on (job|job_lock|job_history\w*)\b", plan), plan


def registering(connection: psycopg.Connection[Any], schema: str, count: int, what: str) -> int:
    """Count the pages that one statement looks at which registers so many jobs of a tenant, or
    changes them.
    """
    columns: dict[str, list[Any]] = {
        "tenants": ["t"] * count,
        "ids": [f"j{n}" for n in range(count)],
        "specs": ["{}"] * count,
        "hashes": [b"1" * 32] * count,
        "deliveries": ["at_least_once"] * count,
        "overlaps": ["skip"] * count,
        "nexts": [AT] * count,
        "last_fires": [None] * count,
        "apps": ["shop"] * count,
        "versions": [7] * count,
        "paused": [None] * count,
        "deleted": [None] * count,
        "notes": ["x"] * count,
        "skips": [None] * count,
        "forgotten": [None] * count,
        "old_hashes": [b"0" * 32] * count,
        "old_specs": ["{}"] * count,
        "old_apps": ["shop"] * count,
        "old_versions": [7] * count,
        "old_nexts": [AT] * count,
    }
    with connection.transaction(force_rollback=True):
        if what == "change":
            known = columns | {"hashes": columns["old_hashes"]}
            connection.execute(statement("job", "insert", schema=schema), PARAMETERS | known)
        query = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) " + statement("job", what, schema=schema)
        lines = [row[0] for row in connection.execute(query, PARAMETERS | columns | {"now": AT})]
    return max(int(found[1]) for line in lines if (found := re.search(r"shared hit=(\d+)", line)))


@pytest.mark.parametrize("what", ["insert", "change"])
def test_a_job_costs_no_more_where_many_are_registered_at_once(
    dsn: str, schema: str, what: str
) -> None:
    database = Database.open(dsn, schema=schema, prepare=True)
    migrate(database)
    database.close()
    with psycopg.connect(dsn) as connection:
        few, many = (registering(connection, schema, count, what) / count for count in (300, 3000))
    assert many < 2 * few
