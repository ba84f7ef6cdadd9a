"""The `job_callback` table: ends of jobs that somebody is to be told of."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from scheduler.model.states import State
from scheduler.store.engine import Row
from scheduler.store.queries import statement
from scheduler.store.steps import Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """The end of a job, claimed to be told; without a `type` the ledger has it no longer."""

    tenant: str
    job_id: UUID
    url: str
    state: State
    attempt: int
    created_at: datetime
    type: str | None
    queue: str | None
    labels: dict[str, Any] | None
    job_attempt: int | None
    reason: str | None
    error: str | None
    result: bytes | None
    failed: dict[str, Any] | None  # the attempt that failed last, as the ledger has it


class CallbackTable:
    """Statements on `job_callback`; its rows are written by the statement that ends a job."""

    def __init__(self, schema: str, now: Callable[[], datetime | None]) -> None:
        self._schema = schema
        self._now = now

    def claim(self, *, limit: int, lease: timedelta) -> Statement:
        """Take some that are due: what `claimed` reads."""
        return self._statement("claim", limit=limit, lease=lease)

    def told(self, callback: Callback) -> Statement:
        """Note that the receiver knows."""
        return self._statement("told", tenant=callback.tenant, job_id=callback.job_id)

    def again(self, callback: Callback, *, delay: timedelta, error: str) -> Statement:
        """Let it be tried again, if this attempt is still the newest."""
        return self._of_attempt("again", callback, delay=delay, error=error)

    def give_up(self, callback: Callback, *, error: str) -> Statement:
        """Try it no more, if this attempt is still the newest."""
        return self._of_attempt("give_up", callback, error=error)

    def waiting(self) -> Statement:
        """Read whether one is due."""
        return self._statement("waiting")

    def forget(self, *, keep: timedelta) -> Statement:
        """Forget what was given up longer ago."""
        return self._statement("forget", keep=keep)

    def _of_attempt(self, name: str, callback: Callback, **parameters: object) -> Statement:
        key = {"tenant": callback.tenant, "job_id": callback.job_id, "attempt": callback.attempt}
        return self._statement(name, **key, **parameters)

    def _statement(self, name: str, **parameters: object) -> Statement:
        return Statement(
            statement("job_callback", name, self._schema), {"now": self._now(), **parameters}
        )


def claimed(row: Row) -> Callback:
    """Read a row of `claim`."""
    (
        tenant,
        job_id,
        url,
        state,
        attempt,
        created_at,
        type_,
        queue,
        labels,
        job_attempt,
        reason,
        error,
        result,
        failed,
    ) = row
    return Callback(
        tenant=tenant,
        job_id=job_id,
        url=url,
        state=State(state),
        attempt=attempt,
        created_at=created_at,
        type=type_,
        queue=queue,
        labels=labels,
        job_attempt=job_attempt,
        reason=reason,
        error=error,
        result=result,
        failed=failed,
    )
