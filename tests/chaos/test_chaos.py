"""The whole system under attack, for half a minute here and for as long as one likes by `make
chaos`.
"""

import sys
from pathlib import Path

import pytest

from tests.chaos.report import summary
from tests.chaos.run import Size, run

SEED = 7


@pytest.mark.timeout(4000)
def test_an_adversary_makes_nothing_be_lost_or_doubled(tmp_path: Path, full: bool) -> None:
    size = (
        Size(seconds=1800)
        if full
        else Size(seconds=60, fires=60, feeds=5, rate=120, silence=3, patience=120)
    )
    outcome = run(SEED, size, tmp_path, lambda line: print(line, file=sys.stderr))  # noqa: T201
    said = summary(outcome)
    assert outcome.verdict, said
    assert len(outcome.faults) >= 12, said
    assert {done.fault.lane for done in outcome.faults} >= {
        "instances",
        "workers",
        "postgres",
        "redis",
    }, said
    assert outcome.verdict.counts["fires"] > 10 * size.fires, said
    assert outcome.verdict.counts["completed"] > 5 * size.rate, said
