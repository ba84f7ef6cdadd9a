"""What pages read of large tables: by an index, and never more rows than they say."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from scheduler.store.engine import Database
from scheduler.store.pages import PagesTable
from scheduler.store.queries import names, statement
from scheduler.store.queues import QueuesTable
from scheduler.store.schema import migrate

PARAMETERS: dict[str, Any] = {
    "now": None,
    "tenant": "t1",
    "limit": 20,
    "most": 100,
    "minutes": 60,
    "after": "",
    "id": UUID(int=1),
    "queues": ["mail"],
    "tenants": ["t1"],
}
SMALL = "job_epoch"  # a row a queue
FILL = (
    "INSERT INTO job (tenant, id, spec, spec_hash, delivery, overlap, next_run_at, created_at, updated_at)"
    " SELECT 't' || n % 10, 'j' || n, '{}', decode(repeat('00', 32), 'hex'), 'at_least_once', 'skip',"
    " now() - interval '1 hour', now(), now() FROM generate_series(1, 20000) n",
    "INSERT INTO job_lock (tenant, id) SELECT tenant, id FROM job",
    "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, fence, attempt, started_at)"
    " SELECT now() - n * interval '90 seconds' - random() * interval '1 minute', tenant, id, 'fire', 'success', now(),"
    " 1, 1, now() FROM job, generate_series(0, 4) n",
    "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, fence, attempt, started_at)"
    " SELECT now() - random() * interval '5 minutes', 't1', 'k' || n, 'fire', 'success', now(), 1, 1, now()"
    " FROM generate_series(1, 150000) n",
    "INSERT INTO job_queue"
    " (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json, payload)"
    " SELECT 't' || n % 10, gen_random_uuid(), 'x', 'mail', 2, now(), now(), now(), now() + interval '1 day', true, ''"
    " FROM generate_series(1, 20000) n",
    "INSERT INTO job_ready (queue, priority, tenant, run_at, seq, id)"
    " SELECT queue, priority, tenant, run_at, seq, id FROM job_queue",
    "UPDATE job_queue SET open_dependencies = 1 WHERE seq % 20 = 0",
    "INSERT INTO job_letter (tenant, id, queue, at) SELECT tenant, id, queue, now() FROM job_queue",
    "INSERT INTO job_dependency (tenant, job_id, depends_on, kind)"
    " SELECT tenant, id, gen_random_uuid(), 'after' FROM job_queue",
    "ANALYZE",
)


@pytest.fixture(scope="module")
def large(dsn: str) -> Iterator[Database]:
    database = Database.open(dsn, schema="large_pages", prepare=True)
    migrate(database)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET search_path = large_pages")
        for each in FILL:
            connection.execute(each.encode())
        yield database
        database.close()
        connection.execute("DROP SCHEMA large_pages CASCADE")


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "planned anew"])
@pytest.mark.parametrize(
    ("table", "name"),
    [*(("pages", name) for name in names("pages")), ("queues", "names"), ("queues", "stats")],
)
def test_no_page_scans_a_table(
    dsn: str, large: Database, table: str, name: str, kept: bool
) -> None:
    query = statement(table, name, "large_pages").decode()
    given = {word: value for word, value in PARAMETERS.items() if f"%({word})" in query}
    database = large if kept else Database.open(dsn, schema="large_pages", prepare=False)
    with database.connection() as connection:
        asked = f"EXPLAIN (ANALYZE, FORMAT json) {query}".encode()
        ((plan,),) = connection.execute(asked, given, prepare=kept).fetchall()
    if not kept:
        database.close()
    read = list(scans((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))
    assert [
        each for each in read if each["Node Type"] == "Seq Scan" and each["Relation Name"] != SMALL
    ] == []
    removed = sum(each.get("Rows Removed by Filter", 0) * each["Actual Loops"] for each in read)
    rows = sum(each["Actual Rows"] * each["Actual Loops"] for each in read)
    assert rows + removed <= 10_000


def scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Go through the nodes of a plan that read tables."""
    if "Relation Name" in node:
        yield node
    for each in node.get("Plans", ()):
        yield from scans(each)


def test_a_busy_minute_is_read_from_its_end(large: Database) -> None:
    now, rows = PagesTable(large, lambda: None).minutes(["t1", "t2"], minutes=60, most=50)
    assert now - datetime.now(UTC) < timedelta(minutes=1)
    assert {row.tenant for row in rows} == {"t1", "t2"}
    assert max(len(row.fires or ()) for row in rows) == 50
    assert all(row.since >= row.minute for row in rows)


def test_queues_are_counted_up_to_a_bound(large: Database) -> None:
    table = QueuesTable("large_pages", lambda: None)
    for most, counts in ((100, (100, 100, 100)), (None, (20_000, 1000, 20_000))):
        query, given, _ = table.stats(["mail"], most=most)
        ((_, _, ready, oldest, pending, dead),) = large.run(query, given)
        assert (ready, pending, dead) == counts
        assert oldest < datetime.now(UTC)


def test_leases_and_late_jobs_are_found_among_the_first(large: Database) -> None:
    pages = PagesTable(large, lambda: None)
    found = pages.coming(["t1", "t2"], minutes=20, most=100)
    counts = sorted((row.tenant, row.what, row.many) for row in found if row.id is None)
    assert counts == [("t1", "late", 100), ("t2", "late", 100)]
    assert [row.tenant for row in found if row.id is not None] == ["t1"] * 10 + ["t2"] * 10
    assert pages.held(limit=5, most=100) == []
    assert pages.tenants(limit=3) == ["t0", "t1", "t2"]
    assert {letter.total for letter in pages.dead(["t1"], limit=5, most=100)} == {100}
