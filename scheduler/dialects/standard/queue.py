"""A queue of the standard dialect. Every call is one script, so a job is always in one place.

A call whose answer is lost ran completely or not at all. Jobs that it leased are in the set of the
worker, where `held` finds them. A result that it stored is in the stream, and repeating it is
refused.

Workers wait for the marker list of the queue, and for the wake-up lists of the types that they can
take. A script that leaves jobs in `waiting` pushes the marker, so a chain of workers wakes until
the jobs are taken or parked. The process whose call parked jobs of a type signals the wake-up list
of the type and the one of workers that handle every type; so does a process that took parked jobs
and left others. If that process dies in between, workers find the jobs by polling: once a second
while jobs are parked.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from scheduler.dialects.client import LONGEST_BLOCK, Client, script
from scheduler.dialects.crew.retry_defaults import RetryDefaults
from scheduler.dialects.crew.said import about_bytes, crew
from scheduler.dialects.ends import note_bytes
from scheduler.dialects.interface import (
    EVERY_TYPE,
    About,
    BegunMark,
    Cancelling,
    Crew,
    Delivery,
    Depths,
    Handled,
    Known,
    Note,
    Outcomes,
    Pushed,
    Renewed,
    Result,
    Waits,
)
from scheduler.dialects.leasing import SequenceNumbers, jobs_of_calls, mark_bytes
from scheduler.dialects.looks import NextLook
from scheduler.dialects.queue_options import DEFAULT_OPTIONS, QueueOptions
from scheduler.dialects.settling.fence import Fence, log_missing_results, pushed, withdrawal
from scheduler.dialects.settling.reading import Settling
from scheduler.dialects.standard import messages
from scheduler.dialects.standard.finish import (
    MAX_BYTES,
    NO_RESULTS,
    Fetch,
    FinishArgs,
    FinishScript,
    Formats,
    split_results,
)
from scheduler.dialects.standard.keys import Keys
from scheduler.dialects.standard.recovery import Recovery
from scheduler.errors import ConfigError, WireError
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority

BATCH_SIZE = 1000
PUSH_BATCH_SIZE = 250
MAX_REPORTS = 500  # of workers, read to find out which types are handled
RENEWED = {"k": Renewed.KEPT, "l": Renewed.LOST, "c": Renewed.CANCEL}
CANCELLING = {
    "d": Cancelling.REMOVED,
    "r": Cancelling.RUNNING,
    "f": Cancelling.FINISHED,
    "u": Cancelling.UNKNOWN,
    "x": Cancelling.REFUSED,
}


class StandardQueue:
    """One queue. installation: the ledger that enqueues jobs through it; worker: the name of the
    worker that fetches through it.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        installation: str = "",
        worker: str = "",
        lease: timedelta = timedelta(seconds=30),
        options: QueueOptions = DEFAULT_OPTIONS,
    ) -> None:
        if ":" in worker:
            raise ConfigError(
                f"worker must not contain ':', which ends a name in a lease, but is {worker!r}"
            )
        self.name = name
        self.lease = lease
        self._client = client
        self._keys = Keys.from_queue(name)
        self._installation = installation
        self._worker = worker
        self.retry_defaults = RetryDefaults(client, self._keys.retry_default(), worker)
        self.next_look = NextLook()
        self._fence = Fence(client)
        self._sequence = SequenceNumbers()
        self._formats = Formats(name)
        self._finish = FinishScript(client, name, self._keys, options, self._formats)
        self._recovery = Recovery(client, name, self._keys, self._finish, self._formats)
        self._results = Settling(
            client,
            [
                self._keys.results(installation),
                *self._keys.named("finished", "settled", "settled:before"),
            ],
            silence=options.settler_silence,
            keep=self._bury,
            forget=script("standard", "acknowledge"),
            field=messages.RESULT_FIELD,
            newer=lambda number: self._formats.met([number]),
        )
        self._push_keys = [
            *self._keys.named("jobs", "leases", "state", "finished", "waiting", "turns"),
            *self._keys.named("blocked", "blocked:counts", "retrying", "marker"),
            self._keys.epoch(installation),
            *self._keys.named("settled", "settled:before"),
            self._keys.results(installation),
        ]

    def push(
        self, jobs: Sequence[QueuedJob], *, epoch: str, began: float | None = None
    ) -> list[Pushed]:
        """Enqueue jobs. Logs jobs whose result is missing, which are enqueued again."""
        found: list[Pushed] = []
        missing = 0
        with self._fence.until(began) as deadline:
            batches = _push_batches(jobs, [epoch, deadline])
            answers = self._client.run_each(script("standard", "push"), self._push_keys, batches)
            for codes, *formats in answers:
                found += pushed(codes)
                missing += codes.count(b"r")
                self._formats.met(formats[0] if formats else ())
        log_missing_results(self.name, missing)
        return found

    def fetch(
        self,
        n: int,
        *,
        timeout: float,
        handled: Handled = EVERY_TYPE,
        first: int | None = None,
        begun: BegunMark | None = None,
    ) -> list[Delivery]:
        """Lease jobs, or wait for one; with n = 0 only wait."""
        end = time.monotonic() + timeout
        if n <= 0:
            self._wait(end, handled)
            return []
        fetch = Fetch(n, handled, self._sequence.allocate(n, first), begun)
        while True:
            began = time.monotonic()
            answer = self._finish.run(self._worker, self.lease, NO_RESULTS, fetch)
            self.next_look.heard(answer.wait_ms, began)
            if answer.leased or end <= time.monotonic():
                return answer.leased
            self._wait(end, handled)

    def fetch_next(
        self,
        n: int,
        *,
        timeout: float,
        handled: Handled = EVERY_TYPE,
        first: int | None = None,
        begun: BegunMark | None = None,
    ) -> list[Delivery] | None:
        """Wait for jobs and lease them in one round trip; None: not possible here."""
        began = time.monotonic()
        fetch = Fetch(n, handled, self._sequence.allocate(n, first), begun)
        with self.next_look.waiting(began + timeout, LONGEST_BLOCK) as seconds:
            command = self._blocking(seconds, handled)
            answer = self._finish.block_then_run(command, self._worker, self.lease, fetch)
        if answer is None:
            return None
        self.next_look.heard(answer.wait_ms, began)
        return answer.leased

    def unblock(self) -> None:
        """End the wait of `fetch_next`."""
        self._client.unblock(self._client)

    def _wait(self, end: float, handled: Handled) -> None:
        with self.next_look.waiting(end, LONGEST_BLOCK) as seconds:
            self._client.wait(*self._blocking(seconds, handled))

    def _blocking(self, seconds: float, handled: Handled) -> list[str]:
        """Return the command that waits until there can be a job."""
        keys = self._keys.named("marker")
        free = handled.free
        if handled.types is not None:
            keys += [self._keys.wake(each) for each in handled.types if free.get(each, 1) > 0]
        elif all(each > 0 for each in free.values()):
            # A worker without a free slot for some type leaves the signal to others.
            keys.append(self._keys.wake(None))
        return ["BLPOP", *keys, f"{seconds:.3f}"]

    def finish(
        self,
        results: Sequence[Result],
        *,
        fetch: int = 0,
        handled: Handled = EVERY_TYPE,
        first: int | None = None,
        begun: BegunMark | None = None,
    ) -> tuple[list[bool], list[Delivery]]:
        """End and return deliveries, and lease the next jobs."""
        parts = split_results(results)
        if any(each.has_delays for each in parts):
            self.next_look.yield_to_others()
        began = time.monotonic()
        wanted = Fetch(fetch, handled, self._sequence.allocate(fetch, first), begun)
        answers = [
            self._finish.run(self._worker, self.lease, part, wanted._replace(n=n))
            for part, n in zip(parts, jobs_of_calls(fetch, len(parts), results), strict=True)
        ]
        self.next_look.heard(answers[-1].wait_ms, began)
        accepted = [each for answer in answers for each in answer.accepted]
        return accepted, answers[-1].leased

    def renew(
        self,
        notes: Mapping[Delivery, Note | None],
        *,
        lease: timedelta,
        about: About | None = None,
        begun: BegunMark | None = None,
    ) -> list[Renewed]:
        """Renew leases, and store progress and the status report of the worker."""
        keys = [
            self._keys.status(self._worker),
            *self._keys.named("workers", "leases", "cancels", "notes", "begun"),
        ]
        report, mark = about_bytes(about), mark_bytes(begun)
        found: list[Renewed] = []
        for batch in list(_batches(list(notes.items()))) or [[]]:
            args: list[Any] = [self._worker, lease // messages.MILLISECOND, report, mark]
            args.append(len(batch))
            args += [each.job.id for each, _ in batch]
            args += [f"{each.job.feed}:{each.attempt}:{each.sequence}" for each, _ in batch]
            args += [note_bytes(note) for _, note in batch]
            answer = self._client.run(script("standard", "renew"), keys, args)
            found += [RENEWED[each] for each in answer.decode()]
        return found

    def leave(self) -> None:
        """Remove the registration of the worker, unless it still leases jobs."""
        keys = [
            self._keys.status(self._worker),
            self._keys.leased(self._worker),
            *self._keys.named("workers", "begun"),
            self._keys.retry_default(self._worker),
        ]
        self._client.run(script("standard", "leave"), keys, [self._worker])

    def held(self) -> list[Delivery]:
        """List the leased jobs of this worker, in the order in which it leased them."""
        found: list[Delivery] = []
        for page in self._recovery.leased(self._worker):
            unreadable = FinishArgs()
            for each in page:
                if each.lease is None or each.lease.worker != self._worker:
                    continue
                if each.delivery is not None:
                    found.append(each.delivery)
                elif not each.newer:
                    unreadable.bury(each.id, each.lease.sequence, each.letter, each.error)
            if unreadable.ids:
                self._finish.run(self._worker, self.lease, unreadable)
        self._sequence.skip(found)
        return sorted(found, key=lambda each: each.sequence)

    def recover(self, decide: Callable[[Delivery], Result], *, foreign: bool = True) -> int:  # noqa: ARG002 - it has no others
        """Recover leases of expired workers."""
        return self._recovery.recover(decide)

    def outcomes(self, n: int, *, timeout: float) -> list[Outcomes]:
        """Read results."""
        return self._results.read(n, timeout)

    def acknowledge(self, settled: Sequence[Outcomes]) -> None:
        """Delete settled results."""
        self._results.acknowledge(settled)

    def hand_over(self, read: Sequence[Outcomes]) -> None:
        """Release results to other settlers."""
        self._results.hand_over(read)

    def _bury(self, text: bytes, error: WireError) -> None:
        """Make a dead letter of an unreadable result."""
        keys = self._keys.named("dead_letter", "reasons")
        self._client.run(script("standard", "bury"), keys, [text, str(error)])

    def known(self, ids: Sequence[str]) -> list[Known | None]:
        """Return the status of jobs."""
        keys = [
            *self._keys.named("jobs", "leases", "state", "finished", "notes"),
            self._keys.results(self._installation),
        ]
        found: list[Known | None] = []
        for batch in _batches(ids):
            formats, *answer = self._client.run(script("standard", "known"), keys, batch)
            self._formats.met(formats)
            found += [messages.known_of(*answer[i : i + 4]) for i in range(0, len(answer), 4)]
        return found

    def cancel(self, ids: Sequence[str], *, force: bool = False) -> list[Cancelling]:
        """Remove jobs; request the cancellation of leased ones, or remove them by force."""
        return [
            each
            for batch in _batches(ids)
            for each in self._cancel("force" if force else "", batch)
        ]

    def withdraw(self, job: QueuedJob) -> Cancelling:
        """Remove a waiting job that its ledger will push again."""
        return self._cancel(withdrawal(job), [job.id])[0]

    def _cancel(self, how: str, ids: Sequence[str]) -> list[Cancelling]:
        keys = [
            *self._keys.named("jobs", "leases", "state", "finished", "waiting", "blocked"),
            *self._keys.named("blocked:counts", "retrying", "cancels", "notes"),
            self._keys.results(self._installation),
            *self._keys.named("turns", "settled", "settled:before"),
        ]
        codes, formats = self._client.run(script("standard", "cancel"), keys, [how, *ids])
        self._formats.met(formats)
        return [CANCELLING[each] for each in codes.decode()]

    def epoch(self) -> str | None:
        """Return the epoch of the ledger, which a Redis that lost its data does not have."""
        found = self._client.call("GET", self._keys.epoch(self._installation))
        return None if found is None else found.decode()

    def begin(self, epoch: str) -> None:
        """Set the epoch, unless Redis has a newer one."""
        self._client.run(
            script("standard", "begin"), [self._keys.epoch(self._installation)], [epoch]
        )

    def depths(self) -> Depths:
        """Count the jobs of the queue; parked jobs are waiting, jobs of paused tenants are not."""
        keys = self._keys.named(
            *("waiting", "blocked", "blocked:counts", "retrying", "leases", "finished"),
            "dead_letter",
        )
        *waiting, retrying, running, unsettled, dead, stopped = self._client.run(
            script("standard", "depths"), keys, []
        )
        levels = dict(zip(Priority, waiting, strict=True))
        return Depths(levels, retrying, running, unsettled, dead, stopped)

    def workers(self, n: int) -> Crew:
        """List live workers, at most n."""
        [workers] = self._keys.named("workers")
        return crew(self._client, self.name, workers, self._keys.status(), n)

    def unhandled_types(self) -> dict[str, int]:
        """Return the types of parked jobs that no live worker handles. If more workers live than
        are read, one of the others can handle any type.

        A type at its concurrency limit is parked too, so the count of parked jobs alone does not
        tell. The workers are read after the counts: a worker that starts in between is found, and
        counts as handling every type until its first report.
        """
        [counts] = self._keys.named("blocked:counts")
        flat = self._client.run(script("standard", "parked_types"), [counts], [])
        pairs = zip(*[iter(flat)] * 2, strict=True)
        parked = {name.decode(errors="replace"): n for name, n in pairs}
        if not parked:
            return {}
        found = self.workers(MAX_REPORTS)
        reports = [at.types for each in found.workers for at in each.queues]
        if found.alive != len(found.workers) or None in reports:
            return {}
        handled = {name for types in reports for name in types or ()}
        most_first = sorted(parked.items(), key=lambda each: (-each[1], each[0]))
        return {name: n for name, n in most_first if name not in handled}

    def waits(self) -> Waits:
        """Count waiting jobs, and identify the first of each level."""
        keys = self._keys.named("waiting", "blocked", "blocked:counts")
        waiting, *heads = self._client.run(script("standard", "waits"), keys, [])
        return Waits(waiting, tuple(heads))


def _push_batches(jobs: Sequence[QueuedJob], head: Sequence[Any]) -> Iterator[list[Any]]:
    """Encode jobs in batches, so that Redis works on one while the next is encoded."""
    args, size = [*head], 0
    for job in jobs:
        record = messages.record_of(job)
        args += (job.id, messages.turn_of(job), messages.entry_of(job), record)
        size += len(record)
        if size > MAX_BYTES or len(args) > 4 * PUSH_BATCH_SIZE:
            yield args
            args, size = [*head], 0
    if len(args) > len(head):
        yield args


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), BATCH_SIZE):
        yield items[start : start + BATCH_SIZE]
