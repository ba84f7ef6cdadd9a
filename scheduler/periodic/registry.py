"""The registry: what this process can run, and the mirror of the tables per tenant.

Comes in: registrations, and rows from the sync. Goes out: what is due, and `jobs()` without a
query. No I/O under its lock.
"""

import heapq
import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from scheduler.errors import DuplicateJob, UnknownJob
from scheduler.model.body import Body
from scheduler.model.definition import NO_VERSION, AppVersion, JobSpec, Key
from scheduler.model.job import JobInfo
from scheduler.periodic.entry import Entry
from scheduler.store.job import JobRow

AT_ONCE = datetime.min.replace(tzinfo=UTC)
LARGEST_LOOK = 1000
PATIENCE = (0.05, 0.15)  # seconds; each instance has its own, so that one of them comes first


@dataclass(slots=True, kw_only=True)
class Registered:
    """A job that this process has registered: its function, and the newest definition of the
    version of this process.

    tenant_deleted_at: the tombstone of the tenant that the registration found. removed_by: the
    version that unregistered the job since.
    """

    key: Key
    body: Body
    spec: JobSpec
    spec_hash: bytes
    tenant_deleted_at: datetime | None = None
    removed_by: AppVersion | None = None


@dataclass(slots=True)
class Merged:
    """The result of a merge: the number of jobs, and the jobs whose rows this process may have to
    write.

    edited: `spec_hash` is not the hash of `spec`. newer, older: jobs of this process that another
    version of its app has registered or unregistered. missing: jobs of this process whose rows have
    disappeared.
    """

    jobs: int = 0
    edited: list[Key] = field(default_factory=list)
    newer: list[Key] = field(default_factory=list)
    older: list[Key] = field(default_factory=list)
    missing: list[Key] = field(default_factory=list)


class Registry:
    """Jobs by tenant, and a heap of what this process can run by when it is due."""

    def __init__(
        self,
        registered: dict[Key, Registered] | None = None,
        app_version: AppVersion = NO_VERSION,
    ) -> None:
        self._lock = threading.Lock()
        self._app_version = app_version
        self._tenants: dict[str, dict[str, Entry]] = {}
        inherited = registered or {}
        self._registered = {key: each for key, each in inherited.items() if not each.removed_by}
        # Unregistered by another instance; run again if the job comes back.
        self._dormant = {key: each for key, each in inherited.items() if each.removed_by}
        self._missing: dict[Key, Entry] = {}  # jobs whose rows disappeared, as they were
        self._heap: list[tuple[datetime, float, Key]] = []
        self._patience = timedelta(seconds=random.uniform(*PATIENCE))  # noqa: S311 - spreads instances
        self._epoch = 0
        self.instances = 1  # how many live, as of the last beat
        self.version = 0  # grows whenever what this process can run changes
        self._gone: dict[
            Key, int
        ] = {}  # unregistered here, by epoch: a sync under way may still show them

    def reserve(self, registered: dict[Key, Registered]) -> None:
        """Take ids for this process before anything is written; all of them or none."""
        with self._lock:
            for key in registered:
                if key in self._registered:
                    raise DuplicateJob(
                        f"job {key.job_id!r} of tenant {key.tenant!r} is already registered in "
                        "this process;"
                        " unregister it first, or choose another id"
                    )
            self._registered.update(registered)
            self.version += 1
            for key in registered:
                self._dormant.pop(key, None)

    def unreserve(self, keys: Iterable[Key]) -> None:
        """Give ids back whose registration failed."""
        with self._lock:
            self.version += 1
            for key in keys:
                self._registered.pop(key, None)
                self._missing.pop(key, None)
                entry = self._tenants.get(key.tenant, {}).get(key.job_id)
                if entry is not None:
                    entry.body = None

    def attach(
        self,
        key: Key,
        spec: JobSpec,
        spec_hash: bytes,
        next_run_at: datetime | None,
        *,
        version: AppVersion = NO_VERSION,
        paused: bool = False,
        text: str | None = None,
        tenant_deleted_at: datetime | None = None,
    ) -> None:
        """Mirror a job that this process has just registered."""
        with self._lock:
            self._gone.pop(key, None)
            entry = self._entry(key)
            entry.spec, entry.spec_hash, entry.paused = spec, spec_hash, paused
            entry.version, entry.text = version, text
            mine = self._registered.get(key)
            if mine is not None:
                mine.tenant_deleted_at = tenant_deleted_at
                self._adopt(mine, entry)
            entry.fire_wait = None
            self._touch(entry, next_run_at)

    def forget(self, key: Key, *, known: bool) -> None:
        """Drop a job that was unregistered; `known` false raises if it was not even here."""
        with self._lock:
            mirrored = self._tenants.get(key.tenant, {}).pop(key.job_id, None)
            mine = self._registered.pop(key, None) or self._dormant.pop(key, None)
            self._missing.pop(key, None)
            self.version += 1
            self._epoch += 1
            self._gone[key] = self._epoch
        here = mirrored is not None or mine is not None
        if not here and not known:
            raise UnknownJob(
                f"there is no job {key.job_id!r} of tenant {key.tenant!r} to unregister"
            )

    def forget_tenant(self, tenant: str) -> None:
        """Drop the jobs of a tenant that was deleted, with their functions."""
        with self._lock:
            known = {Key(tenant, job_id) for job_id in self._tenants.get(tenant, {})}
            known |= {key for key in (*self._registered, *self._dormant) if key.tenant == tenant}
        for key in known:
            self.forget(key, known=True)

    def epoch(self) -> int:
        """Mark a moment: what is written here after it is newer than what a sync reads now."""
        with self._lock:
            self._epoch += 1
            return self._epoch

    def sleep(self, key: Key, removed_by: AppVersion | None) -> None:
        """Keep the function of a job that was unregistered elsewhere, until the job comes back."""
        with self._lock:
            self._missing.pop(key, None)
            if key.job_id in self._tenants.get(key.tenant, {}):
                return  # it came back
            mine = self._registered.pop(key, None) or self._dormant.get(key)
            if mine is not None:
                mine.removed_by = removed_by
                self._dormant[key] = mine
                self.version += 1

    def merge(self, rows: Iterable[JobRow], *, epoch: int) -> Merged:
        """Mirror what a sync read; local writes since `epoch` are newer and stay."""
        with self._lock:
            merged, seen = Merged(), set[Key]()
            for row in rows:
                key = Key(row.tenant, row.job_id)
                if self._gone.get(key, 0) <= epoch:
                    seen.add(key)
                    entry = self._entry(key)
                    if entry.epoch <= epoch:
                        self._mirror(entry, row, merged)
            self._drop_unseen(seen, epoch)
            merged.missing = list(self._missing)
            for key, mine in self._dormant.items():
                self._compare(key, mine.removed_by, merged)
            self._gone = {key: since for key, since in self._gone.items() if since > epoch}
            merged.jobs = sum(map(len, self._tenants.values()))
            if len(self._heap) > 2 * merged.jobs + 1000:
                self._rebuild()
            return merged

    def due(self, now: datetime, limit: int) -> list[Entry]:
        """Take up to `limit` jobs that are due and runnable here; each must be handed back by
        `put_back`.

        Those that are another's do not count: they are only looked at.
        """
        taken: list[Entry] = []
        with self._lock:
            while self._heap and limit and len(taken) < LARGEST_LOOK and self._heap[0][0] <= now:
                wake_at, _, key = heapq.heappop(self._heap)
                entry = self._tenants.get(key.tenant, {}).get(key.job_id)
                if entry is None or entry.wake_at != wake_at or not entry.runnable:
                    continue  # superseded by a newer heap entry
                entry.wake_at = None
                taken.append(entry)
                limit -= not entry.theirs
        return taken

    def put_back(
        self, entry: Entry, next_run_at: datetime | None, *, not_before: datetime | None = None
    ) -> None:
        """Hand a taken job back with its next fire, to be looked at then, or not before a later
        moment.
        """
        with self._lock:
            if (
                self._tenants.get(entry.key.tenant, {}).get(entry.key.job_id) is entry
                and entry.wake_at is None
            ):
                entry.tries = entry.tries + 1 if not_before else 0
                entry.fire_wait = not_before
                self._touch(entry, next_run_at)

    def pulled(
        self, entry: Entry, trigger_at: datetime | None, *, not_before: datetime | None = None
    ) -> None:
        """Note what became of a job's trigger: taken (None), or still there and to be asked for
        again later.
        """
        with self._lock:
            if self._tenants.get(entry.key.tenant, {}).get(entry.key.job_id) is entry:
                entry.trigger_at, entry.trigger_wait = trigger_at, not_before
                self._touch(entry, entry.next_run_at)

    def hasten(self, key: Key) -> bool:
        """Look at a job that waited for its own run as soon as it is due; say whether it waited."""
        with self._lock:
            entry = self._tenants.get(key.tenant, {}).get(key.job_id)
            if (
                entry is None
                or entry.wake_at is None
                or not (entry.fire_wait or entry.trigger_wait)
            ):
                return False
            entry.fire_wait = entry.trigger_wait = None
            self._schedule(entry, entry.next_run_at)
            return True

    def next_due(self) -> datetime | None:
        """Return when the next runnable job is due."""
        with self._lock:
            while self._heap:
                wake_at, _, key = self._heap[0]
                entry = self._tenants.get(key.tenant, {}).get(key.job_id)
                if entry is not None and entry.wake_at == wake_at and entry.runnable:
                    return wake_at
                heapq.heappop(self._heap)
        return None

    def body(self, key: Key) -> tuple[Body, JobSpec] | None:
        """Return what to run for a job and its present definition, if this process can run it."""
        with self._lock:
            entry = self._tenants.get(key.tenant, {}).get(key.job_id)
            return (
                None
                if entry is None or entry.body is None or entry.body.queued or not entry.runnable
                else (entry.body, entry.spec)
            )

    def queued(self, key: Key) -> Entry | None:
        """Return a job with a queue, if this process can submit its fires."""
        with self._lock:
            entry = self._tenants.get(key.tenant, {}).get(key.job_id)
            return entry if entry and entry.runnable and entry.spec.work is not None else None

    def definitions(self, keys: Iterable[Key]) -> list[tuple[Registered, Entry | None]]:
        """Copy what this process has registered of these jobs, by key, each with the mirrored job
        whose row disappeared.
        """
        with self._lock:
            found = [self._registered.get(key) or self._dormant.get(key) for key in sorted(keys)]
            return [(replace(mine), self._missing.get(mine.key)) for mine in found if mine]

    def mirrored(self, key: Key) -> JobSpec | None:
        """Return the definition of a job in the mirror."""
        with self._lock:
            entry = self._tenants.get(key.tenant, {}).get(key.job_id)
            return None if entry is None else entry.spec

    def runs(self) -> tuple[int, list[Key]]:
        """List the jobs whose present form this process has registered, with the version of that
        list.
        """
        with self._lock:
            return self.version, sorted(key for key in self._registered if self._has_form(key))

    def can_run(self, key: Key) -> bool:
        """Whether this process has registered the present form of a job."""
        with self._lock:
            return key in self._registered and self._has_form(key)

    def helpless(self) -> bool:
        """Whether there is a job here whose function this process has not."""
        with self._lock:
            return any(
                not entry.runnable for jobs in self._tenants.values() for entry in jobs.values()
            )

    def tenants(self) -> list[str]:
        """List the tenants of which this process runs something."""
        with self._lock:
            return sorted({key.tenant for key in (*self._registered, *self._dormant)})

    def inherited(self) -> dict[Key, Registered]:
        """Copy what the parent of a fork could run; without the lock, whose holder may not exist
        here.
        """
        return {**self._dormant, **self._registered}

    def jobs(self, tenant: str | None) -> list[JobInfo]:
        """Show the mirror."""
        with self._lock:
            chosen = self._tenants if tenant is None else {tenant: self._tenants.get(tenant, {})}
            return [
                entry.info() for name in sorted(chosen) for _, entry in sorted(chosen[name].items())
            ]

    def _mirror(self, entry: Entry, row: JobRow, merged: Merged) -> None:
        entry.row = row
        if entry.spec_hash != row.spec_hash or entry.text != row.spec:
            self._read(entry, row, merged)
        if (entry.version.version, entry.version.app) != (row.version, row.app):
            entry.version = AppVersion(row.app, row.version)
        mine = self._registered.get(entry.key)
        if mine is not None:
            self._adopt(mine, entry)
            self._compare(entry.key, entry.version, merged)
        seen = (entry.next_run_at, entry.paused, entry.tenant_paused, entry.trigger_at)
        entry.paused, entry.trigger_at = row.paused_at is not None, row.trigger_at
        entry.tenant_paused = row.tenant_paused
        now = (row.next_run_at, entry.paused, entry.tenant_paused, entry.trigger_at)
        if entry.wake_at is None or seen != now:
            entry.fire_wait = entry.trigger_wait = None
            self._schedule(entry, row.next_run_at)

    def _read(self, entry: Entry, row: JobRow, merged: Merged) -> None:
        """Read the definition of a row. If `spec` was changed by SQL, its hash is not `spec_hash`:
        the old definition is used until the new hash is stored.
        """
        spec = JobSpec.from_json(row.spec)
        known = entry.spec_hash == row.spec_hash
        if not spec.foreign and spec.hash() != row.spec_hash:
            merged.edited.append(entry.key)
            if known:
                return
        else:
            entry.text = row.spec
        if not known or spec.foreign or entry.spec.foreign:
            entry.spec, entry.spec_hash = spec, row.spec_hash
            entry.next_run_at = None
            self.version += entry.body is not None  # it may have the other form now

    def _adopt(self, mine: Registered, entry: Entry) -> None:
        """Follow what another instance of the same version has registered."""
        mine.removed_by = None
        follows = entry.version == self._app_version and not entry.spec.foreign
        if follows and mine.spec_hash != entry.spec_hash:
            mine.spec, mine.spec_hash = entry.spec, entry.spec_hash

    def _compare(self, key: Key, version: AppVersion | None, merged: Merged) -> None:
        if version is None or version == self._app_version:
            return
        if self._app_version.is_below(version):
            merged.newer.append(key)
        elif version.is_below(self._app_version):
            merged.older.append(key)

    def _has_form(self, key: Key) -> bool:
        entry = self._tenants.get(key.tenant, {}).get(key.job_id)
        return entry is None or entry.runnable

    def _drop_unseen(self, seen: set[Key], epoch: int) -> None:
        for tenant, jobs in list(self._tenants.items()):
            for entry in [
                entry for entry in jobs.values() if entry.key not in seen and entry.epoch <= epoch
            ]:
                del jobs[entry.key.job_id]
                if entry.key in self._registered:
                    self._missing[entry.key] = entry
            if not jobs:
                del self._tenants[tenant]

    def _rebuild(self) -> None:
        """Forget the heap entries of jobs that were unregistered or moved before they came due."""
        entries = [entry for jobs in self._tenants.values() for entry in jobs.values()]
        self._heap = [
            (entry.wake_at, entry.turn, entry.key)
            for entry in entries
            if entry.wake_at and entry.runnable
        ]
        heapq.heapify(self._heap)

    def _entry(self, key: Key) -> Entry:
        self._missing.pop(key, None)
        if key in self._dormant:
            self._registered.setdefault(key, self._dormant.pop(key))
            self.version += 1
        jobs = self._tenants.setdefault(key.tenant, {})
        entry = jobs.get(key.job_id)
        if entry is None:
            entry = jobs[key.job_id] = Entry(key, None)
        mine = self._registered.get(key)
        entry.body = None if mine is None else mine.body
        return entry

    def _touch(self, entry: Entry, next_run_at: datetime | None) -> None:
        self._epoch += 1
        entry.epoch = self._epoch
        self._schedule(entry, next_run_at)

    def _schedule(self, entry: Entry, next_run_at: datetime | None) -> None:
        entry.next_run_at = next_run_at
        moments = []
        if next_run_at is not None and not entry.paused:
            moments.append(
                max(next_run_at, entry.fire_wait or entry.look_at(next_run_at, self._patience))
            )
        if entry.trigger_at is not None and not entry.tenant_paused:
            moments.append(entry.trigger_wait or AT_ONCE)
        entry.wake_at = min(moments, default=None)
        if entry.wake_at is not None and entry.runnable:
            heapq.heappush(self._heap, (entry.wake_at, entry.turn, entry.key))
