"""What one sees of workers: who lives, what each holds, and how its circuit breakers are."""

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from scheduler.model.breaker import BreakerState

SCHEDULER = "scheduler"
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """A job in the hands of a worker. `tenant`: None if no ledger has it."""

    id: str
    tenant: str | None
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerQueue:
    """One queue of a worker: how many of its jobs it holds, some of them, the oldest first, and its
    circuit breaker.

    holds: None if nobody says. breaker: None if it has none; breaker_until: when an open one lets a
    job be tried. overdue: ids of jobs whose handlers still run although their attempts have ended,
    by a timeout, a lifetime, a forced cancel or the loss of the lease; at most 20, oldest first.
    Each keeps a slot of the worker until its handler returns. types: the types that it handles;
    None if it handles every type, or does not report them.
    """

    name: str
    holds: int | None = None
    jobs: tuple[HeldJob, ...] = ()
    breaker: BreakerState | None = None
    breaker_until: datetime | None = None
    overdue: tuple[str, ...] = ()
    types: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker that lives, as it last said; times are of Redis's clock.

    kind: "scheduler" for ours; "bullmq" or "conveyor" for a worker of these projects' own, who say
    little of themselves: what they do not is None. queues: empty where nobody says which. holds: in
    all of them. seen_at: when it last said what it holds; None: it has not said anything yet.
    """

    name: str
    kind: str = SCHEDULER
    host: str | None = None
    pid: int | None = None
    concurrency: int | None = None
    started_at: datetime | None = None
    seen_at: datetime | None = None
    holds: int | None = None
    queues: tuple[WorkerQueue, ...] = ()

    def also(self, other: "WorkerInfo") -> "WorkerInfo":
        """Add what the same worker said at another queue; what is of no queue in particular was
        only met again.
        """
        if not other.queues:
            return self
        latest = max(self, other, key=lambda each: each.seen_at or NEVER)
        holds = [each.holds for each in (self, other) if each.holds is not None]
        return replace(
            latest, holds=sum(holds) if holds else None, queues=(*self.queues, *other.queues)
        )

    def plain(self) -> dict[str, Any]:
        """Write it as JSON has it, breakers by their words."""
        told = asdict(self)
        for at, queue in zip(told["queues"], self.queues, strict=True):
            at["breaker"] = None if queue.breaker is None else queue.breaker.word
        return told
