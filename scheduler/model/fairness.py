"""Who is fed how much: the room of each priority, divided evenly over the tenants that have
something due in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

RESERVED = (
    10  # a level that has something due keeps this part of a batch, however much is due above it
)


class Place(NamedTuple):
    """Where a look at those who wait stopped."""

    queue: str
    priority: int
    tenant: str


FIRST = Place("", 0, "")


class Waiting(NamedTuple):
    """Jobs of one tenant that wait in a queue at one priority: since when the oldest, whether it is
    due, or paused.
    """

    queue: str
    priority: int
    tenant: str
    run_at: datetime
    due: bool
    paused: bool = False

    @property
    def place(self) -> Place:
        """Where the next look begins."""
        return Place(self.queue, self.priority, self.tenant)


@dataclass(frozen=True, slots=True)
class Share:
    """How many jobs of a tenant may be fed at one priority."""

    priority: int
    tenant: str
    count: int


def shares(waiting: Iterable[Waiting], room: Mapping[int, int], batch: int) -> list[Share]:
    """Divide a batch of one queue: higher priorities first, each evenly over its due tenants, in
    the order given.

    What does not come out even goes to those that come first; with less room than tenants, the
    others wait for the next batch, which had better begin with them.
    """
    due: dict[int, dict[str, None]] = {}
    for each in waiting:
        if each.due and room.get(each.priority, 0) > 0:
            due.setdefault(each.priority, {})[each.tenant] = None
    left = batch
    divided: list[Share] = []
    for below, priority in reversed(list(enumerate(sorted(due, reverse=True)))):
        kept = max(0, min(below * max(1, batch // RESERVED), left - 1))  # for the levels below
        taken = min(room[priority], left - kept)
        if taken <= 0:
            break
        left -= taken
        even, odd = divmod(taken, len(due[priority]))
        counts = ((tenant, even + (number < odd)) for number, tenant in enumerate(due[priority]))
        divided += [Share(priority, tenant, count) for tenant, count in counts if count]
    return divided
