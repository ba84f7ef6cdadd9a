"""A run: servers, members, the adversary for so long, peace until all is done, and the verdict."""

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from scheduler import Scheduler
from tests.chaos.attack import Attack, Done
from tests.chaos.crew import Crew
from tests.chaos.diary import read_jobs, read_orders
from tests.chaos.fires import check_feeds, check_fires, read_fires
from tests.chaos.house import House
from tests.chaos.member import Options, feeds, fires
from tests.chaos.orders import SCHEMA, STRAIGHT_TAG, TENANT
from tests.chaos.pauses import Pause
from tests.chaos.plan import INSTANCES, SUBMITTERS, WORKERS, timeline
from tests.chaos.verdict import (
    Ended,
    Jobs,
    Recovery,
    Verdict,
    check_jobs,
    check_pauses,
    deaths,
    recoveries,
)
from tests.support.checker import LedgerRow, read_ledger
from tests.support.waiting import wait_for

SHOP = "CREATE SCHEMA shop; CREATE TABLE shop.sold (tx uuid PRIMARY KEY)"
LEFT = "SELECT count(*) FROM scheduler.job_queue"
BEHIND = (
    "SELECT count(*) FROM scheduler.job j JOIN scheduler.job_lock l USING (tenant, id)"
    " WHERE (j.next_run_at <= %(until)s AND j.paused_at IS NULL) OR l.fire_at <= %(until)s"
)
ROWS = (
    "SELECT job_id, min(outcome), max(coalesce(attempt, 0)), extract(epoch FROM max(at))::float8, count(*),"
    " (array_agg(attempts))[1] FROM scheduler.job_history"
    " WHERE kind = 'job' GROUP BY job_id"
)
FED = (
    "SELECT job ->> 'id' FROM scheduler.job_history WHERE kind = 'fire' AND outcome = 'queued' UNION ALL"
    f" SELECT DISTINCT job_id FROM scheduler.job_history WHERE kind = 'job' AND job -> 'tags' ? '{STRAIGHT_TAG}'"
)
LEFTOVERS = (
    "SELECT 'job_ready', count(*) FROM scheduler.job_ready UNION ALL"
    " SELECT 'job_dependency', count(*) FROM scheduler.job_dependency"
)
SLOW = 30.0
Say = Callable[[str], None]
EVERYBODY = (*INSTANCES, *WORKERS, *SUBMITTERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How long the adversary has, how many fires and jobs a second there are, and how long the end
    may take.
    """

    seconds: float
    fires: int = 330
    feeds: int = 10
    rate: float = 1000.0
    silence: float = 30.0
    patience: float = 300.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    seed: int
    size: Size
    verdict: Verdict = field(default_factory=Verdict)
    faults: list[Done] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    began: float = 0.0
    drained: float = 0.0


class Progress:
    """Counts what members have written since one looked last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._counts: Counter[str] = Counter()

    def look(self) -> Counter[str]:
        """Read on in every file, up to its last whole line."""
        for path in [*self._folder.glob("*.diary"), *self._folder.glob("*.fires")]:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            lines = b"\n" + data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(lines) - 1
            self._counts["fires"] += lines.count(b'\n{"phase": "end"')
            self._counts["ended"] += lines.count(b"\nend ")
            self._counts["submitted"] += sum(map(int, re.findall(rb"\ncommitted \S+ (\d+)", lines)))
        return self._counts


def run(seed: int, size: Size, folder: Path, say: Say) -> Outcome:
    """Attack for so long, let all come to its end, and judge."""
    options = Options(
        slot="",
        dsn="",
        redis="",
        folder=str(folder),
        seed=str(seed),
        jobs=size.fires,
        crons=size.feeds,
        first=datetime.now(UTC) + timedelta(seconds=12),
        rate=size.rate / len(SUBMITTERS),
        silence=size.silence,
    )
    outcome = Outcome(seed=seed, size=size)
    with House() as house:
        with psycopg.connect(house.postgres.dsn, autocommit=True) as connection:
            connection.execute(SHOP)
        with Crew(house, folder, options) as crew:
            crew.open(EVERYBODY)
            crew.ready(EVERYBODY)
            attack = Attack(house, crew)
            _attack(attack, outcome, Progress(folder), say)
            outcome.pauses = attack.pauses
            until = _end(house, crew, outcome, say)
            outcome.verdict.wrong["died"] += crew.died
            outcome.verdict.wrong["the adversary"] += attack.failed
        say("reading what everybody wrote")
        _judge(house, folder, options, outcome, until)
    return outcome


def _attack(attack: Attack, outcome: Outcome, progress: Progress, say: Say) -> None:
    """Let the adversary do its work, and tell how it goes."""
    began = outcome.began = time.monotonic()
    size, every = outcome.size, max(5.0, outcome.size.seconds / 60)
    threads = attack.run(timeline(outcome.seed, size.seconds), began)
    end, next_look = began + size.seconds, began
    say(f"{'seconds':>8} {'faults':>7} {'fires':>9} {'submitted':>10} {'jobs run':>9}")
    while time.monotonic() < end or any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        attack.crew.look()
        if time.monotonic() >= next_look:
            next_look += every
            seen, passed = progress.look(), time.monotonic() - began
            say(
                f"{passed:8.0f} {len(attack.done):7,} {seen['fires']:9,} {seen['submitted']:10,} "
                f"{seen['ended']:9,}"
            )
    outcome.faults = sorted(attack.done, key=lambda done: done.begin)


def _end(house: House, crew: Crew, outcome: Outcome, say: Say) -> datetime:
    """Wait until all is done that was begun; return the moment up to which fires have to be
    there.
    """
    began = time.monotonic()
    crew.ready(EVERYBODY)
    crew.stop(SUBMITTERS)
    until = datetime.now(UTC)
    patience = outcome.size.patience
    with psycopg.connect(house.postgres.dsn, autocommit=True) as connection:

        def wait(what: str, query: LiteralString) -> None:
            def is_done() -> bool:
                crew.look()  # poison jobs end processes also now
                return not _one(connection, query, until)

            try:
                wait_for(is_done, what, timeout=patience, every=0.2)
            except AssertionError:
                outcome.verdict.wrong["not done"].append(f"{_one(connection, query, until)} {what}")

        wait("recurring jobs are behind", BEHIND)  # a paused job would not fire any more
        with Scheduler(house.postgres.dsn, schema=SCHEMA, tenants=[TENANT]) as control:
            for each in control.jobs(TENANT):
                if each.job_id.startswith("feed"):
                    control.pause(TENANT, each.job_id)
        wait("jobs have not ended", LEFT)
        wait("recurring jobs are behind", BEHIND)
    outcome.drained = time.monotonic() - began
    say(f"all was done {outcome.drained:.1f} s after the last fault")
    crew.stop([*WORKERS, *INSTANCES])
    return until


def _one(connection: psycopg.Connection[Any], query: LiteralString, until: datetime) -> int:
    row = connection.execute(query, {"until": until}).fetchone()
    return int(row[0]) if row is not None else 0


def _judge(house: House, folder: Path, options: Options, outcome: Outcome, until: datetime) -> None:
    """Read everything, and compare."""
    lines = list(read_jobs(folder))
    outcome.faults = faults = sorted([*outcome.faults, *deaths(lines)], key=lambda x: x.begin)
    verdict = outcome.verdict
    with psycopg.connect(house.postgres.dsn) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        sold = frozenset(str(tx) for (tx,) in connection.execute("SELECT tx FROM shop.sold"))
        fed = frozenset(job_id for (job_id,) in connection.execute(FED))
        apart = time.time() - time.monotonic()
        ended = {
            job_id: Ended.from_row(how, attempt, at - apart, rows, shown)
            for job_id, how, attempt, at, rows, shown in connection.execute(ROWS)
        }
        verdict.wrong["left behind"] += [
            f"{n} in {name}" for name, n in connection.execute(LEFTOVERS) if n
        ]
        ledger = read_ledger(connection, SCHEMA)
    by_kind: dict[bool, list[LedgerRow]] = {True: [], False: []}
    for row in ledger:
        by_kind[row.fire.job_id.startswith("feed")].append(row)
    records = read_fires(folder)
    check_fires(fires(options), records, by_kind[False], faults, verdict, until=until)
    check_feeds(feeds(options), by_kind[True], verdict, until=until)
    pages, ends = read_orders(folder)
    check_jobs(Jobs(pages, ends, sold, fed, lines, ended), faults, verdict)
    check_pauses(lines, outcome.pauses, faults, verdict, apart=apart)
    starts = (record.monotonic for record in records if record.phase == "start")
    done = (line.at for line in lines if line.what == "end")
    outcome.recoveries = list(recoveries(faults, starts, done))
    slow = [
        (found, each)
        for each, one in zip(faults, outcome.recoveries, strict=True)
        for found in (one.fire, one.job)
    ]
    verdict.wrong["slow"] += [
        f"{found:.1f} s after {each.fault}" for found, each in slow if (found or 0) > SLOW
    ]
