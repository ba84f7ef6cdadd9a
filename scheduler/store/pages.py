"""What the pages of the dashboard need of the tables, beside what the API has; every statement is
bounded.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from scheduler.store.engine import Database, Row
from scheduler.store.queries import statement


class Ended(NamedTuple):
    """Ends of one minute of a tenant: since when they were read, how late they started, outcomes,
    queues of jobs.
    """

    tenant: str
    minute: datetime
    since: datetime
    usual: float | None
    late: float | None
    fires: list[str] | None
    jobs: list[str] | None
    queues: list[str] | None


class Coming(NamedTuple):
    """How many registered jobs are `paused`, `late`, come due in a `minute` or `later`; with an id,
    a late one.
    """

    tenant: str
    what: str
    id: str | None
    at: datetime | None
    many: int


class Cell(NamedTuple):
    """One of the newest ends of a registered job."""

    id: str
    at: datetime
    outcome: str
    reason: str | None
    took: float | None


class Letter(NamedTuple):
    """A dead letter of a tenant, which has `total`."""

    tenant: str
    id: str
    queue: str
    at: datetime
    type: str | None
    attempt: int | None
    reason: str | None
    error: str | None
    total: int


class Held(NamedTuple):
    """A lease under way."""

    tenant: str
    id: str
    owner: UUID
    holder: str | None
    fire_at: datetime
    since: datetime
    expires_at: datetime
    starts: int


class Edge(NamedTuple):
    """An open edge of a job; `before`: it waits for that one. `outcome`: how that one ended, if it
    has.
    """

    before: bool
    kind: str
    id: str
    type: str | None
    outcome: str | None


class PagesTable:
    """Statements for pages. `now` is the moment a test plays; None is the database's own clock."""

    def __init__(self, database: Database, now: Callable[[], datetime | None]) -> None:
        self._database = database
        self._now = now

    def tenants(self, *, limit: int) -> list[str]:
        """Name tenants that have something."""
        return [tenant for (tenant,) in self._run("tenants", limit=limit)]

    def minutes(
        self, tenants: Sequence[str], *, minutes: int, most: int
    ) -> tuple[datetime, list[Ended]]:
        """Read how things ended in the last minutes, the newest `most` of each; with the database's
        time.
        """
        rows = self._run("minutes", tenants=list(tenants), minutes=minutes, most=most)
        (now,) = (row[2] for row in rows if row[0] is None)
        return now, [Ended._make(row) for row in rows if row[0] is not None]

    def coming(self, tenants: Sequence[str], *, minutes: int, most: int) -> list[Coming]:
        """Read what is to come of the first `most` registered jobs of each tenant."""
        return [
            Coming._make(row)
            for row in self._run("coming", tenants=list(tenants), minutes=minutes, most=most)
        ]

    def strips(self, tenant: str, *, after: str, limit: int, most: int) -> list[Cell]:
        """Read the newest ends of each of a page of registered jobs."""
        return [
            Cell._make(row)
            for row in self._run("strips", tenant=tenant, after=after, limit=limit, most=most)
        ]

    def dead(self, tenants: Sequence[str], *, limit: int, most: int) -> list[Letter]:
        """Read the newest dead letters of each of some tenants."""
        return [
            Letter._make(row)
            for row in self._run("dead", tenants=list(tenants), limit=limit, most=most)
        ]

    def held(self, *, limit: int, most: int) -> list[Held]:
        """Read leases under way among the first `most` jobs."""
        return [Held._make(row) for row in self._run("held", limit=limit, most=most)]

    def around(self, tenant: str, job_id: UUID, *, limit: int) -> list[Edge]:
        """Read the open edges of a job."""
        return [
            Edge._make(row) for row in self._run("around", tenant=tenant, id=job_id, limit=limit)
        ]

    def _run(self, name: str, **parameters: object) -> list[Row]:
        return self._database.run(
            statement("pages", name, self._database.schema), {"now": self._now(), **parameters}
        )
