"""Submitting jobs: ours beside bare psycopg, pgqueuer and procrastinate, on one durable Postgres,
in one run.

    python bench/submit.py                                         # some minutes
    python bench/submit.py --quick                                 # a look of a minute
    python bench/submit.py --rows single,many                      # only some rows
    python bench/submit.py --rows batches --live 1000000 --history 10000000

Rows: single (one by one, each committed by itself), inside (in a caller's transaction with a row of
the caller's), many (1,000 in a call; bare is a COPY of the same rows), batches (the statements that
feed and that settle, 1,000 a batch, on small tables and on large ones, both with a partition a
day). Before each of those measurements there is a checkpoint and there are `--warm` batches that do
not count: the first second after a checkpoint, in which Postgres logs whole pages, is as long as
the table is large, and comes once in minutes. None falls into a measurement. Repetitions are
interleaved, so that a slow minute hits all. "elsewhere" is how many cores other work on the machine
took during the measurements; a measurement with much of it is made again and the calmest is kept,
whatever it says. Bars are printed, never asserted. The peers are installed on first use, each into
an environment of its own under BENCH_VENVS; a peer that cannot be is left out, and the bench says
what it needs.
"""

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import harness
from harness import Peer, Pins, Server, say

ROWS = ("single", "inside", "many", "batches")
PEERS = ("pgqueuer", "procrastinate")
RARE_CHECKPOINTS = [
    "ALTER SYSTEM SET max_wal_size = '16GB'",
    "ALTER SYSTEM SET checkpoint_timeout = '1h'",
    "SELECT pg_reload_conf()",
]
TABLES = "tables"  # the database of the row batches; `bench` is made anew for every measurement
SIZE = 1000
QUEUED = """
WITH queued AS (
  INSERT INTO {schema}.job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json,
    payload)
  SELECT 'tenant' || n % 100, gen_random_uuid(), 'mail', 'default', 2, now(), now(), now(), now() + interval '7 days',
    true, convert_to('{{"number":' || n || ',"address":"somebody@example.com"}}', 'utf8')
  FROM generate_series(1, {count}) n
  RETURNING queue, priority, tenant, run_at, seq, id)
INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
SELECT queue, priority, tenant, run_at, seq, id FROM queued"""
ENDED = """
INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, attempt, finished_at, type,
  queue, priority, run_at, created_at, json, payload)
SELECT now() - n * interval '0.1 second', 'tenant' || n % 100, gen_random_uuid()::text, 'job', 'completed', 1,
  now() - n * interval '0.1 second', 'mail', 'default', 2, now(), now(), true,
  convert_to('{{"number":' || n || ',"address":"somebody@example.com"}}', 'utf8')
FROM generate_series({begin}, {end}, -1) n"""
PARTITIONS = "SELECT {schema}.tend_history(now() - {days} * interval '1 day', {days} + 7, NULL)"
DAY = 864_000  # ended jobs, ten a second
CHUNK = 500_000
CONSTRAINTS = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = '{table}'::regclass AND contype IN ('p', 'u')"""
INDEXES = """
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
WHERE indrelid = '{table}'::regclass AND indexrelid NOT IN (SELECT conindid FROM pg_constraint)"""


class Bench:
    """Measures, and collects figures by name, contestant and repetition."""

    def __init__(self, options, server: Server, pins: Pins, peers: list[Peer]) -> None:
        self.options, self.server, self.pins, self.peers = options, server, pins, peers
        self.figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.errors: list[str] = []
        self.sizes: dict[str, tuple[int, int]] = {
            "small": (options.small, options.small),
            "large": (options.live, options.history),
        }

    def run(self) -> None:
        if "batches" in self.options.rows:
            self.fill()
        for _ in range(self.options.reps):
            for row in self.options.rows:
                if row == "batches":
                    for tables in self.sizes:
                        self.calmest(row, tables, lambda tables=tables: self.batches(tables))
                    continue
                for peer in self.peers:
                    self.calmest(row, peer.name, lambda peer=peer, row=row: self.submits(peer, row))
                if row == "single":
                    self.calmest(
                        row, "autocommit", lambda: self.submits(self.peers[1], "autocommit")
                    )

    def calmest(self, row: str, contestant: str, measure: Callable[[], dict[str, float]]) -> None:
        """Measure until other work leaves the machine alone, or a few times; keep the calmest,
        whatever it says.
        """
        kept: dict[str, float] = {}
        for _ in range(self.options.tries):
            try:
                harness.quiet(self.options.patience)
                found = measure()
            except Exception as error:  # one failure must not cost the other rows
                self.errors.append(f"{row}, {contestant}: {error}")
                say(self.errors[-1])
                continue
            shown = ", ".join(f"{name} {harness.number(value)}" for name, value in found.items())
            say(f"{row:8} {contestant:14} {shown}")
            if not kept or found["elsewhere"] < kept["elsewhere"]:
                kept = found
            if kept["elsewhere"] < harness.CALM:
                break
        for name, value in kept.items():
            self.figures[f"{name}_{row}" if name == "elsewhere" else name][contestant].append(value)

    def submits(self, peer: Peer, command: str) -> dict[str, float]:
        """Let a peer submit into an empty database; jobs a second."""
        self.server.reset()
        counts = (self.options.calls, SIZE) if command == "many" else (self.options.singles,)
        with harness.elsewhere() as busy:
            answer = peer.call(command, *counts, cpus=self.pins.client)
        jobs = self.options.calls * SIZE if command == "many" else self.options.singles
        figure = "single" if command == "autocommit" else command
        return {figure: jobs / answer["seconds"], "elsewhere": busy()}

    def fill(self) -> None:
        """Make the small tables and the large ones, side by side in one database."""
        self.server.sql(*RARE_CHECKPOINTS, f"CREATE DATABASE {TABLES}")
        for schema, (live, history) in self.sizes.items():
            began = time.monotonic()
            self.peers[0].call("install", TABLES, schema)
            self.server.sql(
                PARTITIONS.format(schema=schema, days=history // DAY + 1), database=TABLES
            )
            with self.unindexed(f"{schema}.job_history"):
                for begin in range(history, 0, -CHUNK):
                    query = ENDED.format(schema=schema, begin=begin, end=max(1, begin - CHUNK + 1))
                    self.server.sql(query, database=TABLES)
            with self.unindexed(f"{schema}.job_queue"), self.unindexed(f"{schema}.job_ready"):
                self.server.sql(QUEUED.format(schema=schema, count=live), database=TABLES)
            self.refill(schema, live)
            self.server.sql("VACUUM ANALYZE", database=TABLES)
            say(
                f"{schema} tables: {live:,} live, {history:,} in the ledger, in "
                f"{time.monotonic() - began:.0f} s"
            )

    @contextmanager
    def unindexed(self, table: str) -> Iterator[None]:
        """Fill a table without its indexes and make them afterwards: ten times as fast."""
        constraints = self.server.sql(CONSTRAINTS.format(table=table), database=TABLES)
        indexes = self.server.sql(INDEXES.format(table=table), database=TABLES)
        drops = [f"ALTER TABLE {table} DROP CONSTRAINT {name}" for name, _ in constraints]
        drops += [f"DROP INDEX {name}" for name, _ in indexes]
        makes = [f"ALTER TABLE {table} ADD CONSTRAINT {name} {text}" for name, text in constraints]
        makes += [text.replace(" ON ONLY ", " ON ") for _, text in indexes]
        self.server.sql(*drops, "CHECKPOINT", database=TABLES)
        yield
        self.server.sql("SET maintenance_work_mem = '512MB'", *makes, database=TABLES)

    def refill(self, schema: str, live: int) -> None:
        """Have as many live jobs as the tables are to have, all ready."""
        ((there,),) = self.server.sql(f"SELECT count(*) FROM {schema}.job_queue", database=TABLES)
        self.server.sql(
            QUEUED.format(schema=schema, count=live - there),
            f"VACUUM ANALYZE {schema}.job_queue, {schema}.job_ready, {schema}.job_dependency",
            "CHECKPOINT",
            database=TABLES,
        )

    def batches(self, schema: str) -> dict[str, float]:
        """Feed jobs and end them, batch by batch; jobs a second of either."""
        self.refill(schema, self.sizes[schema][0])
        with harness.elsewhere() as busy:
            counts = self.options.batches, self.options.warm, SIZE
            answer = self.peers[0].call("batches", TABLES, schema, *counts, cpus=self.pins.client)
        jobs = self.options.batches * SIZE
        return {
            "feed": jobs / answer["feed_s"],
            "settle": jobs / answer["settle_s"],
            "elsewhere": busy(),
        }

    def middle(self, figure: str, contestant: str) -> float | None:
        found = self.figures[figure][contestant]
        return statistics.median(found) if found else None


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A line of the second table: one contestant's figure over another's, and the bar it is held
    against.
    """

    text: str
    figure: str
    of: str = "ours"
    over: str
    bar: float | None = None
    goal: float | None = None


RATIOS = [
    Ratio(text="single: ours / bare INSERT; COMMIT", figure="single", over="bare", bar=0.8),
    Ratio(text="single: ours / bare INSERT in autocommit", figure="single", over="autocommit"),
    Ratio(text="single: ours / pgqueuer", figure="single", over="pgqueuer"),
    Ratio(text="single: ours / procrastinate", figure="single", over="procrastinate"),
    Ratio(text="caller's transaction: ours / bare", figure="inside", over="bare"),
    Ratio(text="caller's transaction: ours / pgqueuer", figure="inside", over="pgqueuer"),
    Ratio(text="caller's transaction: ours / procrastinate", figure="inside", over="procrastinate"),
    Ratio(
        text="submit_many: ours / pgqueuer's bulk",
        figure="many",
        over="pgqueuer",
        bar=1.0,
        goal=1.3,
    ),
    Ratio(text="submit_many: ours / procrastinate's batch", figure="many", over="procrastinate"),
    Ratio(text="submit_many: ours / COPY of the same rows", figure="many", over="bare"),
    Ratio(text="feed: large tables / small", figure="feed", of="large", over="small", bar=0.8),
    Ratio(text="settle: large tables / small", figure="settle", of="large", over="small", bar=0.8),
]


def rates(bench: Bench) -> str:
    texts = {
        "single": ("jobs/s, one by one", "single"),
        "inside": ("jobs/s, in a caller's transaction", "inside"),
        "many": (f"jobs/s, {SIZE:,} in a call", "many"),
    }
    contestants = ["ours", "bare", "autocommit", *(peer.name for peer in bench.peers[2:])]
    rows = []
    for figure, (text, row) in texts.items():
        if bench.figures[figure]:
            rows.append(_rates(bench, text, figure, row, contestants))
    head = ("figure", *contestants, "elsewhere")
    shown = harness.table(head, rows) if rows else ""
    if bench.figures["feed"]:
        rows = [
            _rates(
                bench, f"{figure}: jobs/s, {SIZE:,} a batch", figure, "batches", list(bench.sizes)
            )
            for figure in ("feed", "settle")
        ]
        head = (
            "figure",
            *(
                f"{name}: {live:,} live, {history:,} ended"
                for name, (live, history) in bench.sizes.items()
            ),
            "elsewhere",
        )
        shown = f"{shown}\n\n{harness.table(head, rows)}".strip()
    return shown


def _rates(
    bench: Bench, text: str, figure: str, row: str, contestants: Sequence[str]
) -> tuple[str, ...]:
    busy = [bench.middle(f"elsewhere_{row}", name) for name in contestants]
    cells = [harness.spread(bench.figures[figure][name]) for name in contestants]
    return text, *cells, " / ".join("-" if each is None else f"{each:.1f}" for each in busy)


def ratios(bench: Bench) -> str:
    rows = []
    for line in RATIOS:
        mine, other = bench.middle(line.figure, line.of), bench.middle(line.figure, line.over)
        if mine is None or not other:
            continue
        ratio = mine / other
        bar = (
            ""
            if line.bar is None
            else f">= {line.bar:g}" + (f" (goal {line.goal:g})" if line.goal else "")
        )
        verdict = "" if line.bar is None else "ok" if ratio >= line.bar else "missed"
        rows.append((line.text, f"{ratio:.2f}", bar, verdict))
    return harness.table(("ratio of medians", "", "bar", ""), rows)


def options(given: list[str] | None = None):
    parser = harness.arguments(__doc__)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which of {','.join(ROWS)}")
    parser.add_argument("--singles", type=int, default=2_000, help="jobs submitted one by one")
    parser.add_argument(
        "--calls", type=int, default=20, help=f"calls that submit {SIZE:,} jobs each"
    )
    parser.add_argument(
        "--batches", type=int, default=15, help=f"batches of {SIZE:,} that are fed and settled"
    )
    parser.add_argument(
        "--warm", type=int, default=15, help="batches before those, which are not counted"
    )
    parser.add_argument(
        "--small", type=int, default=40_000, help="live rows, and history rows, of the small tables"
    )
    parser.add_argument("--live", type=int, default=200_000, help="live rows of the large tables")
    parser.add_argument(
        "--history", type=int, default=1_000_000, help="history rows of the large tables"
    )
    chosen = parser.parse_args(given)
    chosen.rows = [row for row in ROWS if row in chosen.rows.split(",")]
    if chosen.quick:
        small = {
            "reps": 1,
            "singles": 300,
            "calls": 5,
            "batches": 5,
            "warm": 5,
            "small": 12_000,
            "live": 50_000,
            "history": 100_000,
            "patience": 0.0,
            "tries": 1,
        }
        for name, value in small.items():
            if getattr(chosen, name) == parser.get_default(name):
                setattr(chosen, name, value)
    if min(chosen.small, chosen.live) < (chosen.batches + chosen.warm) * SIZE:
        parser.error(f"--small and --live must be at least (--batches + --warm) * {SIZE}")
    return chosen


def contestants(variables: dict[str, str], log: Path) -> list[Peer]:
    peers = [
        Peer("ours", Path(sys.executable), "submit_ours.py", variables, log),
        Peer("bare", Path(sys.executable), "submit_bare.py", variables, log),
    ]
    found = {name: harness.installed(name) for name in PEERS}
    others = [
        Peer(name, python, f"submit_{name}.py", variables, log)
        for name, python in found.items()
        if python
    ]
    return peers + others


def main() -> None:
    chosen = options()
    pins = Pins.of(chosen.pin)
    with tempfile.TemporaryDirectory() as folder, Server(pins.server) as server:
        server.reset()
        log = Path(folder, "log")
        variables = {"BENCH_URL": server.url, "BENCH_STAMPS": os.devnull, "BENCH_WORKERS": "4"}
        peers = contestants(variables, log)
        machine = harness.machine(server)
        bench = Bench(chosen, server, pins, peers)
        began = time.monotonic()
        bench.run()
    machine |= {
        "load_after": os.getloadavg()[0],
        "speed_after": harness.speed(),
        "took_s": time.monotonic() - began,
    }
    versions = ", ".join(f"{peer.name} {peer.info['version']}" for peer in peers[1:])
    print(
        f"{machine['when']}, revision {machine['revision']}, {machine['cpu']}, Python "
        f"{machine['python']}, Postgres"
    )
    print(
        f"{machine['postgres']} with fsync {machine['fsync']}, {versions}, pinned: {chosen.pin}; "
        "machine speed"
    )
    print(
        f"{machine['speed']:.0f} before, {machine['speed_after']:.0f} after. Medians of "
        f"{chosen.reps}"
    )
    print(
        "(least..greatest). bare and autocommit: psycopg alone, the same "
        f"row.\n\n{rates(bench)}\n\n{ratios(bench)}"
    )
    for error in bench.errors:
        print(f"note: {error}")
    result = {
        "machine": machine,
        "options": vars(chosen),
        "peers": {peer.name: peer.info for peer in peers},
        "figures": bench.figures,
        "errors": bench.errors,
    }
    say(f"stored in {harness.store('submit', result)}")


if __name__ == "__main__":
    main()
