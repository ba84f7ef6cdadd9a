"""What happens, as values: metrics, logs, `scheduler up` and tests listen to the same events."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from scheduler.model.attempts import AttemptEnd
from scheduler.model.breaker import BreakerState
from scheduler.model.outcomes import Outcome
from scheduler.model.states import State

logger = logging.getLogger("scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class FireStarted:
    """A body is about to be called."""

    tenant: str
    job_id: str
    fire_at: datetime
    attempt: int
    lateness: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class FireEnded:
    """A run's finish was accepted: the ledger has its row."""

    tenant: str
    job_id: str
    fire_at: datetime
    attempt: int
    outcome: Outcome
    duration: timedelta
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FireSkipped:
    """A fire was advanced without a run."""

    tenant: str
    job_id: str
    fire_at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FireQueued:
    """A fire became a submitted job."""

    tenant: str
    job_id: str
    fire_at: datetime
    queued_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost:
    """A run's lease went to somebody else, or could not be renewed in time; its result is
    refused.
    """

    tenant: str
    job_id: str
    fire_at: datetime
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FireCrashed:
    """A fire was recorded as crashed: it may not start again."""

    tenant: str
    job_id: str
    fire_at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The mirror was read anew; `skew` is how far this machine's wall clock is from the
    database's.
    """

    jobs: int
    skew: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStranded:
    """A job has fires to come, and no live instance has its function."""

    tenant: str
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRolledBack:
    """This instance has replaced the definition of a higher version, of which no instance is alive.

    `app` and the versions are None where an instance has none.
    """

    tenant: str
    job_id: str
    app: str | None
    version: int | None
    previous_version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsFed:
    """Submitted jobs, as (tenant, id), were pushed into a queue of Redis, in so many seconds."""

    queue: str
    count: int
    seconds: float
    jobs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettled:
    """Ends of attempts are in the ledger: (tenant, id, state) each; `repeated` of them had been
    before, or will be.

    `refused` of them never will be: their jobs had ended, or been fed again.
    """

    queue: str
    jobs: tuple[tuple[str, str, State], ...]
    repeated: int
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisLost:
    """A queue's Redis had lost its memory; so many jobs are fed again."""

    queue: str
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsFedAgain:
    """Jobs that Redis did not know any more wait to be fed again."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsExpired:
    """So many jobs are dead letters: their lifetime has passed."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsProduced:
    """A producer put so many files into a queue."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsTaken:
    """A worker took so many jobs out of a queue."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsEnded:
    """Attempts of a worker have ended, and Redis has heard it; `refused` more were not its own any
    more.
    """

    queue: str
    ends: tuple[AttemptEnd, ...]
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsRecovered:
    """So many jobs were taken back from workers that were silent for too long; `buried`: those with
    no attempt left.
    """

    queue: str
    count: int
    buried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerChanged:
    """The circuit breaker of a queue, in this process, is in another state."""

    queue: str
    state: BreakerState


QueueEvent = (
    JobsFed
    | JobsFedAgain
    | JobsExpired
    | JobsProduced
    | JobsTaken
    | JobsEnded
    | JobsRecovered
    | BreakerChanged
)
Event = (
    FireStarted
    | FireEnded
    | FireSkipped
    | FireQueued
    | LeaseLost
    | FireCrashed
    | JobStranded
    | JobRolledBack
    | Synced
    | JobsSettled
    | RedisLost
    | QueueEvent
)
Listener = Callable[[Event], None]


class Events:
    """Hands each event to each listener, in the thread where it happens; a failing listener harms
    nobody.
    """

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Whether anybody listens: the hot paths build no event otherwise."""
        return bool(self._listeners)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event until the returned function is called."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(known for known in self._listeners if known is not listener)

        return unsubscribe

    def copy(self) -> "Events":
        """Make one with the same listeners and a lock of its own, for the child of a fork."""
        made = Events()
        made._listeners = self._listeners
        return made

    def emit(self, event: Event) -> None:
        """Hand an event on."""
        for listener in self._listeners:
            try:
                listener(event)
            except BaseException:  # whatever it raises, the thread is ours
                logger.exception("a listener failed on %s", type(event).__name__)
