"""What the API shows, as JSON, and the schemas of it that the document names."""

import base64
from dataclasses import asdict, fields
from datetime import timedelta
from typing import Any

from scheduler.model.breaker import BreakerState
from scheduler.model.durations import brief, duration
from scheduler.model.job import Explanation, HistoryEntry, InstanceInfo, JobInfo
from scheduler.model.labels import Priority
from scheduler.model.oneshot import Job
from scheduler.model.outcomes import Outcome
from scheduler.model.policies import Timeouts
from scheduler.model.retries import RetryPolicy
from scheduler.model.states import State
from scheduler.web.schemas import (
    MOMENT,
    NUMBER,
    UUID,
    YES,
    Schema,
    listed,
    maybe,
    page,
    record,
    text,
    whole,
)

STATE = text(enum=[state.value for state in State])
OUTCOME = text(enum=[outcome.value for outcome in Outcome])
PRIORITY = whole(
    0, 4, description=", ".join(f"{each.value} {each.name.lower()}" for each in Priority)
)
PAYLOADS = {
    "payload": {"description": "with the scope `payloads`, if it is JSON"},
    "payload_base64": text(description="with the scope `payloads`, if it is bytes"),
    "result": {"description": "with the scope `payloads`, once it has completed"},
}
WHY = {"reason": maybe(text()), "error": maybe(text())}


def job_json(job: Job, *, payloads: bool) -> dict[str, Any]:
    """Show a submitted job; what it was given and what it returned only to who may see that."""
    plain = {
        each.name: getattr(job, each.name)
        for each in fields(job)
        if not each.name.startswith("raw_")
    }
    del plain["json"]
    plain.update(
        tags=dict(job.tags),
        attempts=list(job.attempts),
        retry=_policy(job.retry),
        timeouts=_policy(job.timeouts),
    )
    if payloads:
        plain |= payload_json(job.payload)
        if job.state is State.COMPLETED:
            plain["result"] = job.result
    return plain


def payload_json(payload: object) -> dict[str, object]:
    """Show a payload, which may be bytes."""
    if isinstance(payload, bytes):
        return {"payload_base64": base64.b64encode(payload).decode()}
    return {"payload": payload}


def recurring_json(job: JobInfo) -> dict[str, Any]:
    """Show a registered job."""
    names = (
        "tenant",
        "job_id",
        "next_run_at",
        "paused_at",
        "trigger_at",
        "running_fire_at",
        "holder",
        "last_fire_at",
        "last_outcome",
        "last_finished_at",
    )
    work = job.spec.work
    return {
        "schedule": str(job.spec.schedule),
        "queue": None if work is None else work.queue,
        **{name: getattr(job, name) for name in names},
    }


def explanation_json(told: Explanation) -> dict[str, Any]:
    """Show what a registered job will do and did."""
    plain = {each.name: getattr(told, each.name) for each in fields(told)}
    return {**plain, "changes": [asdict(change) for change in told.changes]}


def history_json(row: HistoryEntry) -> dict[str, Any]:
    """Show a row of the ledger; `job` says only what kind of job it was."""
    plain = {each.name: getattr(row, each.name) for each in fields(row)}
    about = row.job or {}
    took = None if row.started_at is None else (row.finished_at - row.started_at).total_seconds()
    plain["job"] = {
        name: about[name] for name in ("id", "type", "queue", "priority") if name in about
    } or None
    return {**plain, "attempts": list(row.attempts), "duration_seconds": took}


def instance_json(instance: InstanceInfo) -> dict[str, Any]:
    """Show an instance."""
    plain = {
        each.name: getattr(instance, each.name) for each in fields(instance) if each.name != "skew"
    }
    return {**plain, "skew_seconds": instance.skew.total_seconds()}


def _policy(values: RetryPolicy | Timeouts) -> dict[str, object]:
    shown = {}
    for each in fields(values):
        value = getattr(values, each.name)
        isolated = isinstance(value, timedelta) or (
            isinstance(value, str) and each.name != "backoff"
        )
        shown[each.name] = brief(duration(value, name=each.name)) if isolated else value
    return shown


RETRY = {
    "max_attempts": whole(1, 100),
    "backoff": text(200, least=1),
    "initial_delay": text(),
    "max_delay": text(),
    "multiplier": {"type": "number", "minimum": 1, "maximum": 1000},
    "jitter": YES,
    "retry_timeout": YES,
    "retry_system": YES,
}
TIMEOUTS = {name: text() for name in ("execution", "visibility", "submission", "lifetime")}

_JOB: dict[str, Schema] = {
    "id": UUID,
    "tenant": text(),
    "type": text(),
    "queue": text(),
    "priority": PRIORITY,
    "state": STATE,
    "attempt": whole(0),
    "created_at": MOMENT,
    "updated_at": MOMENT,
    "run_at": MOMENT,
    "expires_at": maybe(MOMENT),
    "scheduled_at": maybe(MOMENT),
    "started_at": maybe(MOMENT),
    "completed_at": maybe(MOMENT),
    "tags": {"type": "object", "additionalProperties": text()},
    "correlation_id": maybe(text()),
    "callback_url": maybe(text()),
    "retry": record(RETRY),
    "timeouts": record(TIMEOUTS),
    "attempts": listed({"type": "object"}),
    **WHY,
    "retried_from": maybe(UUID),
    "idempotency_key": maybe(text()),
    "cancel_requested_at": maybe(MOMENT),
    "progress": maybe(NUMBER),
    "message": maybe(text()),
}
_RECURRING: dict[str, Schema] = {
    "tenant": text(),
    "job_id": text(),
    "schedule": text(),
    "queue": maybe(text()),
    "next_run_at": maybe(MOMENT),
    "paused_at": maybe(MOMENT),
    "trigger_at": maybe(MOMENT),
    "running_fire_at": maybe(MOMENT),
    "holder": maybe(text()),
    "last_fire_at": maybe(MOMENT),
    "last_outcome": maybe(OUTCOME),
    "last_finished_at": maybe(MOMENT),
}
_EXPLANATION: dict[str, Schema] = {
    "tenant": text(),
    "job_id": text(),
    "schedule": text(),
    "next_fires": listed(MOMENT),
    "notes": listed(text()),
    "paused_at": maybe(MOMENT),
    "trigger_at": maybe(MOMENT),
    "running_fire_at": maybe(MOMENT),
    "holder": maybe(text()),
    "last_fire_at": maybe(MOMENT),
    "last_outcome": maybe(OUTCOME),
    "why": maybe(text()),
    "runnable_on": listed(text()),
    "app": maybe(text()),
    "version": maybe(whole(0)),
    "changes": listed(
        record(
            {"at": MOMENT, "outcome": OUTCOME, "reason": maybe(text()), "holder": maybe(text())}
        ),
        description="how the definition came about, the newest first",
    ),
}
_HISTORY: dict[str, Schema] = {
    "at": MOMENT,
    "tenant": text(),
    "job_id": text(),
    "kind": text(enum=["fire", "trigger", "audit", "job"]),
    "outcome": OUTCOME,
    **WHY,
    "attempt": maybe(whole(0)),
    "fence": maybe(whole(0)),
    "holder": maybe(text()),
    "started_at": maybe(MOMENT),
    "finished_at": MOMENT,
    "duration_seconds": maybe(NUMBER),
    "missed_from": maybe(MOMENT),
    "missed_count": whole(0),
    "attempts": listed({"type": "object"}),
    "job": maybe({"type": "object"}),
}
_QUEUE: dict[str, Schema] = {
    "name": text(),
    "dialect": text(),
    "paused": YES,
    "paused_at": maybe(MOMENT),
    "waiting": {
        "type": "object",
        "additionalProperties": whole(0),
        "description": "in Redis, by priority",
    },
    **{word: whole(0) for word in ("retrying", "running", "unsettled")},
    **{
        word: whole(0, description="in Postgres up to 1,000 are counted")
        for word in ("dead", "ready", "pending")
    },
    "stopped": whole(0, description="in Redis, of tenants that are paused"),
    "workers": maybe(whole(0)),
    "breakers": {
        "type": "object",
        "additionalProperties": whole(0),
        "description": "how many workers have their circuit breaker closed, half_open or open",
    },
    "unhandled": {
        "type": "object",
        "additionalProperties": whole(1),
        "description": "waiting jobs by type, of types that no live worker handles; at most 1,000 "
        "types, and only of queues of the dialect standard",
    },
    "oldest": maybe(MOMENT),
    "error": maybe(text()),
}
_ENTRY: dict[str, Schema] = {
    "id": text(),
    "tenant": maybe(text()),
    "type": text(),
    "priority": PRIORITY,
    "attempts": whole(0),
    "created_at": maybe(MOMENT),
    "died_at": maybe(MOMENT),
    "reason": maybe(text()),
}
_INSTANCE: dict[str, Schema] = {
    "id": UUID,
    "label": text(),
    "live": YES,
    "started_at": MOMENT,
    "seen_at": MOMENT,
    "expires_at": MOMENT,
    "skew_seconds": NUMBER,
    "jobs": whole(0),
}
_WORKER: dict[str, Schema] = {
    "name": text(),
    "kind": text(
        description="scheduler for ours; bullmq or conveyor for those projects' own, who say little"
    ),
    "host": maybe(text()),
    "pid": maybe(whole()),
    "concurrency": maybe(whole()),
    "started_at": maybe(MOMENT),
    "seen_at": {
        **maybe(MOMENT),
        "description": "when it last said what it holds, by Redis's clock",
    },
    "holds": {**maybe(whole(0)), "description": "in all its queues"},
    "queues": listed(
        record(
            {
                "name": text(),
                "holds": maybe(whole(0)),
                "jobs": listed(
                    record({"id": text(), "tenant": maybe(text()), "type": text()}),
                    description="some of those that it holds, the oldest first; "
                    "tenant is null if no ledger has it",
                ),
                "breaker": maybe(text(enum=[state.word for state in BreakerState])),
                "breaker_until": {
                    **maybe(MOMENT),
                    "description": "when an open one lets a job be tried",
                },
                "overdue": listed(
                    text(),
                    description="ids of jobs whose handlers still run although their attempts have "
                    "ended; each keeps a slot",
                ),
                "types": {
                    **maybe(listed(text())),
                    "description": "the types that it handles; null if it handles every type, or "
                    "does not report them",
                },
            }
        )
    ),
}
COMPONENTS: dict[str, Schema] = {
    "Problem": record(
        {
            "title": text(),
            "status": whole(400, 599),
            "code": text(description="for programs"),
            "message": text(description="what is wrong, with the culprit"),
            "cure": text(description="what helps"),
            "request_id": text(description="in the log of the server too"),
        }
    ),
    "Submission": record(
        {
            "id": UUID,
            "duplicate": {**YES, "description": "an earlier job with this key stands for it"},
        }
    ),
    "Job": record({**_JOB, **PAYLOADS}, required=tuple(_JOB)),
    "JobPage": page("Job"),
    "RecurringJob": record(_RECURRING),
    "RecurringPage": page("RecurringJob"),
    "Explanation": record(_EXPLANATION),
    "HistoryEntry": record(_HISTORY),
    "HistoryPage": page("HistoryEntry"),
    "Queue": record(_QUEUE),
    "QueueEntry": record({**_ENTRY, **PAYLOADS}, required=tuple(_ENTRY)),
    "Instance": record(_INSTANCE),
    "InstancePage": page("Instance"),
    "Worker": record(_WORKER),
    "WorkerPage": page("Worker"),
}
