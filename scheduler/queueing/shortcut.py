"""Shortcut: jobs that were submitted in a transaction of our own go straight into Redis after its
commit.

Few are there when `submit` returns. Many are pushed while their submitter goes on, to its next
batch perhaps; whoever pushes waits for those before.

Why nothing is lost or doubled: the statement that inserts jobs decides whether they go straight,
and then makes no rows for the feeders, so one pushes them, once. What is not pushed, or not
answered, is left to the feeders as it is, and a queue that has it knows it. Who dies in between
leaves jobs that Redis does not know: upkeep asks about all that are young, and by then Redis
refuses the push of one who was only suspended. The order holds: nothing goes straight while an
older job of its tenant and priority waits to be fed, nor after a push that failed before it.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from datetime import datetime
from typing import Any

import orjson

from scheduler.dialects.channel import Channel
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Pushed, Queue
from scheduler.dialects.opening import open_queue
from scheduler.errors import QueueError, QueueUnavailable, StoreError
from scheduler.events import Events, JobsFed
from scheduler.log import keys
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.states import State
from scheduler.model.submission import Draft, NewJob
from scheduler.queueing.feeder import MOST_WAITING, Feeder
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.ring import PRIORITIES, Ring
from scheduler.queueing.way import Way
from scheduler.store.job_queue import JobKey, Straight

logger = logging.getLogger("scheduler")

FIRST_FEED = 1
HOLDS = 3.0  # seconds for which a mark that was seen counts
LOOK_AGAIN = 1.0  # seconds
MANY = 100  # jobs: to push these takes longer than to hand them over


class Shortcut:
    """Which queues jobs may go straight into, and the push. It waits for Redis only as long as its
    `client` does.
    """

    def __init__(
        self, ledger: Ledger, ring: Ring, feeder: Feeder, *, client: Client, events: Events
    ) -> None:
        self._ledger = ledger
        self._ring = ring
        self._feeder = feeder
        self._client = client
        self._events = events
        self._channel = Channel(client, ledger.installation)
        self._queues: dict[str, Queue] = {}
        self._marks: dict[
            str, tuple[int, float]
        ] = {}  # by queue, its mark and until when it counts
        self._rooms: dict[
            str, tuple[dict[int, int], float]
        ] = {}  # by queue, how much more may wait there; until when
        self._watched = False
        self._failures: dict[
            str, int
        ] = {}  # by queue, how many pushes have been left to the feeders
        self._pusher = ThreadPoolExecutor(1, "scheduler-push")  # a process that ends waits for it
        self._pushing: Future[None] | None = None  # the last that was handed over
        self._pusher_id: int | None = (
            None  # its thread, while it pushes: who listens there may submit, or cancel us
        )
        self._lock = threading.Lock()

    def way(self, batch: Sequence[NewJob]) -> Way | None:
        """Find the way for a batch that is not checked yet; None: it waits for something, or the
        feeders have it.
        """
        queue = batch[0].queue if batch and isinstance(batch[0], NewJob) else None
        if not isinstance(queue, str) or not all(_goes(job, queue) for job in batch):
            return None
        now, failures = time.monotonic(), self._failures.get(queue, 0)
        epoch, until = self._marks.get(queue, (0, 0.0))
        if now >= until or queue in self._feeder.due_since:
            return None
        try:
            entered = self._enter(queue, {int(job.priority) for job in batch}, len(batch))
        except QueueError:
            self._marks.pop(queue, None)
            return None
        return Way(Straight(queue, epoch), now, failures) if entered else None

    def push(self, way: Way) -> None:
        """Push what was inserted for it, after the commit; whatever goes wrong is not the
        submitter's to see.
        """
        self.wait()
        if (
            sum(len(drafts) for drafts, _ in way.parts) < MANY
            or self._is_pusher()
            or not self._handed_over(way)
        ):
            self._push(way)

    def wait(self) -> None:
        """Wait until all that was handed over is pushed."""
        if self._pushing is not None and not self._is_pusher():
            wait_for([self._pushing])

    def _is_pusher(self) -> bool:
        return self._pusher_id == threading.get_ident()

    def _handed_over(self, way: Way) -> bool:
        with self._lock:  # so that the last is the last
            try:
                self._pushing = self._pusher.submit(self._push_meanwhile, way)
            except RuntimeError:  # it is closed, or the process ends
                return False
        return True

    def _push_meanwhile(self, way: Way) -> None:
        self._pusher_id = threading.get_ident()
        try:
            self._push(way)
        except Exception:  # nobody else would hear of it; upkeep finds what Redis does not know
            name = way.straight.queue
            logger.exception("queue %s: jobs cannot be pushed", name, extra=keys(queue=name))
            self._close_way(name)
        finally:
            self._pusher_id = None

    def _push(self, way: Way) -> None:
        jobs = [
            job
            for drafts, now in way.parts
            for job in _queued(drafts, now, self._ledger.installation)
        ]
        if not jobs:
            return
        name, began = way.straight.queue, time.monotonic()
        try:
            if self._failures.get(name, 0) != way.failures:
                raise QueueUnavailable("Redis: those before could not be pushed")
            answers = self._queue(name).push(jobs, epoch=str(way.straight.epoch), began=way.began)
        except QueueError as error:
            self._leave(way, error)
            return
        jobs = [
            job for job, answer in zip(jobs, answers, strict=True) if answer is not Pushed.FINISHED
        ]
        if jobs and self._events:
            ids = tuple((job.tenant, job.id) for job in jobs)
            self._events.emit(
                JobsFed(queue=name, count=len(jobs), seconds=time.monotonic() - began, jobs=ids)
            )
        if jobs and self._watched:
            self._say(jobs)

    def _close_way(self, name: str) -> None:
        """Let nobody past those that could not be pushed: whoever has his way already leaves it
        too.
        """
        self._marks.pop(name, None)
        self._failures[name] = self._failures.get(name, 0) + 1

    def marked(self, name: str, epoch: int | None) -> None:
        """Hear of upkeep that Redis has the mark of a queue, which opens the way; None: it has
        not.
        """
        if epoch is None or not self._ring.exact(name) or self._client.clustered:
            self._marks.pop(name, None)
        else:
            self._marks[name] = epoch, time.monotonic() + HOLDS

    def _enter(self, name: str, levels: Collection[int], count: int) -> bool:
        """Take room for jobs of some levels; when it is long ago that we looked, or there is none
        any more, look.
        """
        room, until = self._rooms.get(name, ({}, 0.0))
        if time.monotonic() >= until or any(room.get(each, 0) < count for each in levels):
            queue = self._queue(name)
            waiting = queue.depths().waiting
            room = {int(each): MOST_WAITING - waiting[each] for each in Priority}
            self._rooms[name] = room, time.monotonic() + LOOK_AGAIN
            self._watched = self._channel.watched()
        if any(room.get(each, 0) < count for each in levels):
            return False
        for each in levels:
            room[each] -= count
        return True

    def close(self) -> None:
        """Push what was handed over, and close the connections."""
        self._pusher.shutdown(wait=not self._is_pusher())
        self._marks.clear()
        self._client.close()

    def _queue(self, name: str) -> Queue:
        found = self._queues.get(name)
        if found is None:
            options, installation = self._ring.options(name), self._ledger.installation
            found = open_queue(self._client, name, options, installation=installation)
            self._queues[name] = found
        return found

    def _leave(self, way: Way, error: QueueError) -> None:
        """Leave jobs to the feeders."""
        name, jobs = (
            way.straight.queue,
            [JobKey(each.tenant, each.id) for drafts, _ in way.parts for each in drafts],
        )
        self._marks.pop(name, None)
        said = "queue %s: %d jobs are left to the feeders: %s"
        logger.warning(said, name, len(jobs), error, extra=keys(queue=name))
        try:
            self._ledger.rows(self._ledger.ring.leave_to_feeders(jobs))
        except StoreError as away:
            logger.warning("queue %s: or rather to upkeep: %s", name, away, extra=keys(queue=name))
        finally:
            self._close_way(
                name
            )  # again: upkeep may have opened it before they were ready to be fed

    def _say(self, jobs: Sequence[QueuedJob]) -> None:
        try:
            self._channel.say(
                [(job.tenant, job.id, State.SCHEDULED) for job in jobs], jobs[0].created_at
            )
        except QueueError as error:
            logger.debug("state changes are not said: %s", error)


def _goes(job: object, queue: str) -> bool:
    """Whether nothing is known yet that keeps a job from going at once."""
    return (
        isinstance(job, NewJob)
        and job.queue == queue
        and job.run_at is None
        and job.delay is None
        and job.after == ()
        and job.after_any == ()
        and isinstance(job.priority, int)
    )


def _queued(drafts: Sequence[Draft], now: datetime, installation: str) -> list[QueuedJob]:
    """Make what travels of jobs that were just inserted."""
    read: dict[str | None, Mapping[str, Any] | None] = {None: None}
    for text in {each for draft in drafts for each in (draft.policy, draft.tags)} - {None}:
        read[text] = orjson.loads(text or "")
    return [
        QueuedJob(
            str(draft.id),
            draft.tenant,
            draft.type,
            draft.queue,
            PRIORITIES[draft.priority],
            FIRST_FEED,
            0,
            draft.form,
            draft.payload,
            read[draft.policy],
            read[draft.tags],
            draft.correlation_id,
            now,
            now + draft.lifetime,
            installation,
            None,
            draft.trace,
            0,
            draft.key,
            None if draft.previous_attempt_id is None else str(draft.previous_attempt_id),
        )
        for draft in drafts
    ]
