"""The registry: what this process can run, and the mirror of the tables per tenant.

Comes in: registrations, and rows from the sync. Goes out: what is due, and `jobs()` without a
query. No I/O under its lock.
"""

import heapq
import random
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from scheduler.errors import DuplicateJob, UnknownJob
from scheduler.model.body import Body
from scheduler.model.definition import JobSpec, Key
from scheduler.model.job import JobInfo
from scheduler.periodic.entry import Entry
from scheduler.store.job import JobRow

AT_ONCE = datetime.min.replace(tzinfo=UTC)
LARGEST_LOOK = 1000
PATIENCE = (0.05, 0.15)  # seconds; each instance has its own, so that one of them comes first


class Registry:
    """Jobs by tenant, and a heap of what this process can run by when it is due."""

    def __init__(self, bodies: dict[Key, Body] | None = None) -> None:
        self._lock = threading.Lock()
        self._tenants: dict[str, dict[str, Entry]] = {}
        self._bodies = dict(bodies or {})
        self._dormant: dict[
            Key, Body
        ] = {}  # unregistered by another instance; run again if it comes back
        self._heap: list[tuple[datetime, float, Key]] = []
        self._patience = timedelta(seconds=random.uniform(*PATIENCE))  # noqa: S311 - spreads instances
        self._epoch = 0
        self.instances = 1  # how many live, as of the last beat
        self.version = 0  # grows whenever what this process can run changes
        self._gone: dict[
            Key, int
        ] = {}  # unregistered here, by epoch: a sync under way may still show them

    def reserve(self, bodies: dict[Key, Body]) -> None:
        """Take ids for this process before anything is written; all of them or none."""
        with self._lock:
            for key in bodies:
                if key in self._bodies:
                    raise DuplicateJob(
                        f"job {key.job_id!r} of tenant {key.tenant!r} is already registered in "
                        "this process;"
                        " unregister it first, or choose another id"
                    )
            self._bodies.update(bodies)
            self.version += 1
            for key in bodies:
                self._dormant.pop(key, None)

    def unreserve(self, keys: Iterable[Key]) -> None:
        """Give ids back whose registration failed."""
        with self._lock:
            self.version += 1
            for key in keys:
                self._bodies.pop(key, None)
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
        paused: bool = False,
    ) -> None:
        """Mirror a job that this process has just registered."""
        with self._lock:
            self._gone.pop(key, None)
            entry = self._entry(key)
            entry.spec, entry.spec_hash, entry.paused = spec, spec_hash, paused
            entry.fire_wait = None
            self._touch(entry, next_run_at)

    def forget(self, key: Key, *, known: bool) -> None:
        """Drop a job that was unregistered; `known` false raises if it was not even here."""
        with self._lock:
            mirrored = self._tenants.get(key.tenant, {}).pop(key.job_id, None)
            body = self._bodies.pop(key, None) or self._dormant.pop(key, None)
            self.version += 1
            self._epoch += 1
            self._gone[key] = self._epoch
        here = mirrored is not None or body is not None
        if not here and not known:
            raise UnknownJob(
                f"there is no job {key.job_id!r} of tenant {key.tenant!r} to unregister"
            )

    def epoch(self) -> int:
        """Mark a moment: what is written here after it is newer than what a sync reads now."""
        with self._lock:
            self._epoch += 1
            return self._epoch

    def merge(self, rows: Iterable[JobRow], *, epoch: int) -> int:
        """Mirror what a sync read; local writes since `epoch` are newer and stay. Returns how many
        jobs there are.
        """
        with self._lock:
            seen: set[Key] = set()
            for row in rows:
                key = Key(row.tenant, row.job_id)
                if self._gone.get(key, 0) <= epoch:
                    seen.add(key)
                    entry = self._entry(key)
                    if entry.epoch <= epoch:
                        self._mirror(entry, row)
            self._drop_unseen(seen, epoch)
            self._gone = {key: since for key, since in self._gone.items() if since > epoch}
            count = sum(map(len, self._tenants.values()))
            if len(self._heap) > 2 * count + 1000:
                self._rebuild()
            return count

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

    def runs(self) -> tuple[int, list[Key]]:
        """List the jobs whose present form this process has registered, with the version of that
        list.
        """
        with self._lock:
            return self.version, sorted(key for key in self._bodies if self._has_form(key))

    def helpless(self) -> bool:
        """Whether there is a job here whose function this process has not."""
        with self._lock:
            return any(
                not entry.runnable for jobs in self._tenants.values() for entry in jobs.values()
            )

    def tenants(self) -> list[str]:
        """List the tenants of which this process runs something."""
        with self._lock:
            return sorted({key.tenant for key in (*self._bodies, *self._dormant)})

    def inherited(self) -> dict[Key, Body]:
        """Copy what the parent of a fork could run; without the lock, whose holder may not exist
        here.
        """
        return {**self._dormant, **self._bodies}

    def jobs(self, tenant: str | None) -> list[JobInfo]:
        """Show the mirror."""
        with self._lock:
            chosen = self._tenants if tenant is None else {tenant: self._tenants.get(tenant, {})}
            return [
                entry.info() for name in sorted(chosen) for _, entry in sorted(chosen[name].items())
            ]

    def _mirror(self, entry: Entry, row: JobRow) -> None:
        entry.row = row
        if entry.spec_hash != row.spec_hash:
            entry.spec = JobSpec.from_json(row.spec)
            entry.spec_hash = row.spec_hash
            entry.next_run_at = None
            self.version += entry.body is not None  # it may have the other form now
        seen = (entry.next_run_at, entry.paused, entry.trigger_at)
        entry.paused, entry.trigger_at = row.paused_at is not None, row.trigger_at
        if entry.wake_at is None or seen != (row.next_run_at, entry.paused, entry.trigger_at):
            entry.fire_wait = entry.trigger_wait = None
            self._schedule(entry, row.next_run_at)

    def _has_form(self, key: Key) -> bool:
        entry = self._tenants.get(key.tenant, {}).get(key.job_id)
        return entry is None or entry.runnable

    def _drop_unseen(self, seen: set[Key], epoch: int) -> None:
        for tenant, jobs in list(self._tenants.items()):
            for entry in [
                entry for entry in jobs.values() if entry.key not in seen and entry.epoch <= epoch
            ]:
                del jobs[entry.key.job_id]
                self._sleep(entry.key)
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

    def _sleep(self, key: Key) -> None:
        body = self._bodies.pop(key, None)
        if body is not None:
            self._dormant[key] = body
            self.version += 1

    def _entry(self, key: Key) -> Entry:
        if key in self._dormant:
            self._bodies.setdefault(key, self._dormant.pop(key))
            self.version += 1
        jobs = self._tenants.setdefault(key.tenant, {})
        entry = jobs.get(key.job_id)
        if entry is None:
            entry = jobs[key.job_id] = Entry(key, None)
        entry.body = self._bodies.get(key)
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
        if entry.trigger_at is not None:
            moments.append(entry.trigger_wait or AT_ONCE)
        entry.wake_at = min(moments, default=None)
        if entry.wake_at is not None and entry.runnable:
            heapq.heappush(self._heap, (entry.wake_at, entry.turn, entry.key))
