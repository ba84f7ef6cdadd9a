"""What one sees of a process at one moment: its parts, its queues, its clock. Metrics and health are made of it."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from scheduler.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part that goes on by itself: seconds since its last good pass, and why it does not work, if so."""

    name: str
    age: float
    trouble: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSight:
    """How much waits in a queue of Redis (None: that is away), and what is first in each of its lists.

    `feed_lag`, `settle_lag`: for how many seconds the oldest job that is due waits to be fed, and the oldest end to be
    settled; None in a process that does neither.
    """

    name: str
    waiting: int | None = None
    heads: tuple[bytes, ...] = ()
    feed_lag: float | None = None
    settle_lag: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """All of it. `stranded`: how many jobs no live instance can run.

    `breakers`: the state of the circuit breaker of each queue that is worked here.
    """

    parts: tuple[Part, ...]
    queues: tuple[QueueSight, ...] = ()
    breakers: tuple[tuple[str, int], ...] = ()
    skew: timedelta | None = None
    stranded: int | None = None


def parts_of(services: Iterable[Service], kind: str = "") -> tuple[Part, ...]:
    """Look at parts; those that there are once for each queue are one, as old as the oldest of them."""
    now, found = time.monotonic(), dict[str, Part]()
    for service in services:
        name = kind + service.name.partition("-")[0]
        part = Part(name=name, age=max(0.0, now - service.passed), trouble=service.trouble)
        found[name] = max(part, found.get(name, part), key=lambda each: (each.trouble is not None, each.age))
    return tuple(found.values())
