"""Administration of a queue of the standard dialect: its jobs, its dead letters, pausing."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import Crew, Depths, Paused, StoppedTenants
from scheduler.dialects.looking import AT_ONCE, entry_of, erased, glob, scanned, sized, unreadable
from scheduler.dialects.standard import messages
from scheduler.dialects.standard.keys import Keys
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.errors import WireError
from scheduler.model.labels import Priority
from scheduler.model.queues import QueueEntry, QueueKey

LEVEL_SPAN = 2**50
SCORE_DIGITS = 16
MAX_REASONS = 1000  # whose blocked jobs `peek` reads
MAX_RELEASED = 500  # jobs that one call releases
STOPPED = b"tenant:"


class StandardAdmin:
    """One queue; `installation` is the ledger that pauses it."""

    def __init__(self, client: Client, name: str, *, installation: str = "") -> None:
        self.name = name
        self._client = client
        self._installation = installation
        self._keys = Keys.from_queue(name)
        self._queue = StandardQueue(client, name, installation=installation)
        self._dead, self._reasons = self._keys.named("dead_letter", "reasons")

    def peek(self, n: int) -> list[QueueEntry]:
        """Read the next jobs, in the order in which a worker that handles every type takes them:
        by level, and within a level parked jobs first.
        """
        if n <= 0:
            return []
        waiting, jobs = self._keys.named("waiting", "jobs")
        flat = self._client.call("ZRANGE", waiting, 0, n - 1, "WITHSCORES")
        pairs = flat if flat and isinstance(flat[0], tuple) else zip(*[iter(flat)] * 2, strict=True)
        found = [(int(float(score)), 1, entry) for entry, score in pairs] + self._parked(n)
        found.sort(key=lambda each: (each[0] // LEVEL_SPAN, each[1], each[0]))
        entries = [entry for _, _, entry in found[:n]]
        ids = [messages.id_of(entry) for entry in entries]
        records = self._client.call("HMGET", jobs, *ids) if ids else []
        return [
            self._entry(*each)
            for each in zip(ids, entries, records, strict=True)
            if each[2] or not each[0]
        ]

    def _parked(self, n: int) -> list[tuple[int, int, bytes]]:
        blocked, counts = self._keys.named("blocked", "blocked:counts")
        found = []
        reasons = [
            each for each in self._client.call("HKEYS", counts) if not each.startswith(STOPPED)
        ]
        for reason in reasons[:MAX_REASONS]:
            low, high = b"[%b\0" % reason, b"(%b\0:" % reason  # a score is of digits, before ":"
            for member in self._client.call("ZRANGEBYLEX", blocked, low, high, "LIMIT", 0, n):
                rest = member[len(reason) + 1 :]
                score, entry = rest[:SCORE_DIGITS], rest[SCORE_DIGITS:]
                if score.isdigit():
                    found.append((int(score), 0, entry))
        return found

    def dead(self, n: int, *, skip: int = 0) -> list[QueueEntry]:
        """Read dead letters without a ledger, newest first."""
        found: list[QueueEntry] = []
        for letter in self._letters():
            if len(found) >= n + skip:
                break
            found.append(self._letter(letter))
        return [self._with_reason(each) for each in found[skip:]]

    def dead_count(self) -> int:
        """Count dead letters without a ledger."""
        return sum(1 for _ in self._letters())

    def requeue(self, letters: Sequence[QueueEntry]) -> list[bool]:
        """Enqueue dead letters again, with all their attempts."""
        keys = [*self._keys.named("jobs", "waiting", "turns"), self._dead, self._reasons]
        keys += self._keys.named("marker")
        args: list[object] = []
        readable: list[bool] = []
        for each in letters:
            entry, _, record = each.raw.partition(b"\0")
            try:
                job = messages.job_of(self.name, messages.id_of(entry), record)
            except WireError:
                readable.append(False)
                continue
            readable.append(True)
            job.attempt = job.uncharged = 0
            args += (each.raw, job.id, messages.turn_of(job), entry, messages.record_of(job))
        if not args:
            return readable
        answer = iter(self._client.run(script("standard", "requeue"), keys, args))
        return [can and next(answer) == 49 for can in readable]

    def forget(self, ids: Collection[str]) -> None:
        """Delete the dead letters of jobs that a ledger has."""
        wanted = {each.encode() for each in ids}
        letters = [
            letter
            for letter in self._all_letters()
            if _has_ledger(letter) and messages.id_of(letter[:-1]) in wanted
        ]
        keys = [self._dead, self._reasons]
        for start in range(0, len(letters), AT_ONCE):
            page = letters[start : start + AT_ONCE]
            self._client.run(script("standard", "forget"), keys, page)

    def purge(self, n: int) -> int:
        """Delete dead letters, oldest first."""
        keys = [self._dead, self._reasons]
        return int(self._client.run(script("standard", "purge"), keys, [min(n, AT_ONCE)]))

    def depths(self) -> Depths:
        """Count the jobs of the queue."""
        return self._queue.depths()

    def workers(self, n: int) -> Crew:
        """List live workers, at most n."""
        return self._queue.workers(n)

    def unhandled_types(self) -> dict[str, int]:
        """Return the types of parked jobs that no live worker handles."""
        return self._queue.unhandled_types()

    def pause(self) -> None:
        """Pause the queue for this ledger."""
        self._pause("paused")

    def resume(self) -> None:
        """Resume the queue for this ledger, and wake a worker."""
        self._pause("resumed")

    def paused(self) -> Paused:
        """Return whether the queue is paused."""
        [paused] = self._keys.named("paused")
        ours = bool(self._client.call("HEXISTS", paused, self._installation))
        return Paused(ours, ours or bool(self._client.call("EXISTS", paused)))

    def pause_tenant(self, tenant: str) -> None:
        """Pause a tenant for this ledger: workers set its jobs aside."""
        keys = self._keys.named("paused:tenants")
        self._client.run(script("standard", "tenant"), keys, [tenant, self._installation])

    def resume_tenant(self, tenant: str) -> None:
        """Resume a tenant for this ledger, and enqueue the jobs that were set aside."""
        keys = self._keys.named(
            *("paused:tenants", "waiting", "turns", "blocked", "blocked:counts", "state", "marker")
        )
        args = [tenant, self._installation, MAX_RELEASED]
        while self._client.run(script("standard", "release"), keys, args):
            pass

    def stopped_tenants(self) -> StoppedTenants:
        """Return the tenants that this ledger has paused, and those whose jobs are set aside
        although no ledger pauses them.
        """
        keys = self._keys.named("paused:tenants", "blocked:counts")
        paused, released = self._client.run(
            script("standard", "tenants"), keys, [self._installation]
        )
        return StoppedTenants(
            {each.decode() for each in paused}, {each.decode() for each in released}
        )

    def forget_tenant(self, tenant: str) -> None:
        """Delete what the queue has of a tenant without jobs: its pause by this ledger, and the
        next starts of its levels.
        """
        self.resume_tenant(tenant)
        [turns] = self._keys.named("turns")
        self._client.call("ZREM", turns, *(f"{level:d}:{tenant}" for level in Priority))

    def keys(self) -> list[QueueKey]:
        """List the keys of the queue with their sizes."""
        return sized(self._client, sorted(name for names in self.names() for name in names))

    def names(self) -> Iterator[list[str]]:
        """Iterate over the names of all keys."""
        prefix = self._keys.prefix
        yield from scanned(self._client, prefix, f"{glob(prefix)}:*")

    def erase(self, names: Sequence[str]) -> int:
        """Delete keys."""
        return erased(self._client, names)

    def _pause(self, how: str) -> None:
        keys = self._keys.named("paused", "marker")
        self._client.run(script("standard", "pause"), keys, [how, self._installation])

    def _letters(self) -> Iterator[bytes]:
        return (letter for letter in self._all_letters() if not _has_ledger(letter))

    def _all_letters(self) -> Iterator[bytes]:
        start = 0
        while page := self._client.call("LRANGE", self._dead, start, start + AT_ONCE - 1):
            yield from page
            start += len(page)

    def _letter(self, letter: bytes) -> QueueEntry:
        entry, _, record = letter.partition(b"\0")
        try:
            return entry_of(messages.job_of(self.name, messages.id_of(entry), record), letter)
        except WireError as error:
            return unreadable(letter, str(error))

    def _entry(self, id_: bytes, entry: bytes, record: bytes | None) -> QueueEntry:
        try:
            return entry_of(messages.job_of(self.name, id_, record or b""), entry)
        except WireError as error:
            return unreadable(entry, str(error))

    def _with_reason(self, letter: QueueEntry) -> QueueEntry:
        name = hashlib.sha1(letter.raw, usedforsecurity=False).hexdigest()
        reason = self._client.call("HGET", self._reasons, name)
        return letter if reason is None else replace(letter, reason=reason.decode(errors="replace"))


def _has_ledger(letter: bytes) -> bool:
    """Whether the job of a dead letter is in a ledger, which has its record."""
    return letter.endswith(b"\0") and bool(messages.id_of(letter[:-1]))
