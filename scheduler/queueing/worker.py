"""Worker: takes jobs out of Redis queues, runs their handlers, and sends their ends back. It needs no Postgres.

Threads: three for each queue (`carrier`), one that keeps leases and watches timeouts, one that takes back what silent
workers hold, and those of the pool.
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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

from scheduler.config import checked_queues
from scheduler.dialects.channel import Channel
from scheduler.dialects.client import Client
from scheduler.dialects.opening import RELIABLE, open_queue
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.reaper import ReaperRule
from scheduler.dialects.reliable.wire import FILE
from scheduler.errors import ConfigError, LifecycleError, QueueError
from scheduler.events import Event, Events
from scheduler.log import keys as log_keys
from scheduler.model.addresses import RedisOptions
from scheduler.model.breaker import BreakerRule
from scheduler.model.durations import duration
from scheduler.model.handling import Handler
from scheduler.model.policies import RETRY
from scheduler.model.retries import RetryPolicy
from scheduler.model.states import State
from scheduler.queueing.attempt import STOPPING, Attempt, usual_limits
from scheduler.queueing.carrier import Carrier
from scheduler.queueing.family import Family
from scheduler.queueing.handlers import backoffs, of_function, queues_of
from scheduler.queueing.handlers import handlers as registered
from scheduler.queueing.pool import Pool, on_loop
from scheduler.queueing.recovery import recover
from scheduler.queueing.seeing import Telling, leave, reach, sight_of
from scheduler.service import Asked, Service, collect_rarely, heard
from scheduler.sight import Sight

logger = logging.getLogger("scheduler")

SOONEST_TELL = 0.1


class Worker:
    """Runs the jobs of some queues: `Worker(redis=url, queues=["mail"]).run()`.

    redis: the URL of the Redis that feeds it. queues: names; all queues that have a handler by default. dialect: of all
    of them, or by queue as `initialise(queues=...)` has it.
    handlers: those to use; by default all that `@handler` registered. concurrency: how many handlers run at once in a
    process. processes: how many processes. lease: how long it may be silent before its jobs are taken back ("30s").
    grace: how long handlers may go on once it was told to stop ("30s"). retry: for jobs without a policy of their own.
    block: how long one wait for a job lasts ("5s"). reaper: how what silent workers hold is looked for.
    originals: keys of the original by queue; with a handler of "file", jobs come from there too.
    breaker: when a queue whose jobs fail is left alone for a while; never by default. fetch: "strict", higher
    priorities first, or "weighted", every priority its share.
    """

    def __init__(
        self,
        redis: str | RedisOptions,
        queues: Iterable[str] | None = None,
        *,
        dialect: str | Mapping[str, Mapping[str, str]] = "reliable",
        handlers: Iterable[Callable[..., Any]] | None = None,
        concurrency: int = 50,
        processes: int = 1,
        lease: timedelta | str = timedelta(seconds=30),
        grace: timedelta | str = timedelta(seconds=30),
        retry: RetryPolicy = RETRY,
        block: timedelta | str = timedelta(seconds=5),
        reaper: ReaperRule = ReaperRule(),  # noqa: B008 - frozen
        originals: Mapping[str, Keys] | None = None,
        breaker: BreakerRule | None = None,
        fetch: str = "strict",
    ) -> None:
        self._client = Client(redis)
        self._handlers = list(registered.values()) if handlers is None else [of_function(fn) for fn in handlers]
        self.queues = queues_of(queues, self._handlers)
        by_queue = {name: {"dialect": dialect} for name in self.queues} if isinstance(dialect, str) else dialect
        self._dialects = checked_queues(by_queue, name="dialect")
        self.concurrency = _number(concurrency, "concurrency")
        self.processes = _number(processes, "processes")
        self.lease = duration(lease, name="lease", error=ConfigError)
        self.grace = duration(grace, name="grace", error=ConfigError)
        self._usual = usual_limits(retry.checked())
        self._block = duration(block, name="block", error=ConfigError)
        self._reaper = reaper
        self._originals = originals or {}
        for name, given, kind in (("breaker", breaker or BreakerRule(), BreakerRule), ("reaper", reaper, ReaperRule)):
            if not isinstance(given, kind):
                raise ConfigError(f"{name}: must be a scheduler.{kind.__name__}, not {type(given).__name__}")
        self._breaker = None if breaker is None else breaker.checked()
        if fetch not in ("strict", "weighted"):
            raise ConfigError(f'fetch: must be "strict" or "weighted", not {fetch!r}')
        self._weighted = fetch == "weighted"
        if self.lease < timedelta(seconds=1):
            raise ConfigError(f"lease: must be at least 1s, not {lease!r}")
        self.name = ""
        self._events = Events()
        self._carriers: list[Carrier] = []
        self._services: list[Service] = []
        self._renewed = 0.0
        self._channels: dict[str, Channel] = {}  # by the installations whose jobs came here
        self._watched: set[str] = set()
        self.on_birth: Callable[[], object] = lambda: None  # called in each of several processes
        self.meanwhile: Callable[[float], object] = time.sleep  # called in their parent, to wait
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()  # a signal may come while we wait for it
        self._asked = Asked()

    def run(self) -> None:
        """Work until SIGTERM or SIGINT: take no more, let handlers end, put back the rest. A second ends at once."""
        if self.processes > 1:
            Family(self.processes, self._born, self.grace.total_seconds(), self.meanwhile).run()
        else:
            self._run_one()

    def start(self) -> None:
        """Start working in threads of this process, and return."""
        if self._carriers:
            raise LifecycleError("this worker is already started")
        self.name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}-{secrets.token_hex(2)}-0".replace(":", "_")
        self._pool = Pool(self.concurrency, self._ended, loop=any(map(on_loop, self._handlers)))
        self._telling = Telling(self.concurrency, breaks=self._breaker is not None)
        self._keeping = Service("keep", self._keep, last_backoff=min(5.0, self.lease.total_seconds() / 3))
        for name in self.queues:
            known = {handler.type: handler for handler in self._handlers if handler.queue == name}
            self._carriers.append(self._carrier(name, None, known))
            if FILE in known and name in self._originals:
                self._carriers.append(self._carrier(name, self._originals[name], known))
        self._services = [self._keeping, Service("recover", self._recover)]
        for carrier in self._carriers:
            self._services += [*carrier.finishing, carrier.fetching]
        for service in self._services:
            service.start()
        said = "worker %s: queues %s, %d at once"
        logger.info(said, self.name, ", ".join(self.queues), self.concurrency, extra=log_keys(worker_id=self.name))

    def _carrier(self, name: str, keys: Keys | None, known: Mapping[str, Handler]) -> Carrier:
        keyed = open_queue(
            self._client, name, RELIABLE if keys else self._dialects.get(name, RELIABLE), worker=self.name,
            lease=self.lease, keys=keys, reaper=self._reaper, weighted=self._weighted,
        )  # fmt: skip
        return Carrier(
            keyed, self._pool, worker=self.name, handlers=known, backoffs=backoffs, usual=self._usual,
            block=self._block.total_seconds(), said=self._said, doubted=self._keeping.wake, begun=self._begun,
            freed=self._freed, breaker=self._breaker, events=self._events,
            prompt=len(self.queues) == 1 and not self._originals,
        )  # fmt: skip

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` with every event of this worker, in our threads; returns what ends it."""
        return self._events.subscribe(listener)

    def look(self, known: Collection[str] = (), others: int = 0) -> Sight:
        """Look at the parts of this worker, and in Redis at its queues, the known and some others."""
        return sight_of(self._carriers, self._services, known, others)

    def reach(self) -> None:
        """Ask Redis for something small; raises what keeps it from answering."""
        reach(self._carriers)

    def stop(self, grace: float | None = None) -> None:
        """Take no more, let handlers end within the grace, put back what did not."""
        if not self._carriers:
            return
        until = time.monotonic() + (self.grace.total_seconds() if grace is None else grace)
        for carrier in self._carriers:
            carrier.drain()
        self._put_back(self._pool.give_back())
        self._wait(until)
        running = self._running()
        for attempt in running:
            attempt.cancelled.because(STOPPING)
        if running:
            self._wait(time.monotonic() + 1.0)
            self._pool.give_back()  # they are put back with the others: none shall begin after that
            self._put_back(self._running())
        for carrier in self._carriers:
            carrier.stop(until=time.monotonic() + 3.0)
        for service in self._services:
            service.stop(timeout=0)
        leave(self._carriers, self._keeping)
        self._pool.stop()
        self._client.close()  # whoever waits for Redis hears of it
        for service in self._services:
            service.stop(timeout=1.0)
        self._client.close()
        self._carriers, self._services = [], []

    def _born(self) -> None:
        self.on_birth()
        self._run_one()

    def _run_one(self) -> None:
        before = {each: signal.signal(each, self._on_signal) for each in (signal.SIGTERM, signal.SIGINT)}
        collect_rarely()
        try:
            self.start()
            number = heard(self._signals)
            name = signal.Signals(number).name
            logger.info("worker %s ends: %s", self.name, name, extra=log_keys(worker_id=self.name))
            self.stop()
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        times = self._asked.heard()
        if times == 1:
            self._signals.put(number)
        elif times:
            os._exit(128 + number)  # what it holds is taken back when its lease is over

    def _ended(self, attempt: Attempt, result: object, error: BaseException | None) -> None:
        for carrier in self._carriers:
            if attempt in carrier.flight:
                carrier.ended(attempt, result, error)
            elif carrier.starved:
                carrier.fetching.wake()

    def _freed(self) -> None:
        for carrier in self._carriers:
            if carrier.starved:
                carrier.fetching.wake()

    def _said(self) -> None:
        self._renewed = min(self._renewed, time.monotonic() - self._lease() / 3 + SOONEST_TELL)
        self._keeping.wake()

    def _begun(self, attempts: Sequence[Attempt]) -> None:
        """Say aloud that jobs are running, where somebody listens."""
        changes: dict[str, list[tuple[str, str, State]]] = {}
        for attempt in attempts:
            job = attempt.delivery.job
            if job.installation not in self._channels and job.installation:
                self._channels[job.installation] = Channel(self._client, job.installation)
            if job.installation in self._watched:
                changes.setdefault(job.installation, []).append((job.tenant, job.id, State.RUNNING))
        for installation, running in changes.items():
            with contextlib.suppress(QueueError):
                self._channels[installation].say(running, attempts[0].delivery.started_at)

    def _keep(self) -> float:
        """Renew when a third of the lease is over, or there is something to say; tell who is past its timeout."""
        now = time.monotonic()
        soonest = min([carrier.watch(now) for carrier in self._carriers], default=now + 1.0)
        third = self._lease() / 3
        tells = self._telling.due(self._carriers, now, third)
        if tells or now >= self._renewed + third or any(carrier.leases.doubtful for carrier in self._carriers):
            with contextlib.ExitStack() as every:  # whatever becomes of one
                for carrier in self._carriers:
                    about = self._telling.about(carrier) if tells else None
                    every.callback(carrier.renew, timedelta(seconds=self._lease()), about)
            self._renewed = now
            if tells:
                self._telling.told(now)
        with contextlib.suppress(QueueError):  # after the leases: nobody needs to be told
            self._watched = {each for each, channel in list(self._channels.items()) if channel.watched()}
        return max(0.01, min(soonest, self._renewed + third) - time.monotonic())

    def _lease(self) -> float:
        """How long we may be silent: as short as the jobs in our hands ask for."""
        flights = (attempt.visibility for carrier in self._carriers for attempt in list(carrier.flight))
        return max(1.0, min([self.lease.total_seconds(), *flights]))

    def _recover(self) -> float:
        for carrier in self._carriers:
            recover(carrier.queue, self.name, backoffs, self._usual, self._events)
        # so that fleets do not look in step
        return self._reaper.interval.total_seconds() * random.uniform(0.75, 1.25)  # noqa: S311

    def _running(self) -> list[Attempt]:
        return [attempt for carrier in self._carriers for attempt in list(carrier.flight)]

    def _put_back(self, attempts: Iterable[Attempt]) -> None:
        listed = list(attempts)
        for carrier in self._carriers:
            carrier.put_back([attempt for attempt in listed if attempt in carrier.flight])

    def _wait(self, until: float) -> None:
        while self._running() and time.monotonic() < until:
            time.sleep(0.01)


def _number(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000:
        raise ConfigError(f"{name}: must be a number from 1 to 10000, not {value!r}")
    return value
