"""A queue of the reliable dialect. Every call is one script, so that nothing is ever between two places.

Why no answer is needed to be safe: a script that was not answered ran whole or not at all. Jobs that it took are in
this worker's list (`held` finds them), an end that it took is in the stream, and saying it again is refused.
"""

import hashlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson

from scheduler.dialects.client import LONGEST_BLOCK, Client, script
from scheduler.dialects.interface import (
    Cancelling,
    Delivery,
    Depths,
    Known,
    Note,
    Outcomes,
    Pushed,
    Renewed,
    Result,
)
from scheduler.dialects.reliable import wire
from scheduler.dialects.reliable.keys import Keys
from scheduler.errors import ConfigError, EpochLost, QueueError, WireError
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.states import State

LARGEST_BATCH = 1000
MOST_UNSETTLED = 100_000
KEPT = 1000
KEPT_FOR = timedelta(days=1)
SILENT_SETTLER = timedelta(seconds=30)
SCAN_COUNT = 100
SCAN_SECONDS = 0.2
SCAN_PAUSE = 0.01
GROUP = "settlers"
PUSHED = {"n": Pushed.NEW, "k": Pushed.KNOWN, "f": Pushed.FINISHED}
RENEWED = {"k": Renewed.KEPT, "l": Renewed.LOST, "c": Renewed.CANCEL}
CANCELLING = {"d": Cancelling.REMOVED, "r": Cancelling.RUNNING, "u": Cancelling.UNKNOWN}
VERBS = {
    State.COMPLETED: "completed",
    State.FAILED: "dead",
    State.DEAD_LETTER: "dead",
    State.CANCELLED: "cancelled",
    State.RETRYING: "retry",
}


class ReliableQueue:
    """One queue; `worker` is the name of the one that fetches through it, `installation` whose ledger feeds it."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        installation: str = "",
        worker: str = "",
        lease: timedelta = timedelta(seconds=30),
        keys: Keys | None = None,
    ) -> None:
        self.name = name
        self.lease = lease
        self._client = client
        self._keys = keys or Keys.of(name)
        self._installation = installation
        self._worker = worker
        self._next_retry: float | None = None  # monotonic
        self._named = self._keys.named(
            "jobs", "attempts", "retries", "finished", "workers", "marker", "cancels", "notes", "reasons"
        )
        if not self._keys.tagged and client.clustered:
            raise ConfigError(f"queue {name!r}: the names of the original have no hash tag; a cluster needs ours")

    def push(self, jobs: Sequence[QueuedJob], *, epoch: str) -> list[Pushed]:
        """Put jobs in."""
        named, marks = self._named, self._keys.epoch(self._installation)
        keys = [*self._keys.levels, named[0], named[1], named[3], named[5], marks]
        found: list[Pushed] = []
        for batch in _batches(jobs):
            args: list[Any] = [epoch]
            for job in batch:
                args += (job.id, job.priority + 1, wire.entry_of(job, job.attempt), wire.record_of(job))
            answer = self._client.run(script("reliable", "push"), keys, args)
            if answer == b"lost":
                raise EpochLost
            found += [PUSHED[each] for each in answer.decode()]
        return found

    def fetch(self, n: int, *, timeout: float) -> list[Delivery]:
        """Take jobs, or wait for one; with n = 0 only wait."""
        taken = self._exchange([], n)[1] if n > 0 else []
        if taken or timeout <= 0:
            return taken
        patience = min(timeout, LONGEST_BLOCK)
        if self._next_retry is not None:
            patience = min(patience, max(0.001, self._next_retry - time.monotonic()))
        self._client.wait("BLPOP", self._named[5], f"{patience:.3f}")
        return self._exchange([], n)[1] if n > 0 else []

    def finish(self, results: Sequence[Result], *, fetch: int = 0) -> tuple[list[bool], list[Delivery]]:
        """End deliveries and take the next."""
        accepted: list[bool] = []
        parts = list(_batches(results, LARGEST_BATCH // 2)) or [results]
        for part in parts[:-1]:
            accepted += self._exchange(part, 0)[0]
        last, taken = self._exchange(parts[-1], fetch)
        return accepted + last, taken

    def renew(self, notes: Mapping[Delivery, Note | None], *, lease: timedelta) -> list[Renewed]:
        """Keep deliveries."""
        _, attempts, _, _, workers, _, cancels, kept, _ = self._named
        keys = [self._keys.heartbeat(self._worker), workers, attempts, cancels, kept]
        found: list[Renewed] = []
        for batch in list(_batches(list(notes.items()))) or [[]]:
            args: list[Any] = [self._worker, lease // wire.MILLISECOND]
            for delivery, note in batch:
                args += (delivery.job.id, _token(delivery), b"" if note is None else orjson.dumps([*note]))
            answer = self._client.run(script("reliable", "renew"), keys, args)
            found += [RENEWED[each] for each in answer.decode()]
        return found

    def held(self) -> list[Delivery]:
        """List what this worker holds."""
        return self._held_by(self._worker)

    def recover(self, decide: Callable[[Delivery], Result]) -> int:
        """Take back what silent workers hold."""
        moved = 0
        for worker in self._silent():
            while held := self._held_by(worker)[: LARGEST_BATCH // 2]:
                accepted, _ = self._exchange([decide(delivery) for delivery in held], 0, dead=worker)
                moved += sum(accepted)
                if not accepted:
                    break  # it lives after all
            else:
                self._exchange([], 0, dead=worker)
        return moved

    def outcomes(self, n: int, *, timeout: float) -> list[Outcomes]:
        """Read ends; first those that a settler which is silent had read."""
        stream = self._keys.outcomes(self._installation)
        idle = SILENT_SETTLER // wire.MILLISECOND
        try:
            claimed = self._client.call("XAUTOCLAIM", stream, GROUP, self._worker, idle, "0-0", "COUNT", 10)
            entries = [entry for entry in claimed[1] if entry and entry[1]]
            if not entries:
                block = max(1, int(min(timeout, LONGEST_BLOCK) * 1000))
                read = ("XREADGROUP", "GROUP", GROUP, self._worker, "COUNT", n, "BLOCK", block, "STREAMS", stream, ">")
                answer = self._client.wait(*read)
                entries = answer[0][1] if answer else []
        except QueueError as error:
            if "NOGROUP" not in str(error):
                raise
            self._client.call("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")
            return []
        return [read for entry, fields in entries if (read := self._read(entry, fields)) is not None]

    def acknowledge(self, settled: Sequence[Outcomes]) -> None:
        """Forget ends."""
        keys = [self._keys.outcomes(self._installation), self._named[3]]
        for batch in _batches(settled, 100):
            tokens = [each.token for each in batch]
            over = [end.job_id for each in batch for end in each.ends if end.state.terminal]
            self._client.run(script("reliable", "acknowledge"), keys, [GROUP, len(tokens), *tokens, *over])

    def known(self, ids: Sequence[str]) -> list[Known | None]:
        """Say what is known."""
        jobs, attempts, _, finished, _, _, _, notes, _ = self._named
        found: list[Known | None] = []
        for batch in _batches(ids):
            answer = self._client.run(script("reliable", "known"), [jobs, attempts, finished, notes], batch)
            found += [_known(*answer[i : i + 3]) for i in range(0, len(answer), 3)]
        return found

    def cancel(self, ids: Sequence[str], *, force: bool = False) -> list[Cancelling]:  # noqa: ARG002 - workers decide
        """Take jobs out, or ask for their end."""
        jobs, attempts, _, finished, _, _, cancels, notes, _ = self._named
        keys = [jobs, attempts, finished, cancels, notes]
        found: list[Cancelling] = []
        for batch in _batches(ids):
            answer = self._client.run(script("reliable", "cancel"), keys, batch)
            found += [CANCELLING[each] for each in answer.decode()]
        return found

    def epoch(self) -> str | None:
        """Read the mark."""
        found = self._client.call("GET", self._keys.epoch(self._installation))
        return None if found is None else found.decode()

    def begin(self, epoch: str) -> None:
        """Set the mark."""
        self._client.call("SET", self._keys.epoch(self._installation), epoch)

    def depths(self) -> Depths:
        """Count."""
        keys = [*self._keys.levels, *self._named[1:4], self._keys.dead]
        counts = self._client.run(script("reliable", "depths"), keys, [])
        waiting = dict(zip(Priority, counts[:5], strict=True))
        return Depths(waiting, retrying=counts[5], running=counts[6], unsettled=counts[7], dead=counts[8])

    def _exchange(
        self, results: Sequence[Result], n: int, *, dead: str | None = None
    ) -> tuple[list[bool], list[Delivery]]:
        worker = dead or self._worker
        jobs, attempts, retries, finished, workers, marker, cancels, notes, reasons = self._named
        ledgers: dict[str, int] = {}
        args: list[Any] = [
            worker, self.lease // wire.MILLISECOND, min(n, LARGEST_BATCH), "dead" if dead else "live", MOST_UNSETTLED,
            KEPT, KEPT_FOR // wire.MILLISECOND, len(results),
        ]  # fmt: skip
        for result in results:
            args += _result_args(result, ledgers)
        keys = [
            *self._keys.levels, self._keys.processing(worker), self._keys.heartbeat(worker), jobs, attempts, retries,
            finished, workers, marker, self._keys.dead, reasons, self._keys.completed, cancels, notes,
            *map(self._keys.outcomes, ledgers or [""]),
        ]  # fmt: skip
        answer, wait, now, *taken = self._client.run(script("reliable", "finish"), keys, args)
        self._next_retry = None if wait < 0 else time.monotonic() + wait / 1000
        if answer == b"alive":
            return [], []
        started = wire.instant_of(now)
        deliveries = []
        for entry, record, attempt in zip(taken[::3], taken[1::3], taken[2::3], strict=True):
            deliveries.append(Delivery(wire.job_of(self.name, entry, record), attempt, started, entry))
        return [each == 49 for each in answer], deliveries

    def _read(self, entry: bytes, fields: Mapping[bytes, bytes]) -> Outcomes | None:
        """Read a batch of ends; one that nobody can read is a dead letter, and in nobody's way."""
        try:
            return Outcomes(entry, wire.ends_of(fields.get(b"ends", b"")))
        except WireError as error:
            text = fields.get(b"ends", b"")
            self._client.call("LPUSH", self._keys.dead, text)
            self._client.call("HSET", self._named[8], hashlib.sha1(text, usedforsecurity=False).hexdigest(), str(error))
            self.acknowledge([Outcomes(entry, ())])
            return None

    def _held_by(self, worker: str) -> list[Delivery]:
        entries = self._client.call("LRANGE", self._keys.processing(worker), 0, LARGEST_BATCH - 1)
        ids = [wire.id_of(entry) for entry in entries]
        if not ids:
            return []
        records = self._client.call("HMGET", self._named[0], *ids)
        leases = self._client.call("HMGET", self._named[1], *ids)
        found = []
        for entry, record, lease in zip(entries, records, leases, strict=True):
            _, attempt, _, started = (lease or b"0:0::0").split(b":")
            job = wire.job_of(self.name, entry, record or b"")
            found.append(Delivery(job, int(attempt), wire.instant_of(int(started)), entry))
        return found

    def _silent(self) -> Iterator[str]:
        """Name workers that are silent: those of the registry, and whoever left a list without being in it."""
        seconds, micros = self._client.call("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        for worker in self._client.call("ZRANGEBYSCORE", self._named[4], "-inf", now, "LIMIT", 0, SCAN_COUNT):
            yield worker.decode()
        if self._client.clustered:
            return  # a scan would go over every node; all that we start are in the registry
        begin, end = self._keys.processing_pattern.split("%s")
        cursor, until = b"0", time.monotonic() + SCAN_SECONDS
        while time.monotonic() < until:
            cursor, found = self._client.call("SCAN", cursor, "MATCH", _glob(begin) + "*" + end, "COUNT", SCAN_COUNT)
            for key in found:
                worker = key.decode()[len(begin) : -len(end)]
                if not self._client.call("EXISTS", self._keys.heartbeat(worker)):
                    yield worker
            if cursor in (b"0", 0):
                return
            time.sleep(SCAN_PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - so that fleets do not scan in step


def _result_args(result: Result, ledgers: dict[str, int]) -> tuple[Any, ...]:
    delivery, end = result.delivery, result.end
    job, level = delivery.job, b"%d" % (delivery.job.priority + 1)
    ledger = ledgers.setdefault(job.installation, len(ledgers) + 1) if job.installation else 0
    if end is None:
        return job.id, _token(delivery), "back", delivery.raw, delivery.attempt - 1, level + delivery.raw, b"", ledger
    delay, again = 0, b""
    if end.state is State.RETRYING:
        delay = (end.delay or timedelta()) // wire.MILLISECOND
        again = level + wire.entry_again(delivery.raw, delivery.attempt)
    outcome = wire.end_bytes(end) if ledger else b""
    return job.id, _token(delivery), VERBS[end.state], delivery.raw, delay, again, outcome, ledger


def _token(delivery: Delivery) -> str:
    return f"{delivery.job.feed}:{delivery.attempt}" if delivery.attempt else ""


def _known(where: bytes, lease: bytes, note: bytes) -> Known | None:
    if where == b"u":
        return None
    if where == b"f":
        return Known(None, int(lease.split(b":")[1]))
    if not lease:
        return Known(State.SCHEDULED)
    _, attempt, worker, started = lease.split(b":")
    said = Note(*orjson.loads(note)) if note else Note()
    if not worker:
        return Known(State.RETRYING, int(attempt), None, said)
    return Known(State.RUNNING, int(attempt), wire.instant_of(int(started)), said)


def _glob(text: str) -> str:
    return "".join(f"\\{each}" if each in "[]*?\\^" else each for each in text)


def _batches(items: Sequence[Any], size: int = LARGEST_BATCH) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
