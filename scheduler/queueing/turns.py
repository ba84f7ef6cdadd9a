"""Who may make a call that takes jobs: several at once, but whoever looks for what was lost is alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Counts the calls under way. Jobs are in somebody's hands when the call that took them is over."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._under_way = 0
        self._alone = False

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Make a call, beside others."""
        with self._condition:
            self._condition.wait_for(lambda: not self._alone)
            self._under_way += 1
        try:
            yield
        finally:
            with self._condition:
                self._under_way -= 1
                self._condition.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until the calls under way are over, and hold up those that follow."""
        with self._condition:
            self._condition.wait_for(lambda: not self._alone)
            self._alone = True
            self._condition.wait_for(lambda: not self._under_way)
        try:
            yield
        finally:
            with self._condition:
                self._alone = False
                self._condition.notify_all()
