"""The `job_tenant` table, and what deleting a tenant deletes."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from scheduler.model.schedules import Due
from scheduler.store.arrays import uuids
from scheduler.store.queries import statement
from scheduler.store.steps import Statement

# Every table with a column `tenant`, in the order in which they are deleted from. First the jobs:
# nothing is claimed, settled or ended any more that would write to the others.
DELETED = (
    "job",
    "job_queue",
    "job_ready",
    "job_dependency",
    "job_lock",
    "job_letter",
    "job_callback",
    "job_key",
    "job_alias",
    "job_history",
    "job_tombstone",
)


class Passed(NamedTuple):
    """A recurring job whose next fire passed while its tenant was paused."""

    job_id: str
    spec: str
    spec_hash: bytes
    next_run_at: datetime
    now: datetime


class TenantTable:
    """Statements about one tenant. `now` is the moment a test plays; None is the database's own
    clock.
    """

    def __init__(
        self, schema: str, now: Callable[[], datetime | None], *, queue_channel: str
    ) -> None:
        self._schema = schema
        self._now = now
        self._queue_channel = queue_channel

    def paused(self) -> Statement:
        """Read the names of paused tenants."""
        return self._statement("paused")

    def lock_queues(self) -> Statement:
        """Lock all queues against feeds, after those in progress: (queue) each."""
        return self._statement("lock_queues")

    def lock_queue(self, queue: str) -> Statement:
        """Lock a queue against changes of pauses: (queue), if it is known."""
        return self._statement("lock_queue", queue=queue)

    def lookup(self, tenant: str) -> Statement:
        """Read a tenant: (paused_at, deleting_at, now), if it was ever paused."""
        return self._statement("lookup", tenant=tenant)

    def pause(self, tenant: str, *, holder: str) -> Statement:
        """Pause a tenant: (since when)."""
        return self._statement("pause", tenant=tenant, holder=holder)

    def resume(self, tenant: str, *, holder: str) -> Statement:
        """Resume a tenant: (whether it was paused), if it is known and not being deleted."""
        return self._statement("resume", tenant=tenant, holder=holder)

    def passed(self, tenant: str, after: str, *, limit: int) -> Statement:
        """Read jobs whose next fire has passed: a `Passed` each."""
        return self._statement("passed", tenant=tenant, after=after, limit=limit)

    def skip(self, tenant: str, fires: Sequence[tuple[Passed, Due]], *, holder: str) -> Statement:
        """Skip fires of jobs: (id) of each job that had not changed."""
        return self._statement(
            "skip",
            tenant=tenant,
            holder=holder,
            ids=[job.job_id for job, _ in fires],
            hashes=[job.spec_hash for job, _ in fires],
            seen=[job.next_run_at for job, _ in fires],
            fires=[due.fire_at for _, due in fires],
            nexts=[due.next_run_at for _, due in fires],
            missed_from=[due.missed_from for _, due in fires],
            missed_count=[due.missed_count for _, due in fires],
        )

    def begin_deletion(self, tenant: str) -> Statement:
        """Begin to delete a tenant: (for how long it has been paused), if it is paused."""
        return self._statement("begin_deletion", tenant=tenant)

    def lock_deletion(self, tenant: str) -> Statement:
        """Lock a tenant that is being deleted: (tenant), if it still is."""
        return self._statement("lock_deletion", tenant=tenant)

    def lock(self, what: str, tenant: str, *, limit: int) -> Statement:
        """Lock some `jobs` or `letters`: (id, queue) each."""
        return self._statement(f"lock_{what}", tenant=tenant, limit=limit)

    def delete_locked(self, table: str, tenant: str, ids: Sequence[UUID]) -> Statement:
        """Delete rows of job_queue or job_letter that are locked: (how many)."""
        return self._statement(f"delete_{table}", tenant=tenant, ids=uuids(ids))

    def delete(self, table: str, tenant: str, *, limit: int) -> Statement:
        """Delete some rows of any other table: (how many)."""
        return self._statement(f"delete_{table}", tenant=tenant, limit=limit)

    def end_deletion(self, tenant: str, *, holder: str) -> Statement:
        """Delete the row of a tenant whose deletion ends: (tenant), if no other process did."""
        return self._statement("end_deletion", tenant=tenant, holder=holder)

    def _statement(self, name: str, **parameters: object) -> Statement:
        return Statement(
            statement("tenants", name, self._schema),
            {
                "now": self._now(),
                "channel": self._schema,
                "queue_channel": self._queue_channel,
                **parameters,
            },
        )
