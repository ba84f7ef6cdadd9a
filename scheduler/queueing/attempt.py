"""One attempt: start, call, classify, decide, end. Comes in: a delivery. Goes out: its `Result`; it never raises."""

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

from scheduler.dialects.interface import Delivery, Note, Result
from scheduler.errors import InvalidPayload, PermanentError, TemporaryError
from scheduler.log import Keys, keys, logger
from scheduler.model.attempts import AttemptEnd
from scheduler.model.body import Cancelled
from scheduler.model.durations import duration
from scheduler.model.failures import TIMED_OUT, Category, Failure, classify, describe, named
from scheduler.model.handling import Handler, JobContext
from scheduler.model.payloads import DEFAULT_LIMIT, decode, encode
from scheduler.model.policies import RETRY, TIMEOUTS, Timeouts
from scheduler.model.retries import Backoff, Bury, Cancel, Fail, Retry, RetryPolicy, decide
from scheduler.model.states import State
from scheduler.trace import Spans, Work

LEASE_LOST = "its lease was lost"
STOPPING = "the worker is stopping"
PUT_BACK = "put_back"
SILENCE = Note()
COMPLETED = State.COMPLETED  # looked up once: it is dear, and this is done for every attempt


class Limits(NamedTuple):
    """How a job is retried, and in seconds how long an attempt may take, and its worker be silent."""

    retry: RetryPolicy
    execution: float
    visibility: float

    @classmethod
    def of(cls, retry: RetryPolicy, timeouts: Timeouts, handler: Handler) -> "Limits":
        """Read them for jobs that a handler runs."""
        visibility = duration(timeouts.visibility, name="visibility")
        return cls(retry, timeouts.for_handler(handler.timeout).total_seconds(), visibility.total_seconds())


Usual = Callable[[Handler], Limits]


def usual_limits(retry: RetryPolicy) -> Usual:
    """Say what holds for jobs without a policy of their own."""
    return cache(lambda handler: Limits.of(retry, TIMEOUTS, handler))


USUAL = usual_limits(RETRY)


class Tie:
    """A time in which Redis did not fail us: what it gave us then, or said to be ours, is ours while it `holds`."""

    __slots__ = ("holds",)

    def __init__(self) -> None:
        self.holds = True


TIED = Tie()


class Attempt:
    """A delivery under way; what happens to it is written here by whoever sees it first."""

    __slots__ = (
        "cancelled", "deadline", "delivery", "handler", "lost", "note", "on_tell", "over", "received", "retry", "said",
        "span", "spawned", "started", "tie", "timeout", "visibility", "worker",
    )  # fmt: skip

    def __init__(
        self,
        delivery: Delivery,
        handler: Handler,
        worker: str,
        on_tell: Callable[["Attempt"], None],
        usual: Usual = USUAL,
        *,
        tie: Tie = TIED,
    ) -> None:
        self.delivery = delivery
        self.tie = tie
        self.handler = handler
        self.worker = worker
        self.on_tell = on_tell
        policy = delivery.job.policy
        limits = usual(handler) if policy is None else Limits.of(*delivery.job.policies(), handler)
        self.retry, self.timeout, self.visibility = limits
        self.cancelled = Cancelled()
        self.received = time.monotonic()
        self.started: float | None = None
        self.deadline: float | None = None
        self.lost = False
        self.over = False  # its end is on its way to Redis
        self.note = SILENCE if delivery.job.checkpoint is None else Note(checkpoint=delivery.job.checkpoint)
        self.said = False  # there is a note that has not been heard
        self.spawned: list[Mapping[str, Any]] = []
        self.span: Work | None = None

    @property
    def attempt(self) -> int:
        """Its number, from 1."""
        return self.delivery.attempt

    @property
    def expires_at(self) -> Any:
        """The end of the job's lifetime."""
        return self.delivery.job.expires_at

    def start(self) -> None:
        """Note that the handler is about to be called, and until when it may run."""
        self.started = time.monotonic()
        self.deadline = self.started + self.timeout

    def traced(self, spans: Spans) -> Work:
        """Begin its span: a child of the one in which the job was submitted."""
        job = self.delivery.job
        about = {"queue": job.queue, "job_id": job.id, "type": job.type, "namespace": job.tenant}
        self.span = spans.begin(f"attempt {job.type}", job.trace, {**about, "attempt": self.attempt})
        return self.span

    def payload(self) -> object:
        """Read what was submitted."""
        return decode(self.delivery.job.form, self.delivery.job.payload)

    def context(self) -> JobContext:
        """Make what the handler is given."""
        job = self.delivery.job
        return JobContext(
            job.id, job.tenant, job.type, job.queue, job.tags or {}, job.correlation_id, self.delivery.attempt,
            self._moment(self.deadline or self.received), self.cancelled, self.note.checkpoint, self.tell,
        )  # fmt: skip

    def values(self) -> dict[str, Any]:
        """Write the context as data, for another process."""
        job = self.delivery.job
        return {
            "id": job.id,
            "tenant": job.tenant,
            "type": job.type,
            "queue": job.queue,
            "tags": job.tags or {},
            "correlation_id": job.correlation_id,
            "attempt": self.attempt,
            "deadline": self._moment(time.monotonic() + self.timeout).isoformat(),
            "last_checkpoint": self.note.checkpoint,
        }

    def tell(self, what: str, value: Any) -> None:
        """Hear what the handler says meanwhile."""
        match what:
            case "progress":
                self.note = self.note._replace(progress=value[0], message=value[1])
            case "checkpoint":
                self.note = self.note._replace(checkpoint=value)
            case _:
                self.spawned.append(value)
                return
        self.said = True
        self.on_tell(self)

    def heard(self, note: Note | None) -> None:
        """Hear that Redis has this note; the handler may have said more since."""
        if note is not None:
            self.said = False  # before we look: whoever says something after that says so
            if self.note is not note:
                self.said = True

    def end(self, result: object, error: BaseException | None, backoffs: Mapping[str, Backoff]) -> Result:
        """Make the result of what the handler returned or raised."""
        try:
            ended = self._end(result, error, backoffs)
        except Exception as raised:  # noqa: BLE001 - what the handler returned or raised does that
            failure = Failure(category=Category.PERMANENT, message=f"{type(raised).__name__}: when its end was read")
            ended = failed(self, failure, self._moment(time.monotonic()), backoffs)
        end = ended.end
        error_name = None if end is None or end.error is None else named(end.error)
        if end is not None and error_name is not None:
            self._announce(end, error_name)
        if self.span is not None:
            self.span.end(PUT_BACK if end is None else end.state, error_name)
        return ended

    def _end(self, result: object, error: BaseException | None, backoffs: Mapping[str, Backoff]) -> Result:
        if self.lost and self.started is None:
            return Result(self.delivery, None)  # it was not called: whoever has the job now begins it
        if error is None and self.cancelled.reason is None:
            try:
                return self._completed(None if result is None else encode(result, limit=DEFAULT_LIMIT, what="result"))
            except InvalidPayload as invalid:
                error = PermanentError(str(invalid), code="invalid-result")
        if self.cancelled.reason == STOPPING and error is not None:
            return Result(self.delivery, None)
        if error is None and self.cancelled.reason != "timeout":
            return self._completed(None)  # it was asked to end and came to its end all the same
        failure = classify(error or TemporaryError("it ended after its timeout"), self.cancelled)
        return failed(self, failure, self._moment(time.monotonic()), backoffs)

    def _announce(self, end: AttemptEnd, error: str) -> None:
        """Say that it failed, and by what; the text of the error is in the ledger."""
        if end.state is State.CANCELLED:
            return
        job = self.delivery.job
        about: Keys = {"queue": job.queue, "job_id": job.id, "type": job.type, "attempt": self.attempt}
        about["worker_id"] = self.worker
        if job.tenant:
            about["namespace"] = job.tenant
        if job.correlation_id is not None:
            about["request_id"] = job.correlation_id
        if self.span is not None and (ids := self.span.ids()) is not None:
            about["trace_id"], about["span_id"] = ids
        level = logging.INFO if end.state is State.RETRYING else logging.WARNING
        said = "queue %s: attempt %d of %s %s: %s: %s"
        logger.log(level, said, job.queue, self.attempt, job.type, job.id, end.state, error, extra=keys(**about))

    def _completed(self, encoded: tuple[str, bytes] | None) -> Result:
        if encoded is not None and encoded[0] != "json":
            raise InvalidPayload("result must be JSON, not bytes")
        job = self.delivery.job
        return Result(
            self.delivery,
            AttemptEnd(
                job.tenant,
                job.id,
                job.feed,
                self.delivery.attempt,
                COMPLETED,
                self._moment(self.started or self.received),
                self._moment(time.monotonic()),
                self.worker,
                result=None if encoded is None else encoded[1],
                spawned=self.spawned,
            ),
        )

    def _moment(self, monotonic: float) -> Any:
        """Say when something was, by the clock of Redis."""
        return self.delivery.started_at + timedelta(0, monotonic - self.received)


def failed(attempt: Attempt, failure: Failure, now: Any, backoffs: Mapping[str, Backoff]) -> Result:
    """Decide what follows a failed attempt, and make its result."""
    delay: timedelta | None = None
    try:
        decision = decide(attempt, failure, now=now, rng=random, backoffs=backoffs)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - a backoff of the user's own
        decision = Fail()
        failure = Failure(category=Category.PERMANENT, message=f"its backoff raised: {describe(error)}")
    match decision:
        case Retry(wait):
            state, delay = State.RETRYING, wait
        case Bury():
            state = State.DEAD_LETTER
        case Cancel():
            state = State.CANCELLED
        case Fail():
            state = State.FAILED
    job = attempt.delivery.job
    return Result(
        attempt.delivery,
        AttemptEnd(
            tenant=job.tenant,
            job_id=job.id,
            feed=job.feed,
            attempt=attempt.attempt,
            state=state,
            started_at=attempt._moment(attempt.started or attempt.received),  # noqa: SLF001
            ended_at=now,
            worker=attempt.worker,
            delay=delay,
            category=failure.category,
            code=failure.code or None,
            error=failure.message,
            checkpoint=attempt.note.checkpoint,
        ),
    )


NOBODY = Handler(type="", queue="", fn=lambda *_: None)


def overdue(attempts: Iterable[Attempt], now: float) -> tuple[float, list[Attempt]]:
    """Tell attempts that are past their timeout; return when the next will be, and who they are."""
    soonest, late = now + 1.0, []
    for attempt in attempts:
        if attempt.deadline is None or attempt.cancelled.reason is not None:
            continue
        if attempt.deadline <= now:
            attempt.cancelled.because(TIMED_OUT)
            late.append(attempt)
        else:
            soonest = min(soonest, attempt.deadline)
    return soonest, late
