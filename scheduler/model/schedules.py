"""When a job fires: `Every` and `Once`, and the pure arithmetic on their fires.

All instants are aware and in UTC. The next fire is always computed from the *scheduled* one, never from the clock.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from scheduler.errors import InvalidSchedule
from scheduler.model.durations import LONGEST, duration

EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What a due job should do now: the fire to run, what it stands for, and the fire after it."""

    fire_at: datetime
    next_run_at: datetime | None
    missed_from: datetime | None = None
    missed_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """A fire at each interval from a first one."""

    every: timedelta
    start_at: datetime | None = None

    def first(self, registered_at: datetime) -> datetime:
        """Return the start, or one interval after the registration."""
        return self.start_at or registered_at + self.every

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

    def first(self, registered_at: datetime) -> datetime:
        """Return the start, or the moment of registration."""
        return self.start_at or registered_at

    def following(self, fire: datetime) -> None:
        """Nothing follows."""

    def until(self, fire: datetime, moment: datetime) -> tuple[datetime, int]:  # noqa: ARG002 - there is only one
        """There is only this one."""
        return fire, 1


Schedule = Every | Once


def schedule(*, every: object = None, start_at: object = None) -> Schedule:
    """Read a schedule from what `register` was given."""
    start = None if start_at is None else instant(start_at, name="start_at")
    if every is None:
        return Once(start_at=start)
    return Every(every=duration(every, name="every", error=InvalidSchedule), start_at=start)


def instant(value: object, *, name: str) -> datetime:
    """Read an aware datetime as UTC; `name` is what the error calls it."""
    if not isinstance(value, datetime):
        raise InvalidSchedule(f"{name} must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidSchedule(f"{name} must carry a time zone; try {name}=datetime(..., tzinfo=timezone.utc)")
    if (
        not EARLIEST.replace(tzinfo=None) + timedelta(days=1)
        <= value.replace(tzinfo=None)
        <= LATEST.replace(tzinfo=None)
    ):
        raise InvalidSchedule(f"{name} must be between the years 1970 and 9000, not {value.isoformat()}")
    return value.astimezone(UTC)


def due(plan: Schedule, *, seen: datetime, now: datetime, grace: timedelta) -> Due:
    """Decide what the job whose next fire is `seen` runs at `now` (misfire rule `run_once`).

    While the waiting fire is within `grace` it runs as itself, and those behind it run after it. Once it is later
    than that, everything that waits coalesces into one run of the newest fire: an overloaded or long absent fleet
    catches up with one run a job, not with a storm.
    """
    newest, count = (seen, 1) if now - seen <= grace else plan.until(seen, now)
    return Due(
        fire_at=newest,
        next_run_at=_bounded(plan.following(newest)),
        missed_from=seen if count > 1 else None,
        missed_count=count - 1,
    )


def reschedule(
    plan: Schedule,
    *,
    created_at: datetime,
    last_fire_at: datetime | None,
    next_run_at: datetime | None,
    now: datetime,
    before: Schedule | None,
) -> datetime | None:
    """Return the next fire of a job that is registered anew (no `before`) or with a changed definition.

    A definition that changed in something else keeps its fires. A fire at or before the last one is never given out
    again. A changed interval goes on from the last fire, so that a weekly job fires in an app that deploys a change
    every day; a changed one-time job fires again only when it was given a new start.
    """
    if before == plan:
        return next_run_at
    known = before is not None
    start = plan.start_at
    if isinstance(plan, Once):
        if start is None:
            return next_run_at if known else now
        return start if last_fire_at is None or start > last_fire_at else None
    if start is not None and (start > now or last_fire_at is None):
        following: datetime | None = start
    elif last_fire_at is not None and known:
        following = max(plan.following(last_fire_at), now)
    else:
        following = max(plan.first(created_at), now) if start is None else start
    if following is not None and last_fire_at is not None and following <= last_fire_at:
        newest, _ = plan.until(following, last_fire_at)
        following = plan.following(newest)
    return _bounded(following)


def _bounded(fire: datetime | None) -> datetime | None:
    return fire if fire is None or fire <= LATEST + LONGEST else None
