"""What becomes of a body that returned or raised: its outcome, and its error as text that can be
stored.
"""

import asyncio
import traceback
from concurrent.futures import CancelledError
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from scheduler.errors import PermanentError, SchedulerError, TemporaryError
from scheduler.model.body import Cancelled
from scheduler.model.durations import duration
from scheduler.model.outcomes import Outcome
from scheduler.model.texts import LONGEST_ERROR, storable

TIMED_OUT = "timeout"
ASKED_TO_CANCEL = "cancelled"


class Reported(Exception):
    """The error of a body, as another process described it."""


class Category(StrEnum):
    """Why an attempt of a submitted job failed; each failure has exactly one."""

    TEMPORARY = "temporary"
    PERMANENT = "permanent"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How an attempt failed: what the retry decision and the ledger need to know."""

    category: Category
    message: str
    code: str = ""
    retry_after: timedelta | None = None


def classify(error: BaseException, cancelled: Cancelled) -> Failure:
    """Put a failed attempt into its category; an exception that says nothing of itself is
    temporary.
    """
    message = describe(error)
    if TIMED_OUT in cancelled.causes:
        return Failure(category=Category.TIMEOUT, message=message)
    if ASKED_TO_CANCEL in cancelled.causes:
        return Failure(category=Category.CANCELLED, message=message)
    if isinstance(error, PermanentError):
        return Failure(
            category=Category.PERMANENT, message=message, code=storable(str(error.code), 200)
        )
    if isinstance(error, TemporaryError):
        return Failure(
            category=Category.TEMPORARY, message=message, retry_after=_wait(error.retry_after)
        )
    if isinstance(error, MemoryError | SystemExit | KeyboardInterrupt):
        return Failure(category=Category.SYSTEM, message=message)
    return Failure(category=Category.TEMPORARY, message=message)


def _wait(retry_after: object) -> timedelta | None:
    """Read what a handler asked for; what makes no sense is no wish."""
    try:
        return None if retry_after is None else duration(retry_after, name="retry_after")
    except SchedulerError:
        return None


def outcome_of(error: BaseException | None, cancelled: Cancelled) -> Outcome:
    """Name the outcome of a body that returned or raised."""
    if TIMED_OUT in cancelled.causes:
        return Outcome.TIMEOUT
    return Outcome.SUCCESS if error is None else Outcome.FAILED


def describe(error: BaseException) -> str:
    """Describe an error in at most 16 KB of storable text, whatever its author thought of."""
    if isinstance(error, Reported):
        return storable(str(error))
    if isinstance(error.__cause__, Reported):  # a failure that a handler in another process named
        return storable(str(error.__cause__))
    if isinstance(error, CancelledError | asyncio.CancelledError):
        return "cancelled"
    try:
        return _described(error)
    except BaseException as hostile:  # noqa: BLE001 - an error whose text raises is still an error
        return storable(f"{type(error).__name__}: (its text raised {type(hostile).__name__})")


def named(described: str) -> str:
    """Name an error that `describe` described, without its text: that may quote what nobody should
    read in a log.
    """
    return described.partition("\n")[0].partition(":")[0]


def _described(error: BaseException) -> str:
    message = str.__str__(str(error))  # a subclass may have methods of its own
    frames = "".join(traceback.format_tb(error.__traceback__, limit=-15))
    head = storable(
        f"{type(error).__qualname__}: {message[:LONGEST_ERROR]}", LONGEST_ERROR * 3 // 4
    )
    if len(message) > LONGEST_ERROR:
        head += f" [cut from {len(message)} characters]"
    return head + "\n" + storable(frames, LONGEST_ERROR // 8)
