"""What a row of the ledger is about, and what it says."""

from enum import StrEnum
from typing import Literal

Kind = Literal["fire", "trigger", "audit", "job"]
DISAPPEARED = "its row had disappeared"  # why a job was registered again by a sync


class Outcome(StrEnum):
    """The outcome of a row of the ledger: how a fire or a submitted job ended, or (the last six)
    what was changed.
    """

    SUCCESS = "success"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    SKIPPED = "skipped"
    QUEUED = "queued"
    COMPLETED = "completed"
    DEAD_LETTER = "dead_letter"
    CANCELLED = "cancelled"
    REGISTERED = "registered"
    CHANGED = "changed"
    UNREGISTERED = "unregistered"
    PAUSED = "paused"
    RESUMED = "resumed"
    DELETED = "deleted"
