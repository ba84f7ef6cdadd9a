"""What one sees of a process at one moment: its parts, its queues, its clock. Metrics and health
are made of it.
"""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from scheduler.errors import QueueError
from scheduler.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part that goes on by itself: seconds since its last good pass, and why it does not work, if
    so.
    """

    name: str
    age: float
    trouble: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSight:
    """How much waits in a queue of Redis (None: that is away), and what is first in each of its
    lists.

    `feed_lag`, `settle_lag`: for how many seconds the oldest job that is due waits to be fed, and
    the oldest end to be settled; None in a process that does neither.

    `unhandled`: the number of parked jobs whose type no live worker handles. Workers do not count
    them, and queues of other dialects than `standard` do not know: None.
    """

    name: str
    waiting: int | None = None
    heads: tuple[bytes, ...] = ()
    feed_lag: float | None = None
    settle_lag: float | None = None
    unhandled: int | None = None


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
    """Look at parts; those that there are once for each queue are one, as old as the oldest of
    them.
    """
    now, found = time.monotonic(), dict[str, Part]()
    for service in services:
        name = kind + service.name.partition("-")[0]
        part = Part(name=name, age=max(0.0, now - service.passed), trouble=service.trouble)
        found[name] = max(
            part, found.get(name, part), key=lambda each: (each.trouble is not None, each.age)
        )
    return tuple(found.values())


class SupportsHead(Protocol):
    """A queue that can report how many jobs wait in it, and which are first."""

    name: str

    def waits(self) -> Any:
        """Return `waiting` and `heads`."""


def queue_statuses(
    queues: Iterable[SupportsHead], known: Collection[str], others: int
) -> list[QueueSight]:
    """Read how many jobs wait in queues. After the first failure Redis is not asked again."""
    found: dict[str, QueueSight] = {}
    listed = sorted(queues, key=lambda queue: queue.name not in known)
    unavailable = False
    for queue in listed[: sum(queue.name in known for queue in listed) + others]:
        # The lists of foreign producers can have the name of a queue as well.
        before = found.get(queue.name, QueueSight(name=queue.name))
        found[queue.name] = before
        try:
            head = None if unavailable else queue.waits()
        except QueueError:
            unavailable = True
        else:
            if head is not None:
                waiting, heads = head.waiting + (before.waiting or 0), before.heads + head.heads
                found[queue.name] = QueueSight(name=queue.name, waiting=waiting, heads=heads)
    return list(found.values())
