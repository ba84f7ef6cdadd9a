"""What becomes of a body that returned or raised: its outcome, and its error as text that can be stored."""

import asyncio
import traceback
from concurrent.futures import CancelledError

from scheduler.model.body import Cancelled
from scheduler.model.job import Outcome
from scheduler.model.texts import LONGEST_ERROR, storable

TIMED_OUT = "timeout"


class Reported(Exception):
    """The error of a body, as another process described it."""


def classify(error: BaseException | None, cancelled: Cancelled) -> Outcome:
    """Name the outcome of a body that returned or raised."""
    if cancelled.reason == TIMED_OUT:
        return Outcome.TIMEOUT
    return Outcome.SUCCESS if error is None else Outcome.FAILED


def describe(error: BaseException) -> str:
    """Describe an error in at most 16 KB of storable text, whatever its author thought of."""
    if isinstance(error, Reported):
        return storable(str(error))
    if isinstance(error, CancelledError | asyncio.CancelledError):
        return "cancelled"
    try:
        return _described(error)
    except BaseException as hostile:  # noqa: BLE001 - an error whose text raises is still an error
        return storable(f"{type(error).__name__}: (its text raised {type(hostile).__name__})")


def _described(error: BaseException) -> str:
    message = str.__str__(str(error))  # a subclass may have methods of its own
    frames = "".join(traceback.format_tb(error.__traceback__, limit=-15))
    head = storable(f"{type(error).__qualname__}: {message[:LONGEST_ERROR]}", LONGEST_ERROR * 3 // 4)
    if len(message) > LONGEST_ERROR:
        head += f" [cut from {len(message)} characters]"
    return head + "\n" + storable(frames, LONGEST_ERROR // 8)
