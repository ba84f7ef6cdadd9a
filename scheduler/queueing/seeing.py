"""What one sees of queues in Redis: how much waits, and what is first."""

from collections.abc import Iterable

from scheduler.dialects.interface import Queue
from scheduler.errors import QueueError
from scheduler.sight import QueueSight


def seen(queues: Iterable[Queue]) -> list[QueueSight]:
    """Look at queues, until one cannot be: then Redis is away, and the others would take as long to say so."""
    found: list[QueueSight] = []
    for queue in queues:
        try:
            waits = queue.waits()
        except QueueError:
            break
        found.append(QueueSight(name=queue.name, waiting=waits.waiting, heads=waits.heads))
    return found
