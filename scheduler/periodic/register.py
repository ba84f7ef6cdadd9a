"""Register: write definitions, idempotently by their hash, and attach functions to them.

Twenty instances register the same jobs at once: new rows are inserted where nobody was faster, changed ones are
compare-and-set, and whoever lost looks again. An unchanged definition costs one read and touches nothing.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.clock import DatabaseClock
from scheduler.errors import DuplicateJob, StoreError, StoreUnavailable
from scheduler.model.job import Body, CheckedRegistration, JobSpec, Key
from scheduler.model.schedules import reschedule
from scheduler.periodic.registry import Registry
from scheduler.store.job import JobTable, JobWrite, KnownJob

logger = logging.getLogger("scheduler")

MOST_ROUNDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrar:
    """Registers and unregisters."""

    jobs: JobTable
    registry: Registry
    database_clock: DatabaseClock
    holder: str

    def register(self, items: Sequence[CheckedRegistration]) -> None:
        """Register all of the items, or none of them in this process."""
        bodies: dict[Key, Body] = {}
        for item in items:
            if item.key in bodies:
                raise DuplicateJob(f"job {item.key.job_id!r} of tenant {item.key.tenant!r} is in this call twice")
            bodies[item.key] = item.body
        self.registry.reserve(bodies)
        try:
            changed = self._store(sorted(items, key=lambda item: item.key))
        except BaseException:
            self.registry.unreserve(bodies)
            raise
        if changed:
            self._notify()

    def unregister(self, key: Key) -> None:
        """Delete a job in the whole fleet; a run under way ends as it would have."""
        removed = self.jobs.remove(key, holder=self.holder)
        self.registry.forget(key, known=removed)
        if removed:
            self._notify()

    def _notify(self) -> None:
        try:
            self.jobs.notify()
        except StoreError as error:  # it is done; the others learn of it at their next sync
            logger.warning("the other instances could not be told at once: %s", error)

    def _store(self, items: list[CheckedRegistration]) -> bool:
        changed = False
        for _ in range(MOST_ROUNDS):
            items, wrote = self._round(items)
            changed = changed or wrote
            if not items:
                return changed
        raise StoreUnavailable(f"{len(items)} jobs kept changing while they were registered; try again")

    def _round(self, items: list[CheckedRegistration]) -> tuple[list[CheckedRegistration], bool]:
        """Look, decide, write; return whom somebody else was faster for, and whether anything was written."""
        new: dict[Key, JobWrite] = {}
        changed: dict[Key, JobWrite] = {}
        for item, known in zip(items, self.jobs.lookup([item.key for item in items]), strict=True):
            spec_hash = item.spec.hash()
            if known.spec_hash == spec_hash:
                self.registry.attach(item.key, item.spec, spec_hash, None if known.paused_at else known.next_run_at)
                continue
            write = self._decide(item, known, spec_hash)
            (changed if known.spec_hash else new)[item.key] = write
        written: set[Key] = set()
        if new:
            written |= self.jobs.insert(list(new.values()), holder=self.holder)
        if changed:
            written |= self.jobs.change(list(changed.values()), holder=self.holder)
        for key in written:
            write = new.get(key) or changed[key]
            self.registry.attach(key, write.spec, write.spec_hash, write.next_run_at)
        again = (new.keys() | changed.keys()) - written
        return [item for item in items if item.key in again], bool(written)

    def _decide(self, item: CheckedRegistration, known: KnownJob, spec_hash: bytes) -> JobWrite:
        now = self.database_clock.now()
        next_run_at = reschedule(
            item.spec.schedule,
            created_at=known.created_at or now,
            last_fire_at=known.last_fire_at,
            next_run_at=known.next_run_at,
            now=now,
            before=None if known.spec is None else JobSpec.from_json(known.spec).schedule,
        )
        return JobWrite(key=item.key, spec=item.spec, spec_hash=spec_hash, next_run_at=next_run_at, known=known)
