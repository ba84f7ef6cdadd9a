"""What a worker passes to the scripts of a dialect: how many jobs to lease, the sequence numbers of
their leases, the types that are near their limit, which of its leases have begun, and for a job
that will run again the id of its last attempt.
"""

import re
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

import orjson

from scheduler.dialects.interface import BegunMark, Delivery, Handled, Result
from scheduler.model.attempts import QueuedJob
from scheduler.model.oneshot import attempt_id, previous_id_of

MAX_RANGES = 50
_RETURNED = re.compile(rb"(\d{1,18}):(\d{1,9}):(\d):\d+:?([^:]*)")
_MARK = re.compile(rb"1:\d{1,18}:(\d{1,18}):((?:\d{1,18}-\d{1,18}(?:,|$))*)")


class Fetch(NamedTuple):
    """The part of a script call that leases jobs.

    n: how many jobs at most. first: the sequence number of the first lease. limits: JSON object of
    types and how many jobs of each may be leased; empty if no type can reach its limit. begun: the
    mark of the leases that have begun; empty: not reported.
    """

    n: int = 0
    first: int = 0
    limits: bytes = b""
    begun: str = ""


NO_FETCH = Fetch()


def jobs_of_calls(n: int, calls: int, results: Sequence[Result]) -> list[int]:
    """Return how many jobs each of several calls leases, which together send results.

    Only the last one leases jobs: until then Redis counts the leases of results that it has not
    taken yet. None does if an earlier call can put back a job, which a later one could lease again.
    """
    returns_jobs = calls > 1 and any(each.end is None for each in results)
    return [0] * (calls - 1) + [0 if returns_jobs else n]


class SequenceNumbers:
    """Allocates lease sequence numbers, from 1. Thread-safe."""

    def __init__(self) -> None:
        self._next = 1
        self._lock = threading.Lock()

    def fetch(
        self, n: int, handled: Handled, first: int | None, begun: BegunMark | None = None
    ) -> Fetch:
        """Allocate n numbers, starting at `first` or after all numbers that were allocated."""
        mark = mark_bytes(begun)
        if n <= 0:
            return Fetch(begun=mark)
        start = self.allocate(n, first)
        # A call leases n jobs at most, so a type with n free slots cannot reach its limit.
        limits = {name: free for name, free in handled.free.items() if free < n}
        return Fetch(n, start, orjson.dumps(limits) if limits else b"", mark)

    def allocate(self, n: int, first: int | None) -> int:
        """Allocate n numbers, starting at `first` or after all numbers that were allocated; return
        the first of them.
        """
        with self._lock:
            start = self._next if first is None else first
            self._next = max(self._next, start + n)
        return start

    def skip(self, held: Sequence[Delivery]) -> None:
        """Do not allocate numbers of leases that are held.

        A worker that restarts under its old name still holds leases of its previous process.
        """
        last = max((delivery.sequence for delivery in held), default=0)
        with self._lock:
            self._next = max(self._next, last + 1)


def begun_mark(ordinal: int, last: int, unbegun: Iterable[range]) -> BegunMark:
    """Make a mark: all leases up to the sequence number `last` have begun, except some ranges."""
    merged: list[tuple[int, int]] = []
    for each in sorted((each for each in unbegun if each), key=lambda each: each.start):
        if merged and each.start <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], each[-1])
        else:
            merged.append((each.start, each[-1]))
    if len(merged) > MAX_RANGES:  # begun leases after the last range then count as not begun
        last = merged[MAX_RANGES][0] - 1
        del merged[MAX_RANGES:]
    if merged and merged[-1][1] >= last:
        last = merged.pop()[0] - 1
    return BegunMark(ordinal, last, tuple(merged))


def mark_bytes(mark: BegunMark | None) -> str:
    """Encode a mark as 1:ordinal:last:first-last,first-last; empty: none was reported."""
    if mark is None:
        return ""
    return f"1:{mark.ordinal}:{mark.last}:" + ",".join(f"{a}-{b}" for a, b in mark.unbegun)


def mark_of(text: bytes | None) -> BegunMark | None:
    """Decode a mark; None: there is none, or it is unreadable."""
    found = _MARK.fullmatch(text or b"")
    if found is None:
        return None
    ranges = [each.split(b"-") for each in found[2].split(b",") if each]
    return BegunMark(0, int(found[1]), tuple((int(a), int(b)) for a, b in ranges))


class Returned(NamedTuple):
    """What is known of a job whose attempts were returned, see `attempts/lua/returned.lua`.

    uncharged: how many of its attempts are not charged. redelivered: an orphaned lease was
    redelivered uncharged. orphaned: a lease was orphaned, charged or not. previous_attempt_id: of
    the last attempt that had begun.
    """

    uncharged: int
    redelivered: bool
    orphaned: bool
    previous_attempt_id: str | None


def returned_of(text: bytes | None, job: QueuedJob) -> Returned:
    """Decode what is known of a job; a value of another feed, or an unreadable one, does not
    apply.
    """
    found = _RETURNED.match(text or b"")
    if found is None or int(found[1]) != job.feed:
        return Returned(
            job.uncharged,
            redelivered=False,
            orphaned=False,
            previous_attempt_id=job.previous_attempt_id,
        )
    previous = found[4].decode(errors="replace") or job.previous_attempt_id
    return Returned(int(found[2]), found[3] == b"1", found[3] != b"0", previous)


def previous_of_next(result: Result) -> str:
    """Return the `previous_attempt_id` of the attempt after this one; empty: it has none.

    A lease that never began is no execution, so it is not the previous attempt of any other.
    """
    delivery = result.delivery
    job = delivery.job
    has_begun = result.begun and delivery.begun and result.delay is None
    if result.end is None and not has_begun:
        previous = previous_id_of(job)
        return "" if previous is None else str(previous)
    try:
        job_id = UUID(job.id)
    except ValueError:  # a job of a foreign producer
        return ""
    lease = delivery.worker, delivery.sequence
    return str(attempt_id(job_id, *lease, feed=job.feed, attempt=delivery.attempt))
