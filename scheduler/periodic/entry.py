"""An entry of the registry: one job as this process knows it."""

import random
from datetime import datetime, timedelta

from scheduler.model.body import Body
from scheduler.model.definition import NO_VERSION, JobSpec, Key
from scheduler.model.job import JobInfo
from scheduler.model.outcomes import Outcome
from scheduler.store.job import JobRow

ROUND = 100_000  # microseconds
SHORTEST_GRACE = timedelta(
    seconds=5
)  # of a job whose fires may wait for another instance: far from missed


class Entry:
    """One mirrored job. `wake_at` is when the loop looks at it next; `epoch` orders local writes
    and syncs. `text` is `job.spec` as Postgres writes it, once its hash was checked; `version` is
    that of the instance that registered it.

    `fire_wait` and `trigger_wait` put off a fire or trigger that was asked for in vain. `theirs`:
    another instance took the fire before, and is expected to take the next. `turn` is chance: of
    what is due at one moment, each instance begins with other jobs.
    """

    __slots__ = (
        "body",
        "epoch",
        "fire_wait",
        "key",
        "next_run_at",
        "paused",
        "row",
        "spec",
        "spec_hash",
        "tenant_paused",
        "text",
        "theirs",
        "tries",
        "trigger_at",
        "trigger_wait",
        "turn",
        "version",
        "wake_at",
    )

    def __init__(self, key: Key, body: Body | None) -> None:
        self.key = key
        self.body = body
        self.row: JobRow | None = None
        self.spec: JobSpec
        self.spec_hash = b""
        self.text: str | None = None
        self.version = NO_VERSION
        self.next_run_at: datetime | None = None
        self.paused = False  # itself, or its tenant
        self.tenant_paused = False  # then it is not triggered either
        self.trigger_at: datetime | None = None
        self.fire_wait: datetime | None = None
        self.trigger_wait: datetime | None = None
        self.wake_at: datetime | None = None
        self.epoch = 0
        self.tries = 0
        self.theirs = False
        self.turn = random.random()  # noqa: S311

    @property
    def runnable(self) -> bool:
        """Whether this process can call the function of a fire, or submit its job.

        If this process has registered the job in the other form, only instances that registered the
        form of the present definition run its fires. A job with a queue that this process has not
        registered can be submitted.
        """
        if self.spec.foreign:
            return False
        queued = self.spec.work is not None
        return queued if self.body is None else queued == self.body.queued

    def lost(self, instances: int) -> None:
        """Note that another of so many instances has taken a fire.

        One of those who did not wants the next all the same, by chance: so work spreads over all of
        them.
        """
        patient = random.random() >= 1 / max(2, instances)  # noqa: S311
        self.theirs = patient and self.spec.policy.grace >= SHORTEST_GRACE

    def look_at(self, fire: datetime, patience: timedelta) -> datetime:
        """Say when to see to a fire: at once, or a little after whoever took the one before should
        have taken it.

        Rounded up, so that one statement looks at many.
        """
        if not self.theirs:
            return fire
        return fire + timedelta(microseconds=-fire.microsecond % ROUND) + patience

    def info(self) -> JobInfo:
        """Show it."""
        row = self.row
        return JobInfo(
            tenant=self.key.tenant,
            job_id=self.key.job_id,
            spec=self.spec,
            runnable=self.runnable,
            next_run_at=self.next_run_at,
            paused_at=row.paused_at if row else None,
            trigger_at=self.trigger_at,
            running_fire_at=row.running_fire_at if row else None,
            holder=row.holder if row else None,
            last_fire_at=row.ledger_at if row else None,
            last_outcome=Outcome(row.last_outcome) if row and row.last_outcome else None,
            last_finished_at=row.last_finished_at if row else None,
        )
