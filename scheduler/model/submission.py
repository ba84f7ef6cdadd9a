"""What is submitted: the arguments of `submit`, checked, and a batch of them with its dependencies
put in order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, TypedDict
from uuid import UUID

import orjson

from scheduler.errors import DependencyCycle, DependencyLimit, InvalidOption
from scheduler.model.durations import duration
from scheduler.model.ids import new_ids
from scheduler.model.labels import (
    LONGEST_KEY,
    Priority,
    checked_correlation,
    checked_priority,
    checked_queue,
    checked_tags,
    checked_text,
    checked_url,
)
from scheduler.model.payloads import DEFAULT_LIMIT, Form, encode
from scheduler.model.policies import RETRY, TIMEOUTS, Timeouts, policy_json
from scheduler.model.retries import RetryPolicy
from scheduler.model.schedules import instant
from scheduler.model.texts import name
from scheduler.trace import current

DEEPEST = 100
WIDEST = 1000


@dataclass(frozen=True, slots=True)
class Submission:
    """What `submit` returns: the job's id, and whether an earlier job with the same idempotency key
    stands for it.
    """

    id: UUID
    duplicate: bool = False


class SubmitOptions(TypedDict, total=False):
    """The options of `submit`; each is explained there."""

    queue: str
    run_at: datetime | None
    delay: timedelta | str | None
    priority: Priority
    idempotency_key: str | None
    idempotency_window: timedelta | str
    after: "Sequence[Reference]"
    after_any: "Sequence[Reference]"
    retry: RetryPolicy
    timeouts: Timeouts
    tags: Mapping[str, str] | None
    correlation_id: str | None
    callback_url: str | None


# Not frozen: they are made by the thousand, and freezing would cost three times as much.
@dataclass(slots=True, eq=False)
class NewJob:
    """The arguments of `submit`, for `submit_many`, `chain` and `fan_out`; others of the call may
    come after it.
    """

    tenant: str
    type: str
    payload: object = field(default=None, repr=False)
    queue: str = field(default="default", kw_only=True)
    run_at: datetime | None = field(default=None, kw_only=True)
    delay: timedelta | str | None = field(default=None, kw_only=True)
    priority: Priority = field(default=Priority.NORMAL, kw_only=True)
    idempotency_key: str | None = field(default=None, kw_only=True)
    idempotency_window: timedelta | str = field(default=timedelta(hours=24), kw_only=True)
    after: "Sequence[Reference]" = field(default=(), kw_only=True)
    after_any: "Sequence[Reference]" = field(default=(), kw_only=True)
    retry: RetryPolicy = field(default=RETRY, kw_only=True)
    timeouts: Timeouts = field(default=TIMEOUTS, kw_only=True)
    tags: Mapping[str, str] | None = field(default=None, kw_only=True)
    correlation_id: str | None = field(default=None, kw_only=True)
    callback_url: str | None = field(default=None, kw_only=True)


Reference = NewJob | Submission | UUID | str


@dataclass(slots=True)
class Draft:
    """A job that is being submitted: checked, with its id; what its dependencies add is filled in
    later.

    Where they are made by the thousand their values stand in this order: by name it takes more than
    twice as long.
    """

    id: UUID
    tenant: str
    type: str
    queue: str
    priority: int
    run_at: datetime | None
    delay: timedelta | None
    form: Form
    payload: bytes
    policy: str | None
    lifetime: timedelta
    tags: str | None
    correlation_id: str | None
    callback_url: str | None
    key: str | None
    window: timedelta
    after: list[UUID]
    after_any: list[UUID]
    depth: int = 0
    open_dependencies: int = 0
    retried_from: UUID | None = None
    trace: str | None = None  # the context of the span in which it was submitted
    previous_attempt_id: UUID | None = None  # the last attempt of `retried_from`


def drafts(jobs: Iterable[NewJob], *, limit: int = DEFAULT_LIMIT) -> list[Draft]:
    """Check a batch and give each job its id; raises before anything is touched, naming the job
    that is wrong.
    """
    batch = list(jobs)
    made = [draft for part in draft_parts(batch, limit=limit, size=len(batch)) for draft in part]
    if any(draft.after or draft.after_any for draft in made):
        check_cycles(made)
    return made


def draft_parts(batch: Sequence[NewJob], *, limit: int, size: int) -> Iterator[list[Draft]]:
    """Check a batch part by part, raising in the middle; who waits in a circle is not looked
    for.
    """
    ids = dict(zip(map(id, batch), new_ids(len(batch)), strict=True))
    if len(ids) < len(batch) or not set(map(type, batch)) <= {NewJob}:
        _refuse_strangers(batch)
    seen: dict[object, Labels] = {}
    trace = current()
    for begin in range(0, len(batch), max(1, size)):
        yield [_draft(job, ids, limit, seen, trace) for job in batch[begin : begin + size]]


def independent(batch: Sequence[object]) -> bool:
    """Whether no job of a batch waits for another or has a key, so that any part of it can be
    submitted by itself.
    """
    return all(
        isinstance(job, NewJob)
        and job.idempotency_key is None
        and job.after == ()
        and job.after_any == ()
        for job in batch
    )


def _refuse_strangers(batch: Sequence[object]) -> None:
    seen: set[int] = set()
    for position, job in enumerate(batch):
        if not isinstance(job, NewJob):
            raise InvalidOption(
                f"job {position} is of type {type(job).__name__}; submit_many takes NewJob objects"
            )
        if id(job) in seen:
            raise InvalidOption(f"job {position} is in this call twice; make a NewJob for each")
        seen.add(id(job))


class Labels(NamedTuple):
    """What many jobs of a batch have in common, checked once for all of them."""

    tenant: str
    type: str
    queue: str
    priority: Priority
    policy: str | None
    lifetime: timedelta
    window: timedelta


def _labels(job: NewJob, seen: dict[object, Labels]) -> Labels:
    common = (
        job.tenant,
        job.type,
        job.queue,
        id(job.priority),
        id(job.retry),
        id(job.timeouts),
        job.idempotency_window,
    )
    try:
        return seen[common]
    except KeyError:
        seen[common] = checked = _checked(job)
        return checked
    except TypeError:  # one of them is not even hashable
        return _checked(job)


def _checked(job: NewJob) -> Labels:
    given: tuple[object, object] = (job.retry, job.timeouts)
    if not isinstance(given[0], RetryPolicy) or not isinstance(given[1], Timeouts):
        raise InvalidOption("retry must be a RetryPolicy and timeouts a Timeouts")
    timeouts = job.timeouts.checked()
    return Labels(
        tenant=name(job.tenant, what="tenant"),
        type=name(job.type, what="type"),
        queue=checked_queue(job.queue),
        priority=checked_priority(job.priority),
        policy=policy_json(job.retry.checked(), timeouts),
        lifetime=duration(timeouts.lifetime, name="lifetime"),
        window=duration(job.idempotency_window, name="idempotency_window"),
    )


def _draft(
    job: NewJob, ids: dict[int, UUID], limit: int, seen: dict[object, Labels], trace: str | None
) -> Draft:
    labels = _labels(job, seen)
    if job.run_at is not None and job.delay is not None:
        raise InvalidOption("run_at and delay exclude each other; give one of them")
    form, payload = encode(job.payload, limit=limit)
    tags = checked_tags(job.tags) if job.tags else None
    after = _references(job.after, ids, "after") if job.after != () else []
    after_any = _references(job.after_any, ids, "after_any") if job.after_any != () else []
    if len(after) + len(after_any) > WIDEST:
        raise DependencyLimit(
            f"job {job.type!r} depends on {len(after) + len(after_any)} jobs, more than {WIDEST}"
        )
    return Draft(
        ids[id(job)],
        labels.tenant,
        labels.type,
        labels.queue,
        labels.priority,
        None if job.run_at is None else instant(job.run_at, name="run_at"),
        None if job.delay is None else duration(job.delay, name="delay"),
        form,
        payload,
        labels.policy,
        labels.lifetime,
        orjson.dumps(tags).decode() if tags else None,
        None if job.correlation_id is None else checked_correlation(job.correlation_id),
        None if job.callback_url is None else checked_url(job.callback_url),
        None
        if job.idempotency_key is None
        else checked_text(job.idempotency_key, "idempotency_key", LONGEST_KEY),
        labels.window,
        after,
        after_any,
        trace=trace,
    )


def _references(given: object, ids: dict[int, UUID], what: str) -> list[UUID]:
    if isinstance(given, NewJob | Submission | UUID | str) or not isinstance(given, Iterable):
        raise InvalidOption(f"{what} must be a list of jobs")
    found: dict[UUID, None] = {}
    for item in given:
        found[_reference(item, ids, what)] = None
    return list(found)


def _reference(item: object, ids: dict[int, UUID], what: str) -> UUID:
    if isinstance(item, Submission):
        return item.id
    if isinstance(item, UUID):
        return item
    if isinstance(item, NewJob):
        if id(item) not in ids:
            raise InvalidOption(
                f"{what} names a NewJob ({item.type!r}) that is not in this call; submit them "
                "together"
            )
        return ids[id(item)]
    try:
        return UUID(item)  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError):
        raise InvalidOption(f"{what} takes job ids, submissions or NewJobs, not {item!r}") from None


def check_cycles(batch: Sequence[Draft]) -> None:
    """Walk the dependencies within the batch, level by level; what is never reached lies on a
    circle.
    """
    known = {draft.id: draft for draft in batch}
    open_ = {
        draft.id: {each for each in (*draft.after, *draft.after_any) if each in known}
        for draft in batch
    }
    dependents: dict[UUID, list[UUID]] = {}
    for job_id, wanted in open_.items():
        for each in wanted:
            dependents.setdefault(each, []).append(job_id)
    free = [job_id for job_id, wanted in open_.items() if not wanted]
    for job_id in free:  # grows while it is walked
        for dependent in dependents.get(job_id, ()):
            open_[dependent].discard(job_id)
            if not open_[dependent]:
                free.append(dependent)
    if len(free) < len(batch):
        stuck = [known[job_id].type for job_id, wanted in open_.items() if wanted]
        raise DependencyCycle(
            "these jobs depend on each other in a circle, or on one that does: "
            f"{', '.join(stuck[:5])}"
        )
