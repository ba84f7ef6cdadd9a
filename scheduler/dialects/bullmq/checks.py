"""The options that somebody asks for, with BullMQ's own names and units: checked before anything is
sent.
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn, TypedDict, cast

from scheduler.errors import InvalidOption

Keep = bool | int | Mapping[str, int]


class Options(TypedDict, total=False):
    """What may be said of a job; it means what it means in BullMQ. Times are milliseconds, ages
    seconds.
    """

    attempts: int
    backoff: int | Mapping[str, Any]
    continueParentOnFailure: bool
    deduplication: Mapping[str, Any]
    delay: int
    failParentOnFailure: bool
    ignoreDependencyOnFailure: bool
    jobId: str
    keepLogs: int
    lifo: bool
    parent: Mapping[str, str]
    priority: int
    removeDependencyOnFailure: bool
    removeOnComplete: Keep
    removeOnFail: Keep
    sizeLimit: int
    stackTraceLimit: int
    timestamp: int


LARGEST_PRIORITY = 2**21 - 1
LARGEST = 2**53 - 1  # that everybody reads
KEEP = ("age", "count", "limit")
BACKOFF = ("type", "delay", "jitter")
DEDUPLICATION = ("id", "ttl", "extend", "replace", "keepLastIfActive", "reschedule")
PARENT = ("id", "queue")
TAKEN = (
    "active",
    "completed",
    "delayed",
    "events",
    "failed",
    "id",
    "limiter",
    "marker",
    "meta",
    "paused",
    "pc",
    "prioritized",
    "repeat",
    "stalled",
    "stalled-check",
    "wait",
    "waiting-children",
)
TAKEN_BEFORE_A_COLON = ("de", "dn", "metrics", "ring")
POLICIES = (
    "continueParentOnFailure",
    "failParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)


def checked(options: Mapping[str, Any]) -> Options:
    """Check options; a backoff that is a number becomes a fixed one."""
    for name, value in options.items():
        if name not in CHECKS:
            _unknown(name, CHECKS, "option")
        CHECKS[name](value, name)
    policies = [name for name in POLICIES if options.get(name)]
    if len(policies) > 1:
        raise InvalidOption(f"{policies[0]} and {policies[1]} exclude each other: choose one")
    if "parent" in options and "deduplication" in options:
        raise InvalidOption(
            "deduplication and parent exclude each other: who waits for a child that is left out?"
        )
    backoff = options.get("backoff")
    if isinstance(backoff, int):
        options = {**options, "backoff": {"type": "fixed", "delay": backoff}}
    return cast("Options", options)


def _unknown(name: str, known: Iterable[str], what: str) -> NoReturn:
    words = {word.lower(): word for word in sorted(known)}
    near = get_close_matches(name.replace("_", "").lower(), words, n=1, cutoff=0.5)
    meant = (
        f"; did you mean {words[near[0]]}?" if near else f"; there are {', '.join(words.values())}"
    )
    raise InvalidOption(f"{name} is no {what} in BullMQ{meant}")


def _number(value: object, name: str, largest: int = LARGEST) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise InvalidOption(f"{name} must be a whole number from 0 to {largest}, not {value!r}")


def _priority(value: object, name: str) -> None:
    _number(value, name, LARGEST_PRIORITY)


def _switch(value: object, name: str) -> None:
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} must be True or False, not {value!r}")


def _parts(value: Mapping[str, Any], name: str, known: tuple[str, ...]) -> None:
    for part in value:
        if part not in known:
            _unknown(part, known, f"part of {name}")


def _keep(value: object, name: str) -> None:
    if isinstance(value, Mapping):
        _parts(value, name, KEEP)
        for part, number in value.items():
            _number(number, f"{name}.{part}")
    elif not isinstance(value, int) or not 0 <= value <= LARGEST:
        like = '{"age": seconds, "count": number}'
        raise InvalidOption(
            f"{name} must be True, False, how many to keep, or {like}, not {value!r}"
        )


def _backoff(value: object, name: str) -> None:
    if isinstance(value, int):
        _number(value, name)
        return
    if isinstance(value, Mapping):
        _parts(value, name, BACKOFF)
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise InvalidOption(
            f'{name} must be milliseconds or {{"type": "exponential", "delay": 1000}}, not '
            f"{value!r}"
        )
    _number(value.get("delay", 0), f"{name}.delay")
    jitter = value.get("jitter", 0)
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
        raise InvalidOption(f"{name}.jitter must be from 0 to 1, not {jitter!r}")


def require_text(value: object, name: str) -> None:
    """Refuse what is no text that can be sent, or is empty."""
    if not isinstance(value, str) or not value or value != value.encode(errors="replace").decode():
        raise InvalidOption(f"{name} must be a text, not {value!r}")


def _id(value: object, name: str) -> None:
    require_text(value, name)
    value = str(value)
    if value.isdecimal():
        raise InvalidOption(
            f"{name} must not be a number, BullMQ gives those itself: call it job-{value}"
        )
    if ":" in value and value.count(":") != 2:
        raise InvalidOption(
            f"{name} must not have a colon, which parts the names of keys: {value!r}"
        )
    if value in TAKEN or (":" in value and value.partition(":")[0] in TAKEN_BEFORE_A_COLON):
        raise InvalidOption(
            f"{name} must not be the name of a key that a queue has itself: call it job-{value}"
        )


def _deduplication(value: object, name: str) -> None:
    if isinstance(value, Mapping):
        _parts(value, name, DEDUPLICATION)
    if not isinstance(value, Mapping) or not isinstance(value.get("id"), str):
        raise InvalidOption(f'{name} must be like {{"id": "video-7", "ttl": 5000}}, not {value!r}')
    require_text(value["id"], f"{name}.id")
    _number(value.get("ttl", 0), f"{name}.ttl")


def _parent(value: object, name: str) -> None:
    if (
        not isinstance(value, Mapping)
        or set(value) != set(PARENT)
        or ":" not in str(value["queue"])[1:-1]
    ):
        raise InvalidOption(
            f'{name} must be like {{"id": "7", "queue": "bull:video"}}, not {value!r}'
        )
    for part in PARENT:
        require_text(value[part], f"{name}.{part}")


CHECKS: dict[str, Callable[[object, str], None]] = {
    "attempts": _number,
    "backoff": _backoff,
    "deduplication": _deduplication,
    "delay": _number,
    "jobId": _id,
    "keepLogs": _number,
    "lifo": _switch,
    "parent": _parent,
    "priority": _priority,
    "removeOnComplete": _keep,
    "removeOnFail": _keep,
    "sizeLimit": _number,
    "stackTraceLimit": _number,
    "timestamp": _number,
    **dict.fromkeys(POLICIES, _switch),
}
