"""Time: this machine's monotonic clock, and the database's clock carried forward by it.

Postgres owns time: what is due and what has expired is decided there. Between two looks at its
clock an instance counts on with a clock that only goes forward; its own wall clock is read for one
purpose, to report how wrong it is.
"""

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

LONGEST_QUESTION = 0.5
MAX_DRIFT_S = 1.0  # between two observations, a minute apart or less

logger = logging.getLogger("scheduler")


class Clock(Protocol):
    """This machine's clocks."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; they only grow."""
        ...

    def wall(self) -> datetime:
        """Return what this machine believes the time to be."""
        ...


class SystemClock:
    """The machine's own clocks; the monotonic one counts through suspension where the system can
    (Linux).
    """

    def __init__(self) -> None:
        self._id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def monotonic(self) -> float:
        """Return seconds since boot."""
        return time.clock_gettime(self._id)

    def wall(self) -> datetime:
        """Return the system time."""
        return datetime.now(UTC)


class DatabaseClock:
    """The database's clock as this instance last saw it, counted on by the monotonic one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: tuple[datetime, float] | None = None

    def observe(
        self, moment: datetime, *, sent: float, received: float, certain: bool = False
    ) -> bool:
        """Note what the database's clock said between two local moments, unless they are too far
        apart to tell.

        A process may be suspended between question and answer; `certain` takes even that, for want
        of better.
        """
        good = received - sent <= LONGEST_QUESTION
        if good or certain:
            self._warn_of_jump(moment, sent, received)
            self._seen = (moment, (sent + received) / 2)
        return good

    def _warn_of_jump(self, moment: datetime, sent: float, received: float) -> None:
        """Log a warning if the database's clock jumped, by this machine's monotonic clock."""
        if self._seen is None:
            return
        before, at = self._seen
        jump = (moment - before).total_seconds() - ((sent + received) / 2 - at)
        if abs(jump) > MAX_DRIFT_S + (received - sent) / 2:
            logger.warning(
                "the clock of the database jumped %s by %.1f s: recurring jobs fire by it, %s; "
                "check the time synchronization of that machine",
                "forward" if jump > 0 else "back",
                abs(jump),
                "so they fire early" if jump > 0 else "so none fires until it has caught up",
            )

    def now(self) -> datetime:
        """Estimate the database's clock."""
        if self._seen is None:
            raise RuntimeError("the database's clock was never observed")
        moment, at = self._seen
        return moment + timedelta(seconds=self._clock.monotonic() - at)

    def skew(self) -> timedelta:
        """Return how far this machine's wall clock is ahead of the database's."""
        return self._clock.wall() - self.now()
