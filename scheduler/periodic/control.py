"""Control: what people ask of one job - pause, resume, trigger, explain - answered from the tables,
by any instance.

Nothing here needs the job's function: the command line uses it too. Each change notifies the fleet
with its commit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice

from scheduler.errors import InvalidSchedule, StoreUnavailable, UnknownJob
from scheduler.model.cron import Cron
from scheduler.model.definition import JobSpec, Key
from scheduler.model.job import Explanation, JobInfo
from scheduler.model.outcomes import Outcome
from scheduler.model.schedules import Due, Schedule, fires, together
from scheduler.store.job import JobFacts, JobRow, JobTable, KnownJob
from scheduler.store.job_instance import InstanceTable

MOST_ROUNDS = 50
NEXT_FIRES = 10
CHANGES = 5
SHORT = 2000  # characters; larger ones have a payload
FOREIGN = "its definition is of a later version of this library, or in a zone that is unknown here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Steers and explains jobs, one by one."""

    jobs: JobTable
    instances: InstanceTable
    holder: str
    can_run: Callable[[Key], bool] | None = None
    """Whether this process can run a job; None on the command line, which has no functions."""

    def pause(self, key: Key) -> datetime:
        """Let its fires pass a job by from now on, in the whole fleet; one that is paused stays as
        it is.
        """
        paused_at = self.jobs.pause(key, holder=self.holder)
        if paused_at is None:
            raise _unknown(key)
        return paused_at

    def resume(self, key: Key) -> datetime | None:
        """Go on with the first fire after now and return it; what passed meanwhile is one row of
        the ledger.
        """
        for _ in range(MOST_ROUNDS):
            (known,) = self.jobs.lookup([key])
            if known.spec is None:
                raise _unknown(key)
            if known.paused_at is None:
                return known.next_run_at
            if JobSpec.from_json(known.spec).foreign:
                raise InvalidSchedule(
                    f"job {key.job_id!r} of tenant {key.tenant!r} cannot be resumed here: "
                    f"{FOREIGN}; resume it from an"
                    " instance that knows it"
                )
            passed, next_run_at = _while_paused(known)
            if self.jobs.resume(key, known, passed, next_run_at, holder=self.holder):
                return next_run_at
        raise StoreUnavailable(
            f"job {key.job_id!r} of tenant {key.tenant!r} kept changing; try again"
        )

    def trigger(self, key: Key) -> datetime:
        """Ask for a run beside the schedule, also of a paused job; return the instant that names
        it.
        """
        trigger_at = self.jobs.trigger(key)
        if trigger_at is None:
            raise _unknown(key)
        return trigger_at

    def page(
        self, tenant: str, after: str, *, limit: int, has: Callable[[Key], bool]
    ) -> list[JobInfo]:
        """List a tenant's jobs by id, from the one after `after` on; `has` says whether a function
        is here.
        """
        return [_info(row, has) for row in self.jobs.page(tenant, after, limit=limit)]

    def explain(self, key: Key) -> Explanation:
        """Say what a job will do, what it did, and who can run it."""
        facts = self.jobs.explain(key)
        if facts is None:
            raise _unknown(key)
        spec = JobSpec.from_json(facts.spec)
        runnable_on = self._runnable_on(key)
        plan = spec.schedule
        return Explanation(
            tenant=key.tenant,
            job_id=key.job_id,
            schedule=str(plan),
            next_fires=() if spec.foreign else tuple(islice(_to_come(facts, plan), NEXT_FIRES)),
            notes=tuple(_notes(key.tenant, facts, spec, runnable_on)),
            paused_at=facts.paused_at,
            trigger_at=facts.trigger_at,
            running_fire_at=facts.running_fire_at,
            holder=facts.holder,
            last_fire_at=facts.last_fire_at,
            last_outcome=Outcome(facts.last_outcome) if facts.last_outcome else None,
            why=facts.last_reason or facts.last_error,
            runnable_on=runnable_on,
            app=facts.app,
            version=facts.version,
            changes=tuple(self.jobs.changes(key, limit=CHANGES)),
        )

    def _runnable_on(self, key: Key) -> tuple[str, ...]:
        """Name the live instances that can run a job, and this one, whose next heartbeat reports
        what it has just registered.
        """
        live = set(self.instances.live(key))
        if self.can_run is not None and self.can_run(key):
            live.add(self.holder)
        return tuple(sorted(live))


@lru_cache(maxsize=1000)
def _short(text: str) -> JobSpec:
    """Read a definition; whoever looks at a page of jobs looks at it again, and few of them have
    changed.
    """
    return JobSpec.from_json(text)


def _info(row: JobRow, has: Callable[[Key], bool]) -> JobInfo:
    spec = _short(row.spec) if len(row.spec) <= SHORT else JobSpec.from_json(row.spec)
    return JobInfo(
        tenant=row.tenant,
        job_id=row.job_id,
        spec=spec,
        runnable=not spec.foreign and (spec.work is not None or has(Key(row.tenant, row.job_id))),
        next_run_at=row.next_run_at,
        paused_at=row.paused_at,
        trigger_at=row.trigger_at,
        running_fire_at=row.running_fire_at,
        holder=row.holder,
        last_fire_at=row.ledger_at,
        last_outcome=Outcome(row.last_outcome) if row.last_outcome else None,
        last_finished_at=row.last_finished_at,
    )


def _while_paused(known: KnownJob) -> tuple[Due | None, datetime | None]:
    """Make one of the fires that passed a paused job by; return it with the one to go on with."""
    if known.next_run_at is None or known.next_run_at > known.now or known.spec is None:
        return None, known.next_run_at
    passed = together(JobSpec.from_json(known.spec).schedule, known.next_run_at, known.now)
    return passed, passed.next_run_at


def _to_come(facts: JobFacts, plan: Schedule) -> Iterator[datetime]:
    """Go through the fires to come; a paused job's begin where resuming it now would."""
    first = facts.next_run_at
    if facts.paused_at is not None and first is not None and first <= facts.now:
        first = together(plan, first, facts.now).next_run_at
    return fires(plan, first)


def _notes(tenant: str, facts: JobFacts, spec: JobSpec, runnable_on: tuple[str, ...]) -> list[str]:
    notes = []
    if spec.foreign:
        notes.append(f"it is left alone here: {FOREIGN}")
    if facts.tenant_paused_at is not None:
        notes.append(
            f"its tenant is paused: nothing of it runs until resume_tenant({tenant!r}) is called"
        )
    elif facts.paused_at is not None:
        notes.append("it is paused: its fires pass it by until it is resumed")
    if facts.next_run_at is None:
        notes.append("nothing is to come: it was to fire once, and that moment has passed")
    if not runnable_on:
        notes.append("no live instance can run it: none has registered its function")
    if facts.expires_at is not None and facts.expires_at < facts.now:
        fate = (
            "starts again on an instance that can run it"
            if spec.delivery == "at_least_once"
            else "starts again elsewhere only if its function was not called yet"
        )
        notes.append(f"the process that ran it died: its fire {fate}")
    if isinstance(spec.schedule, Cron) and not spec.foreign:
        notes += spec.schedule.notes(facts.now)
    return notes


def _unknown(key: Key) -> UnknownJob:
    return UnknownJob(f"there is no job {key.job_id!r} of tenant {key.tenant!r}")
