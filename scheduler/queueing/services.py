"""The ring of an instance, running: threads that feed, tend and call back, and one for each queue
that settles.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from scheduler.dialects.client import Client
from scheduler.dialects.interface import ParksTypes
from scheduler.errors import QueueError
from scheduler.events import Events
from scheduler.model.retries import Backoff
from scheduler.queueing.admin import Queues
from scheduler.queueing.callbacks import Callbacks
from scheduler.queueing.feeder import Feeder
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.ring import Ring
from scheduler.queueing.settler import Settled, Settler
from scheduler.queueing.shortcut import Shortcut
from scheduler.queueing.upkeep import Upkeep
from scheduler.service import Service
from scheduler.sight import QueueSight, queue_statuses

LAST_BACKOFF = 5.0


class RingServices:
    """Feeder, upkeep, callbacks and settlers with their threads; a settler starts when its queue is
    first met.
    """

    def __init__(
        self,
        ledger: Ledger,
        ring: Ring,
        events: Events,
        *,
        now: Callable[[], datetime],
        callbacks: Callbacks,
        quick: Client,
        backoffs: Mapping[str, Backoff],
    ) -> None:
        """Put them together; `quick`: a client that gives up soon, for those who wait for
        `submit`. `backoffs`: see `Upkeep`.
        """
        self.ring = ring
        self._quick = quick
        self._ledger = ledger
        self._events = events
        self._now = now
        self.feeder = Feeder(ledger, ring, events, now=now, lost=lambda _: self.tend())
        self.shortcut = Shortcut(ledger, ring, self.feeder, client=quick, events=events)
        self.feeder.before = self.shortcut.wait
        self.upkeep = Upkeep(
            ledger,
            ring,
            events,
            self.settle,
            self.shortcut.marked,
            backoffs=backoffs,
        )
        self.queues = Queues(ring, ledger)
        self._feeding = Service("feed", self.feeder.step, last_backoff=LAST_BACKOFF)
        self._tending = Service("tend", self.upkeep.step, last_backoff=LAST_BACKOFF)
        self._callbacks = callbacks
        self._calling = Service("callbacks", callbacks.step, last_backoff=LAST_BACKOFF)
        callbacks.wake = self._calling.wake
        self._settling: dict[str, Service] = {}
        self._settlers: dict[str, Settler] = {}
        self._lock = threading.Lock()
        self._started = False

    def start(self) -> None:
        """Start the threads."""
        self._started = True
        self._tending.start()
        self._feeding.start()
        self._calling.start()

    def settle(self, queue: str) -> None:
        """Settle what comes back through a queue, from now on."""
        with self._lock:
            if queue in self._settling or not self._started:
                return
            settler = Settler(
                self.ring.queue(queue), self._ledger, self._events, self._settled, self.ring.check
            )
            service = Service(f"settle-{queue}", settler.step, last_backoff=LAST_BACKOFF)
            self._settling[queue], self._settlers[queue] = service, settler
        service.start()

    def feed(self) -> None:
        """Look at once: something was submitted."""
        self._feeding.wake()

    def tend(self) -> None:
        """Look after everything at once."""
        self._tending.wake()

    def _settled(self, settled: Settled) -> None:
        if settled.freed:
            self.feed()  # for nothing, it would cost a tenth of what the ring can do
        self.ring.say(settled.changes, settled.due)

    def services(self) -> list[Service]:
        """List the threads."""
        with self._lock:
            return [self._feeding, self._tending, self._calling, *self._settling.values()]

    def look(self, known: Collection[str], others: int) -> list[QueueSight]:
        """Look at queues that were met, the known and some others, and at how far feeder and
        settlers are behind.
        """
        with self._lock:
            names = list(self._settlers)
        statuses = queue_statuses(map(self.ring.queue, names), known, others)
        unhandled = self._unhandled(statuses)
        found = []
        for each in statuses:
            settler = self._settlers.get(each.name)
            settle_lag = self._behind(settler.waits_since if settler is not None else None)
            found.append(
                replace(
                    each,
                    feed_lag=self._behind(self.feeder.due_since.get(each.name)),
                    settle_lag=settle_lag,
                    unhandled=unhandled.get(each.name),
                )
            )
        return found

    def _unhandled(self, statuses: Iterable[QueueSight]) -> dict[str, int]:
        """Count jobs whose type no live worker handles. After the first failure Redis is not asked
        again.
        """
        found: dict[str, int] = {}
        with contextlib.suppress(QueueError):
            for each in statuses:
                queue = self.ring.queue(each.name)
                if each.waiting is not None and isinstance(queue, ParksTypes):
                    found[each.name] = sum(queue.unhandled_types().values()) if each.waiting else 0
        return found

    def _behind(self, since: datetime | None) -> float:
        return 0.0 if since is None else max(0.0, (self._now() - since).total_seconds())

    def stop(self, timeout: float) -> None:
        """Stop the threads: none of them holds anything that another instance could not take up."""
        self.feeder.stopping = True
        with self._lock:
            self._started = False
        services, end = self.services(), time.monotonic() + timeout
        for service in services:
            service.stop(timeout=0)
        settling = dict(
            self._settling
        )  # what is on its way to those, or in their hands, would wait for 30 s
        while settling:
            for name in [name for name, service in settling.items() if service.stop(timeout=0.01)]:
                del settling[name]
                self._settlers[name].close()
            if not settling or time.monotonic() > end:
                break
            self.ring.unblock(self._quick)
        self.ring.close()  # whoever waits for Redis hears of it
        for service in services:
            service.stop(timeout=timeout)
        self._callbacks.stop(timeout)
        self.ring.close()
        self.shortcut.close()
