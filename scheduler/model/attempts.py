"""A submitted job on its way: as it travels to a worker, and the end of an attempt as it comes
back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from scheduler.model.labels import Priority
from scheduler.model.payloads import Form
from scheduler.model.policies import Timeouts, policy_of
from scheduler.model.retries import RetryPolicy
from scheduler.model.states import State

LEFT_OUT = "the result was left out"  # of the ledger; the cause follows


# Not frozen, as what carries them: made for every job and attempt, freezing would cost three times
# as much. Nor by name alone: where they are made by the thousand their values stand in this order,
# which takes less than half the time.
@dataclass(slots=True)
class QueuedJob:
    """A job in a queue of Redis. `attempt`: those settled before it was fed; `installation`: whose
    ledger it is in.

    A job that did not come out of a ledger has no installation, and its end is nobody's to settle.
    uncharged: how many of the attempts up to `attempt` do not count towards `max_attempts`.
    previous_attempt_id: the last attempt that is known when the job is fed or delivered.
    scheduled_at: when it was pushed; None: when it was submitted.
    """

    id: str
    tenant: str
    type: str
    queue: str
    priority: Priority
    feed: int
    attempt: int
    form: Form
    payload: bytes = field(repr=False)
    policy: Mapping[str, Any] | None
    tags: Mapping[str, str] | None
    correlation_id: str | None
    created_at: datetime
    expires_at: datetime
    installation: str
    checkpoint: Any = None
    trace: str | None = None  # the context of the span in which it was submitted
    uncharged: int = 0
    idempotency_key: str | None = None  # that it was submitted with
    previous_attempt_id: str | None = None
    scheduled_at: datetime | None = None

    def policies(self) -> tuple[RetryPolicy, Timeouts]:
        """Read how it is retried, and its timeouts."""
        return policy_of(self.policy)


@dataclass(slots=True)
class AttemptEnd:
    """How an attempt ended: terminal, or RETRYING after `delay`. `result` and `spawned` are of a
    completed one. reason: why its result was left out. charged: whether it counts towards
    `max_attempts`. uncharged: how many of the attempts up to this one do not count. sequence: that
    of its lease, see `attempt_id`. recorded_at: when Redis took the result, by its clock; set when
    the result is read. scheduled_at: as in `QueuedJob`.
    """

    tenant: str
    job_id: str
    feed: int
    attempt: int
    state: State
    started_at: datetime
    ended_at: datetime
    worker: str
    sequence: int = 0
    delay: timedelta | None = None
    category: str | None = None
    code: str | None = None
    error: str | None = None
    result: bytes | None = field(default=None, repr=False)
    reason: str | None = None
    checkpoint: Any = field(default=None, repr=False)
    spawned: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    charged: bool = True
    uncharged: int = 0
    previous_attempt_id: str | None = None
    recorded_at: datetime | None = None
    scheduled_at: datetime | None = None
