"""How a comparison stands: who is first in each row, outside the spread or as a tie, and how far
away the limit is.

A result is what bench/compare.py stores: figures by part, name and contestant, each a list with a
value a repetition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import harness

OURS = ("ours", "ours async")
ENOUGH = 3  # repetitions, before a spread says anything
PARTS = {
    "redis": "Queues in Redis alone",
    "ring": "The whole way of a job, beside queues in Postgres",
    "recurring": "Recurring jobs",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A figure that is compared; `limit` names one of peers/limits.py, or of ours, and says it in
    words.
    """

    part: str
    figure: str
    text: str
    more: bool = True
    limit: tuple[str, str] | None = None
    aside: tuple[str, ...] = ()  # shown, but they promise less: nobody is measured against them


ROWS = [
    Row(
        part="redis",
        figure="single",
        text="enqueue one by one, jobs/s",
        limit=("redis push", "one LPUSH after another"),
    ),
    Row(
        part="redis",
        figure="many",
        text="enqueue 1,000 in a call, jobs/s",
        limit=("redis values", "LPUSH of 1,000 values"),
    ),
    Row(
        part="redis",
        figure="done1",
        text="drain, 1 process, jobs/s",
        limit=("redis popped", "RPOP of 100"),
        aside=("huey",),
    ),
    Row(
        part="redis",
        figure="done2",
        text="drain, 2 processes, jobs/s",
        limit=("redis popped", "RPOP of 100"),
        aside=("huey",),
    ),
    Row(
        part="redis",
        figure="pickup50",
        text="pick-up p50, ms",
        more=False,
        limit=("redis wake_ms", "LPUSH to BLPOP"),
        aside=("huey",),
    ),
    Row(part="redis", figure="pickup99", text="pick-up p99, ms", more=False, aside=("huey",)),
    Row(
        part="ring",
        figure="single",
        text="submit one by one, jobs/s",
        limit=("postgres insert", "one INSERT after another"),
    ),
    Row(
        part="ring",
        figure="many",
        text="submit 1,000 in a call, jobs/s",
        limit=("postgres copy", "COPY of 1,000 rows"),
    ),
    Row(
        part="ring",
        figure="through",
        text="submit to settled, jobs/s",
        limit=("postgres taken", "DELETE of 1,000 rows, RETURNING"),
    ),
    Row(
        part="ring",
        figure="done",
        text="backlog to settled, jobs/s",
        limit=("postgres taken", "DELETE of 1,000 rows, RETURNING"),
    ),
    Row(
        part="ring",
        figure="commit50",
        text="commit to handler p50, ms",
        more=False,
        limit=("postgres notify_ms", "NOTIFY to LISTEN"),
    ),
    Row(part="ring", figure="commit99", text="commit to handler p99, ms", more=False),
    Row(
        part="recurring",
        figure="fires1",
        text="fires/s, 1 process",
        limit=("recurring bare1000", "the SQL of claim and finish alone"),
    ),
    Row(part="recurring", figure="fires2", text="fires/s, 2 processes"),
    Row(part="recurring", figure="late50", text="lateness p50, ms", more=False),
    Row(part="recurring", figure="late99", text="lateness p99, ms", more=False),
    Row(part="recurring", figure="register_s", text="registering many, s", more=False),
]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A row of a result: ours, the best Python peer, the best of all, the limit. Ratios above 1 are
    in our favour.
    """

    row: Row
    ours: str
    values: Sequence[float]
    python: str | None
    best: str | None
    figures: dict[str, list[float]]
    limit: float | None
    calm: bool

    def ratio(self, other: str | None) -> float | None:
        """How many times better ours is."""
        return None if other is None else self._over(median(self.figures[other]))

    def of_limit(self) -> float | None:
        """Which part of the limit is reached; above 1: the limit is done better than by the call it
        is named for.
        """
        return self._over(self.limit) if self.limit else None

    def verdict(self, other: str | None) -> str:
        """first or behind, outside the spread; else a tie. A question mark: too few repetitions, or
        disturbed ones.
        """
        if other is None:
            return ""
        theirs = self.figures[other]
        sure = "" if self.calm and min(len(self.values), len(theirs)) >= ENOUGH else "?"
        if max(min(self.values), min(theirs)) <= min(max(self.values), max(theirs)):
            return f"tie{sure}"
        return ("first" if (self.ratio(other) or 0) > 1 else "behind") + sure

    def _over(self, other: float) -> float | None:
        mine = median(self.values)
        above, below = (mine, other) if self.row.more else (other, mine)
        return above / below if below else None


def standings(result: dict[str, Any]) -> list[Standing]:
    """Find out how each row stands that ours took part in."""
    found = [_standing(result, row) for row in ROWS]
    return [each for each in found if each is not None]


def _standing(result: dict[str, Any], row: Row) -> Standing | None:
    known = result["figures"].get(row.part, {}).get(row.figure, {})
    figures = {name: values for name, values in known.items() if values}

    def best(names: Sequence[str]) -> str | None:
        return (max if row.more else min)(
            names, key=lambda name: median(figures[name]), default=None
        )

    ours = best([name for name in figures if name in OURS])
    if ours is None:
        return None
    peers = [name for name in figures if name not in (*OURS, *row.aside)]
    python = best([name for name in peers if name not in harness.NODES])
    return Standing(
        row=row,
        ours=ours,
        values=figures[ours],
        python=python,
        best=best(peers),
        figures=figures,
        limit=_limit(result, row),
        calm=elsewhere(result) < harness.CALM,
    )


def elsewhere(result: dict[str, Any]) -> float:
    """How many cores went to work that was not the bench's: the median over all measurements."""
    found = [
        value
        for figures in result["figures"].values()
        for name, of in figures.items()
        if name.startswith("elsewhere")
        for values in of.values()
        for value in values
    ]
    return median(found) if found else 0.0


def _limit(result: dict[str, Any], row: Row) -> float | None:
    if row.limit is None:
        return None
    part, figure = row.limit[0].split()
    values = result["figures"].get(part, {}).get(figure, {}).get("ours") or result["limits"].get(
        row.limit[0]
    )
    return median(values) if values else None


def summary(result: dict[str, Any]) -> str:
    """Show a line for each row: ours, against whom, and the verdict."""
    lines = []
    for each in standings(result):
        limit = each.of_limit()
        lines.append(
            (
                each.row.text,
                harness.spread(each.values) + (" async" if each.ours == "ours async" else ""),
                *_against(each, each.python),
                *_against(each, each.best if each.best != each.python else None),
                f"{limit:.2f} of {each.row.limit[1]}" if limit and each.row.limit else "",
            )
        )
    head = (
        "row",
        "ours",
        "best Python peer",
        "ratio",
        "",
        "best of all, if another",
        "ratio",
        "",
        "of the limit",
    )
    return harness.table(head, lines)


def _against(each: Standing, other: str | None) -> tuple[str, str, str]:
    if other is None:
        return "", "", ""
    ratio = each.ratio(other)
    return (
        f"{other} {harness.spread(each.figures[other])}",
        f"{ratio:.2f}" if ratio else "-",
        each.verdict(other),
    )


def part(result: dict[str, Any], name: str) -> str:
    """Show every contestant of a part: how many jobs it prefetches, medians, least..greatest, and how
    many times our figure each is.
    """
    peers = result["peers"].get(name, {})
    has_prefetch = any("prefetch" in info for info in peers.values())
    rows = [each for each in standings(result) if each.row.part == name]
    contestants = sorted(
        dict.fromkeys(who for each in rows for who in each.figures), key=lambda who: who not in OURS
    )
    lines = []
    for who in contestants:
        info = peers.get(who, {})
        cells = [_cell(each, who) for each in rows]
        if has_prefetch:
            cells.insert(0, info.get("prefetch", "?"))
        lines.append((f"{who} {info.get('version', '')}".strip(), *cells))
    head = ("contestant", *(["jobs prefetched, at most"] if has_prefetch else []))
    return harness.table((*head, *(each.row.text for each in rows)), lines)


def _cell(each: Standing, who: str) -> str:
    if who not in each.figures:
        return "-"
    shown, mine = harness.spread(each.figures[who]), median(each.values)
    return (
        shown
        if who == each.ours or not mine
        else f"{shown} x{median(each.figures[who]) / mine:.2g}"
    )


def limits(result: dict[str, Any]) -> str:
    rows = [(name, harness.spread(values)) for name, values in result["limits"].items()]
    return harness.table(("limit", "a second, or ms"), rows)
