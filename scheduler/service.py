"""The only loop in the system: one named thread that calls `step`, sleeps as long as it says, and
survives it.
"""

import contextlib
import gc
import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from scheduler.errors import QueueUnavailable, SchedulerError, StoreUnavailable

logger = logging.getLogger("scheduler")

FIRST_BACKOFF = 1.0
LAST_BACKOFF = 15.0
GARBAGE = 50_000
ECHO = 0.2  # seconds
LONGEST_DEAFNESS = 0.1
T = TypeVar("T")


class Asked:
    """Counts the signals that ask a process to end. `timeout` sends its own twice: an echo does not
    count.
    """

    def __init__(self) -> None:
        self._times = 0
        self._last = -ECHO

    def heard(self) -> int:
        """Count a signal; return which it is, from 1, or 0 for an echo."""
        now = time.monotonic()
        if now - self._last < ECHO:
            return 0
        self._last = now
        self._times += 1
        return self._times


def heard(signals: "queue.SimpleQueue[T]") -> T:
    """Wait for what the handler of a signal puts in.

    Python calls handlers between two lines of the main thread: of a signal that came when it was
    about to wait it would hear once the wait is over. So none is long.
    """
    while True:
        with contextlib.suppress(queue.Empty):
            return signals.get(timeout=LONGEST_DEAFNESS)


def collect_rarely() -> None:
    """Collect garbage as it suits a process that does nothing else: imports stay, and jobs make
    much that soon goes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


class Service:
    """Calls `step()` until stopped; `step` returns the seconds until it wants to be called again
    (None: when woken).

    A step that raises is logged and tried again after a capped, jittered backoff, for ever; or
    sooner when woken, but not within a second.
    """

    def __init__(
        self, name: str, step: Callable[[], float | None], *, last_backoff: float = LAST_BACKOFF
    ) -> None:
        self.name = name
        self._step = step
        self._last_backoff = last_backoff
        self._condition = threading.Condition()
        self._woken = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._ended = False
        self._error = ""
        self.failures = 0
        self.passed = time.monotonic()  # when a step last went well

    def start(self) -> None:
        """Start the thread."""
        self.passed = time.monotonic()
        self._thread = threading.Thread(
            target=self._loop, name=f"scheduler-{self.name}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Let the next step come at once."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def stop(self, timeout: float | None = None) -> bool:
        """Ask the thread to end and wait for it; say whether it did."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def works(self) -> None:
        """Note that it works again, from a step that does not return while it does."""
        self.failures = 0
        self.passed = time.monotonic()

    @property
    def trouble(self) -> str | None:
        """Why it does not work; None: it does."""
        if self._ended and not self._stopping:
            return "its thread has ended"
        return self._error if self.failures else None

    @property
    def stopping(self) -> bool:
        """Whether the service was asked to end."""
        return self._stopping

    def _loop(self) -> None:
        try:
            while not self._stopping:
                delay = self._attempt()
                with self._condition:
                    if (
                        self.failures and delay
                    ):  # who wakes it does not know that, and may do so all the time
                        least = min(delay, FIRST_BACKOFF)
                        self._condition.wait_for(lambda: self._stopping, least)
                        delay -= least
                    if not self._woken and not self._stopping:
                        self._condition.wait(delay)
                    self._woken = False
        finally:
            self._ended = True  # Thread.is_alive() is also false of one that is about to start

    def _attempt(self) -> float | None:
        try:
            delay = self._step()
        except Exception as error:
            if self._stopping:
                return None  # what it worked with is being closed
            self._error = str(error) if isinstance(error, SchedulerError) else type(error).__name__
            self.failures += 1
            backoff = min(FIRST_BACKOFF * 2.0 ** min(self.failures - 1, 10), self._last_backoff)
            backoff *= random.uniform(0.75, 1.25)  # noqa: S311 - spreads instances, protects nothing
            if isinstance(error, StoreUnavailable | QueueUnavailable):
                logger.warning("%s: %s; trying again in %.1f s", self.name, error, backoff)
            else:
                logger.exception("%s failed; trying again in %.1f s", self.name, backoff)
            return backoff
        if self.failures:
            logger.info("%s works again after %d failed steps", self.name, self.failures)
            self.failures = 0
        self.passed = time.monotonic()
        return delay
