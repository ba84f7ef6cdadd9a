"""Tenants: pause, resume and delete one, with its recurring and its submitted jobs.

A row of `job_tenant` stops claims and feeds. In queues of the dialect `standard` a flag in Redis
stops the workers. Why nothing begins after `pause` returned, except fires and jobs that were leased
by a call that had begun before:

- A claim reads the row in its snapshot: a claim that begins after the commit sees it.
- A pause locks all queues before it commits, so every feed in progress has ended, and its jobs are
  in Redis. A feed that waits for the lock sees that `tenant_pauses` has changed, and takes nothing.
- The flag in Redis is set before the commit. A script that runs later sets the jobs aside, also
  jobs that a submitter pushes directly.
- If Redis is unavailable, or lost the flag, the next step of the maintenance of any instance sets
  it. A Redis that lost all data has no jobs of the tenant, and is fed none.

`resume` first skips the fires that passed, while nothing is claimed yet; a crash leaves the tenant
paused. `delete` can be repeated after a crash at any point: `deleting_at` stays until nothing is
left, and refuses new jobs. Each batch removes its jobs from Redis before it deletes their rows, and
deletes nothing once another process has completed the deletion.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from scheduler.dialects.interface import ForgetsTenants, StopsTenants
from scheduler.errors import (
    ConfigError,
    QueueError,
    QueueUnavailable,
    StoreUnavailable,
    TenantDeleting,
    TenantNotPaused,
)
from scheduler.log import keys
from scheduler.model.definition import JobSpec
from scheduler.model.schedules import together
from scheduler.queueing.ledger import alone
from scheduler.queueing.ring import Ring
from scheduler.store.engine import Row
from scheduler.store.job_queue import QueueTable
from scheduler.store.steps import Databases, Statement, Steps, run
from scheduler.store.tenants import DELETED, Passed

logger = logging.getLogger("scheduler")

T = TypeVar("T")

MAX_BATCH_ROWS = 500
MAX_ROUNDS = 50
DEADLINE_S = 30.0
# A push is refused so long after the statement that inserted or took its jobs. A submitter that
# did not see the pause has pushed its jobs by then, or will not.
MAX_PUSH_AGE_S = 6.0


class Tenants:
    """Pauses, resumes and deletes tenants. ring: None if this process has no Redis; then instances
    that have one set the flags.
    """

    def __init__(
        self, databases: Databases, jobs: QueueTable, ring: Ring | None, *, holder: str = ""
    ) -> None:
        self._databases = databases
        self._queues = jobs.queues
        self._table = jobs.tenants
        self._ring = ring
        self._holder = holder

    def pause(self, tenant: str) -> datetime:
        """Pause a tenant, after the feeds in progress; return since when it is paused."""

        def steps() -> Steps[datetime]:
            queues = yield self._table.lock_queues()
            rows = yield self._table.pause(tenant, holder=self._holder)
            self._notify(queues, lambda admin: admin.pause_tenant(tenant))
            since: datetime = rows[0][0]
            return since

        return self._run(steps())

    def resume(self, tenant: str) -> bool:
        """Resume a tenant, and return whether it was paused. Fires that passed are skipped."""
        if not self._is_paused(tenant):
            return False
        self._skip_passed(tenant)

        def steps() -> Steps[bool]:
            queues = yield self._table.lock_queues()
            rows = yield self._table.resume(tenant, holder=self._holder)
            if rows:
                self._notify(queues, lambda admin: admin.resume_tenant(tenant))
            return bool(rows and rows[0][0])

        return self._run(steps()) or self._is_paused(tenant)

    def delete(self, tenant: str) -> dict[str, int]:
        """Delete all that there is of a paused tenant; return the number of rows by table."""
        if self._ring is None and self._rows(self._queues.pauses()):
            raise ConfigError(
                "redis: the tenant may have jobs in Redis, and this scheduler has none; pass "
                "redis=..."
            )
        begun = self._rows(self._table.begin_deletion(tenant))
        if not begun:
            raise TenantNotPaused(
                f"tenant {tenant!r} is not paused; call pause_tenant({tenant!r}) before deleting it"
            )
        if self._ring is not None:
            time.sleep(max(0.0, MAX_PUSH_AGE_S - begun[0][0].total_seconds()))
        deleted = dict.fromkeys(DELETED, 0)
        while True:  # settlers and callbacks can write rows until the jobs are gone
            before = sum(deleted.values())
            for table in DELETED:
                while count := self._run(self._delete_some(table, tenant)):
                    deleted[table] += count
            if sum(deleted.values()) == before:
                break
        self._run(self._end_deletion(tenant))
        logger.info(
            "tenant %s: deleted, %d rows",
            tenant,
            sum(deleted.values()),
            extra=keys(namespace=tenant),
        )
        return deleted

    def paused(self) -> set[str]:
        """Return the names of the paused tenants."""
        return {name for (name,) in self._rows(self._table.paused())}

    def reconcile(self, queue: str, paused: set[str]) -> None:
        """Make the flags of a queue in Redis agree with Postgres. They differ if Redis was
        unavailable or lost data, if the queue is new, or if a process died while it resumed a
        tenant.
        """
        admin = self._admin(queue)
        if admin is None or admin.stopped_tenants() == (paused, set()):
            return

        def steps() -> Steps[None]:
            yield self._table.lock_queue(queue)
            known = {name for (name,) in (yield self._table.paused())}
            found = admin.stopped_tenants()
            for tenant in sorted(known - found.paused):
                admin.pause_tenant(tenant)
            for tenant in sorted((found.paused | found.released) - known):
                admin.resume_tenant(tenant)

        self._run(steps())

    def _is_paused(self, tenant: str) -> bool:
        rows = self._rows(self._table.lookup(tenant))
        if rows and rows[0][1] is not None:
            raise TenantDeleting(
                f"tenant {tenant!r} is being deleted; call delete_tenant({tenant!r}) to complete it"
            )
        return bool(rows and rows[0][0])

    def _skip_passed(self, tenant: str) -> None:
        """Record the fires of each job that passed as one skipped fire, as resuming a job does."""
        for _ in range(MAX_ROUNDS):
            after, changed = "", 0
            while rows := self._rows(self._table.passed(tenant, after, limit=MAX_BATCH_ROWS)):
                jobs = [Passed._make(row) for row in rows]
                after = jobs[-1].job_id
                fires = [
                    (job, together(spec.schedule, job.next_run_at, job.now))
                    for job in jobs
                    if not (spec := JobSpec.from_json(job.spec)).foreign
                ]
                done = self._rows(self._table.skip(tenant, fires, holder=self._holder))
                changed += len(fires) - len(done)
            if not changed:
                return
        raise StoreUnavailable(f"jobs of tenant {tenant!r} kept changing; try again")

    def _delete_some(self, table: str, tenant: str) -> Steps[int]:
        if not (yield self._table.lock_deletion(tenant)):
            return 0
        if table == "job_queue":
            locked = yield self._table.lock("jobs", tenant, limit=MAX_BATCH_ROWS)
            for queue, ids in _by_queue(locked).items():
                if self._ring is not None:
                    self._ring.queue(queue).cancel([str(each) for each in ids], force=True)
        elif table == "job_letter":
            locked = yield self._table.lock("letters", tenant, limit=MAX_BATCH_ROWS)
            for queue, ids in _by_queue(locked).items():
                if self._ring is not None:
                    self._ring.admin(queue).forget({str(each) for each in ids})
        else:
            rows = yield self._table.delete(table, tenant, limit=MAX_BATCH_ROWS)
            count: int = rows[0][0]
            return count
        if locked:
            yield self._table.delete_locked(table, tenant, [id_ for id_, _ in locked])
        return len(locked)

    def _end_deletion(self, tenant: str) -> Steps[None]:
        queues = yield self._table.lock_queues()
        ended = yield self._table.end_deletion(tenant, holder=self._holder)
        for (name,) in queues if ended else ():
            admin: object = None if self._ring is None else self._ring.admin(name)
            if isinstance(admin, ForgetsTenants):
                admin.forget_tenant(tenant)

    def _notify(self, queues: Sequence[Row], act: Callable[[StopsTenants], None]) -> None:
        for (name,) in queues:
            try:
                admin = self._admin(name)
                if admin is not None:
                    act(admin)
            except QueueError as error:
                message = "queue %s: the pause of a tenant reaches Redis later: %s"
                logger.warning(message, name, error, extra=keys(queue=name))
                if isinstance(error, QueueUnavailable):
                    return  # so are the other queues

    def _admin(self, queue: str) -> StopsTenants | None:
        """Return a queue that sets jobs of paused tenants aside; None: its dialect does not."""
        admin: object = None if self._ring is None else self._ring.admin(queue)
        return admin if isinstance(admin, StopsTenants) else None

    def _rows(self, statement: Statement) -> list[Row]:
        return self._run(alone(statement))

    def _run(self, steps: Steps[T]) -> T:
        return run(self._databases, steps, deadline=DEADLINE_S)


def _by_queue(rows: Sequence[Row]) -> Mapping[str, list[UUID]]:
    found: dict[str, list[UUID]] = {}
    for id_, queue in rows:
        found.setdefault(queue, []).append(id_)
    return found
