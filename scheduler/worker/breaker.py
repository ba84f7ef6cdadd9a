"""The circuit breaker of one queue in one worker process: which fetches it permits, what it counts.

It counts successes, and failures that the next job can meet as well: temporary, timeout and system.
It does not count cancelled and stopped attempts and lost leases, because their handlers did not
come to an end of their own. It does not count `PermanentError`, with which a handler blames its
input: bad input must not stop good input, nor prove that all is well. A job without a handler is
returned before there is a result, and is no probe either.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from scheduler.dialects.interface import Result
from scheduler.events import BreakerChanged, Events
from scheduler.log import keys
from scheduler.model.breaker import Breaker, BreakerRule
from scheduler.model.failures import Category
from scheduler.worker.attempt import Attempt

logger = logging.getLogger("scheduler")

COUNTED_FAILURES = frozenset({Category.TEMPORARY, Category.TIMEOUT, Category.SYSTEM})


class BreakerGuard:
    """Asks and informs the circuit breaker of a queue. Without a rule it permits everything.

    Jobs that were leased before the breaker opened run to their end, and do not count.
    """

    def __init__(self, queue: str, rule: BreakerRule | None, events: Events) -> None:
        self.breaker = Breaker(rule or BreakerRule())
        self._disabled = rule is None
        self._queue = queue
        self._events = events
        self._lock = threading.Lock()
        self._probe: Attempt | None = None

    def retry_in(self) -> float:
        """Return for how many seconds nothing is fetched; 0: the breaker permits a fetch."""
        if self._disabled:
            return 0.0
        with self._changing() as breaker:
            return breaker.pause(time.monotonic())

    def permits(self, slots: int) -> tuple[int, int]:
        """Return how many jobs can be fetched, and the breaker's number of changes by now."""
        if self._disabled or not slots:
            return slots, 0
        with self._changing() as breaker:
            return breaker.allow(slots, time.monotonic()), breaker.changes

    def on_fetched(self, attempts: Sequence[Attempt], changes: int) -> None:
        """Take the jobs of a permitted fetch: in a half-open breaker, the first is the probe.

        A fetch that was permitted before the breaker changed can also be answered while it is
        half-open. Its first job is the probe if there is none yet; otherwise a job that hangs past
        its timeout would count for nothing.
        """
        if self._disabled:
            return
        with self._changing() as breaker:
            if self._probe is not None:
                return
            if breaker.changes == changes and breaker.probing:
                self._probe = attempts[0] if attempts else None
                breaker.probing = bool(attempts)
            elif attempts and attempts[0].received >= breaker.since and breaker.begin_probe():
                self._probe = attempts[0]

    def record(self, attempt: Attempt, result: Result) -> bool:
        """Count a result; return whether other fetches are permitted now than before."""
        if self._disabled:
            return False
        with self._changing() as breaker:
            changes, end = breaker.changes, result.end
            is_probe = attempt is self._probe
            counts = end is not None and not attempt.lost and attempt.received >= breaker.since
            if counts and end is not None and (is_probe or not breaker.probing):
                failed = end.category in COUNTED_FAILURES
                breaker.record(int(end.category is None), int(failed), time.monotonic())
            if breaker.changes != changes:
                return True
            return self._forget(attempt)

    def on_lost(self, attempt: Attempt) -> bool:
        """Take the loss of a lease; return whether another probe is permitted."""
        if attempt is not self._probe:
            return False
        with self._changing():
            return self._forget(attempt)

    def on_timeout(self, attempt: Attempt) -> bool:
        """Count a probe that is past its timeout as failed, because it may never end."""
        if attempt is not self._probe:
            return False
        with self._changing() as breaker:
            if attempt is not self._probe:
                return False
            breaker.record(0, 1, time.monotonic())
            return True

    def _forget(self, attempt: Attempt) -> bool:
        if attempt is not self._probe:
            return False
        self._probe = None
        self.breaker.forget()
        return True

    @contextmanager
    def _changing(self) -> Iterator[Breaker]:
        """Lock the breaker; after the lock is released, log and publish a change of its state."""
        breaker = self.breaker
        with self._lock:
            changes, total, failed = breaker.changes, breaker.total, breaker.failed
            yield breaker
            changed, state = breaker.changes != changes, breaker.state
            if changed:
                self._probe = None
                total, failed = breaker.total or total, breaker.failed or failed
        if changed:
            logger.warning(
                "queue %s: circuit breaker is %s; of the last %d results %d failed (%.0f %%)",
                self._queue,
                state.name,
                total,
                failed,
                100 * failed / max(total, 1),
                extra=keys(queue=self._queue),
            )
            self._events.emit(BreakerChanged(queue=self._queue, state=state))
