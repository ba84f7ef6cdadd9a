"""The checker: what members wrote and what the ledger says, against what was promised. It reads
nothing else.

Of fires: `tests.support.checker`. Of jobs: each that was committed has one row in the ledger and
ended as it had to; what was rolled back never was; nothing runs before its time or before what it
waits for; Redis takes one end of each (feed, attempt), and one last end. Runs after the first need
a reason: a told failure, or a fault that had the job in its hands. Attempts that the ledger shows
are starts, or leases that were orphaned before they started. Nothing is leased from a paused queue.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.attack import Done
from tests.chaos.diary import Line, Order, Page
from tests.chaos.pauses import Pause
from tests.chaos.plan import CONCURRENCY, LEASE, Fault

ONE_TICK = 0.05
CLOCK_ERROR = 0.01  # of the difference between two clocks
# What a worker had fetched before a fault may start so long after it.
AFTERMATH = 2 * LEASE + 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The rows of a job in the ledger, of which there should be one; `at`: when it was written.

    shown: the attempts that it lists, each with the category of its failure, if it has one.
    uncharged: how many attempts do not count towards `max_attempts`.
    """

    outcome: str
    attempt: int
    at: float = float("inf")
    rows: int = 1
    shown: Mapping[int, str | None] = field(default_factory=dict)
    uncharged: int = 0

    @classmethod
    def from_row(cls, outcome: str, attempt: int, at: float, rows: int, attempts: Any) -> "Ended":
        """Make it of a row, whose list leaves out a last attempt that completed plainly."""
        listed: list[dict[str, Any]] = attempts or []
        shown = {each["attempt"]: each.get("category") for each in listed}
        if outcome == "completed":
            shown.setdefault(attempt, None)
        uncharged = listed[-1].get("uncharged", 0) if listed else 0
        return cls(
            outcome=outcome,
            attempt=attempt,
            at=at,
            rows=rows,
            shown=shown,
            uncharged=uncharged,
        )


@dataclass(slots=True)
class Verdict:
    """What is wrong, and what was counted on the way."""

    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(
        default_factory=Counter
    )  # runs after the first, by the fault that had them in its hands

    def __bool__(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.wrong.values())


@dataclass(slots=True)
class Jobs:
    """What is known of submitted jobs: what was meant, what was done, what became of it."""

    pages: Sequence[Page]
    ends: Mapping[str, str]  # how submitters say that transactions ended
    sold: frozenset[str]  # transactions that are there, by the submitters' own table
    fed: frozenset[
        str
    ]  # jobs that recurring jobs submitted, and calls that commit by themselves, by the ledger
    lines: Sequence[Line]
    ledger: Mapping[str, Ended]


def check_jobs(jobs: Jobs, faults: Sequence[Done], verdict: Verdict) -> None:
    """Compare all of it."""
    orders, times = _committed(jobs, verdict)
    runs: dict[str, list[Line]] = defaultdict(list)
    for line in sorted(jobs.lines, key=lambda line: line.at):
        runs[line.job_id].append(line)
    verdict.counts["jobs"] = len(orders) + len(jobs.fed)
    wrong = verdict.wrong
    wrong["never submitted"] += [
        f"{job_id} is in the ledger"
        for job_id in jobs.ledger
        if job_id not in orders and job_id not in jobs.fed
    ]
    wrong["never submitted"] += [
        f"{job_id} ran" for job_id in runs if job_id not in orders and job_id not in jobs.fed
    ]
    doomed: dict[str, bool] = {}
    for job_id in [*orders, *jobs.fed]:
        order = orders.get(job_id) or Order(job_id, 0, 0.0, (), None, cancelled=False)
        lines, ended = runs.get(job_id, []), jobs.ledger.get(job_id)
        _check_end(order, ended, lines, verdict, doomed=_is_doomed(order, orders, doomed))
        _check_order(order, lines, runs, times.get(job_id, 0.0), verdict)
        _check_taken(lines, faults, verdict)
        _check_attempts(order, ended, lines, times.get(job_id, 0.0), faults, verdict)
        _check_again(lines, faults, verdict, settled=ended.at if ended else float("inf"))
    _check_ids(jobs.lines, verdict)


def _committed(jobs: Jobs, verdict: Verdict) -> tuple[dict[str, Order], dict[str, float]]:
    """Say which jobs there have to be: those of transactions that are there. One key is one job."""
    orders: dict[str, Order] = {}
    times: dict[str, float] = {}
    keys: dict[str, set[str]] = defaultdict(set)
    for page in jobs.pages:
        said, there = jobs.ends.get(page.tx, "unknown"), page.tx in jobs.sold
        verdict.counts[f"transactions {said}"] += 1
        if (said == "committed" and not there) or (said == "rolledback" and there):
            verdict.wrong["transactions"].append(
                f"{page.tx} was {said}, and is {'' if there else 'not '}there"
            )
        if not there:
            continue
        for order in page.orders:
            orders.setdefault(order.id, order)
            times[order.id] = min(page.at, times.get(order.id, page.at))
            if order.key is not None:
                keys[order.key].add(order.id)
    verdict.wrong["one key, several jobs"] += [
        f"{key}: {sorted(ids)}" for key, ids in keys.items() if len(ids) > 1
    ]
    return orders, times


def _is_doomed(order: Order, orders: Mapping[str, Order], known: dict[str, bool]) -> bool:
    """Whether it has to fail, itself or because of one that it waits for."""
    if order.id not in known:
        known[order.id] = order.fails < 0 or any(
            _is_doomed(orders[each], orders, known) for each in order.after if each in orders
        )
    return known[order.id]


def _check_end(
    order: Order, ended: Ended | None, lines: Sequence[Line], verdict: Verdict, *, doomed: bool
) -> None:
    if ended is None:
        verdict.wrong["lost"].append(f"{order.id} is not in the ledger")
        return
    verdict.counts[ended.outcome] += 1
    if ended.rows > 1:
        verdict.wrong["doubled"].append(f"{order.id} is {ended.rows} times in the ledger")
    may = {"failed"} if doomed else {"completed", "cancelled"} if order.cancelled else {"completed"}
    if order.poison:
        may = {"dead_letter"}
    if ended.outcome not in may:
        verdict.wrong["ended wrongly"].append(
            f"{order.id} is {ended.outcome}, not {' or '.join(sorted(may))}"
        )
    if ended.outcome == "completed" and not any(
        line.what == "end" and line.attempt == ended.attempt for line in lines
    ):
        verdict.wrong["lost"].append(
            f"{order.id} is completed by attempt {ended.attempt}, which never ended"
        )
    if ended.outcome == "failed" and order.fails >= 0 and lines:
        verdict.wrong["ended wrongly"].append(f"{order.id} ran though what it waits for failed")


def _check_order(
    order: Order,
    lines: Sequence[Line],
    runs: Mapping[str, Sequence[Line]],
    submitted: float,
    verdict: Verdict,
) -> None:
    first = next((line.at for line in lines if line.what == "start"), None)
    if first is None:
        return
    if first < submitted + order.delay - ONE_TICK:
        verdict.wrong["too early"].append(
            f"{order.id} starts {submitted + order.delay - first:.3f} s too early"
        )
    for each in order.after:
        ends = [line.at for line in runs.get(each, ()) if line.what == "end"]
        if not ends or ends[0] > first:
            verdict.wrong["too early"].append(f"{order.id} starts before {each} has ended")


def _check_taken(lines: Sequence[Line], faults: Sequence[Done], verdict: Verdict) -> None:
    """Look at the ends that Redis took: one of each (feed, attempt), one last, and none while a
    later attempt runs.
    """
    taken: dict[tuple[int, int] | str, float] = {}
    runs: dict[
        tuple[int, int], tuple[float, float]
    ] = {}  # of an attempt in a process: from when until when
    for line in lines:
        run = line.attempt, line.pid
        if line.what == "start":
            runs[run] = line.at, float("inf")
        elif line.what in ("end", "fail"):
            runs[run] = runs[run][0], line.at
        elif line.what != "poison":
            # It was taken between its end and when that was heard, which may be long after.
            began, ended = runs.get(run, (line.at, line.at))
            ends: list[tuple[int, int] | str] = [(line.feed, line.attempt)]
            ends += ["last"] if line.what == "closed" else []
            again = [taken[each] for each in ends if each in taken]
            again += [
                began
                for (other, _), (at, _) in runs.items()
                if other > line.attempt and began < at < ended
            ]
            if any(not _forgotten(moment, line.at, faults) for moment in again):
                what = f"{line.job_id}: a second end was taken, of feed {line.feed}, attempt {line.attempt}"
                verdict.wrong["doubled"].append(what)
            taken |= dict.fromkeys(ends, ended)


def _check_attempts(
    order: Order,
    ended: Ended | None,
    lines: Sequence[Line],
    submitted: float,
    faults: Sequence[Done],
    verdict: Verdict,
) -> None:
    """Check that the attempts in the ledger are the starts, and leases that were orphaned before.

    A job can be dead without a start only after two leases that were not marked as begun: the first
    was redelivered uncharged. A Redis that forgot a job counts its attempts from the start.
    """
    if ended is None or _forgotten(submitted, ended.at, faults):
        return
    wrong = verdict.wrong["attempts"]
    started = {line.attempt for line in lines if line.what == "start"}
    without = {number for number in range(1, ended.attempt + 1) if number not in started}
    lost = {number for number in without if ended.shown.get(number) == "system"}
    verdict.counts["leases orphaned before their start"] += len(without)
    for number in sorted(started):
        if number > ended.attempt:
            wrong.append(f"{order.id}: attempt {number} started, the ledger has {ended.attempt}")
    for number in sorted(without & ended.shown.keys() - lost):
        wrong.append(f"{order.id}: the ledger shows attempt {number}, which never started")
    if len(without - ended.shown.keys()) > ended.uncharged:
        wrong.append(
            f"{order.id}: {len(without)} of {ended.attempt} attempts never started, "
            f"{len(lost)} were lost and {ended.uncharged} are uncharged"
        )
    if ended.outcome == "dead_letter" and not started:
        verdict.counts["dead without a start"] += 1
        if ended.attempt < 2 or not ended.uncharged:
            verdict.wrong["dead without a start"].append(
                f"{order.id} after {ended.attempt} attempts, {ended.uncharged} uncharged"
            )


def _check_ids(lines: Sequence[Line], verdict: Verdict) -> None:
    """Check that no two executions share an attempt id, whatever Redis lost."""
    starts = [line for line in lines if line.what == "start" and line.attempt_id]
    times = Counter(line.attempt_id for line in starts)
    verdict.wrong["one attempt id, two executions"] += [
        f"{line.job_id}: attempt {line.attempt}, process {line.pid}: {line.attempt_id}"
        for line in starts
        if times[line.attempt_id] > 1
    ]


def check_pauses(
    lines: Iterable[Line],
    pauses: Sequence[Pause],
    faults: Sequence[Done],
    verdict: Verdict,
    *,
    apart: float,
) -> None:
    """Check that nothing begins in a paused queue later than one round trip after the pause.

    By Redis's clock no job is leased then. What was leased before can still start, but no more than
    a worker has slots, however slow it is. A Redis that lost its data does not know of the pause
    until upkeep tells it. apart: by how much Redis's clock is ahead of the one of the diaries.
    """
    starts: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.what == "start" and line.queue:
            starts[line.queue].append(line)
    for queue, begin, end in pauses:
        verdict.counts["pauses"] += 1
        later: Counter[int] = Counter()
        for line in starts[queue]:
            if begin < line.leased < end:
                if not _forgotten(begin - apart, line.leased - apart, faults):
                    verdict.wrong["begun in a paused queue"].append(
                        f"{line.job_id}: {queue} was paused for {line.leased - begin:.3f} s"
                    )
            elif line.leased <= begin < line.at + apart - CLOCK_ERROR < end:
                later[line.pid] += 1
        verdict.wrong["begun in a paused queue"] += [
            f"{queue}: process {pid} began {count} jobs that it had leased before the pause"
            for pid, count in later.items()
            if count > CONCURRENCY
        ]


def deaths(lines: Iterable[Line]) -> list[Done]:
    """List the deaths of workers by poison jobs, as faults."""
    return [
        Done(
            fault=Fault(lane="workers", kind="poison", at=line.at, seconds=0.0, targets=()),
            begin=line.at,
            over=line.at,
            pids=frozenset({line.pid}),
        )
        for line in lines
        if line.what == "poison"
    ]


def _check_again(
    lines: Sequence[Line], faults: Sequence[Done], verdict: Verdict, *, settled: float
) -> None:
    """Look at each run after the first: each needs a fault of its own."""
    before: Line | None = None
    failed: set[tuple[int, int]] = set()
    again: list[tuple[Line, Line]] = []
    for line in lines:
        if line.what == "fail":
            failed.add((line.attempt, line.pid))
        elif line.what == "start":
            verdict.counts["runs"] += 1
            if before is not None and (before.attempt, before.pid) not in failed:
                again.append((before, line))
            before = line
            failed.discard((line.attempt, line.pid))
    verdict.counts["run again"] += len(again)
    reasons = _matched([_reasons(*pair, faults, settled=settled) for pair in again])
    for pair, number in zip(again, reasons, strict=True):
        if number is None:
            verdict.wrong["run again without a reason"].append(_again(*pair, settled))
        else:
            verdict.again[faults[number].name] += 1


def _reasons(before: Line, line: Line, faults: Sequence[Done], *, settled: float) -> list[int]:
    """Find the faults that had a job in their hands, from one run of it to the next; the last is
    the likeliest.

    One that began when the end of the job was in the ledger is none; unless the run before began
    later still: that was one of which Redis had forgotten the end, in the hands of whoever had it.
    """
    latest = float("inf") if before.at > settled else settled + ONE_TICK
    return [
        number
        for number, done in reversed(list(enumerate(faults)))
        if before.at < done.over + AFTERMATH
        and line.at > done.begin
        and done.begin < latest
        and _holds(done, (before.pid, line.pid))
    ]


def _matched(wanted: Sequence[Sequence[int]]) -> list[int | None]:
    """Give each run a fault that is no other's, as many of them as can have one."""
    owner: dict[int, int] = {}

    def give(run: int, seen: set[int]) -> bool:
        for fault in wanted[run]:
            if fault not in seen:
                seen.add(fault)
                if fault not in owner or give(owner[fault], seen):
                    owner[fault] = run
                    return True
        return False

    for run in range(len(wanted)):
        give(run, set())
    found = {run: fault for fault, run in owner.items()}
    return [found.get(run) for run in range(len(wanted))]


def _again(before: Line, line: Line, settled: float) -> str:
    return (
        f"{line.job_id}: attempt {line.attempt} at {line.at:.1f}, process {line.pid}, after "
        f"attempt {before.attempt} at"
        f" {before.at:.1f}, process {before.pid}; settled at {settled:.1f}"
    )


def _holds(done: Done, pids: Iterable[int]) -> bool:
    """Whether a fault is a reason to run a job of these processes again: Postgres, instances and
    clocks never are.
    """
    if done.fault.lane == "redis":
        return True
    return (
        done.fault.lane == "workers"
        and done.fault.kind != "clock"
        and not done.pids.isdisjoint(pids)
    )


def _forgotten(first: float, second: float, faults: Sequence[Done]) -> bool:
    """Whether Redis lost its memory between two moments, and what it had taken with it."""
    return any(done.forgot and first < done.over and second > done.begin for done in faults)


@dataclass(frozen=True, slots=True)
class Recovery:
    """From the end of a fault: seconds until the next fire begins, and until the next job ends."""

    fire: float | None
    job: float | None


def recoveries(
    faults: Sequence[Done], fires: Iterable[float], jobs: Iterable[float]
) -> Iterator[Recovery]:
    """Measure each fault, as far as none that stops everybody is in the way: of a server, or of all
    of a kind.
    """
    flows = (sorted(fires), ("postgres",)), (sorted(jobs), ("postgres", "redis"))
    for done in faults:
        later = [each for each in faults if each is not done and each.over > done.over]
        found = []
        for moments, servers in flows:
            stopping = [
                each for each in later if each.fault.lane in servers or len(each.fault.targets) > 1
            ]
            found.append(_after(done.over, moments, stopping))
        yield Recovery(*found)


def _after(moment: float, moments: Sequence[float], others: Sequence[Done]) -> float | None:
    place = bisect_right(moments, moment)
    if place == len(moments) or any(each.begin < moments[place] for each in others):
        return None
    return moments[place] - moment
