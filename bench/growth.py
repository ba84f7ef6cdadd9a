"""How cost grows: with recurring jobs, queued jobs, worker processes, payloads, tenants, and
scheduler instances.

    python bench/growth.py                              # about ten minutes
    python bench/growth.py --quick                      # a look of a minute or two
    python bench/growth.py --full --reps 3              # 100,000 recurring, 10 million queued, 50 instances: hours
    python bench/growth.py --rows tenants --tenants 1,1000,5000

Rows: recurring (so many jobs due in one second, one instance), queued (so many in a Redis queue, of
which some are drained), ledger (so many live in Postgres: the statements that feed and settle),
workers (processes that drain one queue), payload (bytes, from submit to settled), tenants (over
which jobs are spread, from submit to settled), instances (that share a burst of fires on one
database). For each size: jobs a second, CPU of all processes and servers for a job, and memory.
Beside them stands the exponent of what a job costs: 0.3 means that ten times the size makes it
twice as dear. Up to 0.15 is "flat". With more jobs a job must not cost more, or the whole grows
worse than linearly; over bytes, processes, tenants and instances its cost may grow as they do. What
is worse is marked. The servers are on CPU 0, a lone worker or instance on CPU 1, several on both.
"""

import json
import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Any

import charts
import harness
import queues
import slopes
import submit
from harness import Peer, Pins, Redis, Server, Stamps, say
from queues import SIZE, Figures
from slopes import DIMENSIONS, TEXTS

carried = harness.load("redis")
LIMIT = 300.0
CONNECTIONS = 1000  # that fifty instances need, and more


class Growth:
    """Measures: a method for each row, which is given a size."""

    def __init__(self, options, server: Server, redis: Redis, folder: Path) -> None:
        self.options, self.server, self.redis = options, server, redis
        self.pins, self.stamps, self.log = (
            Pins.of(options.pin),
            Stamps(folder / "stamps"),
            folder / "log",
        )
        self.variables = {
            "BENCH_REDIS": redis.url,
            "BENCH_STAMPS": str(self.stamps.path),
            "BENCH_WORKERS": "10",
        }
        chosen = carried.options(["--peers=", f"--jobs={options.jobs}", f"--pin={options.pin}"])
        self.carried = carried.contest(chosen, redis, folder)
        self.curves: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        self.tables: submit.Bench | None = None
        self.errors: list[str] = []

    def run(self) -> None:
        for _ in range(self.options.reps):
            for row in self.options.rows:
                for size in self.options.sizes[row]:
                    self.measure(row, size)

    def measure(self, row: str, size: int) -> None:
        harness.quiet(self.options.patience)
        self.stamps.clear()
        self.carried.stamps.clear()
        try:
            with harness.elsewhere() as busy:
                found = getattr(self, row)(size)
        except Exception as error:  # one failure must not cost the other rows
            self.errors.append(f"{row}, {size:,}: {error}")
            say(self.errors[-1])
            return
        found["elsewhere"] = busy()
        shown = ", ".join(f"{TEXTS[name]} {harness.number(value)}" for name, value in found.items())
        say(f"{row:9} {size:>10,} {shown}")
        for name, value in found.items():
            self.curves[row][name][size].append(value)

    def peer(self, script: str, **variables: object) -> Peer:
        given = {name: str(value) for name, value in variables.items()}
        return Peer(
            "ours",
            Path(sys.executable),
            script,
            {"BENCH_URL": self.server.url} | self.variables | given,
            self.log,
        )

    def cpus(self, processes: int) -> str | None:
        return self.pins.client if processes == 1 else self.pins.clients

    def recurring(self, count: int) -> Figures:
        found = self.fires(count, 1)
        return found | {"memory": found["memory"] * 1024 / count}

    def instances(self, processes: int) -> Figures:
        return self.fires(self.options.burst, processes)

    def fires(self, count: int, processes: int) -> Figures:
        """Let instances share jobs that are due in one second, until the ledger has every fire."""
        peer = self.peer("ours.py", BENCH_WORKERS=16)
        query = "SELECT count(*) FROM scheduler.job_history WHERE kind = 'fire'"
        slack = 5 + count / 1500 + processes
        for _ in range(4):
            self.server.reset()
            due = math.ceil(time.time() + slack)
            jobs = f"burst:{count}:{due}"
            peer.call("register", jobs)
            self.server.settle()
            self.stamps.clear()
            with peer.serving(jobs, cpus=self.cpus(processes), processes=processes) as running:
                if time.time() > due - 0.5:
                    slack *= 2
                    continue
                time.sleep(max(0.0, due - time.time() - 0.2))
                used = self.used(running, self.server.cpu)
                with self.server.counting(query) as fired:
                    _until(lambda: fired() >= count, "the ledger had every fire")
                over, cpu = time.time(), used()
                began = min(stamp.start for stamp in self.stamps.read())
                if self.stamps.count() != count:
                    self.errors.append(
                        f"{processes} instances: {self.stamps.count()} starts of {count} fires"
                    )
                return {
                    "rate": count / (over - began),
                    "cpu": cpu / count * 1e6,
                    "memory": _memory(running) / processes,
                }
        raise RuntimeError(f"{count} jobs could not be registered before they were due")

    def queued(self, count: int) -> Figures:
        """Fill a queue, and drain a part of it."""
        peer = self.carried.peers[0]
        self.redis.reset()
        before = self.redis.memory()
        answer = peer.call("many", max(1, count // SIZE - 1), SIZE, cpus=self.pins.client)
        memory = (self.redis.memory() - before) / answer["sent"]
        part = min(answer["sent"], self.options.jobs)
        with peer.serving(cpus=self.pins.client) as running:
            _until(lambda: self.carried.stamps.count() >= part // 10, "the worker began")
            used, began, first = (
                self.used(running, self.redis.cpu),
                time.time(),
                self.carried.stamps.count(),
            )
            _until(lambda: self.carried.stamps.count() >= part, "the jobs ran")
            done, took, cpu = self.carried.stamps.count() - first, time.time() - began, used()
        return {
            "rate": done / took,
            "push": answer["timed"] / answer["seconds"],
            "cpu": cpu / done * 1e6,
            "memory": memory,
        }

    def ledger(self, count: int) -> Figures:
        """Feed and settle where so many jobs are live."""
        if self.tables is None:
            warm = [
                f"--batches={self.options.batches}",
                f"--warm={self.options.batches}",
                f"--pin={self.options.pin}",
            ]
            chosen = submit.options(["--rows=batches", *warm])
            self.tables = submit.Bench(
                chosen, self.server, self.pins, [self.peer("submit_ours.py")]
            )
            self.tables.sizes = {
                f"live{size}": (size, min(size, 100_000)) for size in self.options.sizes["ledger"]
            }
            self.tables.fill()
        size = f"SELECT pg_total_relation_size('live{count}.job_queue') + pg_total_relation_size('live{count}.job_ready')"
        memory = self.server.sql(size, database=submit.TABLES)[0][0] / count
        self.tables.refill(f"live{count}", count)
        used, batches = self.used([], self.server.cpu), self.options.batches
        counts = batches, batches, SIZE
        answer = self.tables.peers[0].call(
            "batches", submit.TABLES, f"live{count}", *counts, cpus=self.pins.client
        )
        rates = {name: batches * SIZE / answer[f"{name}_s"] for name in ("feed", "settle")}
        return rates | {
            "cpu": (used() + answer["cpu_s"]) / (2 * batches * SIZE) * 1e6,
            "memory": memory,
        }

    def workers(self, processes: int) -> Figures:
        """Drain a queue."""
        peer = self.carried.peers[0]
        queued = self.carried.fill(peer, 1)
        with peer.serving(cpus=self.cpus(processes), processes=processes) as running:
            watched = {"worker": queues.cpu_of(running), "redis": self.redis.cpu}
            found = self.carried.drained(queued, watched, lambda: self.redis.ask(peer.info["left"]))
            memory = _memory(running) / processes
        return {
            "rate": found["done"],
            "cpu": found["worker_us"] + found["redis_us"],
            "memory": memory,
        }

    def payload(self, size: int) -> Figures:
        jobs = max(20, min(self.options.jobs, 20_000_000 // size))
        batch = max(1, min(SIZE, jobs // 10, 4_000_000 // size))
        return self.ring(jobs, batch, BENCH_FILL=size - 40)

    def tenants(self, count: int) -> Figures:
        return self.ring(self.options.jobs, SIZE, BENCH_TENANTS=count)

    def ring(self, jobs: int, batch: int, **variables: object) -> Figures:
        """Submit in calls while an instance and a worker run, until the last job is settled."""
        peer = self.peer("ring_ours.py", **variables)
        self.server.reset()
        self.redis.reset()
        peer.call("many", 1, 1)  # the tables are there

        with ExitStack() as stack:
            left = stack.enter_context(self.server.counting(peer.info["left"]))
            running = [
                process
                for role in ("instance", "worker")
                for process in stack.enter_context(peer.serving(role, cpus=self.pins.clients))
            ]
            _until(lambda: left() == 0, "the first jobs were settled")
            self.server.settle()
            used = self.used(running, self.server.cpu, self.redis.cpu)
            answer = peer.call("many", max(1, jobs // batch - 1), batch, cpus=self.pins.clients)
            _until(lambda: left() == 0, "the jobs were settled")
            over, cpu = time.time(), used() / answer["sent"] + answer["cpu"] / answer["timed"]
            return {
                "rate": answer["timed"] / (over - answer["began"]),
                "cpu": cpu * 1e6,
                "memory": _memory(running),
            }

    def used(self, running: Sequence[Popen], *servers: Callable[[], float]) -> Callable[[], float]:
        """Return what says how much CPU processes and servers have used since."""
        cpus = (queues.cpu_of(running), *servers)
        before = sum(cpu() for cpu in cpus)
        return lambda: sum(cpu() for cpu in cpus) - before


def _until(holds: Callable[[], bool], text: str) -> None:
    if not harness.until(holds, LIMIT):
        raise RuntimeError(f"waited in vain until {text}")


def _memory(running: Sequence[Popen]) -> float:
    """Add up the resident memory of processes and their descendants, in MB."""
    pages = sum(
        int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        for process in running
        for pid in harness.tree(process.pid)
    )
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def options():
    parser = harness.arguments(__doc__)
    parser.set_defaults(reps=1)
    parser.add_argument(
        "--rows", default=",".join(DIMENSIONS), help=f"which of {','.join(DIMENSIONS)}"
    )
    parser.add_argument("--full", action="store_true", help="the sizes of a proof")
    for name, dimension in DIMENSIONS.items():
        parser.add_argument(
            f"--{name}", help=f"sizes (default {dimension.usual}; full {dimension.full})"
        )
    parser.add_argument(
        "--jobs", type=int, help="that are drained, or go through, at each size (default 20000)"
    )
    parser.add_argument("--burst", type=int, help="fires that instances share (default 5000)")
    parser.add_argument(
        "--batches", type=int, help=f"of {SIZE:,} that are fed and settled, and as many before"
    )
    parser.add_argument(
        "--docs",
        type=Path,
        nargs="?",
        const=charts.DOCS,
        help="write charts and benchmarks.md there",
    )
    parser.add_argument("--again", type=Path, help="show a stored result and measure nothing")
    chosen = parser.parse_args()
    chosen.rows = [row for row in DIMENSIONS if row in chosen.rows.split(",")]
    kind = "full" if chosen.full else "quick" if chosen.quick else "usual"
    given = {
        name: getattr(chosen, name) or getattr(dimension, kind)
        for name, dimension in DIMENSIONS.items()
    }
    chosen.sizes = {name: [int(size) for size in sizes.split(",")] for name, sizes in given.items()}
    chosen.jobs = chosen.jobs or (3000 if chosen.quick else 20_000)
    chosen.burst = chosen.burst or (1000 if chosen.quick else 5000)
    chosen.batches = chosen.batches or (5 if chosen.quick else 15)
    return chosen


def measured(chosen) -> dict[str, Any]:
    """Run, and store what there is, however the run ends."""
    pins, began = Pins.of(chosen.pin), time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(pins.server) as server,
        Redis(pins.server) as redis,
    ):
        server.allow(CONNECTIONS)
        server.reset()
        machine = harness.machine(server, redis)
        growth = Growth(chosen, server, redis, Path(folder))
        try:
            growth.run()
        finally:
            took = {"load_after": os.getloadavg()[0], "took_s": time.monotonic() - began}
            result = {
                "machine": machine | took,
                "options": vars(chosen),
                "curves": growth.curves,
                "errors": growth.errors,
            }
            path = harness.store("growth", result)
            say(f"stored in {path}")
    return json.loads(path.read_text())


def main() -> None:
    chosen = options()
    result = json.loads(chosen.again.read_text()) if chosen.again else measured(chosen)
    print(slopes.text(result))
    if chosen.docs:
        charts.publish(chosen.docs, "growth", slopes.text(result, drawn=True), slopes.drawn(result))


if __name__ == "__main__":
    main()
