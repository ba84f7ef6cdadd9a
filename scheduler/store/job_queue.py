"""The tables of one-shot jobs: `job_queue`, `job_ready`, `job_dependency`, `job_key`, as steps of a
transaction.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from scheduler.model.dependencies import Edge
from scheduler.model.fairness import FIRST, Place, Share
from scheduler.model.states import EXPIRED, State
from scheduler.model.submission import Draft
from scheduler.store.arrays import Packed, blobs, instants, integers, numbers, texts, uuids
from scheduler.store.queries import statement
from scheduler.store.queues import QueuesTable
from scheduler.store.steps import Statement
from scheduler.store.tenants import TenantTable

T = TypeVar("T")


class JobKey(NamedTuple):
    """What names a one-shot job."""

    tenant: str
    id: UUID


class Straight(NamedTuple):
    """A queue that its submitter would push into, and the mark that it knows of."""

    queue: str
    epoch: int


class Dependency(NamedTuple):
    """An edge: a job, what it waits for, and how."""

    tenant: str
    job_id: UUID
    depends_on: UUID
    kind: Edge


# Neither frozen nor by name alone, as a `QueuedJob`: made for every job that ends.
@dataclass(slots=True)
class Ending:
    """The end of a job. Without a feed it ends whichever feed is under way.

    `record`: its last attempt, as JSON, if there is more to say of it than `worker`, `started_at`
    and `finished_at`. sequence: of the lease of that attempt, 0: none. recorded_at: when Redis took
    the result, if the end is one. After the lifetime of the job it is a dead letter, whatever its
    `state`. scheduled_at: when it was pushed, if that was not when it was submitted.
    """

    key: JobKey
    state: State
    feed: int | None = None
    attempt: int = 0
    reason: str | None = None
    error: str | None = None
    result: bytes | None = None
    record: str | None = None
    worker: str | None = None
    sequence: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    recorded_at: datetime | None = None
    scheduled_at: datetime | None = None


class QueueTable:
    """Statements on the tables of one-shot jobs. `now` is the moment a test plays; None is the
    database's own clock.
    """

    def __init__(self, schema: str, now: Callable[[], datetime | None]) -> None:
        self._schema = schema
        self._now = now
        self.queues = QueuesTable(schema, now)
        self.tenants = TenantTable(schema, now, queue_channel=queue_channel(schema))

    def submit(
        self, drafts: Sequence[Draft], straight: Straight | None = None, *, refuse: bool = True
    ) -> Statement:
        """Insert jobs; those that wait for nobody may be fed at once: (now, whether the caller
        pushes them). refuse: raise if a tenant is being deleted.
        """
        first = drafts[0]
        labels = _labels(first)
        if not first.open_dependencies and all(each == labels for each in map(_labels, drafts)):
            ids, payloads = (
                uuids(draft.id for draft in drafts),
                blobs([draft.payload for draft in drafts]),
            )
            return self._statement(
                "submit_alike",
                **self._one(first, straight, refuse=refuse),
                ids=ids,
                payloads=payloads,
            )
        return self._statement(
            "submit",
            tenants=[draft.tenant for draft in drafts],
            ids=[draft.id for draft in drafts],
            types=[draft.type for draft in drafts],
            queues=[draft.queue for draft in drafts],
            priorities=[draft.priority for draft in drafts],
            run_ats=_sparse(draft.run_at for draft in drafts),
            delays=_sparse(draft.delay for draft in drafts),
            lifetimes=[draft.lifetime for draft in drafts],
            opens=[draft.open_dependencies for draft in drafts],
            depths=[draft.depth for draft in drafts],
            jsons=[draft.form == "json" for draft in drafts],
            payloads=[draft.payload for draft in drafts],
            policies=_sparse(draft.policy for draft in drafts),
            tags=_sparse(draft.tags for draft in drafts),
            correlations=_sparse(draft.correlation_id for draft in drafts),
            callbacks=_sparse(draft.callback_url for draft in drafts),
            retried=_sparse(draft.retried_from for draft in drafts),
            previous=_sparse(draft.previous_attempt_id for draft in drafts),
            traces=_sparse(draft.trace for draft in drafts),
            keys=_sparse(draft.key for draft in drafts),
            **self._how(straight, refuse=refuse),
        )

    def submit_one(self, draft: Draft, straight: Straight | None = None) -> Statement:
        """Insert one job that waits for nobody: (now, whether the caller pushes it)."""
        return self._statement(
            "submit_one", **self._one(draft, straight), id=draft.id, payload=draft.payload
        )

    def _how(self, straight: Straight | None, *, refuse: bool) -> dict[str, object]:
        queue, epoch = straight or (None, None)
        channel = queue_channel(self._schema)
        return {"straight": queue, "epoch": epoch, "channel": channel, "refuse": refuse}

    def _one(
        self, draft: Draft, straight: Straight | None, *, refuse: bool = True
    ) -> dict[str, object]:
        return {
            "tenant": draft.tenant,
            "type": draft.type,
            "queue": draft.queue,
            "priority": int(draft.priority),
            "run_at": draft.run_at,
            "delay": draft.delay,
            "lifetime": draft.lifetime,
            "depth": draft.depth,
            "json": draft.form == "json",
            "policy": draft.policy,
            "tags": draft.tags,
            "correlation_id": draft.correlation_id,
            "callback_url": draft.callback_url,
            "retried_from": draft.retried_from,
            "previous_attempt_id": draft.previous_attempt_id,
            "trace": draft.trace,
            "key": draft.key,
            **self._how(straight, refuse=refuse),
        }

    def depend(self, edges: Sequence[Dependency]) -> Statement:
        """Insert edges."""
        return self._statement("depend", **_edges(edges))

    def claim_keys(self, drafts: Sequence[Draft]) -> Statement:
        """Take idempotency keys, or learn whose they are: (tenant, type, key, id) each."""
        return self._statement(
            "claim_keys",
            tenants=[draft.tenant for draft in drafts],
            types=[draft.type for draft in drafts],
            keys=[draft.key for draft in drafts],
            ids=[draft.id for draft in drafts],
            windows=[draft.window for draft in drafts],
        )

    def hold_dependencies(self, keys: Iterable[JobKey]) -> Statement:
        """Keep live jobs from ending unseen: (tenant, id, priority, depth) each."""
        return self._statement("hold_dependencies", **packed(keys))

    def alias(self, owners: Mapping[JobKey, UUID]) -> Statement:
        """Store aliases of jobs."""
        return self._statement("alias", **packed(owners), owners=uuids(owners.values()))

    def aliased(self, keys: Iterable[JobKey]) -> Statement:
        """Read the jobs of which these ids are aliases: (tenant, id, id of the job) each."""
        return self._statement("aliased", **packed(keys))

    def ended(self, keys: Iterable[JobKey]) -> Statement:
        """Read how jobs ended: (tenant, id, state) each."""
        return self._statement("ended", **packed(keys))

    def settle(self, endings: Sequence[Ending]) -> Statement:
        """Move jobs into the ledger: (position from 1, whether its result was too late) of each
        that was there and free.
        """
        return self._statement(
            "settle",
            **packed(ending.key for ending in endings),
            states=texts(ending.state for ending in endings),
            feeds=integers(ending.feed for ending in endings),
            attempt_numbers=integers(ending.attempt for ending in endings),
            reasons=texts(_sparse([ending.reason for ending in endings])),
            errors=texts(_sparse([ending.error for ending in endings])),
            results=blobs(_sparse([ending.result for ending in endings])),
            records=texts(_sparse([ending.record for ending in endings])),
            workers=texts(ending.worker for ending in endings),
            sequences=numbers(ending.sequence for ending in endings),
            started=instants(ending.started_at for ending in endings),
            finished=instants(ending.finished_at for ending in endings),
            recorded=instants(ending.recorded_at for ending in endings),
            scheduled=instants(_sparse([ending.scheduled_at for ending in endings])),
            expired=EXPIRED,
        )

    def any_dependents(self) -> Statement:
        """Read whether any job waits for another: mostly none does, and nobody has to be looked
        for.
        """
        return self._statement("any_dependents")

    def dependents(self, keys: Iterable[JobKey]) -> Statement:
        """Read the edges that lead to jobs: a `Dependency` each."""
        return self._statement("dependents", **packed(keys))

    def hold_dependents(self, keys: Iterable[JobKey]) -> Statement:
        """Lock jobs that wait for others, in order."""
        return self._statement("hold_dependents", **packed(keys))

    def release(self, edges: Sequence[Dependency]) -> Statement:
        """Take edges away; what waits for nobody any more may be fed."""
        return self._statement("release", **_edges(edges))

    def waiting(self, *, after: Place = FIRST, limit: int) -> Statement:
        """Read who waits to be fed, from a place on: a `Waiting` each, by queue, priority and
        tenant.
        """
        return self._statement("waiting", **after._asdict(), limit=limit)

    def feed(self, queue: str, shares: Sequence[Share]) -> Statement:
        """Take what is due out of one queue: of each priority and tenant its share. None may be
        named twice.

        (mark, tenant, id, priority, ...) each, as `feeder.queued` reads them.
        """
        return self._statement(
            "feed",
            queue=queue,
            priorities=[share.priority for share in shares],
            tenants=[share.tenant for share in shares],
            counts=[share.count for share in shares],
        )

    def of_job(self, name: str, key: JobKey, **parameters: object) -> Statement:
        """Make a statement on one job: live, over, hold, take_back, put_back, update,
        ask_to_cancel.
        """
        job_id: object = str(key.id) if name == "over" else key.id
        return self._statement(name, tenant=key.tenant, id=job_id, **parameters)

    def find(self, name: str, parameters: Mapping[str, Any]) -> Statement:
        """Make a statement that finds a page: find_live, find_over."""
        return self._statement(name, **parameters)

    def _statement(self, name: str, **parameters: object) -> Statement:
        return Statement(
            statement("job_queue", name, self._schema), {"now": self._now(), **parameters}
        )


def queue_channel(schema: str) -> str:
    """Name the channel on which feeders hear of new jobs; the schema's own is for changes of
    registered ones.
    """
    return f"{schema[:56]}:queue"


_labels = attrgetter(
    "tenant",
    "type",
    "queue",
    "priority",
    "run_at",
    "delay",
    "lifetime",
    "open_dependencies",
    "depth",
    "form",
    "policy",
    "tags",
    "correlation_id",
    "callback_url",
    "retried_from",
    "previous_attempt_id",
    "trace",
    "key",
)


def _sparse(values: Iterable[T]) -> list[T]:
    """List what many jobs have none of: `unnest` makes NULLs of what is missing."""
    listed = list(values)
    return [] if listed.count(None) == len(listed) else listed  # type: ignore[arg-type]


def packed(keys: Iterable[JobKey]) -> dict[str, Packed]:
    """Make the parameters that name jobs."""
    listed = list(keys)
    return {"tenants": texts(key.tenant for key in listed), "ids": uuids(key.id for key in listed)}


def _edges(edges: Sequence[Dependency]) -> dict[str, list[object]]:
    return {
        "tenants": [edge.tenant for edge in edges],
        "ids": [edge.job_id for edge in edges],
        "depends_on": [edge.depends_on for edge in edges],
        "kinds": [edge.kind for edge in edges],
    }
