"""One queue of a worker: fetches jobs, and acknowledges their results in the same round trip.

A Redis call that fails leaves two questions open. Which jobs did it lease? Their slots stay
reserved until the worker has read its leases back (`_read_back`). Does Redis still hold the other
leases? Each failure increments the lease generation. A job starts only if its lease was confirmed
in the current generation, by the fetch that took it or by a renewal, sent after the failure. Until
then it waits in `_unconfirmed`. Jobs that have started continue, and Redis refuses their results if
their leases are gone.
"""

import contextlib
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from scheduler.dialects.interface import (
    About,
    BegunMark,
    Delivery,
    Handled,
    Note,
    Prompt,
    Queue,
    Renewed,
    Result,
)
from scheduler.dialects.leasing import begun_mark
from scheduler.errors import QueueError
from scheduler.events import Events, JobsEnded, JobsTaken
from scheduler.log import keys as log_fields
from scheduler.model.failures import ASKED_TO_CANCEL
from scheduler.model.handling import Handler
from scheduler.model.retries import Backoff
from scheduler.model.states import State
from scheduler.service import Service
from scheduler.worker.announcements import Announcements
from scheduler.worker.attempt import (
    LEASE_LOST,
    MISSING_HANDLER,
    Attempt,
    DefaultLimits,
    cancel_overdue,
)
from scheduler.worker.breaker import BreakerGuard
from scheduler.worker.executor import Executor

logger = logging.getLogger("scheduler")

CATCH_ALL = "*"  # the type of a handler for all types that have no handler of their own
MAX_BATCH = 500  # results in one call, and jobs in one fetch
MAX_CONCURRENT_CALLS = 2  # that carry results: Redis works on one while the next is made
MIN_SPLIT = 20  # leased jobs: the results of fewer are sent in one call, which costs less than two
MAX_RETRY_DELAY_S = 5.0
CHECK_INTERVAL_S = 1.0
UNBLOCK_INTERVAL_S = 0.005
MAX_LOGGED_TYPES = 1000  # foreign producers can invent any number of types


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """What the queues of a worker have in common.

    worker: its name. long_poll: the worker has no other queue, so it can reserve slots while it
    waits for jobs. announcements: publishes starts and progress of jobs. on_note: a handler
    reported progress or a checkpoint. wake_keeper: renew uncertain leases and publish now.
    """

    worker: str
    backoffs: Mapping[str, Backoff]
    default_limits: DefaultLimits
    block_s: float
    long_poll: bool
    events: Events
    announcements: Announcements
    on_note: Callable[[], None]
    wake_keeper: Callable[[], None]


class QueueConsumer:
    """The jobs of one queue that this process has leased. The executor's lock guards its state."""

    def __init__(
        self,
        queue: Queue,
        handlers: Mapping[str, Handler],
        executor: Executor,
        breaker: BreakerGuard,
        options: ConsumerOptions,
    ) -> None:
        self.queue = queue
        self.guard = breaker
        self.worker = options.worker
        self.default_limits = options.default_limits
        self.on_note = options.on_note
        self.types = None if CATCH_ALL in handlers else tuple(handlers)
        self.generation = 0
        self.granted = 0  # when the executor last gave slots to this queue, as a growing number
        self.in_flight: set[Attempt] = set()  # leased: ready, running, or not acknowledged
        self.has_unmarked = False  # a job has begun, and no call has told Redis
        self.supervisor = Service(
            f"fetch-{queue.name}", self._supervise, last_backoff=MAX_RETRY_DELAY_S
        )
        self.waiter = Service(
            f"fetch-{queue.name}-wait", self._wait_for_jobs, last_backoff=MAX_RETRY_DELAY_S
        )
        self._handlers = handlers
        self._executor = executor
        self._lock = executor.lock
        self._options = options
        self._long_poll = queue if options.long_poll and isinstance(queue, Prompt) else None
        self._limited = {each.type: each for each in handlers.values() if each in executor.free_of}
        self._results: deque[tuple[Attempt, Result]] = deque()
        self._calls: dict[int, Exchange] = {}  # unanswered, by the first sequence number of each
        self._sending = 0
        self._running = 0  # jobs that have begun, and have no result yet
        self._next_sequence = 1
        self._marks = itertools.count(1)
        self._unconfirmed: list[Attempt] = []
        self._confirmed = -1  # the generation in which a renewal last succeeded
        self._unanswered: list[range] = []  # sequence numbers of fetches that failed
        self._late: list[range] = []  # of these, what Redis can still lease until the last read
        self._lost_slots = 0  # reserved by these fetches
        self._unbegun_returns: set[Attempt] = set()  # put back, and not acknowledged
        self._read_back_at = math.inf  # when to read back once more, for calls that ran late
        self._may_have_jobs = True
        self._wakeups = 0  # how often a wait for jobs has ended
        self._suspended = True  # until the supervisor has read back the leases of this worker
        self._retry_default_stored = False
        self._held_by_breaker = False
        self._draining = False
        self._logged_types: set[str] = set()
        self._error: BaseException | None = None
        executor.consumers.append(self)

    # Called by the executor, with the lock held.

    @property
    def wants_slots(self) -> bool:
        """Return whether there may be jobs that this queue could fetch."""
        return self._may_have_jobs and self._can_fetch()

    def goes_first(self) -> bool:
        """Return whether the next call of this queue is more urgent than jobs that are ready."""
        if not self.in_flight:
            return self.wants_slots
        return not self._sending and len(self.in_flight) <= 2 * len(self._results)

    def is_confirmed(self, attempt: Attempt) -> bool:
        """Return whether a leased job begins now; otherwise it waits for a renewal."""
        if attempt.generation == self.generation:
            attempt.begun = self.has_unmarked = True
            self._running += 1
            return True
        self._unconfirmed.append(attempt)
        self._options.wake_keeper()
        return False

    def add_result(self, attempt: Attempt, result: Result) -> None:
        """Take the result of an attempt, unless the job was put back meanwhile."""
        if self._limited:
            self._executor.count_handler_slots([attempt], +1)
        self._running -= 1
        if not attempt.acknowledging:
            attempt.acknowledging = True
            self._results.append((attempt, result))

    def has_call(self) -> bool:
        """Return whether `next_call` would return a call."""
        if self._suspended:
            return False
        if self._results:
            return self._sending < MAX_CONCURRENT_CALLS
        if self._executor.free <= 0 or self._draining or self._held_by_breaker:
            return False
        if any(not call.results for call in self._calls.values()):
            return False  # a fetch or a long poll is in progress
        return self._may_have_jobs or self._long_poll is not None

    def next_call(self) -> "Exchange | None":
        """Prepare the call that this queue wants to make: send results, fetch, or wait for jobs."""
        if not self.has_call():
            return None
        batch = [self._results.popleft() for _ in range(self._batch_size())]
        wait = not batch and not self._may_have_jobs
        slots = 0
        if not (self._draining or self._held_by_breaker):
            # `free` is negative while results whose acknowledgement was lost still hold slots.
            available = max(0, self._executor.free + len(batch))
            slots = min(self._executor.share(self, available), MAX_BATCH)
        if not (batch or slots):
            return None
        return self._prepare(batch, slots, wait=wait)

    def _batch_size(self) -> int:
        """Return how many results the next call sends.

        If all leased jobs have ended, as `async def` handlers can do in one iteration of the event
        loop, half of the results leave a second call for Redis to work on.
        """
        leased = len(self.in_flight)
        most = leased if leased < MIN_SPLIT else (leased + 1) // 2
        return min(len(self._results), most, MAX_BATCH)

    def _prepare(
        self, batch: list[tuple[Attempt, Result]], slots: int, *, wait: bool
    ) -> "Exchange":
        free_of = self._executor.free_of
        limits = {kind: max(0, free_of[each]) for kind, each in self._limited.items()}
        if slots:
            for kind, each in self._limited.items():
                free_of[each] -= limits[kind]
        extra = max(0, slots - len(batch))
        self._executor.free -= extra
        call = Exchange(
            consumer=self,
            results=batch,
            slots=slots,
            extra=extra,
            first=self._next_sequence,
            generation=self.generation,
            wakeups=self._wakeups,
            limits=limits if slots else {},
            wait=wait,
            begun=self._begun() if self._needs_mark() else None,
        )
        if not wait:  # the script of a wait runs only after there is a job
            self.has_unmarked = False
        self._next_sequence += max(1, slots)
        self._calls[call.first] = call
        self._sending += bool(batch)
        return call

    def _needs_mark(self) -> bool:
        """Return whether the next call reports which leases have begun.

        Quick jobs have begun and ended between two calls, and need no mark: their results are on
        their way. If these do not arrive, the generation changes. In a new generation, and when the
        worker starts, every call has a mark until a renewal, which has one too, was answered: calls
        can overtake each other, and a worker without a mark has begun all its leases.
        """
        return self._running > 0 or bool(self._results) or self._confirmed != self.generation

    def _begun(self) -> BegunMark:
        """Return which leases have begun, for the process that recovers them if this one dies.

        A job begins when a thread takes it from `ready`. The leases of calls that are in progress,
        or that failed, are unknown here and have not begun. A mark that is made later has a higher
        ordinal, so it does not matter in which order Redis receives them.
        """
        waiting = [each for each in self._executor.ready if each.consumer is self]
        waiting += [*self._unconfirmed, *self._unbegun_returns]
        unbegun = [range(n, n + 1) for n in (each.delivery.sequence for each in waiting)]
        unbegun += [range(each.first, each.first + each.slots) for each in self._calls.values()]
        unbegun += [*self._unanswered, *self._late]
        return begun_mark(next(self._marks), self._next_sequence - 1, unbegun)

    # Called by `Exchange`, without the lock.

    def answered(
        self, call: "Exchange", accepted: Sequence[bool], attempts: Sequence[Attempt]
    ) -> None:
        """Track the jobs that a call leased, and forget those whose results it sent."""
        ended = [attempt for attempt, _ in call.results]
        starting = self._startable(attempts, ended)
        if call.permitted:
            self.guard.on_fetched(starting, call.breaker_changes)
        # Before the handlers can start: a start is published before the progress of its job.
        starts = sum([self._options.announcements.started(each.delivery) for each in starting])
        with self._lock:
            self._end_call(call)
            if not all(accepted):
                self.generation += 1  # a refused result: Redis may have lost other leases as well
            self.in_flight.difference_update(ended)
            self._executor.free_orphan_slot(ended)
            if self._unbegun_returns:
                self._unbegun_returns.difference_update(ended)
            self._executor.free += len(call.results) + call.extra
            self._start(attempts, starting)
            if call.slots and len(attempts) >= call.permitted:
                self._may_have_jobs = True
            elif call.slots and call.wakeups == self._wakeups:
                self._may_have_jobs = False
                if self._long_poll is None:
                    self.waiter.wake()
        if self.queue.next_look.outlasted() < math.inf:
            self.supervisor.wake()  # it fetches then
        try:
            if len(starting) < len(attempts):
                self._log_unhandled(attempts)
            self._publish(call, accepted, len(starting), starts)
        except Exception:  # a listener or a log handler of the user
            with contextlib.suppress(Exception):
                logger.exception("queue %s: could not publish an event", self.queue.name)

    def _publish(
        self, call: "Exchange", accepted: Sequence[bool], fetched: int, starts: int
    ) -> None:
        """Have the keeper publish starts and renew uncertain leases; emit events."""
        if starts or not all(accepted):
            self._options.wake_keeper()
        if self._options.events:
            self._emit(call, accepted, fetched)

    def failed(self, call: "Exchange", error: BaseException) -> None:
        """Keep the results and the slots of a call that was not answered."""
        with self._lock:
            self._end_call(call)
            self._results.extendleft(reversed(call.results))
            self._lost_slots += call.extra
            if call.slots:
                self._unanswered.append(range(call.first, call.first + call.slots))
            self._suspended = True
            is_error = isinstance(error, Exception)
            self._error = error if is_error else RuntimeError(f"{type(error).__name__} in a call")
            self._read_back_at = time.monotonic() + self.queue.lease.total_seconds()
        if call.permitted:
            self.guard.on_fetched([], call.breaker_changes)
        self._uncertain()
        self.supervisor.wake()

    def refused_by_breaker(self, call: "Exchange") -> None:
        """Take back the slots of a fetch that the circuit breaker does not permit now."""
        with self._lock:
            self._end_call(call)
            self._executor.free += call.extra
            self._held_by_breaker = True
            self.has_unmarked = True  # the mark of this call was not sent
        self.supervisor.wake()

    def long_poll(self, call: "Exchange", handled: Handled) -> Sequence[Delivery]:
        """Wait for jobs and lease them in one round trip, or have the waiter wait for jobs."""
        queue = self._long_poll
        if queue is not None:
            slots, timeout = call.permitted, self._options.block_s
            found = queue.fetch_next(
                slots, timeout=timeout, handled=handled, first=call.first, begun=call.begun
            )
            if found is not None:
                return found
            self._long_poll = None  # not possible on this server
        return ()

    def _end_long_poll(self, permitted_at: int | None = None) -> bool:
        """End a wait for jobs in Redis; return whether there was one.

        permitted_at: leave a wait alone that the circuit breaker permitted in this state.
        """
        waits = [call for call in list(self._calls.values()) if call.wait]
        if self._long_poll is None or all(each.breaker_changes == permitted_at for each in waits):
            return False
        self._long_poll.unblock()
        return True

    def _end_call(self, call: "Exchange") -> None:
        self._calls.pop(call.first, None)
        self._sending -= bool(call.results)
        for kind, reserved in call.limits.items():
            self._executor.free_of[self._limited[kind]] += reserved

    def attempts(self, deliveries: Iterable[Delivery], generation: int) -> list[Attempt]:
        of_type, other = self._handlers.get, self._handlers.get(CATCH_ALL, MISSING_HANDLER)
        return [
            Attempt(each, of_type(each.job.type, other), self, generation) for each in deliveries
        ]

    def _startable(
        self, attempts: Sequence[Attempt], ended: Collection[Attempt] = ()
    ) -> Sequence[Attempt]:
        """Return the leased jobs that can run here now, and claim the slot for orphans.

        Jobs without a handler here cannot, nor a second orphan on its last attempt. ended: attempts
        whose results are acknowledged.
        """
        handled = [each for each in attempts if each.handler is not MISSING_HANDLER]
        if not any(each.delivery.orphaned for each in handled):
            return handled
        with self._lock:
            self._executor.free_orphan_slot(ended)
            claim = self._executor.claim_orphan_slot
            return [each for each in handled if not each.is_last_chance or claim(each)]

    def _start(self, attempts: Sequence[Attempt], starting: Sequence[Attempt]) -> None:
        """Track leased jobs. Give those that start to the executor, the others back to Redis."""
        self.in_flight.update(attempts)
        self._executor.free -= len(attempts)
        self._executor.count_handler_slots(attempts, -1)
        if self._draining:
            self._put_back(attempts)
            return
        self._executor.ready += starting
        if len(starting) < len(attempts):
            ready = set(starting)
            self._put_back([each for each in attempts if each not in ready])

    def _log_unhandled(self, attempts: Iterable[Attempt]) -> None:
        """Log each type without a handler once."""
        types = {each.delivery.job.type for each in attempts if each.handler is MISSING_HANDLER}
        with self._lock:
            new = sorted(types - self._logged_types)[: MAX_LOGGED_TYPES - len(self._logged_types)]
            self._logged_types.update(new)
        for kind in new:
            logger.warning(
                "queue %s: no handler for type %r in this worker; its jobs are returned with a "
                "delay",
                self.queue.name,
                kind,
                extra=log_fields(queue=self.queue.name, type=kind, worker_id=self.worker),
            )

    def _emit(self, call: "Exchange", accepted: Sequence[bool], fetched: int) -> None:
        events, queue = self._options.events, self.queue.name
        if fetched:
            events.emit(JobsTaken(queue=queue, count=fetched))
        if call.results:
            sent = zip(call.results, accepted, strict=True)
            ends = tuple(result.end for (_, result), ours in sent if ours and result.end)
            refused = len(accepted) - sum(accepted)
            events.emit(JobsEnded(queue=queue, ends=ends, refused=refused))

    # Called by threads that run handlers, without the lock.

    def finish(self, attempt: Attempt, returned: object, error: BaseException | None) -> Result:
        """Make the result of an attempt whose handler has ended. Never raises."""
        result = attempt.result(returned, error, self._options.backoffs)
        try:
            if self.guard.record(attempt, result):
                self._breaker_changed()
        except Exception:  # a listener or a log handler of the user
            with contextlib.suppress(Exception):
                logger.exception("queue %s: could not count a result", self.queue.name)
        return result

    def progressed(self, attempt: Attempt) -> None:
        """Have the keeper publish the progress of a handler, if a client listens."""
        if self._options.announcements.progressed(attempt):
            self._options.wake_keeper()

    def publish_last_progress(self, attempts: Iterable[Attempt]) -> None:
        """Publish the progress of attempts that have ended, before their results are sent."""
        self._options.announcements.publish_last(attempts)

    # Called by the threads of the worker, without the lock.

    @property
    def uncertain(self) -> bool:
        """Return whether leases must be renewed now, because a call failed."""
        return bool(self._unconfirmed) or self._confirmed != self.generation

    def renew(self, lease: timedelta, report: About | None = None) -> None:
        """Renew all leases, send notes of handlers, and take cancel requests and losses."""
        # The generation is read first: a failure after this line makes the answers outdated.
        with self._lock:
            generation, attempts, begun = self.generation, list(self.in_flight), self._begun()
            self.has_unmarked = False
        notes = {attempt.delivery: attempt.unsent_note() for attempt in attempts}
        try:
            answers = self.queue.renew(notes, lease=lease, about=report, begun=begun)
        except BaseException:
            with self._lock:
                self.generation += 1  # no `wake_keeper`: the caller repeats the renewal itself
            raise
        lost = []
        for attempt, answer in zip(attempts, answers, strict=True):
            attempt.note_sent(notes[attempt.delivery])
            if answer is Renewed.LOST and attempt in self.in_flight:
                attempt.lost = True
                attempt.cancelled.because(LEASE_LOST)
                lost.append(attempt)
            elif answer is Renewed.CANCEL:
                attempt.cancelled.because(ASKED_TO_CANCEL)
        with self._lock:
            self._confirm(attempts, generation)
            self._executor.wake()
        if any(self.guard.on_lost(attempt) for attempt in lost):
            self._breaker_changed()
        if report is not None:
            self._store_retry_default()  # again, because it expires, and Redis can lose it

    def _store_retry_default(self) -> None:
        """Store the retry policy that this worker applies to jobs without one. The process that
        reclaims such a job after the death of this worker reads it.
        """
        self.queue.retry_defaults.store(self.default_limits(MISSING_HANDLER).retry)
        self._retry_default_stored = True

    def _confirm(self, attempts: Iterable[Attempt], generation: int) -> None:
        """Let jobs start whose leases Redis has confirmed; forget those that it has lost."""
        for attempt in attempts:
            attempt.generation = generation
        self._confirmed = generation
        waiting, self._unconfirmed = self._unconfirmed, []
        for attempt in waiting:
            if attempt.lost:
                self._forget(attempt)
                self._executor.count_handler_slots([attempt], +1)
            else:
                self._executor.ready.append(attempt)

    def check_timeouts(self, now: float) -> float:
        """Cancel attempts that are past their timeout; return when the next one will be."""
        soonest, overdue = cancel_overdue(list(self.in_flight), now)
        if any(self.guard.on_timeout(attempt) for attempt in overdue):
            self._breaker_changed()
        return soonest

    def drain(self) -> None:
        """Fetch no more, and put back what has not started."""
        with self._lock:
            self._draining = True
            self._put_back(self._take_unstarted())
            self._executor.wake()

    def wait_for_fetches(self, until: float) -> None:
        """Wait until no fetch is in progress; what the last ones lease is put back."""
        while any(call.slots for call in list(self._calls.values())) and time.monotonic() < until:
            self._end_long_poll()
            time.sleep(UNBLOCK_INTERVAL_S)

    def put_back_running(self) -> None:
        """Put back the jobs whose handlers have not ended; their results will be ignored."""
        with self._lock:
            running = [each for each in self.in_flight if not each.acknowledging]
            self._put_back(running, running=True)
            self._executor.wake()

    def flush(self, until: float) -> None:
        """Wait until all results are sent, then stop."""
        while (self._results or self._sending) and time.monotonic() < until:
            time.sleep(0.005)

    def _take_unstarted(self) -> list[Attempt]:
        mine = [each for each in self._executor.ready if each.consumer is self]
        for attempt in mine:
            self._executor.ready.remove(attempt)
        mine += self._unconfirmed
        self._unconfirmed = []
        return mine

    def _put_back(self, attempts: Iterable[Attempt], *, running: bool = False) -> None:
        """Return jobs to Redis. running: threads have them, and will add their results."""
        for attempt in attempts:
            attempt.acknowledging = True
            delay = None
            if not attempt.begun:
                self._unbegun_returns.add(attempt)
                is_handled = attempt.handler is not MISSING_HANDLER
                if attempt.is_last_chance and is_handled and attempt is not self._executor.orphan:
                    delay = self._executor.orphan_delay()
            self._results.append((attempt, attempt.put_back(delay)))
            if not running:
                self._executor.count_handler_slots([attempt], +1)

    def _forget(self, attempt: Attempt) -> None:
        self.in_flight.discard(attempt)
        self._executor.free_orphan_slot([attempt])
        self._executor.free += 1

    def _uncertain(self) -> None:
        with self._lock:
            self.generation += 1
        self._options.wake_keeper()

    def _breaker_changed(self) -> None:
        """Follow the circuit breaker: an open one also ends a wait for jobs in Redis."""
        held = self.guard.retry_in() > 0
        with self._lock:
            self._held_by_breaker = held
            self._may_have_jobs = self._may_have_jobs or not held
            self._executor.wake()
        if held:
            self._end_long_poll(permitted_at=self.guard.breaker.changes)
        self.supervisor.wake()

    def _supervise(self) -> float:
        """Recover after a failed call, try the breaker, fetch when it is time to.

        It never waits in Redis: a worker that waits for jobs does all this meanwhile.
        """
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error  # logged by the service, which calls again after a backoff
        if self._suspended or time.monotonic() >= self._read_back_at:
            self._read_back()
        if delay := self.guard.retry_in():
            if self._end_long_poll(permitted_at=self.guard.breaker.changes):
                return UNBLOCK_INTERVAL_S  # it may not have reached Redis yet
            return min(delay, MAX_RETRY_DELAY_S)
        if self._held_by_breaker:
            self._breaker_changed()
        look_in = self.queue.next_look.outlasted() - time.monotonic()
        if look_in <= 0:
            if self._end_long_poll():
                return UNBLOCK_INTERVAL_S
            with self._lock:
                self._expect_jobs()
            look_in = CHECK_INTERVAL_S
        with self._lock:
            if self._executor.ready or self.has_call():
                self._executor.wake()
        return min(look_in, CHECK_INTERVAL_S)  # health checks expect a sign of life

    def _wait_for_jobs(self) -> float:
        """Wait in Redis until there may be jobs, if the executor does not.

        A signal goes to one waiting worker. One that does not fetch now passes it on.
        """
        if self._may_have_jobs or self._long_poll is not None or not self._can_fetch():
            return CHECK_INTERVAL_S
        with self._lock:
            free = {kind: max(0, self._executor.free_of[x]) for kind, x in self._limited.items()}
        try:
            handled = Handled(self.types, free)
            self.queue.fetch(0, timeout=self._options.block_s, handled=handled)
        except BaseException:
            self._uncertain()  # another server may answer from now on, without the last leases
            raise
        with self._lock:
            self._expect_jobs()
            passes_on = not self.wants_slots or self._executor.free <= 0
            call = self._prepare([], 0, wait=False) if passes_on else None
        if call is not None:
            call.run()  # without slots: it wakes another worker, because this one does not fetch
        return 0.0

    def _can_fetch(self) -> bool:
        return not (self._suspended or self._held_by_breaker or self._draining)

    def _expect_jobs(self) -> None:
        """Fetch as soon as there is a slot. A call in progress that finds no job does not count.

        Needs the lock.
        """
        self._wakeups += 1
        self._may_have_jobs = True
        self._executor.wake()

    def _read_back(self) -> None:
        """Start the jobs that unanswered fetches leased, and release the other slots of these.

        A lease is untracked if its sequence number was allocated before this read, by a call that
        is not in progress, and belongs to no job in flight. All three are recorded before the read:
        a call that is answered meanwhile was in progress then, and a result that is acknowledged
        meanwhile belongs to a job that was in flight then.

        An untracked lease of a call that was answered belongs to a job whose result Redis had, and
        forgot in a failover. The job has run under this lease, so it is put back: its next attempt
        has a lease of its own.
        """
        with self._lock:
            generation, allocated = self.generation, self._next_sequence
            in_progress = [
                range(each.first, each.first + each.slots) for each in self._calls.values()
            ]
            known = {attempt.delivery.sequence for attempt in self.in_flight}
            unanswered, lost_slots = list(self._unanswered), self._lost_slots
            is_last = time.monotonic() >= self._read_back_at
            if is_last:
                self._read_back_at = math.inf
        try:
            try:
                self._store_retry_default()  # before the first fetch, and after a failed call
            except QueueError:
                if not self._retry_default_stored:
                    raise
            leases = self.queue.held()
        except BaseException:
            self._uncertain()
            raise
        found = [
            each
            for each in leases
            if each.sequence < allocated
            and each.sequence not in known
            and not any(each.sequence in call for call in in_progress)
        ]
        new = [each for each in found if any(each.sequence in call for call in unanswered)]
        old = [each for each in found if each not in new]
        starting, returning = self.attempts(new, generation), self.attempts(old, generation)
        startable = () if self.guard.retry_in() > 0 else self._startable(starting)
        with self._lock:
            self._executor.free += lost_slots
            self._lost_slots -= lost_slots
            self._unanswered = self._unanswered[len(unanswered) :]
            self._late = unanswered if is_last else [*self._late, *unanswered]
            for attempt in returning:
                attempt.begun = True
            self._start(starting, startable)
            self._start(returning, ())
            self._suspended = self._error is not None  # another call can have failed meanwhile
            self._may_have_jobs = True
            self._executor.wake()


@dataclass(slots=True)
class Exchange:
    """One call to Redis: send results and fetch jobs in the same round trip, or wait for jobs.

    slots: how many jobs it can lease. extra: how many of these slots were free; the others are
    those of the results. limits: reserved slots of handlers with a concurrency of their own, by
    type.
    """

    consumer: QueueConsumer
    results: list[tuple[Attempt, Result]]
    slots: int
    extra: int
    first: int
    generation: int
    wakeups: int
    limits: Mapping[str, int]
    wait: bool
    begun: BegunMark | None
    permitted: int = 0
    breaker_changes: int = 0

    def run(self) -> None:
        """Make the call. Errors go to the consumer, whose supervisor logs them and retries."""
        consumer = self.consumer
        try:
            self.permitted, self.breaker_changes = consumer.guard.permits(self.slots)
            if self.slots and not (self.permitted or self.results):
                consumer.refused_by_breaker(self)
                return
            accepted, deliveries = self._send()
            attempts = consumer.attempts(deliveries, self.generation)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the results are kept
            consumer.failed(self, error)
            return
        consumer.answered(self, accepted, attempts)

    def _send(self) -> tuple[Sequence[bool], Sequence[Delivery]]:
        queue, handled = self.consumer.queue, Handled(self.consumer.types, self.limits)
        if self.wait:
            return (), self.consumer.long_poll(self, handled)
        self.consumer.publish_last_progress(attempt for attempt, _ in self.results)
        results = [result for _, result in self.results]
        if notes := _unsent_notes(results):
            queue.renew(notes, lease=queue.lease)
        return queue.finish(
            results, fetch=self.permitted, handled=handled, first=self.first, begun=self.begun
        )


def _unsent_notes(results: Iterable[Result]) -> dict[Delivery, Note | None]:
    """Return the notes of jobs that will run again: their next attempts start with them."""
    return {
        each.delivery: each.note
        for each in results
        if each.note is not None and (each.end is None or each.end.state is State.RETRYING)
    }
