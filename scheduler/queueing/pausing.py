"""Pauses of queues: a row in Postgres, which stops the feeders, and a flag in Redis, which stops
the workers.
"""

import logging
from datetime import datetime

from scheduler.errors import QueueError
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.ring import Ring
from scheduler.store.steps import Steps

logger = logging.getLogger("scheduler")

LATER = "queue %s: its workers hear of it later: %s"


class Pausing:
    """Pauses queues. The row is held while the flag is set: so the two never stay different."""

    def __init__(self, ledger: Ledger, ring: Ring) -> None:
        self._ledger = ledger
        self._ring = ring

    def pause(self, name: str) -> datetime:
        """Pause a queue, after those who feed it at the moment; return since when it is."""

        def steps() -> Steps[datetime]:
            rows = yield self._ledger.jobs.queues.of_queue("pause", name)
            try:
                self._ring.admin(name).pause()
            except QueueError as error:
                logger.warning(LATER, name, error)
            since: datetime = rows[0][0]
            return since

        return self._ledger.run(steps())

    def resume(self, name: str) -> bool:
        """Let a queue go on, and say whether it was paused."""

        def steps() -> Steps[bool]:
            rows = yield self._ledger.jobs.queues.of_queue("resume", name)
            was = bool(rows and rows[0][0])
            try:
                admin = self._ring.admin(name)
                was = admin.paused().at_all or was
                admin.resume()
            except QueueError as error:
                logger.warning(LATER, name, error)
            return was

        return self._ledger.run(steps())

    def align(self, name: str, *, paused: bool) -> None:
        """Make the flag what the row says, if it is not: Redis was away, or has lost its memory."""
        if self._agrees(name, paused=paused):
            return

        def steps() -> Steps[None]:
            rows = yield self._ledger.jobs.queues.of_queue("paused", name)
            paused_now = bool(rows and rows[0][0])
            if not self._agrees(name, paused=paused_now):
                admin = self._ring.admin(name)
                (admin.pause if paused_now else admin.resume)()
                logger.info(
                    "queue %s: Redis hears that it is %s",
                    name,
                    "paused" if paused_now else "not paused",
                )

        self._ledger.run(steps())

    def _agrees(self, name: str, *, paused: bool) -> bool:
        ours, at_all = self._ring.admin(name).paused()
        return (ours and at_all) if paused else not ours
