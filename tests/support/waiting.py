"""Waiting in tests of real processes: until something is true, or until a moment has come; never
for ever.
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from scheduler.dialects.client import LONGEST_BLOCK

T = TypeVar("T")
# Seconds. A client that waits in Redis and is not woken looks again after LONGEST_BLOCK.
WOKEN = 0.8 * LONGEST_BLOCK


def wait_for(done: Callable[[], T], what: str, *, timeout: float = 60.0, every: float = 0.05) -> T:
    """Call `done` until it gives something true, and return that."""
    end = time.monotonic() + timeout
    while not (found := done()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        rest(every)
    return found


def wait_until(
    moment: datetime, meanwhile: Callable[[], object] = lambda: None, *, every: float = 0.05
) -> None:
    """Wait for a moment of the wall clock; `meanwhile` is called now and then."""
    while (left := (moment - datetime.now(UTC)).total_seconds()) > 0:
        meanwhile()
        rest(min(every, left))


def rest(seconds: float) -> None:
    """Let the processes go on for so long."""
    threading.Event().wait(seconds)
