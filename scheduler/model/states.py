"""The states of a submitted job, and the transitions between them, as data (the formal job model,
section 2).
"""

from enum import StrEnum
from types import MappingProxyType
from uuid import UUID

from scheduler.errors import IllegalTransition


class State(StrEnum):
    """Where a submitted job is in its life."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    DELAYED = "delayed"
    RUNNING = "running"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD_LETTER = "dead_letter"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether nothing follows."""
        return self in TERMINAL


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.DEAD_LETTER, State.CANCELLED})
LIVE = frozenset(State) - TERMINAL
EXPIRED = "its lifetime has passed"  # the reason of a job that its lifetime ended

_LISTED = {
    (State.PENDING, State.SCHEDULED): "no delay, and no dependency is open",
    (State.PENDING, State.DELAYED): "a delay was given",
    (State.DELAYED, State.SCHEDULED): "the delay has passed",
    (State.SCHEDULED, State.RUNNING): "a worker took it",
    (State.RUNNING, State.COMPLETED): "the handler succeeded",
    (State.RUNNING, State.FAILED): "a permanent failure, or one that is not retried",
    (State.RUNNING, State.RETRYING): "a failure with attempts left, or its worker was lost",
    (State.RUNNING, State.DEAD_LETTER): "a failure with no attempt left",
    (State.RETRYING, State.SCHEDULED): "the backoff has passed",
    (State.RETRYING, State.DEAD_LETTER): "no attempt is left",
    (State.PENDING, State.FAILED): "a dependency failed",
}
TRANSITIONS = MappingProxyType(
    {
        **{
            (state, State.CANCELLED): "somebody cancelled it, or a dependency of it"
            for state in LIVE
        },
        **{
            (state, State.DEAD_LETTER): "its lifetime has passed, or a dependency died"
            for state in LIVE
        },
        **_LISTED,
    }
)


def transition(job_id: UUID, before: State, after: State) -> State:
    """Go from one state to another, if the table has it."""
    if (before, after) not in TRANSITIONS:
        allowed = ", ".join(to for origin, to in TRANSITIONS if origin is before)
        cure = f"from {before} it can go to {allowed}" if allowed else "it has already ended"
        raise IllegalTransition(f"job {job_id} cannot go from {before} to {after}; {cure}")
    return after
