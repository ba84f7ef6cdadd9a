"""A thread of the pool that waits for the next job of a queue: it takes it in the same round trip, and runs it."""

import time
from collections.abc import Callable, Sequence

from scheduler.dialects.interface import Delivery, Prompt
from scheduler.queueing.attempt import Attempt
from scheduler.queueing.pool import Pool

Take = Callable[[int], Sequence[Delivery]]


class Watch:
    """Of one queue, by one thread at a time; `over` is called when it has ended, before the job begins."""

    def __init__(self, prompt: Prompt | None, pool: Pool, block: float, over: Callable[[], None]) -> None:
        self._prompt = prompt
        self._pool = pool
        self._block = block
        self._over = over
        self._error: Exception | None = None
        self._under_way = False
        self.waits = False

    @property
    def possible(self) -> bool:
        """Whether one can wait for jobs and take them in one round trip."""
        return self._prompt is not None

    def begin(self, exchange: Callable[[Take], Attempt | None]) -> None:
        """Let a thread wait; `exchange` takes what there is and returns what the thread is to run."""

        def wait() -> Attempt | None:
            self._under_way = True  # before it is seen whether we drain
            try:
                return exchange(self._take)
            except Exception as error:  # noqa: BLE001 - whoever asks next hears of it
                self._error = error
                return None
            finally:
                self._under_way = self.waits = False  # in this order: another may begin once nobody waits
                self._over()

        self.waits = True
        self._pool.watch(wait)

    def check(self) -> None:
        """Raise what ended the last wait, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """Let the thread end that waits, once no more are to be taken: what it was given is in its hands then."""
        while self._prompt is not None and self._under_way:
            self._prompt.unblock()
            time.sleep(0.005)

    def _take(self, wanted: int) -> Sequence[Delivery]:
        if self._prompt is None or (taken := self._prompt.fetch_next(wanted, timeout=self._block)) is None:
            self._prompt = None
            return []
        return taken
