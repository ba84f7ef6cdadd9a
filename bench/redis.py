"""Queues in Redis alone: ours beside bullmq, rq, arq, saq, dramatiq, huey, taskiq and celery, on
one Redis, in one run.

    python bench/redis.py                              # some minutes
    python bench/redis.py --quick                      # a look of a minute
    python bench/redis.py --rows drain --peers taskiq,node-bullmq
    python bench/redis.py --dialect bullmq             # beside BullMQ on Node and for Python
    python bench/redis.py --dialect conveyor           # beside our standard dialect

Rows: single (sent one by one), many (1,000 in a call; arq, saq and taskiq have none, theirs are
concurrent calls), drain and drain2 (a queue that was filled before, by 1 and by 2 worker
processes), trips (commands that clients send while jobs are drained, seen by MONITOR in a drain of
their own; those inside scripts are not sent, a pipeline is as many as it has), pickup (call ->
handler, one by one, queue idle; who sends shares the worker's CPU). Handlers write 16 bytes. Ours
push without Postgres, as a feeder does, and their ends go into the stream for settlers; huey
acknowledges nothing, and promises less. With --dialect bullmq all speak BullMQ's protocol, remove
what is completed, and run as many handlers at once: --concurrency. The server is on CPU 0, a lone
client on CPU 1, two workers on both. Repetitions are interleaved, so that a slow minute hits all.
"elsewhere" is how many cores other work on the machine took; a measurement with much of it is made
again and the calmest is kept, whatever it says. Bars are printed, never asserted. The peers are
installed on first use, each into an environment of its own under BENCH_VENVS or BENCH_NODE; a peer
that cannot be is left out, and the bench says what it needs.
"""

import sys
import tempfile
import time
from pathlib import Path

import harness
import queues
from harness import Peer, Pins, Redis, Stamps
from queues import SIZE, Bar, Figures

ROWS = ("single", "many", "drain", "drain2", "trips", "pickup")
OURS = ("ours", "ours async")
PYTHON = ("taskiq", "saq", "dramatiq", "huey", "bullmq", "arq", "rq", "celery")
PEERS = (*PYTHON, "node-bullmq")
ACKNOWLEDGING = tuple(name for name in PYTHON if name != "huey")
SLOW = ("rq", "celery")  # they drain a third of what the others do
DIALECTS = {"standard": PEERS, "bullmq": ("bullmq", "node-bullmq"), "conveyor": ()}
CONCURRENCY = {"standard": 10, "bullmq": 50, "conveyor": 10}
TEXTS = {
    "single": "enqueue, jobs/s, one by one",
    "many": f"enqueue, jobs/s, {SIZE:,} in a call",
    "memory": "MB of a million queued",
    "done1": "drain, jobs/s, 1 process, until done",
    "started1": "  started",
    "worker1_us": "  CPU us/job of the worker",
    "redis1_us": "  CPU us/job of Redis",
    "done2": "drain, jobs/s, 2 processes, until done",
    "started2": "  started",
    "worker2_us": "  CPU us/job of the workers",
    "redis2_us": "  CPU us/job of Redis",
    "trips": "commands for 1,000 jobs, drained by 1 process",
    "pickup50": "pick-up p50, ms",
    "pickup99": "pick-up p99, ms",
    "elsewhere": "elsewhere, cores",
}


class Bench(queues.Bench):
    """The rows."""

    def __init__(self, *given, server: Redis) -> None:
        super().__init__(*given)
        self.server = server

    def takes_part(self, peer: Peer, row: str) -> bool:
        if row == "many":
            return peer.info["many"] and peer.name != "ours async"
        return row != "single" or peer.name != "ours async"

    def single(self, peer: Peer) -> Figures:
        self.server.reset()
        before = self.server.memory()
        answer = peer.call("single", self.options.singles, cpus=self.pins.client)
        figures = {"single": answer["timed"] / answer["seconds"]}
        if not peer.info["many"]:
            figures["memory"] = (self.server.memory() - before) / answer["sent"]
        return figures

    def many(self, peer: Peer) -> Figures:
        self.server.reset()
        before = self.server.memory()
        answer = self.filled(
            peer, self.options.peer_jobs if peer.info.get("gathers") else self.options.many
        )
        memory = (self.server.memory() - before) / answer["sent"]
        return {"many": answer["timed"] / answer["seconds"], "memory": memory}

    def drain(self, peer: Peer, processes: int = 1) -> Figures:
        queued = self.fill(peer, 1)
        cpus = self.pins.client if processes == 1 else self.pins.clients
        with peer.serving(cpus=cpus, processes=processes) as running:
            watched = {"worker": queues.cpu_of(running), "redis": self.server.cpu}
            found = self.drained(queued, watched, lambda: self.server.ask(peer.info["left"]))
        return {
            name.replace("_us", f"{processes}_us") if "_us" in name else f"{name}{processes}": value
            for name, value in found.items()
        }

    def drain2(self, peer: Peer) -> Figures:
        return self.drain(peer, 2)

    def trips(self, peer: Peer) -> Figures:
        queued = self.fill(peer, 4)
        with self.server.monitored() as sent:
            with peer.serving(cpus=self.pins.client):
                if not self.stamps.wait(queued, limit=queues.LIMIT, quiet=0.1):
                    raise RuntimeError(f"{self.stamps.count()} of {queued} jobs ran")
            time.sleep(0.5)
        return {"trips": sent() / queued * 1000}

    def pickup(self, peer: Peer) -> Figures:
        self.server.reset()
        with peer.serving(cpus=self.pins.client):
            found = self.picked_up(peer)
        return {name: value for name, value in found.items() if name in TEXTS}

    def fill(self, peer: Peer, part: int) -> int:
        self.server.reset()
        quick = peer.name in (*OURS, "standard", "node-bullmq")
        count = (
            self.options.jobs
            if quick
            else self.options.peer_jobs // (3 if peer.name in SLOW else 1)
        )
        return self.filled(peer, count // part)["sent"]


def bullmq_bars(bench: Bench) -> str:
    python, node = bench.middle("done1", "bullmq"), bench.middle("done1", "node-bullmq")
    found = []
    for ours in OURS:
        text = f"drain, {'async' if ours.endswith('async') else 'sync'}, jobs/s"
        done = bench.middle("done1", ours)
        found += [
            Bar(
                text=text,
                ours=done,
                bar=python and python * 5,
                against="5 times the official Python worker",
            ),
            Bar(text=text, ours=done, bar=node and node * 0.9, against="0.9 of Node's"),
        ]
    return queues.bars(found)


def conveyor_bars(bench: Bench) -> str:
    names = {"single": "enqueue one by one", "many": "enqueue in bulk", "done1": "drain"}
    found = []
    for figure, text in names.items():
        ours, theirs = bench.middle(figure, "ours"), bench.middle(figure, "standard")
        bar = theirs and theirs * 0.7
        found.append(
            Bar(text=f"{text}, jobs/s", ours=ours, bar=bar, against="0.7 of the standard dialect")
        )
    return queues.bars(found)


def bars(bench: Bench) -> str:
    theirs = [peer.name for peer in bench.peers if peer.name not in OURS]
    many = bench.best("many", theirs)
    drain = bench.best("done1", PYTHON)
    pickup = bench.best("pickup50", ACKNOWLEDGING, min)
    node = bench.middle("done1", "node-bullmq")
    found = [
        Bar(
            text="enqueue in bulk, jobs/s",
            ours=bench.middle("many", "ours"),
            bar=many and many[0] * 3,
            against=f"3 times {many and many[1]}",
        )
    ]
    for ours in OURS:
        kind = "async" if ours.endswith("async") else "sync"
        done, started = bench.middle("done1", ours), bench.middle("pickup50", ours)
        found += [
            Bar(
                text=f"drain, {kind}, jobs/s",
                ours=done,
                bar=drain and drain[0] * 5,
                against=f"5 times {drain and drain[1]}",
            ),
            Bar(text=f"drain, {kind}, jobs/s", ours=done, bar=node, against="node-bullmq"),
            Bar(
                text=f"round trips for 1,000 drained jobs, {kind}",
                ours=bench.middle("trips", ours),
                bar=100,
                against="commands",
                more=False,
            ),
            Bar(
                text=f"pick-up p50, {kind}, ms",
                ours=started,
                bar=pickup and pickup[0],
                against=f"{pickup and pickup[1]}, which acknowledges",
                more=False,
            ),
        ]
    return queues.bars(found)


def options(given: list[str] | None = None):
    parser = harness.arguments(__doc__)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which of {','.join(ROWS)}")
    parser.add_argument(
        "--dialect",
        choices=DIALECTS,
        default="standard",
        help="what ours speaks (default standard)",
    )
    parser.add_argument("--peers", default=",".join(PEERS), help=f"which of {','.join(PEERS)}")
    parser.add_argument("--singles", type=int, default=2_000, help="jobs sent one by one")
    parser.add_argument("--many", type=int, default=100_000, help="jobs sent by calls for many")
    parser.add_argument(
        "--jobs", type=int, default=30_000, help="jobs that we, and bullmq on Node, drain"
    )
    parser.add_argument("--peer-jobs", type=int, default=6_000, help="jobs that the others drain")
    parser.add_argument("--samples", type=int, default=150, help="jobs whose pick-up is measured")
    parser.add_argument(
        "--concurrency", type=int, help="of our workers; with bullmq, of all (default 10; 50)"
    )
    chosen = parser.parse_args(given)
    chosen.rows = [row for row in ROWS if row in chosen.rows.split(",")]
    chosen.peers = [name for name in DIALECTS[chosen.dialect] if name in chosen.peers.split(",")]
    chosen.concurrency = chosen.concurrency or CONCURRENCY[chosen.dialect]
    if chosen.quick:
        small = {
            "reps": 1,
            "singles": 300,
            "many": 20_000,
            "jobs": 10_000,
            "peer_jobs": 2_000,
            "samples": 50,
            "patience": 0.0,
            "tries": 1,
        }
        for name, value in small.items():
            if getattr(chosen, name) == parser.get_default(name):
                setattr(chosen, name, value)
    return chosen


def contest(chosen, server: Redis, folder: Path) -> Bench:
    """Bring the contestants together."""
    stamps, log = Stamps(folder / "redis-stamps"), folder / "redis-log"
    variables = {
        "BENCH_URL": server.url,
        "BENCH_STAMPS": str(stamps.path),
        "BENCH_WORKERS": str(chosen.concurrency),
    }
    ours = "ours"
    if chosen.dialect == "bullmq":
        ours = "ours_bullmq"
        variables["BENCH_CONCURRENCY"] = str(chosen.concurrency)
    elif chosen.dialect == "conveyor":
        variables["BENCH_DIALECT"] = "conveyor"
    peers = queues.peers_of("redis", [*OURS, *chosen.peers], variables, log, ours=ours)
    if chosen.dialect == "conveyor":
        sync = variables | {"BENCH_KIND": "sync", "BENCH_DIALECT": "standard"}
        peers.append(Peer("standard", Path(sys.executable), "redis_ours.py", sync, log))
    return Bench(chosen, Pins.of(chosen.pin), peers, stamps, server=server)


def main() -> None:
    chosen = options()
    with tempfile.TemporaryDirectory() as folder, Redis(Pins.of(chosen.pin).server) as server:
        bench = contest(chosen, server, Path(folder))
        machine = harness.machine(queues=server)
        began = time.monotonic()
        bench.run()
    shown = {"bullmq": bullmq_bars, "conveyor": conveyor_bars}.get(chosen.dialect, bars)
    queues.conclude(
        "redis", bench, machine, began, f"{queues.table(bench, TEXTS)}\n\n{shown(bench)}"
    )


if __name__ == "__main__":
    main()
