"""Cron expressions and the names of zones, as people write them; what is wrong is said with its
place.
"""

import re
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from croniter import CroniterError, croniter

from scheduler.errors import InvalidSchedule

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS = {
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day of month": "1-31, or L for the last",
    "month": "1-12 or JAN-DEC",
    "day of week": "0-7 or SUN-SAT; FRI#2 is the second Friday, 5L the last",
}

_LAST_WEEKDAY = re.compile(r"\b([0-7])l\b", re.IGNORECASE)
# What croniter hashes or draws (`jitter` spreads), the nearest working day, and 5-5 or 59/5, which
# it reads as all.
_REFUSED = re.compile(r"(^|,)[hr](\W|$)|\dw|w\d|(^|,)0*(\w+)-0*\4(/|,|$)", re.IGNORECASE)
_ENDS = ("59", "23", "31", "12|dec", "6|sat")


def fields_of(expression: str) -> list[str]:
    """Read an expression into its six fields, seconds first."""
    text = ALIASES.get(expression.lower(), expression)
    if text.startswith("@"):
        raise InvalidSchedule(
            f"cron {expression!r} is not a name we know; these are: {', '.join(ALIASES)}"
        )
    fields = text.split()
    if len(fields) not in (5, 6):
        raise InvalidSchedule(
            f"cron {expression!r} has {len(fields)} fields; it needs 5 (minute, hour, day of "
            "month, month,"
            " day of week) or 6 (with the second first)"
        )
    names = list(FIELDS)[-len(fields) :]
    read = [
        "*" if field == "?" and name.startswith("day") else field
        for name, field in zip(names, fields, strict=True)
    ]
    read[-1] = _LAST_WEEKDAY.sub(r"L\1", read[-1])
    column = 1
    for number, (name, field, given) in enumerate(zip(names, read, fields, strict=True), 1):
        if not _acceptable(name, field):
            raise InvalidSchedule(
                f"cron {expression!r}: field {number} ({name}), {given!r} at column {column}, is "
                "not right;"
                f" it takes {FIELDS[name]}, and *, */5, 1-5, 1,3"
            )
        column += len(given) + 1
    return read if len(fields) == 6 else ["0", *read]


def _acceptable(name: str, field: str) -> bool:
    position = max(0, list(FIELDS).index(name) - 1)
    if (
        not field.isascii()
        or _REFUSED.search(field)
        or re.search(rf"(^|,)0*({_ENDS[position]})/", field, re.IGNORECASE)
    ):
        return False
    special = [part for part in field.split(",") if "#" in part or part.startswith(("L", "l"))]
    if name == "day of week" and special and len(special) < field.count(",") + 1:
        return False  # croniter drops one of the two
    try:
        croniter.expand(" ".join(field if at == position else "*" for at in range(5)))
    except (CroniterError, ValueError, KeyError):
        return False
    return True


def numbers_of(field: str, size: int) -> tuple[int, ...]:
    """Expand a field of the time of day."""
    position = 1 if size == 24 else 0
    expanded, _ = croniter.expand(" ".join(field if at == position else "*" for at in range(5)))
    numbers = expanded[position]
    return (
        tuple(range(size)) if "*" in numbers else tuple(sorted(int(number) for number in numbers))
    )


def zone_of(timezone: object) -> ZoneInfo:
    """Read the name of a zone; raises with the nearest one."""
    if not isinstance(timezone, str):
        raise InvalidSchedule(
            f'timezone must be a name like "Europe/Paris", not {type(timezone).__name__}'
        )
    if timezone in _zones():
        return ZoneInfo(timezone)
    raise InvalidSchedule(
        f"timezone {timezone[:60]!r} is not in the tz database{_nearest(timezone)}"
    )


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones() | {"UTC"})


def _nearest(timezone: str) -> str:
    names = {name.lower(): name for name in sorted(_zones())}
    places = {name.lower().rpartition("/")[2]: name for name in names.values()}
    wanted = timezone.lower().replace(" ", "_")
    for known in (names, places):
        close = get_close_matches(wanted, known, n=1, cutoff=0.6)
        if close:
            return f"; did you mean {known[close[0]]!r}?"
    return '; use a name like "Europe/Paris"'
