"""Look at submitted jobs and steer them: get, find, update, cancel, retry. A tenant sees its own
jobs only.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import orjson

from scheduler.dialects.interface import Cancelling
from scheduler.errors import (
    IllegalTransition,
    InvalidOption,
    QueueError,
    StoreUnavailable,
    UnknownJob,
)
from scheduler.model.durations import duration
from scheduler.model.labels import Priority
from scheduler.model.oneshot import Job, live_state, named_attempts
from scheduler.model.policies import policy_json, policy_of
from scheduler.model.states import LIVE, TERMINAL, State, transition
from scheduler.model.submission import Draft
from scheduler.queueing.ending import end
from scheduler.queueing.ring import GONE
from scheduler.store.engine import Row
from scheduler.store.job_queue import Ending, JobKey, QueueTable
from scheduler.store.steps import Steps
from scheduler.trace import current

LOOK = 5000  # rows of either kind in a statement
TENANT_PAUSED = "its tenant is paused until resume_tenant() is called"
RETRIABLE = frozenset({State.FAILED, State.DEAD_LETTER, State.CANCELLED})


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the jobs that were asked for; with a `cursor` there may be more."""

    jobs: tuple[Job, ...]
    cursor: str | None


def get(table: QueueTable, key: JobKey) -> Steps[Job]:
    """Read one job, live or ended."""
    for _ in range(2):  # it may end between the two looks
        rows = yield table.of_job("live", key)
        if rows:
            return _live(key.tenant, rows[0])
        rows = yield table.of_job("over", key)
        if rows:
            return _over(key.tenant, rows[0])
    rows = yield table.aliased([key])
    if rows:
        return (yield from get(table, JobKey(key.tenant, rows[0][2])))
    raise UnknownJob(f"there is no job {key.id} of tenant {key.tenant!r}")


def find(
    table: QueueTable,
    tenant: str,
    *,
    states: Sequence[State] | None,
    filters: dict[str, object],
    limit: int,
    cursor: str | None,
    most: int | None = None,
) -> Steps[Page]:
    """Read a page: live jobs first, newest first, then those that ended, the last to end first.

    `most`: look at so many rows of either; where that is not enough for a page, its cursor is where
    the look stopped.
    """
    found: list[Job] = []
    while True:
        jobs, cursor = yield from _look(
            table,
            tenant,
            states=states,
            filters=filters,
            limit=limit - len(found),
            cursor=cursor,
            most=most or LOOK,
        )
        found += jobs
        over = {
            job.id for job in found if job.state in TERMINAL
        }  # one may have ended between two looks
        found = [job for job in found if job.state in TERMINAL or job.id not in over]
        if cursor is None or len(found) == limit or most is not None:
            return Page(tuple(found), cursor)


def _look(
    table: QueueTable,
    tenant: str,
    *,
    states: Sequence[State] | None,
    filters: dict[str, object],
    limit: int,
    cursor: str | None,
    most: int,
) -> Steps[tuple[list[Job], str | None]]:
    """Look at so many rows of either; return what fits, and where the look stopped if there may be
    more.
    """
    part, before, before_id = _read(cursor) if cursor else ("live", None, None)
    found: list[Job] = []
    for name, of, shape in (("live", LIVE, _live), ("over", TERMINAL, _over)):
        wanted = None if states is None else [state.value for state in states if state in of]
        if (part, name) == ("over", "live") or wanted == []:
            continue
        rows = yield table.find(
            f"find_{name}",
            {
                "tenant": tenant,
                "states": wanted,
                "before": before if part == name else None,
                **({"before_id": before_id if part == name else None} if name == "over" else {}),
                "limit": limit - len(found),
                "most": most,
                **filters,
            },
        )
        found += [shape(tenant, row) for *row, fits, _ in rows if fits]
        if rows and (len(found) == limit or rows[-1][-1] == most):
            return found, _cursor(name, rows[-1])
    return found, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What `update_job` changes; None keeps a value."""

    run_at: datetime | None = None
    delay: timedelta | None = None
    priority: Priority | None = None
    tags: str | None = None
    correlation_id: str | None = None
    callback_url: str | None = None
    idempotency_key: str | None = None

    @property
    def reschedules(self) -> bool:
        """Whether the job moves to another place among the waiting jobs."""
        return any(each is not None for each in (self.run_at, self.delay, self.priority))

    @property
    def reaches_handler(self) -> bool:
        """Whether the handler sees a difference."""
        seen = (self.tags, self.correlation_id, self.idempotency_key)
        return self.reschedules or any(each is not None for each in seen)


def update(
    table: QueueTable,
    key: JobKey,
    changes: Changes,
    *,
    withdraw: Callable[[str, Row], Cancelling] | None,
) -> Steps[Job]:
    """Change a live job, in Redis too if no attempt has begun.

    withdraw: removes a job from Redis if it waits there, given its queue and its row as it was fed.
    None: this scheduler has no Redis.

    Redis keeps no job of two versions. While its row is held, the job is removed from `job_ready`
    and from Redis, and then it waits in `job_ready` with the next feed:

    - A feeder that has the job is waited for. If it committed, Redis has the job; if it rolled
      back, Redis may have it. Both are found by asking Redis.
    - A worker leases the job before it is withdrawn, which is an error, or does not find it.
    - A push of the earlier feed that comes late, by a submitter or a suspended feeder, is refused.
    - If Redis has lost the job, it is unknown, and is fed again like any other.
    - Another update waits for the row.
    - If this process dies before it commits, the row has not changed, and the maintenance feeds
      the job again, because Redis does not know it.
    """
    waited = (yield from _take_back(table, key)) if changes.reaches_handler else False
    job = yield from get(table, key)  # after it: a feeder cannot take it between the two
    if job.id != key.id:  # an alias
        owner = JobKey(key.tenant, job.id)
        return (yield from update(table, owner, changes, withdraw=withdraw))
    if job.state.terminal:
        raise IllegalTransition(
            f"job {key.id} has ended ({job.state}): nothing of it changes any more"
        )
    was_fed = not waited and job.state is not State.PENDING
    is_free = True  # no worker leases it
    if changes.reaches_handler and (waited or was_fed):
        is_free = yield from _withdraw(table, key, job.queue, withdraw, waited=waited)
    if changes.reschedules and not is_free:
        raise IllegalTransition(
            f"job {key.id} has been fed, and an attempt may have begun: its run_at and priority "
            "can no longer change"
            + ("; this scheduler has no redis, so it cannot check" if withdraw is None else "")
        )
    if changes.idempotency_key is not None:
        yield table.of_job("drop_key", key)
    feeds_again = changes.reaches_handler and (waited or was_fed) and is_free
    yield table.of_job(
        "update",
        key,
        lifetime=duration(job.timeouts.lifetime, name="lifetime"),
        next_feed=int(feeds_again),
        withdrawn=was_fed and feeds_again,
        **asdict(changes),
    )
    if waited or feeds_again:
        yield table.of_job("put_back", key)
    return (yield from get(table, key))


def _withdraw(
    table: QueueTable,
    key: JobKey,
    queue: str,
    withdraw: Callable[[str, Row], Cancelling] | None,
    *,
    waited: bool,
) -> Steps[bool]:
    """Remove a held job from Redis, and return whether no worker has it."""
    if withdraw is None:
        return waited
    rows = yield table.of_job("as_fed", key)
    try:
        return withdraw(queue, rows[0]) in GONE
    except QueueError:
        if not waited:
            raise
        return True  # only a feeder that pushed it and did not commit can have left it in Redis


def cancel(
    table: QueueTable,
    key: JobKey,
    *,
    reason: str | None,
    force: bool,
    ask: Callable[..., Cancelling | None],
) -> Steps[tuple[JobKey, State]]:
    """End a job that no worker has, or by force. Ask the worker of any other to end it. Return its
    key, which is another one if it was given by an alias.

    ask: asks Redis about a job, given its queue, its row as it was fed, and whether it waited to be
    fed; None: Redis is unavailable. What waits to be fed is asked about as well, because a feeder
    that could not commit may have pushed it. A job with a result that is not settled is left to the
    settler.
    """
    waited = yield from _take_back(table, key)
    job = yield from get(table, key)
    if job.id != key.id:  # an alias
        owner = JobKey(key.tenant, job.id)
        return (yield from cancel(table, owner, reason=reason, force=force, ask=ask))
    if job.state is State.CANCELLED:
        return key, job.state
    transition(key.id, job.state, State.CANCELLED)
    rows = yield table.of_job("as_fed", key)
    answer = ask(job.queue, rows[0], waited=waited or job.state is State.PENDING)
    if answer is Cancelling.REFUSED and not force:
        raise IllegalTransition(
            f"job {key.id} is in the hands of a worker of BullMQ or Conveyor itself, which cannot "
            "be told to end it;"
            " wait for it, or cancel it with force=True: it ends here, and whatever comes of it is "
            "refused"
        )
    is_fed = not waited and job.state is not State.PENDING
    if is_fed if answer is None else answer not in GONE:
        yield from request_cancel(table, key, reason=reason, force=force)
        return key, job.state if answer is None else State.RUNNING
    ended = yield from end(
        table, [Ending(key=key, state=State.CANCELLED, reason=reason or "cancelled")]
    )
    if not ended.jobs:
        raise StoreUnavailable(f"job {key.id} is held by another transaction; try again")
    return key, State.CANCELLED


def request_cancel(
    table: QueueTable, key: JobKey, *, reason: str | None, force: bool
) -> Steps[None]:
    """Note that a job is to end; the maintenance repeats it until the job has ended."""
    if (yield table.of_job("ask_to_cancel", key, force=force, reason=reason)):
        return
    for _, _, owner in (yield table.aliased([key])):
        yield table.of_job("ask_to_cancel", JobKey(key.tenant, owner), force=force, reason=reason)


def _take_back(table: QueueTable, key: JobKey) -> Steps[bool]:
    """Take a job out of what waits to be fed; nobody else makes it ready, or changes where it
    waits, until we end.
    """
    yield table.of_job("hold", key)
    return bool((yield table.of_job("take_back", key)))


def retried(table: QueueTable, key: JobKey) -> Steps[Draft]:
    """Make a new job of one that ended without success; its own row stays."""
    job = yield from get(table, key)
    if job.state not in RETRIABLE:
        what = (
            "it is still live" if not job.state.terminal else "it has completed; submit a new one"
        )
        raise IllegalTransition(f"job {key.id} cannot be retried: {what}")
    return Draft(
        id=uuid4(),
        tenant=job.tenant,
        type=job.type,
        queue=job.queue,
        priority=job.priority,
        run_at=None,
        delay=None,
        form="json" if job.json else "bytes",
        payload=job.raw_payload,
        policy=policy_json(job.retry, job.timeouts),
        lifetime=duration(job.timeouts.lifetime, name="lifetime"),
        tags=orjson.dumps(dict(job.tags)).decode() if job.tags else None,
        correlation_id=job.correlation_id,
        callback_url=job.callback_url,
        key=job.idempotency_key,
        window=duration("1d", name="window"),
        after=[],
        after_any=[],
        retried_from=job.id,
        previous_attempt_id=UUID(job.attempts[-1]["attempt_id"]) if job.attempts else None,
        trace=current(),
    )


def _live(tenant: str, row: Sequence[Any]) -> Job:
    (
        id_,
        type_,
        queue,
        priority,
        run_at,
        created_at,
        updated_at,
        expires_at,
        attempt,
        retrying,
        open_dependencies,
        json,
        payload,
        policy,
        tags,
        correlation_id,
        callback_url,
        retried_from,
        idempotency_key,
        attempts,
        waits,
        cancel_at,
        now,
        tenant_paused_at,
        _,
    ) = row
    retry, timeouts = policy_of(policy)
    state = live_state(
        open_dependencies=open_dependencies, retrying=retrying, waits=waits, run_at=run_at, now=now
    )
    if run_at <= now and not open_dependencies:  # a delay or a backoff is over
        updated_at = max(updated_at, run_at)
    return Job(
        id=id_,
        tenant=tenant,
        type=type_,
        queue=queue,
        priority=Priority(priority),
        state=state,
        attempt=attempt,
        created_at=created_at,
        updated_at=updated_at,
        run_at=run_at,
        expires_at=expires_at,
        scheduled_at=updated_at if state is State.SCHEDULED else None,
        tags=tags or {},
        correlation_id=correlation_id,
        callback_url=callback_url,
        retry=retry,
        timeouts=timeouts,
        attempts=named_attempts(id_, attempts),
        reason=None if tenant_paused_at is None else TENANT_PAUSED,
        retried_from=retried_from,
        idempotency_key=idempotency_key,
        cancel_requested_at=cancel_at,
        json=json,
        raw_payload=payload,
    )


def _scheduled_at(pushed_at: datetime, started_at: datetime | None) -> datetime | None:
    """Return when the last attempt of an ended job was scheduled; None: it had no attempt.

    A retry that was settled late has a later `run_at` than its attempt has a start.
    """
    return None if started_at is None else min(pushed_at, started_at)


def _over(tenant: str, row: Sequence[Any]) -> Job:
    (
        id_,
        outcome,
        reason,
        sequence,
        attempt,
        worker,
        started_at,
        finished_at,
        error,
        attempts,
        type_,
        queue,
        priority,
        run_at,
        created_at,
        json,
        rarer,
        payload,
        result,
        scheduled_at,
        at,
    ) = row
    labels = rarer or {}
    retry, timeouts = policy_of(labels.get("policy"))
    retried_from = labels.get("retried_from")
    known = list(attempts or ())
    if started_at is not None and (
        not known or known[-1]["attempt"] < attempt
    ):  # the row says all of its last one
        times = {"started_at": started_at.isoformat(), "finished_at": finished_at.isoformat()}
        lease = {"worker": worker} if sequence is None else {"worker": worker, "sequence": sequence}
        known.append({"attempt": attempt, "outcome": outcome, **times, **lease})
    return Job(
        id=UUID(id_),
        tenant=tenant,
        type=type_,
        queue=queue,
        priority=Priority(priority),
        state=State(outcome),
        attempt=attempt,
        created_at=created_at,
        updated_at=at,
        run_at=run_at,
        expires_at=None,
        scheduled_at=_scheduled_at(scheduled_at or run_at, started_at),
        started_at=started_at,
        completed_at=at,
        tags=labels.get("tags", {}),
        correlation_id=labels.get("correlation_id"),
        callback_url=labels.get("callback_url"),
        retry=retry,
        timeouts=timeouts,
        attempts=named_attempts(UUID(id_), known),
        reason=reason,
        error=error,
        retried_from=UUID(retried_from) if retried_from else None,
        idempotency_key=labels.get("idempotency_key"),
        json=json,
        raw_payload=payload,
        raw_result=result,
    )


def _cursor(part: str, row: Row) -> str:
    """Write where a page ends: at the last row that was looked at."""
    id_, *_, at, _, _ = row
    place = [part, at] if part == "live" else [part, at.isoformat(), id_]
    return base64.urlsafe_b64encode(orjson.dumps(place)).decode()


def _read(cursor: str) -> tuple[str, datetime | int, str | None]:
    try:
        part, *place = orjson.loads(base64.urlsafe_b64decode(cursor.encode()))
        if part == "live":
            (seq,) = place
            return part, range(2**63)[seq], None
        moment, id_ = place
        if part != "over" or not isinstance(id_, str) or "\0" in id_:
            raise ValueError(part)
        return part, datetime.fromisoformat(moment), id_
    except (ValueError, TypeError, AttributeError, IndexError, binascii.Error):
        raise InvalidOption("cursor is not one that find() gave") from None
