"""What one sees of queues in Redis, and of a worker: how much waits, what is first, how its parts and breakers are."""

from collections.abc import Collection, Iterable, Sequence

from scheduler.dialects.interface import Queue
from scheduler.errors import LifecycleError, QueueError
from scheduler.queueing.carrier import Carrier
from scheduler.service import Service
from scheduler.sight import QueueSight, Sight, parts_of


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
