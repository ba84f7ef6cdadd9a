"""What the ring needs of the tables: the marks of queues, retries, and what upkeep looks for."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from scheduler.store.arrays import integers, texts
from scheduler.store.job_queue import JobKey, packed
from scheduler.store.queries import statement
from scheduler.store.steps import Statement

NIL = UUID(int=0)
NOBODY = JobKey("", NIL)


class Retried(NamedTuple):
    """Attempts of a job that are to be settled: the last of them, its delay in microseconds, and
    all as JSON.
    """

    key: JobKey
    feed: int
    attempt: int
    delay_us: int
    record: str


class RingTable:
    """Statements of feeder, settler and upkeep. `now` is the moment a test plays; None is the
    database's own clock.
    """

    def __init__(self, schema: str, now: Callable[[], datetime | None]) -> None:
        self._schema = schema
        self._now = now

    def installation(self) -> Statement:
        """Read whose ledger this is."""
        return self._statement("installation")

    def epochs(self) -> Statement:
        """Read (queue, epoch) of each queue that was ever fed."""
        return self._statement("epochs")

    def of_queue(self, name: str, queue: str, **parameters: object) -> Statement:
        """Make a statement on one queue: open_queue, seize_epoch, next_epoch."""
        return self._statement(name, queue=queue, **parameters)

    def feed_all_again(self, queue: str, *, after: JobKey, limit: int) -> Statement:
        """Let jobs be fed anew: (tenant, id, whether it was fed) for each that was looked at."""
        return self._statement(
            "feed_all_again", queue=queue, tenant=after.tenant, id=after.id, limit=limit
        )

    def feed_again(self, feeds: Sequence[tuple[JobKey, int]]) -> Statement:
        """Let jobs of these feeds be fed anew: (tenant, id) of each."""
        return self._statement(
            "feed_again",
            **packed(key for key, _ in feeds),
            feeds=integers(feed for _, feed in feeds),
        )

    def leave_to_feeders(self, keys: Iterable[JobKey]) -> Statement:
        """Make jobs ready that were not pushed, as far as one knows: (tenant, id) of each."""
        return self._statement("leave_to_feeders", **packed(keys))

    def retry(self, retried: Sequence[Retried]) -> Statement:
        """Settle attempts: (tenant, id, when it is due) of each job. None may be named twice."""
        return self._statement(
            "retry",
            **packed(each.key for each in retried),
            feeds=integers(each.feed for each in retried),
            attempt_numbers=integers(each.attempt for each in retried),
            delays=[each.delay_us for each in retried],
            records=texts(each.record for each in retried),
        )

    def add_attempts(self, retried: Sequence[Retried]) -> Statement:
        """Add attempts that were overtaken by a later one: (tenant, id) of each job that another
        transaction holds.
        """
        return self._statement(
            "add_attempts",
            **packed(each.key for each in retried),
            records=texts(each.record for each in retried),
        )

    def standing(self, keys: Iterable[JobKey]) -> Statement:
        """Read (tenant, id, feed, attempt) of each that is live."""
        return self._statement("standing", **packed(keys))

    def hold_all(self, keys: Iterable[JobKey]) -> Statement:
        """Lock jobs: (tenant, id) of each that is live and free."""
        return self._statement("hold_all", **packed(keys))

    def take_back_all(self, keys: Iterable[JobKey]) -> Statement:
        """Take jobs out of what waits to be fed: (tenant, id) of each that did."""
        return self._statement("take_back_all", **packed(keys))

    def asked(self, *, after: tuple[datetime | None, JobKey], limit: int) -> Statement:
        """Look at some jobs that somebody wants to end: (tenant, id, queue, why, whether by force,
        since when) each.
        """
        wanted_at, key = after
        return self._statement(
            "asked", wanted_at=wanted_at, tenant=key.tenant, id=key.id, limit=limit
        )

    def sweep(
        self, *, after: JobKey, visibility_us: int, young_us: tuple[int, int], limit: int
    ) -> Statement:
        """Look at some jobs: (tenant, id, queue, feed, whether it is silent, young, expired, waits
        for others) each.
        """
        young, old = young_us
        return self._statement(
            "sweep",
            tenant=after.tenant,
            id=after.id,
            visibility=visibility_us,
            young=young,
            old=old,
            limit=limit,
        )

    def sweep_edges(self, *, after: JobKey, depends_on: UUID, limit: int) -> Statement:
        """Look at some edges: (tenant, job, what it waits for, whether that has ended) each."""
        return self._statement(
            "sweep_edges", tenant=after.tenant, id=after.id, depends_on=depends_on, limit=limit
        )

    def _statement(self, name: str, **parameters: object) -> Statement:
        return Statement(statement("ring", name, self._schema), {"now": self._now(), **parameters})
