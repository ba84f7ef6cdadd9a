"""A handler of submitted jobs, and what it is given."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, Unpack
from uuid import UUID

from scheduler.errors import InvalidOption, InvalidPayload, JobCancelled
from scheduler.log import JobLogger, Keys
from scheduler.model.body import Cancelled, Executor, importable
from scheduler.model.ids import derived_id
from scheduler.model.labels import Priority
from scheduler.model.oneshot import attempt_id, previous_id_of
from scheduler.model.payloads import LARGEST_LIMIT, decode, encode
from scheduler.model.submission import Draft, NewJob, Submission, SubmitOptions, drafts
from scheduler.model.texts import storable

LARGEST_CHECKPOINT = 64 * 1024
LONGEST_MESSAGE = 500


# eq=False: each job looks up its handler by hash, and hashing the fields is slow.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler:
    """A function that runs jobs of a type, and how it is called."""

    type: str
    queue: str
    fn: Callable[..., Any]
    timeout: timedelta | None = None
    concurrency: int | None = None
    is_async: bool = False
    imported_as: str | None = None  # module:name, for a process of its own

    @classmethod
    def of(cls, fn: object, *, executor: Executor, **options: Any) -> "Handler":
        """Look at a function once, when it is registered."""
        if not callable(fn):
            raise InvalidOption(f"a handler must be a function, not {type(fn).__name__}")
        _check_parameters(fn)
        is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
            getattr(type(fn), "__call__", None)  # noqa: B004
        )
        imported_as = importable(fn) if executor == "process" else None
        return cls(fn=fn, is_async=is_async, imported_as=imported_as, **options)


def _check_parameters(fn: Callable[..., Any]) -> None:
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        raise InvalidOption(
            "a handler takes a JobContext and the payload: def "
            f"{getattr(fn, '__name__', 'handler')}(ctx, payload)"
        ) from None
    except ValueError:
        return  # a builtin without a signature


class ContextJob(Protocol):
    """What a context shows of its job: a job from a queue, or its copy in a child process.

    feed: how often the job was fed to Redis. previous_attempt_id: as text.
    """

    id: str
    tenant: str
    type: str
    queue: str
    tags: Mapping[str, str] | None
    correlation_id: str | None
    idempotency_key: str | None
    feed: int
    previous_attempt_id: str | None


class JobContext:
    """The first argument of a handler: the job, this attempt, and what the handler can report.

    attempt: the number of this attempt, from 1. deadline: when its timeout ends it. cancelled: true
    once the handler should stop (see `Cancelled`). last_checkpoint: what an earlier attempt passed
    to `checkpoint()`. worker: the name of the worker that runs it. sequence: the number that the
    worker gave to the lease.
    """

    __slots__ = (
        "_child_jobs",
        "_job",
        "_report",
        "attempt",
        "cancelled",
        "deadline",
        "last_checkpoint",
        "sequence",
        "worker",
    )

    def __init__(  # noqa: PLR0917 - made for every job; keyword arguments take twice as long
        self,
        job: ContextJob,
        attempt: int,
        deadline: datetime,
        cancelled: Cancelled,
        last_checkpoint: Any,
        worker: str,
        sequence: int,
        report: Callable[[str, Any], None],
    ) -> None:
        self._job = job
        self.attempt = attempt
        self.deadline = deadline
        self.cancelled = cancelled
        self.last_checkpoint = last_checkpoint
        self.worker = worker
        self.sequence = sequence
        self._report = report
        self._child_jobs = 0

    @property
    def id(self) -> str:
        """The id of the job."""
        return self._job.id

    @property
    def tenant(self) -> str:
        """The tenant of the job; empty for a job of a foreign producer."""
        return self._job.tenant

    @property
    def type(self) -> str:
        """The type of the job."""
        return self._job.type

    @property
    def queue(self) -> str:
        """The queue of the job."""
        return self._job.queue

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags that the job was submitted with."""
        return self._job.tags or {}

    @property
    def correlation_id(self) -> str | None:
        """The correlation id that the job was submitted with."""
        return self._job.correlation_id

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key that the job was submitted with; None if it has none.

        Every attempt of the job has the same one, also after Redis lost its data. Pass it to
        systems that take such keys themselves, for instance in a header `Idempotency-Key`.
        """
        return self._job.idempotency_key

    @property
    def attempt_id(self) -> UUID | None:
        """The id of this attempt, for systems that refuse a request that they have seen; None for
        a job of a foreign producer whose id is not a UUID.

        It is derived from the job and the lease, so no two executions share one.
        """
        try:
            job_id = UUID(self.id)
        except ValueError:
            return None
        feed = self._job.feed
        return attempt_id(job_id, self.worker, self.sequence, feed=feed, attempt=self.attempt)

    @property
    def previous_attempt_id(self) -> UUID | None:
        """The id of the attempt before this one, or None.

        An attempt that was put back or lost after it had begun counts, a lease that never began
        does not. After Redis lost its data it is the last attempt that was settled. In a job that
        `retry_job` submitted, the first attempt follows the last one of the job that was retried.
        """
        return previous_id_of(self._job)

    @property
    def logger(self) -> JobLogger:
        """A logger whose lines name the job, the attempt and the worker (docs/logs.md)."""
        known: Keys = {
            "job_id": self.id,
            "queue": self.queue,
            "type": self.type,
            "attempt": self.attempt,
            "worker_id": self.worker,
        }
        if self.tenant:
            known["namespace"] = self.tenant
        if self.correlation_id is not None:
            known["request_id"] = self.correlation_id
        return JobLogger(**known)

    def raise_if_cancelled(self) -> None:
        """Raise `JobCancelled` once the handler should stop.

        Call it between the steps of a long job, and let the exception through. After a cancel the
        job ends CANCELLED. If the worker stops, the job is put back and the attempt is not charged.
        """
        if self.cancelled:
            raise JobCancelled(self.cancelled.reason)

    def progress(self, percent: float, message: str | None = None) -> None:
        """Report how far the job is, from 0 to 100, with a message of up to 500 characters.

        `get()` shows the newest report, and `events()` publishes reports to clients that listen:
        the first immediately, then the newest once in 100 ms, and the last before the job ends.
        """
        given: object = percent
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 100:
            raise InvalidOption(f"progress is a number from 0 to 100, not {percent!r}")
        text = None if message is None else storable(str(message), LONGEST_MESSAGE)
        self._report("progress", [float(percent), text])

    def checkpoint(self, value: object) -> None:
        """Keep a value that the next attempt finds as `last_checkpoint`: JSON, at most 64 KB."""
        form, encoded = encode(value, limit=LARGEST_CHECKPOINT, what="checkpoint")
        if form != "json":
            raise InvalidPayload("checkpoint must be JSON, not bytes")
        self._report(
            "checkpoint", decode("json", encoded)
        )  # a copy: the handler can change its own

    def submit(
        self,
        type: str,  # noqa: A002
        payload: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Submission:
        """Submit another job of this tenant, if this attempt succeeds: it exists when this one has
        completed.

        The id is provisional: if the idempotency key is taken, `get()` returns the existing job. A
        job that cannot be submitted, because it depends on an unknown job or is larger than
        `max_payload`, is FAILED with the reason.
        """
        (draft,) = drafts([NewJob(self.tenant, type, payload, **options)], limit=LARGEST_LIMIT)
        try:
            parent = UUID(self.id)
        except ValueError:
            raise InvalidOption(
                f"job {self.id} is in no ledger: it cannot submit others through its end"
            ) from None
        self._child_jobs += 1
        draft.id = derived_id(parent, self._child_jobs)
        self._report("submit", spawned_of(draft))
        return Submission(draft.id)


_TRAVELS = (
    "tenant",
    "type",
    "queue",
    "policy",
    "tags",
    "correlation_id",
    "callback_url",
    "key",
    "form",
    "trace",
)


def spawned_of(draft: Draft) -> dict[str, Any]:
    """Write a checked job as JSON has it."""
    written: dict[str, Any] = {
        name: getattr(draft, name) for name in _TRAVELS if getattr(draft, name) is not None
    }
    written["id"] = str(draft.id)
    written["priority"] = int(draft.priority)
    written["payload"] = draft.payload.decode("utf-8" if draft.form == "json" else "latin-1")
    written["lifetime"] = draft.lifetime.total_seconds()
    written["window"] = draft.window.total_seconds()
    if draft.run_at is not None:
        written["run_at"] = draft.run_at.isoformat()
    if draft.delay is not None:
        written["delay"] = draft.delay.total_seconds()
    for name in ("after", "after_any"):
        if getattr(draft, name):
            written[name] = [str(each) for each in getattr(draft, name)]
    return written


def draft_of(written: Mapping[str, Any]) -> Draft:
    """Read what `spawned_of` wrote; raises `ValueError` or the like if it did not."""
    run_at, delay = written.get("run_at"), written.get("delay")
    texts: dict[str, Any] = {name: written.get(name) for name in _TRAVELS}
    for name, value in texts.items():
        if value is not None and (type(value) is not str or "\0" in value):
            raise ValueError(f"{name} of a submitted job must be a text without NUL")
    return Draft(
        **texts,
        id=UUID(written["id"]),
        priority=Priority(written["priority"]),
        payload=written["payload"].encode("utf-8" if written["form"] == "json" else "latin-1"),
        lifetime=timedelta(seconds=written["lifetime"]),
        window=timedelta(seconds=written["window"]),
        run_at=None if run_at is None else datetime.fromisoformat(run_at),
        delay=None if delay is None else timedelta(seconds=delay),
        after=[UUID(each) for each in written.get("after", ())],
        after_any=[UUID(each) for each in written.get("after_any", ())],
    )
