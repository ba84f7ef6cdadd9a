"""The calls about submitted jobs, as methods of `Scheduler`: arguments checked, then steps run where they belong."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Unpack
from uuid import UUID

import orjson

from scheduler.errors import InvalidOption
from scheduler.model import labels
from scheduler.model.durations import duration
from scheduler.model.labels import Priority
from scheduler.model.oneshot import Job
from scheduler.model.policies import Timeouts
from scheduler.model.states import State
from scheduler.model.submission import NewJob, Submission, SubmitOptions, draft_parts, drafts, independent
from scheduler.model.texts import name, storable
from scheduler.queueing import jobs
from scheduler.queueing.jobs import Page
from scheduler.queueing.submit import submit, submit_parts
from scheduler.store.job_queue import JobKey, QueueTable
from scheduler.store.steps import Databases, Pipeline, Steps, run, run_inside, run_inside_async, run_pipeline

LARGEST_PAGE = 1000
PART = 200  # jobs that are sent at once while the next are made
HALF_A_MINUTE = timedelta(seconds=30)


class QueueCalls(ABC):
    """What `Scheduler` offers for one-shot jobs."""

    @abstractmethod
    def _queue(self) -> tuple[Databases, QueueTable, int]:
        """Return where jobs are kept, and how large a payload may be."""

    def submit(
        self, tenant: str, type: str, payload: object = None, *, connection: object = None,  # noqa: A002
        **options: Unpack[SubmitOptions],
    ) -> Submission:  # fmt: skip
        """Submit a one-shot job; return its id, and whether an earlier job with the same key stands for it.

        type: which handler runs it. payload: JSON or bytes, at most 1 MB by default.
        connection: a psycopg or SQLAlchemy connection, or a Session: the job commits with your data, or not at all.
        queue: through which queue ("default"). priority: `Priority.NORMAL`; a job has at least that of those it waits
            for. run_at, delay: not before then.
        idempotency_key, idempotency_window: the same (tenant, type, key) within the window ("24h") is one job.
        after, after_any: jobs that must have succeeded, or one that must have ended, before it runs.
        retry, timeouts: a `RetryPolicy` and `Timeouts`. tags, correlation_id: labels of yours. callback_url: is
            called when it ends.
        """
        return self.submit_many([_new(tenant, type, payload, options)], connection=connection)[0]

    def submit_many(self, new: Iterable[NewJob], *, connection: object = None) -> list[Submission]:
        """Submit many jobs at once, all or none; `after=` may name others of the same call."""
        batch = _listed(new)
        if connection is not None:
            return run_inside(connection, self._submitting(batch))
        return self._submit_many(batch)

    async def asubmit(
        self, tenant: str, type: str, payload: object = None, *, connection: object = None,  # noqa: A002
        **options: Unpack[SubmitOptions],
    ) -> Submission:  # fmt: skip
        """Submit from async code; `connection` may be an async one, of psycopg or SQLAlchemy."""
        return (await self.asubmit_many([_new(tenant, type, payload, options)], connection=connection))[0]

    async def asubmit_many(self, new: Iterable[NewJob], *, connection: object = None) -> list[Submission]:
        """Submit many from async code; `connection` may be an async one, of psycopg or SQLAlchemy."""
        batch = _listed(new)
        if connection is not None:
            return await run_inside_async(connection, self._submitting(batch))
        return await asyncio.to_thread(self._submit_many, batch)

    def chain(self, tenant: str, new: Sequence[NewJob], *, connection: object = None) -> list[Submission]:
        """Submit jobs that run one after another; a failure ends the rest of the chain."""
        linked: list[NewJob] = []
        for job in _of_tenant(tenant, new):
            linked.append(replace(job, after=(*job.after, linked[-1])) if linked else job)
        return self.submit_many(linked, connection=connection)

    def fan_out(
        self, tenant: str, new: Sequence[NewJob], *, then: NewJob | None = None, connection: object = None
    ) -> list[Submission]:
        """Submit jobs that run side by side, and `then` one that waits for the success of all; it comes last."""
        several = list(_of_tenant(tenant, new))
        if then is not None:
            (last,) = _of_tenant(tenant, [then])
            several.append(replace(last, after=(*last.after, *several)))
        return self.submit_many(several, connection=connection)

    def get(self, tenant: str, job_id: UUID | str) -> Job:
        """Read a submitted job, live or ended; `UnknownJob` when this tenant has none such."""
        databases, table, _ = self._queue()
        return run(databases, jobs.get(table, _key(tenant, job_id)))

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
    ) -> Page:
        """Find submitted jobs: live ones, newest first, then those that ended, the last to end first.

        tag: a tag's name, or {name: value}. A page with a `cursor` is followed by another.
        """
        databases, table, _ = self._queue()
        label, value = _tag(tag)
        steps = jobs.find(
            table,
            name(tenant, what="tenant"),
            states=_states(state),
            filters={"type": type, "queue": queue, "tag": label, "tag_value": value},
            limit=_limit(limit),
            cursor=cursor,
        )
        return run(databases, steps)

    def update_job(
        self,
        tenant: str,
        job_id: UUID | str,
        *,
        priority: Priority | None = None,
        tags: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        callback_url: str | None = None,
    ) -> Job:
        """Change a live job; its priority until it is fed. Type and payload never change: submit a new job."""
        databases, table, _ = self._queue()
        steps = jobs.update(
            table,
            _key(tenant, job_id),
            priority=None if priority is None else labels.checked_priority(priority),
            tags=None if tags is None else orjson.dumps(labels.checked_tags(tags) or {}).decode(),
            correlation_id=labels.checked_correlation(correlation_id),
            callback_url=labels.checked_url(callback_url),
        )
        return run(databases, steps)

    def cancel_job(self, tenant: str, job_id: UUID | str, *, reason: str | None = None, force: bool = False) -> State:
        """End a job that has not begun, with all that wait for its success; return its state.

        One that has begun is asked to end, or told to with `force`: its state is then what it was.
        """
        databases, table, _ = self._queue()
        why = None if reason is None else storable(reason, 1000)
        return run(databases, jobs.cancel(table, _key(tenant, job_id), reason=why, force=force))

    def retry_job(self, tenant: str, job_id: UUID | str) -> Submission:
        """Submit a job anew that failed, died or was cancelled; the new one says `retried_from`."""
        databases, table, _ = self._queue()

        def steps() -> Steps[list[Submission]]:
            draft = yield from jobs.retried(table, _key(tenant, job_id))
            return (yield from submit(table, [draft]))

        return run(databases, steps())[0]

    def _submitting(self, batch: Sequence[NewJob]) -> Steps[list[Submission]]:
        """Check a batch and return the steps that submit it."""
        _, table, limit = self._queue()
        return submit(table, drafts(batch, limit=limit))

    def _submit_many(self, batch: Sequence[NewJob]) -> list[Submission]:
        """Submit a batch in a transaction of our own; the server works on a part while we make the next."""
        databases, table, limit = self._queue()
        if len(batch) < 2 * PART or not independent(batch):
            return run(databases, self._submitting(batch), deadline=_patience(batch))
        made: list[Submission] = []
        parts = draft_parts(batch, limit=limit, size=PART)
        first = next(parts)  # what is wrong with every job is refused before anything is touched
        pipeline = Pipeline(submit_parts(table, chain([first], parts), made))
        run_pipeline(databases, pipeline, deadline=_patience(batch))
        return made


def _listed(new: Iterable[NewJob]) -> list[NewJob]:
    if not isinstance(new, Iterable):
        raise InvalidOption(f"submit_many takes a list of NewJob, not {type(new).__name__}")
    return list(new)


def _patience(batch: Sequence[NewJob]) -> float:
    """Tell how many seconds the submission of each job may take."""
    wanted: Iterable[object] = {id(job.timeouts): job.timeouts for job in batch}.values()  # not all are checked yet
    limits = [duration(each.submission, name="submission") for each in wanted if isinstance(each, Timeouts)]
    return min(limits, default=HALF_A_MINUTE).total_seconds()


def _new(tenant: str, type_: str, payload: object, options: SubmitOptions) -> NewJob:
    try:
        return NewJob(tenant, type_, payload, **options)
    except TypeError:
        unknown = sorted(set(options) - set(SubmitOptions.__annotations__))
        raise InvalidOption(
            f"submit() has no option {unknown[0]!r}; there are {', '.join(SubmitOptions.__annotations__)}"
        ) from None


def _of_tenant(tenant: str, new: Sequence[NewJob]) -> Sequence[NewJob]:
    jobs_given: Sequence[object] = new
    for job in jobs_given:
        if not isinstance(job, NewJob) or job.tenant != tenant:
            raise InvalidOption(f"all jobs of this call must be NewJobs of tenant {tenant!r}")
    return new


def _key(tenant: object, job_id: object) -> JobKey:
    try:
        return JobKey(name(tenant, what="tenant"), job_id if isinstance(job_id, UUID) else UUID(str(job_id)))
    except ValueError:
        raise InvalidOption(f"job_id must be the UUID that submit() returned, not {str(job_id)[:60]!r}") from None


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
