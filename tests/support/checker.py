"""Counts fires: the schedule (start_at + k * every) against what the bodies wrote and what the
ledger says.

*Lost*: a fire that was neither run, nor skipped for overlap, nor inside a missed row. *Doubled*:
two runs of one (job, fire, attempt), two ledger rows of a fire, or two accepted finishes of it.
*Contradiction*: ledger and records tell different stories.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import SQL, Identifier

from tests.support.instance import Job
from tests.support.records import Record


class Fire(NamedTuple):
    """One instant of one job."""

    tenant: str
    job_id: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.tenant}/{self.job_id} {self.at.isoformat()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """A row of `job_history` about a fire."""

    fire: Fire
    outcome: str
    reason: str | None = None
    attempt: int | None = None
    fence: int | None = None
    holder: str | None = None
    missed_from: datetime | None = None
    missed_count: int = 0
    attempts: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether nothing is."""
        return not (self.lost or self.doubled or self.contradictions)

    def __str__(self) -> str:
        lines = [
            (
                f"{len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.contradictions)} "
                "contradictions"
            )
        ]
        for name in ("lost", "doubled", "contradictions"):
            lines += [f"  {name}: {what}" for what in getattr(self, name)[:20]]
        return "\n".join(lines)


def read_ledger(connection: psycopg.Connection[Any], schema: str) -> list[LedgerRow]:
    """Read the rows about fires."""
    rows = connection.execute(
        SQL(
            "SELECT tenant, job_id, at, outcome, reason, attempt, fence, holder, missed_from, "
            "missed_count, attempts"
            " FROM {}.job_history WHERE kind = 'fire' ORDER BY tenant, job_id, at"
        ).format(Identifier(schema))
    ).fetchall()
    return [
        LedgerRow(
            fire=Fire(*row[:3]),
            outcome=row[3],
            reason=row[4],
            attempt=row[5],
            fence=row[6],
            holder=row[7],
            missed_from=row[8],
            missed_count=row[9],
            attempts=tuple(row[10] or ()),
        )
        for row in rows
    ]


def schedule(job: Job, until: datetime) -> list[Fire]:
    """Compute the fires of a job up to a moment."""
    count = 1 if job.every is None else (until - job.start_at) // timedelta(seconds=job.every) + 1
    step = timedelta(seconds=job.every or 0)
    return [Fire(job.tenant, job.job_id, job.start_at + k * step) for k in range(count)]


def unsettled(jobs: Iterable[Job], ledger: Sequence[LedgerRow], until: datetime) -> set[Fire]:
    """Name the fires up to a moment of which the ledger says nothing yet."""
    jobs = list(jobs)
    settled = {row.fire for row in ledger} | _missed(jobs, ledger)
    return {fire for job in jobs for fire in schedule(job, until)} - settled


def check(
    jobs: Iterable[Job], records: Sequence[Record], ledger: Sequence[LedgerRow], *, until: datetime
) -> Verdict:
    """Compare; `until` is the last moment whose fires must be there."""
    jobs = list(jobs)
    verdict = Verdict()
    starts: dict[Fire, list[Record]] = defaultdict(list)
    for record in records:
        if record.phase == "start":
            starts[_fire(record)].append(record)
    _look_for_lost(verdict, jobs, starts, ledger, until)
    _look_for_doubled(verdict, records, ledger)
    _look_for_unscheduled(verdict, jobs, starts, ledger)
    ended = {
        (_fire(record), record.attempt, record.fence, record.pid)
        for record in records
        if record.phase == "end"
    }
    for row in ledger:
        verdict.contradictions.extend(
            f"{row.fire}: {what}" for what in _disputed(row, starts[row.fire], ended)
        )
    _look_at_fences(verdict, starts)
    return verdict


def _look_for_lost(
    verdict: Verdict,
    jobs: list[Job],
    starts: dict[Fire, list[Record]],
    ledger: Sequence[LedgerRow],
    until: datetime,
) -> None:
    skipped = {row.fire for row in ledger if (row.outcome, row.reason) == ("skipped", "overlap")}
    missed = _missed(jobs, ledger)
    told = {row.fire for row in ledger} | missed
    for job in jobs:
        for fire in schedule(job, until):
            if fire not in starts and fire not in skipped and fire not in missed:
                verdict.lost.append(str(fire))
            elif fire not in told:
                verdict.contradictions.append(f"{fire}: it ran and the ledger does not say so")


def _look_for_doubled(
    verdict: Verdict, records: Sequence[Record], ledger: Sequence[LedgerRow]
) -> None:
    runs = Counter((_fire(record), record.attempt) for record in records if record.phase == "start")
    verdict.doubled.extend(
        f"{fire}: attempt {n} ran {count} times" for (fire, n), count in runs.items() if count > 1
    )
    rows = Counter(row.fire for row in ledger)
    verdict.doubled.extend(
        f"{fire}: {count} ledger rows" for fire, count in rows.items() if count > 1
    )
    accepted = Counter(_fire(record) for record in records if record.phase == "accepted")
    verdict.doubled.extend(
        f"{fire}: {count} accepted finishes" for fire, count in accepted.items() if count > 1
    )


def _look_for_unscheduled(
    verdict: Verdict, jobs: list[Job], starts: dict[Fire, list[Record]], ledger: Sequence[LedgerRow]
) -> None:
    seen = {*starts, *(row.fire for row in ledger)}
    last = max((fire.at for fire in seen), default=datetime.min.replace(tzinfo=UTC))
    scheduled = {fire for job in jobs for fire in schedule(job, last)}
    verdict.contradictions.extend(
        f"{fire}: not a fire of the schedule" for fire in sorted(seen - scheduled)
    )
    ran_and_missed = _missed(jobs, ledger) & starts.keys()
    verdict.contradictions.extend(
        f"{fire}: it ran and is inside a missed row" for fire in sorted(ran_and_missed)
    )


def _disputed(
    row: LedgerRow, starts: list[Record], ended: set[tuple[Fire, int, int | None, int]]
) -> Iterable[str]:
    """Yield where a row does not agree with the records of its fire."""
    if row.outcome == "skipped":
        if starts:
            yield "it ran and the ledger says skipped"
        return
    later = [record.attempt for record in starts if record.attempt > (row.attempt or 0)]
    if later:
        yield f"attempt {max(later)} ran, the ledger ends with {row.attempt}"
    final = [
        record for record in starts if (record.attempt, record.fence) == (row.attempt, row.fence)
    ]
    if row.outcome == "success":
        if not final:
            yield f"the ledger has attempt {row.attempt} at fence {row.fence}, which never started"
        elif (row.fire, row.attempt, row.fence, final[0].pid) not in ended:
            yield f"the ledger has attempt {row.attempt} as a success, its body never ended"
        elif not (row.holder or "").endswith(f":{final[0].pid}"):
            yield f"process {final[0].pid} ran it, the ledger names {row.holder}"
    told = {(lost["attempt"], lost["fence"]) for lost in row.attempts}
    ran = {(record.attempt, record.fence) for record in starts} - {(row.attempt, row.fence)}
    if not ran <= told:
        yield f"attempts {sorted(n for n, _ in ran - told)} ran, the ledger does not name them"
    if [lost["attempt"] for lost in row.attempts] != list(range(1, row.attempt or 1)):
        yield f"attempt {row.attempt} follows {[lost['attempt'] for lost in row.attempts]}"


def _look_at_fences(verdict: Verdict, starts: dict[Fire, list[Record]]) -> None:
    """Fences of a job grow with its fires, and with the attempts of each."""
    jobs: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for records in starts.values():
        for record in records:
            jobs[record.tenant, record.job_id].append(record)
    for runs in jobs.values():
        runs.sort(key=lambda record: (record.fire_at, record.attempt))
        for before, after in pairwise(runs):
            if (before.fence or 0) >= (after.fence or 0):
                verdict.contradictions.append(
                    f"{_fire(after)}: fence {after.fence} after {before.fence}"
                )


def _missed(jobs: Iterable[Job], ledger: Sequence[LedgerRow]) -> set[Fire]:
    """Expand missed rows: `missed_count` fires from `missed_from` on, the last of them just before
    the row's own.
    """
    steps = {(job.tenant, job.job_id): timedelta(seconds=job.every or 0) for job in jobs}
    missed = set()
    for row in ledger:
        step = steps.get(row.fire[:2], timedelta())
        first = row.missed_from
        if first is not None and first + row.missed_count * step == row.fire.at:
            missed |= {Fire(*row.fire[:2], first + k * step) for k in range(row.missed_count)}
    return missed


def _fire(record: Record) -> Fire:
    return Fire(record.tenant, record.job_id, record.fire_at)
