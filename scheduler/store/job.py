"""The `job` table: what was registered."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from scheduler.model.definition import AppVersion, JobSpec, Key
from scheduler.model.job import DefinitionChange
from scheduler.model.outcomes import Outcome
from scheduler.model.schedules import Due
from scheduler.store.engine import Database, Row
from scheduler.store.queries import statement

MAX_SWEPT = 1000


class JobRow(NamedTuple):
    """A job, its lease and its newest ledger row, as read for the mirror. paused_at: also of a job
    whose tenant is paused.
    """

    tenant: str
    job_id: str
    spec_hash: bytes
    next_run_at: datetime | None
    paused_at: datetime | None
    trigger_at: datetime | None
    running_fire_at: datetime | None
    holder: str | None
    ledger_at: datetime | None
    last_outcome: str | None
    last_finished_at: datetime | None
    spec: str
    tenant_paused: bool = False
    app: str | None = None
    version: int | None = None


class KnownJob(NamedTuple):
    """What the database knows of a job that is being registered; without a hash it is not
    registered.

    The fields from deleted_at to tenant_deleted_at are of its tombstone, and of that of its tenant.
    ran_once: it was to fire once, at its registration, and was removed after that.
    forgotten_before: whether an earlier fire has run may be forgotten.
    """

    spec_hash: bytes | None
    next_run_at: datetime | None
    paused_at: datetime | None
    created_at: datetime | None
    last_fire_at: datetime | None
    spec: str | None
    now: datetime
    app: str | None = None
    version: int | None = None
    deleted_at: datetime | None = None
    deleted_by_app: str | None = None
    deleted_by_version: int | None = None
    tenant_deleted_at: datetime | None = None
    ran_once: bool = False
    forgotten_before: datetime | None = None

    @property
    def stored(self) -> AppVersion | None:
        """The version that registered the job, or else the one that unregistered it; None: the
        job has neither a row nor a tombstone.
        """
        if self.spec_hash is not None:
            return AppVersion(self.app, self.version)
        if self.deleted_at is not None:
            return AppVersion(self.deleted_by_app, self.deleted_by_version)
        return None


class JobFacts(NamedTuple):
    """Everything that the database knows of one job; `last_` is of its newest fire or trigger."""

    spec: str
    next_run_at: datetime | None
    paused_at: datetime | None
    trigger_at: datetime | None
    running_fire_at: datetime | None
    holder: str | None
    expires_at: datetime | None
    last_fire_at: datetime | None
    last_outcome: str | None
    last_reason: str | None
    last_error: str | None
    now: datetime
    tenant_paused_at: datetime | None
    app: str | None
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWrite:
    """A definition to store, with the row it was decided on.

    replaces: the version of another definition, or of a tombstone. note: the reason, for the
    ledger. skip_at: a fire to record as skipped.
    """

    key: Key
    spec: JobSpec
    spec_hash: bytes
    next_run_at: datetime | None
    known: KnownJob
    version: AppVersion
    paused_at: datetime | None = None
    replaces: AppVersion | None = None
    note: str | None = None
    skip_at: datetime | None = None

    @property
    def rolls_back(self) -> bool:
        """Whether it replaces the definition of a higher version."""
        return self.replaces is not None and self.version.is_below(self.replaces)


class JobTable:
    """Statements on `job`. `now` is the moment a test plays; None is the database's own clock."""

    def __init__(self, database: Database, now: Callable[[], datetime | None]) -> None:
        self._database = database
        self._now = now

    def instant(self) -> datetime:
        """Read the database's clock."""
        moment: datetime = self._run("instant")[0][0]
        return moment

    def mirror(self, tenants: Iterable[str] | None) -> list[JobRow]:
        """Read all jobs of the tenants, or of every tenant."""
        rows = self._run("mirror", tenants=None if tenants is None else sorted(tenants))
        return [JobRow._make(row) for row in rows]

    def page(self, tenant: str, after: str, *, limit: int) -> list[JobRow]:
        """Read jobs of a tenant by id, from the one after `after` on."""
        return [
            JobRow._make(row) for row in self._run("page", tenant=tenant, after=after, limit=limit)
        ]

    def lookup(self, keys: Sequence[Key]) -> list[KnownJob]:
        """Read what is known of each of the keys, in their order."""
        rows = self._run(
            "lookup", tenants=[key.tenant for key in keys], ids=[key.job_id for key in keys]
        )
        return [KnownJob._make(row) for row in rows]

    def newest_fires(self, keys: Sequence[Key], since: Sequence[datetime]) -> list[datetime | None]:
        """Read the newest fire of each job in the ledger, from an instant on."""
        rows = self._run(
            "newest_fires",
            tenants=[key.tenant for key in keys],
            ids=[key.job_id for key in keys],
            since=since,
        )
        return [row[0] for row in rows]

    def insert(self, writes: Sequence[JobWrite], *, holder: str) -> set[Key]:
        """Insert new jobs and return which; a missing key was inserted, or has fired, by somebody
        else.
        """
        written: set[Key] = set()
        for note in dict.fromkeys(write.note for write in writes):
            noted = [write for write in writes if write.note == note]
            rows = self._run(
                "insert",
                holder=holder,
                note=note,
                last_fires=[write.known.last_fire_at for write in noted],
                paused=[write.paused_at for write in noted],
                deleted=[write.known.deleted_at for write in noted],
                skips=[write.skip_at for write in noted],
                forgotten=[write.known.forgotten_before for write in noted],
                **_columns(noted),
            )
            written |= {Key(*row[:2]) for row in rows}
        return written

    def change(self, writes: Sequence[JobWrite], *, holder: str) -> set[Key]:
        """Change definitions and return whose; a missing key was changed or fired by somebody
        else.
        """
        rows = self._run(
            "change",
            holder=holder,
            notes=[write.note for write in writes],
            old_hashes=[write.known.spec_hash for write in writes],
            old_specs=[write.known.spec for write in writes],
            old_nexts=[write.known.next_run_at for write in writes],
            old_apps=[write.known.app for write in writes],
            old_versions=[write.known.version for write in writes],
            **_columns(writes),
        )
        return {Key(*row[:2]) for row in rows}

    def remove(
        self, key: Key, version: AppVersion, *, forced: bool, holder: str
    ) -> tuple[bool, bool]:
        """Delete a job and leave a tombstone; its lock row stays. Return whether the job was
        deleted, and whether it was kept because it is of a higher version; `forced` deletes it
        then too.
        """
        ((removed, is_newer, _),) = self._run(
            "remove",
            tenant=key.tenant,
            id=key.job_id,
            app=version.app,
            version=version.version,
            forced=forced,
            holder=holder,
        )
        return bool(removed), bool(is_newer)

    def pause(self, key: Key, *, holder: str) -> datetime | None:
        """Pause a job and say since when it is; None: there is no such job."""
        rows = self._run("pause", tenant=key.tenant, id=key.job_id, holder=holder)
        return rows[0][0] if rows else None

    def resume(
        self,
        key: Key,
        known: KnownJob,
        passed: Due | None,
        next_run_at: datetime | None,
        *,
        holder: str,
    ) -> bool:
        """Let a paused job go on with a fire, and record what `passed` meanwhile; False: it
        changed, look again.
        """
        return bool(
            self._run(
                "resume",
                tenant=key.tenant,
                id=key.job_id,
                spec_hash=known.spec_hash,
                old_next=known.next_run_at,
                next=next_run_at,
                fire=passed.fire_at if passed else None,
                missed_from=passed.missed_from if passed else None,
                missed_count=passed.missed_count if passed else 0,
                holder=holder,
            )
        )

    def trigger(self, key: Key) -> datetime | None:
        """Ask for a run and return its instant; None: there is no such job."""
        rows = self._run("trigger", tenant=key.tenant, id=key.job_id)
        return rows[0][0] if rows else None

    def explain(self, key: Key) -> JobFacts | None:
        """Read everything that is known of a job."""
        rows = self._run("explain", tenant=key.tenant, id=key.job_id)
        return JobFacts._make(rows[0]) if rows else None

    def changes(self, key: Key, *, limit: int) -> list[DefinitionChange]:
        """Read the newest registrations and changes of a job, newest first."""
        return [
            DefinitionChange(at=at, outcome=Outcome(outcome), reason=reason, holder=holder)
            for at, outcome, reason, holder in self._run(
                "changes", tenant=key.tenant, id=key.job_id, limit=limit
            )
        ]

    def forget(self, keep: timedelta, *, every: timedelta) -> datetime | None:
        """Forget fires that are older than `keep`, and return their limit; None: any instance has
        done so within `every`.
        """
        rows = self._run("forget", keep=keep, every=every)
        return rows[0][0] if rows else None

    def sweep(self, before: datetime) -> tuple[int, int]:
        """Remove one-time jobs and lock rows without a job that ended before a moment; return how
        many of each, up to `MAX_SWEPT`.
        """
        ((jobs, locks),) = self._run("sweep", before=before, limit=MAX_SWEPT)
        return jobs, locks

    def _run(self, name: str, **parameters: object) -> list[Row]:
        query = statement("job", name, self._database.schema)
        return self._database.run(
            query, {"now": self._now(), "channel": self._database.schema, **parameters}
        )


def _columns(writes: Sequence[JobWrite]) -> dict[str, list[object]]:
    return {
        "tenants": [write.key.tenant for write in writes],
        "ids": [write.key.job_id for write in writes],
        "specs": [write.spec.to_json() for write in writes],
        "hashes": [write.spec_hash for write in writes],
        "deliveries": [write.spec.delivery for write in writes],
        "overlaps": [write.spec.policy.overlap for write in writes],
        "nexts": [write.next_run_at for write in writes],
        "apps": [write.version.app for write in writes],
        "versions": [write.version.version for write in writes],
    }
