"""Feeder: takes what is due out of `job_ready` and pushes it into Redis, in one transaction for
each batch.

Why nothing is lost or doubled: the rows are gone only when the push was answered and the
transaction commits. A crash in between leaves them, and the push that follows finds them known, or
finished. The mark of the queue is held meanwhile: whoever declares its Redis lost waits for us, or
we see that it is.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from uuid import UUID

from scheduler.dialects.interface import Queue
from scheduler.errors import EpochLost, QueueError
from scheduler.events import Events, JobsFed
from scheduler.model.fairness import FIRST, Place, Share, Waiting, shares
from scheduler.model.labels import Priority
from scheduler.model.states import State
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.ring import Ring, queued
from scheduler.store.engine import Row
from scheduler.store.job_queue import JobKey
from scheduler.store.steps import Statement, Steps

logger = logging.getLogger("scheduler")

BATCH = 1000
LOOK = 1000
MOST_WAITING = 10_000
BATCHES = 5  # of a queue, before the others have their turn
LOOK_AT_ROOM = 10.0
POLL = 1.0
FULL = 0.1


class Feeder:
    """Feeds all queues of an instance; `lost` is called with the name of a queue whose Redis has
    lost its memory.
    """

    def __init__(
        self,
        ledger: Ledger,
        ring: Ring,
        events: Events,
        *,
        now: Callable[[], datetime],
        lost: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._ring = ring
        self._events = events
        self._now = now
        self._lost = lost
        self.before: Callable[[], None] = lambda: (
            None
        )  # waits for pushes under way here, of what was committed before
        self._turns: dict[
            tuple[str, int], str
        ] = {}  # by queue and priority, the tenant that was served last
        self._from: Place = FIRST
        self._rooms: dict[
            str, tuple[dict[int, int], float]
        ] = {}  # by queue; until when it is known
        self.due_since: dict[
            str, datetime
        ] = {}  # by queue, the oldest that was due at the last look
        self.stopping = False

    def step(self) -> float:
        """Feed what is due, a batch of each queue; return when to look again."""
        known = {} if self._from == FIRST else self.due_since
        waiting = [Waiting._make(row) for row in self._ledger.rows(self._look())]
        self._from = waiting[-1].place if len(waiting) == LOOK else FIRST
        waiting = [each for each in waiting if not each.paused]
        self.due_since = _oldest([each for each in waiting if each.due], known)
        wait, failed = POLL, None
        for name, group in groupby(waiting, key=lambda each: each.queue):
            if self.stopping:
                return POLL
            due = [each for each in group if each.due]
            if not due:
                continue
            try:
                wait = min(wait, self._feed(self._ring.queue(name), due))
            except EpochLost:
                self._lost(name)
                wait = min(wait, FULL)
            except QueueError as error:
                failed = error  # the other queues may be elsewhere, or well
        if failed is not None:
            raise failed
        return 0.0 if self._from != FIRST else min(wait, self._until_next(waiting))

    def _look(self) -> Statement:
        return self._ledger.jobs.waiting(after=self._from, limit=LOOK)

    def _feed(self, queue: Queue, due: Sequence[Waiting]) -> float:
        """Feed one queue as far as there is room; return when to come back for more."""
        for _ in range(BATCHES):
            divided = shares(self._in_turn(due), self._room(queue), BATCH)
            if not divided:  # workers may have made room since we looked
                del self._rooms[queue.name]
                divided = shares(self._in_turn(due), self._room(queue), BATCH)
            if not divided:
                return FULL
            fed = self._fed(queue, divided)
            if fed != sum(share.count for share in divided):
                return 0.0 if fed is None or fed else FULL
        return 0.0

    def _room(self, queue: Queue) -> dict[int, int]:
        """Say how much more may wait in Redis: as it was when we last looked, less what we fed
        since.
        """
        room, until = self._rooms.get(queue.name, ({}, 0.0))
        if time.monotonic() >= until:
            depths = queue.depths()
            free = {int(priority): MOST_WAITING - depths.waiting[priority] for priority in Priority}
            # A little room is none, or each job that is taken from a full level would cost Postgres
            # a transaction.
            room = {
                priority: left if left >= MOST_WAITING // 10 else 0
                for priority, left in free.items()
            }
            self._rooms[queue.name] = room, time.monotonic() + LOOK_AT_ROOM
        return room

    def _fed(self, queue: Queue, divided: Sequence[Share]) -> int | None:
        """Feed a batch; return how many it was. None: the queue was met for the first time."""
        for share in divided:
            self._turns[queue.name, share.priority] = share.tenant
        fed = self._ledger.run(self._steps(queue, divided), keep=True)
        if fed is None:
            return None
        room, _ = self._rooms[queue.name]
        for _, _, _, priority, *_ in fed:
            room[priority] -= 1
        if fed:
            self._ring.say(
                (JobKey(tenant, UUID(id_)), State.SCHEDULED) for _, tenant, id_, *_ in fed
            )
        return len(fed)

    def _in_turn(self, due: Sequence[Waiting]) -> list[Waiting]:
        """Begin with the tenants that come after the one that was served last."""
        return sorted(
            due,
            key=lambda each: (
                each.priority,
                each.tenant <= self._turns.get((each.queue, each.priority), ""),
                each.tenant,
            ),
        )

    def _steps(self, queue: Queue, divided: Sequence[Share]) -> Steps[list[Row] | None]:
        began = time.monotonic()
        rows = yield self._ledger.jobs.feed(queue.name, divided)
        if not rows:
            yield self._ledger.ring.of_queue("open_queue", queue.name)
            return None
        mark, tenant, *_ = rows[0]
        if tenant is None:
            return []
        now, ours = self._now(), self._ledger.installation
        jobs = [queued(queue.name, row, ours, now) for row in rows if row[4] is not None]
        if jobs:
            self.before()
            pushing = time.monotonic()
            queue.push(jobs, epoch=str(mark), began=began)
            if self._events:
                seconds = time.monotonic() - pushing
                keys = tuple((job.tenant, job.id) for job in jobs)
                self._events.emit(
                    JobsFed(queue=queue.name, count=len(jobs), seconds=seconds, jobs=keys)
                )
        return rows

    def _until_next(self, waiting: Sequence[Waiting]) -> float:
        """Say how long until the next that is not due yet is."""
        later = [(each.run_at - self._now()).total_seconds() for each in waiting if not each.due]
        return max(0.001, min([POLL, *later]))


def _oldest(due: Sequence[Waiting], known: Mapping[str, datetime]) -> dict[str, datetime]:
    found = dict(known)
    for each in due:
        found[each.queue] = min(each.run_at, found.get(each.queue, each.run_at))
    return found
