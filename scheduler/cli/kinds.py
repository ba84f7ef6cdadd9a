"""Kinds of values: how each is read out of YAML, or out of the text of an environment variable.

What is wrong is a ValueError that says what is allowed; who reads adds the key, and what was found.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import yaml

from scheduler.config import SchedulerOptions, checked_settings
from scheduler.errors import ConfigError, InvalidName, InvalidOption
from scheduler.model.durations import brief, duration
from scheduler.model.labels import checked_queue
from scheduler.store.engine import checked_dsn

LARGEST = 2**53  # from there on, Redis' scripts cannot count
SWITCHES = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a key may be: `read` takes what YAML has, `plain` makes that of an environment
    variable's text.
    """

    read: Callable[[object], Any]
    plain: Callable[[str], object] = str


class Refused(ValueError):
    """A message that says all there is to say, also what was found."""


def text(*, empty: bool = False) -> Kind:
    """Any text."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not (value or empty):
            raise ValueError("must be a text, in quotes if it looks like something else")
        return sendable(value)

    return Kind(read)


def whole(least: int, most: int | None = None) -> Kind:
    """A whole number."""
    allowed = f"must be a whole number from {least} {'on' if most is None else f'to {most}'}"

    def read(value: object) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not least <= value <= (most or LARGEST)
        ):
            raise ValueError(allowed)
        return value

    return Kind(read, number)


def share() -> Kind:
    """A part of a whole."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise ValueError("must be a number above 0, at most 1")
        return float(value)

    return Kind(read, number)


def switch() -> Kind:
    """True or false."""

    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value

    return Kind(read, lambda said: SWITCHES.get(said.lower(), said))


def span(least: str | None = None, most: str | None = None) -> Kind:
    """A duration."""

    def read(value: object) -> timedelta:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(f'must have a unit, like "{value}s" or "{value}ms"')
        if not isinstance(value, str):
            raise Refused(f'must be a text like "30s" or "15m", not {type(value).__name__}')
        try:
            found = duration(value, name="it")
        except InvalidOption as error:
            raise Refused(str(error).removeprefix("it ")) from None
        if least is not None and found < duration(least, name="least"):
            raise ValueError(f"must be at least {least}")
        if most is not None and found > duration(most, name="most"):
            raise ValueError(f"must be at most {most}")
        return found

    return Kind(read)


def choice(*words: str) -> Kind:
    """One of some words."""

    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return Kind(read)


def texts(*, least: int = 0, most: int | None = None) -> Kind:
    """A list of texts; in an environment variable between commas, or as YAML has lists."""

    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(
            isinstance(each, str) and each for each in value
        ):
            raise ValueError("must be a list of texts, like [one, two]")
        if len(value) < least or len(set(value)) < len(value):
            raise ValueError(
                "must not be empty" if len(value) < least else "must not name anything twice"
            )
        if most is not None and len(value) > most:
            raise ValueError(f"must be at most {most}")
        return tuple(map(sendable, value))

    return Kind(read, listed)


def table() -> Kind:
    """Texts by texts; in an environment variable as YAML or JSON has them."""

    def read(value: object) -> dict[str, str]:
        if not isinstance(value, Mapping) or not all(
            isinstance(part, str) for pair in value.items() for part in pair
        ):
            raise ValueError("must be texts by names, like {high: jobqueue:high_priority}")
        return {sendable(name): sendable(each) for name, each in value.items()}

    return Kind(read, structured)


def pattern() -> Kind:
    """A printf format with the worker's name in it."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value.count("%s") != 1 or value.count("%") != 1:
            raise ValueError(
                'must have exactly one %s, for the name of the worker, and no other "%"'
            )
        return sendable(value)

    return Kind(read)


def addresses() -> Kind:
    """Where Redis is: one URL, or hosts; None where there is none."""

    def read(value: object) -> str | tuple[str, ...]:
        try:
            hosts = texts(least=1).read([value] if isinstance(value, str) else value)
        except Refused:
            raise
        except ValueError:
            raise ValueError("must be host:port, a list of them, or a URL") from None
        if "://" in "".join(hosts):
            if len(hosts) > 1:
                raise ValueError(
                    "must be one URL, which may have several hosts, or a list of host:port"
                )
            return str(hosts[0])
        return tuple(host.strip() for each in hosts for host in each.split(","))

    return optional(Kind(read, lambda said: structured(said) if said.startswith("[") else said))


def queue() -> Kind:
    """The name of a queue."""

    def read(value: object) -> str:
        try:
            return checked_queue(value)
        except InvalidName as error:
            raise Refused(str(error).removeprefix("queue ")) from None

    return Kind(read)


def option(name: str, plain: Callable[[str], object] = str) -> Kind:
    """An option of `Scheduler`, checked as it checks it."""

    def read(value: object) -> object:
        options: SchedulerOptions = {} if name == "database" else {name: value}  # type: ignore[misc]
        if isinstance(value, str):
            sendable(value)
        try:
            return getattr(checked_settings(value if name == "database" else None, options), name)
        except ConfigError as error:
            raise Refused(str(error).removeprefix(name).lstrip(": ")) from None

    return Kind(read, optional(Kind(read, plain)).plain)


def lasting(name: str) -> Kind:
    """An option of `Scheduler` that is a duration: in a file, a text with a unit."""
    kind = option(name)

    def read(value: object) -> object:
        span().read(value)
        return kind.read(value)

    return Kind(read, kind.plain)


def listening() -> Kind:
    """The option `listen`, as it was given: what None means depends on another."""
    kind = dsn("listen", switch().plain)

    def read(value: object) -> object:
        kind.read(value)
        return value

    return Kind(read, kind.plain)


def dsn(name: str, plain: Callable[[str], object] = str) -> Kind:
    """An option of `Scheduler` that may be a DSN."""
    kind = option(name, plain)

    def read(value: object) -> object:
        found = kind.read(value)
        if isinstance(value, str):
            try:
                checked_dsn(value)
            except ConfigError as error:
                raise Refused(str(error).removeprefix("database: ")) from None
            if "://" in value and value.count("@") > 1:
                raise Refused(
                    "has an @ too many; write one in a password as %40: "
                    "postgresql://user:pass%40word@host/name"
                )
        return found

    return Kind(read, kind.plain)


def optional(kind: Kind) -> Kind:
    """A kind, or nothing."""
    return Kind(
        lambda value: None if value is None else kind.read(value),
        lambda said: None if said.strip().lower() in ("none", "null") else kind.plain(said),
    )


def sendable(value: str) -> str:
    """Check that a text can be written, and be part of a path."""
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise Refused("must be a text in UTF-8, and without the character NUL")
    return value


def number(said: str) -> object:
    """Read a number out of a text."""
    for kind in (int, float):
        try:
            return kind(said)
        except ValueError:
            continue
    return said


def listed(said: str) -> object:
    """Read a list out of a text."""
    if said.lstrip().startswith("["):
        return structured(said)
    return [part.strip() for part in said.split(",")] if said.strip() else []


def tenants(said: str) -> object:
    """Read whose jobs are mirrored out of a text."""
    return said if said in ("registered", "all") else listed(said)


def structured(said: str) -> object:
    """Read YAML or JSON out of a text."""
    try:
        return yaml.safe_load(said)
    except yaml.YAMLError:
        return said


def shown(value: object) -> object:
    """Write a value as YAML would have it."""
    if isinstance(value, timedelta):
        return f"{value.days}d" if value == timedelta(days=value.days) else brief(value)
    if isinstance(value, tuple):
        return list(value)
    return value
