"""The options that somebody asks for, with BullMQ's own names and units: checked before anything is sent."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypedDict, cast

from scheduler.errors import InvalidOption

Keep = bool | int | Mapping[str, int]


class Options(TypedDict, total=False):
    """What may be said of a job; it means what it means in BullMQ. Times are milliseconds, ages seconds."""

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
KEEP = ("age", "count", "limit")
PARENT = ("id", "queue")
INNER = {
    "backoff": ("type", "delay", "jitter"),
    "deduplication": ("id", "ttl", "extend", "replace", "keepLastIfActive", "reschedule"),
    "parent": PARENT,
    "removeOnComplete": KEEP,
    "removeOnFail": KEEP,
}
NUMBERS = ("attempts", "delay", "keepLogs", "priority", "sizeLimit", "stackTraceLimit", "timestamp")
POLICIES = (
    "continueParentOnFailure",
    "failParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)


def checked(options: Mapping[str, Any]) -> Options:
    """Check options; a backoff that is a number becomes a fixed one."""
    for name, value in options.items():
        _known(name, tuple(Options.__annotations__), "option")
        for inner in value if isinstance(value, Mapping) else ():
            _known(inner, INNER.get(name, ()), f"part of {name}")
    for name in NUMBERS:
        _number(options.get(name, 0), name, LARGEST_PRIORITY if name == "priority" else None)
    for name in (*POLICIES, "lifo"):
        if not isinstance(options.get(name, True), bool):
            raise InvalidOption(f"{name} must be True or False, not {options[name]!r}")
    _keep(options)
    _id(options.get("jobId"))
    _relations(options)
    backoff = options.get("backoff")
    return cast("Options", options if backoff is None else {**options, "backoff": _backoff(backoff)})


def _known(name: str, known: tuple[str, ...], what: str) -> None:
    if name in known:
        return
    words = {word.lower(): word for word in known}
    near = get_close_matches(name.replace("_", "").lower(), words, n=1, cutoff=0.5)
    meant = f"; did you mean {words[near[0]]}?" if near else f"; there are {', '.join(sorted(known)) or 'none'}"
    raise InvalidOption(f"{name} is no {what} in BullMQ{meant}")


def _number(value: object, name: str, largest: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (largest is not None and value > largest):
        limits = f"from 0 to {largest}" if largest is not None else "from 0 on"
        raise InvalidOption(f"{name} must be a whole number {limits}, not {value!r}")


def _keep(options: Mapping[str, Any]) -> None:
    for name in ("removeOnComplete", "removeOnFail"):
        value = options.get(name, False)
        if isinstance(value, Mapping):
            for inner, number in value.items():
                _number(number, f"{name}.{inner}")
        elif not isinstance(value, int) or value < 0:
            like = '{"age": seconds, "count": number}'
            raise InvalidOption(f"{name} must be True, False, how many to keep, or {like}, not {value!r}")


def _backoff(value: object) -> Mapping[str, Any]:
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"type": "fixed", "delay": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise InvalidOption(f'backoff must be milliseconds or {{"type": "exponential", "delay": 1000}}, not {value!r}')
    _number(value.get("delay", 0), "backoff.delay")
    jitter = value.get("jitter", 0)
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
        raise InvalidOption(f"backoff.jitter must be from 0 to 1, not {jitter!r}")
    return value


def _id(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        raise InvalidOption(f"jobId must be a text, not {value!r}")
    if value.isdecimal():
        raise InvalidOption(f"jobId must not be a number, BullMQ gives those itself: call it job-{value}")
    if ":" in value and value.count(":") != 2:
        raise InvalidOption(f"jobId must not have a colon, which parts the names of keys: {value!r}")


def _relations(options: Mapping[str, Any]) -> None:
    policies = [name for name in POLICIES if options.get(name)]
    if len(policies) > 1:
        raise InvalidOption(f"{policies[0]} and {policies[1]} exclude each other: choose one")
    unique, parent = options.get("deduplication"), options.get("parent")
    if unique is not None:
        if not isinstance(unique, Mapping) or not isinstance(unique.get("id"), str):
            raise InvalidOption(f'deduplication must be like {{"id": "video-7", "ttl": 5000}}, not {unique!r}')
        _number(unique.get("ttl", 0), "deduplication.ttl")
        if parent is not None:
            raise InvalidOption("deduplication and parent exclude each other: who waits for a child that is left out?")
    if parent is not None and (not isinstance(parent, Mapping) or set(parent) != set(PARENT)):
        raise InvalidOption(f'parent must be like {{"id": "7", "queue": "bull:video"}}, not {parent!r}')
