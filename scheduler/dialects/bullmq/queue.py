"""A queue of the BullMQ dialect. Every call is one script, so that nothing is ever between two
places.

Why no answer is needed to be safe: a script that was not answered ran whole or not at all. Jobs
that it took have this worker's token as their lock (`held` finds them), and an end that is said
again is refused.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson

from scheduler.dialects.bullmq import wire
from scheduler.dialects.bullmq.exchange import (
    LARGEST_BATCH,
    MOST_BYTES,
    Exchange,
    calls,
    written_of,
)
from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.bullmq.outcomes import Settling
from scheduler.dialects.client import LONGEST_BLOCK, Client, script
from scheduler.dialects.crew.retry_defaults import RetryDefaults
from scheduler.dialects.crew.said import about_bytes
from scheduler.dialects.ends import note_bytes
from scheduler.dialects.interface import (
    EVERY_TYPE,
    About,
    BegunMark,
    Cancelling,
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
from scheduler.dialects.leasing import SequenceNumbers, jobs_of_calls, mark_bytes, mark_of
from scheduler.dialects.looks import NextLook
from scheduler.dialects.queue_options import DEFAULT_OPTIONS, QueueOptions
from scheduler.dialects.settling.fence import Fence, log_missing_results, pushed, withdrawal
from scheduler.errors import ConfigError, QueueError, QueueUnavailable
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.states import State

STALLED_INTERVAL = timedelta(seconds=30)  # between the checks that workers of BullMQ make
MOST_STALLED = 1  # times that a job of others may be lost before it fails
MOST_TAKEN_BACK = 500
PUSHED_AT_ONCE = 250
COMPATS = ("auto", "5", "6")
RENEWED = {"k": Renewed.KEPT, "l": Renewed.LOST, "c": Renewed.CANCEL}
CANCELLING = {
    "d": Cancelling.REMOVED,
    "r": Cancelling.RUNNING,
    "f": Cancelling.FINISHED,
    "u": Cancelling.UNKNOWN,
    "x": Cancelling.REFUSED,
}
STATES = {b"w": State.SCHEDULED, b"b": State.RETRYING, b"r": State.RUNNING, b"f": None}


class BullMQQueue:
    """One queue; `worker` is the name of the one that fetches through it, `installation` whose
    ledger feeds it.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        installation: str = "",
        worker: str = "",
        lease: timedelta = timedelta(seconds=30),
        prefix: str = "bull",
        compat: str = "auto",
        options: QueueOptions = DEFAULT_OPTIONS,
    ) -> None:
        if ":" in worker:
            raise ConfigError(
                f"worker must not contain ':', which ends a name in keys, but is {worker!r}"
            )
        if compat not in COMPATS:
            raise ConfigError(f"compat: must be one of {', '.join(COMPATS)}, not {compat!r}")
        self.name = name
        self.lease = lease
        self.next_look = NextLook()
        self._numbers = SequenceNumbers()
        self._client = client
        self._keys = Keys(name, prefix)
        self.retry_defaults = RetryDefaults(client, self._keys.own("retry:"), worker)
        self._installation = installation
        self._worker = worker
        self._compat = compat
        self._kept = options.kept
        is_default = options.reaper == DEFAULT_OPTIONS.reaper
        interval = STALLED_INTERVAL if is_default else options.reaper.interval
        self._stalled_ms = interval // wire.MILLISECOND
        self._exchange = Exchange(
            client, self._keys, worker, compat=compat, most_unsettled=options.most_unsettled
        )
        self._fence = Fence(client)
        self._settling = Settling(client, self._keys, installation, options.settler_silence)
        with contextlib.suppress(
            QueueUnavailable
        ):  # a cluster that comes back later refuses such keys itself
            if not self._keys.tagged and client.clustered:
                raise ConfigError(
                    f'queue {name!r}: in a cluster the prefix needs a hash tag: "{{{prefix}}}"'
                )

    def push(
        self, jobs: Sequence[QueuedJob], *, epoch: str, began: float | None = None
    ) -> list[Pushed]:
        """Put jobs in."""
        with self._fence.until(began) as until:
            pushing = self._pushing(jobs, [epoch, self._installation, self._compat, until])
            answers = self._client.run_each(script("bullmq", "push"), [self._keys.meta], pushing)
            found = [(each, pushed(each)) for each in answers]
        log_missing_results(self.name, sum(answer.count(b"r") for answer, _ in found))
        return [each for _, batch in found for each in batch]

    def _pushing(self, jobs: Sequence[QueuedJob], head: Sequence[Any]) -> Iterator[list[Any]]:
        """Write jobs, so many at a time that Redis has something to do while the next are
        written.
        """
        args: list[Any] = [*head]
        size = count = 0
        for job in jobs:
            args += wire.fields_of(job, self._kept)
            size += len(job.payload)
            count += 1
            if size > MOST_BYTES or count >= PUSHED_AT_ONCE:
                yield args
                args, size, count = [*head], 0, 0
        if count:
            yield args

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
            self._wait(end)
            return []
        fetch = self._numbers.fetch(n, handled, first, begun)
        while True:
            began = time.monotonic()
            answer = self._exchange.run([], self.lease, fetch)
            self.next_look.heard(answer.wait_ms, began, answer.passed)
            if answer.taken or end <= time.monotonic():
                return answer.taken
            self._wait(end)

    def _wait(self, end: float) -> None:
        """Wait until somebody says that there is something, or it is time to look."""
        if self._worker and not self._client.clustered:
            with contextlib.suppress(QueueError):  # so dashboards list us; whoever must not, is not
                self._client.wait("CLIENT", "SETNAME", self._keys.client_name(self._worker))
        keys = self._keys
        with self.next_look.waiting(end, LONGEST_BLOCK) as seconds:
            signal = keys.own("nothing") if self.next_look.passed_over else keys.named("marker")
            self._client.wait("BZPOPMIN", signal, f"{seconds:.3f}")

    def finish(
        self,
        results: Sequence[Result],
        *,
        fetch: int = 0,
        handled: Handled = EVERY_TYPE,
        first: int | None = None,
        begun: BegunMark | None = None,
    ) -> tuple[list[bool], list[Delivery]]:
        """End deliveries and lease the next jobs."""
        wake = not results and not fetch
        wanted, began = self._numbers.fetch(fetch, handled, first, begun), time.monotonic()
        parts = [*calls(results)][::-1]  # put-backs keep their order: the last part goes first
        answers = [
            self._exchange.run(part, self.lease, wanted._replace(n=n), wake=wake)
            for part, n in zip(parts, jobs_of_calls(wanted.n, len(parts), results), strict=True)
        ]
        if any(each.unhandled or each.delay is not None for each in results):
            self.next_look.yield_to_others()
        self.next_look.heard(answers[-1].wait_ms, began, answers[-1].passed)
        accepted = [each for answer in reversed(answers) for each in answer.accepted]
        return accepted, answers[-1].taken

    def renew(
        self,
        notes: Mapping[Delivery, Note | None],
        *,
        lease: timedelta,
        about: About | None = None,
        begun: BegunMark | None = None,
    ) -> list[Renewed]:
        """Keep deliveries."""
        report, mark = about_bytes(about), mark_bytes(begun)
        found: list[Renewed] = []
        for batch in list(_batches(list(notes.items()))) or [[]]:
            args: list[Any] = [self._worker, lease // wire.MILLISECOND, report, mark]
            for delivery, note in batch:
                args += (delivery.job.id, delivery.raw, note_bytes(note), wire.progress_bytes(note))
            answer = self._client.run(script("bullmq", "renew"), [self._keys.meta], args)
            found += [RENEWED[each] for each in answer.decode()]
        return found

    def leave(self) -> None:
        """End."""
        self._client.run(script("bullmq", "leave"), [self._keys.meta], [self._worker])

    def held(self) -> list[Delivery]:
        """List what this worker holds."""
        held = self._exchange.held()
        self._numbers.skip(held)
        return held

    def recover(self, decide: Callable[[Delivery], Result], *, foreign: bool = True) -> int:
        """Reclaim jobs that were active without a lock at two checks, which are as far apart as the
        rule of the reaper says, by default as in BullMQ.

        With `foreign` this is the check for stalled jobs that each worker of BullMQ makes. Without
        it, only jobs of ledgers are reclaimed, and only while no worker checks.

        A lease that a worker of this library had not begun is redelivered without a charge, but
        only once for each job. The script reads the mark together with the job. If the worker lives
        and renews or ends the lease afterwards, `finish` refuses this decision, as it refuses all
        but the first of several processes.
        """
        keys, moved = [self._keys.meta], 0
        if foreign:
            args = [self._compat, self._stalled_ms, MOST_STALLED, MOST_TAKEN_BACK]
            moved, told, marked = self._client.run(script("bullmq", "stalled"), keys, args)
        else:
            args = [self._stalled_ms, MOST_TAKEN_BACK]
            told, marked = self._client.run(script("bullmq", "abandoned"), keys, args)
        marks = dict(zip(marked[::2], marked[1::2], strict=True))
        found, written = self._exchange.deliveries(told)
        for each in found:
            mark = mark_of(marks.get(each.job.id.encode()))
            each.begun = mark is None or mark.includes(each.sequence)
            redelivered = not each.begun and not each.redelivered
            result = Result(each, None) if redelivered else decide(each)
            written += written_of(result, redelivered=redelivered)
        return int(moved) + (
            sum(self._exchange.run(written, self.lease, dead=True).accepted) if written else 0
        )

    def outcomes(self, n: int, *, timeout: float) -> list[Outcomes]:
        """Read ends."""
        return self._settling.read(n, timeout)

    def acknowledge(self, settled: Sequence[Outcomes]) -> None:
        """Forget ends."""
        self._settling.acknowledge(settled)

    def hand_over(self, read: Sequence[Outcomes]) -> None:
        """Let others read ends at once."""
        self._settling.hand_over(read)

    def known(self, ids: Sequence[str]) -> list[Known | None]:
        """Say what is known."""
        found: list[Known | None] = []
        for batch in _batches(ids):
            answer = self._client.run(script("bullmq", "known"), [self._keys.meta], batch)
            found += [_known(*each) for each in answer]
        return found

    def cancel(self, ids: Sequence[str], *, force: bool = False) -> list[Cancelling]:
        """Take jobs out, or ask for their end. A worker of others cannot be asked: its job is
        refused, or taken out by force.
        """
        if force:
            # A job that its worker removed at its end has its result in the events alone.
            self._settling.collect_events()
        return [
            each
            for batch in _batches(ids)
            for each in self._cancel("force" if force else "", batch)
        ]

    def withdraw(self, job: QueuedJob) -> Cancelling:
        """Remove a waiting job that its ledger will push again."""
        self._settling.collect_events()  # a job that its worker removed has its result there alone
        return self._cancel(withdrawal(job), [job.id])[0]

    def _cancel(self, how: str, ids: Sequence[str]) -> list[Cancelling]:
        args = [self._compat, how, self._installation, *ids]
        answer = self._client.run(script("bullmq", "cancel"), [self._keys.meta], args)
        return [CANCELLING[each] for each in answer.decode()]

    def epoch(self) -> str | None:
        """Read the mark."""
        found = self._client.call("GET", self._keys.ring(self._installation, "epoch"))
        return None if found is None else found.decode()

    def begin(self, epoch: str) -> None:
        """Set the mark."""
        self._client.run(
            script("bullmq", "begin"), [self._keys.ring(self._installation, "epoch")], [epoch]
        )

    def depths(self) -> Depths:
        """Count."""
        counts = self._client.run(script("bullmq", "depths"), [self._keys.meta], [])
        waiting = dict(zip(Priority, counts[:5], strict=True))
        return Depths(
            waiting, retrying=counts[5], running=counts[6], unsettled=counts[7], dead=counts[8]
        )

    def waits(self) -> Waits:
        """Say what waits."""
        waiting, *heads = self._client.run(script("bullmq", "waits"), [self._keys.meta], [])
        return Waits(waiting, tuple(heads))


def _known(where: bytes, ended: int, began: bytes, note: bytes) -> Known | None:
    if where == b"u":
        return None
    if where == b"w":
        return Known(State.SCHEDULED, ended)
    said = Note(*orjson.loads(note)) if note else Note()
    if where == b"r":
        return Known(State.RUNNING, ended + 1, wire.instant_of(int(began or 0)), said)
    return Known(STATES[where], ended, None, said if where == b"b" else Note())


def _batches(items: Sequence[Any], size: int = LARGEST_BATCH) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
