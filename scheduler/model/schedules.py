"""When a job fires: `Every`, `Cron` and `Once`, what becomes of late fires, and the pure arithmetic
on all of them.

All instants are aware and in UTC. The next fire is always computed from the *scheduled* one, never
from the clock.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from scheduler.errors import InvalidOption, InvalidSchedule
from scheduler.model.cron import Cron
from scheduler.model.cron import cron as read_cron
from scheduler.model.durations import LONGEST, brief, duration

EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


Misfire = Literal["run_once", "skip", "catch_up"]
Overlap = Literal["skip", "queue_one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """How many missed fires are run after all (the newest), and how old they may be."""

    max_count: int = 100
    max_age: timedelta | str = timedelta(days=1)

    def checked(self) -> "CatchUp":
        """Check both bounds."""
        count: object = self.max_count
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 10_000:
            raise InvalidOption(
                f"catch_up: max_count must be a number from 1 to 10000, not {count!r}"
            )
        return replace(self, max_age=duration(self.max_age, name="catch_up: max_age"))


CATCH_UP = CatchUp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What becomes of fires that are late, or that come while the fire before them runs."""

    misfire: Misfire = "run_once"
    grace: timedelta = timedelta(minutes=1)
    catch_up: CatchUp = CATCH_UP
    overlap: Overlap = "skip"


USUAL = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What a due job should do now: the fire to run (or, with a reason, to skip), what it stands
    for, what follows.
    """

    fire_at: datetime
    next_run_at: datetime | None
    missed_from: datetime | None = None
    missed_count: int = 0
    skipped: Literal["misfire"] | None = None


class Fire(NamedTuple):
    """A claimed fire: its instant, and the missed fires that it replaces. A triggered fire is not
    part of the schedule.
    """

    at: datetime
    triggered: bool = False
    missed_from: datetime | None = None
    missed_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """A fire at each interval from a first one."""

    every: timedelta
    start_at: datetime | None = None
    offset: timedelta = timedelta(0)

    @property
    def start(self) -> datetime | None:
        """The start that was given, moved by the offset."""
        return None if self.start_at is None else self.start_at + self.offset

    def __str__(self) -> str:
        return f"every {brief(self.every)}{_from(self.start_at, self.offset)}"

    def first(self, registered_at: datetime) -> datetime:
        """Return the start, or one interval after the registration."""
        return self.start or registered_at + self.every + self.offset

    def following(self, fire: datetime) -> datetime:
        """Return the fire one interval later."""
        return fire + self.every

    def until(self, fire: datetime, moment: datetime) -> tuple[datetime, int]:
        """Count by division: two weeks of a one-second job cost as much as one fire."""
        steps = max(0, (moment - fire) // self.every)
        return fire + steps * self.every, steps + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """One fire."""

    start_at: datetime | None = None
    offset: timedelta = timedelta(0)

    @property
    def start(self) -> datetime | None:
        """The start that was given, moved by the offset."""
        return None if self.start_at is None else self.start_at + self.offset

    def __str__(self) -> str:
        return f"once{_from(self.start_at, self.offset)}"

    def first(self, registered_at: datetime) -> datetime:
        """Return the start, or the moment of registration."""
        return self.start or registered_at + self.offset

    def following(self, fire: datetime) -> None:
        """Nothing follows."""

    def until(self, fire: datetime, moment: datetime) -> tuple[datetime, int]:  # noqa: ARG002 - there is only one
        """There is only this one."""
        return fire, 1


Schedule = Every | Cron | Once


def schedule(
    *,
    every: object = None,
    cron: object = None,
    timezone: object = "UTC",
    start_at: object = None,
    offset: timedelta = timedelta(0),
) -> Schedule:
    """Read a schedule from what `register` was given."""
    start = None if start_at is None else instant(start_at, name="start_at")
    if cron is not None:
        if every is not None:
            raise InvalidSchedule("every and cron exclude each other; give one of them")
        return read_cron(cron, timezone, start_at=start, offset=offset)
    if timezone != "UTC":
        raise InvalidSchedule("timezone belongs to cron; an interval is the same in every zone")
    if every is None:
        return Once(start_at=start, offset=offset)
    return Every(
        every=duration(every, name="every", error=InvalidSchedule), start_at=start, offset=offset
    )


def offset_of(tenant: str, job_id: str, jitter: timedelta) -> timedelta:
    """Place a job in the time that its fires may be spread over: always the same place,
    anywhere.
    """
    digest = hashlib.sha256(f"{len(tenant)}:{tenant}{job_id}".encode()).digest()
    return timedelta(milliseconds=jitter // MILLISECOND * int.from_bytes(digest[:4], "big") >> 32)


def instant(value: object, *, name: str) -> datetime:
    """Read an aware datetime as UTC; `name` is what the error calls it."""
    if not isinstance(value, datetime):
        raise InvalidSchedule(f"{name} must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidSchedule(
            f"{name} must carry a time zone; try {name}=datetime(..., tzinfo=timezone.utc)"
        )
    if (
        not EARLIEST.replace(tzinfo=None) + timedelta(days=1)
        <= value.replace(tzinfo=None)
        <= LATEST.replace(tzinfo=None)
    ):
        raise InvalidSchedule(
            f"{name} must be between the years 1970 and 9000, not {value.isoformat()}"
        )
    return value.astimezone(UTC)


def due(plan: Schedule, policy: Policy, *, seen: datetime, now: datetime) -> Due:
    """Decide what the job whose next fire is `seen` does at `now`.

    A fire is missed when it is later than the grace. While the waiting one is not, it runs as
    itself and those behind it run after it (or, with `queue_one`, all that wait are one run). Once
    it is, `run_once` makes everything that waits one run of the newest fire: an overloaded or long
    absent fleet catches up with one run a job, not with a storm. `skip` passes over what was
    missed; `catch_up` runs it, the oldest first, as far as the bounds allow.
    """
    late = now - seen > policy.grace
    if policy.misfire == "run_once" or (policy.misfire == "skip" and not late):
        as_one = late or policy.overlap == "queue_one"
        return together(plan, seen, now if as_one else seen)
    if not late:
        return together(plan, seen, seen)
    if policy.misfire == "skip":
        return replace(
            together(plan, seen, now - policy.grace - timedelta.resolution), skipped="misfire"
        )
    dropped = _dropped(plan, policy.catch_up, seen=seen, now=now)
    return (
        together(plan, seen, seen)
        if dropped is None
        else replace(together(plan, seen, dropped), skipped="misfire")
    )


def together(plan: Schedule, seen: datetime, moment: datetime) -> Due:
    """Let all fires from `seen` to a moment be one: the newest."""
    newest, count = (seen, 1) if moment == seen else plan.until(seen, moment)
    return Due(
        fire_at=newest,
        next_run_at=_bounded(plan.following(newest)),
        missed_from=seen if count > 1 else None,
        missed_count=count - 1,
    )


def fires(plan: Schedule, next_run_at: datetime | None) -> Iterator[datetime]:
    """Go through the fires to come."""
    while next_run_at is not None:
        yield next_run_at
        next_run_at = _bounded(plan.following(next_run_at))


def _dropped(plan: Schedule, bounds: CatchUp, *, seen: datetime, now: datetime) -> datetime | None:
    """Return the last missed fire that is too old to be run, or one too many, if there is any."""
    oldest = now - duration(bounds.max_age, name="catch_up: max_age")
    last_old = None if seen >= oldest else plan.until(seen, oldest - timedelta.resolution)[0]
    first = seen if last_old is None else plan.following(last_old)
    if first is None or first > now:
        return last_old
    wanted = bounds.max_count + 1  # the newest that is one too many
    low, span = now, timedelta(seconds=1)
    while (
        _count(plan, low, now) < wanted and low > first
    ):  # near now first: there may be years of fires before it
        low, span = max(first, now - span), 8 * span
    if _count(plan, low, now) < wanted:
        return last_old
    high = now
    while low < high:
        middle = high - (high - low) // 2
        if _count(plan, middle, now) >= wanted:
            low = middle
        else:
            high = middle - timedelta.resolution
    return low


def _count(plan: Schedule, begin: datetime, end: datetime) -> int:
    """Count the fires between two instants, both included; `begin` is not before the first."""
    if isinstance(plan, Once):
        return 1
    fire = plan.following(begin - timedelta.resolution) if isinstance(plan, Cron) else begin
    return 0 if fire is None or fire > end else plan.until(fire, end)[1]


def reschedule(
    plan: Schedule,
    *,
    created_at: datetime,
    last_fire_at: datetime | None,
    next_run_at: datetime | None,
    now: datetime,
    before: Schedule | None,
    forgotten_before: datetime | None = None,
) -> datetime | None:
    """Return the next fire of a job that is registered anew (no `before`) or with a changed
    definition.

    A definition that changed in something else keeps its fires, and one that is due stays due. A
    fire at or before the last one is never given out again. A changed interval goes on from the
    last fire, so that a weekly job fires in an app that deploys a change every day; a changed cron
    with its first fire after now; a changed one-time job fires again only when it was given a new
    start.

    A fire before `forgotten_before` of a job that is not registered can have run, and is not given
    out.
    """
    if before == plan:
        return next_run_at
    known = before is not None
    start = plan.start
    oldest = last_fire_at
    if not known and forgotten_before is not None:
        oldest = max(forgotten_before, last_fire_at or forgotten_before)
    if isinstance(plan, Once):
        if start is None:
            return next_run_at if known else plan.first(now)
        return start if oldest is None or start > oldest else None
    following: datetime | None
    if start is not None and (start > now or last_fire_at is None):
        following = start
    elif known and next_run_at is not None and next_run_at <= now:
        following = next_run_at  # it is due: a deploy loses no fire
    elif isinstance(plan, Cron):
        same = isinstance(before, Cron) and replace(before, offset=plan.offset) == plan
        moved = plan.offset - before.offset if same and before is not None else timedelta(0)
        following = plan.following(now) if next_run_at is None or not same else next_run_at + moved
    elif last_fire_at is not None and known:
        moved = plan.offset - before.offset if isinstance(before, Every) else plan.offset
        following = max(plan.following(last_fire_at) + moved, now)
    else:
        following = max(plan.first(created_at), now) if start is None else start
    if following is not None and oldest is not None and following <= oldest:
        newest, _ = plan.until(following, oldest)
        following = plan.following(newest)
    return _bounded(following)


def _bounded(fire: datetime | None) -> datetime | None:
    return fire if fire is None or fire <= LATEST + LONGEST else None


def _from(start_at: datetime | None, offset: timedelta) -> str:
    start = f" from {start_at:%Y-%m-%d %H:%M:%S %Z}" if start_at else ""
    return start + (f", moved by {brief(offset)}" if offset else "")
