"""Cron: an expression in a time zone, and its fires as instants.

croniter reads the expression; which instants match, also across a change of the clocks, is decided
here. A schedule that names its times (no second, minute or hour that begins with `*`) fires once
for each of them: one that does not exist right after the gap, one that exists twice the first time.
Any other fires whenever the local time matches, so that it keeps its interval.
"""

from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import product
from typing import NamedTuple
from zoneinfo import ZoneInfo

from croniter import croniter

from scheduler.errors import InvalidSchedule
from scheduler.model.durations import brief
from scheduler.model.expressions import fields_of, numbers_of, zone_of

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
LONGEST = 200
LONGEST_GAP = 50  # years between two fires
LAST_YEAR = 9150


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A fire whenever the expression matches in its zone, each moved by `offset`."""

    expression: str
    timezone: str = "UTC"
    start_at: datetime | None = None
    offset: timedelta = timedelta(0)

    @property
    def start(self) -> datetime | None:
        """The first fire at or after the start that was given."""
        return None if self.start_at is None else self._after(self.start_at - timedelta.resolution)

    def __str__(self) -> str:
        moved = f", moved by {brief(self.offset)}" if self.offset else ""
        return f"cron {self.expression} ({self.timezone}){moved}"

    def first(self, registered_at: datetime) -> datetime | None:
        """Return the first fire from the start, or after the registration."""
        return self.start if self.start_at else self.following(registered_at)

    def following(self, fire: datetime) -> datetime | None:
        """Return the next fire after an instant, or None where the calendar ends."""
        return self._after(fire - self.offset)

    def until(self, fire: datetime, moment: datetime) -> tuple[datetime, int]:
        """Count day by day: two weeks of a one-second job cost little more than one fire."""
        low, high = fire - self.offset, moment - self.offset
        newest, count = low, 0
        for day in _calendar(self.expression, self.timezone).days(low):
            if day.midnight > high:
                break
            begin, end = bisect_left(day, low), bisect_right(day, high)
            if end > begin:
                newest, count = day[end - 1], count + end - begin
        return newest + self.offset, max(1, count)

    def notes(
        self, after: datetime, *, ahead: timedelta = timedelta(days=400), limit: int = 4
    ) -> list[str]:
        """Say what the changes of the clocks do to the fires that are to come."""
        return _calendar(self.expression, self.timezone).notes(after, ahead, limit)

    def _after(self, moment: datetime) -> datetime | None:
        for day in _calendar(self.expression, self.timezone).days(moment):
            index = bisect_right(day, moment)
            if index < len(day):
                return day[index] + self.offset
        return None


def cron(
    expression: object, timezone: object, *, start_at: datetime | None, offset: timedelta
) -> Cron:
    """Check an expression and a zone; raises with the position or the nearest name."""
    if not isinstance(expression, str):
        raise InvalidSchedule(
            f'cron must be a text like "0 6 * * 1-5", not {type(expression).__name__}'
        )
    if len(expression) > LONGEST:
        raise InvalidSchedule(f"cron must have at most {LONGEST} characters, not {len(expression)}")
    plan = Cron(
        expression=" ".join(expression.split()),
        timezone=zone_of(timezone).key,
        start_at=start_at,
        offset=offset,
    )
    calendar = _calendar(plan.expression, plan.timezone)
    if calendar.next_day(date(2001, 1, 1)) is None:
        raise InvalidSchedule(f"cron {plan.expression!r} never fires: there is no such day")
    return plan


class _Piece(NamedTuple):
    """A run of consecutive times of one local day under one offset from UTC."""

    day: date
    offset: timedelta
    first: int
    size: int


class _Day:
    """The fires of one UTC day, in order, without being listed; UTC days are what no change of
    clocks interleaves.
    """

    def __init__(self, calendar: "_Calendar", midnight: datetime) -> None:
        self.midnight = midnight
        self._calendar = calendar
        self._listed: tuple[datetime, ...] | None = None
        self._pieces: list[_Piece] = []
        end, offset = midnight + DAY, calendar.offset(midnight + DAY)
        change = calendar.change(midnight - (DAY if calendar.named else SECOND), end)
        if change is None:
            self._add(midnight, end, offset)
        elif calendar.named:
            self._listed = _named_fires(calendar, midnight)
        else:
            self._add(midnight, max(change, midnight), calendar.offset(change - SECOND))
            self._add(max(change, midnight), end, offset)
        self._count = (
            sum(piece.size for piece in self._pieces) if self._listed is None else len(self._listed)
        )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> datetime:
        if self._listed is not None:
            return self._listed[index]
        for piece in self._pieces:
            if index < piece.size:
                naive = self._calendar.moment(piece.day, piece.first + index)
                return (naive - piece.offset).replace(tzinfo=UTC)
            index -= piece.size
        raise IndexError(index)

    def _add(self, begin: datetime, end: datetime, offset: timedelta) -> None:
        low, high = begin.replace(tzinfo=None) + offset, end.replace(tzinfo=None) + offset
        day = self._calendar.next_day(low.date())
        while day is not None and datetime.combine(day, time()) < high:
            first = self._calendar.before(low, day)
            self._pieces.append(
                _Piece(day, offset, first, self._calendar.before(high, day) - first)
            )
            day = self._calendar.next_day(day + DAY)


class _Calendar:
    """An expression and a zone, read once."""

    def __init__(self, expression: str, timezone: str) -> None:
        fields = fields_of(expression)
        seconds, minutes, hours, *days = fields
        self.zone = ZoneInfo(timezone)
        self.named = not any(field.startswith("*") for field in (seconds, minutes, hours))
        self._seconds, self._minutes, self._hours = (
            numbers_of(seconds, 60),
            numbers_of(minutes, 60),
            numbers_of(hours, 24),
        )
        expanded, self._nth = croniter.expand(" ".join(["0 0", *days]))
        self._month_days, self._months, self._week_days = (
            None if "*" in field else set(field) for field in expanded[2:]
        )
        # As Debian's cron: where one of the two day fields begins with *, a day has to match both.
        self._either_day = not (days[0].startswith("*") or days[2].startswith("*"))

    def days(self, moment: datetime) -> Iterator[_Day]:
        """Go through the UTC days with fires, from that of a moment on."""
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        while True:
            yield _Day(self, midnight)
            day = self.next_day(midnight.date())
            if day is None or day.year >= LAST_YEAR:
                return
            # A local day begins at most a day before its date in UTC, and ends at most a day after
            # it.
            midnight = max(midnight + DAY, datetime.combine(day - DAY, time(), UTC))

    def next_day(self, day: date) -> date | None:
        """Find the first local day that matches, from `day` on."""
        last = min(day.year + LONGEST_GAP, LAST_YEAR)
        while day.year < last:
            if self._months is not None and day.month not in self._months:
                day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
            elif self._matches(day):
                return day
            else:
                day += DAY
        return None

    def moment(self, day: date, index: int) -> datetime:
        """Return the local time of a day at an index among its times."""
        hour, rest = divmod(index, len(self._minutes) * len(self._seconds))
        minute, second = divmod(rest, len(self._seconds))
        return datetime.combine(
            day, time(self._hours[hour], self._minutes[minute], self._seconds[second])
        )

    def before(self, moment: datetime, day: date) -> int:
        """Count the times of a day before a local moment."""
        hours, minutes, seconds = len(self._hours), len(self._minutes), len(self._seconds)
        if moment.date() != day:
            return 0 if moment.date() < day else hours * minutes * seconds
        hour = bisect_left(self._hours, moment.hour)
        if hour == hours or self._hours[hour] != moment.hour:
            return hour * minutes * seconds
        minute = bisect_left(self._minutes, moment.minute)
        if minute == minutes or self._minutes[minute] != moment.minute:
            return (hour * minutes + minute) * seconds
        return (hour * minutes + minute) * seconds + bisect_left(self._seconds, moment.second)

    def offset(self, moment: datetime) -> timedelta:
        """Return the zone's offset from UTC at an instant."""
        return moment.astimezone(self.zone).utcoffset() or timedelta(0)

    def change(self, begin: datetime, end: datetime) -> datetime | None:
        """Find the instant between two at which the clocks change, if they do."""
        middle = _middle(begin, end)
        before = self.offset(begin)
        if self.offset(middle) != before:
            end = middle
        elif self.offset(end) == before:
            return None
        while end - begin > SECOND:
            middle = _middle(begin, end)
            begin, end = (middle, end) if self.offset(middle) == before else (begin, middle)
        return end

    def named_fires(self, midnight: datetime) -> tuple[datetime, ...]:
        """List the fires of a UTC day near which the clocks change."""
        near = [midnight.date() + number * DAY for number in (-2, -1, 0, 1, 2)]
        times = list(product(self._hours, self._minutes, self._seconds))
        naive = [
            datetime.combine(day, time(*at))
            for day in near
            if self.next_day(day) == day
            for at in times
        ]
        return tuple(
            sorted(
                {fire for fire in map(self._instant, naive) if midnight <= fire < midnight + DAY}
            )
        )

    def notes(self, after: datetime, ahead: timedelta, limit: int) -> list[str]:
        """Describe the named times that are missing or repeated in the time to come."""
        found: list[str] = []
        moment = after
        while self.named and moment < after + ahead and len(found) < limit:
            change = self.change(moment, moment + DAY)
            moment += DAY
            if change is None:
                continue
            before, behind = self.offset(change - SECOND), self.offset(change)
            low, high = sorted(change.replace(tzinfo=None) + offset for offset in (before, behind))
            day = self.next_day(low.date())
            while day is not None and day <= high.date():
                hit = [
                    self.moment(day, index)
                    for index in range(self.before(low, day), self.before(high, day))
                ]
                found += [self._note(naive, missing=behind > before) for naive in hit]
                day = self.next_day(day + DAY)
        return found[:limit]

    def _matches(self, day: date) -> bool:
        """Whether a day of a month that matches does."""
        if self._month_days is None and self._week_days is None:
            return True
        last = monthrange(day.year, day.month)[1]
        by_month = (
            self._month_days is None
            or day.day in self._month_days
            or ("l" in self._month_days and day.day == last)
        )
        week_day = day.isoweekday() % 7
        by_week = self._week_days is None or week_day in self._week_days
        if by_week and week_day in self._nth:
            nth = self._nth[week_day]
            by_week = (day.day + 6) // 7 in nth or ("l" in nth and day.day + 7 > last)
        return by_month or by_week if self._either_day else by_month and by_week

    def _note(self, naive: datetime, *, missing: bool) -> str:
        if not missing:
            return f"{naive} exists twice in {self.zone.key}: it fires the first time"
        return (
            f"{naive} does not exist in {self.zone.key}: it fires at "
            f"{self._instant(naive).astimezone(self.zone)}"
        )

    def _instant(self, naive: datetime) -> datetime:
        fire = naive.replace(tzinfo=self.zone).astimezone(UTC)
        if fire.astimezone(self.zone).replace(tzinfo=None) == naive:
            return fire
        # In a gap fold=1 counts with the offset after it, and so lands before it.
        return self.change(naive.replace(tzinfo=self.zone, fold=1).astimezone(UTC), fire) or fire


def _middle(begin: datetime, end: datetime) -> datetime:
    return begin + (end - begin) // SECOND // 2 * SECOND


@lru_cache(maxsize=256)
def _named_fires(calendar: _Calendar, midnight: datetime) -> tuple[datetime, ...]:
    return calendar.named_fires(midnight)


@lru_cache(maxsize=4096)
def _calendar(expression: str, timezone: str) -> _Calendar:
    return _Calendar(expression, timezone)
