"""The seam between the ring and a queue in Redis: whatever is carried, is carried through these few
calls.

Everything is a batch, and one call is one round trip. A dialect never decides: what becomes of a
job whose attempt ended, or whose worker is gone, is told to it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from scheduler.dialects.crew.retry_defaults import RetryDefaults
from scheduler.dialects.looks import NextLook
from scheduler.model.attempts import AttemptEnd, QueuedJob
from scheduler.model.breaker import BreakerState
from scheduler.model.labels import Priority
from scheduler.model.queues import QueueEntry, QueueKey
from scheduler.model.retries import RetryPolicy
from scheduler.model.states import State
from scheduler.model.workers import WorkerInfo


class Pushed(Enum):
    """What a push found: a job not seen before, one that is on its way, or one whose end is not
    settled yet.
    """

    NEW = "new"
    KNOWN = "known"
    FINISHED = "finished"


class Renewed(Enum):
    """What a renewal found: it is ours, it is not any more, or somebody wants it to end."""

    KEPT = "kept"
    LOST = "lost"
    CANCEL = "cancel"


class Cancelling(Enum):
    """What a cancel found. Only what was removed, or is unknown, may be ended by the one who
    asked.

    FINISHED: it has a result that is not settled, which the settler records. REFUSED: a worker of
    BullMQ or Conveyor has it, which cannot be asked, or it has a newer format.
    """

    REMOVED = "removed"
    RUNNING = "running"
    FINISHED = "finished"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class Handled(NamedTuple):
    """Which jobs a fetch can take.

    types: the types that the worker has handlers for; None stands for every type. free: for each
    type with a concurrency limit of its own, how many more of its jobs the worker can run now. The
    script leaves the other jobs of such a type in the queue.
    """

    types: Collection[str] | None = None
    free: Mapping[str, int] = MappingProxyType({})


EVERY_TYPE = Handled()


class BegunMark(NamedTuple):
    """Which leases of a worker have begun: those up to the sequence number `last`, except ranges.

    Redis keeps the mark with the highest ordinal, because a call can overtake another. unbegun:
    the first and the last sequence number of each exception, all below `last`.
    """

    ordinal: int
    last: int
    unbegun: tuple[tuple[int, int], ...] = ()

    def includes(self, sequence: int) -> bool:
        """Return whether a lease has begun."""
        return sequence <= self.last and not any(a <= sequence <= b for a, b in self.unbegun)


@dataclass(slots=True, eq=False)
class Delivery:
    """A leased job.

    attempt: the number of this lease, from 1; it never repeats within one delivery epoch of the
    job. sequence: the number that its worker gave to the lease, see `Queue.fetch`; for a worker of
    another project, see `attempt_id`. raw: what the dialect needs to end it. uncharged: how many of
    the leases before this one do not count towards `max_attempts`, because the job was returned.
    begun: False for a lease that is recovered and whose worker had not begun the attempt. worker:
    the name of the worker that has the lease, or had it, if the lease is recovered. orphaned: an
    earlier lease of the job was recovered from a dead worker.
    """

    job: QueuedJob
    attempt: int
    started_at: datetime
    raw: bytes
    sequence: int = 0
    uncharged: int = 0
    begun: bool = True
    worker: str = ""
    orphaned: bool = False

    @property
    def charged(self) -> int:
        """The number of this attempt among those that count towards `max_attempts`."""
        return self.attempt - self.uncharged

    def is_last_chance(self, retry: RetryPolicy) -> bool:
        """Return whether the job lost a worker before, and ends if it loses this one too."""
        if not self.orphaned:
            return False
        return self.charged >= retry.max_attempts or not retry.retry_system


class Note(NamedTuple):
    """What a handler says meanwhile: how far it is, and where it would go on."""

    progress: float | None = None
    message: str | None = None
    checkpoint: Any = None


@dataclass(slots=True)
class Result:
    """The end of a delivery, with a note that was not told yet. Without an `end` it is put back as
    if not taken.

    begun: False if the job is put back before its handler was called; the number of its attempt is
    then used again.
    unhandled: a put-back because the worker has no handler for the type. The job is due again after
    1 s. Each such return doubles the delay, up to 60 s.
    delay: of a put-back before the handler was called: the job is due again after so long. Its
    attempt is not charged, and the number of the attempt is used again.
    """

    delivery: Delivery
    end: AttemptEnd | None
    note: Note | None = None
    begun: bool = True
    unhandled: bool = False
    delay: timedelta | None = None


class Known(NamedTuple):
    """What Redis knows of a job: RUNNING, RETRYING, SCHEDULED, or None when its end is not settled
    yet.

    parked: the type of a waiting job that was set aside, because a worker could not take its type.
    scheduled_at: when it was pushed, or its backoff was over; None: as its row says.
    """

    state: State | None
    attempt: int = 0
    started_at: datetime | None = None
    note: Note = Note()
    parked: str | None = None
    scheduled_at: datetime | None = None


class Outcomes(NamedTuple):
    """Ends of attempts that came back together; `token` acknowledges them. `size`: their bytes,
    about.
    """

    token: bytes
    ends: Sequence[AttemptEnd]
    size: int = 0


class Depths(NamedTuple):
    """How much there is in a queue; `unsettled`: ended, and not acknowledged; `stopped`: jobs of
    paused tenants, which are not among the waiting.
    """

    waiting: Mapping[Priority, int]
    retrying: int
    running: int
    unsettled: int
    dead: int
    stopped: int = 0


class Waits(NamedTuple):
    """How many wait in a queue, and what is first of each priority: the same while nobody takes it,
    or nothing.
    """

    waiting: int
    heads: tuple[bytes, ...]


class Paused(NamedTuple):
    """Whether a queue is paused: by this ledger, and by anybody."""

    ours: bool
    at_all: bool


class StoppedTenants(NamedTuple):
    """The tenants whose jobs a queue sets aside.

    paused: by this ledger. released: no ledger pauses them any more, but some of their jobs are
    still set aside, because the process that resumed them died.
    """

    paused: set[str]
    released: set[str]


class About(NamedTuple):
    """What a worker says of itself at one queue: where it is, for how long, what it holds.

    `jobs`: id, tenant and type of some; `breaker_left`: in how many seconds an open breaker lets a
    job be tried. `overdue`: ids of jobs whose handlers run past the end of their attempts, of some.
    `types`: the types that it handles; None stands for every type, and for a worker that does not
    report them.
    """

    host: str
    pid: int
    concurrency: int
    age: float
    holds: int
    jobs: Sequence[tuple[str, str, str]]
    breaker: BreakerState | None = None
    breaker_left: float | None = None
    overdue: Sequence[str] = ()
    types: Sequence[str] | None = None


class Crew(NamedTuple):
    """Who works at a queue at a time of Redis's clock: how many (None: it does not tell), and some
    of them.
    """

    alive: int | None
    at: datetime
    workers: Sequence[WorkerInfo]


class Queue(Protocol):
    """One queue in Redis. The worker's calls need one that was opened for a worker.

    next_look: when to fetch again although there is no signal, from the answers so far.
    """

    name: str
    lease: timedelta
    retry_defaults: RetryDefaults
    next_look: NextLook

    def push(
        self, jobs: Sequence[QueuedJob], *, epoch: str, began: float | None = None
    ) -> list[Pushed]:
        """Put jobs in, each once, however often it is said; raises `EpochLost` if Redis does not
        have that epoch.

        began: since when they are ours to push, on the monotonic clock. Whoever is suspended, or
        cut off, with jobs that it was about to push: others may have pushed them, and have seen
        their ends. Those are known for longer than a push may take, which then is
        `QueueUnavailable`.
        """

    def fetch(
        self,
        n: int,
        *,
        timeout: float,
        handled: Handled = EVERY_TYPE,
        first: int | None = None,
        begun: BegunMark | None = None,
    ) -> list[Delivery]:
        """Lease up to n jobs, those of higher priority first; wait up to `timeout` seconds for one.

        With n = 0 it only waits until there may be one: a worker that waits so reserves no slot.

        first: the sequence number of the first lease; the others count on from there. A worker
        never uses a number twice, so the number tells two leases of one job apart, and tells which
        call took a job if the answer was lost. The default continues after the last call of this
        object.

        begun: which leases of this worker have begun. If the worker dies, the others are
        redelivered without a charge, once for each job. None reports nothing: a worker that never
        reported counts as having begun every lease.
        """

    def finish(
        self,
        results: Sequence[Result],
        *,
        fetch: int = 0,
        handled: Handled = EVERY_TYPE,
        first: int | None = None,
        begun: BegunMark | None = None,
    ) -> tuple[list[bool], list[Delivery]]:
        """End deliveries whose lease is still held, and lease up to `fetch` more jobs, in one round
        trip. A job that this call puts back is not leased by it.
        """

    def renew(
        self,
        notes: Mapping[Delivery, Note | None],
        *,
        lease: timedelta,
        about: About | None = None,
        begun: BegunMark | None = None,
    ) -> list[Renewed]:
        """Keep deliveries for another lease, say what their handlers said, and for as long what we
        are like.
        """

    def leave(self) -> None:
        """Say that this worker ends: who holds nothing is not there any more."""

    def held(self) -> list[Delivery]:
        """List what this worker holds: also what an answer that never came should have told it."""

    def recover(self, decide: Callable[[Delivery], Result], *, foreign: bool = True) -> int:
        """Reclaim the leases of dead workers, with the results that `decide` returns; return how
        many.

        foreign: also of workers of other projects, and also foreign jobs of BullMQ. Instances leave
        these to workers.
        """

    def outcomes(self, n: int, *, timeout: float) -> list[Outcomes]:
        """Read ends of attempts, about n; wait up to `timeout` seconds for one. The unacknowledged
        come again.
        """

    def acknowledge(self, settled: Sequence[Outcomes]) -> None:
        """Forget ends that are in the ledger."""

    def hand_over(self, read: Sequence[Outcomes]) -> None:
        """Let others read ends at once which we have read and will not settle."""

    def known(self, ids: Sequence[str]) -> list[Known | None]:
        """Say what is known of jobs; None: nothing."""

    def cancel(self, ids: Sequence[str], *, force: bool = False) -> list[Cancelling]:
        """Take jobs out, or ask their workers to end them.

        force: take out leased jobs too, in the same step. Their workers lose the lease: renewals
        answer LOST, and results are refused.
        """

    def withdraw(self, job: QueuedJob) -> Cancelling:
        """Remove a waiting job that its ledger will push again, with another feed.

        job: as it was pushed, with the attempts that the ledger has. The job is left alone, and
        RUNNING is returned, if a worker leases it or Redis knows of more attempts. If it is REMOVED
        or UNKNOWN, a push of that feed which comes late is answered FINISHED for a while.
        """

    def epoch(self) -> str | None:
        """Read the mark that a Redis which lost its memory does not have."""

    def begin(self, epoch: str) -> None:
        """Set the mark, a number, unless there is a greater one."""

    def depths(self) -> Depths:
        """Count what is there."""

    def waits(self) -> Waits:
        """Say what waits; a worker may ask too."""


@runtime_checkable
class Prompt(Protocol):
    """A queue whose first job after a wait needs no round trip of its own. Also a `Queue`."""

    def fetch_next(
        self,
        n: int,
        *,
        timeout: float,
        handled: Handled = EVERY_TYPE,
        first: int | None = None,
        begun: BegunMark | None = None,
    ) -> list[Delivery] | None:
        """Wait for jobs and lease them in one round trip; None, at once: not possible here."""

    def unblock(self) -> None:
        """Let `fetch_next` end: what it took is answered."""


@runtime_checkable
class ParksTypes(Protocol):
    """A queue that parks jobs whose type a worker cannot take. Also a `Queue` or an `Admin`."""

    def unhandled_types(self) -> Mapping[str, int]:
        """Return the types of parked jobs that no live worker handles, with their numbers of jobs,
        the highest first.

        A worker that does not report its types counts as handling all of them.
        """


def unhandled_types(queue: object) -> Mapping[str, int]:
    """Return the parked types of a queue that no live worker handles; none in dialects that park
    no jobs, whose foreign workers do not report what they handle.
    """
    return queue.unhandled_types() if isinstance(queue, ParksTypes) else {}


@runtime_checkable
class ForgetsTenants(Protocol):
    """A queue that has more of a tenant than jobs that can be cancelled. Also an `Admin`."""

    def forget_tenant(self, tenant: str) -> None:
        """Delete what the queue has of a tenant whose jobs were cancelled."""


@runtime_checkable
class StopsTenants(Protocol):
    """A queue whose workers set the jobs of paused tenants aside. Also an `Admin`.

    In queues of other dialects a paused tenant is not fed, and what Redis has of it runs.
    """

    def pause_tenant(self, tenant: str) -> None:
        """Pause a tenant for this ledger. No call that begins later leases a job of it."""

    def resume_tenant(self, tenant: str) -> None:
        """Resume a tenant for this ledger, and enqueue the jobs that were set aside."""

    def stopped_tenants(self) -> StoppedTenants:
        """Return the tenants that are paused, or have jobs that are still set aside."""


class Admin(Protocol):
    """What a person does with one queue in Redis. Its dead letters are those that no ledger has."""

    name: str

    def peek(self, n: int) -> list[QueueEntry]:
        """Read the next jobs, in the order in which they are taken, and leave them where they
        are.
        """

    def dead(self, n: int, *, skip: int = 0) -> list[QueueEntry]:
        """Read dead letters, newest first."""

    def dead_count(self) -> int:
        """Count dead letters."""

    def requeue(self, letters: Sequence[QueueEntry]) -> list[bool]:
        """Put dead letters back where they came from, each if it is still there."""

    def forget(self, ids: Collection[str]) -> None:
        """Drop what jobs of a ledger left among the dead letters."""

    def purge(self, n: int) -> int:
        """Drop up to n dead letters, also what a ledger's jobs left there; return how many."""

    def depths(self) -> Depths:
        """Count what is there."""

    def workers(self, n: int) -> Crew:
        """Say who lives to work at it, at most n of them."""

    def pause(self) -> None:
        """Let workers take nothing, for this ledger."""

    def resume(self) -> None:
        """Let them take jobs again, as far as this ledger is asked, and wake them."""

    def paused(self) -> Paused:
        """Say whether it is paused."""

    def keys(self) -> list[QueueKey]:
        """List the keys, of those that each job has one line for all."""

    def names(self) -> Iterator[list[str]]:
        """Go through the names of all keys."""

    def erase(self, names: Sequence[str]) -> int:
        """Remove keys; return how many there were."""
