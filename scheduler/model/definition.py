"""What a job is defined by: the arguments of `register`, checked, and the form that every instance
agrees on.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypedDict, get_args

from scheduler.errors import InvalidOption, InvalidSchedule, SchedulerError
from scheduler.model.body import Body, Executor, JobFunction
from scheduler.model.cron import Cron
from scheduler.model.cron import cron as read_cron
from scheduler.model.durations import duration, microseconds
from scheduler.model.labels import Priority, checked_priority, checked_queue
from scheduler.model.payloads import LARGEST_LIMIT, encode
from scheduler.model.policies import RETRY, TIMEOUTS, Timeouts
from scheduler.model.retries import RetryPolicy
from scheduler.model.schedules import (
    CATCH_UP,
    USUAL,
    CatchUp,
    Every,
    Misfire,
    Once,
    Overlap,
    Policy,
    Schedule,
    offset_of,
    schedule,
)
from scheduler.model.texts import name
from scheduler.model.work import Work

ZERO = timedelta(0)

Delivery = Literal["at_least_once", "at_most_once"]
CHOICES = (Misfire, Overlap, Delivery, Executor)


class Key(NamedTuple):
    """What names a job in the whole fleet; sorts bytewise, as the database does."""

    tenant: str
    job_id: str


class AppVersion(NamedTuple):
    """The version of an app, which orders the definitions that its instances register.

    Versions of different apps have no order. Instances without an app are one app. No
    version is below every version.
    """

    app: str | None
    version: int | None

    def is_below(self, other: "AppVersion") -> bool:
        """Whether `other` is a higher version of the same app."""
        return (
            self.app == other.app
            and other.version is not None
            and (self.version is None or self.version < other.version)
        )

    def __str__(self) -> str:
        of = "" if self.app is None else f" of {self.app}"
        if self.version is None:
            return f"a deploy{of} without a version"
        return f"version {self.version}{of}"


NO_VERSION = AppVersion(None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The definition of a job, as every instance registers it and the `job` row keeps it."""

    schedule: Schedule
    policy: Policy = USUAL
    jitter: timedelta | None = None
    timeout: timedelta | None = None
    delivery: Delivery = "at_least_once"
    executor: Executor = "thread"
    work: Work | None = None
    foreign: bool = False

    def to_json(self) -> str:
        """Write the canonical form: equal definitions are equal texts.

        What is as it is by default is left out, so that an option of a later version changes no
        hash of this one.
        """
        plan, policy = self.schedule, self.policy
        bounds = policy.catch_up if policy.misfire == "catch_up" else USUAL.catch_up
        values: dict[str, object] = {
            "every_us": microseconds(plan.every) if isinstance(plan, Every) else None,
            "cron": plan.expression if isinstance(plan, Cron) else None,
            "timezone": plan.timezone
            if isinstance(plan, Cron) and plan.timezone != "UTC"
            else None,
            "start_at": plan.start_at.isoformat() if plan.start_at else None,
            "jitter_us": microseconds(self.jitter) if self.jitter else None,
            "offset_us": microseconds(plan.offset) or None,
            "timeout_us": microseconds(self.timeout) if self.timeout else None,
            "delivery": _unless(self.delivery, "at_least_once"),
            "executor": _unless(self.executor, "thread"),
            "misfire": _unless(policy.misfire, USUAL.misfire),
            "grace_us": _unless(microseconds(policy.grace), microseconds(USUAL.grace)),
            "catch_up_count": _unless(bounds.max_count, USUAL.catch_up.max_count),
            "catch_up_age_us": _unless(_age(bounds), _age(USUAL.catch_up)),
            "overlap": _unless(policy.overlap, USUAL.overlap),
            "work": None if self.work is None else self.work.to_data(),
        }
        return json.dumps(
            {key: value for key, value in values.items() if value is not None}, sort_keys=True
        )

    @classmethod
    def from_json(cls, text: str) -> "JobSpec":
        """Read what `to_json` wrote. What cannot be read here is `foreign`: known, and not run."""
        try:
            return cls._read(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, SchedulerError):
            return cls(schedule=Once(), foreign=True)

    @classmethod
    def _read(cls, data: dict[str, Any]) -> "JobSpec":
        spans = {
            name: data.pop(f"{name}_us", None)
            for name in ("every", "offset", "jitter", "timeout", "grace")
        }
        every, offset, jitter, timeout, grace = (
            None if span is None else timedelta(microseconds=span) for span in spans.values()
        )
        start_text, expression = data.pop("start_at", None), data.pop("cron", None)
        zone = data.pop("timezone", "UTC")
        place: dict[str, Any] = {
            "start_at": datetime.fromisoformat(start_text) if start_text else None,
            "offset": offset or timedelta(0),
        }
        plan: Schedule
        if expression is not None:
            plan = Cron(expression=expression, timezone=zone, **place)
        else:
            plan = Once(**place) if every is None else Every(every=every, **place)
        bounds = CatchUp(
            max_count=data.pop("catch_up_count", USUAL.catch_up.max_count),
            max_age=timedelta(microseconds=data.pop("catch_up_age_us", _age(USUAL.catch_up))),
        ).checked()
        policy = Policy(
            misfire=data.pop("misfire", USUAL.misfire),
            grace=USUAL.grace if grace is None else grace,
            catch_up=bounds,
            overlap=data.pop("overlap", USUAL.overlap),
        )
        work = data.pop("work", None)
        delivery, executor = data.pop("delivery", "at_least_once"), data.pop("executor", "thread")
        chosen = (policy.misfire, policy.overlap, delivery, executor)
        strange = any(
            value not in get_args(allowed) for value, allowed in zip(chosen, CHOICES, strict=True)
        )
        return cls(
            schedule=plan,
            policy=policy,
            jitter=jitter,
            timeout=timeout,
            delivery=delivery,
            executor=executor,
            work=None if work is None else Work.of_data(work),
            foreign=bool(data) or strange or not _known(plan),
        )

    def hash(self) -> bytes:
        """Name this definition: 32 bytes that change with it."""
        return hashlib.sha256(self.to_json().encode()).digest()


class JobOptions(TypedDict, total=False):
    """The options of `register`; each is explained there."""

    every: timedelta | str | None
    cron: str | None
    timezone: str
    start_at: datetime | None
    misfire: Misfire
    grace: timedelta | str
    catch_up: CatchUp
    overlap: Overlap
    jitter: timedelta | str | None
    timeout: timedelta | str | None
    delivery: Delivery
    executor: Executor
    queue: str | None
    type: str | None
    payload: object
    priority: Priority
    retry: RetryPolicy
    timeouts: Timeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The arguments of `register`, for `register_many`."""

    tenant: str
    job_id: str
    fn: JobFunction | None = None
    every: timedelta | str | None = None
    cron: str | None = None
    timezone: str = "UTC"
    start_at: datetime | None = None
    misfire: Misfire = "run_once"
    grace: timedelta | str = timedelta(minutes=1)
    catch_up: CatchUp = CATCH_UP
    overlap: Overlap = "skip"
    jitter: timedelta | str | None = None
    timeout: timedelta | str | None = None
    delivery: Delivery = "at_least_once"
    executor: Executor = "thread"
    queue: str | None = None
    type: str | None = None
    payload: object = None
    priority: Priority = Priority.NORMAL
    retry: RetryPolicy = RETRY
    timeouts: Timeouts = TIMEOUTS

    @classmethod
    def of(cls, item: "Registration | Mapping[str, Any]") -> "Registration":
        """Accept a mapping with the names of `register` too."""
        if isinstance(item, Registration):
            return item
        try:
            return cls(**item)
        except TypeError as error:
            raise InvalidOption(
                f"register_many takes the arguments of register(): {error}"
            ) from None

    def checked(self) -> "CheckedRegistration":
        """Check every argument; raises before anything is touched."""
        key = Key(name(self.tenant, what="tenant"), name(self.job_id, what="job_id"))
        for option, allowed in {
            "delivery": Delivery,
            "misfire": Misfire,
            "overlap": Overlap,
            "executor": Executor,
        }.items():
            if getattr(self, option) not in get_args(allowed):
                raise InvalidOption(
                    f"{option} must be one of {', '.join(get_args(allowed))}, not "
                    f"{getattr(self, option)!r}"
                )
        jitter = None if self.jitter is None else duration(self.jitter, name="jitter")
        plan = schedule(
            every=self.every,
            cron=self.cron,
            timezone=self.timezone,
            start_at=self.start_at,
            offset=timedelta(0) if jitter is None else offset_of(*key, jitter),
        )
        if jitter is not None and isinstance(plan, Every) and jitter > plan.every:
            raise InvalidOption(
                f"jitter must not be longer than every, {plan.every}; it is {jitter}"
            )
        spec = JobSpec(
            schedule=plan,
            policy=self._policy(),
            jitter=jitter,
            timeout=None if self.timeout is None else duration(self.timeout, name="timeout"),
            delivery=self.delivery,
            executor=self.executor,
            work=self._work(),
        )
        return CheckedRegistration(key=key, spec=spec, body=self._body())

    def _body(self) -> Body:
        if self.queue is None:
            return Body.of(self.fn, executor=self.executor)
        if self.fn is not None:
            raise InvalidOption(
                "fn and queue exclude each other: with queue= a worker runs the job, by its type"
            )
        for option, usual in (
            ("timeout", None),
            ("executor", "thread"),
            ("delivery", "at_least_once"),
        ):
            if getattr(self, option) != usual:
                raise InvalidOption(
                    f"{option} is for functions that run here; with queue= use timeouts and retry"
                )
        return Body.for_queue()

    def _work(self) -> Work | None:
        if self.queue is None:
            for option in ("type", "payload", "priority", "retry", "timeouts"):
                if getattr(self, option) != Registration.__dataclass_fields__[option].default:
                    raise InvalidOption(f"{option} belongs to queue=, which is not given")
            return None
        form, payload = encode(self.payload, limit=LARGEST_LIMIT)  # the app has the limit
        return Work(
            queue=checked_queue(self.queue),
            type=name(self.job_id if self.type is None else self.type, what="type"),
            priority=checked_priority(self.priority),
            form=form,
            payload=payload,
            retry=self.retry.checked(),
            timeouts=self.timeouts.checked(),
        )

    def _policy(self) -> Policy:
        if not isinstance(self.catch_up, CatchUp):
            raise InvalidOption(
                "catch_up must be a CatchUp(max_count=, max_age=), not "
                f"{type(self.catch_up).__name__}"
            )
        if self.misfire != "catch_up" and self.catch_up != CATCH_UP:
            raise InvalidOption(
                'catch_up bounds misfire="catch_up"; with any other misfire it has no effect'
            )
        return Policy(
            misfire=self.misfire,
            grace=duration(self.grace, name="grace"),
            catch_up=self.catch_up.checked(),
            overlap=self.overlap,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRegistration:
    """A registration that holds."""

    key: Key
    spec: JobSpec
    body: Body


def _unless(value: object, usual: object) -> object:
    return None if value == usual else value


def _age(bounds: CatchUp) -> int:
    return microseconds(duration(bounds.max_age, name="catch_up: max_age"))


def _known(plan: Schedule) -> bool:
    """Whether this machine can tell when a stored schedule fires."""
    try:
        return not isinstance(plan, Cron) or bool(
            read_cron(plan.expression, plan.timezone, start_at=None, offset=ZERO)
        )
    except InvalidSchedule:
        return False  # a zone that this machine's tz database lacks, say
