"""The calls about submitted jobs, as methods of `Scheduler`: arguments checked, then steps run
where they belong.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Unpack

from scheduler.config import Settings
from scheduler.dialects.opening import DEFAULT, unsupported
from scheduler.errors import InvalidOption, UnsupportedByDialect
from scheduler.model.durations import duration
from scheduler.model.policies import Timeouts
from scheduler.model.queues import QueueStats, Totals
from scheduler.model.retries import RetryPolicy
from scheduler.model.submission import (
    NewJob,
    Submission,
    SubmitOptions,
    draft_parts,
    drafts,
    independent,
)
from scheduler.model.workers import WorkerInfo
from scheduler.queueing.admin import QueueAdmin, Queues
from scheduler.queueing.job_calls import JobCalls
from scheduler.queueing.shortcut import Shortcut
from scheduler.queueing.submit import submit, submit_parts
from scheduler.queueing.way import Way
from scheduler.store.steps import Pipeline, Steps, run, run_inside, run_inside_async, run_pipeline

LARGEST_PAGE = 1000
PART = 200  # jobs that are sent at once while the next are made
HALF_A_MINUTE = timedelta(seconds=30)


class QueueCalls(JobCalls):
    """What `Scheduler` offers for one-shot jobs."""

    settings: Settings

    def submit(
        self,
        tenant: str,
        type: str,  # noqa: A002
        payload: object = None,
        *,
        connection: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Submission:
        """Submit a one-shot job and return its `Submission`.

        The submission has the id of the job, or the id of an earlier job with the same idempotency
        key.

        Args:
            tenant: The tenant that the job belongs to.
            type: Name of the handler that runs the job.
            payload: JSON value or bytes, at most `max_payload` bytes.
            connection: A psycopg or SQLAlchemy connection, or a Session. The job is committed with
                your transaction, or not at all.
            queue: Name of the queue ("default").
            priority: A `Priority` (NORMAL). A job inherits the highest priority of the jobs that it
                depends on.
            run_at: Earliest time at which the job can run.
            delay: The same as a duration from now.
            idempotency_key: Jobs with the same tenant, type and key within the window are one job.
            idempotency_window: Length of that window ("24h").
            after: Jobs that must succeed before this job runs.
            after_any: Jobs of which one must end before this job runs.
            retry: A `RetryPolicy`.
            timeouts: A `Timeouts`.
            tags: Labels of the job, by name.
            correlation_id: Your id for the work that this job is part of.
            callback_url: URL that receives a signed request when the job ends.
        """
        return self.submit_many([_new(tenant, type, payload, options)], connection=connection)[0]

    def submit_many(self, new: Iterable[NewJob], *, connection: object = None) -> list[Submission]:
        """Submit many jobs at once, all or none; `after=` may name others of the same call."""
        batch = self._carried(new)
        if connection is not None:
            return run_inside(connection, self._submitting(batch))
        return self._submit_many(batch)

    async def asubmit(
        self,
        tenant: str,
        type: str,  # noqa: A002
        payload: object = None,
        *,
        connection: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Submission:
        """Submit from async code; `connection` may be an async one, of psycopg or SQLAlchemy."""
        return (
            await self.asubmit_many([_new(tenant, type, payload, options)], connection=connection)
        )[0]

    async def asubmit_many(
        self, new: Iterable[NewJob], *, connection: object = None
    ) -> list[Submission]:
        """Submit many from async code; `connection` may be an async one, of psycopg or
        SQLAlchemy.
        """
        batch = self._carried(new)
        if connection is not None:
            return await run_inside_async(connection, self._submitting(batch))
        return await asyncio.to_thread(self._submit_many, batch)

    def chain(
        self, tenant: str, new: Sequence[NewJob], *, connection: object = None
    ) -> list[Submission]:
        """Submit jobs that run one after another; a failure ends the rest of the chain."""
        linked: list[NewJob] = []
        for job in _of_tenant(tenant, new):
            linked.append(replace(job, after=(*job.after, linked[-1])) if linked else job)
        return self.submit_many(linked, connection=connection)

    def fan_out(
        self,
        tenant: str,
        new: Sequence[NewJob],
        *,
        then: NewJob | None = None,
        connection: object = None,
    ) -> list[Submission]:
        """Submit jobs that run side by side, and `then` one that waits for the success of all; it
        comes last.
        """
        several = list(_of_tenant(tenant, new))
        if then is not None:
            (last,) = _of_tenant(tenant, [then])
            several.append(replace(last, after=(*last.after, *several)))
        return self.submit_many(several, connection=connection)

    def _shortcut(self) -> Shortcut | None:
        """Return what lets jobs go straight into Redis, if this instance has any."""
        return None

    @abstractmethod
    def _queues(self) -> Queues:
        """Return the queues as a person sees them; raises `ConfigError` if there is no Redis."""

    def queues(self, *, most: int | None = None) -> list[QueueStats]:
        """Say how much is in each queue that is configured, was ever fed, or has jobs that wait.

        most: what Postgres knows (ready, pending, dead) is counted up to so many, which takes no
        longer where there are millions; None: all.
        """
        return self._queues().stats(most)

    def queue(self, name: str) -> QueueAdmin:
        """Look at a queue, and see to its dead letters; `UnknownQueue` if there is none of that
        name.
        """
        return self._queues().queue(name)

    def workers(self) -> list[WorkerInfo]:
        """Say which workers live, at which queues, what each holds, and how its circuit breakers
        are; by name.

        Ours say it with their heartbeats; of BullMQ's and Conveyor's own what Redis shows. At most
        500 at each queue.
        """
        return self._queues().workers()

    def totals(self, since: timedelta | str = "1h") -> Totals:
        """Count the jobs that ended within a span, by queue and state."""
        return self._queues().totals(duration(since, name="since"))

    def pause_queue(self, name: str) -> datetime:
        """Stop a queue: nothing is fed to it and nothing taken from it; return since when. What
        runs goes on.
        """
        return self._queues().pause(name)

    def resume_queue(self, name: str) -> bool:
        """Let a queue go on, and say whether it was paused."""
        return self._queues().resume(name)

    def _carried(self, new: Iterable[NewJob]) -> list[NewJob]:
        """List a batch, unless one of it asks for what the dialect of its queue cannot say."""
        batch = _listed(new)
        for job in batch if self.settings.queues else ():
            self._check_dialect(job.queue, job.retry)
        return batch

    def _check_dialect(self, queue: str, retry: object) -> None:
        options = self.settings.queues.get(queue, DEFAULT)
        reason = unsupported(options, retry) if isinstance(retry, RetryPolicy) else None
        if reason is not None:
            raise UnsupportedByDialect(f"queue {queue!r}: {reason}")

    def _submitting(
        self, batch: Sequence[NewJob], way: Way | None = None
    ) -> Steps[list[Submission]]:
        """Check a batch and return the steps that submit it."""
        _, table, limit = self._queue()
        return submit(table, drafts(batch, limit=limit), way)

    def _submit_many(self, batch: Sequence[NewJob]) -> list[Submission]:
        """Submit a batch in a transaction of our own, and push it after the commit if it may go
        straight.
        """
        shortcut = self._shortcut()
        way = None if shortcut is None else shortcut.way(batch)
        made = self._inserted(batch, way)
        if shortcut is not None and way is not None:
            shortcut.push(way)
        return made

    def _inserted(self, batch: Sequence[NewJob], way: Way | None) -> list[Submission]:
        """Insert a batch; the server works on a part while we make the next."""
        databases, table, limit = self._queue()
        if len(batch) < 2 * PART or not independent(batch):
            return run(databases, self._submitting(batch, way), deadline=_patience(batch))
        made: list[Submission] = []
        parts = draft_parts(batch, limit=limit, size=PART)
        first = next(parts)  # what is wrong with every job is refused before anything is touched
        pipeline = Pipeline(submit_parts(table, chain([first], parts), made, way))
        answers = run_pipeline(databases, pipeline, deadline=_patience(batch))
        if way is not None:
            way.answered(answers)
        return made


def _listed(new: Iterable[NewJob]) -> list[NewJob]:
    if not isinstance(new, Iterable):
        raise InvalidOption(f"submit_many takes a list of NewJob, not {type(new).__name__}")
    return list(new)


def _patience(batch: Sequence[NewJob]) -> float:
    """Tell how many seconds the submission of each job may take."""
    wanted: Iterable[object] = {
        id(job.timeouts): job.timeouts for job in batch
    }.values()  # not all are checked yet
    limits = [
        duration(each.submission, name="submission")
        for each in wanted
        if isinstance(each, Timeouts)
    ]
    return min(limits, default=HALF_A_MINUTE).total_seconds()


def _new(tenant: str, type_: str, payload: object, options: SubmitOptions) -> NewJob:
    try:
        return NewJob(tenant, type_, payload, **options)
    except TypeError:
        unknown = sorted(set(options) - set(SubmitOptions.__annotations__))
        raise InvalidOption(
            f"submit() has no option {unknown[0]!r}; there are "
            f"{', '.join(SubmitOptions.__annotations__)}"
        ) from None


def _of_tenant(tenant: str, new: Sequence[NewJob]) -> Sequence[NewJob]:
    jobs_given: Sequence[object] = new
    for job in jobs_given:
        if not isinstance(job, NewJob) or job.tenant != tenant:
            raise InvalidOption(f"all jobs of this call must be NewJobs of tenant {tenant!r}")
    return new
