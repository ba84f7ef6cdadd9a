"""Keep leases: a thread of its own, with a connection of its own, renews what runs and notices what
is lost.

A body that is busy in Python cannot starve it; a C call that never releases the GIL can, and then
the lease runs out, the fire is re-driven elsewhere and the late result is refused: fenced,
recorded, never doubled.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from scheduler.clock import Clock
from scheduler.errors import StoreError
from scheduler.events import Events, LeaseLost
from scheduler.model.definition import Key
from scheduler.model.failures import TIMED_OUT
from scheduler.periodic.run import Run
from scheduler.store.job_lock import MAX_OVERDUE_ROWS, LockTable, Overdue

logger = logging.getLogger("scheduler")

BATCH = 1000
WATCHED_SHARE = 0.6  # of a lease, before its end; a renewed lease always has more left


class LeaseWatch:
    """Expired leases that can be reclaimed: this process has seen them unchanged for a renewal
    interval of its monotonic clock.

    The clock of the database is not enough: if it is set forward by more than a lease, every lease
    has expired while its holder is alive. Leases are watched before they expire, so the watch does
    not delay the recovery of a dead process. A released lease is reclaimable immediately.
    """

    def __init__(self, clock: Clock, *, lease: float) -> None:
        self.ahead = timedelta(seconds=lease * WATCHED_SHARE)
        self._clock = clock
        self._interval = lease / 3
        self._since: dict[Key, tuple[tuple[int, datetime, datetime], float]] = {}

    def reclaimable(self, leases: Sequence[Overdue]) -> list[Overdue]:
        """Store the present state of these leases, and return those that can be reclaimed."""
        now, found = self._clock.monotonic(), []
        since = self._since.copy() if len(leases) >= MAX_OVERDUE_ROWS else {}
        for lease in leases:
            state = (lease.fence, lease.fire_at, lease.expires_at)
            before, first = self._since.get(lease.key, (None, now))
            since[lease.key] = (state, first if state == before else now)
            unchanged = now - since[lease.key][1] >= self._interval
            if lease.expired and (lease.released or unchanged):
                found.append(lease)
        self._since = since
        return found


class Leases:
    """The leases of this process, by job. `step` renews them at a third of the lease."""

    def __init__(self, locks: LockTable, clock: Clock, events: Events, *, lease: float) -> None:
        self._locks = locks
        self._clock = clock
        self._events = events
        self.lease = lease
        self.margin = min(2.0, lease / 5)
        self._held: dict[Key, Run] = {}
        self._lock = threading.Lock()
        self._renew_at = clock.monotonic() + lease / 3
        self._wake_at = float("inf")
        self.wake: Callable[[], None] = lambda: None

    def until(self, sent: float) -> float:
        """Until when, by this machine's clock, a lease that was asked for at `sent` is surely
        ours.
        """
        return sent + self.lease - self.margin

    def add(self, runs: Iterable[Run]) -> None:
        """Keep the leases of these runs."""
        with self._lock:
            for run in runs:
                self._held[run.key] = run

    def restore(self, runs: Iterable[Run]) -> None:
        """Keep leases again whose finish got no answer; where it was committed, a later run of the
        job may hold one.
        """
        with self._lock:
            for run in runs:
                if not run.lost:
                    self._held.setdefault(run.key, run)

    def drop(self, runs: Iterable[Run]) -> None:
        """Stop keeping the leases of these runs."""
        with self._lock:
            for run in runs:
                if self._held.get(run.key) is run:
                    del self._held[run.key]

    def held(self) -> list[Run]:
        """List the runs whose leases are kept."""
        with self._lock:
            return list(self._held.values())

    def get(self, key: Key) -> Run | None:
        """Return the run of a job whose lease is kept."""
        return self._held.get(key)

    def watch(self, run: Run) -> None:
        """Take note of a deadline that begins to count."""
        if run.deadline is not None and run.deadline < self._wake_at:
            self.wake()

    def step(self) -> float:
        """Renew if it is time, then cancel what is lost or past its timeout; return the seconds
        until the next look.
        """
        # first: after a suspension a renewal would revive what is no longer trusted
        self._lose_late()
        if self._clock.monotonic() >= self._renew_at:
            self._renew()
            self._lose_late()
        now = self._clock.monotonic()
        held = self.held()
        moments = [self._renew_at]
        for run in held:
            if run.deadline is not None and not run.cancelled.causes:
                if run.deadline <= now:
                    run.cancelled.because(TIMED_OUT)
                else:
                    moments.append(run.deadline)
            moments.append(run.lease_until)
        self._wake_at = min(moments)
        return max(0.001, self._wake_at - now)

    def _lose_late(self) -> None:
        now = self._clock.monotonic()
        self._lose(
            [run for run in self.held() if run.lease_until <= now],
            "it could not be renewed in time",
        )

    def _renew(self) -> None:
        self._renew_at = self._clock.monotonic() + self.lease / 3
        held = sorted(self.held(), key=lambda run: run.key)
        try:
            for start in range(0, len(held), BATCH):
                self._renew_batch(held[start : start + BATCH])
        except StoreError as error:
            # No answer is no renewal: each lease counts down from its last good one.
            logger.warning("leases could not be renewed: %s", error)
            self._renew_at = self._clock.monotonic() + min(1.0, self.lease / 10)

    def _renew_batch(self, runs: list[Run]) -> None:
        sent = self._clock.monotonic()
        renewals = self._locks.renew(runs)
        with self._lock:
            lost: list[Run] = []
            deleted: list[Run] = []
            for run, renewal in zip(runs, renewals, strict=True):
                if renewal.kept:
                    run.lease_until = self.until(sent)
                elif self._held.get(run.key) is run:  # else it was finished meanwhile
                    (deleted if renewal.deleted else lost).append(run)
        self._lose(lost, "it went to somebody else")
        for run in deleted:
            run.lock_deleted = True
        self._lose(deleted, "its row in job_lock was deleted")

    def _lose(self, runs: list[Run], reason: str) -> None:
        self.drop(runs)
        for run in runs:
            run.lost = True
            run.cancelled.because("the lease was lost")
            told = *run.key, run.fire_at.isoformat(), reason
            logger.warning("lost the lease of %s/%s fire %s: %s", *told, extra=run.about())
            if self._events:
                self._events.emit(
                    LeaseLost(
                        tenant=run.key.tenant,
                        job_id=run.key.job_id,
                        fire_at=run.fire_at,
                        attempt=run.attempt,
                        reason=reason,
                    )
                )
