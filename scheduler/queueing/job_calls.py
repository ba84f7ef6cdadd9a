"""The calls about jobs that were submitted, as methods of `Scheduler`: look at them, wait for them,
steer them.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import orjson

from scheduler.dialects.interface import Cancelling
from scheduler.errors import ConfigError, InvalidOption, LifecycleError
from scheduler.events import Event
from scheduler.model import labels
from scheduler.model.durations import duration
from scheduler.model.labels import Priority
from scheduler.model.oneshot import Job, JobChange
from scheduler.model.schedules import instant
from scheduler.model.states import State
from scheduler.model.submission import Submission
from scheduler.model.texts import name, storable
from scheduler.queueing import jobs
from scheduler.queueing.jobs import Page
from scheduler.queueing.ring import FED, AttemptUnrecorded, Ring
from scheduler.queueing.submit import submit
from scheduler.queueing.waiting import wait
from scheduler.store.engine import Row
from scheduler.store.job_queue import JobKey, QueueTable
from scheduler.store.steps import Databases, Steps, run

LARGEST_PAGE = 1000
RECORD_TIMEOUT_S = 5.0  # for how long `update_job` waits for a failed attempt to be recorded
RECORD_POLL_INTERVAL_S = 0.05


class JobCalls(ABC):
    """What `Scheduler` offers for jobs that exist."""

    @abstractmethod
    def _queue(self) -> tuple[Databases, QueueTable, int]:
        """Return where jobs are kept, and how large a payload may be."""

    @abstractmethod
    def _ring(self) -> Ring | None:
        """Return the queues in Redis, if this instance has any."""

    @abstractmethod
    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` with every event of this instance; returns what ends it."""

    def get(self, tenant: str, job_id: UUID | str) -> Job:
        """Read a submitted job, live or ended; `UnknownJob` when this tenant has none such."""
        databases, table, _ = self._queue()
        job = run(databases, jobs.get(table, _key(tenant, job_id)))
        ring = self._ring()
        return job if ring is None else ring.refined([job])[0]

    def find(
        self,
        tenant: str,
        *,
        state: State | Iterable[State] | None = None,
        type: str | None = None,  # noqa: A002
        tag: str | Mapping[str, str] | None = None,
        queue: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        most: int | None = None,
    ) -> Page:
        """Find submitted jobs: live ones, newest first, then those that ended, the last to end
        first.

        tag: a tag's name, or {name: value}. most: look at no more than so many rows for a page,
        None: at all that it takes. A page with a `cursor` is followed by another, also if it is
        short or empty: the look stopped there, or what was found does not run, which is known only
        in Redis.
        """
        databases, table, _ = self._queue()
        label, value = _tag(tag)
        wanted, ring = _states(state), self._ring()
        steps = jobs.find(
            table,
            name(tenant, what="tenant"),
            states=[*wanted, *FED]
            if ring is not None and wanted and State.RUNNING in wanted
            else wanted,
            filters={"type": type, "queue": queue, "tag": label, "tag_value": value},
            limit=_limit(limit),
            cursor=cursor,
            most=most,
        )
        page = run(databases, steps)
        if ring is None:
            return page
        refined = ring.refined(page.jobs)
        return replace(
            page, jobs=tuple(job for job in refined if wanted is None or job.state in wanted)
        )

    def wait(
        self, tenant: str, job_id: UUID | str, timeout: timedelta | str | float | None = None
    ) -> Job:
        """Wait until a job has ended, and return it; `WaitTimeout` if it has not by then."""
        return wait(self.get, self.subscribe, _key(tenant, job_id), _seconds(timeout))

    def events(
        self, tenant: str, *, until: Callable[[], bool] = lambda: False
    ) -> Iterator[JobChange]:
        """Iterate over state changes and progress of a tenant's jobs, from now on, until the
        scheduler ends.

        A change with a `progress` is a report of a running handler, see `JobContext.progress`. Any
        other is a new state of its job.

        until: ends the iteration when it returns True; it is called twice a second.

        Changes come through Redis from the processes of the whole fleet as they happen, so
        SCHEDULED can arrive after RUNNING; `at` orders them. The last progress of an attempt
        arrives before the state in which it ends. Changes are not published while Redis is
        unavailable.

        Example:
            >>> for change in scheduler.events("acme"):
            ...     if change.progress is not None:
            ...         print(change.id, change.progress, change.message)
        """
        ring = self._ring()
        if ring is None:
            raise ConfigError(
                "redis: state changes come through Redis, and this scheduler has none; pass "
                "redis=..."
            )

        def ended() -> bool:
            try:
                return until() or self._ring() is not ring
            except LifecycleError:
                return True

        return ring.channel.listen(name(tenant, what="tenant"), ended)

    def update_job(
        self,
        tenant: str,
        job_id: UUID | str,
        *,
        run_at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: Priority | None = None,
        tags: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        callback_url: str | None = None,
        idempotency_key: Literal[""] | None = None,
    ) -> Job:
        """Change a live job. Type and payload never change: submit a new job and cancel this one.

        A job that no worker has begun, or that waits for its next attempt, is changed wherever it
        waits: its handler sees the new values. It is then the last of its tenant and priority among
        the jobs that wait in Redis. Once an attempt has begun, `tags`, `correlation_id` and
        `idempotency_key` change only in the record of the job, and the handler keeps those that it
        has seen. A scheduler without `redis` changes a job that has been fed in this way too.

        Args:
            tenant: The tenant of the job.
            job_id: Its id, or the id that `ctx.submit` returned for it.
            run_at: Earliest time at which the job can run, also before its next attempt. Its
                lifetime counts from this time.
            delay: The same as a duration from now.
            priority: A `Priority`.
            tags: Labels instead of the present ones; {} clears them.
            correlation_id: Your id for the work that this job is part of; "" clears it.
            callback_url: URL that receives a signed request when the job ends; "" clears it.
            idempotency_key: "" clears the key, and another job can be submitted with it.

        Raises:
            IllegalTransition: The job has ended; or `run_at`, `delay` or `priority` are given, and
                an attempt has begun, or the job was fed and this scheduler has no `redis`.
            QueueUnavailable: Redis cannot be asked whether the job has begun. Nothing has changed.
        """
        if idempotency_key not in (None, ""):
            raise InvalidOption('idempotency_key can only be cleared, with ""')
        if run_at is not None and delay is not None:
            raise InvalidOption("run_at and delay exclude each other; give one of them")
        databases, table, _ = self._queue()
        key, ring = _key(tenant, job_id), self._ring()
        changes = jobs.Changes(
            run_at=None if run_at is None else instant(run_at, name="run_at"),
            delay=None if delay is None else duration(delay, name="delay"),
            priority=None if priority is None else labels.checked_priority(priority),
            tags=None if tags is None else orjson.dumps(labels.checked_tags(tags) or {}).decode(),
            correlation_id=correlation_id and labels.checked_correlation(correlation_id),
            callback_url=callback_url and labels.checked_url(callback_url),
            idempotency_key=idempotency_key,
        )
        withdraw = None if ring is None else ring.withdraw
        deadline = time.monotonic() + RECORD_TIMEOUT_S
        while True:
            try:
                return run(databases, jobs.update(table, key, changes, withdraw=withdraw))
            except AttemptUnrecorded:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RECORD_POLL_INTERVAL_S)

    def cancel_job(
        self, tenant: str, job_id: UUID | str, *, reason: str | None = None, force: bool = False
    ) -> State:
        """End a job that has not begun, with all that wait for its success; return its state.

        One that has begun is asked to end (`ctx.cancelled`), and stays RUNNING until it does; with
        `force` it ends at once, and whatever its handler does is refused. One whose handler has
        ended, and whose result is not recorded yet, ends with that result.
        """
        databases, table, _ = self._queue()
        why = None if reason is None else storable(reason, 1000)
        key, ring = _key(tenant, job_id), self._ring()

        def ask(queue: str, row: Row, *, waited: bool) -> Cancelling | None:
            return None if ring is None else ring.cancel(queue, row, force=force, waited=waited)

        if force:
            # Committed before Redis removes the job: if this process dies in between, the
            # maintenance of any instance ends the job.
            run(databases, jobs.request_cancel(table, key, reason=why, force=True))
        key, state = run(databases, jobs.cancel(table, key, reason=why, force=force, ask=ask))
        if ring is not None and state is State.CANCELLED:
            ring.say([(key, state)])
        return state

    def retry_job(self, tenant: str, job_id: UUID | str) -> Submission:
        """Submit a job anew that failed, died or was cancelled; the new one says `retried_from`."""
        databases, table, _ = self._queue()

        def steps() -> Steps[list[Submission]]:
            key = _key(tenant, job_id)
            draft = yield from jobs.retried(table, key)
            yield table.queues.take_letter(key.tenant, draft.retried_from or key.id)
            return (yield from submit(table, [draft]))

        return run(databases, steps())[0]


def _seconds(timeout: object) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        return max(0.0, float(timeout))
    return duration(timeout, name="timeout").total_seconds()


def _key(tenant: object, job_id: object) -> JobKey:
    try:
        return JobKey(
            name(tenant, what="tenant"), job_id if isinstance(job_id, UUID) else UUID(str(job_id))
        )
    except ValueError:
        raise InvalidOption(
            f"job_id must be the UUID that submit() returned, not {str(job_id)[:60]!r}"
        ) from None


def _states(state: State | Iterable[State] | None) -> list[State] | None:
    if state is None:
        return None
    try:
        return [State(state)] if isinstance(state, str) else [State(each) for each in state]
    except ValueError:
        raise InvalidOption(f"state must be one of {', '.join(State)}, not {state!r}") from None


def _tag(tag: object) -> tuple[str | None, str | None]:
    if tag is None or isinstance(tag, str):
        return tag, None
    if not isinstance(tag, Mapping) or len(tag) != 1:
        raise InvalidOption("tag must be a name, or a dict with one name and its value")
    ((label, value),) = tag.items()
    return str(label), str(value)


def _limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
        raise InvalidOption(f"limit must be a number from 1 to {LARGEST_PAGE}, not {limit!r}")
    return limit
