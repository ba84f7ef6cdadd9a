"""What happens, counted out of events as Prometheus has it: counters and histograms.

A label has at most 50 values, whatever jobs are called: queues that nobody named are `other`.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from scheduler.events import (
    Event,
    FireCrashed,
    FireEnded,
    FireQueued,
    FireSkipped,
    FireStarted,
    JobsEnded,
    JobsExpired,
    JobsFed,
    JobsFedAgain,
    JobsProduced,
    JobsRecovered,
    JobsSettled,
    JobsTaken,
    LeaseLost,
    RedisLost,
)
from scheduler.model.failures import Category
from scheduler.model.outcomes import Outcome
from scheduler.model.states import State

MOST = 50  # values of a label
OTHER = "other"
REASONS = frozenset(Category)
OUTCOMES = (
    Outcome.SUCCESS,
    Outcome.FAILED,
    Outcome.TIMEOUT,
    Outcome.CRASHED,
    Outcome.SKIPPED,
    Outcome.QUEUED,
)
PRODUCED, CONSUMED, COMPLETED = "jobs_produced", "jobs_consumed", "jobs_completed"
RETRIED, DEAD_LETTER = "jobs_retried", "jobs_dead_letter"
REFED, REFUSED = "scheduler_jobs_refed", "scheduler_ends_refused"
BY_QUEUE = {
    PRODUCED: "Jobs that were put into a queue of Redis, by a producer or out of the ledger.",
    CONSUMED: "Jobs that a worker took out of a queue.",
    COMPLETED: "Attempts that succeeded.",
    RETRIED: "Attempts that failed and are tried again.",
    DEAD_LETTER: "Jobs that were given up.",
    REFED: "Jobs that Redis had lost and that are fed again.",
    REFUSED: (
        "Ends of attempts that came too late: the job was not the worker's any more, or had ended."
    ),
}
COUNTED_AS = {State.RETRYING: RETRIED, State.FAILED: DEAD_LETTER, State.DEAD_LETTER: DEAD_LETTER}
DURATIONS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
LATENESS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


class Labels:
    """The queues that have a name of their own in labels: the first 49 of those given."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.known = frozenset(sorted(set(queues) - {OTHER})[: MOST - 1])

    def of(self, queue: str) -> str:
        """Name a queue as labels do."""
        return queue if queue in self.known else OTHER


class Distribution:
    """Seconds, counted by how many they are."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def told(self) -> tuple[list[tuple[str, float]], float]:
        """Say how many are up to each bound, and the sum."""
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets, self.sum


class Counts:
    """Hears events, in whatever thread."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._lock = threading.Lock()
        self._by_queue = {
            name: Counter(dict.fromkeys(sorted(labels.known), 0)) for name in BY_QUEUE
        }
        self._failed: Counter[tuple[str, str]] = Counter()
        self._durations = {queue: Distribution(DURATIONS) for queue in sorted(labels.known)}
        self._fires: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._lateness = Distribution(LATENESS)
        self._moved = self._lost = 0

    def hear(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            self._count(event)

    def _count(self, event: Event) -> None:  # noqa: C901, PLR0912 - one line for each, the frequent first
        match event:
            case JobsEnded():
                self._ended(event)
            case JobsTaken():
                self._add(CONSUMED, event.queue, event.count)
            case JobsFed() | JobsProduced():
                self._add(PRODUCED, event.queue, event.count)
            case JobsSettled():
                self._add(REFUSED, event.queue, event.refused)
            case FireStarted():
                self._lateness.add(event.lateness.total_seconds())
            case FireEnded():
                self._fires[event.outcome] += 1
            case FireSkipped():
                self._fires[Outcome.SKIPPED] += 1
            case FireQueued():
                self._fires[Outcome.QUEUED] += 1
            case FireCrashed():
                self._fires[Outcome.CRASHED] += 1
            case LeaseLost():
                self._lost += 1
            case JobsRecovered():
                self._moved += event.count
                self._add(DEAD_LETTER, event.queue, event.buried)
            case JobsFedAgain():
                self._add(REFED, event.queue, event.count)
            case RedisLost():
                self._add(REFED, event.queue, event.jobs)
            case JobsExpired():
                self._add(DEAD_LETTER, event.queue, event.count)
            case _:
                pass

    def _ended(self, event: JobsEnded) -> None:
        queue = self._labels.of(event.queue)
        durations = self._durations.setdefault(queue, Distribution(DURATIONS))
        completed = 0
        for end in event.ends:
            durations.add((end.ended_at - end.started_at).total_seconds())
            if end.category is None:
                completed += 1
                continue
            self._failed[queue, end.category if end.category in REASONS else OTHER] += 1
            if end.state in COUNTED_AS:
                self._by_queue[COUNTED_AS[end.state]][queue] += 1
        self._by_queue[COMPLETED][queue] += completed
        self._by_queue[REFUSED][queue] += event.refused

    def _add(self, name: str, queue: str, count: int) -> None:
        self._by_queue[name][self._labels.of(queue)] += count

    def told(self) -> list[Metric]:
        """Write down all counts."""
        with self._lock:
            return [*self._told_by_queue(), *self._told()]

    def _told_by_queue(self) -> Iterator[Metric]:
        for name, text in BY_QUEUE.items():
            by_queue = CounterMetricFamily(name, text, labels=["queue"])
            for queue, count in self._by_queue[name].items():
                by_queue.add_metric([queue], count)
            yield by_queue
        failed = CounterMetricFamily(
            "jobs_failed", "Attempts that failed.", labels=["queue", "reason"]
        )
        for (queue, reason), count in self._failed.items():
            failed.add_metric([queue, reason], count)
        yield failed
        took = HistogramMetricFamily(
            "job_processing_duration_seconds", "How long attempts took.", labels=["queue"]
        )
        for queue, durations in self._durations.items():
            took.add_metric([queue], *durations.told())
        yield took

    def _told(self) -> Iterator[Metric]:
        moved, lost = (
            "Jobs that were taken back from silent workers.",
            "Leases of running fires that were lost.",
        )
        yield CounterMetricFamily("reaper_jobs_moved", moved, value=self._moved)
        yield CounterMetricFamily("scheduler_leases_lost", lost, value=self._lost)
        fires = CounterMetricFamily(
            "scheduler_fires", "Fires, by what became of them.", labels=["outcome"]
        )
        for outcome, count in self._fires.items():
            fires.add_metric([outcome], count)
        yield fires
        late = HistogramMetricFamily("scheduler_fire_lateness_seconds", "How late fires started.")
        late.add_metric([], *self._lateness.told())
        yield late
