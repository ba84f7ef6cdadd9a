"""The plans of the hot statements on one-shot jobs, on large tables: probes by index, never a
scan.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from scheduler.store.engine import PLANS, Database
from scheduler.store.queries import statement
from scheduler.store.schema import migrate

LIVE, ENDED, BATCH = 50_000, 100_000, 1000
PROBES = ("Index Scan", "Index Only Scan", "Bitmap Index Scan")
AT = datetime(2030, 1, 1, tzinfo=UTC)
HOT = [
    "submit",
    "submit_alike",
    "submit_one",
    "depend",
    "claim_keys",
    "hold_dependencies",
    "ended",
    "waiting",
    "feed",
    "settle",
    "dependents",
    "hold_dependents",
    "release",
    "live",
    "over",
    "find_live",
    "find_over",
    "hold",
    "take_back",
    "put_back",
    "update",
    "ask_to_cancel",
]
RING = [
    "feed_all_again",
    "feed_again",
    "leave_to_feeders",
    "retry",
    "add_attempts",
    "standing",
    "hold_all",
    "take_back_all",
    "sweep",
    "sweep_edges",
]
FILL = [
    "INSERT INTO job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json,"
    " payload) SELECT 't' || n % 100, gen_random_uuid(), 'mail', 'default', n % 5, now(), now() - n * interval '1 s',"
    " now(), now() + interval '7 days', true, '{{}}' FROM generate_series(1, {live}) n",
    "INSERT INTO job_ready (queue, priority, tenant, run_at, seq, id)"
    " SELECT queue, priority, tenant, run_at, seq, id FROM job_queue",
    "INSERT INTO job_dependency (tenant, job_id, depends_on, kind)"
    " SELECT tenant, id, gen_random_uuid(), 'after' FROM job_queue",
    "INSERT INTO job_key (tenant, type, key, job_id, expires_at)"
    " SELECT tenant, 'mail', id::text, id, now() FROM job_queue",
    "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, type, queue, priority, run_at,"
    " created_at, json) SELECT now() - n * interval '1 s', 't' || n % 100, gen_random_uuid()::text, 'job', 'completed',"
    " now(), 'mail', 'default', 2, now(), now(), true FROM generate_series(1, {ended}) n",
    "ANALYZE job_queue, job_ready, job_dependency, job_key, job_history",
]


def many(value: object) -> list[object]:
    return [value] * BATCH


def parameters(name: str, query: str) -> dict[str, Any]:
    """Give a statement a batch where it takes arrays, and one job where it takes one."""
    ids = [uuid4() for _ in range(BATCH)]
    given: dict[str, Any] = {
        "now": None,
        "tenants": many("t1"),
        "ids": ids,
        "depends_on": ids[0] if name == "sweep_edges" else ids,
        "kinds": many("after"),
        "counts": many(10),
        "keys": many("k"),
        "windows": many(timedelta(hours=24)),
        "types": many("mail"),
        "queues": many("default"),
        "priorities": many(2),
        "run_ats": many(None),
        "delays": many(0) if name == "retry" else many(timedelta(0)),
        "visibility": 1,
        "young": 1,
        "old": 2,
        "straight": "default",
        "epoch": 1,
        "lifetimes": many(timedelta(days=7)),
        "opens": many(0),
        "depths": many(0),
        "jsons": many(value=True),
        "payloads": many(b"{}"),
        "policies": many("{}"),
        "tags": many("{}") if name == "submit" else "{}",
        "correlations": many("x"),
        "callbacks": many("x"),
        "retried": many(ids[0]),
        "states": None if name.startswith("find") else many("completed"),
        "feeds": many(1),
        "attempt_numbers": many(1),
        "reasons": many("x"),
        "errors": many("x"),
        "results": many(b"x"),
        "records": many("[]" if name == "add_attempts" else "{}"),
        "started": many(AT),
        "queue": None if name.startswith("find") else "default",
        "priority": 2,
        "limit": 100 if name.startswith("find") else BATCH,
        "most": 5000,
        "tenant": "t1",
        "id": str(ids[0]) if name == "over" else ids[0],
        "next_feed": 1,
        "withdrawn": False,
    }
    return {key: given.get(key) for key in re.findall(r"%\((\w+)\)", query)}


def migrated(dsn: str, schema: str) -> None:
    database = Database.open(dsn, schema=schema, prepare=True)
    migrate(database)
    database.close()


@contextmanager
def tables(dsn: str, schema: str, queries: list[str]) -> Iterator[str]:
    migrated(dsn, schema)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("SET search_path = {}").format(Identifier(schema)))
        for query in queries:
            connection.execute(query.format(live=LIVE, ended=ENDED).encode())
        yield schema
        connection.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(schema)))


@pytest.fixture(scope="module")
def large(dsn: str) -> Iterator[str]:
    """A schema whose tables are large."""
    with tables(dsn, "large_queue", FILL) as schema:
        yield schema


Plan = list[dict[str, Any]]


def custom_plan(connection: psycopg.Connection[Any], schema: str, name: str, **given: Any) -> Plan:
    """Plan a statement for the parameters it has, as behind a pooler and on a caller's
    connection.
    """
    query = statement("ring" if name in RING else "job_queue", name, schema).decode()
    explain = f"EXPLAIN (FORMAT json) {query}".encode()
    return nodes(connection.execute(explain, {**parameters(name, query), **given}))


def kept_plan(connection: psycopg.Connection[Any], schema: str, name: str) -> Plan:
    """Plan a statement for whatever parameters will come."""
    query = statement("ring" if name in RING else "job_queue", name, schema).decode()
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)", query)))
    numbered = re.sub(
        r"%\((\w+)\)[sb]", lambda found: f"${names.index(found[1]) + 1}", query
    ).replace("%%", "%")
    connection.execute(f"PREPARE kept AS {numbered}".encode())
    return nodes(
        connection.execute(
            f"EXPLAIN (FORMAT json) EXECUTE kept ({', '.join(['NULL'] * len(names))})".encode()
        )
    )


def nodes(answer: psycopg.Cursor[Any]) -> Plan:
    """List the nodes of a plan."""
    row = answer.fetchone()
    assert row is not None
    found: Plan = [row[0][0]["Plan"]]
    for node in found:  # grows while it is walked
        node["below"] = node.pop("Plans", [])
        found += node["below"]
    return found


def scans(plan: Plan) -> Plan:
    """List what reads a whole table: in the order of an index it is no better."""
    return [
        node
        for node in plan
        if (node["Node Type"] == "Seq Scan" and node["Relation Name"].startswith("job_"))
        or (node["Node Type"] in PROBES and "Index Cond" not in node)
    ]


def read_in_order(plan: Plan, instant: str) -> bool:
    """Whether nothing is sorted but equal instants, and the index is entered at one."""
    return all(node["Node Type"] != "Sort" for node in plan) and any(
        re.search(rf"\b{instant}\b", node.get("Index Cond", "")) for node in plan
    )


@contextmanager
def ours(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection with the settings of one that keeps its plans."""
    with psycopg.connect(dsn, autocommit=True, options=PLANS) as connection:
        yield connection


@pytest.mark.parametrize("name", HOT + RING)
def test_a_custom_plan_on_large_tables_scans_none_of_them(dsn: str, large: str, name: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        plan = custom_plan(connection, large, name)
    assert not scans(plan)


@pytest.mark.parametrize("name", HOT + RING)
def test_a_kept_plan_on_large_tables_scans_none_of_them(dsn: str, large: str, name: str) -> None:
    with ours(dsn) as connection:
        plan = kept_plan(connection, large, name)
    assert not scans(plan)


@pytest.mark.parametrize("name", HOT + RING)
def test_a_plan_kept_since_the_tables_of_jobs_were_new_scans_none_of_them(
    dsn: str, schema: str, name: str
) -> None:
    migrated(dsn, schema)
    with ours(dsn) as connection:
        plan = kept_plan(connection, schema, name)
    assert not scans(plan)


@pytest.mark.parametrize("name", ["waiting", "feed"])
def test_a_feed_reads_the_order_it_takes_from_the_index(dsn: str, large: str, name: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as plain, ours(dsn) as keeping:
        for plan in (custom_plan(plain, large, name), kept_plan(keeping, large, name)):
            entered = [node for node in plan if node.get("Index Name") == "job_ready_pkey"]
            assert len(entered) == (2 if name == "waiting" else 1), plan
            assert all(
                "priority" in node["Index Cond"] and "tenant" in node["Index Cond"]
                for node in entered
            )
            limits = [node for node in plan if node["Node Type"] == "Limit"]
            assert not any(
                below["Node Type"].endswith("Sort") for node in limits for below in node["below"]
            ), plan


PAGES = [("find_live", "seq"), ("find_over", "at")]


@pytest.mark.parametrize(("name", "instant"), PAGES)
def test_a_page_is_read_in_order_from_where_the_last_one_ended(
    dsn: str, large: str, name: str, instant: str
) -> None:
    over = {"before": datetime.now(UTC), "before_id": "x"}
    before: dict[str, Any] = {"before": LIVE * 9 // 10} if name == "find_live" else over
    with psycopg.connect(dsn, autocommit=True) as connection:
        first, later = (
            custom_plan(connection, large, name),
            custom_plan(connection, large, name, **before),
        )
    assert all(node["Node Type"] != "Sort" for node in first), first
    assert read_in_order(later, instant), later
