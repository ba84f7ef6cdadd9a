"""When a worker that waits should look again, by what its calls were answered; two of them may be under way at once."""

import math
import threading
import time


class NextLook:
    """The soonest moment that an answer named and no later call has looked at; on the monotonic clock."""

    def __init__(self) -> None:
        self.at = math.inf
        self._lock = threading.Lock()

    def heard(self, wait_ms: int, began: float) -> None:
        """Hear the answer of a call that began at `began`: when to look, below 0 for never.

        What was due by then this call has seen. A later moment was named by a call that may have come after it.
        """
        at = math.inf if wait_ms < 0 else time.monotonic() + wait_ms / 1000
        with self._lock:
            self.at = at if self.at <= began else min(self.at, at)
