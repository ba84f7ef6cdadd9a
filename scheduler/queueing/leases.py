"""Whether the jobs in a worker's hands are still its own: Redis is asked in time, and whenever it failed us.

A call that fails, or an end that is refused, may mean that Redis has forgotten us: what runs goes on, but what has not
begun waits until Redis was asked, so that no job begins whose end would not be taken.
"""

import threading
from collections.abc import Callable, Collection
from datetime import timedelta

from scheduler.dialects.interface import About, Queue, Renewed
from scheduler.errors import QueueError
from scheduler.model.failures import ASKED_TO_CANCEL
from scheduler.queueing.attempt import LEASE_LOST, Attempt, Tie
from scheduler.queueing.pool import Pool


class Leases:
    """The leases of one queue's jobs.

    A call notes the `tie` before it is made, and what it brings is bound to that. Whoever hears of a failure breaks it
    and puts another in its place: an answer that may be older than the failure proves nothing after it, and what it
    brings is asked for again.
    """

    def __init__(self, queue: Queue, pool: Pool, doubted: Callable[[], None]) -> None:
        self._queue = queue
        self._pool = pool
        self._doubted = doubted
        self._lock = threading.Lock()
        self.tie = self._asked = Tie()
        self._late = False  # something was brought that is bound to a broken tie

    @property
    def doubtful(self) -> bool:
        """Whether Redis is to be asked at once."""
        return self._late or self._asked is not self.tie

    def doubt(self) -> None:
        """Hear that Redis may have forgotten what is ours."""
        self._break()
        self._doubted()

    def heard(self, accepted: Collection[bool]) -> None:
        """Hear which ends Redis took: where one was refused, others may not be ours either."""
        if not all(accepted):
            self.doubt()
        elif self.doubtful:
            self._doubted()  # it answers again

    def brought(self, tie: Tie) -> None:
        """Hear that a call brought jobs, once they are in our hands; `tie`: which held when it was made."""
        if not tie.holds:
            self._late = True
            self._doubted()

    def renew(self, flight: Collection[Attempt], lease: timedelta, about: About | None) -> list[Attempt]:
        """Keep what is in our hands, and pass on what handlers said; return what is not ours any more."""
        self._late = False  # before we look: who comes after that asks again
        tie, attempts = self.tie, list(flight)  # in this order: a tie that breaks in between is asked for again
        notes = {attempt.delivery: attempt.note if attempt.said else None for attempt in attempts}
        try:
            answers = self._queue.renew(notes, lease=lease, about=about)
        except QueueError:
            self._break()  # we try again by ourselves
            raise
        lost = []
        for attempt, answer in zip(attempts, answers, strict=True):
            attempt.heard(notes[attempt.delivery])
            if answer is Renewed.LOST and attempt in flight:
                attempt.lost = True
                attempt.cancelled.because(LEASE_LOST)
                lost.append(attempt)
            elif answer is Renewed.CANCEL:
                attempt.cancelled.because(ASKED_TO_CANCEL)
            attempt.tie = tie  # the last: it may begin now
        self._asked = tie
        self._pool.look_again()
        return lost

    def _break(self) -> None:
        with self._lock:
            self.tie.holds, self.tie = False, Tie()
