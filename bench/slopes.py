"""How cost grows, out of a result of bench/growth.py: exponents and what they are called, tables,
charts.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import charts
import harness

FLAT = 0.15
RATES = ("rate", "push", "feed", "settle")
TEXTS = {
    "rate": "jobs/s",
    "push": "pushed/s",
    "feed": "fed/s",
    "settle": "settled/s",
    "cpu": "CPU us/job",
    "memory": "memory",
    "elsewhere": "elsewhere, cores",
}


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """What grows; how fast a job's cost may grow with it before the whole is worse than linear;
    sizes.
    """

    text: str
    memory: str
    may: float
    quick: str
    usual: str
    full: str


DIMENSIONS = {
    "recurring": Dimension(
        text="recurring jobs",
        memory="KB/job of the instance",
        may=0,
        quick="500,2000",
        usual="1000,4000,16000",
        full="1000,10000,100000",
    ),
    "queued": Dimension(
        text="jobs queued in Redis",
        memory="bytes/job in Redis",
        may=0,
        quick="10000,40000",
        usual="30000,100000,500000",
        full="100000,1000000,10000000",
    ),
    "ledger": Dimension(
        text="live jobs in Postgres",
        memory="bytes/job on disk",
        may=0,
        quick="10000,30000",
        usual="30000,100000,500000",
        full="100000,1000000,10000000",
    ),
    "workers": Dimension(
        text="worker processes",
        memory="MB of a process",
        may=1,
        quick="1,2",
        usual="1,2,4,8",
        full="1,2,4,8",
    ),
    "payload": Dimension(
        text="bytes of a payload",
        memory="MB of instance and worker",
        may=1,
        quick="100,10000",
        usual="100,10000,1000000",
        full="100,10000,1000000",
    ),
    "tenants": Dimension(
        text="tenants",
        memory="MB of instance and worker",
        may=1,
        quick="1,100",
        usual="1,30,1000",
        full="1,10,100,1000",
    ),
    "instances": Dimension(
        text="scheduler instances",
        memory="MB of an instance",
        may=1,
        quick="1,2",
        usual="1,2,4,8",
        full="1,5,10,25,50",
    ),
}


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Fit cost = a * size ** b by least squares over the logarithms, and return b."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    return statistics.linear_regression(xs, ys).slope


def grown(
    row: str, figure: str, curves: Mapping[str, Mapping[Any, Sequence[float]]]
) -> tuple[float, str] | None:
    """Say how the cost of a job grows, and what that is called; with a question mark if other work
    disturbed it.
    """
    sizes = curves[figure]
    points = [(float(size), statistics.median(values)) for size, values in sizes.items() if values]
    points = [
        (size, 1 / value if figure in RATES else value) for size, value in points if value > 0
    ]
    if len(points) < 2:
        return None
    found = exponent(points)
    busy = [statistics.median(values) for values in curves.get("elsewhere", {}).values()]
    sure = "?" if max(busy, default=0.0) > harness.CALM else ""
    if found <= FLAT:
        return found, ("flat" if found >= -FLAT else "falls") + sure
    return found, ("grows" if found <= DIMENSIONS[row].may + FLAT else "WORSE THAN LINEAR") + sure


def text(result: dict[str, Any], *, drawn: bool = False) -> str:
    """Say everything as Markdown, which also reads in a terminal; with charts, where they are
    drawn.
    """
    machine = result["machine"]
    where = (
        f"{machine['when'][:16].replace('T', ' ')}, revision {machine['revision']}, repetitions:"
        f" {result['options']['reps']}; {machine['cpu']}, load {machine['load']:.1f} before,"
        f" {machine['load_after']:.1f} after. The exponent is of what one job costs."
    )
    parts = [where]
    for row, curves in result["curves"].items():
        dimension = DIMENSIONS[row]
        sizes = list(dict.fromkeys(size for values in curves.values() for size in values))
        lines = []
        for figure, values in curves.items():
            found = grown(row, figure, curves) if figure != "elsewhere" else None
            name = dimension.memory if figure == "memory" else TEXTS[figure]
            cells = [harness.spread(values.get(size, [])) for size in sizes]
            lines.append((name, *cells, *((f"{found[0]:+.2f}", found[1]) if found else ("", ""))))
        head = (dimension.text, *(f"{int(size):,}" for size in sizes), "exponent", "a job's cost")
        picture = f"![{dimension.text}](charts/growth-{row}.svg)\n\n" if drawn else ""
        parts.append(picture + harness.table(head, lines))
    return "\n\n".join(
        [*parts, *(f"Note: {error.split(', see ')[0]}" for error in result["errors"])]
    )


def drawn(result: dict[str, Any]) -> dict[str, str]:
    found = {}
    for row, curves in result["curves"].items():
        lines = {
            DIMENSIONS[row].memory if figure == "memory" else TEXTS[figure]: [
                (float(size), statistics.median(values)) for size, values in sizes.items()
            ]
            for figure, sizes in curves.items()
            if figure != "elsewhere"
        }
        found[f"growth-{row}"] = charts.curves(f"Growing: {DIMENSIONS[row].text}", lines)
    return found
