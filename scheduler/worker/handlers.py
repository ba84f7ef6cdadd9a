"""What a worker process knows by name: the handlers of its jobs, and the backoffs that jobs may ask
for.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from scheduler.errors import ConfigError, InvalidOption
from scheduler.model.body import Executor
from scheduler.model.durations import duration
from scheduler.model.handling import Handler
from scheduler.model.labels import checked_queue
from scheduler.model.retries import BUILT_IN, Backoff
from scheduler.model.texts import name

B = TypeVar("B", bound=Backoff)
H = TypeVar("H", bound=Callable[..., Any])

backoffs: dict[str, Backoff] = {}
handlers: dict[tuple[str, str], Handler] = {}  # by queue and type


def handler(
    type: str,  # noqa: A002
    *,
    queue: str = "default",
    timeout: timedelta | str | None = None,
    concurrency: int | None = None,
    executor: Executor = "thread",
) -> Callable[[H], H]:
    """Register the function that runs jobs of a type: `def send_receipt(ctx, payload)`.

    What it returns is the result of the job (JSON, at most 1 MB). An exception is retried as the
    job's policy says, `PermanentError` is not.

    Args:
        type: The type of the jobs. `"*"` stands for all types of the queue that have no handler of
            their own; `ctx.type` is then the type of the job.
        queue: The queue of the jobs.
        timeout: Timeout of an attempt, if shorter than the job's own.
        concurrency: How many of these handlers run concurrently in one process. Other jobs of the
            type stay in the queue.
        executor: "thread" (an `async def` runs on an event loop), or "process" for a function that
            holds the GIL or must be killed at its timeout.

    Example:
        >>> @scheduler.handler("send-receipt", queue="mail", timeout="30s")
        ... def send_receipt(ctx, payload):
        ...     return {"message_id": smtp.send(payload["to"])}
    """
    key = checked_queue(queue), name(type, what="type")
    limit: object = concurrency
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidOption(f"concurrency must be a number from 1 on, or None, not {limit!r}")
    if executor not in ("thread", "process"):
        raise InvalidOption(f'executor must be "thread" or "process", not {executor!r}')
    if key[1] == "*" and concurrency is not None:
        raise InvalidOption('a handler of "*" cannot have a concurrency: it has many types')
    wish = None if timeout is None else duration(timeout, name="timeout")

    def register(function: H) -> H:
        made = Handler.of(
            function,
            executor=executor,
            type=key[1],
            queue=key[0],
            timeout=wish,
            concurrency=concurrency,
        )
        known = handlers.setdefault(key, made)
        if known is not made and _name(known.fn) != _name(function):
            raise InvalidOption(
                f"there is already a handler of {key[1]!r} for queue {key[0]!r} in this process"
            )
        handlers[key] = made  # a module that was loaded anew
        return function

    return register


def backoff(label: str) -> Callable[[B], B]:
    """Register a backoff under a name, in the worker: functions do not travel,
    `RetryPolicy(backoff=name)` does.

    The function is given the attempt that failed (from 1), `initial_delay` and `max_delay`, and
    returns the delay; it is held to `max_delay`.
    """
    if name(label, what="a backoff's name") in BUILT_IN:
        raise InvalidOption(
            f"{label!r} is one of the built-in backoffs ({', '.join(BUILT_IN)}); choose another "
            "name"
        )

    def register(function: B) -> B:
        if backoffs.setdefault(label, function) is not function:
            raise InvalidOption(f"there is already a backoff {label!r} in this process")
        return function

    return register


def _name(fn: Callable[..., Any]) -> object:
    return getattr(fn, "__module__", None), getattr(fn, "__qualname__", fn)


def of_function(fn: Callable[..., Any]) -> Handler:
    """Find the handler that a function was registered as."""
    for known in handlers.values():
        if known.fn is fn:
            return known
    raise ConfigError(
        f"handlers: {getattr(fn, '__name__', fn)!r} is not one; decorate it with "
        "@scheduler.handler(...)"
    )


def queues_of(queues: Iterable[str] | None, known: Iterable[Handler]) -> list[str]:
    """Check the names of queues; without any, name those that have a handler."""
    if isinstance(queues, str):
        raise ConfigError(f'queues: must be a list of names, like ["{queues}"]')
    names = list(dict.fromkeys(map(checked_queue, queues))) if queues is not None else []
    handled = {each.queue for each in known}
    for each in names:
        if each not in handled:
            raise ConfigError(
                f"queues: no handler is registered for {each!r}; import the module that has its "
                f"@scheduler.handler(..., queue={each!r}) before the worker is made. Queues with a "
                f"handler: {', '.join(sorted(handled)) or 'none'}"
            )
    found = names or sorted(handled)
    if not found:
        raise ConfigError(
            "handlers: there are none; import the modules that have a @scheduler.handler(...) "
            "before the worker is made"
        )
    return found
