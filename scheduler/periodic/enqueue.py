"""Enqueue: a fire of a job with `queue=` becomes a submitted job; its rows and the schedule's in
one statement.

No lease and no function: whatever mirrors the job may do it, and the compare-and-set of the claim
lets one of them.
"""

import logging
from datetime import timedelta
from uuid import UUID, uuid4

from scheduler.clock import Clock, DatabaseClock
from scheduler.errors import InvalidData, StoreError
from scheduler.events import Events, FireQueued, FireSkipped
from scheduler.log import keys
from scheduler.model.schedules import Due
from scheduler.periodic.entry import Entry
from scheduler.periodic.registry import Registry
from scheduler.store.job_lock import Claimed, LockTable, Overdue, Verdict, Wanted

logger = logging.getLogger("scheduler")

FIRST_RETRY = timedelta(milliseconds=20)
LAST_RETRY = timedelta(seconds=1)
REFUSED_RETRY = timedelta(minutes=1)


class Enqueuer:
    """Turns due fires and triggers into rows of job_queue."""

    def __init__(
        self,
        *,
        registry: Registry,
        locks: LockTable,
        clock: Clock,
        database_clock: DatabaseClock,
        events: Events,
    ) -> None:
        self._registry = registry
        self._locks = locks
        self._clock = clock
        self._database_clock = database_clock
        self._events = events

    def fire(self, entry: Entry, want: Wanted) -> bool:
        """Enqueue a fire; say whether the mirror turned out to be stale."""
        now = self._database_clock.now()
        try:
            answer = self._ask(entry, want, triggered=False)
        except StoreError:
            self._registry.put_back(entry, entry.next_run_at)
            raise
        if answer is None:
            self._registry.put_back(entry, entry.next_run_at, not_before=now + REFUSED_RETRY)
            return False
        if answer.verdict is None:
            return heal(self._registry, entry, answer)
        entry.theirs = False
        self._registry.put_back(entry, want.due.next_run_at)
        return False

    def trigger(self, entry: Entry) -> None:
        """Enqueue what was asked for; it waits for the job before it."""
        trigger_at = entry.trigger_at
        if trigger_at is None:
            return
        now = self._database_clock.now()
        want = Wanted(
            entry.key, entry.spec_hash, trigger_at, Due(fire_at=trigger_at, next_run_at=None)
        )
        try:
            answer = self._ask(entry, want, triggered=True)
        except StoreError:
            self._registry.pulled(entry, trigger_at, not_before=now + LAST_RETRY)
            raise
        if answer is None:
            self._registry.pulled(entry, trigger_at, not_before=now + REFUSED_RETRY)
        elif answer.verdict is None and answer.trigger_at is not None:
            self._registry.pulled(entry, answer.trigger_at, not_before=answer.now + LAST_RETRY)
        else:
            self._registry.pulled(entry, None)

    def redrive(self, lease: Overdue, entry: Entry) -> None:
        """Submit the fire of an expired lease, whose job had a function when it was claimed and has
        a queue now.
        """
        work, queued_id = entry.spec.work, uuid4()
        if work is None:
            return
        if self._locks.redrive_queued(lease, entry.spec_hash, work, queued_id):
            self._events.emit(
                FireQueued(
                    tenant=lease.key.tenant,
                    job_id=lease.key.job_id,
                    fire_at=lease.fire_at,
                    queued_id=queued_id,
                )
            )

    def _ask(self, entry: Entry, want: Wanted, *, triggered: bool) -> Claimed | None:
        """Send one statement; None: Postgres refuses it, whatever it is that this job asks for."""
        work, queued_id = entry.spec.work, uuid4()
        if work is None:
            return None
        sent = self._clock.monotonic()
        try:
            answer = self._locks.claim_queued(want, work, queued_id, triggered=triggered)
        except InvalidData:
            about = keys(namespace=entry.key.tenant, job_id=entry.key.job_id)
            logger.exception(
                "the claim of %s/%s is refused; trying again in a minute", *entry.key, extra=about
            )
            return None
        self._database_clock.observe(answer.now, sent=sent, received=self._clock.monotonic())
        tell(self._events, entry, want, answer.verdict, queued_id)
        return answer


def heal(registry: Registry, entry: Entry, answer: Claimed) -> bool:
    """Heal the mirror by the row as it is now; what is merely locked or leased is asked for again,
    ever later.

    Says whether the mirror has to be read anew: its definition is not the row's.
    """
    if answer.spec_hash != entry.spec_hash or answer.paused_at is not None:
        registry.put_back(entry, entry.next_run_at, not_before=answer.now + LAST_RETRY)
        return True
    if answer.next_run_at != entry.next_run_at:
        entry.lost(registry.instances)
        registry.put_back(entry, answer.next_run_at)
    else:
        delay = min(FIRST_RETRY * 2 ** min(entry.tries, 8), LAST_RETRY)
        registry.put_back(entry, entry.next_run_at, not_before=answer.now + delay)
    return False


def tell(
    events: Events,
    entry: Entry,
    want: Wanted,
    verdict: Verdict | None,
    queued_id: UUID | None = None,
) -> None:
    """Say that a fire was queued or skipped, if it was and anybody listens."""
    if not events:
        return
    tenant, job_id, fire_at = *entry.key, want.due.fire_at
    if verdict == "skip":
        reason = want.due.skipped or "overlap"
        events.emit(FireSkipped(tenant=tenant, job_id=job_id, fire_at=fire_at, reason=reason))
    elif verdict == "queue" and queued_id is not None:
        events.emit(FireQueued(tenant=tenant, job_id=job_id, fire_at=fire_at, queued_id=queued_id))
