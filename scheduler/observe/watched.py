"""What can be watched: schedulers, workers and producers."""

from collections.abc import Callable, Collection
from typing import Protocol

from scheduler.events import Event
from scheduler.sight import Sight

OTHERS = 50  # queues that nobody named, that are looked at


class Watched(Protocol):
    """A scheduler, a worker or a producer."""

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` with every event; returns what ends it."""

    def look(self, known: Collection[str] = (), others: int = 0) -> Sight:
        """Look at the parts, and in Redis at the known queues and some others."""

    def reach(self) -> None:
        """Ask the servers for something small; raises what keeps one of them from answering."""
