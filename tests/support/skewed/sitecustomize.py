"""A wrong wall clock for all code of a process, set before anything of it is imported: SKEW_SECONDS
from the truth.

Found first on PYTHONPATH, it stands in for libfaketime where that is not installed. Monotonic
clocks stay right. SKEW_FILE: eight bytes that say how wrong it is, and may change at any time.
libfaketime has that too, but with it `time.sleep` fails.
"""

import datetime as dt
import mmap
import os
import struct
import time
from functools import partial
from typing import Any

SKEW = float(os.environ.get("SKEW_SECONDS", "0"))
FILE = os.environ.get("SKEW_FILE")
_DOUBLE = struct.Struct("d")

if FILE:
    with open(FILE, "rb") as _file:  # noqa: PTH123 - as little is imported as can be
        _bytes = mmap.mmap(_file.fileno(), _DOUBLE.size, prot=mmap.PROT_READ)

_time, _time_ns = time.time, time.time_ns
_clock_gettime, _clock_gettime_ns = time.clock_gettime, time.clock_gettime_ns
_date, _datetime = dt.date, dt.datetime
_localtime, _gmtime, _ctime, _strftime = time.localtime, time.gmtime, time.ctime, time.strftime


def _skew() -> float:
    return float(_DOUBLE.unpack(_bytes)[0]) if FILE else SKEW


def _skew_ns() -> int:
    return int(_skew() * 1_000_000_000)


def _now() -> float:
    return _time() + _skew()


def _now_ns() -> int:
    return _time_ns() + _skew_ns()


def _clock(clock: int) -> float:
    return _clock_gettime(clock) + (_skew() if clock == time.CLOCK_REALTIME else 0.0)


def _clock_ns(clock: int) -> int:
    return _clock_gettime_ns(clock) + (_skew_ns() if clock == time.CLOCK_REALTIME else 0)


class _LikeReal(type):
    """The real class's instances, as C code makes them, are ours too."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__mro__[1])

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__mro__[1])


class _SkewedDate(dt.date, metaclass=_LikeReal):
    __slots__ = ()  # C extensions check the size

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return _date(*args, **kwargs)  # and its kind: no instance is ours

    @classmethod
    def today(cls) -> Any:
        return cls.fromtimestamp(_now())


class _SkewedDatetime(dt.datetime, metaclass=_LikeReal):
    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return _datetime(*args, **kwargs)

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(_now(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.fromtimestamp(_now(), dt.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.fromtimestamp(_now())


if SKEW or FILE:
    replaced: dict[str, Any] = {
        "time": _now,
        "time_ns": _now_ns,
        "clock_gettime": _clock,
        "clock_gettime_ns": _clock_ns,
        # No plain functions: as an attribute of a class, as in `logging`, they would be methods.
        "localtime": partial(
            lambda seconds=None: _localtime(_now() if seconds is None else seconds)
        ),
        "gmtime": partial(lambda seconds=None: _gmtime(_now() if seconds is None else seconds)),
        "ctime": lambda seconds=None: _ctime(_now() if seconds is None else seconds),
        "strftime": lambda form, moment=None: _strftime(form, moment or _localtime(_now())),
    }
    for name, function in replaced.items():
        setattr(time, name, function)
    for name, kind in (("date", _SkewedDate), ("datetime", _SkewedDatetime)):
        kind.__name__ = kind.__qualname__ = name
        setattr(dt, name, kind)
