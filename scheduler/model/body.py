"""A job's function, what it is given, and how it is told to end."""

import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from scheduler.errors import InvalidOption
from scheduler.log import JobLogger

Executor = Literal["thread", "process"]
JobFunction = Callable[[], object] | Callable[["RunContext"], object]


class Here:
    """This process. In a child that runs a body nothing else is started, whatever its modules ask
    for.
    """

    is_child = False


class Cancelled:
    """True once the handler should stop: cancelled, past its timeout, without its lease, or in a
    process that stops.

    `if ctx.cancelled:` reads it. `ctx.cancelled.wait(5)` sleeps until then, or for five seconds.
    `ctx.cancelled.reason` is the first cause, as text, or None.

    seen: the handler has asked in one of these ways, and the answer was yes. causes: all causes, in
    the order in which they came; reading them does not count as asking.
    """

    __slots__ = ("_callback", "_event", "causes", "seen")
    _lock = threading.Lock()  # shared: few runs are cancelled or wait

    def __init__(self) -> None:
        self.causes: tuple[str, ...] = ()
        self.seen = False
        self._event: threading.Event | None = None  # made by the first wait: most runs have none
        self._callback: Callable[[], object] | None = None

    @classmethod
    def after_fork(cls) -> None:
        """Drop a lock whose holder may not exist in the child."""
        cls._lock = threading.Lock()

    @property
    def reason(self) -> str | None:
        """Why the handler should stop; None: it should not."""
        return self.causes[0] if self.is_set() else None

    def __bool__(self) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        """Return whether the handler should stop."""
        if self.causes:
            self.seen = True
        return bool(self.causes)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the handler should stop, at most `timeout` seconds; return whether it
        should.
        """
        with self._lock:
            if not self.causes:
                self._event = self._event or threading.Event()
            event = self._event
        if event is not None:
            event.wait(timeout)
        return self.is_set()

    def because(self, cause: str) -> None:
        """Set it, or add another cause."""
        with self._lock:
            if cause in self.causes:
                return
            self.causes += (cause,)
            event, callback = self._event, self._callback
        if event is not None:
            event.set()
        if callback is not None:
            callback()

    def then(self, callback: Callable[[], object]) -> None:
        """Call `callback` when it is set, or now if it is."""
        with self._lock:
            self._callback = callback
        if self.causes:
            callback()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a job's function is given, if it takes an argument.

    tenant, job_id: the job. fire_at: the scheduled instant, in UTC. attempt: 1, or more when an
    earlier start of this fire was lost. fence: a number that grows with every start of the job;
    hand it to systems that can refuse an older one. deadline: when the timeout ends it (None:
    never). cancelled: true once the run should end.
    """

    tenant: str
    job_id: str
    fire_at: datetime
    attempt: int
    fence: int
    deadline: datetime | None
    cancelled: Cancelled

    @property
    def logger(self) -> JobLogger:
        """A logger whose lines carry what the run is called (docs/logs.md); nothing else may be put
        to them.
        """
        return JobLogger(
            job_id=self.job_id,
            namespace=self.tenant,
            fire_at=self.fire_at.isoformat(),
            attempt=self.attempt,
            fence=self.fence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A job's function, and how to call it."""

    fn: Callable[..., Any]
    takes_context: bool
    is_async: bool
    imported_as: str | None = None  # module:name, for a process of its own
    queued: bool = False  # there is no function: its fires are submitted

    @classmethod
    def for_queue(cls) -> "Body":
        """Stand for a job that workers run."""
        return cls(fn=lambda: None, takes_context=False, is_async=False, queued=True)

    @classmethod
    def of(cls, fn: object, *, executor: Executor = "thread") -> "Body":
        """Look at a function once, at registration."""
        if not callable(fn):
            raise InvalidOption(f"fn must be a function, not {type(fn).__name__}")
        is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
            getattr(type(fn), "__call__", None)  # noqa: B004
        )
        imported_as = importable(fn) if executor == "process" else None
        return cls(
            fn=fn, takes_context=_takes_context(fn), is_async=is_async, imported_as=imported_as
        )


def importable(fn: Callable[..., Any]) -> str:
    """Name a function so that another process can import it."""
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    found: Any = sys.modules.get(module or "")
    for part in (qualname or "").split("."):
        found = getattr(found, part, None)
    decorated = found is None and "<" not in (
        qualname or "<"
    )  # its name is bound when the decorator returns
    if module == "__main__" or not (found is fn or decorated):
        raise InvalidOption(
            'executor="process" needs a function that another process can import: '
            f"{qualname or fn!r} of {module!r}"
            " is not one; define it with def at the top of a module of your package"
        )
    return f"{module}:{qualname}"


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
            f"fn must take nothing or one RunContext; {getattr(fn, '__qualname__', fn)!s} also "
            f"needs {missing}"
            " (bind it with functools.partial)"
        )
    return len(required) == 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
