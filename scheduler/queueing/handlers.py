"""What a worker process knows by name: the backoffs that its jobs may ask for."""

from collections.abc import Callable
from typing import TypeVar

from scheduler.errors import InvalidOption
from scheduler.model.retries import BUILT_IN, Backoff
from scheduler.model.texts import name

B = TypeVar("B", bound=Backoff)

backoffs: dict[str, Backoff] = {}


def backoff(label: str) -> Callable[[B], B]:
    """Register a backoff under a name, in the worker: functions do not travel, `RetryPolicy(backoff=name)` does.

    The function is given the attempt that failed (from 1), `initial_delay` and `max_delay`, and returns the delay; it
    is held to `max_delay`.
    """
    if name(label, what="a backoff's name") in BUILT_IN:
        raise InvalidOption(f"{label!r} is one of the built-in backoffs ({', '.join(BUILT_IN)}); choose another name")

    def register(function: B) -> B:
        if backoffs.setdefault(label, function) is not function:
            raise InvalidOption(f"there is already a backoff {label!r} in this process")
        return function

    return register
