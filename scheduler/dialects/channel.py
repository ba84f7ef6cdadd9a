"""State changes and progress of jobs, published for clients that listen: Redis' publish and
subscribe, one channel for each tenant.

A message is `[at, changes]` in JSON. A change is `[id, state]`, or `[id, state, at, progress,
message]` if the handler of the job reported progress. A change to RETRYING is `[id, state, due]`: a
listener adds the change to SCHEDULED when the backoff is over, so no process has to publish it.

Nothing depends on it: what is said while nobody listens, or while Redis is away, is not said again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import orjson

from scheduler.dialects.client import Client
from scheduler.errors import QueueError
from scheduler.model.oneshot import JobChange
from scheduler.model.states import State

WATCHED_FOR = 30
MAX_BACKOFFS = 100_000
LOOK = 0.5


class Channel:
    """Where the changes of one ledger's jobs are said."""

    def __init__(self, client: Client, installation: str) -> None:
        self._client = client
        self._prefix = f"jobqueue:events:{installation}"

    def watched(self) -> bool:
        """Whether anybody listens."""
        return bool(self._client.call("EXISTS", self._prefix))

    def say(self, changes: Sequence[tuple[Any, ...]], at: datetime) -> None:
        """Publish changes: (tenant, id, state), or (tenant, id, state, due) of a retry."""
        tenants: dict[str, list[tuple[Any, ...]]] = {}
        for tenant, *change in changes:
            tenants.setdefault(tenant, []).append(tuple(change))
        for tenant, said in tenants.items():
            self._client.call("PUBLISH", self._name(tenant), orjson.dumps([at, said]))

    def publish_progress(self, reports: Sequence[JobChange]) -> None:
        """Publish progress of running jobs."""
        tenants: dict[str, list[JobChange]] = {}
        for each in reports:
            tenants.setdefault(each.tenant, []).append(each)
        for tenant, changes in tenants.items():
            written = [(e.id, e.state, e.at, e.progress, e.message) for e in changes]
            message = orjson.dumps([changes[-1].at, written])
            self._client.call("PUBLISH", self._name(tenant), message)

    def listen(self, tenant: str, ended: Callable[[], bool]) -> Iterator[JobChange]:
        """Return the changes of a tenant's jobs in the order in which they are published, until
        `ended`.
        """
        try:
            yield from self._changes(tenant, ended)
        except Exception:
            if not ended():  # an ended listener fails because its connections were closed
                raise

    def _changes(self, tenant: str, ended: Callable[[], bool]) -> Iterator[JobChange]:
        backoffs = _Backoffs()
        with self._client.subscribed(self._name(tenant)) as hear:
            while not ended():
                self._client.call("SET", self._prefix, "1", "EX", WATCHED_FOR)
                for _ in range(WATCHED_FOR):
                    if ended():
                        return
                    for message in hear(LOOK):
                        yield from backoffs.completed(tenant, message)
                    yield from backoffs.over()

    def _name(self, tenant: str) -> str:
        return f"{self._prefix}:{tenant}"


class _Backoffs:
    """Retries that a listener has received and whose backoff is not over."""

    def __init__(self) -> None:
        self._due: dict[str, tuple[JobChange, float]] = {}  # by id, in seconds of this process

    def completed(self, tenant: str, message: bytes) -> Iterator[JobChange]:
        """Return the changes of a message, each start of a retry after its change to SCHEDULED."""
        for change, due in _read(tenant, message):
            known = self._due.pop(change.id, None) if change.progress is None else None
            if known is not None and change.state is State.RUNNING:
                scheduled, _ = known
                yield scheduled._replace(at=min(scheduled.at, change.at))
            yield change
            if due is not None and len(self._due) < MAX_BACKOFFS:
                seconds = (due - change.at).total_seconds()
                scheduled = change._replace(state=State.SCHEDULED, at=due)
                self._due[change.id] = scheduled, time.monotonic() + seconds

    def over(self) -> list[JobChange]:
        """Return the retries whose backoff is over."""
        now = time.monotonic()
        ended = [each for each in self._due.values() if each[1] <= now]
        for change, _ in ended:
            del self._due[change.id]
        return [change for change, _ in ended]


def _read(tenant: str, message: bytes) -> Iterator[tuple[JobChange, datetime | None]]:
    try:
        at, said = orjson.loads(message)
        moment = datetime.fromisoformat(at)
        for job_id, state, *report in said:
            change = JobChange(tenant, job_id, State(state), moment)
            due = datetime.fromisoformat(report[0]) if len(report) == 1 else None
            if len(report) > 1:
                reported_at, progress, text = report[:3]
                change = change._replace(
                    at=datetime.fromisoformat(reported_at), progress=progress, message=text
                )
            yield change, due
    except (ValueError, TypeError) as error:
        raise QueueError(f"a state change cannot be read: {error}") from error
