"""The dashboard and the lists of the HTTP API on a full system, beside the same on an empty one, in
one run.

    python bench/web.py                                                            # a look of a minute
    python bench/web.py --recurring 10000 --queued 1000000 --history 10000000      # some ten minutes

Three schedulers on one Postgres and one Redis, each served over HTTP by the real server. One has
nothing; one a little of everything, so that its pages are as full, and cost as much to draw; one
has recurring jobs, queued jobs that wait to be fed and history over some days. Half of it all is
one tenant's, the rest of twenty others. Queues are paused, so that nothing moves. Each address is
asked for some times that do not count, and then on each system in turns. The bar, 5 times what the
empty system takes, is printed, never asserted.

Then every statement that these requests sent is run once more with EXPLAIN ANALYZE, with its
parameters and the settings of a connection of ours: how many rows of a table it read at most, and
whether it scanned a large table.
"""

import re
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import harness
import httpx
import psycopg
from harness import Pins, Redis, say
from harness import Server as Postgres

from scheduler import Scheduler
from scheduler.store.engine import PLANS, BoundedConnection, Database
from scheduler.store.queries import statement
from scheduler.store.schema import migrate
from scheduler.web.app import application
from scheduler.web.serve import Server
from scheduler.web.table import ROUTES

BAR = 5.0
SMALL = (400, 2000, 20_000)
WARM = 5  # each of some connections makes its plans
LARGE = 20_000  # rows, from which on a table is not to be scanned
QUEUES = ("default", "mail", "reports", "video")
OTHERS = 20
DAYS = 5
CHUNK = 500_000
TENANT = "CASE n % 2 WHEN 0 THEN 'acme' ELSE 'tenant' || n / 2 % {others} END"
RECURRING = """
INSERT INTO {schema}.job (tenant, id, spec, spec_hash, delivery, overlap, next_run_at, created_at, updated_at)
SELECT {tenant}, 'report-' || n, '{{"every_us": 3600000000}}', decode(repeat('00', 32), 'hex'), 'at_least_once', 'skip',
  now() + interval '1 hour' + n * interval '0.1 second', now(), now() FROM generate_series(1, {count}) n"""
LOCKS = "INSERT INTO {schema}.job_lock (tenant, id) SELECT tenant, id FROM {schema}.job"
QUEUED = """
INSERT INTO {schema}.job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json,
  payload, open_dependencies)
SELECT {tenant}, gen_random_uuid(), 'mail', ('{{default,mail,reports,video}}'::text[])[n / 7 % 4 + 1], n / 3 % 5, now(),
  now(), now(), now() + interval '7 days', true, convert_to('{{"number":' || n || '}}', 'utf8'), (n % 1000 < 2)::int
FROM generate_series(1, {count}) n"""
READY = """
INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
SELECT queue, priority, tenant, run_at, seq, id FROM {schema}.job_queue WHERE open_dependencies = 0"""
EDGES = """
INSERT INTO {schema}.job_dependency (tenant, job_id, depends_on, kind)
SELECT q.tenant, q.id, f.id, 'after' FROM {schema}.job_queue q
JOIN (SELECT DISTINCT ON (tenant) tenant, id FROM {schema}.job_queue WHERE open_dependencies = 0) f USING (tenant)
WHERE q.open_dependencies > 0"""
FIRES = """
INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, fence, attempt, started_at, finished_at)
SELECT now() - n * {step}, {tenant}, 'report-' || (n - 1) % {recurring} + 1, 'fire',
  CASE WHEN n % 50 < 2 THEN 'failed' ELSE 'success' END, 1, 1, now() - n * {step} + interval '0.01 second',
  now() - n * {step} + interval '1 second' FROM generate_series({begin}, {end}) n"""
ENDED = """
INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, reason, attempt, finished_at, started_at, type,
  queue, priority, run_at, created_at, json, payload)
SELECT now() - n * {step}, {tenant}, gen_random_uuid()::text, 'job',
  CASE WHEN n % 500 < 2 THEN 'dead_letter' ELSE 'completed' END, CASE WHEN n % 500 < 2 THEN 'HTTP 503' END, 1,
  now() - n * {step}, now() - n * {step} - interval '0.01 second', 'mail',
  ('{{default,mail,reports,video}}'::text[])[n / 7 % 4 + 1], 2, now() - n * {step} - interval '0.02 second',
  now() - n * {step} - interval '1 second', true, convert_to('{{"number":' || n || '}}', 'utf8')
FROM generate_series({begin}, {end}) n"""
LETTERS = """
INSERT INTO {schema}.job_letter (tenant, id, queue, at)
SELECT tenant, job_id::uuid, queue, at FROM {schema}.job_history WHERE outcome = 'dead_letter'"""
PAUSED = "INSERT INTO {schema}.job_epoch (queue, epoch, paused_at) VALUES ('{queue}', 0, now())"
PARTITIONS = "SELECT {schema}.tend_history(now() - {days} * interval '1 day', {days} + 7, NULL)"
CONSTRAINTS = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = '{table}'::regclass AND contype IN ('p', 'u')"""
INDEXES = """
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
WHERE indrelid = '{table}'::regclass AND indexrelid NOT IN (SELECT conindid FROM pg_constraint)"""
SIZES = """
SELECT relname, reltuples FROM pg_class WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'r'"""
PAGES = (
    "/",
    "/?tenant=acme",
    "/recurring?tenant=acme",
    "/jobs?tenant=acme",
    "/jobs?tenant=acme&state=completed",
    "/queues",
    "/queue?name=mail",
    "/dead",
    "/fleet",
)
LISTS = (  # by a filter that few rows fit, or none
    "/jobs?tenant=acme&state=dead_letter",
    "/jobs?tenant=acme&state=retrying",
    "/jobs?tenant=acme&type=nothing",
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement that a request sent."""

    address: str
    query: bytes
    parameters: Any


class Watch:
    """Keeps the statements that the threads of the web server send, once each for an address."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, bytes], Sent] = {}
        self.address: str | None = None
        execute = BoundedConnection.execute

        def watched(
            connection: BoundedConnection, query: bytes, parameters: Any = None, **rest: Any
        ) -> Any:
            if (
                self.address is not None
                and threading.current_thread().name.startswith("scheduler-web")
                and parameters
            ):
                self.sent[self.address, query] = Sent(self.address, query, parameters)
            return execute(connection, query, parameters, **rest)

        BoundedConnection.execute = watched

    @contextmanager
    def of(self, address: str) -> Iterator[None]:
        self.address = address
        yield
        self.address = None


def addresses() -> list[str]:
    """List the pages, and the routes of the API that read several things."""
    routes = [
        route
        for route in ROUTES
        if route.method == "GET" and not route.streams and "id" not in route.places
    ]
    lists = [route for route in routes if "job_id" not in route.places]
    return [
        *PAGES,
        *LISTS,
        *(
            f"/api/v1{each.path.format(name='mail')}{'' if each.fleet else '?tenant=acme'}"
            for each in lists
        ),
    ]


def install(postgres: Postgres, schema: str) -> None:
    """Make empty tables; nothing is fed out of them."""
    database = Database.open(postgres.url, schema=schema, prepare=True)
    migrate(database)
    database.close()
    for queue in QUEUES:
        postgres.sql(PAUSED.format(schema=schema, queue=queue), database="bench")


def fill(postgres: Postgres, schema: str, recurring: int, queued: int, history: int) -> None:
    """Make the tables of a system."""
    began = time.monotonic()
    tenant = TENANT.format(others=OTHERS)

    def sql(text: str, **values: object) -> None:
        postgres.sql(text.format(schema=schema, tenant=tenant, **values), database="bench")

    sql(PARTITIONS, days=DAYS)
    sql(RECURRING, count=recurring)
    sql(LOCKS)
    with unindexed(postgres, f"{schema}.job_queue"), unindexed(postgres, f"{schema}.job_ready"):
        sql(QUEUED, count=queued)
        sql(READY)
    sql(EDGES)
    half = history // 2
    step = f"interval '{DAYS * 86400 / max(1, half):.6f} second'"
    with unindexed(postgres, f"{schema}.job_history"):
        for text in (FIRES, ENDED):
            for begin in range(1, half + 1, CHUNK):
                sql(
                    text,
                    begin=begin,
                    end=min(half, begin + CHUNK - 1),
                    step=step,
                    recurring=recurring,
                )
    sql(LETTERS)
    postgres.sql("VACUUM ANALYZE", "CHECKPOINT", database="bench")
    say(
        f"{recurring:,} recurring, {queued:,} queued, {history:,} ended, in "
        f"{time.monotonic() - began:.0f} s"
    )


@contextmanager
def unindexed(postgres: Postgres, table: str) -> Iterator[None]:
    """Fill a table without its indexes and make them afterwards: ten times as fast."""
    constraints = postgres.sql(CONSTRAINTS.format(table=table), database="bench")
    indexes = postgres.sql(INDEXES.format(table=table), database="bench")
    drops = [f"ALTER TABLE {table} DROP CONSTRAINT {name}" for name, _ in constraints]
    drops += [f"DROP INDEX {name}" for name, _ in indexes]
    makes = [f"ALTER TABLE {table} ADD CONSTRAINT {name} {text}" for name, text in constraints]
    makes += [text.replace(" ON ONLY ", " ON ") for _, text in indexes]
    postgres.sql(*drops, database="bench")
    yield
    postgres.sql("SET maintenance_work_mem = '512MB'", *makes, database="bench")


def asked(client: httpx.Client, address: str) -> float:
    """Ask for an address; the milliseconds until all of it is there."""
    began = time.perf_counter()
    answer = client.get(address)
    took = (time.perf_counter() - began) * 1000
    if answer.status_code != 200:
        raise RuntimeError(f"{address}: {answer.status_code} {answer.text[:200]}")
    return took


def measured(clients: dict[str, httpx.Client], watch: Watch, requests: int) -> list[list[str]]:
    """Ask for every address on either system, in turns; a row of the table each."""
    rows = []
    for address in addresses():
        for _ in range(WARM):
            asked(clients["empty"], address)
            asked(clients["small"], address)
            with watch.of(address):
                asked(clients["filled"], address)
        times: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(requests):
            for name, client in clients.items():
                times[name].append(asked(client, address))
        empty, small, full = (statistics.median(times[name]) for name in clients)
        verdict = "" if full < BAR * empty else "  <-- above the bar"
        shown = [
            f"{statistics.median(each):.1f} ({harness.percentile(each, 0.95):.1f})"
            for each in times.values()
        ]
        rows.append([address, *shown, f"{full / empty:.1f}{verdict}", f"{full / small:.1f}"])
        say(f"{address}: {empty:.1f} ms, {full:.1f} ms")
    return rows


def explained(dsn: str, schema: str, watch: Watch, names: dict[bytes, str]) -> list[list[str]]:
    """Explain what was sent; a row of the table for each statement, at its worst."""
    found: dict[str, tuple[int, str, float, str]] = {}
    with psycopg.connect(dsn, autocommit=True, options=PLANS) as connection:
        sizes = {
            name: int(rows)
            for name, rows in connection.execute(SIZES.format(schema=schema)).fetchall()
        }
        for sent in watch.sent.values():
            query = b"EXPLAIN (ANALYZE, TIMING off, FORMAT json) " + sent.query
            ((plan,),) = connection.execute(query, sent.parameters).fetchall()
            read, _, where = most_read(plan[0]["Plan"], sizes)
            name = names.get(sent.query) or re.sub(r"\s+", " ", sent.query.decode())[:50]
            if name not in found or read > found[name][0]:
                found[name] = (read, where, plan[0]["Execution Time"], sent.address)
    return [
        [name, f"{read:,}", where, harness.number(took), address]
        for name, (read, where, took, address) in sorted(found.items())
    ]


def most_read(node: dict[str, Any], sizes: dict[str, int]) -> tuple[int, bool, str]:
    """Find the node of a plan that reads the most rows: how many, and whether it scans a large
    table.
    """
    own = (0, False, "")
    if table := node.get("Relation Name"):
        dropped = node.get("Rows Removed by Filter", 0) + node.get(
            "Rows Removed by Index Recheck", 0
        )
        rows = int((node["Actual Rows"] + dropped) * node["Actual Loops"])
        large = sizes.get(table, 0) > LARGE
        scans = (
            large
            and rows
            and (node["Node Type"] == "Seq Scan" or rows / node["Actual Loops"] > sizes[table] / 4)
        )
        own = (rows, bool(scans), f"{table}: scanned" if scans else table)
    return max(own, *(most_read(each, sizes) for each in node.get("Plans", [])), (0, False, ""))


def statements(schema: str) -> dict[bytes, str]:
    """Name the statements of the package by their text."""
    named: dict[bytes, str] = {}
    for each in files("scheduler.store").joinpath("sql").iterdir():
        if each.name.endswith(".sql") and each.name != "session.sql":
            for name in re.findall(r"^-- name: (\w+)", each.read_text(), re.MULTILINE):
                named[statement(each.name.removesuffix(".sql"), name, schema)] = (
                    f"{each.name[:-4]}.{name}"
                )
    return named


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--recurring", type=int, default=1000)
    parser.add_argument("--queued", type=int, default=50_000)
    parser.add_argument("--history", type=int, default=200_000)
    parser.add_argument(
        "--requests", type=int, default=30, help="of each address, on either system"
    )
    options = parser.parse_args()
    pins = Pins.of(options.pin)
    watch = Watch()
    with Postgres(pins.server) as postgres, Redis(pins.server) as redis, ExitStack() as stack:
        postgres.reset()
        clients = {}
        for number, name in enumerate(("empty", "small", "filled")):
            install(postgres, name)
            if name != "empty":
                fill(
                    postgres,
                    name,
                    *(
                        SMALL
                        if name == "small"
                        else (options.recurring, options.queued, options.history)
                    ),
                )
            queues = {queue: {"dialect": "standard"} for queue in QUEUES}
            url = f"{redis.url.rstrip('/').removesuffix('/0')}/{number}"
            made = stack.enter_context(
                Scheduler(postgres.url, schema=name, redis=url, queues=queues)
            )
            server = Server(application(made, rate_limit=0), "127.0.0.1", 0)
            server.start()
            stack.callback(server.stop)
            clients[name] = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
        rows = measured(clients, watch, options.requests)
        print(
            harness.table(
                ["address", "empty: p50 (p95) ms", "small", "full", "full / empty", "full / small"],
                rows,
            ),
            "\n",
        )
        found = explained(postgres.url, "filled", watch, statements("filled"))
        print(harness.table(["statement", "most rows read", "of", "ms", "by"], found))


if __name__ == "__main__":
    main()
