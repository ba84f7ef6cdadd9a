"""Sync: read the tables into the registry, and the database's clock into ours."""

import logging
from collections.abc import Callable, Sequence

from scheduler.clock import Clock, DatabaseClock
from scheduler.errors import StoreError, StoreUnavailable, TenantDeleting
from scheduler.events import Events, Synced
from scheduler.periodic.registry import Merged, Registry
from scheduler.store.job import JobTable

logger = logging.getLogger("scheduler")

TRIES = 3


class Sync:
    """Polling is the truth; a notification only makes it sooner."""

    def __init__(
        self,
        *,
        jobs: JobTable,
        registry: Registry,
        clock: Clock,
        database_clock: DatabaseClock,
        events: Events,
        tenants: Callable[[], Sequence[str] | None],
        reconcile: Callable[[Merged], None],
    ) -> None:
        self._jobs = jobs
        self._registry = registry
        self._clock = clock
        self._database_clock = database_clock
        self._events = events
        self._tenants = tenants
        self._reconcile = reconcile

    def look(self) -> None:
        """Read the database's clock; where the answer took long, ask again."""
        for attempt in range(TRIES):
            sent = self._clock.monotonic()
            moment = self._jobs.instant()
            received = self._clock.monotonic()
            if self._database_clock.observe(
                moment, sent=sent, received=received, certain=attempt == TRIES - 1
            ):
                break

    def sync(self) -> None:
        """Read clock and rows, and write the definitions about which rows and registry disagree."""
        self.look()
        epoch = self._registry.epoch()
        tenants = self._tenants()
        rows = [] if tenants is not None and not tenants else self._jobs.mirror(tenants)
        merged = self._registry.merge(rows, epoch=epoch)
        try:
            self._reconcile(merged)
        except StoreUnavailable:
            raise
        except (StoreError, TenantDeleting) as error:
            logger.warning("definitions of jobs could not be written after a sync: %s", error)
        self._events.emit(Synced(jobs=merged.jobs, skew=self._database_clock.skew()))
