"""Register: write definitions, idempotently by their hash, and attach functions to them.

Twenty instances register the same jobs concurrently: new rows are inserted unless another instance
was faster, changed rows are compare-and-set, and an instance that lost reads the rows again. An
unchanged definition costs one read and touches nothing.

Definitions of an app are ordered by its version. An instance yields to the definition, or to the
tombstone, of a higher version while an instance of a higher version than its own is alive. Else the
last registration wins. The same holds when a sync finds that the tables and this process disagree;
but a sync writes only against another version, so two instances of one version never write in turn.
Every write is compare-and-set on the row, its version and its tombstone. One race remains: an
instance of a higher version starts after a lower one has found none alive, and finds its definition
unchanged before the lower one writes. The notification of that write makes the higher version sync,
and its sync restores its definition.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache

from scheduler.errors import DuplicateJob, StoreUnavailable
from scheduler.events import Events, JobRolledBack
from scheduler.log import keys
from scheduler.model.definition import AppVersion, CheckedRegistration, JobSpec, Key
from scheduler.model.outcomes import DISAPPEARED
from scheduler.model.schedules import Once, reschedule, together
from scheduler.periodic.entry import Entry
from scheduler.periodic.registry import Merged, Registered, Registry
from scheduler.store.job import JobTable, JobWrite, KnownJob

logger = logging.getLogger("scheduler")

MOST_ROUNDS = 50
EDITED = "job.spec was changed by SQL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrar:
    """Registers and unregisters. `is_outranked`: whether an instance of a higher version is
    alive.
    """

    jobs: JobTable
    registry: Registry
    holder: str
    version: AppVersion
    is_outranked: Callable[[], bool]
    events: Events
    retention: timedelta | None

    def register(self, items: Sequence[CheckedRegistration]) -> None:
        """Register all of the items, or none of them in this process."""
        registered: dict[Key, Registered] = {}
        for item in items:
            if item.key in registered:
                raise DuplicateJob(
                    f"job {item.key.job_id!r} of tenant {item.key.tenant!r} is in this call twice"
                )
            registered[item.key] = Registered(
                key=item.key, body=item.body, spec=item.spec, spec_hash=item.spec.hash()
            )
        self.registry.reserve(registered)
        try:
            self._store([registered[key] for key in sorted(registered)])
        except BaseException:
            self.registry.unreserve(registered)
            raise

    def unregister(self, key: Key) -> None:
        """Delete a job in the whole fleet; a run in progress is not affected.

        The job of a higher version is kept while an instance of a higher version is alive: only
        this process forgets it.
        """
        removed, is_newer = self.jobs.remove(key, self.version, forced=False, holder=self.holder)
        if is_newer:
            if self.is_outranked():
                logger.warning(
                    "%s/%s is not unregistered: a higher version than %s has registered it",
                    *key,
                    self.version,
                    extra=keys(namespace=key.tenant, job_id=key.job_id),
                )
                removed = True
            else:
                removed, _ = self.jobs.remove(key, self.version, forced=True, holder=self.holder)
        self.registry.forget(key, known=removed)

    def reconcile(self, found: Merged) -> None:
        """Write what the tables and this process disagree about, as a sync has found it."""
        self._store_edits(found.edited)
        newer = found.newer if found.newer and not self.is_outranked() else []
        disputed = [*newer, *found.older, *found.missing]
        if disputed:
            self._settle(disputed)

    def _store(self, items: list[Registered]) -> None:
        for _ in range(MOST_ROUNDS):
            items = self._round(items)
            if not items:
                return
        raise StoreUnavailable(
            f"{len(items)} jobs kept changing while they were registered; try again"
        )

    def _round(self, items: list[Registered]) -> list[Registered]:
        """Read, decide, write; return the items whose rows another instance has changed."""
        is_outranked = cache(self.is_outranked)
        writes: list[JobWrite] = []
        for item, known in zip(items, self.jobs.lookup([item.key for item in items]), strict=True):
            stored = known.stored
            if stored is not None and self.version.is_below(stored) and is_outranked():
                self._yield(item, known, stored)
            elif (
                known.spec_hash == item.spec_hash
                and stored == self.version
                and _is_same(known.spec, item.spec)
            ):
                self._attach(item.key, item.spec, known, text=known.spec)
            else:
                writes.append(self._write(item, known))
        again = {write.key for write in writes} - self._apply(writes)
        return [item for item in items if item.key in again]

    def _settle(self, disputed: Iterable[Key]) -> None:
        """Write the definitions of this process over those of other versions, and the rows that
        disappeared. Rows that other instances change concurrently are left to the next sync.
        """
        is_outranked = cache(self.is_outranked)
        found = self.registry.definitions(disputed)
        writes: list[JobWrite] = []
        missing: list[tuple[Registered, Entry, KnownJob]] = []
        known_jobs = self.jobs.lookup([item.key for item, _ in found])
        for (item, entry), known in zip(found, known_jobs, strict=True):
            stored = known.stored or item.removed_by
            if stored is None:
                if entry is None or _was_deleted(item, entry, known):
                    self.registry.sleep(item.key, None)
                else:
                    missing.append((item, entry, known))
            elif stored.is_below(self.version) or (
                self.version.is_below(stored) and not is_outranked()
            ):
                writes.append(self._write(item, known, removed_by=item.removed_by))
            elif known.spec_hash is None:
                self.registry.sleep(item.key, stored)
        self._apply([*writes, *self._restored(missing)])

    def _store_edits(self, edited: Sequence[Key]) -> None:
        """Store the hashes of definitions that were changed by SQL. The first instance uses the new
        definition from then on, the other instances use it after their next sync.
        """
        if not edited:
            return
        writes = []
        for key, known in zip(edited, self.jobs.lookup(edited), strict=True):
            spec = None if known.spec is None else JobSpec.from_json(known.spec)
            before = self.registry.mirrored(key)
            if spec is None or before is None or known.stored is None or spec.foreign:
                continue
            spec_hash = spec.hash()
            if spec_hash != known.spec_hash:
                next_run_at = reschedule(
                    spec.schedule,
                    created_at=known.created_at or known.now,
                    last_fire_at=known.last_fire_at,
                    next_run_at=known.next_run_at,
                    now=known.now,
                    before=before.schedule,
                )
                writes.append(
                    JobWrite(
                        key=key,
                        spec=spec,
                        spec_hash=spec_hash,
                        next_run_at=next_run_at,
                        known=known,
                        version=known.stored,
                        note=EDITED,
                    )
                )
        self._apply(writes)

    def _apply(self, writes: Sequence[JobWrite]) -> set[Key]:
        """Write definitions and mirror them. A key that is not returned was changed by another
        instance.
        """
        new = [write for write in writes if write.known.spec_hash is None]
        changed = [write for write in writes if write.known.spec_hash is not None]
        written: set[Key] = set()
        if new:
            written |= self.jobs.insert(new, holder=self.holder)
        if changed:
            written |= self.jobs.change(changed, holder=self.holder)
        for write in writes:
            if write.key in written:
                known = write.known._replace(
                    spec_hash=write.spec_hash,
                    next_run_at=write.next_run_at,
                    paused_at=write.paused_at or write.known.paused_at,
                    app=write.version.app,
                    version=write.version.version,
                )
                self._attach(write.key, write.spec, known)
                if write.note is not None:
                    self._report(write)
        return written

    def _write(
        self, item: Registered, known: KnownJob, *, removed_by: AppVersion | None = None
    ) -> JobWrite:
        """Decide on the row of a registration. `removed_by`: the version of a tombstone that has
        been deleted since.
        """
        before = None if known.spec is None else JobSpec.from_json(known.spec)
        replaces = known.stored or removed_by
        if replaces == self.version or _is_same(known.spec, item.spec):
            replaces = None
        next_run_at = (
            None
            if _has_run(item, known)
            else reschedule(
                item.spec.schedule,
                created_at=known.created_at or known.now,
                last_fire_at=known.last_fire_at,
                next_run_at=known.next_run_at,
                now=known.now,
                before=None if before is None else before.schedule,
                forgotten_before=self._forgotten_before(known),
            )
        )
        write = JobWrite(
            key=item.key,
            spec=item.spec,
            spec_hash=item.spec_hash,
            next_run_at=next_run_at,
            skip_at=_forgotten_start(item, known, next_run_at),
            known=known,
            version=self.version,
            replaces=replaces,
        )
        if replaces is None:
            return write
        if write.rolls_back:
            return replace(write, note=f"rolled back from {replaces} to {self.version}")
        return replace(write, note=f"{self.version} replaced {replaces}")

    def _restored(
        self, missing: Sequence[tuple[Registered, Entry, KnownJob]]
    ) -> Iterator[JobWrite]:
        """Decide on rows that disappeared: as they were, each with its next fire.

        The mirror may be older than the row was, so fires in the ledger are passed over: the row
        alone knew that they had been skipped or queued.
        """
        if not missing:
            return
        fires = self.jobs.newest_fires(
            [item.key for item, _, _ in missing],
            [entry.next_run_at or known.now for _, entry, known in missing],
        )
        for (item, entry, known), fire in zip(missing, fires, strict=True):
            lost = entry.spec.foreign
            spec = item.spec if lost else entry.spec
            ran = max(filter(None, (known.last_fire_at, fire)), default=None)
            forgotten_before = self._forgotten_before(known)
            oldest = max(filter(None, (ran, forgotten_before)), default=None)
            next_run_at = entry.next_run_at
            if next_run_at is None:
                next_run_at = reschedule(
                    spec.schedule,
                    created_at=known.now,
                    last_fire_at=ran,
                    next_run_at=None,
                    now=known.now,
                    before=None,
                    forgotten_before=forgotten_before,
                )
            elif oldest is not None and next_run_at <= oldest:
                next_run_at = together(spec.schedule, next_run_at, oldest).next_run_at
            yield JobWrite(
                key=item.key,
                spec=spec,
                spec_hash=item.spec_hash if lost else entry.spec_hash,
                next_run_at=next_run_at,
                known=known,
                version=self.version if lost else entry.version,
                paused_at=entry.row.paused_at if entry.row and not entry.tenant_paused else None,
                note=DISAPPEARED,
            )

    def _forgotten_before(self, known: KnownJob) -> datetime | None:
        """Return the moment before which it may be forgotten whether a fire has run.

        The retention of this process counts although nothing was removed yet: whether an old
        one-time job runs must not depend on whether the first sweep was faster.
        """
        if self.retention is None:
            return known.forgotten_before
        oldest = known.now - self.retention
        return max(oldest, known.forgotten_before or oldest)

    def _yield(self, item: Registered, known: KnownJob, stored: AppVersion) -> None:
        """Leave a job to a higher version."""
        if known.spec is not None:
            self._attach(item.key, JobSpec.from_json(known.spec), known)
            if _is_same(known.spec, item.spec):
                return
            message = (
                "%s/%s: the definition of %s does not replace that of %s, because an instance of a"
                " higher version is alive"
            )
        else:
            self.registry.sleep(item.key, stored)
            message = (
                "%s/%s is not registered by %s: it was unregistered by %s, and an instance of a"
                " higher version is alive"
            )
        about = keys(namespace=item.key.tenant, job_id=item.key.job_id)
        logger.info(message, *item.key, self.version, stored, extra=about)

    def _attach(self, key: Key, spec: JobSpec, known: KnownJob, text: str | None = None) -> None:
        self.registry.attach(
            key,
            spec,
            known.spec_hash or b"",
            known.next_run_at,
            version=AppVersion(known.app, known.version),
            paused=known.paused_at is not None,
            text=text,
            tenant_deleted_at=known.tenant_deleted_at,
        )

    def _report(self, write: JobWrite) -> None:
        about = keys(namespace=write.key.tenant, job_id=write.key.job_id)
        if write.note == DISAPPEARED:
            logger.warning(
                "%s/%s is registered again: its row in job had disappeared without unregister()",
                *write.key,
                extra=about,
            )
        elif write.replaces is not None and write.rolls_back:
            logger.warning("%s/%s: %s", *write.key, write.note, extra=about)
            self.events.emit(
                JobRolledBack(
                    tenant=write.key.tenant,
                    job_id=write.key.job_id,
                    app=write.version.app,
                    version=write.version.version,
                    previous_version=write.replaces.version,
                )
            )
        else:
            logger.info("%s/%s: %s", *write.key, write.note, extra=about)


def _was_deleted(item: Registered, entry: Entry, known: KnownJob) -> bool:
    """Whether a job with neither a row nor a tombstone must not be registered again: its tenant was
    deleted since it was registered, or it fires once and that moment has passed.

    `sweep` leaves no tombstone. It removes only one-time jobs without a next fire that ended before
    the retention. In the mirror such a job has no next fire, or, if the mirror is older than the
    end, one that has passed. A definition that this process cannot read can be of a one-time job.
    """
    if known.tenant_deleted_at not in (None, item.tenant_deleted_at):
        return True
    if entry.spec.foreign:
        return entry.next_run_at is None
    to_come = entry.next_run_at is not None and entry.next_run_at > known.now
    return isinstance(entry.spec.schedule, Once) and not to_come


def _has_run(item: Registered, known: KnownJob) -> bool:
    """Whether a one-time job without a start ran when it was registered before, and was removed."""
    plan = item.spec.schedule
    return known.spec is None and known.ran_once and isinstance(plan, Once) and plan.start is None


def _forgotten_start(
    item: Registered, known: KnownJob, next_run_at: datetime | None
) -> datetime | None:
    """Return the start of a one-time job that is new in the tables and too old to run."""
    plan, last = item.spec.schedule, known.last_fire_at
    if known.spec is not None or next_run_at is not None or not isinstance(plan, Once):
        return None
    if plan.start is None or (last is not None and plan.start <= last):
        return None  # it has run
    logger.warning(
        "one-time job %s/%s does not run: its start %s is older than the retention",
        *item.key,
        plan.start.isoformat(),
        extra=keys(namespace=item.key.tenant, job_id=item.key.job_id),
    )
    return plan.start


def _is_same(stored: str | None, spec: JobSpec) -> bool:
    """Whether a stored definition is this one. The stored hash can be of an older definition."""
    return stored is not None and json.loads(stored) == json.loads(spec.to_json())
