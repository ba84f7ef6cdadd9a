"""What one sees of a job: its mirrored row, and a line of the ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from scheduler.model.cron import Cron
from scheduler.model.definition import JobSpec
from scheduler.model.outcomes import Kind, Outcome
from scheduler.model.schedules import Every

MOST_STARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job as the mirror shows it: its definition, its lease, and its newest ledger row, as of the
    last sync.
    """

    tenant: str
    job_id: str
    spec: JobSpec = field(repr=False)
    runnable: bool
    next_run_at: datetime | None
    paused_at: datetime | None
    trigger_at: datetime | None
    running_fire_at: datetime | None
    holder: str | None
    last_fire_at: datetime | None
    last_outcome: Outcome | None
    last_finished_at: datetime | None

    @property
    def every(self) -> timedelta | None:
        """The interval, if it has one."""
        return self.spec.schedule.every if isinstance(self.spec.schedule, Every) else None

    @property
    def cron(self) -> str | None:
        """The cron expression, if it has one."""
        return self.spec.schedule.expression if isinstance(self.spec.schedule, Cron) else None


class HistoryPlace(NamedTuple):
    """Where a row is in the ledger of its tenant."""

    at: datetime
    job_id: str
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One row of the ledger: a fire or a trigger at its end (or skipped), or an audit row.

    `missed_count` fires from `missed_from` on were missed and are what this run stands for, besides
    its own. `attempts` are the earlier starts of a fire that was re-driven, or those of a submitted
    job of which there is more to say than this row does. `job` describes that job; of a fire that
    was `queued` it has the `id` of the job that it became.
    """

    at: datetime
    tenant: str
    job_id: str
    kind: Kind
    outcome: Outcome
    reason: str | None
    attempt: int | None
    fence: int | None
    holder: str | None
    started_at: datetime | None
    finished_at: datetime
    missed_from: datetime | None
    missed_count: int
    error: str | None
    attempts: tuple[Mapping[str, Any], ...]
    job: Mapping[str, Any] | None = None

    @property
    def place(self) -> HistoryPlace:
        """Where it is: older rows are `before` it."""
        return HistoryPlace(self.at, self.job_id, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceInfo:
    """A process that runs jobs, as it last said; it counts as gone from `expires_at` on.

    `skew`: how far its wall clock is ahead of the database's. `jobs`: of how many it has the
    functions.
    """

    id: UUID
    label: str
    live: bool
    started_at: datetime
    seen_at: datetime
    expires_at: datetime
    skew: timedelta
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionChange:
    """An audit row about the definition of a job: it was registered, changed or unregistered."""

    at: datetime
    outcome: Outcome
    reason: str | None
    holder: str | None

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.outcome} by {self.holder}{reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a job will do, what it did, and who can run it, as the tables say now; `print` it.

    next_fires: up to ten. notes: what is surprising, changes of the clocks included. holder: who
    runs the fire under way. why: the reason or error of `last_outcome`. runnable_on: the live
    instances that have its function. app, version: of the instance that registered the definition.
    changes: how the definition came about, the newest of up to five changes first.
    """

    tenant: str
    job_id: str
    schedule: str
    next_fires: tuple[datetime, ...]
    notes: tuple[str, ...]
    paused_at: datetime | None
    trigger_at: datetime | None
    running_fire_at: datetime | None
    holder: str | None
    last_fire_at: datetime | None
    last_outcome: Outcome | None
    why: str | None
    runnable_on: tuple[str, ...]
    app: str | None = None
    version: int | None = None
    changes: tuple[DefinitionChange, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.tenant}/{self.job_id}: {self.schedule}"]
        if self.running_fire_at is not None:
            lines.append(f"  running     {_moment(self.running_fire_at)} on {self.holder}")
        if self.trigger_at is not None:
            lines.append(f"  triggered   {_moment(self.trigger_at)}, not yet picked up")
        if self.last_outcome is not None and self.last_fire_at is not None:
            why = f": {self.why.splitlines()[0]}" if self.why else ""
            lines.append(f"  last        {_moment(self.last_fire_at)} {self.last_outcome}{why}")
        lines.append(f"  runnable on {', '.join(self.runnable_on) or 'nobody'}")
        lines += [
            f"  {'next' if number == 0 else '':11} {_moment(fire)}"
            for number, fire in enumerate(self.next_fires)
        ]
        lines += [f"  definition  {_moment(change.at)} {change}" for change in self.changes]
        return "\n".join([*lines, *(f"  note        {note}" for note in self.notes)])


def _moment(moment: datetime) -> str:
    return f"{moment:%a %Y-%m-%d %H:%M:%S} UTC"
