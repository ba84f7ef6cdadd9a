"""Run fires: a bounded pool of threads that calls bodies and never raises.

Comes in: a claimed `Run`. Goes out: a `RunEnd` with outcome, error and times, handed to the
finisher.
"""

import inspect
import math
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from scheduler.clock import Clock, DatabaseClock
from scheduler.coroutines import Coroutines
from scheduler.errors import StoreUnavailable
from scheduler.events import Events, FireStarted
from scheduler.log import Keys
from scheduler.model.body import Body, Cancelled, RunContext
from scheduler.model.definition import JobSpec, Key
from scheduler.model.failures import describe, named, outcome_of
from scheduler.model.outcomes import Outcome
from scheduler.model.schedules import Fire
from scheduler.processes import Processes
from scheduler.trace import Spans, Tracing, Work

MAX_WAIT_S = 0.2  # within which a claimed fire should begin
RELEASE_AFTER_S = 1.0  # after which a fire that has not begun is released for other instances
MAX_BACKLOG = 2000
BEGIN_RETRY_S = 1.0
STOPPING = "the process is stopping"
LOST = "lost"


class Run:
    """One execution of a fire under a lease; what happens to it is written here by whoever sees it
    first.
    """

    __slots__ = (
        "attempt",
        "body",
        "called",
        "cancelled",
        "claimed_at",
        "deadline",
        "fence",
        "fire",
        "key",
        "lease_until",
        "lock_deleted",
        "lost",
        "once",
        "queued_at",
        "started",
        "timeout",
    )

    def __init__(
        self,
        *,
        key: Key,
        fire: Fire,
        attempt: int,
        fence: int,
        body: Body,
        spec: JobSpec,
        claimed_at: datetime,
        lease_until: float,
    ) -> None:
        self.key = key
        self.fire = fire
        self.attempt = attempt
        self.fence = fence
        self.body = body
        self.timeout = spec.timeout
        self.once = spec.delivery == "at_most_once"
        self.claimed_at = claimed_at  # by the database's clock
        self.lease_until = lease_until  # by this machine's clock: later than that, it is not ours
        self.deadline: float | None = None
        self.queued_at = 0.0
        self.started = False
        self.called = False
        self.lost = False
        self.lock_deleted = False  # lost, but not to another process: its end may be recorded
        self.cancelled = Cancelled()

    @property
    def fire_at(self) -> datetime:
        """The instant of its fire."""
        return self.fire.at

    def about(self) -> Keys:
        """Name it in a line of the log."""
        named: Keys = {
            "namespace": self.key.tenant,
            "job_id": self.key.job_id,
            "fire_at": self.fire_at.isoformat(),
        }
        return {**named, "attempt": self.attempt, "fence": self.fence}


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    run: Run
    outcome: Outcome
    error: str | None
    started_at: datetime
    finished_at: datetime
    stopped: bool = False  # cut short because the process stops


class Runner:
    """Threads that take runs from a queue; started when there is work for them, at most
    `workers`.
    """

    def __init__(
        self,
        *,
        workers: int,
        clock: Clock,
        database_clock: DatabaseClock,
        events: Events,
        coroutines: Coroutines,
        processes: Processes,
        ended: Callable[[RunEnd], None],
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._database_clock = database_clock
        self._events = events
        self._ended = ended
        self._queue: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._waiting: deque[Run] = deque()  # in the order of the queue, some of them started
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._active: Counter[Key] = Counter()  # taken and not yet ended, zombies included
        self._taken = 0
        self._done = 0
        self._rate: deque[tuple[float, int]] = deque([(clock.monotonic(), 0)])
        self._coroutines = coroutines
        self._processes = processes
        self.on_start: Callable[[Run], None] = lambda _: None
        self.note_begun: Callable[[Run], bool] = lambda _: True

    def room(self) -> int:
        """Return how many more fires can begin within a fifth of a second: the number of free
        workers, plus the number that becomes free in that time at the recent rate.

        Claims then come in large batches where bodies are quick, and one by one where they are slow
        and another instance could start them sooner.
        """
        now = self._clock.monotonic()
        with self._lock:
            while len(self._rate) > 1 and self._rate[1][0] < now - MAX_WAIT_S:
                self._rate.popleft()
            since, done = self._rate[0]
            # A shorter busy period gives no rate; then the number of ended runs counts.
            share = MAX_WAIT_S / max(MAX_WAIT_S, now - since)
            backlog = min(int((self._done - done) * share), MAX_BACKLOG)
            if now - self._rate[-1][0] > MAX_WAIT_S / 10:
                self._rate.append((now, self._done))
            return max(0, self._workers + backlog - (self._taken - self._done))

    def free(self) -> int:
        """Return the number of idle workers."""
        return max(0, self._workers - (self._taken - self._done))

    def release_at(self) -> float | None:
        """Return when to release the oldest run that has not begun; None: all have begun."""
        while self._waiting and self._waiting[0].started:
            self._waiting.popleft()
        return self._waiting[0].queued_at + RELEASE_AFTER_S if self._waiting else None

    def active(self, key: Key) -> bool:
        """Whether a body of this job is queued or running here, its lease held or lost."""
        return key in self._active

    def count(self) -> int:
        """Count what is taken and has not ended."""
        return self._taken - self._done

    def take(self, runs: list[Run]) -> None:
        """Queue runs; raises if there is no thread to run them and none can be started."""
        now = self._clock.monotonic()
        with self._lock:
            self._grow(min(self._workers, self._taken - self._done + len(runs)))
            if self._taken == self._done:  # idle until now, so the rate is measured from here
                self._rate = deque([(now, self._done)])
            self._taken += len(runs)
            for run in runs:
                self._active[run.key] += 1
        for run in runs:
            run.queued_at = now
        self._waiting.extend(runs)
        for run in runs:
            self._queue.put(run)

    def _grow(self, wanted: int) -> None:
        while len(self._threads) < wanted:
            thread = threading.Thread(
                target=self._work, name=f"scheduler-run-{len(self._threads)}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # a limit on processes, say; those that live do it all
                if not self._threads:
                    raise
                return
            self._threads.append(thread)

    def give_back(self, *, queued_before: float = math.inf) -> list[Run]:
        """Take runs that have not started and were queued before a moment out of the queue."""
        runs, newer = [], []
        while True:
            try:
                run = self._queue.get_nowait()
            except queue.Empty:
                break
            if run is None or run.queued_at > queued_before:
                newer.append(run)
            else:
                runs.append(run)
                self._leave(run)
        self._waiting = deque(run for run in newer if run is not None)
        for run in newer:
            self._queue.put(run)
        return runs

    def stop(self) -> None:
        """Let the threads end as they become free."""
        for _ in self._threads:
            self._queue.put(None)
        self._coroutines.stop()
        self._processes.stop()

    def execute(self, run: Run) -> RunEnd:
        """Run one fire: start, call, classify. Never raises."""
        started_at = self._database_clock.now()
        error: BaseException | None = None
        span: Work | None = None
        try:
            self._start(run, started_at)
            if Tracing.spans is None:
                self._call(run, started_at)
            else:
                span = traced(Tracing.spans, run)
                with span.current():
                    self._call(run, started_at)
        except BaseException as raised:  # noqa: BLE001 - SystemExit and friends end the body, not the worker
            error = raised
        outcome, stopped = outcome_of(error, run.cancelled), STOPPING in run.cancelled.causes
        text = None if error is None or outcome is Outcome.SUCCESS else describe(error)
        if span is not None:
            span.end(LOST if run.lost else outcome, None if text is None else named(text))
        return RunEnd(run, outcome, text, started_at, self._database_clock.now(), stopped)

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            end = self.execute(run)
            self._leave(run)
            self._ended(end)

    def _leave(self, run: Run) -> None:
        with self._lock:
            self._done += 1
            self._active[run.key] -= 1
            if not self._active[run.key]:
                del self._active[run.key]

    def _start(self, run: Run, now: datetime) -> None:
        run.started = True
        if run.body.imported_as is None:  # else when its process is ready
            self._count_down(run)
        if self._events:
            self._events.emit(
                FireStarted(
                    tenant=run.key.tenant,
                    job_id=run.key.job_id,
                    fire_at=run.fire_at,
                    attempt=run.attempt,
                    lateness=now - run.fire_at,
                )
            )

    def _count_down(self, run: Run) -> None:
        if run.timeout is not None:
            run.deadline = self._clock.monotonic() + run.timeout.total_seconds()
            self.on_start(run)

    def _call(self, run: Run, started_at: datetime) -> None:
        if not self._may_begin(run):
            run.lost = True  # another process may run it
            return
        run.called = True
        body = run.body
        if body.imported_as is not None:
            values = self._values(run, started_at) if body.takes_context else None
            self._processes.run(
                body.imported_as, values, run.cancelled, began=lambda: self._count_down(run)
            )
            return
        result = body.fn(self._context(run, started_at)) if body.takes_context else body.fn()
        if body.is_async or inspect.isawaitable(result):
            self._coroutines.run(result, run.cancelled)

    def _may_begin(self, run: Run) -> bool:
        """Return whether the lease of a run is surely ours, and marked as begun if it runs once."""
        while self._is_ours(run):
            try:
                # Asked before and after: the process may be suspended around the statement.
                return (not run.once or self.note_begun(run)) and self._is_ours(run)
            except StoreUnavailable:  # perhaps it was marked; the statement can be repeated
                run.cancelled.wait(BEGIN_RETRY_S)
                if run.cancelled.causes:
                    return False
        return False

    def _is_ours(self, run: Run) -> bool:
        return not run.lost and run.lease_until > self._clock.monotonic()

    def _context(self, run: Run, started_at: datetime) -> RunContext:
        return RunContext(
            tenant=run.key.tenant,
            job_id=run.key.job_id,
            fire_at=run.fire_at,
            attempt=run.attempt,
            fence=run.fence,
            deadline=None if run.timeout is None else started_at + run.timeout,
            cancelled=run.cancelled,
        )

    def _values(self, run: Run, started_at: datetime) -> dict[str, object]:
        """Write the context as data, for another process."""
        return {
            "tenant": run.key.tenant,
            "job_id": run.key.job_id,
            "fire_at": run.fire_at.isoformat(),
            "attempt": run.attempt,
            "fence": run.fence,
            "deadline": None if run.timeout is None else (started_at + run.timeout).isoformat(),
        }


def traced(spans: Spans, run: Run) -> Work:
    """Begin the span of a run. It is of no queue."""
    return spans.begin(f"run {run.key.job_id}", None, {"queue": "", **run.about()})
