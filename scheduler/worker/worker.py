"""The worker process: it leases jobs from Redis queues, runs their handlers, and sends the results.

Threads: those of the executor. Each queue has a supervisor, and a thread that waits for jobs if the
executor does not. One thread renews leases and checks timeouts. One reclaims the jobs of dead
workers.
"""

import contextlib
import logging
import os
import queue
import random
import secrets
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, TypedDict, Unpack

from scheduler.config import checked_queues
from scheduler.dialects.client import Client
from scheduler.dialects.opening import DEFAULT, RELIABLE, open_queue
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.wire import FILE
from scheduler.errors import ConfigError, LifecycleError
from scheduler.events import Event, Events
from scheduler.log import keys as log_fields
from scheduler.model.addresses import RedisOptions
from scheduler.model.breaker import BreakerRule
from scheduler.model.durations import duration
from scheduler.model.handling import Handler
from scheduler.model.policies import RETRY
from scheduler.model.reaper import ReaperRule
from scheduler.model.retries import RetryPolicy
from scheduler.recovery import recover
from scheduler.service import Asked, Service, collect_rarely, heard
from scheduler.sight import Sight
from scheduler.worker.announcements import Announcements
from scheduler.worker.attempt import STOPPING, Attempt, default_limits
from scheduler.worker.breaker import BreakerGuard
from scheduler.worker.consumer import ConsumerOptions, QueueConsumer
from scheduler.worker.executor import Executor, on_event_loop
from scheduler.worker.handlers import backoffs, of_function, queues_of
from scheduler.worker.handlers import handlers as registered
from scheduler.worker.prefork import Prefork
from scheduler.worker.status import StatusReporter, deregister, worker_status

logger = logging.getLogger("scheduler")

MIN_NOTE_INTERVAL_S = 0.1
MARK_INTERVAL_S = 1.0  # leases are marked as begun at least so often
MIN_LEASE = timedelta(seconds=1)
CANCEL_GRACE_S = 1.0  # for handlers that are cancelled at the end of the grace period
FLUSH_TIMEOUT_S = 3.0


class WorkerOptions(TypedDict, total=False):
    """The options of a `Worker`, see there."""

    concurrency: int
    processes: int
    lease: timedelta | str
    grace: timedelta | str
    retry: RetryPolicy
    block: timedelta | str
    reaper: ReaperRule
    originals: Mapping[str, Keys] | None
    breaker: BreakerRule | None
    fetch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """Validated options of a worker."""

    concurrency: int = 50
    processes: int = 1
    lease: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=30)
    retry: RetryPolicy = RETRY
    block: timedelta = timedelta(seconds=5)
    reaper: ReaperRule = ReaperRule()  # noqa: RUF009 - frozen
    originals: Mapping[str, Keys] | None = None
    breaker: BreakerRule | None = None
    fetch: str = "strict"

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "_Settings":
        """Validate options; raise `ConfigError` that names the wrong one."""
        values = dict(options)
        if unknown := values.keys() - cls.__slots__:
            raise TypeError(f"Worker() got an unexpected keyword argument {min(unknown)!r}")
        for name in values.keys() & {"concurrency", "processes"}:
            _validate_count(values[name], name)
        for name in values.keys() & {"lease", "grace", "block"}:
            values[name] = duration(values[name], name=name, error=ConfigError)
        for name, kind in (("breaker", BreakerRule), ("reaper", ReaperRule)):
            given = values.get(name)
            if given is not None and not isinstance(given, kind):
                raise ConfigError(
                    f"{name}: must be a scheduler.{kind.__name__}, not {type(given).__name__}"
                )
        for name in ("breaker", "retry"):
            if values.get(name) is not None:
                values[name] = values[name].checked()
        settings = cls(**values)
        if settings.fetch not in ("strict", "weighted"):
            raise ConfigError(f'fetch: must be "strict" or "weighted", not {settings.fetch!r}')
        if settings.lease < MIN_LEASE:
            raise ConfigError(f"lease: must be at least 1s, not {options['lease']!r}")
        return settings


class Worker:
    """Run the jobs of some queues: `Worker(redis=url, queues=["mail"]).run()`.

    Args:
        redis: URL or `RedisOptions` of the Redis that holds the queues.
        queues: Names of the queues. The default is every queue that has a handler.
        dialect: Dialect of all queues, or settings by queue as in `initialise(queues=...)`.
        handlers: Handlers to use. The default is every function registered with `@handler`.
        concurrency: Number of handlers that run concurrently in one process. The worker leases no
            more jobs than that.
        processes: Number of processes.
        lease: How long the worker's jobs stay leased without renewal ("30s").
        grace: How long handlers can keep running after the worker was asked to stop ("30s").
        retry: Retry policy of jobs that have none.
        block: Longest time that one blocking read waits for a job ("5s").
        reaper: How the jobs of dead workers are found.
        originals: Keys of the original lists by queue. With a handler of "file", the worker takes
            jobs from these lists too.
        breaker: When to stop taking jobs from a queue whose jobs fail. The default is never.
        fetch: "strict" takes higher priorities first, "weighted" gives every priority its share.
    """

    def __init__(
        self,
        redis: str | RedisOptions,
        queues: Iterable[str] | None = None,
        *,
        dialect: str | Mapping[str, Mapping[str, str]] = "standard",
        handlers: Iterable[Callable[..., Any]] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        self._client = Client(redis)
        self._handlers = (
            list(registered.values()) if handlers is None else [of_function(fn) for fn in handlers]
        )
        self.queues = queues_of(queues, self._handlers)
        if isinstance(dialect, str):
            dialect = {name: {"dialect": dialect} for name in self.queues}
        self._dialects = checked_queues(dialect, name="dialect")
        self._settings = _Settings.from_options(options)
        self._limits = default_limits(self._settings.retry)
        self.name = ""
        self._events = Events()
        self._consumers: list[QueueConsumer] = []
        self._services: list[Service] = []
        self._renewed_at = 0.0
        self._announcements = Announcements(self._client)
        self.on_child_start: Callable[[], object] = lambda: None
        self.idle: Callable[[float], object] = time.sleep  # how a prefork parent waits
        # A signal can arrive at any time, also while the main thread waits for it.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._asked = Asked()

    @property
    def concurrency(self) -> int:
        """The number of handlers that run concurrently in one process."""
        return self._settings.concurrency

    @property
    def processes(self) -> int:
        """The number of processes."""
        return self._settings.processes

    @property
    def lease(self) -> timedelta:
        """How long jobs stay leased without renewal."""
        return self._settings.lease

    @property
    def grace(self) -> timedelta:
        """How long handlers can keep running after the worker was asked to stop."""
        return self._settings.grace

    def run(self) -> None:
        """Work until SIGTERM or SIGINT: fetch no more, let handlers end, put back the rest.

        A second signal ends the process immediately.
        """
        if self.processes > 1:
            Prefork(self.processes, self._run_child, self.grace.total_seconds(), self.idle).run()
        else:
            self._run_one()

    def start(self) -> None:
        """Start working in threads of this process, and return."""
        if self._consumers:
            raise LifecycleError("this worker is already started")
        host = socket.gethostname().replace(":", "_")
        self.name = f"{host}-{os.getpid()}-{time.time_ns()}-{secrets.token_hex(2)}-0"
        has_breaker = self._settings.breaker is not None
        self._reporter = StatusReporter(self.concurrency, has_breaker=has_breaker)
        self._keeper = Service(
            "keep", self._keep, last_backoff=min(5.0, self.lease.total_seconds() / 3)
        )
        self._executor = Executor(self.concurrency, self._handlers)
        for name in self.queues:
            known = {handler.type: handler for handler in self._handlers if handler.queue == name}
            self._consume(name, known)
            originals = self._settings.originals or {}
            if FILE in known and name in originals:
                self._consume(name, known, originals[name])
        self._executor.start(event_loop=any(map(on_event_loop, self._handlers)))
        recovery = Service("recover", self._recover)
        self._services = [self._keeper, recovery]
        self._services += [each.supervisor for each in self._consumers]
        self._services += [each.waiter for each in self._consumers]
        for service in self._services:
            service.start()
        logger.info(
            "worker %s: queues %s, concurrency %d",
            self.name,
            ", ".join(self.queues),
            self.concurrency,
            extra=log_fields(worker_id=self.name),
        )

    def _consume(
        self, name: str, handlers: Mapping[str, Handler], keys: Keys | None = None
    ) -> None:
        opened = open_queue(
            self._client,
            name,
            RELIABLE if keys else self._dialects.get(name, DEFAULT),
            worker=self.name,
            lease=self.lease,
            keys=keys,
            reaper=self._settings.reaper,
            weighted=self._settings.fetch == "weighted",
        )
        options = ConsumerOptions(
            worker=self.name,
            backoffs=backoffs,
            default_limits=self._limits,
            block_s=self._settings.block.total_seconds(),
            long_poll=len(self.queues) == 1 and not self._settings.originals,
            events=self._events,
            announcements=self._announcements,
            on_note=self._on_note,
            wake_keeper=self._keeper.wake,
        )
        guard = BreakerGuard(name, self._settings.breaker, self._events)
        self._consumers.append(QueueConsumer(opened, handlers, self._executor, guard, options))

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` with every event of this worker, in its threads; returns a function that
        ends the subscription.
        """
        return self._events.subscribe(listener)

    def look(self, known: Collection[str] = (), others: int = 0) -> Sight:
        """Return the status of this worker and of its queues: the known ones, and some others."""
        return worker_status(self._consumers, self._services, known, others)

    def reach(self) -> None:
        """Make a cheap call to Redis; raise if it does not answer."""
        for consumer in self._consumers[:1]:
            consumer.queue.waits()

    def stop(self, grace: float | None = None) -> None:
        """Fetch no more, let handlers end within the grace period, put back the other jobs."""
        if not self._consumers:
            return
        until = time.monotonic() + (self.grace.total_seconds() if grace is None else grace)
        for consumer in self._consumers:
            consumer.drain()
        for consumer in self._consumers:
            consumer.wait_for_fetches(time.monotonic() + FLUSH_TIMEOUT_S)
        self._wait_for_handlers(until)
        running = [each for each in self._in_flight() if not each.acknowledging]
        for attempt in running:
            attempt.cancelled.because(STOPPING)
        if running:
            self._wait_for_handlers(time.monotonic() + CANCEL_GRACE_S)
            for consumer in self._consumers:
                consumer.put_back_running()
        flush_until = time.monotonic() + FLUSH_TIMEOUT_S
        for consumer in self._consumers:
            consumer.flush(flush_until)
        for service in self._services:
            service.stop(timeout=0)
        self._keeper.stop(timeout=1.0)  # first: a renewal would register the worker again
        deregister(self._consumers)
        self._executor.stop()
        self._client.close()  # ends calls that block in Redis
        for service in self._services:
            service.stop(timeout=1.0)
        self._client.close()
        self._consumers, self._services = [], []

    def _run_child(self) -> None:
        self.on_child_start()
        self._run_one()

    def _run_one(self) -> None:
        before = {
            each: signal.signal(each, self._on_signal) for each in (signal.SIGTERM, signal.SIGINT)
        }
        collect_rarely()
        try:
            self.start()
            name = signal.Signals(heard(self._signals)).name
            fields = log_fields(worker_id=self.name)
            logger.info("worker %s: %s received, stopping", self.name, name, extra=fields)
            self.stop()
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        times = self._asked.heard()
        if times == 1:
            self._signals.put(number)
        elif times:
            os._exit(128 + number)  # the jobs in flight are reclaimed when the lease expires

    def _on_note(self) -> None:
        """Renew soon, so that the note of a handler reaches Redis."""
        soon = time.monotonic() - self._lease_s() / 3 + MIN_NOTE_INTERVAL_S
        if soon < self._renewed_at:
            self._renewed_at = soon
            self._keeper.wake()

    def _keep(self) -> float:
        """Check timeouts; renew leases every third of the lease, or when something changed.

        It runs at least once a second.
        """
        now = time.monotonic()
        soonest = min([each.check_timeouts(now) for each in self._consumers], default=now + 1.0)
        third = self._lease_s() / 3
        report = self._reporter.is_due(self._consumers, now, third)
        urgent = any(each.uncertain for each in self._consumers)
        if any(each.has_unmarked for each in self._consumers):
            urgent = urgent or now >= self._renewed_at + MARK_INTERVAL_S
        if report or urgent or now >= self._renewed_at + third:
            # Before the renewals read the notes: a note that comes later makes it earlier again.
            # If a renewal fails, its queue is uncertain, and the next step renews.
            self._renewed_at = now
            lease = timedelta(seconds=self._lease_s())
            with contextlib.ExitStack() as renewals:  # each queue, also if another one fails
                for consumer in self._consumers:
                    status = self._reporter.report(consumer) if report else None
                    renewals.callback(consumer.renew, lease, status)
            if report:
                self._reporter.mark_reported(now)
        progress_due = self._announcements.publish()
        wake_at = min(soonest, self._renewed_at + third, progress_due)
        return max(0.01, wake_at - time.monotonic())

    def _lease_s(self) -> float:
        """Return the lease: the worker's own, or the shortest visibility timeout in flight."""
        visibilities = (each.visibility for each in self._in_flight())
        return max(1.0, min([self.lease.total_seconds(), *visibilities]))

    def _recover(self) -> float:
        for consumer in self._consumers:
            retry = self._settings.retry
            recover(consumer.queue, self._events, backoffs, default=retry, foreign=True)
        # Jitter, so that the workers of a fleet do not scan at the same moment.
        return self._settings.reaper.interval.total_seconds() * random.uniform(0.75, 1.25)  # noqa: S311

    def _in_flight(self) -> list[Attempt]:
        return [attempt for each in self._consumers for attempt in list(each.in_flight)]

    def _wait_for_handlers(self, until: float) -> None:
        while self._in_flight() and time.monotonic() < until:
            time.sleep(0.01)


def _validate_count(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000:
        raise ConfigError(f"{name}: must be a number from 1 to 10000, not {value!r}")
