"""Options of the queues of a process, in every dialect."""

from dataclasses import dataclass
from datetime import timedelta

from scheduler.model.reaper import ReaperRule


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Options of all queues of a process.

    weighted: every priority gets a share of the fetched jobs, in dialects that support it. reaper:
    how the jobs of dead workers are found. most_unsettled: the number of unsettled results above
    which no job is fetched. kept: the number of ended jobs that are kept. settler_silence: the time
    without an acknowledgement after which a result is read again.
    """

    weighted: bool = False
    reaper: ReaperRule = ReaperRule()  # noqa: RUF009 - frozen
    most_unsettled: int = 100_000
    kept: int = 1000
    settler_silence: timedelta = timedelta(seconds=30)


DEFAULT_OPTIONS = QueueOptions()
