"""What one sees of queues: how much is where, jobs as they are in Redis, dead letters, keys, ends
by state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from scheduler.model.breaker import BreakerState
from scheduler.model.labels import Priority
from scheduler.model.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """How much is in a queue. While Redis is away (`error` says why) its numbers are 0, and
    `workers` is None.

    paused: nobody takes jobs, whoever stopped it; paused_at: since when `pause_queue` has. waiting,
    retrying, running, unsettled: in Redis; unsettled are ends that are not in the ledger yet. dead:
    dead letters, of the ledger and of others. workers: those that live, as far as Redis tells.
    breakers: how many of them have their circuit breaker in which state; those that have none are
    not among them. unhandled: types of waiting jobs that no live worker handles, with their numbers
    of jobs, highest first, at most 1,000 types; known in the dialect `standard` only. ready: in
    Postgres, to be fed once they are due; oldest: since when the first of them could be. pending:
    wait for other jobs. stopped: jobs in Redis that wait for their tenant to be resumed, which are
    not among the waiting; in the dialect `standard` only.
    """

    name: str
    dialect: str
    paused: bool = False
    paused_at: datetime | None = None
    waiting: Mapping[Priority, int] = field(default_factory=dict)
    retrying: int = 0
    running: int = 0
    unsettled: int = 0
    dead: int = 0
    workers: int | None = None
    breakers: Mapping[BreakerState, int] = field(default_factory=dict)
    unhandled: Mapping[str, int] = field(default_factory=dict)
    ready: int = 0
    oldest: datetime | None = None
    pending: int = 0
    stopped: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """A job as it is in a queue. `tenant`: None if no ledger has it. `reason`: why it is a dead
    letter.

    id: the job's, or the SHA-1 of what nobody can read. payload: JSON or bytes; None in dead
    letters of the ledger, which `get` shows.
    """

    id: str
    tenant: str | None
    type: str
    priority: Priority
    attempts: int = 0
    created_at: datetime | None = None
    died_at: datetime | None = None
    reason: str | None = None
    payload: object = field(default=None, repr=False)
    raw: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """What became of dead letters: by id the job that runs in its place (itself, if no ledger has
    it), or why none.
    """

    jobs: Mapping[str, str]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueKey:
    """A key in Redis; `size`: elements, or bytes of a string."""

    name: str
    type: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How many jobs ended since some instant, by queue and state; `now` is the database's."""

    since: datetime
    now: datetime
    ended: Mapping[str, Mapping[State, int]]
