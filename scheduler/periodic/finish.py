"""Finish runs: free their leases and write their ledger rows, many in one statement.

Comes in: `RunEnd`s from the workers, over a queue. Goes out: rows; a finish whose lease was lost is
refused.
"""

import logging
import queue
from collections.abc import Callable
from dataclasses import replace

from scheduler.errors import InvalidData, StoreError
from scheduler.events import Events, FireEnded, LeaseLost
from scheduler.model.definition import Key
from scheduler.model.failures import named
from scheduler.model.outcomes import Outcome
from scheduler.periodic.lease import Leases
from scheduler.periodic.run import RunEnd
from scheduler.store.job_lock import Finish, LockTable

logger = logging.getLogger("scheduler")

BATCH = 1000
LOST = "the lease was lost before it ended"
LOCK_DELETED = "the lease was lost before it ended: its row in job_lock was deleted"


class Finisher:
    """Sends what has ended, as it piles up while the statement before it is under way."""

    def __init__(
        self,
        locks: LockTable,
        leases: Leases,
        events: Events,
        *,
        finished: Callable[[list[Key]], None],
    ) -> None:
        self._locks = locks
        self._leases = leases
        self._events = events
        self._finished = finished
        self._queue: queue.SimpleQueue[RunEnd | None] = queue.SimpleQueue()
        self._unsure: list[
            RunEnd
        ] = []  # sent without an answer: committed or not, the next answer tells

    def put(self, end: RunEnd) -> None:
        """Accept the end of a run."""
        self._queue.put(end)

    def idle(self) -> bool:
        """Whether everything that ended is in the ledger or refused."""
        return self._queue.empty() and not self._unsure

    def nudge(self) -> None:
        """Let a waiting step return."""
        self._queue.put(None)

    def step(self) -> float:
        """Wait for an end, then flush."""
        first = None if self._unsure else self._queue.get()
        self.flush(first)
        return 0.0

    def flush(self, first: RunEnd | None = None) -> None:
        """Send everything that has ended."""
        while ends := self._gather(first):
            first = None
            self._send(ends)

    def _gather(self, first: RunEnd | None) -> list[RunEnd]:
        ends = self._unsure or (
            [_judged(first)] if first is not None and not self._refused(first) else []
        )
        while len(ends) < BATCH:
            try:
                end = self._queue.get_nowait()
            except queue.Empty:
                break
            if end is not None and not self._refused(end):
                ends.append(_judged(end))
        return ends

    def _refused(self, end: RunEnd) -> bool:
        """Refuse here what was told to stop: a body cut short is no success, and its lease is not
        ours to free.

        A run whose lock row was deleted is sent. No other process runs its fire, so only this
        process can record it.
        """
        if end.run.lock_deleted:
            return False
        if end.run.lost:
            self._leases.drop(
                [end.run]
            )  # or it would be renewed for ever, and its fire never started again
            self._refuse(end, LOST)
        return (
            end.run.lost or end.stopped
        )  # a stopped one is handed back when the process has stopped

    def _send(self, ends: list[RunEnd]) -> None:
        runs = [end.run for end in ends]
        self._leases.drop(runs)  # or a renewal that meets the freed row would call it lost
        self._unsure = ends
        try:
            reasons = self._finish(ends)
        except StoreError:
            self._leases.restore(runs)
            raise
        self._unsure = []
        for end, reason in zip(ends, reasons, strict=True):
            if reason is None:
                self._announce(end)
            else:
                self._refuse(end, reason)
        self._finished([run.key for run in runs])

    def _finish(self, ends: list[RunEnd]) -> list[str | None]:
        """Send ends, and say why each was refused; a row that Postgres will not have holds back no
        other.
        """
        try:
            return [
                None if ours else LOST for ours in self._locks.finish([_row(end) for end in ends])
            ]
        except InvalidData as error:
            if len(ends) > 1:
                return [self._finish([end])[0] for end in ends]
            text = ends[0].error
            if text is None or text.isascii():
                return [str(error)]
            return self._finish(
                [replace(ends[0], error=text.encode("ascii", "backslashreplace").decode())]
            )

    def _announce(self, end: RunEnd) -> None:
        if end.error is not None:
            logger.warning(
                "%s/%s fire %s: %s: %s",
                *end.run.key,
                end.run.fire_at.isoformat(),
                end.outcome,
                named(end.error),  # its text is in the ledger
                extra=end.run.about(),
            )
        if self._events:
            self._events.emit(
                FireEnded(
                    tenant=end.run.key.tenant,
                    job_id=end.run.key.job_id,
                    fire_at=end.run.fire_at,
                    attempt=end.run.attempt,
                    outcome=end.outcome,
                    duration=end.finished_at - end.started_at,
                    error=end.error,
                )
            )

    def _refuse(self, end: RunEnd, reason: str) -> None:
        told = *end.run.key, end.run.fire_at.isoformat(), reason
        logger.warning("refused the result of %s/%s fire %s: %s", *told, extra=end.run.about())
        if self._events and not end.run.lost:
            self._events.emit(
                LeaseLost(
                    tenant=end.run.key.tenant,
                    job_id=end.run.key.job_id,
                    fire_at=end.run.fire_at,
                    attempt=end.run.attempt,
                    reason=reason,
                )
            )


def _judged(end: RunEnd) -> RunEnd:
    """Return the end that is recorded. If the lock row was deleted and the function saw that it
    should stop, or was never called, it is no success.
    """
    run = end.run
    stopped = run.cancelled.seen or not run.called
    if not (run.lock_deleted and stopped and end.outcome is Outcome.SUCCESS):
        return end
    return replace(end, outcome=Outcome.FAILED, error=LOCK_DELETED)


def _row(end: RunEnd) -> Finish:
    run = end.run
    return Finish(
        run.key,
        run.fence,
        run.fire,
        run.attempt,
        end.outcome,
        end.error,
        end.started_at,
        end.finished_at,
    )
