"""Dead letters of the ledger: jobs of a queue that failed or died, until somebody has seen to
them.
"""

from collections.abc import Sequence
from uuid import UUID

from scheduler.model.labels import Priority
from scheduler.model.queues import QueueEntry
from scheduler.queueing import jobs
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.submit import submit
from scheduler.store.engine import Row
from scheduler.store.job_queue import JobKey
from scheduler.store.steps import Steps

PRIORITIES = tuple(Priority)


class Letters:
    """The dead letters of one queue."""

    def __init__(self, ledger: Ledger, queue: str) -> None:
        self._ledger = ledger
        self._queue = queue

    def page(self, n: int, *, skip: int, ids: Sequence[str] | None = None) -> list[QueueEntry]:
        """Read some, newest first; of `ids` alone if they are given."""
        rows = self._ledger.rows(
            self._ledger.jobs.queues.letters(self._queue, limit=n, skip=skip, ids=ids)
        )
        return [_letter(row) for row in rows]

    def count(self, most: int) -> int:
        """Count them, up to `most`."""
        *_, dead = self._ledger.rows(self._ledger.jobs.queues.stats([self._queue], most=most))[0]
        return int(dead)

    def retry(self, letter: QueueEntry) -> str | None:
        """Submit its job anew, and return the new id; None: somebody else just did."""
        return self._ledger.run(self._retried(JobKey(letter.tenant or "", UUID(letter.id))))

    def purge(self, n: int) -> int:
        """Drop some, and return how many; the ledger keeps what it knows of their jobs."""
        [(gone,)] = self._ledger.rows(self._ledger.jobs.queues.purge_letters(self._queue, limit=n))
        return int(gone)

    def _retried(self, key: JobKey) -> Steps[str | None]:
        """Take the letter and submit the job in one transaction: two who try do it once."""
        table = self._ledger.jobs
        if not (yield table.queues.take_letter(key.tenant, key.id)):
            return None
        draft = yield from jobs.retried(table, key)
        made = yield from submit(table, [draft])
        return str(made[0].id)


def _letter(row: Row) -> QueueEntry:
    tenant, id_, at, type_, priority, attempt, created_at, outcome, reason, error = row
    return QueueEntry(
        id=id_,
        tenant=tenant,
        type=type_ or "",
        priority=Priority.NORMAL if priority is None else PRIORITIES[priority],
        attempts=attempt or 0,
        created_at=created_at,
        died_at=at,
        reason=reason or error or outcome or "the ledger has forgotten it",
    )
