"""What the checks look at: the servers of an installation, opened once, and what several checks
need to know.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from scheduler.config import Settings
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Depths, Known, Queue, unhandled_types
from scheduler.dialects.opening import DEFAULT, open_admin, open_queue
from scheduler.errors import ConfigError
from scheduler.store.doctor import DoctorTable
from scheduler.store.job_queue import JobKey
from scheduler.store.ring import RingTable

LATE = timedelta(minutes=1)
MOST = 500
PAUSE = 1.0
IMPATIENT: Any = {
    "dial_timeout": timedelta(seconds=2),
    "timeout": timedelta(seconds=2),
    "max_retries": 0,
    "min_idle": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A job that was fed and of which nothing was heard: for how long, and what Redis knows of
    it.
    """

    key: JobKey
    queue: str
    age: timedelta
    known: Known | None


class Patient:
    """The servers. `late`: for how long something may wait before it is worth a word."""

    def __init__(self, database: str, settings: Settings, *, late: timedelta = LATE) -> None:
        self.settings = settings
        self.late = late
        self.tables = DoctorTable(database, settings.schema)
        self._ring = RingTable(settings.schema, lambda: None)
        self._client = (
            None if settings.redis is None else Client(replace(settings.redis, **IMPATIENT))
        )

    @property
    def redis(self) -> Client:
        """Redis."""
        if self._client is None:
            raise ConfigError("redis: there is none")
        return self._client

    @property
    def has_redis(self) -> bool:
        """Whether this installation has a Redis at all."""
        return self._client is not None

    @cached_property
    def info(self) -> dict[str, Any]:
        """What Redis says of itself."""
        told = self.redis.call("INFO")
        return dict(told) if isinstance(told, dict) else {}

    @cached_property
    def epochs(self) -> dict[str, int]:
        """The queues that were ever fed, with the marks that their Redis must have."""
        return dict(self.tables.run(self._ring.epochs()))

    @cached_property
    def paused_tenants(self) -> dict[str, tuple[timedelta, timedelta | None]]:
        """The tenants that are paused: for how long, and for how long they have been deleted."""
        return {
            name: (paused, deleted) for name, paused, deleted in self.tables.rows("paused_tenants")
        }

    @cached_property
    def paused(self) -> dict[str, timedelta]:
        """The queues that somebody paused, and for how long."""
        return dict(self.tables.rows("paused_queues"))

    @cached_property
    def queues(self) -> dict[str, Queue]:
        """The queues that were ever fed, or are configured."""
        return {
            name: open_queue(self.redis, name, options, installation=mine)
            for name, options, mine in self._named()
        }

    def letters(self) -> dict[str, int]:
        """How many dead letters each queue has: of the ledger, and in Redis of jobs that no ledger
        has.
        """
        found: dict[str, int] = dict(self.tables.rows("letters"))
        for name, options, mine in self._named():
            found[name] = (
                found.get(name, 0)
                + open_admin(self.redis, name, options, installation=mine).dead_count()
            )
        return found

    @cached_property
    def unhandled(self) -> dict[str, Mapping[str, int]]:
        """The types of waiting jobs that no live worker of a queue handles, with their numbers of
        jobs.

        A queue without a live worker is left out: the check `queue-unworked` reports its jobs.
        """
        found: dict[str, Mapping[str, int]] = {}
        for name, options, mine in self._named():
            admin = open_admin(self.redis, name, options, installation=mine)
            if (types := unhandled_types(admin)) and admin.workers(1).alive:
                found[name] = types
        return found

    def _named(self) -> Iterator[tuple[str, Mapping[str, str], str]]:
        ((installation,),) = self.tables.run(self._ring.installation())
        for name in sorted({*self.epochs, *self.settings.queues}):
            yield name, self.settings.queues.get(name, DEFAULT), str(installation)

    @cached_property
    def depths(self) -> dict[str, tuple[Depths, Depths]]:
        """How much is in each queue, and how much was a moment later if any waits."""
        first = {name: queue.depths() for name, queue in self.queues.items()}
        if any(sum(each.waiting.values()) for each in first.values()):
            _pause()
        return {name: (first[name], queue.depths()) for name, queue in self.queues.items()}

    @cached_property
    def silent(self) -> list[Silent]:
        """Jobs that were fed and of which nothing was heard; what ends or is settled as we look is
        left out.
        """
        by_queue: dict[str, list[tuple[JobKey, timedelta]]] = {}
        for tenant, id_, queue, age in self.tables.rows("silent", late=self.late, limit=MOST):
            by_queue.setdefault(queue, []).append((JobKey(tenant, id_), age))
        found = [
            Silent(key=key, queue=name, age=age, known=known)
            for name, jobs in by_queue.items()
            if name in self.queues
            for (key, age), known in zip(
                jobs, self.queues[name].known([str(key.id) for key, _ in jobs]), strict=True
            )
        ]
        if any(each.known is None or each.known.state is None for each in found):
            _pause()
        rows = self.tables.run(self._ring.standing([each.key for each in found])) if found else []
        live = {JobKey(tenant, UUID(str(id_))) for tenant, id_, *_ in rows}
        return [each for each in found if each.key in live]

    def close(self) -> None:
        """Close the connections."""
        self.tables.close()
        if self._client is not None:
            self._client.close()


def _pause() -> None:
    """Let whatever is under way end."""
    threading.Event().wait(PAUSE)
