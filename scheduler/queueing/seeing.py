"""What one sees of queues in Redis, and of a worker: how much waits, what is first, how its parts and breakers are."""

import contextlib
import heapq
import math
import os
import socket
import time
from collections.abc import Collection, Iterable, Sequence

from scheduler.dialects.interface import About, Queue
from scheduler.errors import LifecycleError, QueueError
from scheduler.queueing.carrier import Carrier
from scheduler.service import Service
from scheduler.sight import QueueSight, Sight, parts_of

MOST_NAMED = 20


class Telling:
    """What a worker says of itself, so that others see it, and when: with a heartbeat, or when a breaker changed."""

    def __init__(self, concurrency: int, *, breaks: bool) -> None:
        self._concurrency = concurrency
        self._breaks = breaks
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._began = time.monotonic()
        self._told = -math.inf
        self._changes = self._saw = 0

    def due(self, carriers: Sequence[Carrier], now: float, every: float) -> bool:
        """Whether it is time to."""
        self._saw = sum(carrier.breaker.changes for carrier in carriers)
        return now >= self._told + every or self._saw != self._changes

    def about(self, carrier: Carrier) -> About:
        """Say how it is at one queue; of the jobs in its hands those that it has had for longest."""
        now, flight = time.monotonic(), list(carrier.flight)
        oldest = heapq.nsmallest(MOST_NAMED, flight, key=lambda attempt: attempt.received)
        return About(
            host=self._host,
            pid=self._pid,
            concurrency=self._concurrency,
            age=now - self._began,
            holds=len(flight),
            jobs=[(each.delivery.job.id, each.delivery.job.tenant, each.delivery.job.type) for each in oldest],
            breaker=carrier.breaker.state if self._breaks else None,
            breaker_left=carrier.breaker.left(now) if self._breaks else None,
        )

    def told(self, now: float) -> None:
        """Note that it was said, as it was when it was due."""
        self._told, self._changes = now, self._saw


def leave(carriers: Sequence[Carrier], keeping: Service) -> None:
    """Say that a worker ends, once it no longer says that it is there."""
    keeping.stop(timeout=1.0)
    with contextlib.suppress(QueueError):
        for carrier in carriers:
            carrier.queue.leave()


def sight_of(carriers: Sequence[Carrier], services: Iterable[Service], known: Collection[str], others: int) -> Sight:
    """Look at a worker, and in Redis at its queues: those that are known, and some others."""
    if not carriers:
        raise LifecycleError("this worker is not started")
    return Sight(
        parts=parts_of(services, "worker-"),
        queues=tuple(seen([carrier.queue for carrier in carriers], known, others)),
        breakers=tuple((carrier.queue.name, carrier.breaker.state) for carrier in carriers),
    )


def reach(carriers: Sequence[Carrier]) -> None:
    """Ask the Redis of a worker for something small."""
    for carrier in carriers[:1]:
        carrier.queue.waits()


def seen(queues: Iterable[Queue], known: Collection[str], others: int) -> list[QueueSight]:
    """Look at queues, in Redis until one cannot be: the next would take as long to say that it is away."""
    found: dict[str, QueueSight] = {}
    listed = sorted(queues, key=lambda queue: queue.name not in known)
    away = False
    for queue in listed[: sum(queue.name in known for queue in listed) + others]:
        before = found.get(queue.name, QueueSight(name=queue.name))  # there may be another in keys of the original
        found[queue.name] = before
        try:
            waits = None if away else queue.waits()
        except QueueError:
            away = True
        else:
            if waits is not None:
                waiting, heads = waits.waiting + (before.waiting or 0), before.heads + waits.heads
                found[queue.name] = QueueSight(name=queue.name, waiting=waiting, heads=heads)
    return list(found.values())
