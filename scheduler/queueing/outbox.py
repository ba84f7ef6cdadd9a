"""Ends of attempts on their way to Redis: gathered into batches, and kept until they are heard."""

import queue
import time
from collections.abc import Collection, Sequence

from scheduler.dialects.interface import Delivery, Note, Result
from scheduler.events import Events, JobsEnded, JobsTaken
from scheduler.model.states import State
from scheduler.queueing.attempt import Attempt

LARGEST_BATCH = 500
FEW = 100
LINGER = 0.001

Ended = tuple[Attempt, Result]


class Outbox:
    """Where attempts leave their ends, and senders take batches of them."""

    def __init__(self) -> None:
        self._ends: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._unheard: list[list[Ended]] = []

    def put(self, attempt: Attempt, result: Result) -> None:
        """Leave an end."""
        self._ends.put((attempt, result))

    def size(self) -> int:
        """Count the ends that nobody has taken, and batches that were not heard."""
        return self._ends.qsize() + len(self._unheard)

    def unheard(self, batch: list[Ended]) -> None:
        """Take back a batch that Redis may not have heard."""
        self._unheard.append(batch)

    def take(self, flight: Collection[Attempt]) -> tuple[list[Ended], bool]:
        """Take a batch that was not heard, or wait for one end and take others beside it; say whether it is new."""
        if self._unheard:
            try:
                return self._unheard.pop(), False
            except IndexError:  # the other sender was faster
                pass
        first = self._ends.get()
        batch = self._more([] if first is None else [first])
        if len(batch) < FEW < len(flight):
            time.sleep(LINGER)  # many are under way: let some of them come along
        return self._more(batch), True

    def close(self) -> None:
        """Let one sender go that waits."""
        self._ends.put(None)

    def _more(self, batch: list[Ended]) -> list[Ended]:
        while len(batch) < LARGEST_BATCH:
            try:
                more = self._ends.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._ends.put(None)  # it is for the other sender
                break
            batch.append(more)
        return batch


def tell_of(events: Events, queue: str, results: Sequence[Result], accepted: Sequence[bool], taken: int) -> None:
    """Tell whoever listens what an exchange did."""
    if taken:
        events.emit(JobsTaken(queue=queue, count=taken))
    if results:
        ends = tuple(each.end for each, ours in zip(results, accepted, strict=True) if ours and each.end)
        events.emit(JobsEnded(queue=queue, ends=ends, refused=accepted.count(False)))


def unsaid(results: Sequence[Result]) -> dict[Delivery, Note | None]:
    """Find what handlers said last and nobody has heard, of jobs that go on: their next attempts begin with it."""
    told = [each for each in results if each.note is not None]
    return {each.delivery: each.note for each in told if each.end is None or each.end.state is State.RETRYING}
