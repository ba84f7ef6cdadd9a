"""State changes and progress of the jobs that a worker runs, published for clients that listen.

The first progress of an attempt is published immediately, then the newest once in `MIN_INTERVAL_S`.
The last is published before the result of the attempt is sent. The settler publishes how the job
ended only after it has read that result, so clients receive the last progress before the end.
"""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scheduler.dialects.channel import Channel
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Delivery
from scheduler.errors import QueueError
from scheduler.model.oneshot import JobChange
from scheduler.model.states import State
from scheduler.worker.attempt import Attempt

MIN_INTERVAL_S = 0.1
FIND_LISTENERS_INTERVAL_S = 0.5


@dataclass(slots=True)
class _Progress:
    """Progress of an attempt.

    waiting: reports that are not published. These are the first and the newest, or the newest
    alone once the first is published. due: when the next can be published.
    """

    waiting: list[JobChange] = field(default_factory=list)
    is_first_published: bool = False
    due: float = 0.0


class Announcements:
    """Publishes that jobs are RUNNING, and their progress, to installations that have listeners.

    If an installation has none, its jobs cost no call to Redis.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._channels: dict[str, Channel] = {}  # by installation
        self._watched: set[str] = set()
        self._find_listeners_at = 0.0
        self._started: deque[Delivery] = deque()
        self._progress: dict[Attempt, _Progress] = {}
        self._lock = threading.Lock()
        self._sent = threading.Condition(self._lock)
        self._sending = False

    def started(self, delivery: Delivery) -> bool:
        """Take a job that starts; return whether that has to be published."""
        installation = delivery.job.installation
        if not installation:
            return False
        if installation not in self._channels:
            self._channels[installation] = Channel(self._client, installation)
            self._find_listeners_at = 0.0
        if installation not in self._watched:
            return False
        self._started.append(delivery)
        return True

    def progressed(self, attempt: Attempt) -> bool:
        """Take progress that a handler reported; return whether `publish` has to be called."""
        job = attempt.delivery.job
        if job.installation not in self._watched or attempt.acknowledging:
            return False
        report = JobChange(
            job.tenant,
            job.id,
            State.RUNNING,
            self._redis_time(attempt),
            attempt.note.progress,
            attempt.note.message,
        )
        with self._lock:
            progress = self._progress.setdefault(attempt, _Progress())
            was_waiting = bool(progress.waiting)
            progress.waiting[0 if progress.is_first_published else 1 :] = [report]
        return not was_waiting

    def publish(self) -> float:
        """Publish starts and the progress that is due; return when the next progress is due."""
        now = self._clock()
        with self._turn():
            with self._lock:
                due = [each for each, progress in self._progress.items() if progress.due <= now]
            self._send(due)
            with self._lock:
                for attempt in due:  # a thread of a handler can have reported after its end
                    if attempt.acknowledging and not self._progress[attempt].waiting:
                        del self._progress[attempt]
        if now >= self._find_listeners_at:
            self._find_listeners_at = now + FIND_LISTENERS_INTERVAL_S
            self._find_listeners()
        with self._lock:
            due_at = [each.due for each in self._progress.values() if each.waiting]
        return min(due_at, default=math.inf)

    def publish_last(self, attempts: Iterable[Attempt]) -> None:
        """Publish the last progress of attempts that have ended. Call it before their results are
        sent.

        It waits while another thread publishes: an older report of one of these attempts can be on
        its way, and would otherwise be published after the end of the job.
        """
        if not self._progress:
            return
        with self._lock:
            ended = [each for each in attempts if each in self._progress]
        if not ended:
            return
        with self._turn():
            self._send(ended, all_reports=True)
            with self._lock:
                for attempt in ended:
                    self._progress.pop(attempt, None)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one thread publish at a time. It holds no lock, so that handlers can report."""
        with self._sent:
            self._sent.wait_for(lambda: not self._sending)
            self._sending = True
        try:
            yield
        finally:
            with self._sent:
                self._sending = False
                self._sent.notify_all()

    def _send(self, attempts: Iterable[Attempt], *, all_reports: bool = False) -> None:
        """Publish all starts, then a report of each of these attempts, or all. Needs the turn.

        Nothing depends on it: what Redis does not take is dropped.
        """
        started = [self._started.popleft() for _ in range(len(self._started))]
        reports: dict[str, list[JobChange]] = {}
        with self._lock:
            for attempt in attempts:
                progress = self._progress.get(attempt)
                if progress is None or not progress.waiting:
                    continue
                count = len(progress.waiting) if all_reports else 1
                if not attempt.lost:  # otherwise another worker reports its progress
                    installation = attempt.delivery.job.installation
                    reports.setdefault(installation, []).extend(progress.waiting[:count])
                del progress.waiting[:count]
                progress.is_first_published = True
                progress.due = self._clock() + MIN_INTERVAL_S
        starts: dict[tuple[str, datetime], list[tuple[str, str, State]]] = {}
        for each in started:
            job = each.job
            change = job.tenant, job.id, State.RUNNING
            starts.setdefault((job.installation, each.started_at), []).append(change)
        with contextlib.suppress(QueueError):
            for (installation, at), running in starts.items():
                self._channels[installation].say(running, at)
            for installation, progressed in reports.items():
                self._channels[installation].publish_progress(progressed)

    def _find_listeners(self) -> None:
        channels = list(self._channels.items())
        with contextlib.suppress(QueueError):
            self._watched = {name for name, channel in channels if channel.watched()}

    def _redis_time(self, attempt: Attempt) -> datetime:
        passed = self._clock() - attempt.received
        return attempt.delivery.started_at + timedelta(seconds=passed)
