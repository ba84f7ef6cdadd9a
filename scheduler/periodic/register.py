"""Register: write definitions, idempotently by their hash, and attach functions to them.

Twenty instances register the same jobs at once: new rows are inserted where nobody was faster,
changed ones are compare-and-set, and whoever lost looks again. An unchanged definition costs one
read and touches nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.errors import DuplicateJob, StoreUnavailable
from scheduler.model.body import Body
from scheduler.model.definition import CheckedRegistration, JobSpec, Key
from scheduler.model.schedules import reschedule
from scheduler.periodic.registry import Registry
from scheduler.store.job import JobTable, JobWrite, KnownJob

MOST_ROUNDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrar:
    """Registers and unregisters."""

    jobs: JobTable
    registry: Registry
    holder: str

    def register(self, items: Sequence[CheckedRegistration]) -> None:
        """Register all of the items, or none of them in this process."""
        bodies: dict[Key, Body] = {}
        for item in items:
            if item.key in bodies:
                raise DuplicateJob(
                    f"job {item.key.job_id!r} of tenant {item.key.tenant!r} is in this call twice"
                )
            bodies[item.key] = item.body
        self.registry.reserve(bodies)
        try:
            self._store(sorted(items, key=lambda item: item.key))
        except BaseException:
            self.registry.unreserve(bodies)
            raise

    def unregister(self, key: Key) -> None:
        """Delete a job in the whole fleet; a run under way ends as it would have."""
        self.registry.forget(key, known=self.jobs.remove(key, holder=self.holder))

    def _store(self, items: list[CheckedRegistration]) -> None:
        for _ in range(MOST_ROUNDS):
            items = self._round(items)
            if not items:
                return
        raise StoreUnavailable(
            f"{len(items)} jobs kept changing while they were registered; try again"
        )

    def _round(self, items: list[CheckedRegistration]) -> list[CheckedRegistration]:
        """Look, decide, write; return whom somebody else was faster for."""
        new: dict[Key, JobWrite] = {}
        changed: dict[Key, JobWrite] = {}
        for item, known in zip(items, self.jobs.lookup([item.key for item in items]), strict=True):
            spec_hash = item.spec.hash()
            if known.spec_hash == spec_hash:
                paused = known.paused_at is not None
                self.registry.attach(
                    item.key, item.spec, spec_hash, known.next_run_at, paused=paused
                )
                continue
            write = _decide(item, known, spec_hash)
            (changed if known.spec_hash else new)[item.key] = write
        written: set[Key] = set()
        if new:
            written |= self.jobs.insert(list(new.values()), holder=self.holder)
        if changed:
            written |= self.jobs.change(list(changed.values()), holder=self.holder)
        for key in written:
            write = new.get(key) or changed[key]
            paused = write.known.paused_at is not None
            self.registry.attach(key, write.spec, write.spec_hash, write.next_run_at, paused=paused)
        again = (new.keys() | changed.keys()) - written
        return [item for item in items if item.key in again]


def _decide(item: CheckedRegistration, known: KnownJob, spec_hash: bytes) -> JobWrite:
    next_run_at = reschedule(
        item.spec.schedule,
        created_at=known.created_at or known.now,
        last_fire_at=known.last_fire_at,
        next_run_at=known.next_run_at,
        now=known.now,
        before=None if known.spec is None else JobSpec.from_json(known.spec).schedule,
    )
    return JobWrite(
        key=item.key, spec=item.spec, spec_hash=spec_hash, next_run_at=next_run_at, known=known
    )
