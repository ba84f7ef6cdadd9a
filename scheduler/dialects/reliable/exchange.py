"""The script `finish`, which ends deliveries and takes the next: what it is told, and what it
answers.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import orjson

from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import Delivery, Result
from scheduler.dialects.leasing import NO_FETCH, Fetch, previous_of_next, returned_of
from scheduler.dialects.queue_options import QueueOptions
from scheduler.dialects.reliable import wire
from scheduler.dialects.reliable.keys import Keys
from scheduler.errors import WireError
from scheduler.model.labels import Priority
from scheduler.model.states import State

LARGEST_BATCH = 1000
MOST_RESULTS = 500
MOST_BYTES = 8 * 1024 * 1024  # in one call; and so many more as one job has
PAGE = 100
PLACES = 31
Written = tuple[
    str | bytes, str, bytes, Any, bytes
]  # id, what becomes of it, entry, what to go on with, end
NO_DELAY = timedelta()
KEPT_FOR = timedelta(days=1)  # entries of completed jobs
VERBS = {
    State.COMPLETED: "completed",
    State.FAILED: "dead",
    State.DEAD_LETTER: "dead",
    State.CANCELLED: "cancelled",
    State.RETRYING: "retry",
}


class Call:
    """What one call ends: five values for each, the last the length of its end, and by ledger the
    ends themselves.
    """

    __slots__ = ("_numbers", "ends", "values")

    def __init__(self, written: Iterable[Written] = ()) -> None:
        self.values: list[Any] = []
        self.ends: dict[str, list[bytes]] = {}
        self._numbers = {"": 0}
        for each in written:
            self.add(each)

    def add(self, written: Written, installation: str = "") -> None:
        """End one more, which came out of a ledger; one without has nobody to tell."""
        job_id, head, entry, again, end = written
        self.values += (job_id, head, entry, again, len(end))
        if end:
            self.ends[installation].append(end)

    def ledger(self, installation: str) -> int:
        """Number a ledger, from 1; 0: none."""
        number = self._numbers.get(installation)
        if number is None:
            number = self._numbers[installation] = len(self._numbers)
            self.ends[installation] = []
        return number


class Answer(NamedTuple):
    """What came of it; `alive`: nothing, for the worker that seemed silent lives. `wait_ms`: until
    one should look. `passed`: how many jobs of full types were passed over.
    """

    accepted: list[bool]
    taken: list[Delivery]
    wait_ms: int
    passed: int = 0
    alive: bool = False


class Held(NamedTuple):
    """An entry in a worker's list: its delivery if it can be read, and whose lease it is under, if
    any. redelivered: an orphaned lease of the job was redelivered uncharged.
    """

    entry: bytes
    delivery: Delivery | None
    owner: str | None
    redelivered: bool = False


class Exchange:
    """The deliveries of one queue."""

    def __init__(self, client: Client, queue: str, keys: Keys, options: QueueOptions) -> None:
        self._client = client
        self._queue = queue
        self._keys = keys
        self._limits = (options.most_unsettled, options.kept, KEPT_FOR // wire.MILLISECOND)
        self._jobs, self._attempts, self._returned = keys.named("jobs", "attempts", "returned")
        self._between = keys.named("between", "retries", "finished", "workers", "marker")
        self._after = keys.named("cancels", "notes", "paused", "unhandled", "begun", "returned")
        self._place: int | None = (
            0 if options.weighted else None
        )  # among those that the levels have in turn
        self._reasons, self._origins = keys.named("reasons", "origins")
        self._named: tuple[str | None, list[str]] = (
            None,
            [],
        )  # the keys of the worker that was here last

    def run(
        self,
        worker: str,
        what: Call,
        lease: timedelta,
        fetch: Fetch = NO_FETCH,
        *,
        dead: bool = False,
    ) -> Answer:
        """End deliveries of a worker and lease more jobs to it."""
        keys, args = self._asked(worker, what, lease, fetch, dead=dead)
        answer = self._client.run(script("reliable", "finish"), keys, args)
        return self._answered(worker, lease, fetch, answer)

    def wait_and_take(
        self, command: Sequence[Any], worker: str, lease: timedelta, fetch: Fetch
    ) -> Answer | None:
        """Run a blocking command, then lease jobs, in one round trip; None: not possible here."""
        keys, args = self._asked(worker, Call(), lease, fetch)
        answer = self._client.wait_and_run(command, script("reliable", "finish"), keys, args)
        return None if answer is None else self._answered(worker, lease, fetch, answer)

    def _asked(
        self, worker: str, what: Call, lease: timedelta, fetch: Fetch, *, dead: bool = False
    ) -> tuple[list[str], list[Any]]:
        known, keys = self._named
        if known != worker:
            keys = [
                *self._keys.levels,
                self._keys.processing(worker),
                self._keys.heartbeat(worker),
                self._jobs,
                self._attempts,
                *self._between,
                self._keys.dead,
                self._reasons,
                self._keys.completed,
                *self._after,
            ]
            self._named = worker, keys
        args = [
            worker,
            lease // wire.MILLISECOND,
            min(fetch.n, LARGEST_BATCH),
            "dead" if dead else "live",
            *self._limits,
            "" if self._place is None else self._place,
            fetch.first,
            fetch.limits,
            fetch.begun,
            len(what.values) // 5,
            *what.values,
            *(b"[%b]" % b",".join(ends) for ends in what.ends.values()),
        ]
        return [*keys, *map(self._keys.outcomes, what.ends or [""])], args

    def _answered(self, worker: str, lease: timedelta, fetch: Fetch, told: Sequence[Any]) -> Answer:
        answer, wait, now, passed, *taken = told
        if answer == b"alive":
            return Answer([], [], wait, alive=True)
        if self._place is not None:
            self._place = (self._place + len(taken) // 4) % PLACES
        deliveries, unreadable = self._deliveries(worker, taken, wire.instant_of(now), fetch.first)
        if unreadable:
            self.run(worker, Call(unreadable), lease)
        return Answer([each == 49 for each in answer], deliveries, wait, passed)

    def held(self, worker: str, most: int) -> Iterator[list[Held]]:
        """Read what is in a worker's list, the oldest first, page by page."""
        entries = self._client.call("LRANGE", self._keys.processing(worker), -most, -1)
        entries.reverse()
        for start in range(0, len(entries), PAGE):
            page = entries[start : start + PAGE]
            ids = [wire.id_of(entry) for entry in page]
            records = self._client.call("HMGET", self._jobs, *ids)
            leases = self._client.call("HMGET", self._attempts, *ids)
            origins = self._client.call("HMGET", self._origins, *ids)
            counts = self._client.call("HMGET", self._returned, *ids)
            read = zip(page, records, leases, origins, counts, strict=True)
            yield [self._held(*each) for each in read]

    def _held(
        self,
        entry: bytes,
        record: bytes | None,
        lease: bytes | None,
        origin: bytes | None,
        counts: bytes | None,
    ) -> Held:
        try:
            job = wire.job_of(self._queue, entry, record or b"", self._keys.words)
        except WireError:
            return Held(entry, None, None)
        if (
            origin
            and (queue := origin.decode()) in (levels := self._keys.levels)
            and levels[job.priority] != queue
        ):
            job.priority = Priority(
                levels.index(queue)
            )  # where it was put counts more than what it says
        returned = returned_of(counts, job)
        uncharged, job.previous_attempt_id = returned.uncharged, returned.previous_attempt_id
        if lease is None:
            # A worker of the original took it: it says neither when nor how often.
            attempt = max(job.attempt, wire.retries_of(entry) + uncharged) + 1
            delivery = Delivery(job, attempt, wire.EPOCH, entry, uncharged=uncharged)
            delivery.orphaned = returned.orphaned
            return Held(entry, delivery, None)
        try:
            _, attempts, owner, started, number = lease.split(b":")
            began = wire.instant_of(started)
            delivery = Delivery(job, int(attempts), began, entry, int(number), uncharged)
            delivery.worker, delivery.orphaned = owner.decode(), returned.orphaned
            return Held(entry, delivery, delivery.worker, returned.redelivered)
        except (ValueError, OverflowError):  # the value is no lease of ours
            return Held(entry, None, None)

    def _deliveries(
        self, worker: str, taken: Sequence[Any], started: Any, first: int
    ) -> tuple[list[Delivery], list[Written]]:
        found: list[Delivery] = []
        unreadable: list[Written] = []
        queue, words, job_of = self._queue, self._keys.words, wire.job_of
        told = zip(taken[::4], taken[1::4], taken[2::4], taken[3::4], strict=True)
        for sequence, (entry, record, attempt, extra) in enumerate(told, first):
            try:
                job = job_of(queue, entry, record, words)
                delivery = Delivery(job, attempt, started, entry, sequence, job.uncharged)
                if extra:  # what the attempts before have left
                    counted, orphaned, previous, note = extra.split(b":", 3)
                    if counted:
                        delivery.uncharged, delivery.orphaned = int(counted), orphaned != b"0"
                    if previous:
                        job.previous_attempt_id = previous.decode(errors="replace")
                    job.checkpoint = orjson.loads(note)[2] if note else job.checkpoint
                delivery.worker = worker
                found.append(delivery)
            except WireError as error:
                unreadable.append(buried(entry, str(error)))
        return found, unreadable


def calls(results: Sequence[Result]) -> list[Call]:
    """Write ends, in as many calls as they need; at least one."""
    made = [Call()]
    size = 0
    for result in results:
        if size > MOST_BYTES or len(made[-1].values) >= 5 * MOST_RESULTS:
            made.append(Call())
            size = 0
        call, installation = made[-1], result.delivery.job.installation
        written = written_of(result, call.ledger(installation))
        call.add(written, installation)
        size += len(written[4])
    return made


def written_of(
    result: Result, ledger: int, *, leased: bool = True, redelivered: bool = False
) -> Written:
    """Write one end, as the script reads it. redelivered: it returns an orphaned lease."""
    delivery, end = result.delivery, result.end
    job, attempt, raw = delivery.job, delivery.attempt, delivery.raw
    started = wire.milliseconds_of(delivery.started_at)
    token = f"{'' if leased else '~'}{job.feed}:{attempt}@{started}:{delivery.sequence}"
    uncharged = delivery.uncharged + 1
    if end is None:
        again = b"%d%b" % (job.priority + 1, raw)
        # If no handler was called, the number is used again.
        if result.delay is not None:
            delay = result.delay // wire.MILLISECOND
            return job.id, f"later:{attempt - 1}:{ledger}:{delay}::{token}", raw, again, b""
        if result.unhandled or not result.begun:
            verb = "later" if result.unhandled else "back"
            return job.id, f"{verb}:{attempt - 1}:{ledger}:::{token}", raw, again, b""
        verb = "redeliver" if redelivered else "back"
        known = f"{uncharged}:{previous_of_next(result)}"
        return job.id, f"{verb}:{attempt}:{ledger}:{known}:{token}", raw, again, b""
    if end.state is State.COMPLETED and leased and ledger <= 9:
        return job.id, f"+{ledger}:{token}", raw, b"", wire.end_bytes(end) if ledger else b""
    delay, again, known = 0, b"", ":"
    if end.state is State.RETRYING:
        delay = max(0, (end.delay or NO_DELAY) // wire.MILLISECOND)
        uncharged = delivery.uncharged if end.charged else uncharged
        known = f"{uncharged}:{previous_of_next(result)}"
        again = b"%d%b" % (job.priority + 1, wire.entry_again(raw, attempt - uncharged))
    elif not ledger and end.error:
        again = end.error.encode(errors="replace")
    head = f"{VERBS[end.state]}:{delay}:{ledger}:{known}:{token}"
    return job.id, head, raw, again, wire.end_bytes(end) if ledger else b""


def dropped(entry: bytes) -> Written:
    """Write that an entry is of no use any more: its job is in other hands."""
    return wire.id_of(entry), "drop:0:0:::-@", entry, b"", b""


def buried(entry: bytes, reason: str) -> Written:
    """Write that an entry is a dead letter, because nobody can read it."""
    return wire.id_of(entry), "unreadable:0:0:::-@", entry, reason, b""
