"""The `job_instance` table: who is alive, and what each can run."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from scheduler.model.definition import AppVersion, Key
from scheduler.model.job import InstanceInfo
from scheduler.store.engine import Database, Row
from scheduler.store.job_lock import Holder
from scheduler.store.queries import statement


class InstanceTable:
    """Statements on `job_instance`. `now` is the moment a test plays; None is the database's own
    clock.
    """

    def __init__(self, database: Database, now: Callable[[], datetime | None]) -> None:
        self._database = database
        self._now = now

    def beat(
        self,
        holder: Holder,
        *,
        version: AppVersion,
        lives: timedelta,
        skew: timedelta,
        runs: Sequence[Key] | None,
        mirrors: Sequence[str] | None,
    ) -> tuple[bool, int, bool]:
        """Record that an instance is alive for so long, what it can run (None: as before), and
        which tenants it mirrors (None: all).

        Return whether it was unknown, how many live, and whether it is the first of them.
        """
        ((new, others, first),) = self._run(
            "beat",
            id=holder.owner,
            label=holder.label,
            lives=lives,
            skew=skew,
            app=version.app,
            version=version.version,
            tenants=None if runs is None else [key.tenant for key in runs],
            ids=None if runs is None else [key.job_id for key in runs],
            mirrors=mirrors,
        )
        return bool(new), others + 1, bool(first)

    def leave(self, holder: Holder) -> None:
        """Say that an instance ends."""
        self._run("leave", id=holder.owner)

    def newer(self, version: AppVersion) -> list[tuple[UUID, datetime, timedelta, bool]]:
        """Read the instances of higher versions of the app: id, last heartbeat, how long it counts
        as alive after it, and whether that time is over.
        """
        rows = self._run("newer", app=version.app, version=version.version)
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    def live(self, key: Key) -> list[str]:
        """Name the live instances that can run a job."""
        return [label for (label,) in self._run("live", tenant=key.tenant, job_id=key.job_id)]

    def page(self, after: UUID, *, limit: int) -> list[InstanceInfo]:
        """Read instances by id, from the one after `after` on."""
        names = tuple(InstanceInfo.__dataclass_fields__)
        return [
            InstanceInfo(**dict(zip(names, row, strict=True)))
            for row in self._run("page", after=after, limit=limit)
        ]

    def stranded(self, tenants: Sequence[str] | None) -> set[Key]:
        """Name the jobs of the tenants, or of all, that no live instance can run."""
        return {Key(*row) for row in self._run("stranded", tenants=tenants)}

    def unmirrored(self) -> set[Key]:
        """Name the due jobs of tenants that no live instance mirrors."""
        return {Key(*row) for row in self._run("unmirrored")}

    def _run(self, name: str, **parameters: object) -> list[Row]:
        query = statement("job_instance", name, self._database.schema)
        return self._database.run(query, {"now": self._now(), **parameters})
