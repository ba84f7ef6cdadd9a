"""The queues of an instance: which dialect each has, and the calls that ask Redis about jobs under
way.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from uuid import UUID

import orjson

from scheduler.dialects.channel import Channel
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Admin, Cancelling, Known, Queue, unhandled_types
from scheduler.dialects.opening import DEFAULT, open_admin, open_queue, unsupported
from scheduler.dialects.reliable.keys import Keys
from scheduler.errors import IllegalTransition, QueueError, UnsupportedByDialect
from scheduler.log import keys
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.oneshot import Job, attempt_id_of
from scheduler.model.payloads import DEFAULT_LIMIT, validate_size
from scheduler.model.policies import policy_of
from scheduler.model.reaper import ReaperRule
from scheduler.model.states import State
from scheduler.model.submission import Draft
from scheduler.store.engine import Row
from scheduler.store.job_queue import JobKey

logger = logging.getLogger("scheduler")

FED = (State.SCHEDULED, State.RETRYING)
GONE = (Cancelling.REMOVED, Cancelling.UNKNOWN)
PRIORITIES = tuple(Priority)


class AttemptUnrecorded(IllegalTransition):
    """A job waits for a retry, and its last attempt is not in the ledger yet."""


class Ring:
    """The queues by name, opened as they are needed."""

    def __init__(
        self,
        client: Client,
        dialects: Mapping[str, Mapping[str, str]],
        installation: str,
        now: Callable[[], datetime],
        reaper: ReaperRule = ReaperRule(),  # noqa: B008 - frozen
        *,
        max_payload: int = DEFAULT_LIMIT,
    ) -> None:
        self._client = client
        self._dialects = dialects
        self._installation = installation
        self._now = now
        self.reaper = reaper
        self._max_payload = max_payload
        self.channel = Channel(client, installation)
        self._reader = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._lock = threading.Lock()
        self._queues: dict[str, Queue] = {}

    def queue(self, name: str) -> Queue:
        """Return a queue."""
        with self._lock:
            found = self._queues.get(name)
            if found is None:
                options = self.options(name)
                found = open_queue(
                    self._client,
                    name,
                    options,
                    installation=self._installation,
                    worker=self._reader,
                    reaper=self.reaper,
                )
                self._queues[name] = found
            return found

    def check(self, draft: Draft) -> None:
        """Raise if a handler submitted a job that is too large or that the dialect of its queue
        cannot carry. Workers do not have these limits.
        """
        validate_size(draft.payload, self._max_payload)
        retry, _ = policy_of(None if draft.policy is None else orjson.loads(draft.policy))
        if reason := unsupported(self.options(draft.queue), retry):
            raise UnsupportedByDialect(f"queue {draft.queue!r}: {reason}")

    def options(self, name: str) -> Mapping[str, str]:
        """Return the settings of a queue: its dialect, and the options of that."""
        return self._dialects.get(name, DEFAULT)

    def dialect(self, name: str) -> str:
        """Return the dialect of a queue."""
        return self.options(name)["dialect"]

    def exact(self, name: str) -> bool:
        """Whether Redis knows each job of a queue from its push until its end is in the ledger,
        whoever works it.
        """
        return self.dialect(name) in ("standard", "reliable")

    def configured(self) -> list[str]:
        """Name the queues that the settings name."""
        return sorted(self._dialects)

    def admin(self, name: str, original: Keys | None = None) -> Admin:
        """Return a queue as a person sees it; `original`: its keys, if they are named as the
        original does.
        """
        return open_admin(
            self._client,
            name,
            self.options(name),
            installation=self._installation,
            original=original,
        )

    def refined(self, jobs: Iterable[Job]) -> list[Job]:
        """Add what Redis knows of jobs that were fed; while it is away they are as the rows have
        them.
        """
        listed = list(jobs)
        by_queue: dict[str, list[int]] = {}
        for place, job in enumerate(listed):
            if job.state in FED:
                by_queue.setdefault(job.queue, []).append(place)
        for name, places in by_queue.items():
            try:
                queue = self.queue(name)
                found = queue.known([str(listed[place].id) for place in places])
                parked = any(known is not None and known.parked is not None for known in found)
                unhandled = unhandled_types(queue) if parked else {}
            except QueueError as error:
                logger.warning(
                    "queue %s: jobs are shown as Postgres has them: %s",
                    name,
                    error,
                    extra=keys(queue=name),
                )
                continue
            for place, known in zip(places, found, strict=True):
                if known is not None and known.state is not None:
                    listed[place] = _refined(listed[place], known)
                    if known.state is State.RUNNING or self.dialect(name) != DEFAULT["dialect"]:
                        # A pause of its tenant does not stop it.
                        listed[place] = replace(listed[place], reason=None)
                if known is not None and known.parked in unhandled:
                    reason = f'no live worker handles type "{known.parked}"'
                    listed[place] = replace(listed[place], reason=reason)
        return listed

    def cancel(self, queue: str, row: Row, *, force: bool, waited: bool) -> Cancelling | None:
        """Remove a job, or request its cancellation; None: Redis is unavailable.

        row: the job, as `as_fed` reads it. waited: it waited to be fed. Any other job is withdrawn
        if that is possible, because its submitter may not have pushed it yet.
        """
        try:
            opened = self.queue(queue)
            job = queued(queue, row, self._installation, self._now())
            if not waited and (answer := opened.withdraw(job)) in GONE:
                return answer
            return opened.cancel([job.id], force=force)[0]
        except QueueError as error:
            logger.warning(
                "queue %s: will be asked later to cancel: %s", queue, error, extra=keys(queue=queue)
            )
            return None

    def withdraw(self, queue: str, row: Row) -> Cancelling:
        """Remove a job that waits in Redis. row: the job, as `as_fed` reads it.

        Raises `AttemptUnrecorded` if the job waits for a retry and the failed attempt is not in the
        ledger yet, `QueueError` if Redis cannot be asked.
        """
        opened = self.queue(queue)
        job = queued(queue, row, self._installation, self._now())
        answer = opened.withdraw(job)
        if answer is Cancelling.RUNNING:
            known = opened.known([job.id])[0]
            if known is not None and known.state is State.RETRYING:
                raise AttemptUnrecorded(
                    f"job {job.id} has failed, which is not recorded yet; try again"
                )
        return answer

    def say(
        self,
        changes: Iterable[tuple[JobKey, State]],
        due: Mapping[JobKey, datetime] = MappingProxyType({}),
    ) -> None:
        """Publish state changes if a client listens. They are lost while Redis is unavailable.

        due: when the backoff of a retry is over.
        """
        try:
            if self.channel.watched():
                self.channel.say(
                    [
                        (key.tenant, str(key.id), state, *([due[key]] if key in due else ()))
                        for key, state in changes
                    ],
                    self._now(),
                )
        except QueueError as error:
            logger.debug("state changes are not said: %s", error)

    def unblock(self, through: Client) -> None:
        """Let settlers end who wait for ends."""
        self._client.unblock(through)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _refined(job: Job, known: Known) -> Job:
    scheduled_at = known.scheduled_at or job.scheduled_at or known.started_at
    # The clocks of two servers can differ.
    if scheduled_at is not None and known.started_at is not None:
        scheduled_at = min(scheduled_at, known.started_at)
    updated_at = {
        State.SCHEDULED: scheduled_at,
        State.RUNNING: known.started_at,
    }.get(known.state or job.state)
    return replace(
        job,
        state=known.state or job.state,
        scheduled_at=scheduled_at,
        updated_at=updated_at or job.updated_at,
        attempt=max(job.attempt, known.attempt),
        started_at=known.started_at,
        progress=known.note.progress,
        message=known.note.message,
    )


def queued(queue: str, row: Row, installation: str, scheduled_at: datetime) -> QueuedJob:
    """Build the message of a job from its row, as `feed` or `as_fed` returns it."""
    (
        _,
        tenant,
        id_,
        priority,
        type_,
        feed,
        attempt,
        json,
        payload,
        policy,
        tags,
        correlation_id,
        created_at,
        expires_at,
        last,
        trace,
        idempotency_key,
        retried,
    ) = row
    checkpoint, uncharged, previous = None, 0, None if retried is None else str(retried)
    if last is not None:  # an attempt was settled before this feed
        checkpoint, uncharged = last.get("checkpoint"), last.get("uncharged", 0)
        previous = str(attempt_id_of(UUID(id_), last))
    return QueuedJob(
        id_,
        tenant,
        type_,
        queue,
        PRIORITIES[priority],
        feed,
        attempt,
        "json" if json else "bytes",
        payload,
        policy,
        tags,
        correlation_id,
        created_at,
        expires_at,
        installation,
        checkpoint,
        trace,
        uncharged,
        idempotency_key,
        previous,
        scheduled_at,
    )
