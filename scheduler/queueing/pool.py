"""Where handlers run: threads, the loop for `async def`, processes; and how many more jobs there is room for."""

import asyncio
import inspect
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Sequence

from scheduler.coroutines import Call, Coroutines
from scheduler.model.handling import Handler
from scheduler.processes import Processes
from scheduler.queueing.attempt import Attempt
from scheduler.trace import Spans, Tracing

BACKLOG_SECONDS = 0.2
LARGEST_BACKLOG = 2000

Ended = Callable[[Attempt, object, BaseException | None], None]


class Pool:
    """Runs attempts, at most `concurrency` at once; those that wait for a place wait here."""

    def __init__(self, concurrency: int, ended: Ended) -> None:
        self.concurrency = concurrency
        self._ended = ended
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._reserved = 0
        self._done = 0
        self._rate: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._waiting: dict[Handler, deque[Attempt]] = {}
        self._busy: dict[Handler, int] = {}
        self._coroutines = Coroutines(None)
        self._processes = Processes()

    def reserve(self, most: int) -> int:
        """Keep places free: what is not running now, and what ended lately in a fifth of a second."""
        now = time.monotonic()
        with self._lock:
            while len(self._rate) > 1 and self._rate[1][0] < now - BACKLOG_SECONDS:
                self._rate.popleft()
            backlog = min(self._done - self._rate[0][1], LARGEST_BACKLOG)
            if now - self._rate[-1][0] > BACKLOG_SECONDS / 10:
                self._rate.append((now, self._done))
            room = max(0, min(most, self.concurrency + backlog - self._reserved))
            self._reserved += room
            return room

    def free(self, places: int) -> None:
        """Give back places that were kept and are not needed."""
        with self._lock:
            self._reserved -= places

    def count(self) -> int:
        """Count the places that are taken or kept."""
        return self._reserved

    def take(self, attempts: Sequence[Attempt]) -> None:
        """Run attempts for which places were kept."""
        inline: list[Attempt] = []
        for attempt in attempts:
            if attempt.handler.concurrency is not None and not self._admit(attempt):
                continue
            inline.append(attempt)
        self._start(inline)

    def give_back(self, of: Container[Attempt] | None = None) -> list[Attempt]:
        """Take back what has not started; `of`: of these alone."""
        found: list[Attempt] = []
        others: list[Attempt | None] = []
        with self._lock:
            for handler, line in self._waiting.items():
                found += [attempt for attempt in line if of is None or attempt in of]
                self._waiting[handler] = deque(attempt for attempt in line if of is not None and attempt not in of)
        in_line = len(found)
        while True:
            try:
                attempt = self._queue.get_nowait()
            except queue.Empty:
                break
            if attempt is not None and (of is None or attempt in of):
                found.append(attempt)
            else:
                others.append(attempt)
        for other in others:
            self._queue.put(other)
        with self._lock:
            self._reserved -= len(found)
            followers = [self._follower(attempt.handler) for attempt in found[in_line:]]
        self._start([follower for follower in followers if follower is not None])
        return found

    def stop(self) -> None:
        """Let the threads end as they become free."""
        for _ in self._threads:
            self._queue.put(None)
        self._coroutines.stop()
        self._processes.stop()

    def _admit(self, attempt: Attempt) -> bool:
        """Whether its handler may run once more; if not, it waits in line."""
        handler = attempt.handler
        with self._lock:
            busy = self._busy.get(handler, 0)
            if busy >= (handler.concurrency or 0):
                self._waiting.setdefault(handler, deque()).append(attempt)
                return False
            self._busy[handler] = busy + 1
            return True

    def _start(self, attempts: Sequence[Attempt]) -> None:
        calls: list[Call] = []
        threaded: list[Attempt] = []
        for attempt in attempts:
            if attempt.handler.is_async and attempt.handler.imported_as is None:
                calls.append(self._call_of(attempt))
            else:
                threaded.append(attempt)
        if calls:
            self._coroutines.begin(calls)
        if not threaded:
            return
        with self._lock:
            while len(self._threads) < min(self.concurrency, self._reserved):
                thread = threading.Thread(target=self._work, name=f"scheduler-job-{len(self._threads)}", daemon=True)
                thread.start()
                self._threads.append(thread)
        for attempt in threaded:
            self._queue.put(attempt)

    def _call_of(self, attempt: Attempt) -> Call:
        def start() -> object:
            if attempt.lost:
                return asyncio.sleep(0)  # somebody else has it by now
            attempt.start()
            if Tracing.spans is not None:
                return _traced(attempt, Tracing.spans)
            return attempt.handler.fn(attempt.context(), attempt.payload())

        def ended(result: object, error: BaseException | None) -> None:
            self._leave(attempt, result, error)

        return Call(start, attempt.cancelled, ended)  # type: ignore[arg-type]

    def _work(self) -> None:
        while (attempt := self._queue.get()) is not None:
            spans = Tracing.spans
            if spans is None or attempt.lost:
                result, error = self._run(attempt)
            else:
                with attempt.traced(spans).current():
                    result, error = self._run(attempt)
            self._leave(attempt, result, error)

    def _run(self, attempt: Attempt) -> tuple[object, BaseException | None]:
        handler = attempt.handler
        try:
            if attempt.lost:
                return None, None
            if handler.imported_as is not None:
                found = self._processes.run(
                    handler.imported_as, attempt.values(), attempt.cancelled, began=attempt.start,
                    payload=attempt.payload(), told=attempt.tell,
                )  # fmt: skip
                return found, None
            attempt.start()
            result = handler.fn(attempt.context(), attempt.payload())
            if inspect.isawaitable(result):
                result = self._coroutines.run(result, attempt.cancelled)
        except BaseException as error:  # noqa: BLE001 - SystemExit and friends end the handler, not the worker
            return None, error
        return result, None

    def _leave(self, attempt: Attempt, result: object, error: BaseException | None) -> None:
        with self._lock:
            self._done += 1
            self._reserved -= 1
            follower = self._follower(attempt.handler)
        if follower is not None:
            self._start([follower])
        self._ended(attempt, result, error)

    def _follower(self, handler: Handler) -> Attempt | None:
        """Hand on the place of an attempt to the next in line of its handler."""
        if handler.concurrency is None:
            return None
        if line := self._waiting.get(handler):
            return line.popleft()
        self._busy[handler] -= 1
        return None


async def _traced(attempt: Attempt, spans: Spans) -> object:
    with attempt.traced(spans).current():
        return await attempt.handler.fn(attempt.context(), attempt.payload())
