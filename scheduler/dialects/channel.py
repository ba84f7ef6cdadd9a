"""State changes of jobs, said aloud for whoever listens: Redis' publish and subscribe, one channel
for each tenant.

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

    def listen(self, tenant: str, ended: Callable[[], bool]) -> Iterator[JobChange]:
        """Hear the changes of a tenant's jobs, in the order in which they are said, until
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
        for job_id, state in said:
            yield JobChange(tenant, job_id, State(state), moment)
    except (ValueError, TypeError) as error:
        raise QueueError(f"a state change cannot be read: {error}") from error
