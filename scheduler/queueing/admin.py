"""Queues as a person sees them: how much is where, the next jobs, dead letters, pauses; for
commands and `app`.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from scheduler.dialects.interface import Admin, unhandled_types
from scheduler.dialects.reliable.keys import Keys
from scheduler.errors import ConfigError, InvalidOption, QueueError, SchedulerError, UnknownQueue
from scheduler.model.labels import Priority
from scheduler.model.queues import QueueEntry, QueueKey, QueueStats, Requeued, Totals
from scheduler.model.states import State
from scheduler.model.workers import WorkerInfo
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.letters import Letters
from scheduler.queueing.pausing import Pausing
from scheduler.queueing.ring import Ring
from scheduler.store.engine import Row

SOME = 500
MAX_TYPES = 1000
MOST = 10_000
NOTHING = (None, 0, None, 0, 0)
GONE = "there is no such dead letter; it may have been requeued or purged meanwhile"
UNREADABLE = "nobody can read it; it can only be purged"


class Seen(NamedTuple):
    """What became of one dead letter: the job that runs in its place, or why none does."""

    id: str
    job: str | None
    reason: str = ""


class Queues:
    """All queues. `ledger`: None where there is no Postgres. `originals`: keys of queues that the
    original names.
    """

    def __init__(
        self,
        ring: Ring,
        ledger: Ledger | None,
        originals: Mapping[str, Keys] = MappingProxyType({}),
    ) -> None:
        self._ring = ring
        self._ledger = ledger
        self._originals = originals

    def names(self) -> list[str]:
        """Name the queues: those that are configured, were ever fed, or have jobs that wait."""
        fed = (
            []
            if self._ledger is None
            else [row[0] for row in self._ledger.rows(self._ledger.jobs.queues.names())]
        )
        return sorted({*fed, *self._ring.configured(), *self._originals})

    def queue(self, name: str) -> "QueueAdmin":
        """Look at one; `UnknownQueue` if there is none of that name."""
        known = self.names()
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there is none yet"
            raise UnknownQueue(f"there is no queue {str(name)[:100]!r}; {there}")
        return self._opened(name)

    def stats(self, most: int | None = None) -> list[QueueStats]:
        """Say how much is in each, counted up to `most`; once Redis does not answer, it is not
        asked again.
        """
        found: list[QueueStats] = []
        away: str | None = None
        names = self.names()
        rows = _rows(self._ledger, names, most)
        for name in names:
            found.append(self._opened(name).told(rows, away))
            away = found[-1].error
        return found

    def workers(self) -> list[WorkerInfo]:
        """Say who lives to work at them, by name; at most some hundred at each."""
        found: dict[tuple[str, str], WorkerInfo] = {}
        for name in self.names():
            for each in self._opened(name).workers():
                key = each.kind, each.name
                found[key] = found[key].also(each) if key in found else each
        return [found[key] for key in sorted(found, key=lambda key: key[::-1])]

    def totals(self, span: timedelta) -> Totals:
        """Count the jobs that ended within a span."""
        if self._ledger is None:
            raise ConfigError("database: how jobs ended is in Postgres; name one")
        rows = self._ledger.rows(self._ledger.jobs.queues.ended(span))
        [(_, _, _, since, now)] = [row for row in rows if row[0] is None]
        ended: dict[str, dict[State, int]] = {}
        for queue, state, count, _, _ in sorted(row for row in rows if row[0] is not None):
            ended.setdefault(queue, {})[State(state)] = count
        return Totals(since=since, now=now, ended=ended)

    def pause(self, name: str) -> datetime:
        """Pause a queue; return since when."""
        redis = self.queue(name).redis
        if self._ledger is None or name in self._originals:
            redis.pause()
            return datetime.now(UTC)
        return Pausing(self._ledger, self._ring).pause(name)

    def resume(self, name: str) -> bool:
        """Let a queue go on, and say whether it was paused."""
        redis = self.queue(name).redis
        if self._ledger is None or name in self._originals:
            was = redis.paused().at_all
            redis.resume()
            return was
        return Pausing(self._ledger, self._ring).resume(name)

    def _opened(self, name: str) -> "QueueAdmin":
        redis = self._ring.admin(name, self._originals.get(name))
        return QueueAdmin(name, redis, self._ring.dialect(name), self._ledger)


class QueueAdmin:
    """One queue. Its dead letters are those of the ledger, and in Redis those that no ledger
    has.
    """

    def __init__(self, name: str, redis: Admin, dialect: str, ledger: Ledger | None) -> None:
        self.name = name
        self.redis = redis
        self._dialect = dialect
        self._ledger = ledger
        self._letters = None if ledger is None else Letters(ledger, name)

    def stats(self, most: int | None = None) -> QueueStats:
        """Say how much is in it; what Postgres knows is counted up to `most`."""
        return self.told(_rows(self._ledger, [self.name], most), None)

    def told(self, rows: Mapping[str, Row], away: str | None) -> QueueStats:
        """Say how much is in it, given what Postgres knows; `away`: why Redis is not asked."""
        paused_at, ready, oldest, pending, letters = rows.get(self.name, NOTHING)
        known = QueueStats(
            name=self.name,
            dialect=self._dialect,
            paused=paused_at is not None,
            paused_at=paused_at,
            waiting=dict.fromkeys(Priority, 0),
            dead=letters,
            ready=ready,
            oldest=oldest,
            pending=pending,
            error=away,
        )
        if away is not None:
            return known
        try:
            depths, crew, paused = (
                self.redis.depths(),
                self.redis.workers(SOME),
                self.redis.paused(),
            )
            dead = letters + self.redis.dead_count()
            unhandled = unhandled_types(self.redis)
        except QueueError as error:
            return replace(known, error=str(error))
        return replace(
            known,
            paused=known.paused or paused.at_all,
            waiting=depths.waiting,
            retrying=depths.retrying,
            running=depths.running,
            unsettled=depths.unsettled,
            stopped=depths.stopped,
            dead=dead,
            workers=crew.alive,
            breakers=Counter(
                at.breaker for each in crew.workers for at in each.queues if at.breaker is not None
            ),
            unhandled=dict(islice(unhandled.items(), MAX_TYPES)),
        )

    def workers(self) -> list[WorkerInfo]:
        """Say who lives to work at it, by name; at most some hundred."""
        return sorted(self.redis.workers(SOME).workers, key=lambda each: (each.name, each.kind))

    def peek(self, n: int = 10) -> list[QueueEntry]:
        """Read the next jobs in Redis, in the order in which they are taken, and leave them where
        they are.
        """
        return self.redis.peek(_number(n, "n"))

    def dead(self, n: int = 100, skip: int = 0) -> list[QueueEntry]:
        """Read dead letters: those of the ledger, newest first, then those of others, newest
        first.
        """
        n, skip = _number(n, "n"), _number(skip, "skip", least=0)
        found = [] if self._letters is None else self._letters.page(n, skip=skip)
        if len(found) < n:
            passed = (
                skip if found or not skip or self._letters is None else self._letters.count(skip)
            )
            found += self.redis.dead(n - len(found), skip=skip - passed)
        return found

    def requeue(self, ids: Iterable[str] | None = None) -> Requeued:
        """Let dead letters run again, all or some: the ledger's as `retry_job` does, others in
        their own list.
        """
        seen = list(self.requeueing(ids))
        return Requeued(
            jobs={each.id: each.job for each in seen if each.job is not None},
            refused={each.id: each.reason for each in seen if each.job is None},
        )

    def requeueing(self, ids: Iterable[str] | None = None) -> Iterator[Seen]:
        """Let dead letters run again, one after another."""
        wanted = None if ids is None else [str(each) for each in ids]
        letters = list(self._of_ledger(wanted))  # before any of them moves
        known = {letter.id for letter in letters}
        if wanted is None or not known.issuperset(wanted):
            letters += self._of_others(wanted)
        met: dict[str, Seen] = {}
        for letter in letters:
            met[letter.id] = self._requeued(letter)
            yield met[letter.id]
        yield from (Seen(each, None, GONE) for each in wanted or () if each not in met)
        with contextlib.suppress(QueueError):  # what they left in Redis harms nobody
            self.redis.forget({each for each in known if met[each].job is not None})

    def purge(self) -> int:
        """Drop all dead letters, and return how many; the ledger keeps what it knows of its
        jobs.
        """
        return sum(self.purging())

    def purging(self) -> Iterator[int]:
        """Drop all dead letters, some at a time."""
        while self._letters is not None and (gone := self._letters.purge(SOME)):
            yield gone
        left = (
            self.redis.dead_count()
        )  # of the ledger's jobs Redis may have letters too, which are no others
        while gone := self.redis.purge(SOME):
            yield min(gone, left)
            left -= min(gone, left)

    def keys(self) -> list[QueueKey]:
        """List its keys in Redis, each with its type and size."""
        return self.redis.keys()

    def _requeued(self, letter: QueueEntry) -> Seen:
        try:
            if letter.tenant is not None and self._letters is not None:
                made = self._letters.retry(letter)
            elif letter.type:
                made = letter.id if self.redis.requeue([letter])[0] else None
            else:
                return Seen(letter.id, None, UNREADABLE)
        except SchedulerError as error:
            if error.retryable:
                raise
            return Seen(letter.id, None, str(error))
        return Seen(letter.id, made, "" if made else GONE)

    def _of_ledger(self, wanted: list[str] | None) -> Iterator[QueueEntry]:
        skip = 0
        while self._letters is not None and (
            page := self._letters.page(SOME, skip=skip, ids=wanted)
        ):
            yield from page
            skip += len(page)

    def _of_others(self, wanted: list[str] | None) -> Iterator[QueueEntry]:
        skip = 0
        while page := self.redis.dead(SOME, skip=skip):
            yield from (each for each in page if wanted is None or each.id in wanted)
            skip += len(page)


def _rows(ledger: Ledger | None, names: list[str], most: int | None) -> dict[str, Row]:
    if ledger is None:
        return {}
    return {
        name: tuple(rest) for name, *rest in ledger.rows(ledger.jobs.queues.stats(names, most=most))
    }


def _number(value: object, what: str, *, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        raise InvalidOption(f"{what} must be a number from {least} to {MOST}, not {value!r}")
    return value
