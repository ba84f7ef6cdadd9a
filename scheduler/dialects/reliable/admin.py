"""What a person does with a queue of the reliable dialect, or of the original's names."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from scheduler.dialects.client import Client, script
from scheduler.dialects.crew.said import crew
from scheduler.dialects.interface import Crew, Depths, Paused
from scheduler.dialects.looking import AT_ONCE, entry_of, erased, glob, scanned, sized, unreadable
from scheduler.dialects.reliable import wire
from scheduler.dialects.reliable.keys import LEVELS, OWN, Keys
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.errors import WireError
from scheduler.model.labels import Priority
from scheduler.model.queues import QueueEntry, QueueKey

FED = b'"filepath":""'  # a ledger has such an entry; a file has a path


class ReliableAdmin:
    """One queue; `installation` is the ledger that pauses it."""

    def __init__(
        self, client: Client, name: str, *, installation: str = "", keys: Keys | None = None
    ) -> None:
        self.name = name
        self._client = client
        self._installation = installation
        self._own = keys is None
        self._keys = keys or Keys.of(name)
        self._queue = ReliableQueue(client, name, installation=installation, keys=self._keys)

    def peek(self, n: int) -> list[QueueEntry]:
        """Read the next jobs."""
        [jobs] = self._keys.named("jobs")
        found: list[QueueEntry] = []
        for level in dict.fromkeys(self._keys.levels):
            entries = (
                self._client.call("LRANGE", level, len(found) - n, -1) if len(found) < n else []
            )
            entries.reverse()
            records = self._client.call("HMGET", jobs, *map(wire.id_of, entries)) if entries else []
            for entry, record in zip(entries, records, strict=True):
                if (
                    record or FED not in entry
                ):  # else it was cancelled, and is dropped when it is met
                    found.append(self._entry(entry, record or b""))
        return found

    def dead(self, n: int, *, skip: int = 0) -> list[QueueEntry]:
        """Read dead letters."""
        found: list[QueueEntry] = []
        for entry in self._letters():
            if len(found) >= n + skip:
                break
            found.append(self._entry(entry, b""))
        [reasons] = self._keys.named("reasons")
        told = []
        for each in found[skip:]:
            why = self._client.call(
                "HGET", reasons, hashlib.sha1(each.raw, usedforsecurity=False).hexdigest()
            )
            told.append(_because(each, why))
        return told

    def dead_count(self) -> int:
        """Count dead letters."""
        return sum(1 for _ in self._letters())

    def requeue(self, letters: Sequence[QueueEntry]) -> list[bool]:
        """Put dead letters back."""
        keys = [*self._keys.levels, self._keys.dead, *self._keys.named("reasons", "marker")]
        [origins] = self._keys.named("origins")
        args: list[object] = []
        for each in letters:
            origin = (self._client.call("HGET", origins, each.id) or b"").decode(errors="replace")
            level = (
                self._keys.levels.index(origin) if origin in self._keys.levels else each.priority
            )
            args += (each.raw, level + 1, wire.entry_again(each.raw, 0))
        return (
            [each == 49 for each in self._client.run(script("reliable", "requeue"), keys, args)]
            if args
            else []
        )

    def forget(self, ids: Collection[str]) -> None:
        """Drop what jobs of a ledger left."""
        [reasons] = self._keys.named("reasons")
        for entry in list(self._all_letters()):
            if FED in entry and wire.id_of(entry).decode(errors="replace") in ids:
                self._client.call("LREM", self._keys.dead, -1, entry)
                self._client.call(
                    "HDEL", reasons, hashlib.sha1(entry, usedforsecurity=False).hexdigest()
                )

    def purge(self, n: int) -> int:
        """Drop dead letters."""
        keys = [self._keys.dead, *self._keys.named("reasons")]
        return int(self._client.run(script("reliable", "purge"), keys, [min(n, AT_ONCE)]))

    def depths(self) -> Depths:
        """Count; where levels share a list, it is counted once."""
        found = self._queue.depths()
        waiting = {}
        for level in Priority:
            shared = [
                each for each in Priority if self._keys.levels[each] == self._keys.levels[level]
            ]
            first = max(shared, key=lambda each: (LEVELS[each] == self._keys.words[each], -each))
            waiting[level] = found.waiting[level] if level is first else 0
        return found._replace(waiting=waiting)

    def workers(self, n: int) -> Crew:
        """Say who lives; workers of the original are in no list."""
        [workers] = self._keys.named("workers")
        return crew(self._client, self.name, workers, self._keys.said(), n)

    def pause(self) -> None:
        """Pause."""
        self._paused("paused")

    def resume(self) -> None:
        """Let it go on."""
        self._paused("resumed")

    def paused(self) -> Paused:
        """Say whether it is paused."""
        [paused] = self._keys.named("paused")
        ours = bool(self._client.call("HEXISTS", paused, self._installation))
        return Paused(ours, ours or bool(self._client.call("EXISTS", paused)))

    def keys(self) -> list[QueueKey]:
        """List the keys."""
        return sized(self._client, sorted(name for names in self.names() for name in names))

    def names(self) -> Iterator[list[str]]:
        """Go through the names of all keys."""
        prefix = self._keys.prefix
        if self._own:
            yield from scanned(self._client, prefix, f"{glob(prefix)}:*")
            return
        fixed = [
            *dict.fromkeys(self._keys.levels),
            self._keys.completed,
            self._keys.dead,
            *self._keys.named(*OWN),
        ]
        yield [name for name in fixed if self._client.call("EXISTS", name)]
        said, retry = self._keys.said("%s"), self._keys.retry_default("%s")
        for pattern in (self._keys.processing_pattern, self._keys.heartbeat_pattern, said, retry):
            begin, end = pattern.split("%s")
            yield from scanned(self._client, begin, f"{glob(begin)}*{glob(end)}")

    def erase(self, names: Sequence[str]) -> int:
        """Remove keys."""
        return erased(self._client, names)

    def _paused(self, how: str) -> None:
        self._client.run(
            script("reliable", "pause"),
            self._keys.named("paused", "marker"),
            [how, self._installation],
        )

    def _letters(self) -> Iterator[bytes]:
        return (entry for entry in self._all_letters() if FED not in entry)

    def _all_letters(self) -> Iterator[bytes]:
        start = 0
        while page := self._client.call("LRANGE", self._keys.dead, start, start + AT_ONCE - 1):
            yield from page
            start += len(page)

    def _entry(self, entry: bytes, record: bytes) -> QueueEntry:
        try:
            return entry_of(wire.job_of(self.name, entry, record, self._keys.words), entry)
        except WireError as error:
            return unreadable(entry, str(error))


def _because(letter: QueueEntry, reason: bytes | None) -> QueueEntry:
    return letter if reason is None else replace(letter, reason=reason.decode(errors="replace"))
