"""Presence: each instance says that it is alive and what it can run, and notices what nobody
can.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from scheduler.clock import Clock, DatabaseClock
from scheduler.errors import StoreError, StoreUnavailable
from scheduler.events import Events, JobStranded
from scheduler.log import keys
from scheduler.model.definition import AppVersion, Key
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
        version: AppVersion,
        clock: Clock,
        database_clock: DatabaseClock,
        events: Events,
        tenants: Callable[[], Sequence[str] | None],
        every: timedelta,
    ) -> None:
        self._instances = instances
        self._registry = registry
        self._holder = holder
        self._version = version
        self._clock = clock
        self._database_clock = database_clock
        self._events = events
        self._tenants = tenants
        self._lives = 3 * every
        self._told = -1
        self._first = False  # of the live instances: it looks after tenants that none mirrors
        self._suspects: set[Key] = set()
        self._stranded: set[Key] = set()
        # Instances of higher versions: their last heartbeats, and when this process first saw them.
        self._newer: dict[UUID, tuple[datetime, float]] = {}

    def announce(self) -> None:
        """Write the first heartbeat. It comes before the first registration: otherwise an instance
        of a lower version could replace that. A failure is logged and stops no job.
        """
        try:
            self._say(self._registry.runs()[1])
        except StoreUnavailable:
            raise
        except StoreError as error:
            logger.warning("the first heartbeat of this instance failed: %s", error)

    def is_outranked(self) -> bool:
        """Return whether an instance of a higher version of the app is alive.

        It counts as dead when it has left, or when its time is over by the database's clock and
        this process has seen no heartbeat for a third of that time, which is the interval between
        heartbeats, by its monotonic clock. So neither a jump of the database's clock nor an outage
        that kept all instances from their heartbeats makes a living instance count as dead.
        """
        newer = self._instances.newer(self._version)
        now = self._clock.monotonic()
        seen: dict[UUID, tuple[datetime, float]] = {}
        found = False
        for instance, seen_at, lives, is_over in newer:
            known, since = self._newer.get(instance, (None, now))
            seen[instance] = (seen_at, since if known == seen_at else now)
            is_unchanged = now - seen[instance][1] >= lives.total_seconds() / 3
            found = found or not (is_over and is_unchanged)
        self._newer = seen
        return found

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
        new, self._registry.instances, self._first = self._instances.beat(
            self._holder,
            version=self._version,
            lives=self._lives,
            skew=skew,
            runs=runs,
            mirrors=self._tenants(),
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

        Each instance reports jobs of the tenants that it mirrors, and the first of them due jobs of
        the tenants that none mirrors. If it dies, another is the first when it counts as gone.
        """
        found = self._instances.stranded(self._tenants()) if self._registry.helpless() else set()
        unmirrored = self._instances.unmirrored() if self._first else set()
        found |= unmirrored
        for key in sorted((found & self._suspects) - self._stranded):
            about = keys(namespace=key.tenant, job_id=key.job_id)
            reason = (
                "none mirrors its tenant"
                if key in unmirrored
                else "none has registered its function"
            )
            logger.warning("no live instance can run %s/%s: %s", *key, reason, extra=about)
            self._events.emit(JobStranded(tenant=key.tenant, job_id=key.job_id))
        self._stranded = found & (self._stranded | self._suspects)
        self._suspects = found
