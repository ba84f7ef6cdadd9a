"""What bench/redis.py and bench/ring.py share: how a queue is drained and measured meanwhile,
pick-up, and tables.

A peer is a script in peers/ that speaks the command line of peers/queued.py.
"""

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import harness
from harness import Peer, Pins, Stamps, say

SIZE = 1000
LIMIT = 60.0
Figures = dict[str, float]
Watched = Mapping[str, Callable[[], float]]


def peers_of(
    prefix: str, names: Sequence[str], variables: dict[str, str], log: Path, *, ours: str = "ours"
) -> list[Peer]:
    """Make the contestants, ours first; "ours async" has a handler of another kind. Who cannot run
    is left out.
    """
    peers = []
    for name in names:
        if name.startswith("ours"):
            kind = {"BENCH_KIND": "async" if name.endswith("async") else "sync"}
            peers.append(
                Peer(name, Path(sys.executable), f"{prefix}_{ours}.py", variables | kind, log)
            )
        elif (runs := harness.installed(name)) is not None:
            script = f"{prefix}_{name}.{'mjs' if name in harness.NODES else 'py'}"
            folder = {"BENCH_PACKAGES": str(harness.NODE / name)}
            try:
                peers.append(Peer(name, runs, script, variables | folder, log))
            except RuntimeError as error:
                say(f"{name} is left out: {error}")
    return peers


class Bench:
    """Measures, and collects figures by name, contestant and repetition. A row is a method: what it
    returns counts.
    """

    def __init__(self, options: Any, pins: Pins, peers: Sequence[Peer], stamps: Stamps) -> None:
        self.options, self.pins, self.peers, self.stamps = options, pins, peers, stamps
        self.figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.errors: list[str] = []

    def run(self) -> None:
        for _ in range(self.options.reps):
            self.once()

    def once(self) -> None:
        """Measure each row of each contestant."""
        for row in self.options.rows:
            for peer in self.peers:
                if self.takes_part(peer, row):
                    self.calmest(row, peer)

    def takes_part(self, peer: Peer, row: str) -> bool:
        raise NotImplementedError

    def calmest(self, row: str, peer: Peer) -> None:
        """Measure until other work leaves the machine alone, or a few times; keep the calmest,
        whatever it says.
        """
        kept: Figures = {}
        for _ in range(self.options.tries):
            known = len(self.errors)
            try:
                harness.quiet(self.options.patience)
                self.stamps.clear()
                with harness.elsewhere() as busy:
                    found = getattr(self, row)(peer)
                self.errors[known:] = [
                    f"{row}, {peer.name}: {error}" for error in self.errors[known:]
                ]
            except Exception as error:  # one failure must not cost the other rows
                self.errors.append(f"{row}, {peer.name}: {error}")
                say(self.errors[-1])
                continue
            shown = ", ".join(f"{name} {harness.number(value)}" for name, value in found.items())
            say(f"{row:8} {peer.name:15} {shown}; elsewhere {busy():.2f} cores")
            if not kept or busy() < kept["elsewhere"]:
                kept = found | {"elsewhere": busy()}
            if kept["elsewhere"] < harness.CALM:
                break
        for name, value in kept.items():
            self.figures[name][peer.name].append(value)

    def drained(self, queued: int, watched: Watched, left: Callable[[], int]) -> Figures:
        """Watch workers drain a queue.

        done: jobs a second from the start of the 10th percentile until the server has none that is
        not done. started: from the start of the 10th percentile to that of the 90th. CPU of what is
        watched: microseconds a job.
        """
        end = time.monotonic() + LIMIT
        tenth, over = None, None

        def usage() -> tuple[int, Figures]:
            return self.stamps.count(), {name: cpu() for name, cpu in watched.items()}

        while self.stamps.count() < queued and time.monotonic() < end:
            if tenth is None and self.stamps.count() >= queued / 10:
                tenth = usage()
            time.sleep(0.005)
        if self.stamps.count() >= queued and harness.until(lambda: left() == 0, LIMIT):
            over = time.time()
        last = usage()
        stamps = self.stamps.read()
        if over is None or tenth is None or last[0] == tenth[0]:
            raise RuntimeError(
                f"{len(stamps)} of {queued} jobs ran, and the server had {left()} that were not "
                "done"
            )
        if len({stamp.number for stamp in stamps}) != len(stamps):
            self.errors.append(
                f"{len(stamps) - len({stamp.number for stamp in stamps})} jobs ran twice"
            )
        starts = sorted(stamp.start for stamp in stamps)
        low, high = len(starts) // 10, len(starts) - 1 - len(starts) // 10
        figures = {
            "done": (len(starts) - low) / (over - starts[low]),
            "started": (high - low) / (starts[high] - starts[low]),
        }
        for name in watched:
            figures[f"{name}_us"] = (last[1][name] - tenth[1][name]) / (last[0] - tenth[0]) * 1e6
        return figures

    def picked_up(self, peer: Peer) -> Figures:
        """Let a peer send one by one on an idle queue; milliseconds from the call, and from its
        end, to the handler.
        """
        peer.call("pickup", 20, cpus=self.pins.client)  # the worker is up, and warm
        time.sleep(0.2)
        self.stamps.clear()
        answer = peer.call("pickup", self.options.samples, cpus=self.pins.client)
        starts = {stamp.number: stamp.start for stamp in self.stamps.read()}
        figures = {}
        for figure, since in (("pickup", answer["began"]), ("commit", answer["ended"])):
            waits = [(starts[number] - moment) * 1000 for number, moment in enumerate(since)]
            figures |= {
                f"{figure}50": harness.percentile(waits, 0.5),
                f"{figure}99": harness.percentile(waits, 0.99),
            }
        return figures

    def filled(self, peer: Peer, count: int) -> dict[str, Any]:
        """Let a peer send about so many jobs, by its call for many if it has one and they are."""
        return peer.call(*sending(peer, count), cpus=self.pins.client)

    def middle(self, figure: str, contestant: str) -> float | None:
        found = self.figures[figure][contestant]
        return statistics.median(found) if found else None

    def best(
        self, figure: str, contestants: Sequence[str], pick: Callable[..., float] = max
    ) -> tuple[float, str] | None:
        """Find the best of some contestants, and who it is."""
        found = [
            (value, name)
            for name in contestants
            if (value := self.middle(figure, name)) is not None
        ]
        return pick(found) if found else None


def sending(peer: Peer, count: int) -> tuple[object, ...]:
    """Write the command that sends about so many jobs."""
    many = peer.info["many"] and count >= 2 * SIZE
    return ("many", count // SIZE - 1, SIZE) if many else ("single", count)


def cpu_of(processes: Sequence[Popen]) -> Callable[[], float]:
    return lambda: sum(harness.cpu_seconds(process.pid) for process in processes)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A line of the table of bars: a value of ours, what it is held against, and whether more is
    better.
    """

    text: str
    ours: float | None
    bar: float | None
    against: str
    more: bool = True

    def row(self) -> tuple[str, ...] | None:
        if self.ours is None or self.bar is None:
            return None
        met = self.ours >= self.bar if self.more else self.ours <= self.bar
        sign = ">=" if self.more else "<="
        shown = f"{sign} {harness.number(self.bar)} ({self.against})"
        return self.text, harness.number(self.ours), shown, "ok" if met else "missed"


def bars(found: Sequence[Bar]) -> str:
    return harness.table(
        ("bar", "ours", "bar", ""), [row for bar in found if (row := bar.row()) is not None]
    )


def table(bench: Bench, texts: Mapping[str, str]) -> str:
    """Show a line for each figure and a column for each contestant."""
    rows = [
        (text, *(harness.spread(bench.figures[figure][peer.name]) for peer in bench.peers))
        for figure, text in texts.items()
        if bench.figures[figure]
    ]
    return harness.table(
        ("figure", *(f"{peer.name} {peer.info['version']}" for peer in bench.peers)), rows
    )


def conclude(name: str, bench: Bench, machine: dict[str, Any], began: float, shown: str) -> None:
    """Print what a bench found, and store it."""
    machine |= {
        "load_after": os.getloadavg()[0],
        "speed_after": harness.speed(),
        "took_s": time.monotonic() - began,
    }
    postgres = (
        f"Postgres {machine['postgres']} with fsync {machine['fsync']}, "
        if machine["postgres"]
        else ""
    )
    settings = "; ".join(f"{peer.name}: {peer.info['setting']}" for peer in bench.peers)
    print(
        f"{machine['when']}, revision {machine['revision']}, {machine['cpu']}, Python "
        f"{machine['python']},"
    )
    print(
        f"{postgres}Redis {machine['redis']}, pinned: {bench.options.pin}; machine speed "
        f"{machine['speed']:.0f}"
    )
    print(
        f"before, {machine['speed_after']:.0f} after. Medians of {bench.options.reps} "
        "(least..greatest)."
    )
    print(f"{settings}.\n\n{shown}")
    for error in bench.errors:
        print(f"note: {error}")
    result = {
        "machine": machine,
        "options": vars(bench.options),
        "figures": bench.figures,
        "errors": bench.errors,
        "peers": {peer.name: peer.info for peer in bench.peers},
    }
    say(f"stored in {harness.store(name, result)}")
