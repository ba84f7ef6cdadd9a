"""Jobs, and how their attempts end."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from scheduler.dialects.interface import About, Delivery, Queue, Result
from scheduler.dialects.queue_options import QueueOptions
from scheduler.model.attempts import AttemptEnd, QueuedJob
from scheduler.model.breaker import BreakerState
from scheduler.model.labels import Priority
from scheduler.model.reaper import ReaperRule
from scheduler.model.states import State

AT_ONCE = ReaperRule(interval=timedelta())  # every look for stalled jobs of BullMQ finds them
NOW = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
ABOUT = About(
    host="box",
    pid=7,
    concurrency=50,
    age=60.0,
    holds=3,
    jobs=[("a", "acme", "send"), ("b", "", "file")],
    breaker=BreakerState.OPEN,
    breaker_left=12.5,
    types=["send", "file"],
)


def job(**changes: Any) -> QueuedJob:
    values: dict[str, Any] = {
        "id": str(uuid4()),
        "tenant": "acme",
        "type": "send",
        "queue": "mail",
        "priority": Priority.NORMAL,
        "feed": 1,
        "attempt": 0,
        "form": "json",
        "payload": b'{"to":"you"}',
        "policy": None,
        "tags": None,
        "correlation_id": None,
        "created_at": NOW,
        "expires_at": NOW + timedelta(days=1),
        "installation": "3f1e",
    }
    return QueuedJob(**{**values, **changes})


def with_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Gather the options of a queue that are the same in every dialect."""
    names = {field.name for field in fields(QueueOptions)}
    own = {key: value for key, value in values.items() if key not in names}
    return own | {"options": QueueOptions(**{key: values[key] for key in names & values.keys()})}


def ended(delivery: Delivery, state: State = State.COMPLETED, **changes: Any) -> Result:
    values: dict[str, Any] = {
        "tenant": delivery.job.tenant,
        "job_id": delivery.job.id,
        "feed": delivery.job.feed,
        "attempt": delivery.attempt,
        "state": state,
        "started_at": delivery.started_at,
        "ended_at": delivery.started_at,
        "worker": "w1",
    }
    return Result(delivery, AttemptEnd(**{**values, **changes}))


def retried(delivery: Delivery, delay: timedelta = timedelta()) -> Result:
    return ended(delivery, State.RETRYING, delay=delay)


def back(delivery: Delivery) -> Result:
    return Result(delivery, None)


def fetch_all(queue: Queue, n: int = 1000) -> list[Delivery]:
    """Fetch until there is nothing."""
    found: list[Delivery] = []
    while taken := queue.fetch(n, timeout=0):
        found += taken
    return found


def ids(deliveries: list[Delivery]) -> list[str]:
    return [delivery.job.id for delivery in deliveries]
