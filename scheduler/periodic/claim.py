"""Claim: from what the mirror believes due to runs under a lease, and expired leases to second
starts.

Why a fire runs once: the claim takes the rows of job and lease, both or neither, and compares the
fire and the definition on their newest version. A stale mirror, a second instance or a repeated
claim gets no row; a crash after the commit leaves a lease that only its own fire may take over, at
a higher fence; a late finisher's fence is old.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from scheduler.clock import Clock, DatabaseClock
from scheduler.errors import InvalidData, StoreError
from scheduler.events import Events, FireCrashed
from scheduler.log import Keys, keys
from scheduler.model.definition import Key
from scheduler.model.job import MOST_STARTS
from scheduler.model.schedules import Fire, due
from scheduler.periodic.enqueue import LAST_RETRY, REFUSED_RETRY, Enqueuer, heal, tell
from scheduler.periodic.entry import Entry
from scheduler.periodic.lease import Leases, LeaseWatch
from scheduler.periodic.registry import Registry
from scheduler.periodic.run import RELEASE_AFTER_S, Run, Runner
from scheduler.store.job_lock import LockTable, Overdue, Wanted

logger = logging.getLogger("scheduler")

BATCH = 1000
SUSPECT_FOR = timedelta(minutes=1)  # a fire that kills its process does so soon


class Claimer:
    """Turns due jobs and expired leases into runs."""

    def __init__(
        self,
        *,
        registry: Registry,
        locks: LockTable,
        leases: Leases,
        runner: Runner,
        clock: Clock,
        database_clock: DatabaseClock,
        events: Events,
    ) -> None:
        self._registry = registry
        self._locks = locks
        self._leases = leases
        self._runner = runner
        self._clock = clock
        self._database_clock = database_clock
        self._events = events
        self._watch = LeaseWatch(clock, lease=leases.lease)
        self._released: dict[Key, int] = {}  # fences of runs that this process released unbegun
        self._enqueuer = Enqueuer(
            registry=registry,
            locks=locks,
            clock=clock,
            database_clock=database_clock,
            events=events,
        )
        self.stale = False  # a claim met a definition that the mirror does not have

    def claim(self) -> None:
        """Claim what is due, as far as there is room, and start it."""
        now = self._database_clock.now()
        entries = self._registry.due(now, min(self._runner.room(), BATCH))
        theirs = [entry for entry in entries if entry.theirs and entry.trigger_at is None]
        if theirs:
            entries = [
                entry for entry in entries if not entry.theirs or entry.trigger_at is not None
            ]
            self._look(theirs)
        asked: list[Entry] = []
        wanted: list[Wanted] = []
        for entry in entries:
            fire = entry.next_run_at
            if fire is None or entry.paused or fire > now or _after_trigger(entry, fire, now):
                self._registry.put_back(entry, fire)  # here for its trigger
                continue
            run = self._leases.get(entry.key)
            if run is not None and fire < run.claimed_at:
                # Late, and its predecessor runs here: its turn comes when that one ends.
                self._registry.put_back(entry, fire, not_before=now + LAST_RETRY)
                continue
            decision = due(entry.spec.schedule, entry.spec.policy, seen=fire, now=now)
            want = Wanted(entry.key, entry.spec_hash, fire, decision)
            if entry.spec.work is not None:
                self.stale |= self._enqueuer.fire(entry, want)
                continue
            asked.append(entry)
            wanted.append(want)
        if wanted:
            self._ask(asked, wanted)
        triggered = [
            entry for entry in entries if entry.trigger_at is not None and not _later(entry, now)
        ]
        for entry in triggered:
            if entry.spec.work is not None:
                self._enqueuer.trigger(entry)
        here = [entry for entry in triggered if entry.spec.work is None]
        if here:
            self._pull(here, now)

    def release_waiting(self) -> None:
        """Release the leases of runs that have not begun after a second, for other instances.

        These runs count no start. If the statement fails, their leases expire.
        """
        runs = self._runner.give_back(queued_before=self._clock.monotonic() - RELEASE_AFTER_S)
        if not runs:
            return
        self._leases.drop(runs)
        self._released = {run.key: run.fence for run in runs}
        logger.info("released the leases of %d fires that had not begun after a second", len(runs))
        self._locks.release(runs, started=[False] * len(runs))

    def rescue(self, tenants: Sequence[str] | None) -> bool:
        """Re-drive the fires of expired leases that this process can run, and bury those that may
        not start again; return whether some are left for want of room.
        """
        overdue = self._locks.overdue(tenants, ahead=self._watch.ahead)
        expired = self._watch.reclaimable(overdue)
        dead = {lease: reason for lease in expired if (reason := buried_because(lease))}
        left = self._redrive([lease for lease in expired if lease not in dead])
        self._bury(dead)
        return left

    def _bury(self, dead: dict[Overdue, str]) -> None:
        if not dead:
            return
        try:
            buried = self._locks.bury(list(dead), reasons=list(dead.values()))
        except InvalidData:
            if len(dead) == 1:
                key = next(iter(dead)).key
                logger.exception(
                    "a crashed fire of %s/%s cannot be recorded", *key, extra=named(key)
                )
                return
            for (
                lease,
                reason,
            ) in dead.items():  # one row that Postgres refuses must not hold back the others
                self._bury({lease: reason})
            return
        reasons = {lease.key: reason for lease, reason in dead.items()}
        for key, fire_at in buried:
            self._registry.hasten(key)
            self._events.emit(
                FireCrashed(
                    tenant=key.tenant, job_id=key.job_id, fire_at=fire_at, reason=reasons[key]
                )
            )

    def _ask(self, asked: list[Entry], wanted: list[Wanted]) -> None:
        sent = self._clock.monotonic()
        try:
            answers = self._locks.claim(wanted)
        except StoreError as error:
            if not isinstance(error, InvalidData):
                for entry in asked:
                    self._registry.put_back(entry, entry.next_run_at)
                raise
            if len(asked) == 1:
                key = asked[0].key
                logger.exception(
                    "the claim of %s/%s is refused; trying again in a minute",
                    *key,
                    extra=named(key),
                )
                not_before = self._database_clock.now() + REFUSED_RETRY
                self._registry.put_back(asked[0], asked[0].next_run_at, not_before=not_before)
                return
            for entry, want in zip(
                asked, wanted, strict=True
            ):  # one that Postgres refuses holds back no other
                self._ask([entry], [want])
            return
        self._database_clock.observe(answers[0].now, sent=sent, received=self._clock.monotonic())
        runs = []
        until = self._leases.until(sent)
        for answer in answers:
            entry, want = asked[answer.position], wanted[answer.position]
            if answer.verdict is None:
                self.stale |= heal(self._registry, entry, answer)
                continue
            entry.theirs = False
            self._registry.put_back(entry, want.due.next_run_at)
            if answer.verdict == "run" and answer.fence is not None and entry.body is not None:
                fire = Fire(
                    want.due.fire_at,
                    missed_from=want.due.missed_from,
                    missed_count=want.due.missed_count,
                )
                runs.append(_first_run(entry, fire, answer.fence, answer.now, until))
            else:
                tell(self._events, entry, want, answer.verdict)
        self._begin(runs)

    def _look(self, theirs: list[Entry]) -> None:
        """See whether others have taken what was to be theirs; what they left is asked for at the
        next step.
        """
        try:
            moved = self._locks.moved([(entry.key, entry.next_run_at) for entry in theirs])
        except StoreError:
            moved = {}  # asked for like any other: that tells what is wrong
        for position, entry in enumerate(theirs):
            if position in moved:
                self.stale |= heal(self._registry, entry, moved[position])
            else:
                entry.theirs = False
                self._registry.put_back(entry, entry.next_run_at)

    def _pull(self, triggered: list[Entry], now: datetime) -> None:
        """Take triggers; one whose job runs waits for it, one that somebody else has taken is
        forgotten.
        """
        taken = [(entry, entry.trigger_at) for entry in triggered if entry.trigger_at is not None]
        sent = self._clock.monotonic()
        try:
            answers = self._locks.claim_triggers(
                [(entry.key, entry.spec_hash, at) for entry, at in taken]
            )
        except StoreError as error:
            refused = isinstance(error, InvalidData)
            if refused and len(triggered) > 1:  # one that Postgres refuses holds back no other
                for entry in triggered:
                    self._pull([entry], now)
                return
            for entry, trigger_at in taken:
                not_before = now + (REFUSED_RETRY if refused else LAST_RETRY)
                self._registry.pulled(entry, trigger_at, not_before=not_before)
            if not refused:
                raise
            key = triggered[0].key
            logger.exception(
                "the trigger of %s/%s is refused; trying again in a minute", *key, extra=named(key)
            )
            return
        self._database_clock.observe(answers[0].now, sent=sent, received=self._clock.monotonic())
        runs = []
        for answer in answers:
            entry, trigger_at = taken[answer.position]
            if answer.fence is None:
                self.stale = self.stale or answer.spec_hash != entry.spec_hash
                self._registry.pulled(entry, answer.trigger_at, not_before=answer.now + LAST_RETRY)
            else:
                self._registry.pulled(entry, None)
                if entry.body is not None:
                    runs.append(
                        _first_run(
                            entry,
                            Fire(trigger_at, triggered=True),
                            answer.fence,
                            answer.now,
                            self._leases.until(sent),
                        )
                    )
        self._begin(runs)

    def _redrive(self, expired: list[Overdue]) -> bool:
        """Start the fires of expired leases again; return whether some are left for want of room.

        If a job now has a queue, its fire is submitted.
        """
        here = []
        for lease in expired:
            queued = self._registry.queued(lease.key)
            if queued is not None:
                self._enqueuer.redrive(lease, queued)
            elif self._registry.body(lease.key) and not self._runner.active(lease.key):
                here.append(lease)
        helpable, left = self._choose(here)
        if not helpable:
            return left
        sent = self._clock.monotonic()
        runs = []
        for taken in self._locks.redrive(helpable, once=[self._once(each) for each in helpable]):
            found = self._registry.body(taken.key)
            if found is None:
                continue  # unregistered this instant; the lease runs out again
            body, spec = found
            runs.append(
                Run(
                    key=taken.key,
                    fire=taken.fire,
                    attempt=taken.starts,
                    fence=taken.fence,
                    body=body,
                    spec=spec,
                    claimed_at=taken.now,
                    lease_until=self._leases.until(sent),
                )
            )
        self._begin(runs)
        return left

    def _choose(self, expired: list[Overdue]) -> tuple[list[Overdue], bool]:
        """Choose the fires to start again now, and return whether some are left for want of room.

        The last start of a fire is alone: if it kills its process, no other suspect loses a start,
        and an innocent fire that shared two crashes is not recorded as crashed after a third. This
        process reclaims a fire that it released itself only when a worker is free.
        """
        recent = self._database_clock.now() - SUSPECT_FOR
        suspects = [
            run.attempt
            for run in self._leases.held()
            if run.attempt > 1 and run.claimed_at > recent
        ]
        if MOST_STARTS in suspects:
            return [], False
        room, free, left = self._runner.room(), self._runner.free(), False
        chosen: list[Overdue] = []
        for lease in expired:
            ours = self._released.get(lease.key) == lease.fence
            if len(chosen) >= (free if ours else room):
                left = True
                continue
            last = lease.starts + 1 >= MOST_STARTS
            if last and (chosen or suspects):
                continue
            chosen.append(lease)
            if last:
                break
        return chosen, left

    def _once(self, lease: Overdue) -> bool:
        found = self._registry.body(lease.key)
        return found is not None and found[1].delivery == "at_most_once"

    def _begin(self, runs: list[Run]) -> None:
        """Start runs whose leases are surely ours: this process may have been suspended before it
        read the answer.
        """
        now = self._clock.monotonic()
        ours = [run for run in runs if run.lease_until > now]
        if len(ours) < len(runs):
            logger.warning(
                "%d leases had run out before they were known here; not started",
                len(runs) - len(ours),
            )
        self._leases.add(ours)
        try:
            self._runner.take(ours)
        except RuntimeError as error:
            logger.error("no thread can be started: %s; handing %d fires back", error, len(ours))
            self._leases.drop(ours)
            if ours:
                self._locks.release(ours, started=[False] * len(ours))


def _first_run(entry: Entry, fire: Fire, fence: int, now: datetime, lease_until: float) -> Run:
    assert entry.body is not None  # noqa: S101 - whoever calls has looked
    return Run(
        key=entry.key,
        fire=fire,
        attempt=1,
        fence=fence,
        body=entry.body,
        spec=entry.spec,
        claimed_at=now,
        lease_until=lease_until,
    )


def _after_trigger(entry: Entry, fire: datetime, now: datetime) -> bool:
    """Whether a trigger goes first: of a job whose fires wait for each other there may always be
    one that is due.
    """
    patient = entry.spec.policy.overlap == "queue_one" or entry.spec.policy.misfire == "catch_up"
    return (
        patient
        and entry.trigger_at is not None
        and entry.trigger_at <= fire
        and not _later(entry, now)
    )


def _later(entry: Entry, now: datetime) -> bool:
    return entry.trigger_wait is not None and entry.trigger_wait > now


def buried_because(lease: Overdue) -> str | None:
    """Return why the fire of an expired lease must not start again; None: it can.

    `begun` counts, whatever the present definition of the job is. If it is None, the job ran at
    least once when it was claimed, and a start counts as begun.
    """
    if lease.delivery is None:
        return "its process died, and the job is no longer registered"
    if lease.begun or (lease.begun is None and lease.delivery == "at_most_once" and lease.starts):
        return "its process died, and the job runs at most once"
    if lease.starts >= MOST_STARTS and lease.begun is None:
        return f"its process died {lease.starts} times"
    return None


def named(key: Key) -> Keys:
    """Name a job in a line of the log."""
    return keys(namespace=key.tenant, job_id=key.job_id)
