"""The `job_history` table: the ledger."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from psycopg.errors import LockNotAvailable

from scheduler.errors import StoreError
from scheduler.model.job import HistoryEntry, HistoryPlace
from scheduler.model.outcomes import Outcome
from scheduler.store.engine import Database
from scheduler.store.queries import statement

AHEAD = 7
LOCKS_WAIT = "1000"


class HistoryTable:
    """Statements on `job_history`; its rows are written by the statements that end a fire or a
    job.
    """

    def __init__(self, database: Database, now: Callable[[], datetime | None]) -> None:
        self._database = database
        self._now = now

    def tend(self, keep: timedelta | None) -> tuple[int, int]:
        """Make partitions for the days to come and drop what is older than `keep`; return how many
        of each.
        """
        schema = self._database.schema
        with self._database.transaction() as connection:
            connection.execute(
                statement("session", "bound_locks", schema), {"milliseconds": LOCKS_WAIT}
            )
            parameters = {"now": self._now(), "ahead": AHEAD, "keep": keep}
            try:
                ((made, dropped),) = connection.execute(
                    statement("job_history", "tend", schema), parameters
                ).fetchall()
            except LockNotAvailable as error:  # no outage, which would be retried soon
                raise StoreError("other transactions hold a lock on job_history") from error
        return made, dropped

    def newest(
        self, tenant: str, job_id: str | None, *, limit: int, before: HistoryPlace | None = None
    ) -> list[HistoryEntry]:
        """Read the newest rows of a tenant, or of one of its jobs; or those before one of them."""
        query = statement(
            "job_history", "newest" if job_id is None else "newest_of_job", self._database.schema
        )
        at, before_id, kind = before or (None, None, None)
        place = {"before": at, "before_id": before_id, "before_kind": kind}
        rows = self._database.run(
            query, {"tenant": tenant, "job_id": job_id, "limit": limit, **place}
        )
        return [
            HistoryEntry(
                at=row[0],
                tenant=row[1],
                job_id=row[2],
                kind=row[3],
                outcome=Outcome(row[4]),
                reason=row[5],
                attempt=row[6],
                fence=row[7],
                holder=row[8],
                started_at=row[9],
                finished_at=row[10],
                missed_from=row[11],
                missed_count=row[12],
                error=row[13],
                attempts=tuple(row[14] or ()),
                job=_described(*row[15:]),
            )
            for row in rows
        ]


def _described(  # noqa: PLR0917 - the columns, in their order
    type_: str | None,
    queue: str,
    priority: int,
    run_at: datetime,
    created_at: datetime,
    json: bool,  # noqa: FBT001
    rarer: Mapping[str, Any] | None,
) -> Mapping[str, Any] | None:
    """Describe a one-shot job, or name the one that a fire became."""
    if type_ is None:
        return rarer
    common = {
        "type": type_,
        "queue": queue,
        "priority": priority,
        "run_at": run_at,
        "created_at": created_at,
    }
    return {**common, "json": json, **(rarer or {})}
