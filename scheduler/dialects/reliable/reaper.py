"""The reaper: finds workers that are silent, and takes back what they hold.

A lease that its worker had not begun is redelivered without a charge, but only once for each job,
so that a job whose fetch kills its worker is not leased for ever.
"""

import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import BegunMark, Delivery, Result
from scheduler.dialects.leasing import mark_of
from scheduler.dialects.looking import glob
from scheduler.dialects.reliable.exchange import Call, Exchange, Held, buried, dropped, written_of
from scheduler.dialects.reliable.keys import Keys
from scheduler.model.reaper import ReaperRule

MOST_WORKERS = 100
MOST_HELD = 100
SCAN_SECONDS = 0.2
LEASE = timedelta(seconds=30)


class Reaper:
    """Takes back what silent workers of one queue hold: ours by their registry, the original's by
    their lists.
    """

    def __init__(self, client: Client, keys: Keys, exchange: Exchange, rule: ReaperRule) -> None:
        self._client = client
        self._keys = keys
        self._exchange = exchange
        self._rule = rule
        self._workers = keys.named("workers")
        [self._begun] = keys.named("begun")
        self._cursor: Any = 0
        self._suspects: set[str] = set()  # silent in the round before
        self._seen: set[str] = set()  # silent in this round

    def recover(self, decide: Callable[[Delivery], Result], *, foreign: bool) -> int:
        """Reclaim the leases of dead workers, with the results that `decide` returns; return how
        many. foreign: also scan for workers of the original.
        """
        moved = 0
        for worker in self._silent():
            moved += self._take_back(worker, decide, ours=True)
        for worker in self._strangers() if foreign else ():
            moved += self._take_back(worker, decide, ours=False)
        return moved

    def _take_back(self, worker: str, decide: Callable[[Delivery], Result], *, ours: bool) -> int:
        moved = 0
        # A worker of the original has no mark: it has begun whatever it holds.
        begun = mark_of(self._client.call("HGET", self._begun, worker)) if ours else None
        while True:
            page = next(self._exchange.held(worker, MOST_HELD), [])
            what, met = Call(), set()
            for held in page:
                if (
                    held.delivery is not None and held.delivery.job.id in met
                ):  # it was fed again to the same worker
                    what.add(dropped(held.entry))
                else:
                    _take(what, held, worker, begun, decide, ours=ours)
                met.add(held.delivery.job.id if held.delivery else "")
            answer = self._exchange.run(worker, what, LEASE, dead=True)
            moved += sum(answer.accepted)
            if answer.alive or not page:
                return moved

    def _silent(self) -> list[str]:
        names = self._client.run(script("reliable", "silent"), self._workers, [MOST_WORKERS])
        return [name.decode() for name in names]

    def _strangers(self) -> Iterator[str]:
        """Name those who left a list without being in the registry, when they were silent in two
        rounds.

        A worker of the original has its first heartbeat a moment after its job.
        """
        begin, end = self._keys.processing_pattern.split("%s")
        pattern = glob(begin) + "*" + glob(end)
        until = time.monotonic() + SCAN_SECONDS
        ours = {
            name.decode(errors="replace")
            for name in self._client.call("ZRANGE", *self._workers, 0, -1)
        }
        while True:
            self._cursor, found = self._client.scan(
                begin, self._cursor, pattern, self._rule.scan_count
            )
            for key in found:
                worker = key.decode(errors="replace")[len(begin) :].removesuffix(end)
                if (
                    not self._client.call("EXISTS", self._keys.heartbeat(worker))
                    and worker not in ours
                ):
                    self._seen.add(worker)
            silent = self._seen & self._suspects
            self._suspects -= silent
            yield from sorted(silent)
            if not int(self._cursor):
                self._suspects, self._seen = self._seen - silent, set()
                return
            if time.monotonic() > until:
                return
            # so that fleets do not scan in step
            time.sleep(self._rule.base_delay.total_seconds() * random.uniform(0.5, 1.5))  # noqa: S311


def _take(
    call: Call,
    held: Held,
    worker: str,
    begun: BegunMark | None,
    decide: Callable[[Delivery], Result],
    *,
    ours: bool,
) -> None:
    """Write what becomes of an entry."""
    if held.delivery is None:
        call.add(buried(held.entry, "a silent worker held it, and it cannot be read"))
    elif held.owner != worker and (ours or held.owner is not None):
        call.add(dropped(held.entry))
    else:
        delivery, leased = held.delivery, held.owner is not None
        delivery.worker = worker
        delivery.begun = begun is None or begun.includes(delivery.sequence)
        redelivered = not delivery.begun and not held.redelivered
        result = Result(delivery, None) if redelivered else decide(delivery)
        installation = delivery.job.installation
        ledger = call.ledger(installation)
        written = written_of(result, ledger, leased=leased, redelivered=redelivered)
        call.add(written, installation)
