"""Upkeep: what puts right whatever Redis lost or time has ended. Every instance does it; rows are
claimed, not parts.

Lost memory: a queue's mark is gone, and all that was fed is fed again. A lost job: fed, silent for
longer than it may be, and unknown to Redis. Cancels that could not be said at once, lifetimes, and
edges that a race left behind. Jobs of dead workers, which are reclaimed even if no worker lives.
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from scheduler.dialects.interface import Queue
from scheduler.errors import QueueError, QueueUnavailable, SchedulerError
from scheduler.events import Events, JobsExpired, JobsFedAgain, RedisLost
from scheduler.log import keys
from scheduler.model.durations import duration, microseconds
from scheduler.model.policies import TIMEOUTS
from scheduler.model.retries import Backoff
from scheduler.model.states import EXPIRED, State
from scheduler.queueing.ending import Ended, end, propagate
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.pausing import Pausing
from scheduler.queueing.ring import GONE, Ring
from scheduler.queueing.tenants import Tenants
from scheduler.recovery import recover
from scheduler.store.job_queue import Ending, JobKey
from scheduler.store.ring import NIL, NOBODY
from scheduler.store.steps import Steps

logger = logging.getLogger("scheduler")

EVERY = 1.0
SOME = 500
SWEPT = 2000
SWEEP_EVERY = 2  # steps
# Not long after it was fed a job is asked about too, in microseconds from and to: its submitter may
# have died before it pushed it, or Redis lost its last second.
YOUNG_US = (10_000_000, 60_000_000)
DEADLINE = 60.0
CANCELLED = "cancelled"


class Upkeep:
    """Looks after all queues of the installation.

    `found` is called with the name of each, `marked` with its mark if Redis has it too, else with
    None. `backoffs`: custom backoffs of this process.
    """

    def __init__(
        self,
        ledger: Ledger,
        ring: Ring,
        events: Events,
        found: Callable[[str], None],
        marked: Callable[[str, int | None], None] = lambda *_: None,
        *,
        backoffs: Mapping[str, Backoff] | None = None,
    ) -> None:
        self._ledger = ledger
        self._ring = ring
        self._events = events
        self._found = found
        self._marked = marked
        self._steps = 0
        self._at = NOBODY
        self._edge = (NOBODY, NIL)
        self._asked: tuple[datetime | None, JobKey] = (None, NOBODY)
        self._pausing = Pausing(ledger, ring)
        self._tenants = Tenants(ledger.databases, ledger.jobs, ring)
        self._backoffs = backoffs or {}
        self._queues: list[str] = []
        self._recover_at = 0.0

    def step(self) -> float:
        """Look after everything once; what fails does not keep the rest from it."""
        failed: SchedulerError | None = None
        self._steps += 1
        sweeps = (self.sweep, self.sweep_edges) if self._steps % SWEEP_EVERY == 0 else ()
        for part in (self.marks, self.pauses, self.asked, self.recover, *sweeps):
            try:
                part()
            except QueueError as error:
                failed = error
        if failed is not None:
            raise failed
        return EVERY

    def marks(self) -> None:
        """Feed all of a queue again whose Redis has lost its memory."""
        epochs = self._ledger.rows(self._ledger.ring.epochs())
        self._queues = [name for name, _ in epochs]
        for name, epoch in epochs:
            self._found(name)
            queue = self._ring.queue(name)
            mark = queue.epoch()
            self._marked(name, epoch if mark == str(epoch) else None)
            if mark == str(epoch):
                continue
            known = int(mark) if mark is not None and mark.isdigit() else 0
            self._ledger.run(self._feed_all_again(queue, epoch, known), deadline=DEADLINE)

    def pauses(self) -> None:
        """Pause in Redis what is paused in Postgres, and let the rest go on: whoever asked may not
        have got through.
        """
        paused_tenants = self._tenants.paused()
        for name, paused in self._ledger.rows(self._ledger.jobs.queues.pauses()):
            self._pausing.align(name, paused=paused)
            self._tenants.reconcile(name, paused_tenants)

    def recover(self) -> None:
        """Reclaim the jobs of dead workers, of all queues, once in each interval.

        A queue without dead workers costs one short call.
        """
        now = time.monotonic()
        if now < self._recover_at:
            return
        # Jitter, so that instances do not check at the same moment.
        interval = self._ring.reaper.interval.total_seconds()
        self._recover_at = now + interval * random.uniform(0.75, 1.25)  # noqa: S311
        failed: QueueError | None = None
        for name in self._queues:
            try:
                recover(self._ring.queue(name), self._events, self._backoffs)
            except QueueUnavailable:
                raise  # so are the other queues
            except QueueError as error:
                failed = error
        if failed is not None:
            raise failed

    def asked(self) -> None:
        """End jobs that somebody wants to end, if no worker has them or by force; ask the worker if
        one has.
        """
        rows = self._ledger.rows(self._ledger.ring.asked(after=self._asked, limit=SOME))
        # Those whose handlers do not heed it are asked again and again: others have their turn.
        self._asked = (rows[-1][5], JobKey(*rows[-1][:2])) if len(rows) == SOME else (None, NOBODY)
        for forced in (False, True):
            jobs = [
                (JobKey(*key), queue, why or CANCELLED)
                for *key, queue, why, how, _ in rows
                if how is forced
            ]
            self._end(jobs, State.CANCELLED, forced=forced)

    def sweep(self) -> None:
        """Look at some jobs at a time: feed those again that Redis does not know, end those past
        their lifetime.
        """
        visibility = microseconds(duration(TIMEOUTS.visibility, name="visibility"))
        look = self._ledger.ring.sweep(
            after=self._at, visibility_us=visibility, young_us=YOUNG_US, limit=SWEPT
        )
        rows = self._ledger.rows(look)
        self._at = JobKey(rows[-1][0], rows[-1][1]) if len(rows) == SWEPT else NOBODY
        jobs = [(JobKey(tenant, id_), *others) for tenant, id_, *others in rows]
        self._expire(
            [(key, queue, waits) for key, queue, _, _, _, expired, waits in jobs if expired]
        )
        silent: dict[str, list[tuple[JobKey, int]]] = {}
        for key, queue, feed, is_silent, is_young, expired, _ in jobs:
            if (is_silent or (is_young and self._ring.exact(queue))) and not expired:
                silent.setdefault(queue, []).append((key, feed))
        for name, feeds in silent.items():
            known = self._ring.queue(name).known([str(key.id) for key, _ in feeds])
            lost = [feed for feed, each in zip(feeds, known, strict=True) if each is None]
            again = self._ledger.rows(self._ledger.ring.feed_again(lost)) if lost else []
            if again:  # if not, they have ended meanwhile
                said = "queue %s: %d jobs that Redis does not know are fed again"
                logger.warning(said, name, len(again), extra=keys(queue=name))
                self._events.emit(JobsFedAgain(queue=name, count=len(again)))

    def _expire(self, jobs: Sequence[tuple[JobKey, str, bool]]) -> None:
        endings = [
            Ending(key=key, state=State.DEAD_LETTER, reason=EXPIRED)
            for key, _, waits in jobs
            if waits
        ]
        ended: list[tuple[JobKey, State]] = []
        if endings:
            ended, _ = self._ledger.run(end(self._ledger.jobs, endings), deadline=DEADLINE)
            self._ring.say(ended)
        ended += self._end(
            [(key, queue, EXPIRED) for key, queue, waits in jobs if not waits],
            State.DEAD_LETTER,
            forced=True,
        )
        queues = {key: queue for key, queue, _ in jobs}
        for queue, count in Counter(queues[key] for key, _ in ended if key in queues).items():
            self._events.emit(JobsExpired(queue=queue, count=count))

    def sweep_edges(self) -> None:
        """Do what the end of a job should have done for those that wait for it, some at a time."""
        after, depends_on = self._edge
        rows = self._ledger.rows(
            self._ledger.ring.sweep_edges(after=after, depends_on=depends_on, limit=SWEPT)
        )
        last = rows[-1] if len(rows) == SWEPT else ("", NIL, NIL, False)
        self._edge = (JobKey(last[0], last[1]), last[2])
        over = {JobKey(tenant, depends) for tenant, _, depends, is_over in rows if is_over}
        if over:
            self._ledger.run(propagate(self._ledger.jobs, sorted(over)), deadline=DEADLINE)

    def _end(
        self, jobs: Sequence[tuple[JobKey, str, str]], state: State, *, forced: bool = False
    ) -> list[tuple[JobKey, State]]:
        over: list[tuple[JobKey, State]] = []
        by_queue: dict[str, dict[JobKey, str]] = {}
        for key, queue, reason in jobs:
            by_queue.setdefault(queue, {})[key] = reason
        for queue, reasons in by_queue.items():
            ended = self._ledger.run(
                self._ended(queue, reasons, state, forced=forced), deadline=DEADLINE
            )
            self._ring.say(ended.jobs)
            over += ended.jobs
        return over

    def _ended(
        self, queue: str, reasons: dict[JobKey, str], state: State, *, forced: bool
    ) -> Steps[Ended]:
        """End the jobs that Redis gives back or does not know; `forced`: also from workers.

        Redis is asked first, while the rows are locked. Whoever dies in between leaves the rows as
        they were, and the next step finds the jobs unknown. Redis is asked about jobs that wait to
        be fed as well: a feeder that could not commit may have pushed them. A job with a result is
        left to the settler, which compares the time of the result with the lifetime.
        """
        held = [JobKey(*row) for row in (yield self._ledger.ring.hold_all(reasons))]
        if not held:
            return Ended([], freed=False)
        yield self._ledger.ring.take_back_all(held)
        answers = self._ring.queue(queue).cancel([str(key.id) for key in held], force=forced)
        return (
            yield from end(
                self._ledger.jobs,
                [
                    Ending(key=key, state=state, reason=reasons[key])
                    for key, answer in zip(held, answers, strict=True)
                    if answer in GONE
                ],
            )
        )

    def _feed_all_again(self, queue: Queue, epoch: int, known: int) -> Steps[None]:
        """Feed all of a queue again. The mark is set before the commit: who sees the new row must
        not miss the mark.
        """
        name = queue.name
        if not (yield self._ledger.ring.of_queue("seize_epoch", name, epoch=epoch)):
            return
        after, again = NOBODY, 0
        while rows := (yield self._ledger.ring.feed_all_again(name, after=after, limit=SWEPT)):
            again += sum(lost for _, _, lost in rows)
            after = JobKey(rows[-1][0], UUID(str(rows[-1][1])))
        rows = yield self._ledger.ring.of_queue("next_epoch", name, known=known)
        queue.begin(str(rows[0][0]))
        if epoch or again:
            level = logging.WARNING if again else logging.INFO
            said = (
                "queue %s: Redis lost the data of the queue; %d jobs are fed again. If this "
                "repeats, check that every instance has the same `redis` and `queues`"
            )
            logger.log(level, said, name, again, extra=keys(queue=name))
            self._events.emit(RedisLost(queue=name, jobs=again))
