"""Recurring jobs: ours beside APScheduler 3 and its pre-release 4, on one durable Postgres, in one
run.

    python bench/recurring.py                     # about twenty minutes
    python bench/recurring.py --quick             # a look of a minute
    python bench/recurring.py --rows fires,bare   # only some rows

Rows: fires, fires2 (a burst of no-op jobs due in one second, by 1 and by 2 processes), bare (the
SQL of claim and finish alone), lateness (1,000 jobs due in one second), register (10,000 jobs, and
a restart with them), tenants (as many over 1,000 tenants, by two instances in the bench's own
process), idle, failover. Repetitions are interleaved, so that a slow minute hits both. "elsewhere"
is how many cores other work on the machine took during the measurements (by contestant); a
measurement with much of it is made again and the calmest is kept, whatever it says. Ratios and bars
are against APScheduler 3; bars are printed, never asserted.
"""

import math
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import harness
from harness import Peer, Pins, Server, Stamps, say

from scheduler import Registration, Scheduler

ROWS = ("fires", "fires2", "bare", "lateness", "register", "tenants", "idle", "failover")
PEERS = ("apscheduler3", "apscheduler4")
FAR = 30 * 86400


class Bench:
    """Measures, and collects figures by name, contestant and repetition."""

    def __init__(
        self, options, server: Server, pins: Pins, peers: list[Peer], stamps: Stamps
    ) -> None:
        self.options, self.server, self.pins, self.peers, self.stamps = (
            options,
            server,
            pins,
            peers,
            stamps,
        )
        self.ours = peers[0]
        self.figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.notes: dict[str, dict[str, float]] = {}
        self.errors: list[str] = []

    def run(self) -> None:
        for _ in range(self.options.reps):
            self.once()

    def once(self) -> None:
        """Measure each row of each contestant."""
        for row in self.options.rows:
            for peer in self.peers:
                self.calmest(row, peer)

    def calmest(self, row: str, peer: Peer) -> None:
        """Measure until other work leaves the machine alone, or a few times; keep the calmest,
        whatever it says.
        """
        kept: dict[str, dict[str, float]] = {}
        for _ in range(1 if row in ("idle", "failover") else self.options.tries):
            self.notes = {}
            try:
                getattr(self, row)(peer)
            except Exception as error:  # one failure must not cost the other rows
                self.errors.append(f"{row}, {peer.name}: {error}")
                say(self.errors[-1])
                continue
            for part, figures in self.notes.items():
                if part not in kept or figures["elsewhere"] < kept[part]["elsewhere"]:
                    kept[part] = figures
            if all(figures["elsewhere"] < harness.CALM for figures in kept.values()):
                break
        for part, figures in kept.items():
            for name, value in figures.items():
                self.figures[f"{name}_{part}" if name == "elsewhere" else name][peer.name].append(
                    value
                )

    def fresh(self) -> None:
        harness.quiet(self.options.patience)
        self.server.reset()

    def settle(self) -> None:
        if not self.options.unsettled:
            self.server.settle()

    def note(self, peer: Peer, part: str, busy: Callable[[], float], **figures: float) -> None:
        self.notes[part] = {**figures, "elsewhere": busy()}
        shown = ", ".join(f"{name} {harness.number(value)}" for name, value in figures.items())
        say(f"{part:9} {peer.name:12} {shown}; elsewhere {busy():.2f} cores")

    def fires(self, peer: Peer) -> None:
        self.throughput(peer, 1)

    def fires2(self, peer: Peer) -> None:
        self.throughput(peer, 2)

    def throughput(self, peer: Peer, processes: int) -> None:
        """Start as many no-op jobs as possible; "ledger" also waits until the last fire is recorded
        as ended.
        """
        count = self.options.burst if peer is self.ours else self.options.peer_burst
        stamps, busy, recorded_at = self.burst(peer, count, processes)
        firsts: dict[int, float] = {}
        for stamp in stamps:
            firsts[stamp.number] = min(stamp.start, firsts.get(stamp.number, math.inf))
        began, ended = min(firsts.values()), max(firsts.values())
        figures = {
            f"fires{processes}": (len(firsts) - 1) / (ended - began),
            f"doubled{processes}": len(stamps) - len(firsts),
        }
        if len(firsts) < count:
            self.errors.append(
                f"{peer.name}, {processes} processes: {count - len(firsts)} of {count} never ran"
            )
        if recorded_at is not None:
            figures[f"ledger{processes}"] = len(firsts) / (recorded_at - began)
        self.note(peer, f"fires{processes}", busy, **figures)

    def bare(self, peer: Peer) -> None:
        if peer is not self.ours:
            return
        self.fresh()
        half = self.options.burst // 2
        due = math.ceil(time.time() + 4 + self.options.burst / 3000)
        for batch in (1000, 100):
            peer.call("register", f"by{batch}-:{half}:{due}")
        self.settle()
        time.sleep(max(0.0, due - time.time()) + 0.1)
        for batch in (1000, 100):
            with harness.elsewhere() as busy:
                answer = peer.call("bare", f"by{batch}-:{half}:{due}", batch, cpus=self.pins.client)
            figures = {
                f"bare{batch}": answer["rate"],
                f"claim{batch}_us": answer["claim_s"] / half * 1e6,
                f"finish{batch}_us": answer["finish_s"] / half * 1e6,
            }
            self.note(peer, f"bare{batch}", busy, **figures)

    def lateness(self, peer: Peer) -> None:
        stamps, busy, _ = self.burst(peer, self.options.lateness, 1)
        late = [(stamp.start - stamp.due) * 1000 for stamp in stamps]
        self.note(
            peer,
            "lateness",
            busy,
            late50=harness.percentile(late, 0.5),
            late99=harness.percentile(late, 0.99),
        )

    def register(self, peer: Peer) -> None:
        """Register, then restart: a new process with all of them until it starts one that is
        overdue.
        """
        count, cpus = self.options.registered, self.pins.client
        self.fresh()
        far = int(time.time()) + FAR
        with harness.elsewhere() as busy:
            many = peer.call("register", f"far:{count}:{far}", cpus=cpus)["seconds"]
            singles = peer.call("register-singly", f"one:{self.options.singles}:{far}", cpus=cpus)[
                "seconds"
            ]
        figures = {"register_s": many, "single_ms": singles / self.options.singles * 1000}
        self.note(peer, "register", busy, **figures)
        self.stamps.clear()
        due = math.ceil(time.time() + 3)
        peer.call("register", f"due:1:{due}")
        self.settle()
        time.sleep(max(0.0, due - time.time()) + 0.5)
        if self.stamps.count():
            raise RuntimeError("the overdue job ran too early")
        began = time.time()
        serving = peer.serving(f"far:{count}:{far}", f"due:1:{due}", cpus=cpus)
        with harness.elsewhere() as busy, serving:
            if not self.stamps.wait(1, limit=60):
                raise RuntimeError("the overdue job never ran")
        self.note(peer, "restart", busy, restart_s=self.stamps.read()[0].start - began)

    def tenants(self, peer: Peer) -> None:
        """Register over many tenants, twice: a second instance finds them all unchanged; then sync,
        and list them.
        """
        if peer is not self.ours:
            return
        self.fresh()
        count, tenants = self.options.registered, self.options.tenants
        first = datetime.fromtimestamp(int(time.time()) + FAR, UTC)
        jobs = [
            Registration(
                tenant=f"tenant{n % tenants}",
                job_id=f"job{n // tenants}",
                fn=nothing,
                every=timedelta(hours=1),
                start_at=first,
            )
            for n in range(count)
        ]
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(
            0, {int(cpu) for cpu in self.pins.client.split(",")} if self.pins.client else before
        )
        try:
            with harness.elsewhere() as busy, Scheduler(self.server.url) as one:
                figures = {"tenants_register_s": seconds(lambda: one.register_many(jobs))}
                self.settle()
                with Scheduler(self.server.url) as other:
                    figures["tenants_again_s"] = seconds(lambda: other.register_many(jobs))
                    figures["tenants_sync_s"] = seconds(other._instance.sync.sync)  # noqa: SLF001 - has no public name
                    figures["tenants_jobs_ms"] = seconds(other.jobs) * 1000
                    figures["tenants_one_us"] = seconds(lambda: other.jobs("tenant0")) * 1e6
                    if len(other.jobs()) != count:
                        raise RuntimeError(f"{len(other.jobs())} of {count} jobs are there")
        finally:
            os.sched_setaffinity(0, before)
        self.note(peer, "tenants", busy, **figures)

    def idle(self, peer: Peer) -> None:
        """Watch an instance that has nothing to do; autovacuum is off meanwhile, as it would count
        as queries.
        """
        self.fresh()
        jobs = f"far:{self.options.registered}:{int(time.time()) + FAR}"
        peer.call("register", jobs)
        self.settle()
        self.server.sql("ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
        with peer.serving(jobs, cpus=self.pins.client) as (process,):
            time.sleep(
                min(12.0, self.options.idle)
            )  # a backend tells its counts within 10 s of its last query
            with harness.elsewhere() as busy:
                before = self._usage(process.pid)
                time.sleep(self.options.idle)
                after = self._usage(process.pid)
        self.server.sql("ALTER SYSTEM RESET autovacuum", "SELECT pg_reload_conf()")
        seconds, queries, client, server = (b - a for a, b in zip(before, after, strict=True))
        figures = {
            "queries_minute": queries / seconds * 60,
            "idle_cpu": client / seconds * 100,
            "idle_server_cpu": server / seconds * 100,
        }
        self.note(peer, "idle", busy, **figures)

    def failover(self, peer: Peer) -> None:
        """Kill the process that runs a fire, and wait for the other one to start it again."""
        if peer is not self.ours:
            return
        self.fresh()
        self.stamps.clear()
        due = math.ceil(time.time() + 3)
        with peer.serving(f"hang:1:{due}", processes=2) as processes:
            if not self.stamps.wait(1, limit=30):
                raise RuntimeError("the job never ran")
            time.sleep(1)
            first = self.stamps.read()[0]
            killed_at = time.time()
            next(process for process in processes if process.pid == first.number).kill()
            with harness.elsewhere() as busy:
                if not self.stamps.wait(2, limit=self.options.lease * 2 + 30):
                    raise RuntimeError("the fire never started again")
        self.note(peer, "failover", busy, failover_s=self.stamps.read()[1].start - killed_at)

    def burst(self, peer: Peer, count: int, processes: int):
        """Store `count` jobs due in one second, start instances, and return the stamps of that
        second.
        """
        slack = 3 + count / (2000 if peer is self.ours else 400)
        for _ in range(3):
            self.fresh()
            due = math.ceil(time.time() + slack)
            jobs = f"burst:{count}:{due}"
            peer.call("register", jobs)
            self.settle()
            self.stamps.clear()
            cpus = self.pins.client if processes == 1 else self.pins.clients
            with peer.serving(jobs, cpus=cpus, processes=processes):
                if time.time() > due - 1:
                    slack *= 2
                    say(f"{peer.name} was not ready in time with {count} jobs; once more")
                    continue
                time.sleep(due - time.time() - 0.5)
                with harness.elsewhere() as busy:
                    self.stamps.wait(count, limit=120)
                    recorded_at = self._recorded(count) if peer is self.ours else None
                self.stamps.wait(count, limit=30, quiet=1.0)  # whatever runs a second time
                return self.stamps.read(), busy, recorded_at
        raise RuntimeError(f"{count} jobs could not be registered before they were due")

    def _recorded(self, count: int) -> float:
        query = "SELECT count(*) FROM scheduler.job_history WHERE kind = 'fire'"
        with self.server.counting(query) as fired:
            if not harness.until(lambda: fired() >= count, 60):
                raise RuntimeError("the ledger never had every fire")
        return time.time()

    def _usage(self, pid: int) -> tuple[float, ...]:
        query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'bench'"
        queries = self.server.sql(query)[0][0]
        return time.monotonic(), queries, harness.cpu_seconds(pid), self.server.cpu()


def nothing() -> None:
    pass


def seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table; `ratio` is what the bar is held against: (ours, theirs) -> number."""

    figure: str
    text: str
    row: str
    bar: str = ""
    meets: Callable[[float, float], bool] | None = None
    theirs: str | None = None


def lines(options) -> list[Line]:
    n, registered = options.burst, options.registered
    twice = f"  of {options.peer_burst:,} ran twice (ours: of {n:,})"
    return [
        Line(
            figure="fires1",
            text=f"fires/s, 1 process, started (burst of {n:,})",
            row="fires1",
            bar=">= 10x",
            meets=lambda ours, ratio: ratio >= 10,
        ),
        Line(
            figure="ledger1", text="fires/s, 1 process, until all ended in the ledger", row="fires1"
        ),
        Line(
            figure="fires2",
            text="fires/s, 2 processes, distinct",
            row="fires2",
            bar=">= 10x",
            meets=lambda ours, ratio: ratio >= 10,
        ),
        Line(
            figure="ledger2",
            text="fires/s, 2 processes, until all ended in the ledger",
            row="fires2",
        ),
        Line(figure="doubled2", text=twice, row="fires2"),
        Line(
            figure="bare1000",
            text="bare claim+finish SQL, batches of 1000: fires/s",
            row="bare1000",
        ),
        Line(
            figure="bare100", text="bare claim+finish SQL, batches of 100: fires/s", row="bare100"
        ),
        Line(
            figure="of_bare",
            text="  ours (1 process, ledger) / bare (1000)",
            row="bare1000",
            bar=">= 0.5",
            meets=lambda ours, ratio: ours >= 0.5,
        ),
        Line(
            figure="late50",
            text=f"lateness p50 ms, {options.lateness:,} jobs due in one second",
            row="lateness",
        ),
        Line(
            figure="late99",
            text="lateness p99 ms",
            row="lateness",
            bar="<= 1/8",
            meets=lambda ours, ratio: ratio <= 1 / 8,
        ),
        Line(
            figure="register_s",
            text=f"registering {registered:,} jobs, s",
            row="register",
            bar="<= 1/10",
            meets=lambda ours, ratio: ratio <= 1 / 10,
        ),
        Line(figure="single_ms", text="registering one by one, ms each", row="register"),
        Line(
            figure="restart_s",
            text=f"restart with {registered:,} jobs until an overdue one starts, s",
            row="restart",
        ),
        Line(
            figure="tenants_register_s",
            text=f"registering {registered:,} jobs over {options.tenants:,} tenants, s",
            row="tenants",
        ),
        Line(figure="tenants_again_s", text="  by a second instance, unchanged, s", row="tenants"),
        Line(figure="tenants_sync_s", text="  sync of all of them, s", row="tenants"),
        Line(figure="tenants_jobs_ms", text="  jobs(), ms", row="tenants"),
        Line(figure="tenants_one_us", text="  jobs(tenant), us", row="tenants"),
        Line(
            figure="queries_minute", text=f"idle with {registered:,} jobs: queries/min", row="idle"
        ),
        Line(
            figure="idle_cpu",
            text="  CPU % of the process",
            row="idle",
            bar="< 1 %",
            meets=lambda ours, ratio: ours < 1,
        ),
        Line(figure="idle_server_cpu", text="  CPU % of the server", row="idle"),
        Line(
            figure="failover_s",
            text=f"failover after SIGKILL, lease {options.lease:g} s: gap s",
            row="failover",
            theirs="never",
        ),
    ]


def table(bench: Bench) -> str:
    ours, theirs = "ours", PEERS[0]
    ledger, bare = bench.figures["ledger1"][ours], bench.figures["bare1000"][ours]
    bench.figures["of_bare"][ours] = [a / b for a, b in zip(ledger, bare, strict=False)]
    rows = []
    for line in lines(bench.options):
        mine, other = bench.figures[line.figure][ours], bench.figures[line.figure][theirs]
        if not mine:
            continue
        middle = statistics.median(mine)
        ratio = (
            middle / statistics.median(other) if other and statistics.median(other) else math.nan
        )
        busy = bench.figures[f"elsewhere_{line.row}"]
        verdict = ""
        if line.meets is not None:
            verdict = "ok" if line.meets(middle, ratio) else "missed"
        rows.append(
            (
                line.text,
                harness.spread(mine),
                *(
                    line.theirs or harness.spread(bench.figures[line.figure][peer.name])
                    for peer in bench.peers[1:]
                ),
                "-" if math.isnan(ratio) else f"{ratio:.3g}",
                line.bar,
                verdict,
                " / ".join(
                    f"{statistics.median(busy[peer.name]):.1f}"
                    for peer in bench.peers
                    if busy[peer.name]
                ),
            )
        )
    others = (f"APScheduler {peer.info['version']}" for peer in bench.peers[1:])
    head = ("figure", "ours", *others, "ratio", "bar", "", "elsewhere")
    return harness.table(head, rows)


def options(given: list[str] | None = None):
    parser = harness.arguments(__doc__)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which of {','.join(ROWS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"which of {','.join(PEERS)}")
    parser.add_argument("--burst", type=int, default=20_000, help="jobs of our burst")
    parser.add_argument("--peer-burst", type=int, default=2_000, help="jobs of APScheduler's burst")
    parser.add_argument(
        "--lateness", type=int, default=1_000, help="jobs due in one second, for all"
    )
    parser.add_argument("--registered", type=int, default=10_000)
    parser.add_argument(
        "--tenants", type=int, default=1_000, help="over which the row tenants spreads them"
    )
    parser.add_argument("--singles", type=int, default=1_000, help="jobs registered one by one")
    parser.add_argument(
        "--idle", type=float, default=70.0, help="seconds; below 60 no sync is inside"
    )
    parser.add_argument("--lease", type=float, default=30.0, help="seconds, for the failover")
    parser.add_argument(
        "--workers",
        type=int,
        default=16,
        help="threads that run bodies; APScheduler 4 has 100 tasks",
    )
    parser.add_argument(
        "--unsettled", action="store_true", help="no VACUUM ANALYZE after registering: a first day"
    )
    chosen = parser.parse_args(given)
    chosen.rows = [row for row in ROWS if row in chosen.rows.split(",")]
    chosen.peers = [name for name in PEERS if name in chosen.peers.split(",")]
    if chosen.quick:
        small = {
            "reps": 1,
            "burst": 4000,
            "peer_burst": 400,
            "lateness": 400,
            "registered": 1000,
            "tenants": 100,
            "singles": 100,
            "idle": 3.0,
            "lease": 3.0,
            "patience": 0.0,
            "tries": 1,
        }
        for name, value in small.items():
            if getattr(chosen, name) == parser.get_default(name):
                setattr(chosen, name, value)
    return chosen


def contest(chosen, server: Server, folder: Path) -> Bench:
    """Bring the contestants together, ours first."""
    stamps, log = Stamps(folder / "recurring-stamps"), folder / "recurring-log"
    variables = {
        "BENCH_URL": server.url,
        "BENCH_STAMPS": str(stamps.path),
        "BENCH_WORKERS": str(chosen.workers),
        "BENCH_LEASE": f"{chosen.lease:g}s",
    }
    found = {name: harness.installed(name) for name in chosen.peers}
    peers = [Peer("ours", Path(sys.executable), "ours.py", variables, log)]
    peers += [
        Peer(name, python, f"{name}.py", variables, log) for name, python in found.items() if python
    ]
    return Bench(chosen, server, Pins.of(chosen.pin), peers, stamps)


def main() -> None:
    chosen = options()
    with tempfile.TemporaryDirectory() as folder, Server(Pins.of(chosen.pin).server) as server:
        bench = contest(chosen, server, Path(folder))
        machine = harness.machine(server)
        began = time.monotonic()
        bench.run()
        shown = table(bench)
    machine |= {
        "load_after": os.getloadavg()[0],
        "speed_after": harness.speed(),
        "took_s": time.monotonic() - began,
    }
    print(
        f"{machine['when']}, revision {machine['revision']}, {machine['cpu']}, Python "
        f"{machine['python']}, Postgres"
    )
    print(
        f"{machine['postgres']} with fsync {machine['fsync']}, {chosen.workers} worker threads "
        "each, pinned:"
    )
    print(
        f"{chosen.pin}; machine speed {machine['speed']:.0f} before, {machine['speed_after']:.0f} "
        "after. Medians of"
    )
    print(f"{chosen.reps} (least..greatest).\n\n{shown}")
    for error in bench.errors:
        print(f"note: {error}")
    result = {
        "machine": machine,
        "options": vars(chosen),
        "peers": {peer.name: peer.info for peer in bench.peers},
        "figures": bench.figures,
        "errors": bench.errors,
    }
    say(f"stored in {harness.store('recurring', result)}")


if __name__ == "__main__":
    main()
