"""What a person does with a queue of Conveyor. Its failed jobs are in one list with those of all
other queues.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from scheduler.dialects.client import Client, script
from scheduler.dialects.conveyor import wire
from scheduler.dialects.conveyor.job_pb2 import Job
from scheduler.dialects.conveyor.keys import Keys
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.crew.said import crew, instant
from scheduler.dialects.interface import Crew, Depths, Paused
from scheduler.dialects.looking import AT_ONCE, entry_of, erased, glob, scanned, sized, unreadable
from scheduler.errors import WireError
from scheduler.model.labels import Priority
from scheduler.model.queues import QueueEntry, QueueKey
from scheduler.model.workers import WorkerInfo


class ConveyorAdmin:
    """One queue; `installation` is the ledger that pauses it. Workers of Conveyor's own go on when
    it is paused.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        installation: str = "",
        keys: str = "seed",
        namespace: str | None = None,
    ) -> None:
        self.name = name
        self._client = client
        self._installation = installation
        self._keys = Keys(keys, namespace)
        self._queue = ConveyorQueue(
            client, name, installation=installation, keys=keys, namespace=namespace
        )
        self._paused = self._keys.ring(name, "paused")

    def peek(self, n: int) -> list[QueueEntry]:
        """Read the next jobs."""
        found: list[bytes] = []
        for each in self._lists():
            if len(found) < n:
                found += reversed(self._client.call("LRANGE", each, len(found) - n, -1))
        return [self._entry(raw) for raw in found]

    def dead(self, n: int, *, skip: int = 0) -> list[QueueEntry]:
        """Read dead letters."""
        found: list[QueueEntry] = []
        for raw, job in self._letters():
            if len(found) >= n + skip:
                break
            if not job.feed:
                found.append(self._entry(raw, job.last_failure or "it failed"))
        return found[skip:]

    def dead_count(self) -> int:
        """Count dead letters."""
        return sum(not job.feed for _, job in self._letters())

    def requeue(self, letters: Sequence[QueueEntry]) -> list[bool]:
        """Put dead letters back."""
        return self._out([(each.raw, wire.raw_again(each.raw, 0, None)) for each in letters])

    def forget(self, ids: Collection[str]) -> None:
        """Drop what jobs of a ledger left."""
        self._out([(raw, b"") for raw, job in self._letters() if job.feed and job.uuid in ids])

    def purge(self, n: int) -> int:
        """Drop dead letters of this queue."""
        oldest = [(raw, b"") for raw, _ in self._letters()][::-1]
        return sum(self._out(oldest[: min(n, AT_ONCE)]))

    def depths(self) -> Depths:
        """Count."""
        return self._queue.depths()

    def workers(self, n: int) -> Crew:
        """Say who lives: ours, and Conveyor's own, of which it tells not at which of its queues
        they are.
        """
        workers, said = self._keys.ring(self.name, "workers"), self._keys.ring(self.name, "said:")
        ours = crew(
            self._client,
            self.name,
            workers,
            said,
            n,
            named=lambda name: name.removesuffix(f":{self.name}"),
        )
        found = list(ours.workers)
        for name, heard, holds in self._others(n):
            found.append(
                WorkerInfo(name=name, kind="conveyor", seen_at=instant(heard * 1000), holds=holds)
            )
        return ours._replace(workers=found[:n])

    def _others(self, n: int) -> list[tuple[str, int, int]]:
        told = self._client.run(
            script("conveyor", "others"), [self._keys.scheduled], [self._keys.names, n]
        )
        return [
            (name.decode(errors="replace"), int(float(heard)), holds) for name, heard, holds in told
        ]

    def pause(self) -> None:
        """Pause."""
        self._client.call("HSET", self._paused, self._installation, 1)

    def resume(self) -> None:
        """Let it go on; those who wait look within a second."""
        self._client.call("HDEL", self._paused, self._installation)

    def paused(self) -> Paused:
        """Say whether it is paused."""
        ours = bool(self._client.call("HEXISTS", self._paused, self._installation))
        return Paused(ours, ours or bool(self._client.call("EXISTS", self._paused)))

    def forget_tenant(self, tenant: str) -> None:
        """Remove the entries of a tenant's cancelled jobs, with their payloads. A worker
        of this library drops such an entry when it fetches it; other workers would run the job.
        """
        for name in self._lists():
            for raw in self._entries_of(tenant, "LRANGE", name):
                self._client.call("LREM", name, 0, raw)
        for raw in self._entries_of(tenant, "ZRANGE", self._keys.scheduled):
            self._client.call("ZREM", self._keys.scheduled, raw)

    def keys(self) -> list[QueueKey]:
        """List the keys."""
        return sized(self._client, sorted(name for names in self.names() for name in names))

    def names(self) -> Iterator[list[str]]:
        """Go through the names of the queue's own keys; what all queues share is not among them."""
        fixed = self._keys.queue(self.name)
        if self._client.call("EXISTS", fixed):
            yield [fixed]
        ring, held = self._keys.ring(self.name, ""), self._keys.worker("")
        yield from scanned(self._client, fixed, f"{glob(ring)}*")
        yield from scanned(self._client, fixed, f"{glob(held)}*:{glob(self.name)}")

    def erase(self, names: Sequence[str]) -> int:
        """Remove keys."""
        return erased(self._client, names)

    def _lists(self) -> list[str]:
        """Return the lists of the levels, the highest first."""
        lists = [self._keys.ring(self.name, level.name.lower()) for level in Priority]
        lists[Priority.NORMAL] = self._keys.queue(self.name)
        return lists

    def _entries_of(self, tenant: str, command: str, key: str) -> list[bytes]:
        """List the entries of this ledger's jobs of a tenant."""
        found: list[bytes] = []
        start = 0
        while page := self._client.call(command, key, start, start + AT_ONCE - 1):
            for raw in page:
                try:
                    job: Any = Job.FromString(raw)
                except wire.READ:
                    continue
                if (job.queue, job.installation, job.tenant) == (
                    self.name,
                    self._installation,
                    tenant,
                ):
                    found.append(raw)
            start += len(page)
        return found

    def _letters(self) -> Iterator[tuple[bytes, Any]]:
        """Go through the failed jobs of this queue, newest first."""
        start = 0
        while page := self._client.call("LRANGE", self._keys.failed, start, start + AT_ONCE - 1):
            for raw in page:
                try:
                    job: Any = Job.FromString(raw)
                except wire.READ:
                    continue  # nobody knows whose it is
                if job.queue == self.name:
                    yield raw, job
            start += len(page)

    def _out(self, pairs: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        args = [each for pair in pairs for each in pair]
        if not args:
            return []
        answer = self._client.run(
            script("conveyor", "requeue"), [self._keys.scheduled], [self._keys.names, *args]
        )
        return [each == 49 for each in answer]

    def _entry(self, raw: bytes, reason: str | None = None) -> QueueEntry:
        try:
            return entry_of(wire.delivery_of(self.name, raw, None, wire.EPOCH).job, raw, reason)
        except WireError as error:
            return unreadable(raw, str(error))
