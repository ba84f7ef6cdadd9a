"""The script `finish`, which ends and returns deliveries and leases the next jobs: its arguments
and its answer.
"""

import contextlib
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import orjson

from scheduler.dialects.client import Client, script
from scheduler.dialects.ends import end_bytes
from scheduler.dialects.interface import EVERY_TYPE, BegunMark, Delivery, Handled, Result
from scheduler.dialects.leasing import mark_bytes, previous_of_next
from scheduler.dialects.queue_options import QueueOptions
from scheduler.dialects.standard import messages
from scheduler.dialects.standard.keys import Keys
from scheduler.dialects.unhandled import return_delay_ms
from scheduler.errors import QueueUnavailable, WireError
from scheduler.model.states import State

logger = logging.getLogger("scheduler")

MAX_LEASES = 1000  # in one call
MAX_RESULTS = 500  # in one call
MAX_BYTES = 8 * 1024 * 1024  # of the results in one call, and of one more result
PLACES = 31
SIGNAL_TTL_MS = 60_000
NO_DELAY = timedelta()
VERBS = {
    State.COMPLETED: "completed",
    State.FAILED: "dead",
    State.DEAD_LETTER: "dead",
    State.CANCELLED: "cancelled",
}


class FinishArgs:
    """The results of one call, by ledger."""

    __slots__ = ("_numbers", "has_delays", "heads", "ids", "lengths", "results", "values")

    def __init__(self) -> None:
        self.has_delays = False  # some put-backs have a delay
        self.ids: list[str | bytes] = []
        self.heads: list[str] = []
        self.values: list[Any] = []  # that follow heads
        self.results: dict[str, list[bytes]] = {}
        self.lengths: dict[str, list[str]] = {}
        self._numbers = {"": 0}

    def add(self, result: Result, *, redelivered: bool = False) -> int:
        """Add a result, and return its size. redelivered: it returns an orphaned lease."""
        delivery, end = result.delivery, result.end
        job = delivery.job
        token = f"{job.feed}:{delivery.attempt}:{delivery.sequence}"
        self.ids.append(job.id)
        if end is None and result.unhandled:
            # The script parks jobs of other types, so a worker gets none of them, unless the entry
            # of a job has another type than its record. An uncharged retry delays it.
            delay = return_delay_ms(delivery.uncharged)
            self.heads.append(f"retry:0:{delay}:0:{token}")
            again = b"%d%b" % (job.priority, messages.entry_of(job))
            self.values += (again, previous_of_next(result))
            return 0
        if end is None and result.delay is not None:
            self.has_delays = True
            self.heads.append(f"retry:0:{result.delay // messages.MILLISECOND}:2:{token}")
            again = b"%d%b" % (job.priority, messages.entry_of(job))
            self.values += (again, previous_of_next(result))
            return 0
        if end is None:
            self.heads.append(f"return:0:{result.begun:d}:{redelivered:d}:{token}")
            self.values += (messages.entry_of(job), previous_of_next(result))
            return 0
        number = self._number(job.installation)
        if end.state is State.COMPLETED and number <= 9:
            self.heads.append(f"+{number}:{token}")
        elif end.state is State.RETRYING:
            delay = max(0, (end.delay or NO_DELAY) // messages.MILLISECOND)
            self.heads.append(f"retry:{number}:{delay}:{end.charged:d}:{token}")
            again = b"%d%b" % (job.priority, messages.entry_of(job))
            self.values += (again, previous_of_next(result))
        else:
            verb = VERBS[end.state]
            self.heads.append(f"{verb}:{number}:0:1:{token}")
            if verb == "dead":
                reason = "" if number else end.error or ""
                self.values += (messages.letter_of(job), reason.encode(errors="replace"))
        if not number:
            return 0
        text = end_bytes(end)
        self.results[job.installation].append(text)
        self.lengths[job.installation].append(f"{len(self.ids)}:{len(text)}")
        return len(text)

    def bury(self, id_: bytes, sequence: int, letter: bytes, reason: str) -> None:
        """Make a dead letter of a leased job that is unreadable."""
        self.ids.append(id_)
        self.heads.append(f"unreadable:0:0:0:{sequence}")
        self.values += (letter, reason)

    def drop(self, id_: bytes) -> None:
        """Remove an id from the leased jobs of a worker that does not lease it any more."""
        self.ids.append(id_)
        self.heads.append("drop:0:0:0:-")

    def _number(self, installation: str) -> int:
        number = self._numbers.get(installation)
        if number is None:
            number = self._numbers[installation] = len(self._numbers)
            self.results[installation], self.lengths[installation] = [], []
        return number


NO_RESULTS = FinishArgs()


class Fetch(NamedTuple):
    """Which jobs a call leases. first: the sequence number of the first lease; begun: see
    `Queue.fetch`.
    """

    n: int = 0
    handled: Handled = EVERY_TYPE
    first: int = 0
    begun: BegunMark | None = None


NO_FETCH = Fetch()


class Answer(NamedTuple):
    """The answer to a call. wait_ms: until the next poll, below 0 for none. alive: nothing was
    done, because the worker whose leases were to be recovered has renewed its registration.
    """

    accepted: list[bool]
    leased: list[Delivery]
    wait_ms: int
    alive: bool = False


class Formats:
    """Logs each newer format number once."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._logged: set[int] = set()

    def met(self, numbers: Iterable[int]) -> None:
        """Log the numbers that were not logged before."""
        for number in numbers:
            if number not in self._logged:
                self._logged.add(number)
                logger.warning(
                    "queue %s: Redis has values of format %d, this version reads format %d; they "
                    "are left to newer processes",
                    self._queue,
                    number,
                    messages.FORMAT,
                )


class FinishScript:
    """Runs the script for the workers of one queue."""

    def __init__(
        self,
        client: Client,
        queue: str,
        keys: Keys,
        options: QueueOptions,
        formats: Formats,
    ) -> None:
        self._client = client
        self._queue = queue
        self._keys = keys
        self._limits = options.most_unsettled, options.kept
        self._formats = formats
        self._place: int | None = 0 if options.weighted else None  # among the places of the levels
        self._before = keys.named(
            *("waiting", "turns", "blocked", "blocked:counts", "jobs", "leases", "state"),
            *("retrying", "finished", "workers"),
        )
        self._after = keys.named(
            *("begun", "marker", "dead_letter", "reasons", "cancels", "notes", "paused")
        )
        self._named: tuple[str | None, list[str]] = (None, [])  # keys of the last worker

    def run(
        self,
        worker: str,
        lease: timedelta,
        results: FinishArgs = NO_RESULTS,
        fetch: Fetch = NO_FETCH,
        *,
        recover: bool = False,
    ) -> Answer:
        """End deliveries of a worker, and lease jobs to it. recover: it has expired."""
        keys, args = self._arguments(worker, lease, results, fetch, recover=recover)
        answer = self._client.run(script("standard", "finish"), keys, args)
        return self._decoded(worker, lease, fetch, answer)

    def block_then_run(
        self, command: Sequence[Any], worker: str, lease: timedelta, fetch: Fetch
    ) -> Answer | None:
        """Wait by a blocking command, then lease jobs, in one round trip; None: not possible."""
        keys, args = self._arguments(worker, lease, NO_RESULTS, fetch)
        answer = self._client.wait_and_run(command, script("standard", "finish"), keys, args)
        return None if answer is None else self._decoded(worker, lease, fetch, answer)

    def _arguments(
        self,
        worker: str,
        lease: timedelta,
        results: FinishArgs,
        fetch: Fetch,
        *,
        recover: bool = False,
    ) -> tuple[list[str], list[Any]]:
        last, keys = self._named
        if last != worker:
            keys = [
                *self._before,
                self._keys.leased(worker),
                *self._after,
                self._keys.status(worker),
                *self._keys.named("paused:tenants"),
            ]
            self._named = worker, keys
        handled = fetch.handled
        # A call leases n jobs at most, so a type with n free slots cannot reach its limit.
        limits = {each: free for each, free in handled.free.items() if free < fetch.n}
        args = [
            worker,
            lease // messages.MILLISECOND,
            min(fetch.n, MAX_LEASES),
            "recover" if recover else "live",
            *self._limits,
            "" if self._place is None else self._place,
            fetch.first,
            mark_bytes(fetch.begun),
            len(results.ids),
            "" if handled.types is None else len(handled.types),
            len(limits),
            *results.ids,
            *results.heads,
            *(handled.types or ()),
            *(value for limit in limits.items() for value in limit),
        ]
        if not results.ids:
            return keys, args
        for installation, texts in results.results.items():
            args.append(b"[%b]" % b",".join(texts))
            args.append(",".join(results.lengths[installation]))
        args += results.values
        return [*keys, *map(self._keys.results, results.results)], args

    def _decoded(
        self, worker: str, lease: timedelta, fetch: Fetch, answer: Sequence[Any]
    ) -> Answer:
        accepted, wait, now, signals, formats, *leased = answer
        if formats:
            self._formats.met(formats)
        if accepted == b"alive":
            return Answer([], [], wait, alive=True)
        if self._place is not None:
            self._place = (self._place + len(leased) // 3) % PLACES
        if signals:
            self.signal(signals)
        started = messages.instant_of(now)
        deliveries, unreadable = self._deliveries(worker, leased, started, fetch.first)
        if unreadable.ids:
            self.run(worker, lease, unreadable)
        return Answer([each == 49 for each in accepted], deliveries, wait)

    def signal(self, types: Iterable[bytes]) -> None:
        """Wake workers that can take parked jobs of types."""
        lists = [self._keys.wake(each.decode(errors="replace")) for each in set(types)]
        keys = [*lists, self._keys.wake(None)]
        with contextlib.suppress(QueueUnavailable):  # workers find the jobs by polling
            self._client.run(script("standard", "signal"), keys, [SIGNAL_TTL_MS])

    def _deliveries(
        self, worker: str, leased: Sequence[Any], started: Any, first: int
    ) -> tuple[list[Delivery], FinishArgs]:
        found: list[Delivery] = []
        unreadable = NO_RESULTS
        queue, job_of, sequence = self._queue, messages.job_of, first
        for id_, record, extra in zip(leased[::3], leased[1::3], leased[2::3], strict=True):
            try:
                job = job_of(queue, id_, record)
                number, uncharged, orphaned = job.attempt + 1, job.uncharged, b"0"
                if extra:  # not the first attempt since the job was pushed
                    attempt, charged, orphaned, previous, note = extra.split(b":", 4)
                    number = int(attempt)
                    uncharged = number - int(charged)
                    if previous:
                        job.previous_attempt_id = previous.decode(errors="replace")
                    if note:
                        job.checkpoint = _checkpoint(note)
                delivery = Delivery(job, number, started, b"", sequence, uncharged)
                delivery.worker, delivery.orphaned = worker, orphaned != b"0"
                found.append(delivery)
            except WireError as error:
                if unreadable is NO_RESULTS:
                    unreadable = FinishArgs()
                unreadable.bury(id_, sequence, b"%b\0%b" % (id_, record), str(error))
            sequence += 1
        return found, unreadable


def _checkpoint(note: bytes) -> Any:
    """Return the checkpoint that an earlier attempt left."""
    try:
        return orjson.loads(note)[2]
    except messages.READ_ERRORS:
        return None


def split_results(results: Sequence[Result]) -> list[FinishArgs]:
    """Divide results among as many calls as they need; at least one."""
    calls = [FinishArgs()]
    size = 0
    for result in results:
        if size > MAX_BYTES or len(calls[-1].ids) >= MAX_RESULTS:
            calls.append(FinishArgs())
            size = 0
        size += calls[-1].add(result)
    return calls
