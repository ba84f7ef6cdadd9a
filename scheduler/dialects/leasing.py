"""What a dialect passes to its script with a fetch: how many jobs, the sequence numbers of their
leases, and the types that are near their limit.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from scheduler.dialects.interface import Delivery, Handled


class Fetch(NamedTuple):
    """The part of a script call that leases jobs.

    n: how many jobs at most. first: the sequence number of the first lease. limits: JSON object of
    types and how many jobs of each may be leased; empty if no type can reach its limit.
    """

    n: int = 0
    first: int = 0
    limits: bytes = b""


NO_FETCH = Fetch()


class SequenceNumbers:
    """Allocates lease sequence numbers, from 1. Thread-safe."""

    def __init__(self) -> None:
        self._next = 1
        self._lock = threading.Lock()

    def fetch(self, n: int, handled: Handled, first: int | None) -> Fetch:
        """Allocate n numbers, starting at `first` or after all numbers that were allocated."""
        if n <= 0:
            return NO_FETCH
        start = self.allocate(n, first)
        # A call leases n jobs at most, so a type with n free slots cannot reach its limit.
        limits = {name: free for name, free in handled.free.items() if free < n}
        return Fetch(n, start, orjson.dumps(limits) if limits else b"")

    def allocate(self, n: int, first: int | None) -> int:
        """Allocate n numbers, starting at `first` or after all numbers that were allocated; return
        the first of them.
        """
        with self._lock:
            start = self._next if first is None else first
            self._next = max(self._next, start + n)
        return start

    def skip(self, held: Sequence[Delivery]) -> None:
        """Do not allocate numbers of leases that are held.

        A worker that restarts under its old name still holds leases of its previous process.
        """
        last = max((delivery.sequence for delivery in held), default=0)
        with self._lock:
            self._next = max(self._next, last + 1)
