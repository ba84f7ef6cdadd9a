"""Between one queue in Redis and the pool: takes jobs as there is room, and ends them in batches.

Three threads: one waits for work when the queue is empty, two send results and take the next jobs in the same round
trip, so that Redis and we need not wait for each other. A call that was not answered leaves us in doubt: what it took
is found in our own list, and what it ended is said again, which Redis refuses if it has heard it.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from scheduler.dialects.interface import About, Delivery, Prompt, Queue, Result
from scheduler.errors import TemporaryError
from scheduler.events import Events
from scheduler.model.breaker import BreakerRule, BreakerState
from scheduler.model.handling import Handler
from scheduler.model.retries import Backoff
from scheduler.queueing.attempt import NOBODY, USUAL, Attempt, Tie, Usual, overdue
from scheduler.queueing.gate import Gate
from scheduler.queueing.leases import Leases
from scheduler.queueing.outbox import LARGEST_BATCH, Outbox, tell_of, unsaid
from scheduler.queueing.pool import Pool
from scheduler.queueing.turns import Turns
from scheduler.queueing.watch import Take, Watch
from scheduler.service import Service

BLOCK = 5.0
SENDERS = 2


class Carrier:
    """Carries the jobs of one queue; `flight` are the attempts that are in our hands."""

    def __init__(
        self,
        queue: Queue,
        pool: Pool,
        *,
        worker: str,
        handlers: Mapping[str, Handler],
        backoffs: Mapping[str, Backoff],
        usual: Usual = USUAL,
        block: float = BLOCK,
        said: Callable[[], None],
        doubted: Callable[[], None] = lambda: None,
        begun: Callable[[Sequence[Attempt]], None] = lambda _: None,
        freed: Callable[[], None] = lambda: None,
        breaker: BreakerRule | None = None,
        events: Events,
        prompt: bool = False,  # its worker has no other queue: a place may be kept for a job that is to come
    ) -> None:
        self.queue = queue
        self._pool = pool
        self._worker = worker
        self._handlers = handlers
        self._backoffs = backoffs
        self._usual = usual
        self._block = block
        self._tell = lambda _: said()
        self._begun, self._freed = begun, freed
        self._events = events
        self._gate = Gate(queue.name, breaker, events)
        self.breaker = self._gate.breaker
        self.flight: set[Attempt] = set()
        self.leases = Leases(queue, pool, doubted)
        self._outbox = Outbox()
        self._turns = Turns()  # of calls that take jobs, until they are in `flight`
        self._doubt = True  # a worker that was restarted under its old name would find what it held
        self._empty = False
        self._hints = 0  # how often somebody said that there may be something
        self._draining = False
        self._woken: deque[Attempt] = deque()  # which began in the threads that waited for them
        self.starved = False
        self.fetching = Service(f"fetch-{queue.name}", self.fetch_step, last_backoff=5.0)
        self._watch = Watch(queue if prompt and isinstance(queue, Prompt) else None, pool, block, self.fetching.wake)
        senders = (f"finish-{queue.name}-{number}" for number in range(SENDERS))
        self.finishing = [Service(name, self.finish_step, last_backoff=5.0) for name in senders]

    def ended(self, attempt: Attempt, result: object, error: BaseException | None) -> None:
        """Send the end of an attempt, with others."""
        ended = attempt.end(result, error, self._backoffs)
        ended.note = attempt.note if attempt.said else None
        attempt.over = True
        self._outbox.put(attempt, ended)

    def fetch_step(self) -> float | None:
        """Take jobs; without any, wait for one."""
        if begun := [self._woken.popleft() for _ in range(len(self._woken))]:
            self._begun(begun)
        if self._draining or self._watch.waits:
            return None
        self._watch.check()
        if self._doubt:
            self._adopt()
        self.starved = False
        if pause := self._gate.pause():
            return min(pause, BLOCK)
        if self._empty:
            return self._await_here() if self._watch.possible else self._await()
        # While all places are taken, whoever sends results takes the next jobs with them.
        self.starved = True
        room = self._pool.reserve(LARGEST_BATCH) if len(self.flight) < self._pool.concurrency else 0
        if not room:
            return 1.0
        self.starved = False
        allowed, changes = self._gate.allow(room)
        self._pool.free(room - allowed)
        if allowed:
            self._exchange([], allowed, changes, lambda wanted: self.queue.fetch(wanted, timeout=0))
        return 0.0

    def _await(self) -> float | None:
        """Wait until there may be something, and keep no place meanwhile."""
        try:
            self.queue.fetch(0, timeout=self._block)
        except BaseException:
            self._failed()  # another may answer from now on, who has not heard all that we said
            raise
        self._hints, self._empty = self._hints + 1, False
        if self.fetching.stopping or self._gate.pause():
            self._exchange([], 0, 0)  # we end, or it opened: what we were told is for others to look at
        return 0.0

    def _await_here(self) -> float | None:
        """Keep a place for a job, and let the thread that will run it wait for it."""
        self._empty = False
        allowed, changes = self._room(1)
        if not allowed:
            return 0.0
        self._watch.begin(lambda take: self._exchange([], allowed, changes, take, here=True))
        return None

    def _room(self, most: int) -> tuple[int, int]:
        """Keep places for as many as may be taken; also the changes of the breaker under which they may."""
        room = self._pool.reserve(most)
        allowed, changes = self._gate.allow(room)
        self._pool.free(room - allowed)  # the breaker is open, or opened meanwhile
        return allowed, changes

    def finish_step(self) -> float | None:
        """Send what has ended, and take as many more as there is room for."""
        ended, fresh = self._outbox.take(self.flight)
        if ended:
            if fresh and self._gate.judge(ended):
                self._changed()
            # A batch more in our hands than are on their way: it is worked on meanwhile.
            wanted = (1 + SENDERS) * LARGEST_BATCH - len(self.flight) + len(ended)
            closed = self.breaker.state is BreakerState.CLOSED  # if not, whoever fetches takes the probe
            allowed, changes = self._room(min(wanted, LARGEST_BATCH) if closed and not self._draining else 0)
            try:
                self._exchange([result for _, result in ended], allowed, changes)
            except BaseException:  # whatever it is, they are not forgotten
                self._outbox.unheard(ended)
                raise
            self.flight.difference_update([attempt for attempt, _ in ended])
            if self.starved:
                self.fetching.wake()  # it may have looked while these were still in our hands
        return 0.0

    def renew(self, lease: timedelta, about: About | None = None) -> None:
        """Keep what is in our hands, pass on what handlers said, and hear what is not ours any more."""
        lost = self.leases.renew(self.flight, lease, about)
        if any(self._gate.lost(attempt) for attempt in lost):
            self._changed()

    def watch(self, now: float) -> float:
        """Tell attempts that are past their timeout; return when the next will be."""
        soonest, late = overdue(list(self.flight), now)
        if any(self._gate.late(attempt) for attempt in late):
            self._changed()
        return soonest

    def drain(self) -> None:
        """Take no more: what a call under way takes is in our hands when this returns."""
        self._draining = True
        self.fetching.stop(timeout=0)
        self._watch.end()
        with self._turns.alone():
            pass

    def put_back(self, attempts: Sequence[Attempt]) -> None:
        """Hand back what did not run to its end, as if it had not been taken."""
        for attempt in attempts:
            if not attempt.over:  # else one sender could be faster with this than the other with its end
                attempt.over = True
                self._outbox.put(attempt, Result(attempt.delivery, None, attempt.note if attempt.said else None))

    def stop(self, until: float) -> None:
        """Send what has ended, as long as there is time, then let the threads end."""
        while self._outbox.size() and time.monotonic() < until:
            time.sleep(0.01)
        for sender in self.finishing:
            sender.stop(timeout=0)
        for _ in self.finishing:  # once each of them knows: whoever is let go does not come again
            self._outbox.close()
        for sender in self.finishing:
            sender.stop(timeout=max(0.1, until - time.monotonic()))
        self.fetching.stop(timeout=0)

    def _exchange(
        self, results: Sequence[Result], room: int, changes: int, take: Take | None = None, *, here: bool = False
    ) -> Attempt | None:
        """End and take in one round trip; with neither, others who wait are told to look. `take`: only take, so.

        `here`: in a thread that may run one of those that were taken; it is returned.
        """
        accepted, hints, tie = list[bool](), self._hints, self.leases.tie

        def call() -> Sequence[Delivery]:
            wanted = 0 if self._draining else room
            if take is not None:
                return take(wanted) if wanted else []
            if notes := unsaid(results):
                self.queue.renew(notes, lease=self.queue.lease)
            answers, taken = self.queue.finish(results, fetch=wanted)
            accepted.extend(answers)
            return taken

        try:
            with self._turns.taking():
                attempts = self._hold(call(), tie)
        except BaseException:
            self._failed()
            self._pool.free(room)
            if room:
                self._gate.took([], changes)
            raise
        self.leases.heard(accepted)
        self._pool.free(room - len(attempts))
        ours = self._run(attempts, changes, here=here) if room else None
        if len(attempts) < room:
            self._freed()
            self._empty = self._hints == hints  # what was said meanwhile may be about what we did not see
            self.fetching.wake()
        if self._events:
            tell_of(self._events, self.queue.name, results, accepted, len(attempts))
        return ours

    def _adopt(self) -> None:
        """Find what an unanswered call took for us."""

        def lost() -> Sequence[Delivery]:
            ours = {attempt.delivery.token for attempt in list(self.flight)}  # others end meanwhile
            return [each for each in self.queue.held() if each.attempt and each.token not in ours]

        self._doubt = False
        try:
            with self._turns.alone():
                tie = self.leases.tie
                attempts = self._hold(lost(), tie)
        except BaseException:
            self._failed()
            raise
        self._pool.free(-len(attempts))
        self._run(attempts, self.breaker.changes)

    def _failed(self) -> None:
        """Hear that a call was not answered: it may have taken jobs, and others may not be ours any more."""
        self._doubt = True
        self.leases.doubt()

    def _hold(self, deliveries: Sequence[Delivery], tie: Tie) -> list[Attempt]:
        """Have jobs in our hands, before anybody looks for what was lost."""
        of, us = self._handlers, (self._worker, self._tell, self._usual)
        attempts = [Attempt(each, of.get(each.job.type, NOBODY), *us, tie=tie) for each in deliveries]
        self.flight.update(attempts)
        if attempts:
            self.leases.brought(tie)
        return attempts

    def _run(self, attempts: Sequence[Attempt], changes: int, *, here: bool = False) -> Attempt | None:
        if not self._gate.took(attempts, changes):
            self._pool.free(len(attempts))
            self.put_back(attempts)
            return None
        known = []
        for attempt in attempts:
            if attempt.handler is not NOBODY:
                known.append(attempt)
                continue
            self._pool.free(1)
            kind = attempt.delivery.job.type
            self.ended(attempt, None, TemporaryError(f"no handler of {kind!r} is registered in this worker"))
        ours = self._pool.take(known, here=here)
        if self.breaker.changes != changes:
            self._changed()  # whoever opened the breaker may not have seen them in the pool
        if here:
            self._woken.extend(known)  # whoever fetches says it: the handler does not wait for that
        else:
            self._begun(known)
        return ours

    def _changed(self) -> None:
        """Go by what the breaker says now: while it is open, nothing begins that has not."""
        if self.breaker.state is BreakerState.OPEN:
            self.put_back(self._pool.give_back(self.flight))
        self.fetching.wake()
