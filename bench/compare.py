"""Everything side by side in one run: queues in Redis, the whole way of a job, recurring jobs, and
the limits.

    python bench/compare.py                          # most of an hour, on a machine that is left alone
    python bench/compare.py --quick                  # a look of some minutes, one repetition
    python bench/compare.py --docs                   # and write docs/charts and the figures of docs/benchmarks.md
    python bench/compare.py --again FILE --docs      # show a stored result once more
    python bench/compare.py --parts redis --peers rq,arq

It runs the rows of redis.py, ring.py and recurring.py, whose first lines say what each is, on one
durable Postgres and one Redis, with one pinning. A repetition goes through all parts, so that a
slow quarter of an hour hits all; figures are medians (least..greatest) of them. Beside them are
limits: what the servers do for a bare client that promises nothing (peers/limits.py). A verdict is
"first" or "behind" where the spreads do not overlap, else "tie". A peer that cannot be installed is
left out, and named. What there is, is stored as JSON in bench/results, also if the run is stopped.
"""

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import charts
import harness
import recurring
import ring
import standing
from harness import Peer, Pins, Redis, Server, say

carried = harness.load("redis")
ROWS = {
    "redis": "single,many,drain,drain2,pickup",
    "ring": ",".join(ring.ROWS),
    "recurring": "fires,fires2,bare,lateness,register",
}
BENCHES = {"redis": carried, "ring": ring, "recurring": recurring}


class Comparison:
    """The parts that take part, and the result so far."""

    def __init__(self, chosen, server: Server, redis: Redis, folder: Path) -> None:
        self.chosen, self.pins = chosen, Pins.of(chosen.pin)
        given = [f"--{name}={getattr(chosen, name)}" for name in ("pin", "patience", "tries")]
        given += [
            *(["--quick"] if chosen.quick else []),
            *([f"--peers={chosen.peers}"] if chosen.peers else []),
        ]
        servers = {"redis": (redis,), "ring": (server, redis), "recurring": (server,)}
        self.wanted, self.parts = {}, {}
        for part in chosen.parts:
            options = BENCHES[part].options([*given, f"--rows={ROWS[part]}"])
            self.wanted[part] = options.peers
            self.parts[part] = BENCHES[part].contest(options, *servers[part], folder)
        variables = {
            "BENCH_URL": server.url,
            "BENCH_REDIS": redis.url,
            "BENCH_STAMPS": os.devnull,
            "BENCH_WORKERS": "1",
        }
        self.bare = Peer(
            "limits", Path(sys.executable), "limits.py", variables, folder / "limits-log"
        )
        self.limits: dict[str, list[float]] = defaultdict(list)
        self.machine = harness.machine(server, redis)
        self.began, self.repetitions = time.monotonic(), 0

    def run(self) -> None:
        """Measure everything as often as is wanted."""
        for _ in range(self.chosen.reps):
            for name in ("redis", "postgres"):
                harness.quiet(self.chosen.patience)
                for figure, value in self.bare.call(name, cpus=self.pins.client).items():
                    self.limits[f"{name} {figure}"].append(value)
            for part, bench in self.parts.items():
                say(
                    f"repetition {self.repetitions + 1} of {self.chosen.reps}: "
                    f"{standing.PARTS[part].lower()}"
                )
                bench.once()
            self.repetitions += 1
            left = (
                (time.monotonic() - self.began)
                / self.repetitions
                * (self.chosen.reps - self.repetitions)
            )
            say(f"repetition {self.repetitions} is done; {left / 60:.0f} minutes are left")

    def result(self) -> dict[str, Any]:
        """What is stored, and shown."""
        took = {
            "speed_after": harness.speed(),
            "load_after": os.getloadavg()[0],
            "took_s": time.monotonic() - self.began,
        }
        peers = {
            part: {peer.name: peer.info for peer in bench.peers}
            for part, bench in self.parts.items()
        }
        return {
            "machine": self.machine | took,
            "options": vars(self.chosen)
            | {"sizes": {part: vars(each.options) for part, each in self.parts.items()}},
            "repetitions": self.repetitions,
            "peers": peers,
            "left_out": [
                name
                for part, names in self.wanted.items()
                for name in names
                if name not in peers[part]
            ],
            "limits": self.limits,
            "figures": {part: bench.figures for part, bench in self.parts.items()},
            "errors": [error for bench in self.parts.values() for error in bench.errors],
        }


def size(result: dict[str, Any]) -> str:
    """How much weight the figures bear."""
    found = "a quick look" if result["options"]["quick"] else f"medians of {result['repetitions']}"
    busy = standing.elsewhere(result)
    return found if busy < harness.CALM else f"{found} on a busy machine: not to be quoted"


def headline(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"{machine['when'][:16].replace('T', ' ')}, revision {machine['revision']}, {size(result)} "
        "(repetitions:"
        f" {result['repetitions']}; other work took {standing.elsewhere(result):.1f} cores). "
        f"{machine['cpu']}, Python"
        f" {machine['python']}, Postgres {machine['postgres']} with fsync {machine['fsync']}, "
        f"Redis {machine['redis']},"
        f" pinned: {result['options']['pin']}; machine speed {machine['speed']:.0f} before,"
        f" {machine['speed_after']:.0f} after."
    )


def text(result: dict[str, Any], *, drawn: bool = False) -> str:
    """Say everything as Markdown, which also reads in a terminal; with charts, where they are
    drawn.
    """
    parts = [headline(result), f"**How we stand**\n\n{standing.summary(result)}"]
    for name, title in standing.PARTS.items():
        if name in result["figures"]:
            shown = "\n".join(
                f"![{each.row.text}](charts/{chart(each.row)}.svg)"
                for each in standing.standings(result)
                if each.row.part == name
            )
            parts += [
                f"**{title}** (xN: times our figure)",
                *([shown] if drawn else []),
                standing.part(result, name),
            ]
            settings = [
                f"{who}: {info['setting']}"
                for who, info in result["peers"][name].items()
                if "setting" in info
            ]
            parts += [f"Settings: {'; '.join(settings)}."] if settings else []
    parts.append(f"**Limits**\n\n{standing.limits(result)}")
    if result["left_out"]:
        parts.append(
            "Left out, as it could not be installed: "
            f"{', '.join(dict.fromkeys(result['left_out']))}."
        )
    parts += [f"Note: {error.split(', see ')[0]}" for error in result["errors"]]
    return "\n\n".join(parts)


def chart(row: standing.Row) -> str:
    return f"{row.part}-{row.figure}".replace("_", "-")


def drawn(result: dict[str, Any]) -> dict[str, str]:
    """Draw a chart for each row, and one that has them all."""
    found, rows = {}, standing.standings(result)
    for each in rows:
        limit = (each.row.limit[1], each.limit) if each.row.limit and each.limit else None
        title = f"{each.row.text} ({'more' if each.row.more else 'less'} is better)"
        found[chart(each.row)] = charts.bars(title, each.figures, more=each.row.more, limit=limit)
    title = "Times better than the best Python peer, and (pale) than the best of all"
    under = f"{result['machine']['when'][:10]}, {size(result)}"
    ratios = [
        (
            each.row.text,
            [
                (ratio, each.verdict(who))
                for who in dict.fromkeys((each.python, each.best))
                if (ratio := each.ratio(who))
            ],
        )
        for each in rows
    ]
    return found | {"overview": charts.ratios(title, under, ratios)}


def options():
    parser = harness.arguments(__doc__)
    parser.add_argument("--parts", default=",".join(ROWS), help=f"which of {','.join(ROWS)}")
    parser.add_argument("--peers", help="only these, of all parts")
    parser.add_argument(
        "--docs",
        type=Path,
        nargs="?",
        const=charts.DOCS,
        help="write charts and benchmarks.md there",
    )
    parser.add_argument("--again", type=Path, help="show a stored result and measure nothing")
    chosen = parser.parse_args()
    chosen.parts = [part for part in ROWS if part in chosen.parts.split(",")]
    if chosen.quick and chosen.reps == parser.get_default("reps"):
        chosen.reps = 1
    return chosen


def measured(chosen) -> dict[str, Any]:
    """Run, and store what there is, however the run ends."""
    pins = Pins.of(chosen.pin)
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(pins.server) as server,
        Redis(pins.server) as redis,
    ):
        server.reset()
        comparison = Comparison(chosen, server, redis, Path(folder))
        try:
            comparison.run()
        finally:
            result = comparison.result()
            path = harness.store("compare", result)
            say(f"stored in {path}")
    return json.loads(path.read_text())


def main() -> None:
    chosen = options()
    result = json.loads(chosen.again.read_text()) if chosen.again else measured(chosen)
    print(text(result))
    if chosen.docs:
        charts.publish(chosen.docs, "compare", text(result, drawn=True), drawn(result))


if __name__ == "__main__":
    main()
