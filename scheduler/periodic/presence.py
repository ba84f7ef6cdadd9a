"""Presence: each instance says that it is alive and what it can run, and notices what nobody
can.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from scheduler.clock import DatabaseClock
from scheduler.errors import StoreError, StoreUnavailable
from scheduler.events import Events, JobStranded
from scheduler.log import keys
from scheduler.model.definition import Key
from scheduler.periodic.registry import Registry
from scheduler.store.job_instance import InstanceTable
from scheduler.store.job_lock import Holder

logger = logging.getLogger("scheduler")


class Presence:
    """One beat with each sync; an instance counts as gone when three of them were missed."""

    def __init__(
        self,
        *,
        instances: InstanceTable,
        registry: Registry,
        holder: Holder,
        database_clock: DatabaseClock,
        events: Events,
        tenants: Callable[[], Sequence[str] | None],
        every: timedelta,
    ) -> None:
        self._instances = instances
        self._registry = registry
        self._holder = holder
        self._database_clock = database_clock
        self._events = events
        self._tenants = tenants
        self._lives = 3 * every
        self._told = -1
        self._suspects: set[Key] = set()
        self._stranded: set[Key] = set()

    def beat(self) -> None:
        """Say what this instance can run, and look for jobs that nobody can. No job waits for it to
        succeed.
        """
        try:
            version, runs = self._registry.runs()
            self._say(None if version == self._told else runs) or self._say(runs)
            self._told = version
            self._look()
        except StoreUnavailable:
            raise
        except StoreError as error:
            logger.warning("this instance cannot say that it is alive: %s", error)

    def _say(self, runs: list[Key] | None) -> bool:
        """Beat once; say whether what it can run is known now."""
        skew = self._database_clock.skew()
        new, self._registry.instances = self._instances.beat(
            self._holder, lives=self._lives, skew=skew, runs=runs
        )
        return not new or runs is not None

    @property
    def stranded(self) -> int:
        """How many jobs no live instance can run."""
        return len(self._stranded)

    def leave(self) -> None:
        """Say that this instance ends."""
        try:
            self._instances.leave(self._holder)
        except StoreError as error:
            logger.info("the end of this instance could not be told, it will be noticed: %s", error)

    def _look(self) -> None:
        """Report what nobody could run at two looks in a row: an instance that starts registers
        step by step.
        """
        found = self._instances.stranded(self._tenants()) if self._registry.helpless() else set()
        for key in sorted((found & self._suspects) - self._stranded):
            about = keys(namespace=key.tenant, job_id=key.job_id)
            logger.warning(
                "no live instance can run %s/%s: none has registered its function",
                *key,
                extra=about,
            )
            self._events.emit(JobStranded(tenant=key.tenant, job_id=key.job_id))
        self._stranded = found & (self._stranded | self._suspects)
        self._suspects = found
