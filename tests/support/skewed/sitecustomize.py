"""A wrong wall clock for all code of a process, set before anything of it is imported: SKEW_SECONDS from the truth.

Found first on PYTHONPATH, it stands in for libfaketime where that is not installed. Monotonic clocks stay right.
"""

import datetime as dt
import os
import time
from typing import Any

SKEW = float(os.environ.get("SKEW_SECONDS", "0"))
SKEW_NS = int(SKEW * 1_000_000_000)

_time, _time_ns = time.time, time.time_ns
_clock_gettime, _clock_gettime_ns = time.clock_gettime, time.clock_gettime_ns
_localtime, _gmtime, _ctime, _strftime = time.localtime, time.gmtime, time.ctime, time.strftime


def _now() -> float:
    return _time() + SKEW


def _now_ns() -> int:
    return _time_ns() + SKEW_NS


def _clock(clock: int) -> float:
    return _clock_gettime(clock) + (SKEW if clock == time.CLOCK_REALTIME else 0.0)


def _clock_ns(clock: int) -> int:
    return _clock_gettime_ns(clock) + (SKEW_NS if clock == time.CLOCK_REALTIME else 0)


class _LikeReal(type):
    """The real class's instances, as C code makes them, are ours too."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__mro__[1])

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__mro__[1])


class _SkewedDate(dt.date, metaclass=_LikeReal):
    __slots__ = ()  # C extensions check the size

    @classmethod
    def today(cls) -> Any:
        return cls.fromtimestamp(_now())


class _SkewedDatetime(dt.datetime, metaclass=_LikeReal):
    __slots__ = ()

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(_now(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.fromtimestamp(_now(), dt.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.fromtimestamp(_now())


if SKEW:
    replaced: dict[str, Any] = {
        "time": _now,
        "time_ns": _now_ns,
        "clock_gettime": _clock,
        "clock_gettime_ns": _clock_ns,
        "localtime": lambda seconds=None: _localtime(_now() if seconds is None else seconds),
        "gmtime": lambda seconds=None: _gmtime(_now() if seconds is None else seconds),
        "ctime": lambda seconds=None: _ctime(_now() if seconds is None else seconds),
        "strftime": lambda form, moment=None: _strftime(form, moment or _localtime(_now())),
    }
    for name, function in replaced.items():
        setattr(time, name, function)
    for name, kind in (("date", _SkewedDate), ("datetime", _SkewedDatetime)):
        kind.__name__ = kind.__qualname__ = name
        setattr(dt, name, kind)
