"""Recovery: what becomes of leased jobs whose worker is dead.

Workers and instances call `recover`. It needs no handler of a job. Two processes can find the same
orphan: each decides, and Redis accepts the first decision, because a lease is ended only once.
"""

import contextlib
import logging
import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from scheduler.dialects.interface import Delivery, Queue, Result
from scheduler.events import Events, JobsRecovered
from scheduler.log import keys as log_fields
from scheduler.model.attempts import AttemptEnd
from scheduler.model.failures import Category, Failure, describe
from scheduler.model.policies import RETRY
from scheduler.model.retries import Backoff, Bury, Cancel, Fail, Retry, RetryPolicy, decide
from scheduler.model.states import State

logger = logging.getLogger("scheduler")

WORKER_LOST = Failure(category=Category.SYSTEM, message="its worker was lost")


class Failed(Protocol):
    """What the result of a failed attempt is made of."""

    @property
    def delivery(self) -> Delivery: ...
    @property
    def worker(self) -> str: ...
    @property
    def charged(self) -> int: ...
    @property
    def retry(self) -> RetryPolicy: ...
    @property
    def expires_at(self) -> datetime: ...


class _Orphan(NamedTuple):
    """A leased job whose worker is dead."""

    delivery: Delivery
    retry: RetryPolicy

    @property
    def worker(self) -> str:
        return self.delivery.worker

    @property
    def charged(self) -> int:
        return self.delivery.charged

    @property
    def expires_at(self) -> datetime:
        return self.delivery.job.expires_at


def recover(
    queue: Queue,
    events: Events,
    backoffs: Mapping[str, Backoff],
    *,
    default: RetryPolicy = RETRY,
    foreign: bool = False,
) -> None:
    """Reclaim the jobs of dead workers, each by its retry policy.

    A job without a policy follows the policy that its worker stored, else `default`. foreign: see
    `Queue.recover`.
    """
    stored: dict[str, RetryPolicy] = {}
    dead = 0

    def retry_of(worker: str) -> RetryPolicy:
        if worker not in stored:
            stored[worker] = queue.retry_defaults.read(worker) or default
        return stored[worker]

    def decide_on(delivery: Delivery) -> Result:
        nonlocal dead
        retry = _own_retry(delivery) or retry_of(delivery.worker)
        result = orphaned_result(delivery, retry, backoffs)
        dead += result.end is not None and result.end.state.terminal
        return result

    if reclaimed := queue.recover(decide_on, foreign=foreign):
        message = "queue %s: reclaimed %d jobs of dead workers"
        logger.warning(message, queue.name, reclaimed, extra=log_fields(queue=queue.name))
        # Another process can have decided on some of them first.
        events.emit(JobsRecovered(queue=queue.name, count=reclaimed, buried=min(dead, reclaimed)))


def _own_retry(delivery: Delivery) -> RetryPolicy | None:
    with contextlib.suppress(Exception):  # a policy that cannot be read
        return None if delivery.job.policy is None else delivery.job.policies()[0]
    return None


def orphaned_result(
    delivery: Delivery, retry: RetryPolicy = RETRY, backoffs: Mapping[str, Backoff] | None = None
) -> Result:
    """Decide what becomes of a leased job whose worker is dead.

    A custom backoff that this process does not have is exponential, see `RetryPolicy.delay`.
    """
    at = delivery.started_at
    result = failed_result(_Orphan(delivery, retry), WORKER_LOST, at, at, backoffs or {})
    if result.end is not None:
        result.end.checkpoint = delivery.job.checkpoint
    return result


def failed_result(
    attempt: Failed,
    failure: Failure,
    started_at: datetime,
    now: datetime,
    backoffs: Mapping[str, Backoff],
) -> Result:
    """Decide what follows a failed attempt, and make its result."""
    delay: timedelta | None = None
    try:
        decision = decide(attempt, failure, now=now, rng=random, backoffs=backoffs)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - a backoff function of the user
        decision = Fail()
        message = f"its backoff raised: {describe(error)}"
        failure = Failure(category=Category.PERMANENT, message=message)
    match decision:
        case Retry(wait):
            state, delay = State.RETRYING, wait
        case Bury():
            state = State.DEAD_LETTER
        case Cancel():
            state = State.CANCELLED
        case Fail():
            state = State.FAILED
    delivery = attempt.delivery
    job = delivery.job
    return Result(
        delivery,
        AttemptEnd(
            tenant=job.tenant,
            job_id=job.id,
            feed=job.feed,
            attempt=delivery.attempt,
            state=state,
            started_at=started_at,
            ended_at=now,
            worker=attempt.worker,
            sequence=delivery.sequence,
            delay=delay,
            category=failure.category,
            code=failure.code or None,
            error=failure.message,
            uncharged=delivery.uncharged,
            previous_attempt_id=job.previous_attempt_id,
            scheduled_at=job.scheduled_at,
        ),
    )
