"""What a registered job is: its definition, its mirrored row, one run of a fire, and a line of the ledger."""

import hashlib
import inspect
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from logging import LoggerAdapter
from typing import Any, Literal, NamedTuple, get_args

from scheduler.errors import InvalidOption
from scheduler.model.durations import duration, microseconds
from scheduler.model.schedules import Every, Once, schedule
from scheduler.model.texts import name

GRACE = timedelta(minutes=1)
MOST_STARTS = 3

Delivery = Literal["at_least_once", "at_most_once"]
JobFunction = Callable[[], object] | Callable[["RunContext"], object]


class Key(NamedTuple):
    """What names a job in the whole fleet; sorts bytewise, as the database does."""

    tenant: str
    job_id: str


class Outcome(StrEnum):
    """How a fire ended, as the ledger says it; the last three are audit rows."""

    SUCCESS = "success"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    SKIPPED = "skipped"
    REGISTERED = "registered"
    CHANGED = "changed"
    UNREGISTERED = "unregistered"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The definition of a job, as every instance registers it and the `job` row keeps it."""

    schedule: Every | Once
    timeout: timedelta | None = None
    delivery: Delivery = "at_least_once"
    overlap: Literal["skip", "queue_one"] = "skip"
    foreign: bool = False

    def to_json(self) -> str:
        """Write the canonical form: equal definitions are equal texts.

        What is as it is by default is left out, so that an option of a later version changes no hash of this one.
        """
        plan, start = self.schedule, self.schedule.start_at
        values: dict[str, object] = {
            "every_us": microseconds(plan.every) if isinstance(plan, Every) else None,
            "start_at": start.isoformat() if start else None,
            "timeout_us": microseconds(self.timeout) if self.timeout else None,
            "delivery": None if self.delivery == "at_least_once" else self.delivery,
            "overlap": None if self.overlap == "skip" else self.overlap,
        }
        return json.dumps({key: value for key, value in values.items() if value is not None}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "JobSpec":
        """Read what `to_json` wrote. A definition of a later version is `foreign`: known, and not run here."""
        data: dict[str, Any] = json.loads(text)
        every, timeout, start_text = (
            data.pop("every_us", None),
            data.pop("timeout_us", None),
            data.pop("start_at", None),
        )
        start = datetime.fromisoformat(start_text) if start_text else None
        plan = Once(start_at=start) if every is None else Every(every=timedelta(microseconds=every), start_at=start)
        return cls(
            schedule=plan,
            timeout=None if timeout is None else timedelta(microseconds=timeout),
            delivery=data.pop("delivery", "at_least_once"),
            overlap=data.pop("overlap", "skip"),
            foreign=bool(data),
        )

    def hash(self) -> bytes:
        """Name this definition: 32 bytes that change with it."""
        return hashlib.sha256(self.to_json().encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The arguments of `register`, for `register_many`."""

    tenant: str
    job_id: str
    fn: JobFunction
    every: timedelta | str | None = None
    start_at: datetime | None = None
    timeout: timedelta | str | None = None
    delivery: Delivery = "at_least_once"

    @classmethod
    def of(cls, item: "Registration | Mapping[str, Any]") -> "Registration":
        """Accept a mapping with the names of `register` too."""
        if isinstance(item, Registration):
            return item
        try:
            return cls(**item)
        except TypeError as error:
            raise InvalidOption(f"register_many takes the arguments of register(): {error}") from None

    def checked(self) -> "CheckedRegistration":
        """Check every argument; raises before anything is touched."""
        key = Key(name(self.tenant, what="tenant"), name(self.job_id, what="job_id"))
        if self.delivery not in get_args(Delivery):
            raise InvalidOption(f"delivery must be one of {', '.join(get_args(Delivery))}, not {self.delivery!r}")
        spec = JobSpec(
            schedule=schedule(every=self.every, start_at=self.start_at),
            timeout=None if self.timeout is None else duration(self.timeout, name="timeout"),
            delivery=self.delivery,
        )
        return CheckedRegistration(key=key, spec=spec, body=Body.of(self.fn))


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A job's function, and how to call it."""

    fn: Callable[..., Any]
    takes_context: bool
    is_async: bool

    @classmethod
    def of(cls, fn: object) -> "Body":
        """Look at a function once, at registration."""
        if not callable(fn):
            raise InvalidOption(f"fn must be a function, not {type(fn).__name__}")
        is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004
        return cls(fn=fn, takes_context=_takes_context(fn), is_async=is_async)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRegistration:
    """A registration that holds."""

    key: Key
    spec: JobSpec
    body: Body


class Cancelled:
    """True once the run should end: past its timeout, without its lease, or in a process that stops.

    `if ctx.cancelled:` reads it, `ctx.cancelled.wait(5)` sleeps until then or for five seconds. `reason` says why.
    """

    __slots__ = ("_callback", "_event", "reason")
    _lock = threading.Lock()  # shared: a run that is cancelled, or that waits, is rare

    def __init__(self) -> None:
        self.reason: str | None = None
        self._event: threading.Event | None = None  # made when somebody waits: most runs never do
        self._callback: Callable[[], object] | None = None

    @classmethod
    def after_fork(cls) -> None:
        """Drop a lock whose holder may not exist in the child."""
        cls._lock = threading.Lock()

    def __bool__(self) -> bool:
        return self.reason is not None

    def is_set(self) -> bool:
        """Whether the run should end."""
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the run should end, at most for `timeout` seconds; say whether it should."""
        with self._lock:
            if self.reason is not None:
                return True
            self._event = event = self._event or threading.Event()
        return event.wait(timeout)

    def because(self, reason: str) -> None:
        """Set it with the reason; the first reason stays."""
        with self._lock:
            self.reason = self.reason or reason
            event, callback = self._event, self._callback
        if event is not None:
            event.set()
        if callback is not None:
            callback()

    def then(self, callback: Callable[[], object]) -> None:
        """Call `callback` when it is set, or now if it is."""
        with self._lock:
            self._callback = callback
        if self.reason is not None:
            callback()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a job's function is given, if it takes an argument.

    tenant, job_id: the job. fire_at: the scheduled instant, in UTC. attempt: 1, or more when an earlier start of
    this fire was lost. fence: a number that grows with every start of the job; hand it to systems that can refuse
    an older one. deadline: when the timeout ends it (None: never). cancelled: true once the run should end.
    """

    tenant: str
    job_id: str
    fire_at: datetime
    attempt: int
    fence: int
    deadline: datetime | None
    cancelled: Cancelled
    logger: "LoggerAdapter[Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job as the mirror shows it: its definition, its lease, and its newest ledger row, as of the last sync."""

    tenant: str
    job_id: str
    spec: JobSpec = field(repr=False)
    runnable: bool
    next_run_at: datetime | None
    paused_at: datetime | None
    running_fire_at: datetime | None
    holder: str | None
    last_fire_at: datetime | None
    last_outcome: Outcome | None
    last_finished_at: datetime | None

    @property
    def every(self) -> timedelta | None:
        """The interval, if it has one."""
        return self.spec.schedule.every if isinstance(self.spec.schedule, Every) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One row of the ledger: a fire at its end (or skipped), or an audit row.

    `missed_count` fires from `missed_from` on were missed and are what this run stands for, besides its own.
    `attempts` are the earlier starts of a fire that was re-driven.
    """

    at: datetime
    tenant: str
    job_id: str
    kind: str
    outcome: Outcome
    reason: str | None
    attempt: int | None
    fence: int | None
    holder: str | None
    started_at: datetime | None
    finished_at: datetime
    missed_from: datetime | None
    missed_count: int
    error: str | None
    attempts: tuple[Mapping[str, Any], ...]


def _takes_context(fn: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(required) > 1 or keyword_only:
        missing = ", ".join([p.name for p in required[1:]] + keyword_only)
        raise InvalidOption(
            f"fn must take nothing or one RunContext; {getattr(fn, '__qualname__', fn)!s} also needs {missing}"
            " (bind it with functools.partial)"
        )
    return len(required) == 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
