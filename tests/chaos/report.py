"""What a run says at its end: for people, and as data."""

from collections import defaultdict
from dataclasses import asdict
from statistics import median
from typing import Any

from tests.chaos.run import Outcome

SHOWN = 10


def summary(outcome: Outcome) -> str:
    """Write the tables; of a run that failed also what is wrong, and what the adversary did."""
    verdict = outcome.verdict
    lines = ["", *(f"{count:12,}  {name}" for name, count in sorted(verdict.counts.items())), ""]
    lines.append(
        f"{'fault':<38} {'times':>6} {'run again':>10} {'next fire after':>22} "
        f"{'next job after':>22}"
    )
    for name, row in sorted(by_fault(outcome).items()):
        times = " ".join(f"{_spread(row[each]):>22}" for each in ("fire", "job"))
        lines.append(f"{name:<38} {row['times']:6} {row['again']:10,} {times}")
    lines.append("")
    for name, found in verdict.wrong.items():
        if found:
            lines += [f"WRONG, {name}: {len(found)}", *(f"    {each}" for each in found[:SHOWN])]
    if not verdict:
        lines += ["", "what the adversary did, in seconds after the start:", *_timeline(outcome)]
    lines.append("all was held" if verdict else f"seed {outcome.seed} broke it")
    return "\n".join(lines)


def by_fault(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Put the faults of a kind together."""
    rows: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"times": 0, "again": 0, "fire": [], "job": []}
    )
    for done, recovery in zip(outcome.faults, outcome.recoveries, strict=True):
        row = rows[done.name]
        row["times"] += 1
        row["again"] = outcome.verdict.again[done.name]
        for each in ("fire", "job"):
            found = getattr(recovery, each)
            if found is not None:
                row[each].append(round(found, 3))
    return dict(rows)


def to_data(outcome: Outcome) -> dict[str, Any]:
    """Write it as JSON has it."""
    return {
        "seed": outcome.seed,
        "size": asdict(outcome.size),
        "held": bool(outcome.verdict),
        "wrong": {name: found for name, found in outcome.verdict.wrong.items() if found},
        "counts": dict(outcome.verdict.counts),
        "faults": by_fault(outcome),
        "timeline": _timeline(outcome),
        "seconds_to_drain": round(outcome.drained, 1),
    }


def _spread(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} s, at most {max(seconds):.1f}" if seconds else "-"


def _timeline(outcome: Outcome) -> list[str]:
    return [
        f"{done.begin - outcome.began:7.1f} to {done.over - outcome.began:7.1f}  {done.name} {done.fault.detail}"
        f" {', '.join(done.fault.targets)} {sorted(done.pids) or ''}".rstrip()
        for done in outcome.faults
    ]
