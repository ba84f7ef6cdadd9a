"""The way of a batch that may go straight into Redis: which of its jobs were inserted so."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from scheduler.model.submission import Draft
from scheduler.store.engine import Row
from scheduler.store.job_queue import Straight


class Way:
    """One batch: its parts in the order in which they are sent, then how each was inserted."""

    def __init__(self, straight: Straight, began: float, failures: int) -> None:
        self.straight = straight
        self.began = began  # on the monotonic clock
        self.failures = failures  # of pushes into its queue, before
        self._sent: list[Sequence[Draft]] = []
        self.parts: list[
            tuple[Sequence[Draft], datetime]
        ] = []  # those that go straight, with their created_at

    def sent(self, drafts: Sequence[Draft]) -> Straight:
        """Note a part whose statement is about to be sent; return where it would go."""
        self._sent.append(drafts)
        return self.straight

    def answered(self, answers: Iterable[Row]) -> None:
        """Hear how each part was inserted."""
        for drafts, (now, straight, *_) in zip(self._sent, answers, strict=True):
            if straight:
                self.parts.append((drafts, now))
