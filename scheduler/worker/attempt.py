"""One attempt: a leased job on its way through its handler.

A `Delivery` comes in. A `Result` for Redis comes out: completed, failed, to be retried, or put
back. Whatever the handler returns or raises, making the result never raises.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.dialects.interface import Delivery, Note, Result
from scheduler.errors import JobCancelled, PermanentError, TemporaryError
from scheduler.log import Keys, keys, logger
from scheduler.model.attempts import LEFT_OUT, AttemptEnd
from scheduler.model.body import Cancelled
from scheduler.model.durations import duration
from scheduler.model.failures import (
    ASKED_TO_CANCEL,
    TIMED_OUT,
    Category,
    Failure,
    classify,
    named,
)
from scheduler.model.handling import Handler, JobContext
from scheduler.model.payloads import InvalidResult, decode, encode_result
from scheduler.model.policies import RETRY, TIMEOUTS, Timeouts
from scheduler.model.retries import Backoff, RetryPolicy
from scheduler.model.states import State
from scheduler.recovery import failed_result
from scheduler.trace import Spans, Work

if TYPE_CHECKING:
    from scheduler.worker.consumer import QueueConsumer

LEASE_LOST = "its lease was lost"
STOPPING = "the worker is stopping"
NO_NOTE = Note()
CONTEXT_FIELDS = (
    *("id", "tenant", "type", "queue", "tags", "correlation_id", "idempotency_key"),
    *("feed", "previous_attempt_id"),
)
COMPLETED = State.COMPLETED  # reading a member of an enum is slow, and every attempt needs it
MISSING_HANDLER = Handler(type="", queue="", fn=lambda *_: None)


class Limits(NamedTuple):
    """The retry policy of a job, its execution timeout, and its visibility timeout in seconds."""

    retry: RetryPolicy
    execution: timedelta
    visibility: float

    @classmethod
    def from_policy(cls, retry: RetryPolicy, timeouts: Timeouts, handler: Handler) -> "Limits":
        """Combine the policies of a job with the timeout of its handler."""
        visibility = duration(timeouts.visibility, name="visibility")
        execution = timeouts.for_handler(handler.timeout)
        return cls(retry, execution, visibility.total_seconds())


DefaultLimits = Callable[[Handler], Limits]


def default_limits(retry: RetryPolicy) -> DefaultLimits:
    """Return a function from handlers to the limits of jobs that have no policy of their own."""
    return cache(lambda handler: Limits.from_policy(retry, TIMEOUTS, handler))


DEFAULT_LIMITS = default_limits(RETRY)


class Attempt:
    """A leased job, from its delivery to the acknowledgement of its result.

    generation: the lease generation of the queue in which Redis last confirmed the lease (see
    `QueueConsumer`). begun: a thread has taken it, so its handler can have been called. lost: Redis
    no longer holds the lease. acknowledging: its result is decided and on its way to Redis. note:
    the last progress and checkpoint; dirty: Redis does not have that note yet.
    """

    __slots__ = (
        "acknowledging",
        "begun",
        "cancelled",
        "child_jobs",
        "consumer",
        "deadline",
        "delivery",
        "dirty",
        "generation",
        "handler",
        "invalid",
        "lost",
        "note",
        "received",
        "retry",
        "span",
        "started",
        "started_at",
        "timeout",
        "visibility",
    )

    def __init__(
        self, delivery: Delivery, handler: Handler, consumer: "QueueConsumer", generation: int
    ) -> None:
        self.delivery = delivery
        self.handler = handler
        self.consumer = consumer
        self.generation = generation
        job = delivery.job
        self.invalid = ""
        limits = consumer.default_limits(handler)
        if job.policy is not None:
            try:
                limits = Limits.from_policy(*job.policies(), handler)
            except Exception as error:  # noqa: BLE001 - written by another version, or by anyone
                self.invalid = f"the policy of the job is invalid: {type(error).__name__}"
        self.retry, self.timeout, self.visibility = limits
        self.cancelled = Cancelled()
        self.received = time.monotonic()
        self.begun = False
        self.started: float | None = None
        self.started_at = delivery.started_at
        self.deadline: float | None = None
        self.lost = False
        self.acknowledging = False
        self.note = NO_NOTE if job.checkpoint is None else Note(checkpoint=job.checkpoint)
        self.dirty = False
        self.child_jobs: list[Mapping[str, Any]] = []
        self.span: Work | None = None

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.delivery.attempt

    @property
    def charged(self) -> int:
        """The number of this attempt among those that count towards `max_attempts`."""
        return self.delivery.charged

    @property
    def is_last_chance(self) -> bool:
        """Whether the job lost a worker before, and ends if it loses this one too."""
        return self.delivery.orphaned and self.delivery.is_last_chance(self.retry)

    @property
    def worker(self) -> str:
        """The name of the worker that runs it."""
        return self.consumer.worker

    @property
    def expires_at(self) -> datetime:
        """The end of the job's lifetime."""
        return self.delivery.job.expires_at

    @property
    def is_overdue(self) -> bool:
        """Whether the handler still runs although the attempt has ended: it is past its timeout, or
        Redis gave up the lease because the job has ended or another worker has it.
        """
        running = self.started is not None and not self.acknowledging
        return running and (self.lost or TIMED_OUT in self.cancelled.causes)

    def can_start(self) -> bool:
        """Return whether the handler can be called; raise if the job itself is invalid.

        It cannot if the job was put back, or if another worker has the lease by now.
        """
        if self.invalid:
            raise PermanentError(self.invalid, code="invalid-policy")
        return not (self.lost or self.acknowledging)

    def start(self) -> None:
        """Record that the handler is about to be called; its timeout begins now."""
        self.started = time.monotonic()
        self.started_at = self._redis_time(self.started)
        self.deadline = self.started + self.timeout.total_seconds()

    def begin_span(self, spans: Spans) -> Work:
        """Begin the span of this attempt, a child of the span in which the job was submitted."""
        job = self.delivery.job
        attributes = {
            "queue": job.queue,
            "job_id": job.id,
            "type": job.type,
            "namespace": job.tenant,
            "attempt": self.attempt,
        }
        self.span = spans.begin(f"attempt {job.type}", job.trace, attributes)
        return self.span

    def payload(self) -> object:
        """Decode the payload of the job."""
        return decode(self.delivery.job.form, self.delivery.job.payload)

    def context(self) -> JobContext:
        """Return the context for a handler in this process."""
        return JobContext(
            self.delivery.job,
            self.delivery.attempt,
            self.started_at + self.timeout,
            self.cancelled,
            self.note.checkpoint,
            self.consumer.worker,
            self.delivery.sequence,
            self.report,
        )

    def context_data(self) -> dict[str, Any]:
        """Return the context as JSON data, for a handler in a child process."""
        job = self.delivery.job
        return {
            "job": {name: getattr(job, name) for name in CONTEXT_FIELDS},
            "attempt": self.attempt,
            "deadline": (self._redis_time(time.monotonic()) + self.timeout).isoformat(),
            "last_checkpoint": self.note.checkpoint,
            "worker": self.worker,
            "sequence": self.delivery.sequence,
        }

    def report(self, what: str, value: Any) -> None:
        """Take progress, a checkpoint or a child job from the handler."""
        match what:
            case "progress":
                self.note = self.note._replace(progress=value[0], message=value[1])
                self.consumer.progressed(self)
            case "checkpoint":
                self.note = self.note._replace(checkpoint=value)
            case _:
                self.child_jobs.append(value)
                return
        self.dirty = True
        self.consumer.on_note()

    def unsent_note(self) -> Note | None:
        """Return the note if Redis does not have it."""
        return self.note if self.dirty else None

    def note_sent(self, note: Note | None) -> None:
        """Record that Redis has this note. The handler can have reported a newer one meanwhile."""
        if note is not None:
            self.dirty = False  # first: a report after this line sets it again
            if self.note is not note:
                self.dirty = True

    def result(
        self, returned: object, error: BaseException | None, backoffs: Mapping[str, Backoff]
    ) -> Result:
        """Decide what the return value or the exception of the handler means."""
        try:
            result = self._decide(returned, error, backoffs)
        except BaseException as raised:  # noqa: BLE001 - code of the user: an exception's __str__
            failure = Failure(
                category=Category.PERMANENT,
                message=f"{type(raised).__name__}: when its result was read",
            )
            result = self._failed(failure, backoffs)
        try:
            self._report(result.end)
        except Exception:  # noqa: BLE001 - a log handler or a span exporter of the user
            with contextlib.suppress(Exception):
                logger.exception("job %s: could not log how it ended", self.delivery.job.id)
        return result

    def _report(self, end: AttemptEnd | None) -> None:
        """Log a failure, and end the span."""
        error_name = None if end is None or end.error is None else named(end.error)
        if end is not None and error_name is not None:
            level = logging.INFO if end.state is State.RETRYING else logging.WARNING
            if end.state is not State.CANCELLED:
                self._log(level, f"{end.state}: {error_name}")
        elif end is not None and end.reason is not None:
            self._log(logging.WARNING, LEFT_OUT)
        if self.span is not None:
            self.span.end("put_back" if end is None else end.state, error_name)

    def put_back(self, delay: timedelta | None = None) -> Result:
        """Return the job to its queue; the attempt does not count."""
        return Result(
            self.delivery,
            None,
            self.unsent_note(),
            begun=self.begun,
            unhandled=self.handler is MISSING_HANDLER,
            delay=delay,
        )

    def _decide(
        self, returned: object, error: BaseException | None, backoffs: Mapping[str, Backoff]
    ) -> Result:
        if self.lost and self.started is None:
            return self.put_back()
        causes = self.cancelled.causes
        # A handler that saw that it should stop, and returned nothing, has stopped early.
        stopped_early = error is not None or (returned is None and self.cancelled.seen)
        if TIMED_OUT in causes:
            error = error or TemporaryError("the handler returned after its timeout")
        elif stopped_early and ASKED_TO_CANCEL in causes:
            error = error or JobCancelled("the handler stopped because the job was cancelled")
        elif stopped_early and STOPPING in causes:
            return self.put_back()
        if error is None:
            return self._completed(returned)
        return self._failed(classify(error, self.cancelled), backoffs)

    def _completed(self, returned: object) -> Result:
        encoded = encode_result(returned)
        reason: str | None = None
        if isinstance(encoded, InvalidResult):  # not a failure: a retry would repeat the work
            reason = f"{LEFT_OUT}: {encoded.reason}"
            encoded = None
        job = self.delivery.job
        return Result(
            self.delivery,
            AttemptEnd(
                job.tenant,
                job.id,
                job.feed,
                self.delivery.attempt,
                COMPLETED,
                self.started_at,
                self._redis_time(time.monotonic()),
                self.worker,
                self.delivery.sequence,
                result=encoded,
                reason=reason,
                spawned=self.child_jobs,
                uncharged=self.delivery.uncharged,
                previous_attempt_id=job.previous_attempt_id,
                scheduled_at=job.scheduled_at,
            ),
            self.unsent_note(),
        )

    def _failed(self, failure: Failure, backoffs: Mapping[str, Backoff]) -> Result:
        now = self._redis_time(time.monotonic())
        result = failed_result(self, failure, self.started_at, now, backoffs)
        result.note = self.unsent_note()
        if result.end is not None:
            result.end.checkpoint = self.note.checkpoint
        return result

    def _log(self, level: int, outcome: str) -> None:
        """Log how the attempt ended, without the text of an error, which can hold secrets."""
        job = self.delivery.job
        fields: Keys = {
            "queue": job.queue,
            "job_id": job.id,
            "type": job.type,
            "attempt": self.attempt,
            "worker_id": self.worker,
        }
        if job.tenant:
            fields["namespace"] = job.tenant
        if job.correlation_id is not None:
            fields["request_id"] = job.correlation_id
        if self.span is not None and (ids := self.span.ids()) is not None:
            fields["trace_id"], fields["span_id"] = ids
        logger.log(
            level,
            "queue %s: attempt %d of %s %s: %s",
            job.queue,
            self.attempt,
            job.type,
            job.id,
            outcome,
            extra=keys(**fields),
        )

    def _redis_time(self, monotonic: float) -> datetime:
        """Convert an instant of this process's monotonic clock to Redis's clock."""
        return self.delivery.started_at + timedelta(0, monotonic - self.received)


def cancel_overdue(attempts: Iterable[Attempt], now: float) -> tuple[float, list[Attempt]]:
    """Cancel attempts that are past their timeout; return them, and when the next one will be."""
    soonest, overdue = now + 1.0, []
    for attempt in attempts:
        if attempt.deadline is None or TIMED_OUT in attempt.cancelled.causes:
            continue
        if attempt.deadline <= now:
            attempt.cancelled.because(TIMED_OUT)
            overdue.append(attempt)
        else:
            soonest = min(soonest, attempt.deadline)
    return soonest, overdue
