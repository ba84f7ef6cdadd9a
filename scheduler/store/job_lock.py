"""The `job_lock` table: the lease on each job's running fire."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Protocol
from uuid import UUID

from scheduler.model.definition import Key
from scheduler.model.durations import duration
from scheduler.model.outcomes import Outcome
from scheduler.model.policies import policy_json
from scheduler.model.schedules import Due, Fire
from scheduler.model.work import Work
from scheduler.store.engine import Database, Row
from scheduler.store.job_queue import queue_channel
from scheduler.store.queries import statement

MAX_OVERDUE_ROWS = 1000
Verdict = Literal["run", "queue", "skip", "pass"]


class Wanted(NamedTuple):
    """A fire that the mirror believes due: claimed only if (next_run_at, spec_hash) are still what
    it saw.
    """

    key: Key
    spec_hash: bytes
    seen: datetime
    due: Due


class Claimed(NamedTuple):
    """The answer to the wanted fire at `position`; with no verdict, the row as it is now (no hash:
    it is gone).
    """

    position: int
    verdict: Verdict | None
    fence: int | None
    now: datetime
    next_run_at: datetime | None
    spec_hash: bytes | None
    paused_at: datetime | None
    trigger_at: datetime | None = None


class Pulled(NamedTuple):
    """The answer to the trigger at `position`; without a fence it is not ours, with the row as it
    is now.
    """

    position: int
    fence: int | None
    now: datetime
    trigger_at: datetime | None
    spec_hash: bytes | None


class Overdue(NamedTuple):
    """A lease that has expired, or will expire soon unless it is renewed.

    begun: whether its function was about to be called; None: not recorded, because its job runs at
    least once. released: its holder released it. delivery: that of the present definition of the
    job; None: the job is no longer registered.
    """

    key: Key
    fence: int
    fire_at: datetime
    starts: int
    begun: bool | None
    expires_at: datetime
    released: bool
    expired: bool
    delivery: str | None


class Redriven(NamedTuple):
    """An expired lease that is ours now."""

    key: Key
    fire: Fire
    fence: int
    starts: int
    now: datetime

    @property
    def fire_at(self) -> datetime:
        """The instant of its fire."""
        return self.fire.at


class Renewal(NamedTuple):
    """Whether a lease is still ours, and if not, whether its lock row was deleted."""

    kept: bool
    deleted: bool


class Held(Protocol):
    """What identifies a lease: its job, its fence and its fire.

    The fence alone does not: a reclaim raises it without touching `job`, so after the lock row was
    deleted a later claim can use that fence again, for another fire.
    """

    @property
    def key(self) -> Key: ...
    @property
    def fence(self) -> int: ...
    @property
    def fire_at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a run, to be accepted if the lease is still ours."""

    key: Key
    fence: int
    fire: Fire
    attempt: int
    outcome: Outcome
    error: str | None
    started_at: datetime
    finished_at: datetime

    @property
    def fire_at(self) -> datetime:
        """The instant of its fire."""
        return self.fire.at


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who takes leases: a random id for each process start, a label for people, and for how
    long.
    """

    owner: UUID
    label: str
    lease: timedelta


class LockTable:
    """Statements on `job_lock`. `now` is the moment a test plays; None is the database's own
    clock.
    """

    def __init__(
        self, database: Database, now: Callable[[], datetime | None], holder: Holder
    ) -> None:
        self._database = database
        self._now = now
        self._holder = holder

    def claim(self, wanted: Sequence[Wanted]) -> list[Claimed]:
        """Take the lease of every due fire that nobody else has; never waits."""
        rows = self._run(
            "claim",
            owner=self._holder.owner,
            label=self._holder.label,
            lease=self._holder.lease,
            tenants=[want.key[0] for want in wanted],
            ids=[want.key[1] for want in wanted],
            hashes=[want.spec_hash for want in wanted],
            seen=[want.seen for want in wanted],
            fires=[want.due.fire_at for want in wanted],
            nexts=[want.due.next_run_at for want in wanted],
            missed_from=[want.due.missed_from for want in wanted],
            missed_count=[want.due.missed_count for want in wanted],
            skipped=[want.due.skipped for want in wanted],
        )
        return [Claimed(ord_ - 1, *rest) for ord_, *rest in rows]

    def moved(self, seen: Sequence[tuple[Key, datetime | None]]) -> dict[int, Claimed]:
        """Find jobs whose next fire is another than was seen, by position; without a verdict,
        nothing is taken.
        """
        keys, fires = [key for key, _ in seen], [fire for _, fire in seen]
        rows = self._run(
            "moved", tenants=[key[0] for key in keys], ids=[key[1] for key in keys], seen=fires
        )
        return {ord_ - 1: Claimed(ord_ - 1, None, None, *rest) for ord_, *rest in rows}

    def claim_queued(
        self, want: Wanted, work: Work, queued_id: UUID, *, triggered: bool
    ) -> Claimed:
        """Submit the job that a fire or trigger becomes, if nobody else has; never waits."""
        ((verdict, *rest, _),) = self._run(
            "claim_queued",
            tenant=want.key.tenant,
            id=want.key.job_id,
            spec_hash=want.spec_hash,
            seen=want.seen,
            triggered=triggered,
            fire=want.due.fire_at,
            next=want.due.next_run_at,
            missed_from=want.due.missed_from,
            missed_count=want.due.missed_count,
            skipped=want.due.skipped,
            label=self._holder.label,
            **self._submission(work, queued_id),
        )
        return Claimed(0, verdict, None, *rest)

    def claim_triggers(self, wanted: Sequence[tuple[Key, bytes, datetime]]) -> list[Pulled]:
        """Take the lease of every (job, definition, trigger) whose job is free; never waits."""
        rows = self._run(
            "claim_triggers",
            owner=self._holder.owner,
            label=self._holder.label,
            lease=self._holder.lease,
            tenants=[key.tenant for key, _, _ in wanted],
            ids=[key.job_id for key, _, _ in wanted],
            hashes=[spec_hash for _, spec_hash, _ in wanted],
            triggers=[trigger_at for _, _, trigger_at in wanted],
        )
        return [Pulled(ord_ - 1, *rest) for ord_, *rest in rows]

    def begin(self, lease: Held) -> bool:
        """Record that the function of a run is about to be called; False: the lease was lost."""
        return bool(
            self._run(
                "begin",
                owner=self._holder.owner,
                tenant=lease.key.tenant,
                id=lease.key.job_id,
                fence=lease.fence,
                fire_at=lease.fire_at,
            )
        )

    def renew(self, leases: Sequence[Held]) -> list[Renewal]:
        """Renew leases; return one renewal for each."""
        rows = self._run(
            "renew", owner=self._holder.owner, lease=self._holder.lease, **_columns(leases)
        )
        answers = {ord_ - 1: Renewal(*rest) for ord_, *rest in rows}
        return [answers[index] for index in range(len(leases))]

    def finish(self, ends: Sequence[Finish]) -> list[bool]:
        """Write ledger rows and free leases; False where the lease was lost and nothing was
        written.
        """
        rows = self._run(
            "finish",
            owner=self._holder.owner,
            label=self._holder.label,
            **_ends(ends),
        )
        accepted = {ord_ - 1 for (ord_,) in rows}
        without = [index for index in range(len(ends)) if index not in accepted]
        if without:
            accepted |= {without[ord_] for ord_ in self._record([ends[index] for index in without])}
        return [index in accepted for index in range(len(ends))]

    def _record(self, ends: Sequence[Finish]) -> list[int]:
        """Write the ledger rows of runs whose lock rows were deleted; return which rows exist.

        This is a separate statement because it has to see the transactions for which `finish`
        waited.
        """
        rows = self._run(
            "record",
            label=self._holder.label,
            kinds=["trigger" if end.fire.triggered else "fire" for end in ends],
            attempts=[end.attempt for end in ends],
            missed_from=[end.fire.missed_from for end in ends],
            missed_count=[end.fire.missed_count for end in ends],
            **_ends(ends),
        )
        return [ord_ - 1 for (ord_,) in rows]

    def release(self, leases: Sequence[Held], *, started: Sequence[bool]) -> None:
        """Hand leases back so that their fires are re-driven at once; unstarted ones count no
        start.
        """
        self._run("release", owner=self._holder.owner, started=list(started), **_columns(leases))

    def overdue(self, tenants: Sequence[str] | None, *, ahead: timedelta) -> list[Overdue]:
        """Find leases that have expired, or will expire within `ahead` unless they are renewed."""
        rows = self._run("overdue", tenants=tenants, ahead=ahead, limit=MAX_OVERDUE_ROWS)
        return [Overdue(Key(tenant, job_id), *rest) for tenant, job_id, *rest in rows]

    def redrive(self, leases: Sequence[Held], *, once: Sequence[bool]) -> list[Redriven]:
        """Take expired leases to run their fires again; return those that this process got.

        once: the job runs at most once, so the new start is recorded before its function is called.
        """
        rows = self._run(
            "redrive",
            owner=self._holder.owner,
            label=self._holder.label,
            lease=self._holder.lease,
            once=list(once),
            **_columns(leases),
        )
        return [
            Redriven(leases[ord_ - 1].key, Fire(*fire), fence, starts, now)
            for ord_, *fire, fence, starts, now in rows
        ]

    def redrive_queued(self, lease: Held, spec_hash: bytes, work: Work, queued_id: UUID) -> bool:
        """Submit the fire of an expired lease as a job; return whether it was submitted."""
        return bool(
            self._run(
                "redrive_queued",
                tenant=lease.key.tenant,
                id=lease.key.job_id,
                fence=lease.fence,
                fire_at=lease.fire_at,
                spec_hash=spec_hash,
                label=self._holder.label,
                **self._submission(work, queued_id),
            )
        )

    def bury(self, leases: Sequence[Held], *, reasons: Sequence[str]) -> list[tuple[Key, datetime]]:
        """Record the fires of expired leases as crashed and free their jobs."""
        rows = self._run("bury", reasons=list(reasons), **_columns(leases))
        return [(Key(tenant, job_id), fire_at) for tenant, job_id, fire_at in rows]

    def _submission(self, work: Work, queued_id: UUID) -> dict[str, object]:
        return {
            "queued_id": queued_id,
            "type": work.type,
            "queue": work.queue,
            "priority": work.priority,
            "json": work.form == "json",
            "payload": work.payload,
            "policy": policy_json(work.retry, work.timeouts),
            "lifetime": duration(work.timeouts.lifetime, name="lifetime"),
            "channel": queue_channel(self._database.schema),
        }

    def _run(self, name: str, **parameters: object) -> list[Row]:
        query = statement("job_lock", name, self._database.schema)
        return self._database.run(query, {"now": self._now(), **parameters})


def _columns(leases: Sequence[Held]) -> dict[str, list[object]]:
    return {
        "tenants": [lease.key[0] for lease in leases],
        "ids": [lease.key[1] for lease in leases],
        "fences": [lease.fence for lease in leases],
        "fires": [lease.fire_at for lease in leases],
    }


def _ends(ends: Sequence[Finish]) -> dict[str, list[object]]:
    return {
        "outcomes": [end.outcome.value for end in ends],
        "errors": [end.error for end in ends],
        "started": [end.started_at for end in ends],
        "finished": [end.finished_at for end in ends],
        **_columns(ends),
    }
