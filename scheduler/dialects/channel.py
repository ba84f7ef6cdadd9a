"""State changes and progress of jobs, published for clients that listen: Redis' publish and
subscribe, one channel for each tenant.

A message is `[at, changes]` in JSON. A change is `[id, state]`, or `[id, state, at, progress,
message]` if the handler of the job reported progress.

Nothing depends on it: what is said while nobody listens, or while Redis is away, is not said again.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

import orjson

from scheduler.dialects.client import Client
from scheduler.errors import QueueError
from scheduler.model.oneshot import JobChange
from scheduler.model.states import State

WATCHED_FOR = 30
LOOK = 0.5


class Channel:
    """Where the changes of one ledger's jobs are said."""

    def __init__(self, client: Client, installation: str) -> None:
        self._client = client
        self._prefix = f"jobqueue:events:{installation}"

    def watched(self) -> bool:
        """Whether anybody listens."""
        return bool(self._client.call("EXISTS", self._prefix))

    def say(self, changes: Sequence[tuple[str, str, State]], at: datetime) -> None:
        """Say (tenant, id, state) of each."""
        tenants: dict[str, list[tuple[str, State]]] = {}
        for tenant, job_id, state in changes:
            tenants.setdefault(tenant, []).append((job_id, state))
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
        with self._client.subscribed(self._name(tenant)) as hear:
            while not ended():
                self._client.call("SET", self._prefix, "1", "EX", WATCHED_FOR)
                for _ in range(WATCHED_FOR):
                    if ended():
                        return
                    for message in hear(LOOK):
                        yield from _read(tenant, message)

    def _name(self, tenant: str) -> str:
        return f"{self._prefix}:{tenant}"


def _read(tenant: str, message: bytes) -> Iterator[JobChange]:
    try:
        at, said = orjson.loads(message)
        moment = datetime.fromisoformat(at)
        for job_id, state, *report in said:
            change = JobChange(tenant, job_id, State(state), moment)
            if report:
                reported_at, progress, text = report[:3]
                change = change._replace(
                    at=datetime.fromisoformat(reported_at), progress=progress, message=text
                )
            yield change
    except (ValueError, TypeError) as error:
        raise QueueError(f"a state change cannot be read: {error}") from error
