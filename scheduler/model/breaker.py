"""A circuit breaker: whether work may be taken, by how the last of it ended. Time is passed in, in
seconds.
"""

import math
from collections import deque
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum

from scheduler.errors import ConfigError
from scheduler.model.durations import duration

# of the window: results leave it a part at a time, so it costs the same however many there are
PARTS = 60


class BreakerState(IntEnum):
    """CLOSED: work is taken. OPEN: none is. HALF_OPEN: one piece of it is, to see how it ends."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2

    @property
    def word(self) -> str:
        """How programs and people call it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRule:
    """When a worker stops taking the jobs of a queue, and when it tries again.

    failure_threshold: the part of the results in `window` that failed, from which on nothing is
    taken; it counts once there are `min_samples`. cooldown_period: how long nothing is taken,
    before one job is tried.
    """

    failure_threshold: float = 0.5
    window: timedelta | str = timedelta(minutes=1)
    cooldown_period: timedelta | str = timedelta(seconds=30)
    min_samples: int = 20

    def checked(self) -> "BreakerRule":
        """Check every part; raises with the name of the wrong one."""
        part: object = self.failure_threshold
        if isinstance(part, bool) or not isinstance(part, int | float) or not 0 < part <= 1:
            raise ConfigError(
                f"breaker: failure_threshold must be a number above 0, at most 1, not {part!r}"
            )
        least: object = self.min_samples
        if isinstance(least, bool) or not isinstance(least, int) or least < 1:
            raise ConfigError(f"breaker: min_samples must be a number from 1, not {least!r}")
        return replace(
            self,
            window=duration(self.window, name="breaker: window", error=ConfigError),
            cooldown_period=duration(
                self.cooldown_period, name="breaker: cooldown_period", error=ConfigError
            ),
        )


class Breaker:
    """The state of one; `since`: when it last changed, `changes` and `trips`: how often, and how
    often it opened.
    """

    def __init__(self, rule: BreakerRule) -> None:
        rule = rule.checked()
        self._threshold = rule.failure_threshold
        self._least = rule.min_samples
        self._part = duration(rule.window, name="window").total_seconds() / PARTS
        self._cooldown = duration(rule.cooldown_period, name="cooldown_period").total_seconds()
        self._parts: deque[list[int]] = deque()  # number of the part, results, failures
        self.state = BreakerState.CLOSED
        self.since = -math.inf
        self.changes = 0
        self.trips = 0
        self.probing = False
        self.total = 0  # results in the window, when it was last looked at
        self.failed = 0

    def pause(self, now: float) -> float:
        """Say for how many seconds nothing may be taken: 0 when something may, inf while the probe
        is under way.
        """
        if self.state is BreakerState.OPEN and now >= self.since + self._cooldown:
            self._change(BreakerState.HALF_OPEN, now)
        if self.state is BreakerState.OPEN:
            return self.since + self._cooldown - now
        return math.inf if self.probing else 0.0

    def left(self, now: float) -> float | None:
        """Say in how many seconds an open breaker lets something be tried; None: it is not open."""
        return (
            max(0.0, self.since + self._cooldown - now) if self.state is BreakerState.OPEN else None
        )

    def allow(self, wanted: int, now: float) -> int:
        """Say how many may be taken now; one of a half-open breaker is its probe, until it is
        recorded or forgotten.
        """
        if wanted <= 0 or self.pause(now) > 0:
            return 0
        if self.state is BreakerState.CLOSED:
            return wanted
        self.probing = True
        return 1

    def begin_probe(self) -> bool:
        """Make a job that was not asked for the probe; return False if none is needed."""
        if self.state is not BreakerState.HALF_OPEN or self.probing:
            return False
        self.probing = True
        return True

    def forget(self) -> None:
        """Note that the probe says nothing: another may be taken."""
        self.probing = False

    def record(self, succeeded: int, failed: int, now: float) -> None:
        """Count results; of a half-open breaker that of its probe, and an open one does not listen.

        Whoever calls leaves out what was taken before the last change: how it ends is no news.
        """
        if not succeeded + failed:
            return
        if self.state is BreakerState.CLOSED:
            self._count(succeeded, failed, int(now // self._part))
            if self.total >= self._least and self.failed / self.total >= self._threshold:
                self._change(BreakerState.OPEN, now)
        elif self.probing:
            self._change(BreakerState.OPEN if failed else BreakerState.CLOSED, now)

    def _count(self, succeeded: int, failed: int, part: int) -> None:
        while self._parts and self._parts[0][0] <= part - PARTS:
            _, results, failures = self._parts.popleft()
            self.total -= results
            self.failed -= failures
        if not self._parts or self._parts[-1][0] != part:
            self._parts.append([part, 0, 0])
        self._parts[-1][1] += succeeded + failed
        self._parts[-1][2] += failed
        self.total += succeeded + failed
        self.failed += failed

    def _change(self, state: BreakerState, now: float) -> None:
        self.state = state
        self.since = now
        self.changes += 1
        self.probing = False
        if state is BreakerState.OPEN:
            self.trips += 1
        if state is BreakerState.CLOSED:  # what failed before would open it again at once
            self._parts.clear()
            self.total = self.failed = 0
