"""Durations as people write them: a timedelta, or text like "15m", "1h30m" or "3 days"."""

import re
from datetime import timedelta

from scheduler.errors import InvalidOption, SchedulerError

UNITS = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
LONGEST = timedelta(days=36_525)

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|weeks?|days?|hours?|minutes?|seconds?|[smhdw])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def duration(value: object, *, name: str, error: type[SchedulerError] = InvalidOption) -> timedelta:
    """Read a positive duration; `name` is what the error calls it."""
    result = _read(value, name, error)
    if result <= timedelta(0):
        raise error(f"{name} must be longer than nothing, not {value!r}")
    if result > LONGEST:
        raise error(f"{name} must be at most 100 years, not {value!r}")
    return result


def microseconds(value: timedelta) -> int:
    """Count a duration in whole microseconds."""
    return value // timedelta(microseconds=1)


def brief(value: timedelta) -> str:
    """Write a duration as `duration` reads it, in its largest units: 1h30m."""
    rest, text = microseconds(value), ""
    for unit, size in sorted(UNITS.items(), key=lambda item: -item[1]):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def _read(value: object, name: str, error: type[SchedulerError]) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise error(f'{name} must be a timedelta or a text like "15m", not {type(value).__name__}')
    text = value.replace(" ", "")
    if len(text) > 100 or not _WHOLE.fullmatch(text):
        raise error(f'{name} is not a duration: {value[:100]!r}; write "500ms", "15m" or "1h30m"')
    try:
        return timedelta(
            microseconds=sum(
                float(number) * UNITS[unit if unit == "ms" else unit[0]]
                for number, unit in _PART.findall(text)
            )
        )
    except OverflowError as overflow:
        raise error(f"{name} must be at most 100 years, not {value!r}") from overflow
