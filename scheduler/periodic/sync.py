"""Sync: read the tables into the registry, and the database's clock into ours."""

from collections.abc import Callable, Sequence

from scheduler.clock import Clock, DatabaseClock
from scheduler.events import Events, Synced
from scheduler.periodic.registry import Registry
from scheduler.store.job import JobTable

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
    ) -> None:
        self._jobs = jobs
        self._registry = registry
        self._clock = clock
        self._database_clock = database_clock
        self._events = events
        self._tenants = tenants

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
        """Read clock and rows."""
        self.look()
        epoch = self._registry.epoch()
        tenants = self._tenants()
        rows = [] if tenants is not None and not tenants else self._jobs.mirror(tenants)
        count = self._registry.merge(rows, epoch=epoch)
        self._events.emit(Synced(jobs=count, skew=self._database_clock.skew()))
