"""A queue of the Conveyor dialect. Every call is one script, so that nothing is ever between two
places.

Why no answer is needed to be safe: a script that was not answered ran whole or not at all. Jobs
that it took are in this worker's set (`held` finds them), an end that it took is in the stream, and
saying it again is refused.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from scheduler.dialects.client import Client, script
from scheduler.dialects.conveyor import wire
from scheduler.dialects.conveyor.exchange import (
    LARGEST_BATCH,
    MOST_BYTES,
    Exchange,
    Held,
    buried,
    calls,
    written_of,
)
from scheduler.dialects.conveyor.keys import Keys
from scheduler.dialects.crew.retry_defaults import RetryDefaults
from scheduler.dialects.crew.said import about_bytes
from scheduler.dialects.ends import known_of, note_bytes
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
from scheduler.dialects.settling.reading import Settling
from scheduler.errors import ConfigError, QueueError, QueueUnavailable, WireError
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority

MOST_UNREADABLE = 1000
LONGEST_LEASE = timedelta(seconds=30)  # after so long a worker of Conveyor takes back what we hold
STUCK_FOR = timedelta(seconds=30)  # and so long we leave it to them to close what they began to
MOST_HELD = 100_000
MOST_HELD_BYTES = 1 << 40
MOST_WORKERS = 100
TAKEN_BACK_AT_ONCE = 500
SETTLED = ("finished", "settled", "settled:before")
LONGEST_WAIT = 1.0  # what others schedule, and our other levels, wake nobody
PUSHED_AT_ONCE = 250
RENEWED = {"k": Renewed.KEPT, "l": Renewed.LOST, "c": Renewed.CANCEL}
CANCELLING = {
    "d": Cancelling.REMOVED,
    "r": Cancelling.RUNNING,
    "f": Cancelling.FINISHED,
    "u": Cancelling.UNKNOWN,
    "x": Cancelling.REFUSED,
}


class ConveyorQueue:
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
        lease: timedelta = LONGEST_LEASE,
        keys: str = "seed",
        namespace: str | None = None,
        options: QueueOptions = DEFAULT_OPTIONS,
    ) -> None:
        if lease > LONGEST_LEASE:
            raise ConfigError(
                f"lease: must be at most 30s in Conveyor, whose workers wait no longer, not {lease}"
            )
        self.name = name
        self.lease = lease
        self._client = client
        self._keys = Keys(keys, namespace)
        try:
            self._list = self._keys.queue(name)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._installation = installation
        # in Conveyor a worker has one set of what it holds, of whatever queue
        self._worker = f"{worker}:{name}"
        self.retry_defaults = RetryDefaults(client, self._keys.ring(name, "retry:"), worker)
        self.next_look = NextLook()
        self._numbers = SequenceNumbers()
        self._full = False
        self._exchange = Exchange(client, name, self._keys, options)
        self._settling = Settling(
            client,
            [
                self._keys.ring(name, key)
                for key in (f"outcomes:{installation}", "finished", "settled", "settled:before")
            ],
            silence=options.settler_silence,
            keep=self._keep,
        )
        self._fence = Fence(client)
        with contextlib.suppress(
            QueueUnavailable
        ):  # a cluster that comes back later refuses such keys itself
            if not self._keys.tagged and client.clustered:
                raise ConfigError(
                    f'queue {name!r}: in a cluster the namespace needs a hash tag, as in "{{conv}}"'
                )

    def push(
        self, jobs: Sequence[QueuedJob], *, epoch: str, began: float | None = None
    ) -> list[Pushed]:
        """Put jobs in. Logs jobs whose result is missing, which are enqueued again."""
        found: list[Pushed] = []
        missing = 0
        with self._fence.until(began) as until:
            pushing = self._pushing(
                jobs, [self._keys.names, self.name, epoch, self._installation, until]
            )
            for answer in self._client.run_each(
                script("conveyor", "push"), [self._keys.scheduled], pushing
            ):
                if answer == b"shared":
                    raise QueueError(
                        f"queue {self.name!r} is worked by a worker of Conveyor itself, which "
                        "tells no ledger how jobs "
                        "end; stop it, or submit to another queue"
                    )
                found += pushed(answer)
                missing += answer.count(b"r")
        log_missing_results(self.name, missing)
        return found

    def _pushing(self, jobs: Sequence[QueuedJob], head: Sequence[Any]) -> Iterator[list[Any]]:
        """Write jobs, so many at a time that Redis has something to do while the next are
        written.
        """
        args: list[Any] = [*head]
        size = count = 0
        for job in jobs:
            raw = wire.raw_of(job)
            args += (job.id, job.feed, job.attempt, int(job.priority), raw)
            size += len(raw)
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
            answer = self._exchange.run(self._worker, [], self.lease, fetch)
            self.next_look.heard(answer.wait_ms, began, answer.passed)
            self._full = answer.full
            if answer.taken or end <= time.monotonic():
                return answer.taken
            self._wait(end)

    def _wait(self, end: float) -> None:
        """Wait until there is a job in the list, or it is time to look; the job stays where it
        is.
        """
        with self.next_look.waiting(end, LONGEST_WAIT) as seconds:
            listens = not (self._full or self.next_look.passed_over)
            what = self._list if listens else self._keys.ring(self.name, "nothing")
            self._client.wait("BLMOVE", what, what, "RIGHT", "RIGHT", f"{seconds:.3f}")

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
        self._full = answers[-1].full
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
                token = f"{delivery.job.feed}:{delivery.attempt}:{self._worker}"
                began = wire.milliseconds_of(delivery.started_at)
                args += (delivery.job.id, f"{token}:{began}:{delivery.sequence}", note_bytes(note))
            found += [RENEWED[each] for each in self._run("renew", *args).decode()]
        return found

    def leave(self) -> None:
        """End."""
        self._run("leave", self._worker)

    def held(self) -> list[Delivery]:
        """List what this worker holds."""
        found: list[Delivery] = []
        unreadable: list[Any] = []
        for each in self._exchange.held(self._worker, MOST_HELD, MOST_HELD_BYTES):
            if each.delivery is None:
                unreadable += buried(each.uuid, each.raw, 0)
            elif each.owner == self._worker:
                found.append(each.delivery)
        if unreadable:
            self._exchange.run(self._worker, unreadable, self.lease)
        self._numbers.skip(found)
        return found

    def recover(self, decide: Callable[[Delivery], Result], *, foreign: bool = True) -> int:
        """Reclaim the leases of dead workers, also of Conveyor's own if `foreign`, and close
        parents that these left half closed.
        """
        moved, whose = 0, "all" if foreign else "ours"
        for name in self._run("silent", MOST_WORKERS, STUCK_FOR // wire.MILLISECOND, whose):
            worker, more = name.decode(errors="replace"), True
            # A worker of others has no mark: it has begun whatever it holds.
            begun = mark_of(self._client.call("HGET", self._keys.ring(self.name, "begun"), name))
            while more:
                page = self._exchange.held(worker, TAKEN_BACK_AT_ONCE, MOST_BYTES)
                written: list[Any] = []
                for each in page:
                    written += self._reclaimed(each, worker, begun, decide)
                answer = self._exchange.run(worker, written, self.lease, dead=True)
                moved += sum(answer.accepted)
                more = any(answer.accepted)
        return moved

    def _reclaimed(
        self,
        held: Held,
        worker: str,
        begun: BegunMark | None,
        decide: Callable[[Delivery], Result],
    ) -> tuple[Any, ...]:
        """Write what becomes of a job of a dead worker. A lease that it had not begun is
        redelivered without a charge, but only once for each job.
        """
        delivery = held.delivery
        if delivery is None:
            return buried(held.uuid, held.raw, 0)
        delivery.worker = worker.removesuffix(f":{self.name}")
        leased = held.owner == worker
        delivery.begun = not leased or begun is None or begun.includes(delivery.sequence)
        redelivered = not delivery.begun and not held.redelivered
        result = Result(delivery, None) if redelivered else decide(delivery)
        return written_of(result, redelivered=redelivered)

    def outcomes(self, n: int, *, timeout: float) -> list[Outcomes]:
        """Read ends."""
        return self._settling.read(n, timeout)

    def acknowledge(self, settled: Sequence[Outcomes]) -> None:
        """Forget ends."""
        self._settling.acknowledge(settled)

    def hand_over(self, read: Sequence[Outcomes]) -> None:
        """Let others read ends at once."""
        self._settling.hand_over(read)

    def _keep(self, text: bytes, _: WireError) -> None:
        """Keep aside ends that nobody can read."""
        unreadable = self._keys.ring(self.name, f"outcomes:{self._installation}:unreadable")
        self._client.call("LPUSH", unreadable, text)
        self._client.call("LTRIM", unreadable, 0, MOST_UNREADABLE - 1)

    def known(self, ids: Sequence[str]) -> list[Known | None]:
        """Say what is known."""
        found: list[Known | None] = []
        for batch in _batches(ids):
            answer = self._run("known", self._installation, *batch)
            found += [
                known_of(*answer[i : i + 3], began=wire.instant_of)
                for i in range(0, len(answer), 3)
            ]
        return found

    def cancel(self, ids: Sequence[str], *, force: bool = False) -> list[Cancelling]:
        """Take jobs out, or ask for their end. A worker of Conveyor's own cannot be asked: its job
        is refused, or taken out by force.
        """
        return [
            each
            for batch in _batches(ids)
            for each in self._cancel("force" if force else "", batch)
        ]

    def withdraw(self, job: QueuedJob) -> Cancelling:
        """Remove a waiting job that its ledger will push again."""
        return self._cancel(withdrawal(job), [job.id])[0]

    def _cancel(self, how: str, ids: Sequence[str]) -> list[Cancelling]:
        answer = self._run("cancel", self._installation, how, *ids)
        return [CANCELLING[each] for each in answer.decode()]

    def epoch(self) -> str | None:
        """Read the mark."""
        found = self._client.call("GET", self._keys.ring(self.name, f"epoch:{self._installation}"))
        return None if found is None else found.decode()

    def begin(self, epoch: str) -> None:
        """Set the mark."""
        mark = self._keys.ring(self.name, f"epoch:{self._installation}")
        self._client.run(script("conveyor", "begin"), [mark], [epoch])

    def depths(self) -> Depths:
        """Count."""
        counts = self._run("depths")
        waiting = dict(zip(Priority, counts[:5], strict=True))
        return Depths(
            waiting, retrying=counts[5], running=counts[6], unsettled=counts[7], dead=counts[8]
        )

    def waits(self) -> Waits:
        """Say what waits."""
        waiting, *heads = self._run("waits")
        return Waits(waiting, tuple(heads))

    def _run(self, name: str, *args: Any) -> Any:
        given = [self._keys.names, self.name, *args]
        return self._client.run(script("conveyor", name), [self._keys.scheduled], given)


def _batches(items: Sequence[Any], size: int = LARGEST_BATCH) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
