"""Whether the jobs of a queue may be taken, by its circuit breaker; asked and told by the threads of its carrier.

What counts: a success, and a failure that the next job may meet as well, temporary, timeout or system. What does not:
a cancel, a stop, a lost lease, a job without a handler, for the handler did not come to an end of its own; and a
`PermanentError`, by which a handler blames its input: bad input must not stop the good, nor show that all is well.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from scheduler.dialects.interface import Result
from scheduler.events import BreakerChanged, Events
from scheduler.log import keys
from scheduler.model.breaker import Breaker, BreakerRule, BreakerState
from scheduler.model.failures import Category
from scheduler.queueing.attempt import NOBODY, Attempt

logger = logging.getLogger("scheduler")

FAULTS = frozenset({Category.TEMPORARY, Category.TIMEOUT, Category.SYSTEM})


class Gate:
    """The breaker of one queue in one process; without a rule it is always closed, and everything may be taken.

    `changes` goes with every permit to take: jobs that come after it has changed are not to run.
    """

    def __init__(self, queue: str, rule: BreakerRule | None = None, events: Events | None = None) -> None:
        self.breaker = Breaker(rule or BreakerRule())
        self._off = rule is None
        self._queue = queue
        self._events = Events() if events is None else events
        self._lock = threading.Lock()
        self._probe: Attempt | None = None

    def pause(self) -> float:
        """Say for how long nothing may be taken; 0: something may."""
        if self._off:
            return 0.0
        with self._told() as breaker:
            return breaker.pause(time.monotonic())

    def allow(self, wanted: int) -> tuple[int, int]:
        """Say how many may be taken, and the `changes` under which they may."""
        if self._off:
            return wanted, 0
        with self._told() as breaker:
            return breaker.allow(wanted, time.monotonic()), breaker.changes

    def took(self, attempts: Sequence[Attempt], changes: int) -> bool:
        """Hear what was taken; say whether it may run."""
        if self._off:
            return True
        with self._told() as breaker:
            if breaker.changes != changes:
                return False
            if breaker.probing and self._probe is None:
                self._probe = attempts[0] if attempts else None
                breaker.probing = bool(attempts)
                return True
            return breaker.state is BreakerState.CLOSED

    def judge(self, ended: Sequence[tuple[Attempt, Result]]) -> bool:
        """Count how attempts ended; say whether that changes what may be taken."""
        if self._off:
            return False
        with self._told() as breaker:
            changes, since = breaker.changes, breaker.since
            succeeded = failed = 0
            for attempt, result in ended:
                end = result.end
                if end is None or attempt.received < since or attempt.lost or attempt.handler is NOBODY:
                    continue
                if end.category is None:
                    succeeded += 1
                elif end.category in FAULTS:
                    failed += 1
            breaker.record(succeeded, failed, time.monotonic())
            if breaker.changes != changes:
                return True
            return any(self._forget(attempt) for attempt, _ in ended) if self._probe is not None else False

    def lost(self, attempt: Attempt) -> bool:
        """Hear that an attempt is not ours any more; say whether another may be tried."""
        if attempt is not self._probe:
            return False
        with self._told():
            return self._forget(attempt)

    def late(self, attempt: Attempt) -> bool:
        """Hear that an attempt is past its timeout, for it may never end; say whether that changes anything."""
        if attempt is not self._probe:
            return False
        with self._told() as breaker:
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
    def _told(self) -> Iterator[Breaker]:
        """Hold the breaker; what changes is said aloud."""
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
                self._queue, state.name, total, failed, 100 * failed / max(total, 1),
                extra=keys(queue=self._queue),
            )  # fmt: skip
            self._events.emit(BreakerChanged(queue=self._queue, state=state))
