"""The loop: sync every minute, claim what is due, rescue what died, sleep until the next of
these.
"""

import math
import random
from collections.abc import Callable, Sequence

from scheduler.clock import Clock, DatabaseClock
from scheduler.periodic.claim import Claimer
from scheduler.periodic.registry import Registry
from scheduler.periodic.run import Runner
from scheduler.periodic.sync import Sync

SHORTEST_SYNC = 1.0
SYNC_SHARE = 10.0  # of the time between two requested syncs, at most a tenth is spent in them
RESCUE_MORE_S = 0.2
WAKE_JITTER = (0.0005, 0.004)


class Loop:
    """One pass is one `step`; it returns the seconds until there is something to do."""

    def __init__(
        self,
        *,
        sync: Sync,
        beat: Callable[[], None],
        claimer: Claimer,
        registry: Registry,
        runner: Runner,
        clock: Clock,
        database_clock: DatabaseClock,
        tenants: Callable[[], Sequence[str] | None],
        sync_every: float,
        rescue_every: float,
    ) -> None:
        self._sync = sync
        self._beat = beat
        self._claimer = claimer
        self._registry = registry
        self._runner = runner
        self._clock = clock
        self._database_clock = database_clock
        self._tenants = tenants
        self._sync_every = sync_every
        self._rescue_every = rescue_every
        self._sync_at = 0.0
        self._synced_at = float("-inf")
        self._pause = SHORTEST_SYNC
        self._rescue_at = 0.0
        self._beat_at = 0.0
        self.starved = False  # there was no room for something due: wake when a run ends
        self.stopping = False

    def sync_soon(self) -> None:
        """Sync at the next step, at most once a second, and the less often the longer it takes."""
        self._sync_at = min(
            self._sync_at, max(self._clock.monotonic(), self._synced_at + self._pause)
        )

    def sync_now(self) -> None:
        """Sync at the next step."""
        self._sync_at = 0.0

    def beat_soon(self) -> None:
        """Say at the next step what this instance can run."""
        self._beat_at = 0.0

    def step(self) -> float:
        """Do what is due now."""
        if self.stopping:
            return 1.0
        now = self._clock.monotonic()
        if now >= self._sync_at:
            # Set before reading: a request that comes while we read is for the next one.
            self._sync_at = now + self._sync_every * random.uniform(0.9, 1.0)  # noqa: S311 - spreads instances
            try:
                self._sync.sync()
            except BaseException:
                self.sync_now()
                raise
            self._synced_at = self._clock.monotonic()
            self._pause = max(SHORTEST_SYNC, SYNC_SHARE * (self._synced_at - now))
            self._beat_at = now
        release_at = self._runner.release_at()
        if release_at is not None and release_at <= now:
            self._claimer.release_waiting()
        self._claimer.claim()
        if now >= self._beat_at:
            self._beat_at = float("inf")  # until the next sync, or the next registration
            self._beat()
        if self._claimer.stale:
            self._claimer.stale = False
            self.sync_soon()
        if now >= self._rescue_at and not self.stopping:
            self._rescue_at = now + self._rescue_every * random.uniform(0.8, 1.0)  # noqa: S311
            if self._claimer.rescue(self._tenants()):
                self._rescue_at = min(self._rescue_at, now + RESCUE_MORE_S)
        return self._delay()

    def _delay(self) -> float:
        now = self._clock.monotonic()
        delay = min(self._sync_at, self._rescue_at, self._runner.release_at() or math.inf) - now
        following = self._registry.next_due()
        if following is not None:
            until = (following - self._database_clock.now()).total_seconds()
            if until <= 0 and self._runner.room() == 0:
                self.starved = True
                if self._runner.room() == 0:  # else a run ended just before `starved` was set
                    return max(0.0, delay)
            delay = min(delay, until + random.uniform(*WAKE_JITTER))  # noqa: S311
        return max(0.0, delay)
