"""What a person does with a queue of BullMQ: what is paused here is paused for Node's workers
too.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from scheduler.dialects.bullmq import wire
from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client, script
from scheduler.dialects.crew.said import crew
from scheduler.dialects.interface import Crew, Depths, Paused
from scheduler.dialects.looking import AT_ONCE, entry_of, erased, glob, scanned, sized, unreadable
from scheduler.errors import QueueError, QueueUnavailable, WireError
from scheduler.model.queues import QueueEntry, QueueKey
from scheduler.model.workers import WorkerInfo, WorkerQueue

PARTS = (
    "wait",
    "active",
    "paused",
    "delayed",
    "prioritized",
    "waiting-children",
    "completed",
    "failed",
    "stalled",
    "stalled-check",
    "marker",
    "meta",
    "id",
    "pc",
    "events",
    "limiter",
    "repeat",
)
FIELDS = (
    b"name",
    b"data",
    b"opts",
    b"timestamp",
    b"priority",
    b"tenant",
    b"feed",
    b"installation",
    b"attempt",
    b"ring",
)
NOT_READ = (b"",) * (wire.TOLD - 2 - len(FIELDS))  # values that only workers need
JOBS = "<id>"
CONNECTION = re.compile(r" addr=(\S+) .*? name=(\S+) age=(\d+) ")


class BullMQAdmin:
    """One queue; `installation` is the ledger that pauses it."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        installation: str = "",
        prefix: str = "bull",
        compat: str = "auto",
    ) -> None:
        self.name = name
        self._client = client
        self._compat = compat
        self._keys = Keys(name, prefix)
        self._flag = self._keys.ring(installation, "paused")
        self._queue = BullMQQueue(
            client, name, installation=installation, prefix=prefix, compat=compat
        )

    def peek(self, n: int) -> list[QueueEntry]:
        """Read the next jobs."""
        ids: list[bytes] = []
        for name in ("wait", "paused"):
            ids += reversed(self._client.call("LRANGE", self._keys.named(name), -n, -1))
        ids += self._client.call("ZRANGE", self._keys.named("prioritized"), 0, n - 1)
        return [entry for entry, _ in self._entries(ids[:n])]

    def dead(self, n: int, *, skip: int = 0) -> list[QueueEntry]:
        """Read dead letters; of a ledger's job one is here only until it is settled."""
        found: list[QueueEntry] = []
        start = 0
        while len(found) < n + skip:
            last = start + AT_ONCE - 1
            ids = self._client.call("ZREVRANGE", self._keys.named("failed"), start, last)
            found += [entry for entry, fed in self._entries(ids) if not fed]
            start += AT_ONCE
            if len(ids) < AT_ONCE:
                break
        return found[skip : skip + n]

    def dead_count(self) -> int:
        """Count dead letters."""
        return int(self._client.call("ZCARD", self._keys.named("failed")))

    def requeue(self, letters: Sequence[QueueEntry]) -> list[bool]:
        """Put dead letters back."""
        if not letters:
            return []
        answer = self._run("requeue", self._compat, *(each.raw for each in letters))
        return [each == 49 for each in answer]

    def forget(self, ids: Collection[str]) -> None:
        """Drop nothing: whoever settles a job takes it away."""

    def purge(self, n: int) -> int:
        """Drop dead letters."""
        ids = [each.raw for each in self.dead(min(n, AT_ONCE))]
        return int(self._run("purge", self._compat, *ids)) if ids else 0

    def depths(self) -> Depths:
        """Count."""
        return self._queue.depths()

    def workers(self, n: int) -> Crew:
        """Say who lives: ours as they say it, others by the names of their connections."""
        ours = crew(self._client, self.name, self._keys.own("workers"), self._keys.own("said:"), n)
        if self._client.clustered:
            return ours._replace(alive=None)  # there others' have no names
        try:
            listed = self._client.call("CLIENT", "LIST")
        except QueueUnavailable:
            raise
        except QueueError:
            return ours._replace(alive=None)
        found = {each.name: each for each in ours.workers}
        for each in _connected(listed, self.name, self._keys.client_name(), ours.at):
            found.setdefault(each.name, each)
        return ours._replace(
            alive=max(ours.alive or 0, len(found)), workers=list(found.values())[:n]
        )

    def pause(self) -> None:
        """Pause; the flag says that it was us."""
        self._client.call("SET", self._flag, 1)
        self._run("pause", self._compat, "paused")

    def resume(self) -> None:
        """Let it go on, whoever paused it."""
        self._run("pause", self._compat, "resumed")
        self._client.call("DEL", self._flag)

    def paused(self) -> Paused:
        """Say whether it is paused."""
        at_all = bool(self._client.call("HEXISTS", self._keys.meta, "paused"))
        return Paused(bool(self._client.call("EXISTS", self._flag)), at_all)

    def keys(self) -> list[QueueKey]:
        """List the keys; those of jobs in one line."""
        named, jobs, base = [], 0, f"{self._keys.base}:"
        for names in self.names():
            for name in names:
                part = name.removeprefix(base)
                if part in PARTS or part.startswith("ring:"):
                    named.append(name)
                else:
                    jobs += 1
        found = sized(self._client, sorted(named))
        return [*found, QueueKey(name=f"{base}{JOBS}", type="hash", size=jobs)] if jobs else found

    def names(self) -> Iterator[list[str]]:
        """Go through the names of all keys."""
        return scanned(self._client, self._keys.meta, f"{glob(self._keys.base)}:*")

    def erase(self, names: Sequence[str]) -> int:
        """Remove keys."""
        return erased(self._client, names)

    def _entries(self, ids: Sequence[bytes]) -> Iterator[tuple[QueueEntry, bool]]:
        """Read jobs: each, and whether a ledger has it."""
        answers = self._run("look", *ids) if ids else []
        for id_, answer in zip(ids, answers, strict=True):
            if answer is None:
                continue
            _, flat, _ = answer
            read = dict(zip(flat[::2], flat[1::2], strict=True))
            told = [id_, b"-:0:0:0:0::0", *(read.get(name, b"") for name in FIELDS), *NOT_READ]
            reason = (
                read[b"failedReason"].decode(errors="replace") if b"finishedOn" in read else None
            )
            try:
                job = wire.delivery_of(self.name, told).job
                job.attempt = int(read.get(b"atm", 0))
                yield entry_of(job, id_, reason), bool(job.installation)
            except (WireError, ValueError) as error:
                yield unreadable(id_, str(error)), False

    def _run(self, name: str, *args: Any) -> Any:
        return self._client.run(script("bullmq", name), [self._keys.meta], args)


def _connected(listed: bytes, queue: str, client_name: str, now: datetime) -> Iterator[WorkerInfo]:
    """Name workers by their connections; one that was given no name goes by its address."""
    for address, name, age in CONNECTION.findall(listed.decode(errors="replace")):
        worker = address if name == client_name else name.removeprefix(f"{client_name}:w:")
        if worker != name:
            yield WorkerInfo(
                name=worker,
                kind="bullmq",
                host=address.rpartition(":")[0],
                started_at=now - timedelta(seconds=int(age)),
                seen_at=now,
                queues=(WorkerQueue(name=queue),),
            )
