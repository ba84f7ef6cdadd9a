"""Metrics for Prometheus: what happens is counted, what is at a moment is looked at when somebody
asks.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from scheduler.errors import LifecycleError
from scheduler.observe.counts import Counts, Labels
from scheduler.observe.watched import OTHERS, Watched
from scheduler.sight import QueueSight, Sight

PATIENCE = 2.0  # seconds for a look at queues: while Redis hangs, the rest is told without them


class Metrics(Collector):
    """Collects what schedulers and workers do: a collector for a registry of prometheus-client.

    queues: those that have a name of their own in labels, at most 49; all others are `other`.
    sample_every: Redis is asked at most so often, however many ask us.
    """

    def __init__(
        self, queues: Iterable[str], *, sample_every: timedelta = timedelta(seconds=2)
    ) -> None:
        self._labels = Labels(queues)
        self._counts = Counts(self._labels)
        self.hear = self._counts.hear
        self._sample_every = sample_every.total_seconds()
        self._watched: list[Watched] = []
        self._looked = float("-inf")
        self._looking = threading.Thread()
        self._sights: list[Sight] = []
        self._firsts: dict[
            tuple[str, int], tuple[bytes, float]
        ] = {}  # what is first in a list, and since when

    def watch(self, watched: Watched) -> "Metrics":
        """Collect what a scheduler or a worker does, from now on."""
        watched.subscribe(self._counts.hear)
        self._watched.append(watched)
        return self

    def describe(self) -> Iterable[Metric]:
        """Say nothing: whoever registers us asks no server."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Write down everything."""
        yield from self._counts.told()
        self._look()
        yield from self._queues([each for sight in self._sights for each in sight.queues])
        yield self._by_queue(
            "circuit_breaker_state",
            "The circuit breaker of a queue in this process: 0 closed, 1 half-open, 2 open.",
            [each for sight in self._sights for each in sight.breakers],
        )
        yield _gauge(
            "scheduler_last_pass_age_seconds",
            "Seconds since the last good pass of a part of this process.",
            "part",
            {part.name: part.age for sight in self._sights for part in sight.parts},
        )
        skews = [sight.skew.total_seconds() for sight in self._sights if sight.skew is not None]
        text = "How far the clock of this machine is ahead of the database's."
        yield from _single("scheduler_clock_skew_seconds", text, skews)
        stranded = [sight.stranded for sight in self._sights if sight.stranded is not None]
        text = "Recurring jobs that no live instance can run."
        yield from _single("scheduler_jobs_stranded", text, stranded)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < self._sample_every:
            return
        self._looked = now
        if not self._looking.is_alive():
            self._looking = threading.Thread(target=self._see, name="scheduler-look", daemon=True)
            self._looking.start()
        self._looking.join(PATIENCE)
        if self._looking.is_alive():
            self._sights = self._seen((), 0)
        if not self._sights:
            self._looked = float(
                "-inf"
            )  # nothing is started: no server was asked, and something soon may be

    def _see(self) -> None:
        sights, now = self._seen(self._labels.known, OTHERS), time.monotonic()
        before, self._firsts = self._firsts, {}
        for queue in (each for sight in sights for each in sight.queues):
            for place, head in enumerate(queue.heads):
                known, since = before.get((queue.name, place), (b"", now))
                if head:
                    self._firsts[queue.name, place] = head, since if head == known else now
        self._sights = sights

    def _seen(self, known: Collection[str], others: int) -> list[Sight]:
        sights = list[Sight]()
        for watched in self._watched:
            with contextlib.suppress(
                LifecycleError
            ):  # not started, or not any more: there is nothing to see
                sights.append(watched.look(known, others))
        return sights

    def _queues(self, queues: Sequence[QueueSight]) -> Iterator[Metric]:
        yield self._by_queue(
            "queue_length",
            "Jobs that wait in a queue of Redis.",
            [(each.name, each.waiting) for each in queues],
            sum,
        )
        yield self._by_queue(
            "scheduler_oldest_waiting_seconds",
            "For how long the first job of a queue has been the first, at least.",
            [(each.name, self._waits(each)) for each in queues],
        )
        yield self._by_queue(
            "scheduler_feed_lag_seconds",
            "For how long the oldest job that is due waits to be fed.",
            [(each.name, each.feed_lag) for each in queues],
        )
        yield self._by_queue(
            "scheduler_settle_lag_seconds",
            "How long ago the oldest end was made that is not settled yet.",
            [(each.name, each.settle_lag) for each in queues],
        )
        yield self._by_queue(
            "scheduler_unhandled_jobs",
            "Jobs that wait in a queue of Redis and whose type no live worker handles.",
            [(each.name, each.unhandled) for each in queues],
            sum,
        )

    def _waits(self, queue: QueueSight) -> float | None:
        if queue.waiting is None:
            return queue.feed_lag
        now = time.monotonic()
        firsts = [self._firsts.get((queue.name, place)) for place in range(len(queue.heads))]
        return max(
            [queue.feed_lag or 0.0, *(now - first[1] for first in firsts if first is not None)]
        )

    def _by_queue(
        self,
        name: str,
        text: str,
        values: Iterable[tuple[str, float | None]],
        fold: Callable[[Iterable[float]], float] = max,
    ) -> GaugeMetricFamily:
        """Write a gauge; a queue that two of us see is one, and those without a name of their own
        are folded.
        """
        distinct: dict[str, float] = {}
        for queue, value in values:
            if value is not None:
                distinct[queue] = max(value, distinct.get(queue, value))
        by_label: dict[str, list[float]] = {}
        for queue, value in distinct.items():
            by_label.setdefault(self._labels.of(queue), []).append(value)
        return _gauge(name, text, "queue", {label: fold(each) for label, each in by_label.items()})


def _gauge(name: str, text: str, label: str, values: dict[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text, labels=[label])
    for value, number in values.items():
        gauge.add_metric([value], number)
    return gauge


def _single(name: str, text: str, values: Sequence[float]) -> Iterator[Metric]:
    if values:
        yield GaugeMetricFamily(name, text, value=max(values, key=abs))


def exposed(collector: Collector) -> Callable[[], tuple[str, bytes]]:
    """Make what writes the metrics of a collector, and nothing else, with their content type."""
    registry = CollectorRegistry()
    registry.register(collector)
    return lambda: (CONTENT_TYPE_LATEST, generate_latest(registry))
