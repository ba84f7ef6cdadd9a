"""Fires of the attack: what instances wrote and the ledger says, against the schedules."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from tests.chaos.attack import Done
from tests.chaos.plan import LEASE
from tests.chaos.verdict import Verdict
from tests.support.checker import Fire, LedgerRow, check, unsettled
from tests.support.instance import Job
from tests.support.records import Journal, Record


def read_fires(folder: Path) -> list[Record]:
    """Read what instances wrote."""
    return [
        record
        for path in sorted(folder.glob("instance-*.fires"))
        for record in Journal(path).read()
    ]


def check_fires(
    jobs: Sequence[Job],
    records: Sequence[Record],
    ledger: Sequence[LedgerRow],
    faults: Sequence[Done],
    verdict: Verdict,
    *,
    until: datetime,
) -> None:
    """Compare the fires of jobs with a function; what ran twice needs a fault that had it in its
    hands.
    """
    found = check(jobs, records, ledger, until=until)
    verdict.wrong["fires lost"] += found.lost
    verdict.wrong["fires doubled"] += found.doubled
    verdict.wrong["fires in dispute"] += found.contradictions
    starts: dict[Fire, list[Record]] = defaultdict(list)
    for record in records:
        if record.phase == "start":
            starts[Fire(record.tenant, record.job_id, record.fire_at)].append(record)
    verdict.counts["fires"] = len(starts)
    verdict.counts["fires skipped or missed"] = sum(
        (row.outcome == "skipped") + row.missed_count for row in ledger
    )
    for fire, several in starts.items():
        several.sort(key=lambda record: record.attempt)
        for before, after in pairwise(several):
            verdict.counts["fires run again"] += 1
            if not any(_held(done, before, after) for done in faults):
                verdict.wrong["run again without a reason"].append(
                    f"{fire}: attempt {after.attempt}"
                )


def check_feeds(
    jobs: Sequence[Job], ledger: Sequence[LedgerRow], verdict: Verdict, *, until: datetime
) -> None:
    """Compare the fires of jobs with a queue: each became a job, or was passed over for the one
    before it.
    """
    verdict.wrong["fires lost"] += [str(fire) for fire in sorted(unsettled(jobs, ledger, until))]
    rows = Counter(row.fire for row in ledger)
    verdict.wrong["fires doubled"] += [
        f"{fire}: {count} rows" for fire, count in rows.items() if count > 1
    ]
    odd = [
        row
        for row in ledger
        if row.fire.at <= until and row.outcome != "queued" and row.reason != "overlap"
    ]
    verdict.wrong["fires in dispute"] += [f"{row.fire}: {row.outcome}, {row.reason}" for row in odd]
    verdict.counts["fires fed"] = sum(row.outcome == "queued" for row in ledger)


def _held(done: Done, before: Record, after: Record) -> bool:
    """Whether a fault had a run in its hands: Redis, workers, submitters and clocks never have."""
    fault = done.fault
    ours = (
        fault.lane == "instances"
        and fault.kind not in ("clock", "partition from redis")
        and before.pid in done.pids
    )
    between = before.monotonic < done.over + 2 * LEASE and after.monotonic > done.begin
    return between and (ours or fault.lane == "postgres")
