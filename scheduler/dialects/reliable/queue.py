"""A queue of the reliable dialect. Every call is one script, so that nothing is ever between two
places.

Why no answer is needed to be safe: a script that was not answered ran whole or not at all. Jobs
that it took are in this worker's list (`held` finds them), an end that it took is in the stream,
and saying it again is refused.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from scheduler.dialects.client import LONGEST_BLOCK, Client, script
from scheduler.dialects.crew.retry_defaults import RetryDefaults
from scheduler.dialects.crew.said import about_bytes
from scheduler.dialects.ends import known_of
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
from scheduler.dialects.leasing import SequenceNumbers, jobs_of_calls, mark_bytes
from scheduler.dialects.looks import NextLook
from scheduler.dialects.queue_options import DEFAULT_OPTIONS, QueueOptions
from scheduler.dialects.reliable import wire
from scheduler.dialects.reliable.exchange import (
    LARGEST_BATCH,
    MOST_BYTES,
    Call,
    Exchange,
    Written,
    buried,
    calls,
)
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.reaper import Reaper
from scheduler.dialects.settling.fence import Fence, log_missing_results, pushed, withdrawal
from scheduler.dialects.settling.reading import Settling
from scheduler.errors import ConfigError, QueueUnavailable, WireError
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority

MOST_HELD = 100_000
PUSHED_AT_ONCE = 250
RENEWED = {"k": Renewed.KEPT, "l": Renewed.LOST, "c": Renewed.CANCEL}
CANCELLING = {
    "d": Cancelling.REMOVED,
    "r": Cancelling.RUNNING,
    "f": Cancelling.FINISHED,
    "u": Cancelling.UNKNOWN,
}


class ReliableQueue:
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
        keys: Keys | None = None,
        options: QueueOptions = DEFAULT_OPTIONS,
    ) -> None:
        if ":" in worker:
            raise ConfigError(
                f"worker must not contain ':', which ends a name in keys, but is {worker!r}"
            )
        self.name = name
        self.lease = lease
        self.next_look = NextLook()
        self._numbers = SequenceNumbers()
        self._fence = Fence(client)
        self._client = client
        self._keys = keys or Keys.of(name)
        self.retry_defaults = RetryDefaults(client, self._keys.retry_default(), worker)
        self._installation = installation
        self._worker = worker
        self._marker, self._nothing = self._keys.named("marker", "nothing")
        self._push_keys = [
            *self._keys.levels,
            *self._keys.named("jobs", "attempts", "between", "finished", "marker"),
            self._keys.epoch(installation),
            *self._keys.named("settled", "settled:before"),
            self._keys.outcomes(installation),
        ]
        self._settling = Settling(
            client,
            [
                self._keys.outcomes(installation),
                *self._keys.named("finished", "settled", "settled:before"),
            ],
            silence=options.settler_silence,
            keep=self._keep,
        )
        self._exchange = Exchange(client, name, self._keys, options)
        self._reaper = Reaper(client, self._keys, self._exchange, options.reaper)
        with contextlib.suppress(
            QueueUnavailable
        ):  # a cluster that comes back later refuses such keys itself
            if not self._keys.tagged and client.clustered:
                raise ConfigError(
                    f"queue {name!r}: in a cluster its keys need one hash tag, as in "
                    f"jobqueue:{{{name}}}:low"
                )

    def push(
        self, jobs: Sequence[QueuedJob], *, epoch: str, began: float | None = None
    ) -> list[Pushed]:
        """Put jobs in. Logs jobs whose result is missing, which are enqueued again."""
        found: list[Pushed] = []
        missing = 0
        with self._fence.until(began) as until:
            batches = self._pushing(jobs, [epoch, until])
            for answer in self._client.run_each(
                script("reliable", "push"), self._push_keys, batches
            ):
                found += pushed(answer)
                missing += answer.count(b"r")
        log_missing_results(self.name, missing)
        return found

    def _pushing(self, jobs: Sequence[QueuedJob], head: Sequence[Any]) -> Iterator[list[Any]]:
        """Write jobs, so many at a time that Redis has something to do while the next are
        written.
        """
        args, size = [*head], 0
        for job in jobs:
            record = wire.record_of(job)
            args += (job.id, job.priority + 1, wire.entry_of(job, self._keys.words), record)
            size += len(record)
            if size > MOST_BYTES or len(args) > 4 * PUSHED_AT_ONCE:
                yield args
                args, size = [*head], 0
        if len(args) > len(head):
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
            answer = self._exchange.run(self._worker, Call(), self.lease, fetch)
            self.next_look.heard(answer.wait_ms, began, answer.passed)
            if answer.taken or end <= time.monotonic():
                return answer.taken
            self._wait(end)

    def fetch_next(
        self,
        n: int,
        *,
        timeout: float,
        handled: Handled = EVERY_TYPE,
        first: int | None = None,
        begun: BegunMark | None = None,
    ) -> list[Delivery] | None:
        """Wait for jobs and lease them in one round trip; None: that is not possible here."""
        began = time.monotonic()
        fetch = self._numbers.fetch(n, handled, first, begun)
        with self.next_look.waiting(began + timeout, LONGEST_BLOCK) as seconds:
            command = self._blocking(seconds)
            answer = self._exchange.wait_and_take(command, self._worker, self.lease, fetch)
        if answer is None:
            return None
        self.next_look.heard(answer.wait_ms, began, answer.passed)
        return answer.taken

    def unblock(self) -> None:
        """Let `fetch_next` end."""
        self._client.unblock(self._client)

    def _wait(self, end: float) -> None:
        """Wait until somebody says that there is something, or it is time to look."""
        with self.next_look.waiting(end, LONGEST_BLOCK) as seconds:
            self._client.wait(*self._blocking(seconds))

    def _blocking(self, seconds: float) -> tuple[str, str, str]:
        signal = self._nothing if self.next_look.passed_over else self._marker
        return "BLPOP", signal, f"{seconds:.3f}"

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
        wanted, began = self._numbers.fetch(fetch, handled, first, begun), time.monotonic()
        parts = [*calls(results)][::-1]  # put-backs keep their order: the last part goes first
        answers = [
            self._exchange.run(self._worker, part, self.lease, wanted._replace(n=n))
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
        named = self._keys.named("workers", "attempts", "cancels", "notes")
        [marks] = self._keys.named("begun")
        keys = [self._keys.heartbeat(self._worker), *named, self._keys.said(self._worker), marks]
        report, mark = about_bytes(about), mark_bytes(begun)
        found: list[Renewed] = []
        for batch in list(_batches(list(notes.items()))) or [[]]:
            args: list[Any] = [self._worker, lease // wire.MILLISECOND, report, mark]
            for delivery, note in batch:
                token = f"{delivery.job.feed}:{delivery.attempt}:{self._worker}"
                began = wire.milliseconds_of(delivery.started_at)
                lease_token = f"{token}:{began}:{delivery.sequence}"
                args += (delivery.job.id, lease_token, wire.note_bytes(note))
            answer = self._client.run(script("reliable", "renew"), keys, args)
            found += [RENEWED[each] for each in answer.decode()]
        return found

    def leave(self) -> None:
        """End."""
        keys, worker = self._keys, self._worker
        named = [
            keys.processing(worker),
            keys.heartbeat(worker),
            *keys.named("workers"),
            keys.said(worker),
            keys.retry_default(worker),
            *keys.named("begun"),
        ]
        self._client.run(script("reliable", "leave"), named, [worker])

    def held(self) -> list[Delivery]:
        """List what this worker holds."""
        found: dict[str, Delivery] = {}
        for page in self._exchange.held(self._worker, MOST_HELD):
            unreadable: list[Written] = []
            for each in page:
                if each.delivery is None:
                    unreadable.append(buried(each.entry, "it cannot be read"))
                elif each.owner == self._worker:
                    found[each.delivery.job.id] = each.delivery
            if unreadable:
                self._exchange.run(self._worker, Call(unreadable), self.lease)
        held = list(found.values())
        self._numbers.skip(held)
        return held

    def recover(self, decide: Callable[[Delivery], Result], *, foreign: bool = True) -> int:
        """Reclaim the leases of dead workers."""
        return self._reaper.recover(decide, foreign=foreign)

    def outcomes(self, n: int, *, timeout: float) -> list[Outcomes]:
        """Read ends."""
        return self._settling.read(n, timeout)

    def acknowledge(self, settled: Sequence[Outcomes]) -> None:
        """Forget ends."""
        self._settling.acknowledge(settled)

    def hand_over(self, read: Sequence[Outcomes]) -> None:
        """Let others read ends at once."""
        self._settling.hand_over(read)

    def _keep(self, text: bytes, error: WireError) -> None:
        """Make a dead letter of ends that nobody can read."""
        self._client.call("LPUSH", self._keys.dead, text)
        [reasons] = self._keys.named("reasons")
        self._client.call(
            "HSET", reasons, hashlib.sha1(text, usedforsecurity=False).hexdigest(), str(error)
        )

    def known(self, ids: Sequence[str]) -> list[Known | None]:
        """Say what is known."""
        keys = self._keys.named("jobs", "attempts", "between", "finished", "notes")
        keys.append(self._keys.outcomes(self._installation))
        found: list[Known | None] = []
        for batch in _batches(ids):
            answer = self._client.run(script("reliable", "known"), keys, batch)
            found += [
                known_of(*answer[i : i + 3], began=wire.instant_of)
                for i in range(0, len(answer), 3)
            ]
        return found

    def cancel(self, ids: Sequence[str], *, force: bool = False) -> list[Cancelling]:
        """Take jobs out, or ask for their end."""
        return [
            each
            for batch in _batches(ids)
            for each in self._cancel("force" if force else "", batch)
        ]

    def withdraw(self, job: QueuedJob) -> Cancelling:
        """Remove a waiting job that its ledger will push again."""
        entry = wire.entry_of(job, self._keys.words)
        args = (job.id, job.priority + 1, entry)
        return self._cancel(withdrawal(job), args, self._keys.levels[job.priority])[0]

    def _cancel(self, how: str, args: Sequence[Any], level: str = "") -> list[Cancelling]:
        keys = self._keys.named(
            *("jobs", "attempts", "between", "finished", "cancels", "notes", "unhandled"),
            "returned",
        )
        keys.append(self._keys.outcomes(self._installation))
        keys += [*self._keys.named("settled", "settled:before", "retries")]
        keys.append(level or self._keys.levels[0])
        answer = self._client.run(script("reliable", "cancel"), keys, [how, *args])
        return [CANCELLING[each] for each in answer.decode()]

    def epoch(self) -> str | None:
        """Read the mark."""
        found = self._client.call("GET", self._keys.epoch(self._installation))
        return None if found is None else found.decode()

    def begin(self, epoch: str) -> None:
        """Set the mark."""
        self._client.run(
            script("reliable", "begin"), [self._keys.epoch(self._installation)], [epoch]
        )

    def depths(self) -> Depths:
        """Count."""
        keys = [
            *self._keys.levels,
            *self._keys.named("retries", "attempts", "finished"),
            self._keys.dead,
        ]
        counts = self._client.run(script("reliable", "depths"), keys, [])
        waiting = dict(zip(Priority, counts[:5], strict=True))
        return Depths(
            waiting, retrying=counts[5], running=counts[6], unsettled=counts[7], dead=counts[8]
        )

    def waits(self) -> Waits:
        """Say what waits."""
        waiting, *heads = self._client.run(script("reliable", "waits"), self._keys.levels, [])
        return Waits(waiting, tuple(heads))


def _batches(items: Sequence[Any], size: int = LARGEST_BATCH) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
