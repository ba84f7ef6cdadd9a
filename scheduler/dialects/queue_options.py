"""What a process wants of its queues in Redis, in every dialect."""

from dataclasses import dataclass
from datetime import timedelta

from scheduler.model.reaper import ReaperRule


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Options of all queues of a process.

    weighted: every priority gets a share of what is fetched, in the dialects that can. reaper: how
    the jobs of dead workers are found. most_unsettled: results above which nothing is fetched.
    kept: ended jobs that are kept. settler_silence: after so long without an acknowledgement a
    result is read again.
    """

    weighted: bool = False
    reaper: ReaperRule = ReaperRule()  # noqa: RUF009 - frozen
    most_unsettled: int = 100_000
    kept: int = 1000
    settler_silence: timedelta = timedelta(seconds=30)


DEFAULT_OPTIONS = QueueOptions()
