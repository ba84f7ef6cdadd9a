"""Where our fires differ from cronsim's, and why: a difference that no rule explains fails the
tests of cron.

A rule that explains nothing any more fails them too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo


@dataclass(frozen=True)
class Change:
    """The clocks go from one offset to another."""

    at: datetime
    before: timedelta
    behind: timedelta

    @property
    def shift(self) -> timedelta:
        return self.behind - self.before

    @property
    def repeats_from(self) -> datetime:
        """The local time at which the repeated stretch begins."""
        return self.at.replace(tzinfo=None) + self.behind


@dataclass(frozen=True)
class Difference:
    """An instant at which only one of the two fires, and the changes of the clocks near it."""

    expression: str
    zone: str
    instant: datetime
    ours: bool
    changes: tuple[Change, ...]

    @property
    def named(self) -> bool:
        *_, minute, hour, _, _, _ = fields = self.expression.split()
        seconds = fields[0] if len(fields) == 6 else "0"
        return not any(field.startswith("*") for field in (seconds, minute, hour))

    @property
    def local(self) -> datetime:
        return self.instant.astimezone(ZoneInfo(self.zone))

    @property
    def repeated(self) -> Change | None:
        """The change because of which this local time is there for the second time."""
        return next(
            (
                change
                for change in self.changes
                if change.at <= self.instant < change.at - change.shift
            ),
            None,
        )

    @property
    def after_gap(self) -> Change | None:
        """The gap that ends with this instant."""
        return next(
            (
                change
                for change in self.changes
                if change.at == self.instant and change.shift > NONE
            ),
            None,
        )


@dataclass(frozen=True)
class Rule:
    """Why the two differ, and a window of three days in which they do."""

    name: str
    reason: str
    example: tuple[str, str, datetime]
    explains: Callable[[Difference], bool]


NONE = timedelta(0)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def six_fields(one: Difference) -> bool:
    if len(one.expression.split()) != 6 or not one.named:
        return False
    return one.after_gap is not None if one.ours else one.repeated is not None


def within_the_hour(one: Difference) -> bool:
    if not one.ours or (one.named and len(one.expression.split()) == 5):
        return False
    return any(
        change.at <= one.instant < change.at + DAY + HOUR
        and (change.repeats_from.minute or change.shift % HOUR)
        for change in one.changes
    )


def eighth_day(one: Difference) -> bool:
    open_step = re.search(r"(^|,)\w+/", one.expression.split()[-1])
    return open_step is not None and not one.ours and one.local.isoweekday() == 7


def missing_midnight(one: Difference) -> bool:
    if one.ours or one.after_gap is None:
        return False
    return (one.instant.replace(tzinfo=None) + one.after_gap.before).time() == time()


def within_the_minute(one: Difference) -> bool:
    return any(
        change.shift % MINUTE and change.at <= one.instant < change.at + MINUTE and one.named
        for change in one.changes
    )


RULES = [
    Rule(
        "six fields that name their times",
        "cronsim treats named times at a change of the clocks only in five fields; ours also in "
        "six",
        ("0 30 2 * * *", "Europe/Paris", datetime(2027, 3, 27, tzinfo=UTC)),
        six_fields,
    ),
    Rule(
        "a change within the hour",
        "cronsim goes on by whole hours from wherever a change has put it, and so begins too late "
        "until midnight;"
        " ours fires whenever the local time matches",
        ("30 * * * *", "Australia/Lord_Howe", datetime(2026, 4, 4, tzinfo=UTC)),
        within_the_hour,
    ),
    Rule(
        "a step to the end of the week",
        "1/3 is 1-6/3 for us as for croniter; for cronsim the week ends with 7, so that it fires "
        "on Sundays too",
        ("0 6 * * 1/3", "UTC", datetime(2026, 1, 3, tzinfo=UTC)),
        eighth_day,
    ),
    Rule(
        "a day without midnight",
        "cronsim begins a day that it jumps to at 00:00, also where the clocks leave it out, and "
        "fires then;"
        " ours fires an interval only when the local time matches",
        ("*/20 0,23 * * SUN", "America/Havana", datetime(2000, 4, 1, tzinfo=UTC)),
        missing_midnight,
    ),
    Rule(
        "a gap that ends within the minute",
        "cronsim leaves a gap by whole minutes, ours at its very end",
        ("0 0 * * *", "Africa/Monrovia", datetime(1972, 1, 6, tzinfo=UTC)),
        within_the_minute,
    ),
]


def changes(zone: ZoneInfo, begin: datetime, end: datetime, step: timedelta) -> list[Change]:
    """Find the changes of a zone's clocks; two within one step may be overlooked."""

    def offset(moment: datetime) -> timedelta:
        return moment.astimezone(zone).utcoffset() or NONE

    found = []
    before = offset(begin)
    while begin < end:
        behind = offset(begin + step)
        if behind != before:
            low, high = begin, begin + step
            while high - low > timedelta(seconds=1):
                middle = low + (high - low) // timedelta(seconds=2) * timedelta(seconds=1)
                low, high = (middle, high) if offset(middle) == before else (low, middle)
            found.append(Change(high.astimezone(UTC), before, behind))
        begin, before = begin + step, behind
    return found


def explain(one: Difference) -> str | None:
    """Name the rule behind a difference."""
    return next((rule.name for rule in RULES if rule.explains(one)), None)
