"""Slots, and the threads that run handlers and call Redis.

Leader/followers: every thread loops over "take the next task". A task is a leased job to run, or a
call to Redis that a queue wants to make. The thread that waits for a job in Redis, the leader, runs
the job that it gets; another thread waits in its place. `async def` handlers run on one event loop.

A slot is reserved when a fetch is sent. It stays reserved until Redis has acknowledged the result
of the job, or has answered that there was no job. So the leases of this process never exceed its
concurrency, also as Redis counts them.

Orphans on their last attempt, whose earlier worker died, run one at a time in a process, next to
ordinary jobs. If one of them kills the process again, no other one loses its last attempt with it.
"""

import asyncio
import inspect
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from scheduler.coroutines import Call, Coroutines
from scheduler.model.handling import Handler
from scheduler.processes import Processes
from scheduler.trace import Spans, Tracing
from scheduler.worker.attempt import Attempt

if TYPE_CHECKING:
    from scheduler.dialects.interface import Result
    from scheduler.worker.consumer import Exchange, QueueConsumer

logger = logging.getLogger("scheduler")

SPAWN_RETRY_S = 10.0
ORPHAN_INTERVAL_S = 0.2  # between the due times of orphans that a process returns
MAX_ORPHAN_DELAY_S = 60.0


class Executor:
    """The slots of a worker process and its threads; `lock` guards them and the queues' state.

    free: slots that are not reserved. ready: leased jobs that wait for a thread. free_of: slots
    left of each handler that has a concurrency of its own. consumers: the queues of the process.
    orphan: the orphan on its last attempt that this process has, of all its queues.
    """

    def __init__(self, concurrency: int, handlers: Iterable[Handler] = ()) -> None:
        self.concurrency = concurrency
        self.lock = threading.Lock()
        self.free = concurrency
        self.ready: deque[Attempt] = deque()
        self.free_of = {each: each.concurrency for each in handlers if each.concurrency is not None}
        self.consumers: list[QueueConsumer] = []
        self.orphan: Attempt | None = None
        self._orphan_due = 0.0  # when the last orphan that was returned is due
        self._task_added = threading.Condition(self.lock)
        self._grants = itertools.count(1)
        self._threads = 0
        self._spawn_at = 0.0
        self._idle = 0
        self._waking = False  # a thread was notified or started, and has not taken a task yet
        self._stopping = False
        self._event_loop = Coroutines(None)
        self._loop_results: list[tuple[Attempt, Result]] = []  # of the event loop's thread
        self._processes = Processes()

    def start(self, *, event_loop: bool) -> None:
        """Start the first thread, and the event loop if a handler needs it.

        A process that cannot have these threads fails here, before it leases a job.
        """
        if event_loop:
            self._event_loop.start()
        with self.lock:
            self._spawn()

    def stop(self) -> None:
        """Let the threads end, each after the handler that it runs."""
        with self.lock:
            self._stopping = True
            self._task_added.notify_all()
        self._event_loop.stop()
        self._processes.stop()

    def wake(self) -> None:
        """Have a thread look for a task; it wakes the next one if there is more. Needs the lock.

        At most one thread is on its way at a time. Quick jobs would otherwise wake one thread each,
        only to find nothing to do.
        """
        if self._waking or self._stopping:
            return
        if self._idle:
            self._waking = True
            self._task_added.notify()
        elif self._threads <= self.concurrency and time.monotonic() >= self._spawn_at:
            self._spawn()  # one more than slots: it calls Redis

    def share(self, consumer: "QueueConsumer", available: int) -> int:
        """Return how many of the available slots one queue can use now. Needs the lock.

        Other queues that want slots get the same share, and a single slot goes to the queue that
        was served longest ago: a busy queue does not starve the others.
        """
        others = [each for each in self.consumers if each is not consumer and each.wants_slots]
        share = available // (len(others) + 1)
        if not share and available > 0 and all(consumer.granted <= each.granted for each in others):
            share = 1
        if share > 0:
            consumer.granted = next(self._grants)
        return max(0, share)

    def _spawn(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"scheduler-job-{self._threads}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                raise
            logger.warning(
                "cannot start more than %d threads for handlers: %s", self._threads, error
            )
            self._spawn_at = time.monotonic() + SPAWN_RETRY_S
            return
        self._waking = True
        self._threads += 1

    def _work(self) -> None:
        task = self._next_task(woken=True)
        while task is not None:
            if isinstance(task, Attempt):
                result = task.consumer.finish(task, *self._run(task))
                task = self._next_task(task, result)
            elif isinstance(task, list):
                self._start_on_loop(task)
                task = self._next_task()
            else:
                task.run()
                task = self._next_task()

    def _next_task(
        self,
        finished: Attempt | None = None,
        result: "Result | None" = None,
        *,
        woken: bool = False,
    ) -> "Attempt | list[Attempt] | Exchange | None":
        """Hand over the result of the last task, and wait for the next one; None: stop."""
        with self.lock:
            if finished is not None and result is not None:
                finished.consumer.add_result(finished, result)
            if woken:
                self._waking = False
            while True:
                if (task := self._choose()) is not None:
                    if self.ready or any(each.has_call() for each in self.consumers):
                        self.wake()
                    return task
                if self._stopping:
                    return None
                self._idle += 1
                self._task_added.wait()
                self._idle -= 1
                self._waking = False

    def _choose(self) -> "Attempt | list[Attempt] | Exchange | None":
        """Choose the next task.

        Jobs come before calls, which lets results gather into batches. But once half of a queue's
        leased jobs have ended, their results go first: Redis then works on them while this process
        works on the other half. A queue without a job in flight also goes first.
        """
        consumers = self.consumers
        for consumer in consumers:
            if consumer.goes_first() and (call := consumer.next_call()) is not None:
                return call
        if self.ready and (jobs := self._choose_ready()):
            return jobs
        if len(consumers) > 1:  # the queue that was served longest ago is the first
            consumers = sorted(consumers, key=lambda each: each.granted)
        for consumer in consumers:
            if (call := consumer.next_call()) is not None:
                return call
        return None

    def _choose_ready(self) -> Attempt | list[Attempt] | None:
        """Take a job for this thread, or all next jobs whose handlers run on the event loop."""
        batch: list[Attempt] = []
        while self.ready:
            is_async = on_event_loop(self.ready[0].handler)
            if batch and not is_async:
                break
            attempt = self.ready.popleft()
            if not attempt.consumer.is_confirmed(attempt):
                continue
            if not is_async:
                return attempt
            batch.append(attempt)
        return batch or None

    def count_handler_slots(self, attempts: Iterable[Attempt], change: int) -> None:
        """Reserve (-1) or free (+1) slots of handlers with a concurrency of their own."""
        if not self.free_of:
            return
        for attempt in attempts:
            if attempt.handler in self.free_of:
                self.free_of[attempt.handler] += change

    def claim_orphan_slot(self, attempt: Attempt) -> bool:
        """Make an attempt the one orphan on its last attempt, unless there is one. Needs the lock.

        The slot is free again when Redis has acknowledged the result: if the process died before,
        the attempt would be lost.
        """
        if self.orphan is None:
            self.orphan = attempt
        return self.orphan is attempt

    def free_orphan_slot(self, ended: Collection[Attempt]) -> None:
        """Free the slot if its attempt is among those that have ended. Needs the lock."""
        if self.orphan is not None and self.orphan in ended:
            self.orphan = None

    def orphan_delay(self) -> timedelta:
        """Return after which delay an orphan that must wait is due again. Needs the lock.

        The due times of several orphans are an interval apart: each finds a free slot if they are
        quick, and the process leases only a few of them a second, however many wait.
        """
        now = time.monotonic()
        due = max(now, self._orphan_due) + ORPHAN_INTERVAL_S
        self._orphan_due = min(due, now + MAX_ORPHAN_DELAY_S)
        return timedelta(seconds=self._orphan_due - now)

    def _run(self, attempt: Attempt) -> tuple[object, BaseException | None]:
        """Call the handler in this thread; return what it returned or raised."""
        try:
            if Tracing.spans is None:
                return self._call(attempt), None
            with attempt.begin_span(Tracing.spans).current():
                return self._call(attempt), None
        except BaseException as error:  # noqa: BLE001 - SystemExit ends the handler, not the worker
            return None, error

    def _call(self, attempt: Attempt) -> object:
        handler = attempt.handler
        if not attempt.can_start():
            return None
        if handler.imported_as is not None:
            return self._processes.run(
                handler.imported_as,
                attempt.context_data(),
                attempt.cancelled,
                began=attempt.start,
                payload=attempt.payload(),
                told=attempt.report,
            )
        attempt.start()
        result = handler.fn(attempt.context(), attempt.payload())
        # `isawaitable()` is slow, and None is the common case.
        if result is not None and inspect.isawaitable(result):
            return self._event_loop.run(result, attempt.cancelled)
        return result

    def _start_on_loop(self, attempts: list[Attempt]) -> None:
        self._event_loop.begin([self._loop_call(attempt) for attempt in attempts])

    def _loop_call(self, attempt: Attempt) -> Call:
        def start() -> object:
            if not attempt.can_start():
                return asyncio.sleep(0)
            attempt.start()
            if Tracing.spans is not None:
                return _traced(attempt, Tracing.spans)
            return attempt.handler.fn(attempt.context(), attempt.payload())

        def ended(returned: object, error: BaseException | None) -> None:
            result = attempt.consumer.finish(attempt, returned, error)
            self._loop_results.append((attempt, result))
            if len(self._loop_results) == 1:
                asyncio.get_running_loop().call_soon(self._add_loop_results)

        return Call(start, attempt.cancelled, ended)  # type: ignore[arg-type]

    def _add_loop_results(self) -> None:
        """Add the results of all handlers that ended in one iteration of the event loop.

        Adding them one by one would wake a thread for each, which sends few results.
        """
        results, self._loop_results = self._loop_results, []
        with self.lock:
            for attempt, result in results:
                attempt.consumer.add_result(attempt, result)
            self.wake()


def on_event_loop(handler: Handler) -> bool:
    """Return whether a handler runs on the event loop."""
    return handler.is_async and handler.imported_as is None


async def _traced(attempt: Attempt, spans: Spans) -> object:
    with attempt.begin_span(spans).current():
        return await attempt.handler.fn(attempt.context(), attempt.payload())
