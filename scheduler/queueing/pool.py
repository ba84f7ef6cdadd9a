"""Where handlers run: threads, the loop for `async def`, processes; and how many more jobs there is room for."""

import asyncio
import inspect
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence

from scheduler.coroutines import Call, Coroutines
from scheduler.log import keys
from scheduler.model.handling import Handler
from scheduler.processes import Processes
from scheduler.queueing.attempt import Attempt
from scheduler.trace import Spans, Tracing

logger = logging.getLogger("scheduler")

BACKLOG_SECONDS = 0.2
LARGEST_BACKLOG = 2000

Ended = Callable[[Attempt, object, BaseException | None], None]
Wait = Callable[[], Attempt | None]


class Pool:
    """Runs attempts, at most `concurrency` at once; those that wait for a place wait here.

    One that may not be ours any more is passed over when it is its turn, and waits apart until that is known.
    """

    def __init__(self, concurrency: int, ended: Ended, *, loop: bool = False) -> None:
        self.concurrency = concurrency
        self._ended = ended
        self._lock = threading.Lock()
        self._ready: deque[Attempt] = deque()
        self._apart: list[Attempt] = []
        self._running = 0
        self._queue: queue.SimpleQueue[Attempt | Wait | None] = queue.SimpleQueue()  # with a place, for threads
        self._threads: list[threading.Thread] = []
        self._given = 0  # what is with threads, or in that queue
        self._reserved = 0
        self._done = 0
        self._rate: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._waiting: dict[Handler, deque[Attempt]] = {}
        self._busy: dict[Handler, int] = {}
        self._coroutines = Coroutines(None)
        self._processes = Processes()
        self._hire()
        if loop:  # now: where there cannot be its thread, no job shall have been taken for it
            self._coroutines.start()

    def reserve(self, most: int) -> int:
        """Keep places free: what is not running now, and what ended lately in a fifth of a second."""
        now = time.monotonic()
        with self._lock:
            while len(self._rate) > 1 and self._rate[1][0] < now - BACKLOG_SECONDS:
                self._rate.popleft()
            backlog = min(self._done - self._rate[0][1], LARGEST_BACKLOG)
            if now - self._rate[-1][0] > BACKLOG_SECONDS / 10:
                self._rate.append((now, self._done))
            room = max(0, min(most, self.concurrency + backlog - self._reserved + len(self._apart)))
            self._reserved += room
            return room

    def free(self, places: int) -> None:
        """Give back places that were kept and are not needed."""
        with self._lock:
            self._reserved -= places

    def count(self) -> int:
        """Count the places that are taken or kept."""
        return self._reserved

    def take(self, attempts: Sequence[Attempt], *, here: bool = False) -> Attempt | None:
        """Run attempts for which places were kept. `here`: in a thread that runs one of them; it is returned."""
        with self._lock:
            self._ready.extend([each for each in attempts if each.handler.concurrency is None or self._admit(each)])
            placed = self._placed()
        ours = next((each for each in placed if not on_loop(each.handler)), None) if here else None
        if ours is not None:
            placed.remove(ours)
        self._start(placed)
        if placed:
            time.sleep(0)  # they begin now, and not once the thread that took them waits for something
        return ours

    def watch(self, wait: Wait) -> None:
        """Let a thread wait for the attempt that it runs: no other has to be woken for it."""
        self._give([wait])

    def look_again(self) -> None:
        """Let those that waited apart have their turn."""
        with self._lock:
            self._ready.extendleft(reversed(self._apart))
            self._apart = []
            placed = self._placed()
        self._start(placed)

    def give_back(self, of: Container[Attempt] | None = None) -> list[Attempt]:
        """Take back what has not started; `of`: of these alone."""

        def split(line: Iterable[Attempt], found: list[Attempt]) -> deque[Attempt]:
            others: deque[Attempt] = deque()
            for attempt in line:
                (found if of is None or attempt in of else others).append(attempt)
            return others

        found: list[Attempt] = []
        admitted: list[Attempt] = []
        with self._lock:
            for handler, line in self._waiting.items():
                self._waiting[handler] = split(line, found)
            self._ready, self._apart = split(self._ready, admitted), list(split(self._apart, admitted))
            for attempt in admitted:
                if attempt.handler.concurrency is not None:
                    self._follow(attempt.handler)
            found += admitted
            self._reserved -= len(found)
            placed = self._placed()
        self._start(placed)
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
        busy = self._busy.get(handler, 0)
        if busy >= (handler.concurrency or 0):
            self._waiting.setdefault(handler, deque()).append(attempt)
            return False
        self._busy[handler] = busy + 1
        return True

    def _placed(self) -> list[Attempt]:
        """Give the places that are free to those that are ready."""
        placed: list[Attempt] = []
        while self._running < self.concurrency and (attempt := self._next()) is not None:
            self._running += 1
            placed.append(attempt)
        return placed

    def _next(self) -> Attempt | None:
        while self._ready:
            attempt = self._ready.popleft()
            if attempt.tie.holds:
                return attempt
            self._apart.append(attempt)
        return None

    def _start(self, attempts: Sequence[Attempt]) -> None:
        calls: list[Call] = []
        threaded: list[Attempt] = []
        for attempt in attempts:
            if on_loop(attempt.handler):
                calls.append(self._call_of(attempt))
            else:
                threaded.append(attempt)
        if calls:
            self._coroutines.begin(calls)
        if threaded:
            self._give(threaded)

    def _give(self, work: Sequence[Attempt | Wait]) -> None:
        with self._lock:
            self._given += len(work)
            self._hire()
        for each in work:
            self._queue.put(each)

    def _hire(self) -> None:
        """Have a thread for each that was given; what there cannot be one for waits until one is free."""
        while len(self._threads) < max(1, self._given):
            thread = threading.Thread(target=self._work, name=f"scheduler-job-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not self._threads:
                    raise
                logger.warning("%d threads run handlers, and there cannot be more: %s", len(self._threads), error)
                return
            self._threads.append(thread)

    def _call_of(self, attempt: Attempt) -> Call:
        def start() -> object:
            if attempt.lost:
                return asyncio.sleep(0)  # somebody else has it by now
            attempt.start()
            if Tracing.spans is not None:
                return _traced(attempt, Tracing.spans)
            return attempt.handler.fn(attempt.context(), attempt.payload())

        def ended(result: object, error: BaseException | None) -> None:
            if (following := self._leave(attempt, result, error)) is not None:
                self._start((following,))

        return Call(start, attempt.cancelled, ended)  # type: ignore[arg-type]

    def _work(self) -> None:
        while (given := self._queue.get()) is not None:
            attempt = given if isinstance(given, Attempt) else given()
            while attempt is not None:
                attempt = self._next_after(attempt)
            with self._lock:
                self._given -= 1

    def _next_after(self, attempt: Attempt) -> Attempt | None:
        """Run an attempt; return the one that this thread is to run next."""
        spans = Tracing.spans
        if spans is None or attempt.lost:
            result, error = self._run(attempt)
        else:
            with attempt.traced(spans).current():
                result, error = self._run(attempt)
        following = self._leave(attempt, result, error)
        if following is not None and on_loop(following.handler):
            self._start([following])
            return None
        return following

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
            if result is not None and inspect.isawaitable(result):  # that is dear to ask
                result = self._coroutines.run(result, attempt.cancelled)
        except BaseException as error:  # noqa: BLE001 - SystemExit and friends end the handler, not the worker
            return None, error
        return result, None

    def _leave(self, attempt: Attempt, result: object, error: BaseException | None) -> Attempt | None:
        """Tell the end of an attempt, and hand on its place; return to whom."""
        with self._lock:
            self._done += 1
            self._reserved -= 1
            if attempt.handler.concurrency is not None:
                self._follow(attempt.handler)
            if (following := self._next()) is None:
                self._running -= 1
        try:
            self._ended(attempt, result, error)
        except Exception:  # whoever is next does not wait for ever
            job_id = attempt.delivery.job.id
            logger.exception("the end of %s could not be told", job_id, extra=keys(job_id=job_id))
        return following

    def _follow(self, handler: Handler) -> None:
        """Let the next in line of a handler be ready, as one of its attempts is gone."""
        if line := self._waiting.get(handler):
            self._ready.append(line.popleft())
        else:
            self._busy[handler] -= 1


def on_loop(handler: Handler) -> bool:
    """Whether a handler runs on the loop: `async def`, and not in a process of its own."""
    return handler.is_async and handler.imported_as is None


async def _traced(attempt: Attempt, spans: Spans) -> object:
    with attempt.traced(spans).current():
        return await attempt.handler.fn(attempt.context(), attempt.payload())
