"""What must hold of jobs that went round the ring, whoever died: from the ledger, and from what
handlers wrote.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import SQL, Identifier

from tests.support.lines import read_lines


class Line(NamedTuple):
    """What a handler wrote: it starts, it ends; or that Redis took its end. In the order in which
    it was written.
    """

    what: str
    job_id: str
    attempt: int
    pid: int
    monotonic: float


class Ended(NamedTuple):
    """A row of the ledger."""

    job_id: str
    outcome: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, if anything."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    again: int = 0

    def __bool__(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)

    def __str__(self) -> str:
        said = f"{len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.wrong)} wrong, {self.again} run again"
        return "; ".join([said, *self.lost[:5], *self.doubled[:5], *self.wrong[:5]])


class Expected(NamedTuple):
    """How a submitted job may end, and how many of its attempts are told to fail."""

    outcomes: tuple[str, ...] = ("completed",)
    fails: int = 0


def check(
    jobs: Mapping[str, Expected],
    journal: Sequence[Line],
    ledger: Iterable[Ended],
    *,
    killed: Collection[int],
    most_again: int,
    memory_lost: bool = False,
) -> Verdict:
    """Compare: each job has one row, of an outcome that it may have; none runs once its end was
    taken; what runs again had been in the hands of a process that was killed, and is no more than
    the killed held.

    `memory_lost`: Redis forgot that ends were taken, and counts attempts that were not settled
    anew.
    """
    verdict = Verdict(again=again(jobs, journal))
    rows: dict[str, list[Ended]] = {}
    for row in ledger:
        rows.setdefault(row.job_id, []).append(row)
    for job_id, expected in jobs.items():
        found = rows.pop(job_id, [])
        if not found:
            verdict.lost.append(f"{job_id} is not in the ledger")
        elif len(found) > 1:
            verdict.doubled.append(f"{job_id} is {len(found)} times in the ledger")
        elif found[0].outcome not in expected.outcomes:
            verdict.wrong.append(
                f"{job_id} is {found[0].outcome}, not {' or '.join(expected.outcomes)}"
            )
    verdict.wrong.extend(f"{job_id} was never submitted" for job_id in rows)
    ran = {line.job_id for line in journal if line.what == "end"}
    verdict.lost.extend(
        f"{job_id} never ran to its end"
        for job_id, each in jobs.items()
        if each.outcomes == ("completed",) and job_id not in ran
    )
    if not memory_lost:
        verdict.doubled.extend(_doubled(journal, killed))
    if verdict.again > most_again:
        verdict.doubled.append(f"{verdict.again} runs again, of at most {most_again}")
    return verdict


def _doubled(journal: Sequence[Line], killed: Collection[int]) -> Iterator[str]:
    started: dict[str, Line] = {}
    ended: set[tuple[str, int, int]] = set()
    accepted: set[str] = set()
    for line in journal:
        job_id, attempt, before = line.job_id, line.attempt, started.get(line.job_id)
        if line.what == "end":
            ended.add(_key(line))
        elif line.what == "accepted":
            if job_id in accepted:
                yield f"{job_id}: a second end was taken, of attempt {attempt}"
            accepted.add(job_id)
        else:
            started[job_id] = line
            if job_id in accepted:
                yield f"{job_id}: attempt {attempt} starts after its end was taken"
            if before is not None and before.attempt >= attempt:
                yield f"{job_id}: attempt {attempt} starts after attempt {before.attempt}"
            if before is not None and before.pid not in killed and _key(before) not in ended:
                yield f"{job_id}: attempt {attempt} starts while {before.pid} runs it"


def _key(line: Line) -> tuple[str, int, int]:
    return line.job_id, line.attempt, line.pid


def again(jobs: Mapping[str, Expected], journal: Sequence[Line]) -> int:
    """Count the runs of jobs after their first, without those that follow a failure they were
    told.
    """
    runs = Counter(line.job_id for line in journal if line.what == "start")
    return sum(
        max(0, count - 1 - jobs[job_id].fails) for job_id, count in runs.items() if job_id in jobs
    )


def read_journal(path: Path) -> list[Line]:
    """Read what handlers wrote."""
    parts = (line.split(" ") for line in read_lines(path))
    return [
        Line(what, job_id, int(attempt), int(pid), float(at))
        for what, job_id, attempt, pid, at in parts
    ]


def read_ended(connection: psycopg.Connection[Any], schema: str) -> list[Ended]:
    """Read the ledger."""
    query = SQL(
        "SELECT job_id, outcome, coalesce(attempt, 0) FROM {}.job_history WHERE kind = 'job'"
    )
    return [Ended(*row) for row in connection.execute(query.format(Identifier(schema))).fetchall()]
