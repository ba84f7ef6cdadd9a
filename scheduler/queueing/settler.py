"""Settler: reads ends of attempts out of Redis and writes them into the ledger, a batch in one
transaction.

Why each is settled once: an end takes its row away, or moves its attempt on, and is forgotten in
Redis only after the commit; what comes again finds no row to end. A success of any feed counts, a
failure only of the newest. An end whose row is held by another transaction stays with us and is
tried again. The lifetime of a job counts until Redis took its result, not until that is settled.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from scheduler.dialects.interface import Outcomes, Queue
from scheduler.errors import ConfigError, InvalidData, QueueError, StoreError
from scheduler.events import Events, JobsSettled
from scheduler.log import keys
from scheduler.model.attempts import LEFT_OUT, AttemptEnd
from scheduler.model.durations import microseconds
from scheduler.model.failures import describe
from scheduler.model.handling import draft_of
from scheduler.model.ids import read_id
from scheduler.model.states import State
from scheduler.model.submission import Draft
from scheduler.model.texts import storable
from scheduler.queueing.ending import end
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.submit import submit_children
from scheduler.store.job_queue import Ending, JobKey
from scheduler.store.ring import Retried
from scheduler.store.steps import Steps

logger = logging.getLogger("scheduler")

ENDS = 1000
MOST_ENDS = 2 * ENDS  # in one transaction; what is read at once may be more than is asked for
MOST_BYTES = 32 * 1024 * 1024  # in one transaction; and so many more as one batch has
BUSY = (
    100  # ends in a second: from then on they are let come together, however many workers send them
)
ENOUGH = ENDS // 4
LINGER = 0.05
PATIENCE = 5.0
HELD = 0.05
REFUSED = 5.0
DEADLINE = 30.0
LONGEST_ERROR = 6000  # bytes of an error that was refused; as ASCII it has at most 16 KB
LONGEST_WORD = 200
COMPLETED, RETRYING = (
    State.COMPLETED,
    State.RETRYING,
)  # looked up once: it is dear, and this is done for every end


class Settled(NamedTuple):
    """What came of ends.

    held: those whose rows others hold. missed: how many these are and those that are refused.
    changes: the jobs and their new states. freed: jobs can be fed that could not be before. due:
    when the backoff of a retry is over.
    """

    held: list[AttemptEnd]
    missed: int
    changes: list[tuple[JobKey, State]]
    freed: bool
    due: Mapping[JobKey, datetime] = MappingProxyType({})


class Settler:
    """Settles what comes back through one queue."""

    def __init__(
        self,
        queue: Queue,
        ledger: Ledger,
        events: Events,
        settled: Callable[[Settled], None],
        check: Callable[[Draft], None] = lambda _: None,
    ) -> None:
        self._queue = queue
        self._ledger = ledger
        self._events = events
        self._on_settled = settled
        self._check = check
        self._left: list[Outcomes] = []  # read, and not yet forgotten in Redis
        self._refused = False
        self._failing = False  # Postgres did not take what we have
        self._settled: list[Outcomes] = []  # in the ledger, and not yet forgotten in Redis
        self._lately: deque[tuple[float, int]] = deque()  # when so many ends came back

    @property
    def waits_since(self) -> datetime | None:
        """When the oldest of the ends that came back and are not settled yet was made."""
        return min((end.ended_at for batch in self._left for end in batch.ends), default=None)

    def step(self) -> float:
        """Settle what came back; return when to look again."""
        if self._settled:
            self._acknowledge()
        if not (
            self._failing and self._left
        ):  # else what we have is enough, until Postgres takes it
            read = self._queue.outcomes(ENDS, timeout=0.001 if self._left else PATIENCE)
            known = {each.token for each in self._left}
            self._left += [each for each in read if each.token not in known]
        if not self._left:
            return 0.0
        self._failing, count = True, 0
        for part in _parts(self._left):
            count += self._settle_part(part)
        self._failing = False
        if self._refused:
            self._refused = False
            return REFUSED
        return HELD if self._left else self._pause(count)

    def _settle_part(self, batches: Sequence[Outcomes]) -> int:
        """Settle ends in one transaction, and let Redis forget them; return how many there were."""
        ends = [end for batch in batches for end in batch.ends]
        held = {id(each) for each in self._settle(ends)}
        self._settled = [
            batch for batch in batches if not any(id(end) in held for end in batch.ends)
        ]
        done = {batch.token for batch in self._settled}
        self._left = [batch for batch in self._left if batch.token not in done]
        self._acknowledge()
        return len(ends)

    def close(self) -> None:
        """Leave to others at once what is in our hands: Postgres may be away, or a row is held."""
        try:
            self._queue.hand_over([*self._left, *self._settled])
        except QueueError as error:
            logger.debug("queue %s: ends wait until others find them: %s", self._queue.name, error)

    def _pause(self, ends: int) -> float:
        """Say how long to wait for more: many small transactions cost Postgres more than some large
        ones.
        """
        now = time.monotonic()
        self._lately.append((now, ends))
        while self._lately[0][0] < now - 1.0:
            self._lately.popleft()
        lately = sum(count for _, count in self._lately)  # in a second
        return min(LINGER, ENOUGH / lately) if lately > BUSY and ends < ENOUGH else 0.0

    def _acknowledge(self) -> None:
        self._queue.acknowledge(self._settled)
        self._settled = []

    def _settle(self, ends: Sequence[AttemptEnd]) -> list[AttemptEnd]:
        """Settle ends; return those that could not be yet. A batch that is refused is settled one
        by one.
        """
        try:
            return self._run(ends)
        except Exception as error:
            if not _blames_an_end(error):
                raise
            if len(ends) > 1:
                said, name = "queue %s: %d ends cannot be settled together", self._queue.name
                logger.exception(said, name, len(ends), extra=keys(queue=name))
                return [held for each in ends for held in self._settle([each])]
        return self._quarantine(ends[0])

    def _quarantine(self, culprit: AttemptEnd) -> list[AttemptEnd]:
        """Settle an end of an attempt that Postgres refuses, so that it does not block others.

        It is first settled without the values that Postgres can refuse; its state does not change.
        If that is refused too, its job is ended. Return the end if another transaction holds its
        row.
        """
        about = keys(queue=self._queue.name, job_id=culprit.job_id, namespace=culprit.tenant)
        try:
            return self._run([culprit])
        except Exception as error:
            if not _blames_an_end(error):
                raise
            logger.exception("job %s: its end is refused", culprit.job_id, extra=about)
            why = storable(describe(error).splitlines()[0], 1000)
        try:
            key = JobKey(culprit.tenant, read_id(culprit.job_id))
        except ValueError:  # it names no job, so nothing waits for it
            return []
        try:
            held = self._run([_reduced(culprit, f"{LEFT_OUT}: {why}")])
            return [culprit] if held else []
        except Exception as error:
            if not _blames_an_end(error):
                raise
        try:
            ending = Ending(
                key=key,
                state=COMPLETED if culprit.state is COMPLETED else State.FAILED,
                feed=culprit.feed,
                attempt=culprit.attempt,
                reason=f"its end could not be recorded: {why}",
            )
            self._ledger.run(end(self._ledger.jobs, [ending]), deadline=DEADLINE)
            rows = self._ledger.rows(self._ledger.ring.standing([key]))
            return [culprit for _, _, feed, _ in rows if feed <= culprit.feed]
        except Exception as error:
            if not _blames_an_end(error):
                raise
            said = "job %s: could not be ended, not even without its result; trying again later"
            logger.exception(said, culprit.job_id, extra=about)
            self._refused = True
            return [culprit]

    def _run(self, ends: Sequence[AttemptEnd]) -> list[AttemptEnd]:
        settled = self._ledger.run(settle(self._ledger, ends, self._check), deadline=DEADLINE)
        self._on_settled(settled)
        if self._events:
            changes = tuple((key.tenant, str(key.id), state) for key, state in settled.changes)
            repeated, refused = len(ends) - len(settled.changes), settled.missed - len(settled.held)
            self._events.emit(
                JobsSettled(
                    queue=self._queue.name, jobs=changes, repeated=repeated, refused=refused
                )
            )
        return settled.held


def _blames_an_end(error: Exception) -> bool:
    """Return whether an error is caused by one of the ends.

    Other errors of Postgres or Redis (a closed connection, a timeout, a missing privilege) are not
    caused by them, so the ends are settled later.
    """
    if isinstance(error, InvalidData):
        return True
    return not isinstance(error, StoreError | QueueError | ConfigError)


def _reduced(each: AttemptEnd, reason: str) -> AttemptEnd:
    """Return an end without the values that Postgres can refuse, and with short texts in ASCII."""
    return replace(
        each,
        result=None,
        checkpoint=None,
        category=_ascii(each.category, LONGEST_WORD),
        code=_ascii(each.code, LONGEST_WORD),
        error=_ascii(each.error, LONGEST_ERROR),
        worker=_ascii(each.worker, LONGEST_WORD) or "",
        reason=reason,
    )


def _ascii(text: str | None, longest: int) -> str | None:
    return text and storable(text, longest).encode("ascii", "backslashreplace").decode()


def _parts(batches: Sequence[Outcomes]) -> list[list[Outcomes]]:
    """Divide what there is into transactions that are not too large: Postgres takes no message of a
    gigabyte.
    """
    parts: list[list[Outcomes]] = [[]]
    count = size = 0
    for batch in batches:
        count, size = count + len(batch.ends), size + batch.size
        if parts[-1] and (count > MOST_ENDS or size > MOST_BYTES):
            parts.append([])
            count, size = len(batch.ends), batch.size
        parts[-1].append(batch)
    return parts


def settle(
    ledger: Ledger, ends: Sequence[AttemptEnd], check: Callable[[Draft], None]
) -> Steps[Settled]:
    """Settle ends in one transaction."""
    keyed = [(JobKey(each.tenant, read_id(each.job_id)), each) for each in ends]
    retries, earlier = _retries([(key, each) for key, each in keyed if each.state is RETRYING])
    finals = (
        [(key, each) for key, each in keyed if each.state is not RETRYING] if retries else keyed
    )
    settled, freed, due = list[tuple[JobKey, State]](), False, dict[JobKey, datetime]()
    if retries:
        rows = yield ledger.ring.retry(retries)
        due = {JobKey(tenant, id_): run_at for tenant, id_, run_at in rows}
        settled += [(key, RETRYING) for key in due]
    if finals:
        over, freed = yield from end(ledger.jobs, [_ending(key, each) for key, each in finals])
        settled += over
        if any(each.spawned for _, each in finals):
            ended = dict(over)
            first: dict[JobKey, Sequence[Any]] = {}  # of several successes, as `end` chooses
            for key, each in finals:
                if each.state is COMPLETED:
                    first.setdefault(key, each.spawned)
            drafts = [
                draft_of(new)
                for key, news in first.items()
                if ended.get(key) is COMPLETED
                for new in news
            ]
            yield from submit_children(ledger.jobs, drafts, check)
            freed = True
    same = {id(key) for key, _ in settled}  # mostly this tells it, without hashing a UUID
    if all(id(key) in same for key, _ in keyed):
        return Settled([], 0, settled, freed, due)
    known = set(settled)
    missed = [(key, each) for key, each in keyed if (key, each.state) not in known]
    earlier = [(key, each) for key, each in earlier if key in due]
    if not (missed or earlier):
        return Settled([], 0, settled, freed, due)
    rows = yield ledger.ring.standing({key for key, _ in missed})
    standing = {JobKey(tenant, id_): (feed, attempt) for tenant, id_, feed, attempt in rows}
    held = [each for key, each in missed if _stands(each, standing.get(key))]
    overtaken = [
        (key, each)
        for key, each in missed
        if each.state is RETRYING and not _stands(each, standing.get(key))
    ]
    if overtaken or earlier:
        rows = yield ledger.ring.add_attempts(_recorded([*overtaken, *earlier]))
        locked = {JobKey(tenant, id_) for tenant, id_ in rows}
        held += [each for key, each in overtaken if key in locked]
    return Settled(held, len(missed), settled, freed, due)


def _stands(each: AttemptEnd, row: tuple[int, int] | None) -> bool:
    """Whether an end that was not settled has to be: its row is there, and as it was."""
    if row is None:
        return False
    feed, attempt = row
    if each.state is State.COMPLETED:
        return True
    return feed <= each.feed and (each.state is not State.RETRYING or attempt < each.attempt)


def _retries(
    ends: Sequence[tuple[JobKey, AttemptEnd]],
) -> tuple[list[Retried], list[tuple[JobKey, AttemptEnd]]]:
    """Return the last attempt of each job, which moves its row on, and the earlier attempts.

    Of these the ledger can have some: a settler that dies after its commit leaves their results in
    Redis, and another one reads them again, together with results of later attempts.
    """
    last: dict[JobKey, AttemptEnd] = {}
    earlier: list[tuple[JobKey, AttemptEnd]] = []
    for key, each in ends:
        other = last.setdefault(key, each)
        if other is not each:
            first, last[key] = sorted((other, each), key=_order)
            earlier.append((key, first))
    return [_retried(key, [each]) for key, each in last.items()], earlier


def _recorded(ends: Sequence[tuple[JobKey, AttemptEnd]]) -> list[Retried]:
    jobs: dict[JobKey, list[AttemptEnd]] = {}
    for key, each in ends:
        jobs.setdefault(key, []).append(each)
    return [_retried(key, sorted(several, key=_order)) for key, several in jobs.items()]


def _order(each: AttemptEnd) -> tuple[int, int]:
    return each.feed, each.attempt


def _retried(key: JobKey, several: Sequence[AttemptEnd]) -> Retried:
    last = several[-1]
    delay = 0 if last.delay is None else microseconds(last.delay)
    records = orjson.dumps([record(each) for each in several]).decode()
    return Retried(key, last.feed, last.attempt, delay, records)


def _ending(key: JobKey, each: AttemptEnd) -> Ending:
    return Ending(
        key,
        each.state,
        each.feed,
        each.attempt,
        each.reason,
        each.error,
        each.result,
        None if _plain(each) else orjson.dumps(record(each)).decode(),
        each.worker,
        each.sequence,
        each.started_at,
        each.ended_at,
        each.recorded_at,
        each.scheduled_at,
    )


def _plain(each: AttemptEnd) -> bool:
    """Whether the row of a job that ended says all that there is to say of its last attempt."""
    return (
        each.state is COMPLETED
        and each.checkpoint is None
        and each.category is None
        and each.code is None
        and not each.uncharged
        and each.previous_attempt_id is None
        and each.feed <= 1
    )


def record(each: AttemptEnd) -> dict[str, Any]:
    """Write an attempt as the ledger has it. Its id is derived from `worker` and `sequence`."""
    written: dict[str, Any] = {
        "attempt": each.attempt,
        "outcome": each.state,
        "started_at": each.started_at,
        "finished_at": each.ended_at,
        "worker": each.worker,
    }
    for name in ("category", "code", "error", "checkpoint", "previous_attempt_id"):
        value = getattr(each, name)
        if value is not None:
            written[name] = value
    if each.sequence:
        written["sequence"] = each.sequence
    if each.uncharged:
        written["uncharged"] = each.uncharged
    if each.feed > 1:
        written["feed"] = each.feed
    return written
