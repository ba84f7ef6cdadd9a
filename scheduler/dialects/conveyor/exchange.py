"""The script `finish`, which ends deliveries and takes the next: what it is told, and what it
answers.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

import orjson

from scheduler.dialects.client import Client, script
from scheduler.dialects.conveyor import wire
from scheduler.dialects.conveyor.keys import Keys
from scheduler.dialects.conveyor.wire import Taken
from scheduler.dialects.ends import end_bytes
from scheduler.dialects.interface import Delivery, Result
from scheduler.dialects.leasing import NO_FETCH, Fetch, previous_of_next, returned_of
from scheduler.dialects.queue_options import QueueOptions
from scheduler.errors import WireError
from scheduler.model.states import State

LARGEST_BATCH = 1000
MOST_RESULTS = 500
MOST_BYTES = 8 * 1024 * 1024  # in one call; and so many more as one job has
VALUES = 5
NO_DELAY = timedelta()
VERBS = {
    State.COMPLETED: "completed",
    State.FAILED: "dead",
    State.DEAD_LETTER: "dead",
    State.CANCELLED: "cancelled",
    State.RETRYING: "retry",
}


class Answer(NamedTuple):
    """What came of it; nothing if `alive`. `wait_ms`: until one should look; `full`: the settlers
    are behind. `passed`: how many jobs of full types were passed over.
    """

    accepted: list[bool]
    taken: list[Delivery]
    wait_ms: int
    full: bool = False
    passed: int = 0
    alive: bool = False


class Held(NamedTuple):
    """What a worker holds: its delivery if it can be read, and whose lease it is under, if any.

    redelivered: an orphaned lease of the job was redelivered uncharged.
    """

    uuid: bytes
    raw: bytes
    delivery: Delivery | None
    owner: str | None
    redelivered: bool = False


class Exchange:
    """The deliveries of one queue."""

    def __init__(self, client: Client, queue: str, keys: Keys, options: QueueOptions) -> None:
        self._client = client
        self._queue = queue
        self._keys = [keys.scheduled]
        self._names = keys.names
        self._limits = (options.most_unsettled, options.kept)

    def run(
        self,
        worker: str,
        written: Sequence[Any],
        lease: timedelta,
        fetch: Fetch = NO_FETCH,
        *,
        dead: bool = False,
    ) -> Answer:
        """End deliveries of a worker and lease more jobs to it."""
        args = [
            self._names,
            self._queue,
            worker,
            lease // wire.MILLISECOND,
            min(fetch.n, LARGEST_BATCH),
            "dead" if dead else "live",
            *self._limits,
            fetch.first,
            fetch.limits,
            fetch.begun,
            len(written) // VALUES,
            *written,
        ]
        answer, wait, full, now, passed, *taken = self._client.run(
            script("conveyor", "finish"), self._keys, args
        )
        if answer == b"alive":
            return Answer([], [], wait, alive=True)
        name = self._name_of(worker)
        deliveries, unreadable = self._deliveries(name, taken, wire.instant_of(now), fetch.first)
        if unreadable:
            self.run(worker, unreadable, lease)
        return Answer([each == 49 for each in answer], deliveries, wait, bool(full), passed)

    def held(self, worker: str, most: int, most_bytes: int) -> list[Held]:
        """Read what a worker holds of this queue, the oldest first."""
        args = [self._names, self._queue, worker, most, most_bytes]
        found = self._client.run(script("conveyor", "held"), self._keys, args)
        listed = [found[start : start + 4] for start in range(0, len(found), 4)]
        return sorted((self._held(*each) for each in listed), key=_leased_at)

    def _held(self, uuid: bytes, raw: bytes, lease: bytes, counts: bytes) -> Held:
        try:
            if not lease:
                delivery = self._delivery(uuid, raw, None, wire.EPOCH, 0)
                returned = returned_of(counts, delivery.job)
                delivery.uncharged, delivery.orphaned = returned.uncharged, returned.orphaned
                delivery.job.previous_attempt_id = returned.previous_attempt_id
                delivery.attempt += delivery.uncharged
                return Held(uuid, raw, delivery, None)
            _, attempt, rest = lease.split(b":", 2)
            owner, started, number = rest.rsplit(b":", 2)
            began = wire.instant_of(int(started))
            delivery = self._delivery(uuid, raw, int(attempt), began, int(number))
            returned = returned_of(counts, delivery.job)
            delivery.uncharged, delivery.orphaned = returned.uncharged, returned.orphaned
            delivery.job.previous_attempt_id = returned.previous_attempt_id
            delivery.worker = self._name_of(owner.decode())
            return Held(uuid, raw, delivery, owner.decode(), returned.redelivered)
        except (WireError, ValueError, OverflowError):  # no job, or the value is no lease of ours
            return Held(uuid, raw, None, None)

    def _delivery(
        self, uuid: bytes, raw: bytes, attempt: int | None, started: datetime, sequence: int
    ) -> Taken:
        """Read a job; scripts stop at our fields, and what others write behind them may say that it
        is another.
        """
        delivery = wire.delivery_of(self._queue, raw, attempt, started, sequence)
        if delivery.job.id.encode() != uuid:
            raise WireError(f"a job of queue {self._queue!r} has two ids")
        return delivery

    def _name_of(self, worker: str) -> str:
        """Return the name of a worker, which in Conveyor is followed by the name of the queue."""
        return worker.removesuffix(f":{self._queue}")

    def _deliveries(
        self, worker: str, taken: Sequence[Any], started: datetime, first: int
    ) -> tuple[list[Delivery], list[Any]]:
        found: list[Delivery] = []
        unreadable: list[Any] = []
        told = zip(taken[::4], taken[1::4], taken[2::4], taken[3::4], strict=True)
        for sequence, (uuid, raw, attempt, extra) in enumerate(told, first):
            try:
                delivery = self._delivery(uuid, raw, attempt, started, sequence)
                delivery.uncharged, delivery.worker = delivery.job.uncharged, worker
                if extra:  # what the attempts before have left
                    counted, orphaned, previous, note = extra.split(b":", 3)
                    if counted:
                        delivery.uncharged, delivery.orphaned = int(counted), orphaned != b"0"
                    if previous:
                        delivery.job.previous_attempt_id = previous.decode(errors="replace")
                    if note:
                        delivery.job.checkpoint = orjson.loads(note)[2]
                found.append(delivery)
            except WireError:
                unreadable += buried(uuid, raw, attempt)
        return found, unreadable


def _leased_at(held: Held) -> tuple[datetime, int]:
    delivery = held.delivery
    return (delivery.started_at, delivery.sequence) if delivery else (wire.EPOCH, 0)


def calls(results: Sequence[Result]) -> Iterator[list[Any]]:
    """Write ends, in as many calls as they need; at least one."""
    written: list[Any] = []
    size = 0
    for result in results:
        if size > MOST_BYTES or len(written) >= VALUES * MOST_RESULTS:
            yield written
            written, size = [], 0
        values = written_of(result)
        written += values
        size += len(values[3]) + len(values[4]) + len(result.delivery.raw)
    yield written


def written_of(result: Result, *, redelivered: bool = False) -> tuple[Any, ...]:
    """Write one end, as the script reads it. redelivered: it returns an orphaned lease."""
    delivery, end = cast("Taken", result.delivery), result.end
    job, attempt = delivery.job, delivery.attempt
    lease = f"{wire.milliseconds_of(delivery.started_at)}:{delivery.sequence}"
    token = f"{job.feed}:{attempt}:{lease}:{delivery.parent}"
    uncharged = delivery.uncharged + 1
    # If no handler was called, the number is used again.
    if end is None and result.delay is not None:
        after = result.delay // wire.MILLISECOND
        return job.id, f"later:{attempt - 1}:{after}::{token}", "", b"", b""
    if end is None and (result.unhandled or not result.begun):
        verb = "later" if result.unhandled else "back"
        return job.id, f"{verb}:{attempt - 1}:::{token}", "", b"", b""
    if end is None:
        verb = "redeliver" if redelivered else "back"
        head = f"{verb}:{attempt}:{uncharged}:{previous_of_next(result)}:{token}"
        return job.id, head, "", b"", b""
    delay, again, known = 0, b"", ":"
    uncharged = delivery.uncharged if end.charged else uncharged
    if end.state is State.RETRYING:
        delay = max(0, (end.delay or NO_DELAY) // wire.MILLISECOND)
        known = f"{uncharged}:{previous_of_next(result)}"
    if end.state not in (State.COMPLETED, State.CANCELLED):
        again = wire.raw_again(delivery.raw, attempt - uncharged, end.error)
    told = end_bytes(end) if job.installation else b""
    return job.id, f"{VERBS[end.state]}:{delay}:{known}:{token}", job.installation, again, told


def buried(uuid: bytes, raw: bytes, attempt: int) -> tuple[Any, ...]:
    """Write that nobody can read a job."""
    return uuid, f"unreadable:0:::0:{attempt}:0:0:", "", raw, b""
