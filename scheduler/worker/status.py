"""What a worker publishes about itself with its heartbeats, and what health checks read of it."""

import contextlib
import heapq
import math
import os
import socket
import time
from collections.abc import Collection, Iterable, Sequence

from scheduler.dialects.interface import About
from scheduler.errors import LifecycleError, QueueError
from scheduler.service import Service
from scheduler.sight import Sight, parts_of, queue_statuses
from scheduler.worker.attempt import Attempt
from scheduler.worker.consumer import QueueConsumer

MAX_REPORTED_JOBS = 20
MAX_REPORTED_TYPES = 1000  # a worker with more reports none, and counts as handling every type


class StatusReporter:
    """Makes the reports of a worker: with each heartbeat, and when a circuit breaker changed."""

    def __init__(self, concurrency: int, *, has_breaker: bool) -> None:
        self._concurrency = concurrency
        self._has_breaker = has_breaker
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._started = time.monotonic()
        self._reported_at = -math.inf
        self._reported_changes = self._changes = 0

    def is_due(self, consumers: Sequence[QueueConsumer], now: float, interval: float) -> bool:
        """Return whether it is time for the next report."""
        self._changes = sum(each.guard.breaker.changes for each in consumers)
        return now >= self._reported_at + interval or self._changes != self._reported_changes

    def report(self, consumer: QueueConsumer) -> About:
        """Return the report of one queue, with the jobs that have been in flight for longest."""
        now, in_flight = time.monotonic(), list(consumer.in_flight)
        oldest = _oldest(in_flight)
        overdue = _oldest(each for each in in_flight if each.is_overdue)
        breaker, types = consumer.guard.breaker, consumer.types
        return About(
            host=self._host,
            pid=self._pid,
            concurrency=self._concurrency,
            age=now - self._started,
            holds=len(in_flight),
            jobs=[
                (each.delivery.job.id, each.delivery.job.tenant, each.delivery.job.type)
                for each in oldest
            ],
            breaker=breaker.state if self._has_breaker else None,
            breaker_left=breaker.left(now) if self._has_breaker else None,
            overdue=[each.delivery.job.id for each in overdue],
            types=None if types is None or len(types) > MAX_REPORTED_TYPES else types,
        )

    def mark_reported(self, now: float) -> None:
        """Record that the report was sent."""
        self._reported_at, self._reported_changes = now, self._changes


def _oldest(attempts: Iterable[Attempt]) -> list[Attempt]:
    return heapq.nsmallest(MAX_REPORTED_JOBS, attempts, key=lambda each: each.received)


def deregister(consumers: Iterable[QueueConsumer]) -> None:
    """Remove a worker that stops from the lists of its queues."""
    with contextlib.suppress(QueueError):
        for consumer in consumers:
            consumer.queue.leave()


def worker_status(
    consumers: Sequence[QueueConsumer],
    services: Iterable[Service],
    known: Collection[str],
    others: int,
) -> Sight:
    """Return the status of a worker and of its queues: the known ones, and some others."""
    if not consumers:
        raise LifecycleError("this worker is not started")
    return Sight(
        parts=parts_of(services, "worker-"),
        queues=tuple(queue_statuses([each.queue for each in consumers], known, others)),
        breakers=tuple((each.queue.name, each.guard.breaker.state) for each in consumers),
    )
