"""The producer: one pass through a folder, its files into queues as the original's jobs, and what
came of it.
"""

import logging
import random
import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice

from scheduler.dialects.client import Client
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.produce import Entry, Intake, Produced, entry_of
from scheduler.errors import QueueUnavailable
from scheduler.events import Event, Events, JobsProduced
from scheduler.model.files import ProducerRule, Summary
from scheduler.queueing.scan import Scan
from scheduler.sight import Sight

logger = logging.getLogger("scheduler")

BATCH = 250
FILE_QUEUE = "files"
FIRST_BACKOFF = 0.2
LAST_BACKOFF = 5.0


class Producer:
    """Queues the files of a folder that are new or have changed; `progress` is told after each
    batch.

    queue: what the workers call the queue of these keys; events of this producer name it.
    """

    def __init__(
        self,
        client: Client,
        rule: ProducerRule,
        keys: Keys,
        *,
        progress: Callable[[Summary], object] | None = None,
        queue: str = FILE_QUEUE,
    ) -> None:
        self._intake = Intake(client, rule, keys)
        self._rule = rule
        self._progress = progress or (lambda _: None)
        self._queue = queue
        self._reached = partial(client.call, "EXISTS", keys.levels[0])
        self._events = Events()

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` with every event of this producer; returns what ends it."""
        return self._events.subscribe(listener)

    def look(self, known: Collection[str] = (), others: int = 0) -> Sight:  # noqa: ARG002 - as of others
        """Look at it: it has no parts that go on by themselves, and asks for no queue's length."""
        return Sight(parts=())

    def reach(self) -> None:
        """Ask Redis for something small; raises what keeps it from answering."""
        self._reached()

    def run(self, stop: threading.Event) -> Summary:
        """Go through the folder once, until the end or until `stop` is set; wait for a Redis that
        is away.
        """
        summary = Summary()
        for batch in _batches(Scan(self._rule, summary, stop)):
            self._put(batch, summary, stop)
            if stop.is_set():
                break
        summary.finished = not stop.is_set()
        return summary

    def _put(self, batch: list[Entry], summary: Summary, stop: threading.Event) -> None:
        failures = 0
        while batch and not stop.is_set():
            try:
                done = self._intake.put(batch)
            except QueueUnavailable as error:
                pause = min(FIRST_BACKOFF * 2**failures, LAST_BACKOFF) * random.uniform(0.75, 1.25)  # noqa: S311
                failures = min(failures + 1, 10)
                logger.warning("producer: %s; trying again in %.1f s", error, pause)
                stop.wait(pause)
                continue
            failures = 0
            _count(done, summary)
            if done.queued:
                self._events.emit(JobsProduced(queue=self._queue, count=len(done.queued)))
            self._progress(summary)
            batch = done.waiting
            stop.wait(done.pause)


def _count(done: Produced, summary: Summary) -> None:
    summary.unchanged += done.unchanged
    for file in done.queued:
        summary.queued[file.priority] += 1


def _batches(scan: Scan) -> Iterator[list[Entry]]:
    files = iter(scan)
    while batch := [entry_of(file) for file in islice(files, BATCH)]:
        yield batch
