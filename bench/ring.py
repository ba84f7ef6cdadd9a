"""The whole way of a submitted job, on a durable Postgres and a Redis, beside queues in Postgres
alone, in one run.

    python bench/ring.py                              # some minutes
    python bench/ring.py --quick                      # a look of a minute
    python bench/ring.py --rows through --peers pgqueuer

Rows: single (submitted one by one, each committed by itself), many (1,000 in a call), backlog (jobs
that were submitted before: drained, until the last is settled), through (submitted in calls of
1,000 while all run: from the first call until the last is settled), pickup (one by one, all idle:
from the call, and from its commit, to the handler). Handlers write 16 bytes. Ours are three
processes: one submits, an instance feeds and settles, a worker runs; settled is a row in the
ledger. For single, many and backlog the one that submits has no Redis; for through and pickup it is
an instance too, which stays until all is settled, and its jobs go straight into Redis after its
commit, before its call returns if they are few: "commit" is when it was committed, not when the
call returned. The servers are on CPU 0; a peer's worker is alone on CPU 1, our instance and worker
are on both, as are workers while others submit. Before a backlog is drained there is a VACUUM
ANALYZE. Repetitions are interleaved, so that a slow minute hits all. "elsewhere" is how many cores
other work on the machine took; a measurement with much of it is made again and the calmest is kept,
whatever it says. Bars are printed, never asserted. The peers are installed on first use, each into
an environment of its own under BENCH_VENVS or BENCH_NODE; a peer that cannot be is left out, and
the bench says what it needs.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import harness
import queues
from harness import Peer, Pins, Redis, Server, Stamps
from queues import SIZE, Bar, Figures

ROWS = ("single", "many", "backlog", "through", "pickup")
OURS = ("ours", "ours async")
PEERS = ("pgqueuer", "procrastinate", "graphile-worker", "pg-boss")
SLOW = ("procrastinate",)  # it drains a tenth of what the others do
CONCURRENCY = 10
WRITTEN = """
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8,
  (SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::float8 FROM pg_stat_user_tables)"""
TEXTS = {
    "single": "submit, jobs/s, one by one",
    "many": f"submit, jobs/s, {SIZE:,} in a call",
    "through": f"submit -> settled, jobs/s, {SIZE:,} in a call",
    "wal_through": "  WAL bytes/job",
    "tuples_through": "  tuples written/job",
    "cpu_through": "  CPU us/job, all processes and servers",
    "done": "backlog -> settled, jobs/s",
    "started": "  started",
    "wal": "  WAL bytes/job",
    "tuples": "  tuples written/job",
    "worker_us": "  CPU us/job of the worker",
    "instance_us": "  CPU us/job of the instance",
    "postgres_us": "  CPU us/job of Postgres",
    "redis_us": "  CPU us/job of Redis",
    "commit50": "commit -> handler p50, ms",
    "commit99": "commit -> handler p99, ms",
    "pickup50": "call -> handler p50, ms",
    "pickup99": "call -> handler p99, ms",
    "elsewhere": "elsewhere, cores",
}


class Bench(queues.Bench):
    """The rows."""

    def __init__(self, *given, server: Server, redis: Redis) -> None:
        super().__init__(*given)
        self.server, self.redis = server, redis

    def takes_part(self, peer: Peer, row: str) -> bool:
        return row not in ("single", "many") or peer.name != "ours async"

    def jobs(self, peer: Peer) -> int:
        return self.options.jobs // (10 if peer.name in SLOW else 1)

    def fresh(self) -> None:
        self.server.reset()
        self.redis.reset()

    @contextmanager
    def running(self, peer: Peer, *, cpus: str | None) -> Iterator[dict[str, Callable[[], float]]]:
        """Run what drains a peer's queue; yield whose CPU there is to watch."""
        with ExitStack() as stack:
            watched = {"postgres": self.server.cpu}
            if peer.name in OURS:
                instance = stack.enter_context(peer.serving("instance", cpus=self.pins.clients))
                watched |= {"instance": queues.cpu_of(instance), "redis": self.redis.cpu}
                cpus = self.pins.clients
            watched["worker"] = queues.cpu_of(
                stack.enter_context(peer.serving("worker", cpus=cpus))
            )
            yield watched

    def written(self) -> tuple[float, float]:
        """WAL bytes, and tuples as far as the backends have told; those that are gone have told
        all.
        """
        ((wal, tuples),) = self.server.sql(WRITTEN, database="bench")
        return wal, tuples

    def single(self, peer: Peer) -> Figures:
        self.fresh()
        answer = peer.call("single", self.options.singles, cpus=self.pins.client)
        return {"single": answer["timed"] / answer["seconds"]}

    def many(self, peer: Peer) -> Figures:
        self.fresh()
        answer = self.filled(peer, self.options.many)
        return {"many": answer["timed"] / answer["seconds"]}

    def backlog(self, peer: Peer) -> Figures:
        self.fresh()
        queued = self.filled(peer, self.jobs(peer))["sent"]
        self.server.settle()
        time.sleep(0.2)
        wal, tuples = self.written()
        with self.running(peer, cpus=self.pins.client) as watched:
            with self.server.counting(peer.info["left"]) as left:
                figures = self.drained(queued, watched, left)
            wal_after, _ = self.written()
        time.sleep(0.5)
        _, tuples_after = self.written()
        return figures | {
            "wal": (wal_after - wal) / queued,
            "tuples": (tuples_after - tuples) / queued,
        }

    @contextmanager
    def straight(self, peer: Peer) -> Iterator[None]:
        """Let ours submit from an instance of an application, which feeds and settles too."""
        peer.environment["BENCH_ROAD"] = "straight"
        try:
            yield
        finally:
            del peer.environment["BENCH_ROAD"]

    def through(self, peer: Peer) -> Figures:
        self.fresh()
        first = self.filled(peer, 2 * SIZE)["sent"]  # tables, connections and plans are there
        with self.running(peer, cpus=self.pins.clients) as watched:
            if not self.stamps.wait(first, limit=queues.LIMIT, quiet=1.0):
                raise RuntimeError(f"{self.stamps.count()} of the first {first} jobs ran")
            self.stamps.clear()
            self.server.settle()
            self.server.sql("CHECKPOINT")
            wal, _ = self.written()
            before = {name: cpu() for name, cpu in watched.items()}
            command = queues.sending(peer, self.jobs(peer))
            with (
                self.server.counting(peer.info["left"]) as left,
                self.straight(peer),
                peer.calling(*command, cpus=self.pins.clients) as answer,
            ):
                sent, timed = answer["sent"], answer["timed"]
                self.stamps.wait(sent, limit=queues.LIMIT)
                if not harness.until(lambda: left() == 0, queues.LIMIT):
                    raise RuntimeError(f"{left()} of {sent} jobs were never settled")
                over = time.time()
            cpu = sum(cpu() - before[name] for name, cpu in watched.items())
            wal_after, _ = self.written()
        time.sleep(0.5)
        _, tuples = self.written()  # of the first jobs too: a backend tells late what it wrote
        return {
            "through": timed / (over - answer["began"]),
            "wal_through": (wal_after - wal) / sent,
            "tuples_through": tuples / (first + sent),
            "cpu_through": (cpu / sent + answer["cpu"] / timed) * 1e6,
        }

    def pickup(self, peer: Peer) -> Figures:
        self.fresh()
        peer.call("single", 1)  # the tables are there
        self.server.settle()
        with self.running(peer, cpus=self.pins.client), self.straight(peer):
            return self.picked_up(peer)


def bars(bench: Bench) -> str:
    theirs = [peer.name for peer in bench.peers if peer.name not in OURS]
    commit = bench.best("commit50", theirs, min)
    found = []
    for ours in OURS:
        kind = "async" if ours.endswith("async") else "sync"
        through = bench.middle("through", ours)
        found += [
            Bar(
                text=f"submit -> settled, {kind}, jobs/s",
                ours=through,
                bar=bench.middle("done", "pgqueuer"),
                against="pgqueuer's backlog alone",
            ),
            Bar(
                text=f"submit -> settled, {kind}, jobs/s",
                ours=through,
                bar=bench.middle("done", "graphile-worker"),
                against="a goal: graphile-worker's backlog alone",
            ),
            Bar(
                text=f"commit -> handler p50, {kind}, ms",
                ours=bench.middle("commit50", ours),
                bar=commit and commit[0],
                against=f"{commit and commit[1]}",
                more=False,
            ),
        ]
    return queues.bars(found)


def options(given: list[str] | None = None):
    parser = harness.arguments(__doc__)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which of {','.join(ROWS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"which of {','.join(PEERS)}")
    parser.add_argument("--singles", type=int, default=1_000, help="jobs submitted one by one")
    parser.add_argument("--many", type=int, default=30_000, help="jobs submitted by calls for many")
    parser.add_argument(
        "--jobs", type=int, default=30_000, help="jobs that are drained, and that go through"
    )
    parser.add_argument("--samples", type=int, default=200, help="jobs whose pick-up is measured")
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY, help="of our worker")
    chosen = parser.parse_args(given)
    chosen.rows = [row for row in ROWS if row in chosen.rows.split(",")]
    chosen.peers = [name for name in PEERS if name in chosen.peers.split(",")]
    if chosen.quick:
        small = {
            "reps": 1,
            "singles": 200,
            "many": 10_000,
            "jobs": 5_000,
            "samples": 50,
            "patience": 0.0,
            "tries": 1,
        }
        for name, value in small.items():
            if getattr(chosen, name) == parser.get_default(name):
                setattr(chosen, name, value)
    return chosen


def contest(chosen, server: Server, redis: Redis, folder: Path) -> Bench:
    """Bring the contestants together."""
    stamps = Stamps(folder / "ring-stamps")
    variables = {
        "BENCH_URL": server.url,
        "BENCH_REDIS": redis.url,
        "BENCH_STAMPS": str(stamps.path),
        "BENCH_WORKERS": str(chosen.concurrency),
    }
    peers = queues.peers_of("ring", [*OURS, *chosen.peers], variables, folder / "ring-log")
    return Bench(chosen, Pins.of(chosen.pin), peers, stamps, server=server, redis=redis)


def main() -> None:
    chosen = options()
    pins = Pins.of(chosen.pin)
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(pins.server) as server,
        Redis(pins.server) as redis,
    ):
        server.reset()
        bench = contest(chosen, server, redis, Path(folder))
        machine = harness.machine(server, redis)
        began = time.monotonic()
        bench.run()
    queues.conclude("ring", bench, machine, began, f"{queues.table(bench, TEXTS)}\n\n{bars(bench)}")


if __name__ == "__main__":
    main()
