"""What commands about queues need of the tables: names, numbers, pauses, dead letters, ends."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from scheduler.store.queries import statement
from scheduler.store.steps import Statement


class QueuesTable:
    """Statements about queues. `now` is the moment a test plays; None is the database's own
    clock.
    """

    def __init__(self, schema: str, now: Callable[[], datetime | None]) -> None:
        self._schema = schema
        self._now = now

    def names(self) -> Statement:
        """Read the names of queues."""
        return self._statement("names")

    def stats(self, queues: Sequence[str], *, most: int | None = None) -> Statement:
        """Count, up to `most`: (queue, paused_at, ready, oldest, pending, dead) each."""
        return self._statement("stats", queues=list(queues), most=most)

    def of_queue(self, name: str, queue: str) -> Statement:
        """Make a statement on one queue: pause, resume, paused."""
        return self._statement(name, queue=queue)

    def pauses(self) -> Statement:
        """Read (queue, whether it is paused) of each that was ever fed, or paused."""
        return self._statement("pauses")

    def letters(
        self, queue: str, *, limit: int, skip: int = 0, ids: Sequence[str] | None = None
    ) -> Statement:
        """Read dead letters: (tenant, id, at, type, priority, attempt, created_at, outcome, reason,
        error) each.
        """
        given = None if ids is None else list(ids)
        return self._statement("letters", queue=queue, limit=limit, skip=skip, ids=given)

    def take_letter(self, tenant: str, job_id: UUID) -> Statement:
        """Take a dead letter: its id, if it is there."""
        return self._statement("take_letter", tenant=tenant, id=job_id)

    def purge_letters(self, queue: str, *, limit: int) -> Statement:
        """Drop dead letters: how many."""
        return self._statement("purge_letters", queue=queue, limit=limit)

    def ended(self, span: timedelta) -> Statement:
        """Count ends: (queue, state, count, since, now) each, the first with the instants alone."""
        return self._statement("ended", span=span)

    def _statement(self, name: str, **parameters: object) -> Statement:
        return Statement(
            statement("queues", name, self._schema), {"now": self._now(), **parameters}
        )
