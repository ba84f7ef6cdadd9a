"""The policy of a submitted job: its retries, its timeouts, and the form in which they are stored
(sections 4, 5).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import orjson

from scheduler.model.durations import duration, microseconds
from scheduler.model.retries import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The four limits on a job's time.

    execution: one attempt; a handler may ask for less, never for more. visibility: how long a
    worker may be silent before its job is taken back. submission: how long `submit` may take.
    lifetime: from the time at which it can run
    (`run_at`, or its submission) to its end.
    """

    execution: timedelta | str = timedelta(minutes=30)
    visibility: timedelta | str = timedelta(minutes=5)
    submission: timedelta | str = timedelta(seconds=30)
    lifetime: timedelta | str = timedelta(days=7)

    def checked(self) -> "Timeouts":
        """Check all four."""
        names = ("execution", "visibility", "submission", "lifetime")
        return Timeouts(
            **{each: duration(getattr(self, each), name=f"timeouts: {each}") for each in names}
        )

    def for_handler(self, wish: timedelta | None) -> timedelta:
        """Return the limit on an attempt whose handler asks for one of its own."""
        limit = duration(self.execution, name="timeouts: execution")
        return limit if wish is None else min(limit, wish)


RETRY: RetryPolicy = RetryPolicy()
TIMEOUTS: Timeouts = Timeouts()


def policy_json(retry: RetryPolicy, timeouts: Timeouts) -> str | None:
    """Write what differs from the defaults; None if nothing does."""
    usual: dict[str, object] = {**_plain(RETRY), **_plain(TIMEOUTS)}
    given = {**_plain(retry), **_plain(timeouts)}
    changed = {key: value for key, value in given.items() if value != usual[key]}
    return orjson.dumps(changed, option=orjson.OPT_SORT_KEYS).decode() if changed else None


def policy_of(stored: Mapping[str, Any] | None) -> tuple[RetryPolicy, Timeouts]:
    """Read what `policy_json` wrote."""
    parts: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key, value in (stored or {}).items():
        plain = key.removesuffix("_us")
        which = parts[0] if plain in RetryPolicy.__dataclass_fields__ else parts[1]
        which[plain] = timedelta(microseconds=value) if key.endswith("_us") else value
    return replace(RETRY, **parts[0]), replace(TIMEOUTS, **parts[1])


def _plain(values: RetryPolicy | Timeouts) -> dict[str, object]:
    plain: dict[str, object] = {}
    for key in values.__dataclass_fields__:
        value = getattr(values, key)
        if isinstance(value, timedelta):
            plain[f"{key}_us"] = microseconds(value)
        else:
            plain[key] = value
    return plain
