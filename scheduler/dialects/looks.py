"""When a worker that waits should look again, by what its calls were answered; two of them may be
under way at once.

A fetch that passes over jobs of full types leaves them in the queue, and the signal for waiting
workers set: another worker may have a slot for them. If this worker waited for the signal, it would
receive its own, pass over the same jobs and set the signal again, as fast as Redis answers. So it
waits for nothing but time, PASSED_MS, and fetches again. Meanwhile the signal stays for the other
workers. The worker's own slots need no signal: it fetches when it finishes a job.

A worker that returned a job for whose type it has no handler fetches YIELD_MS after the job is due.
If it fetched at that moment, it could be the first each time, before a slower worker that has a
handler.
"""

import contextlib
import math
import threading
import time
from collections.abc import Iterator

PASSED_MS = 100
YIELD_MS = 250
YIELD_FOR_S = 120.0  # longer than a returned job is delayed
MIN_WAIT_S = 0.005  # 0 would block for ever, and in Redis 6.2 so would 0.001
TOLERANCE_S = 0.05  # by which a wait can end too late: answers round to milliseconds


class NextLook:
    """The soonest moment that an answer named and no later call has looked at; on the monotonic
    clock. passed_over: the last fetch passed over jobs, so the worker must not wait for the signal.
    """

    def __init__(self) -> None:
        self.at = math.inf
        self.passed_over = False
        self._yields_until = -math.inf
        self._waits_until = -math.inf  # the end of the wait that is in progress
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def waiting(self, end: float, longest: float) -> Iterator[float]:
        """Yield the number of seconds to wait for a signal: up to `longest`, until `end` or the
        next look.
        """
        now = time.monotonic()
        with self._lock:
            self._waits_until = min(end, self.at, now + longest)
        try:
            yield max(self._waits_until - now, MIN_WAIT_S)
        finally:
            self._waits_until = -math.inf

    def outlasted(self) -> float:
        """Return when the next look is due while a longer wait for a signal is in progress.

        The wait began before an answer named that moment. Infinite: there is no such look.
        """
        with self._lock:
            return self.at if self.at + TOLERANCE_S < self._waits_until else math.inf

    def yield_to_others(self) -> None:
        """Let other workers be the first to take jobs that become due."""
        self._yields_until = time.monotonic() + YIELD_FOR_S

    def heard(self, wait_ms: int, began: float, passed: int = 0) -> None:
        """Hear the answer of a call that began at `began`: when to look, below 0 for never, and how
        many jobs it passed over.

        What was due by then this call has seen. A later moment was named by a call that may have
        come after it.
        """
        if wait_ms >= 0 and self._yields_until > time.monotonic():
            wait_ms += YIELD_MS
        if passed:
            wait_ms = min(wait_ms, PASSED_MS) if wait_ms >= 0 else PASSED_MS
        at = math.inf if wait_ms < 0 else time.monotonic() + wait_ms / 1000
        with self._lock:
            self.at = at if self.at <= began else min(self.at, at)
            self.passed_over = passed > 0
