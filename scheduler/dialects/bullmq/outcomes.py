"""Ends of attempts on their way to the ledger: those of our workers, and those that workers of
others made.

Ours append theirs to a stream of the ledger as they end a job. What others ended is found by the
queue's events, and in what was fed and has not ended: each is appended to that stream once, by a
script. So one stream has them all. The mark of a job that has ended names its entry. A result whose
entry is gone (a trimmed stream) is read from the job and appended again.
"""

import logging
import time
from collections.abc import Sequence
from datetime import timedelta

from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.client import LONGEST_BLOCK, Client, script
from scheduler.dialects.interface import Outcomes
from scheduler.dialects.settling import reading
from scheduler.errors import WireError
from scheduler.log import keys as log_fields

logger = logging.getLogger("scheduler")

LOOKED_AT = 1000  # events, or jobs, in one call
SWEEP = 30.0  # seconds: so often all that was fed is looked at
SWEEP_SOON = 1.0  # and so often at most, when events were trimmed before we read them
LINGER = 0.005
MOST_UNREADABLE = 1000


class Settling:
    """What one ledger reads of a queue."""

    def __init__(self, client: Client, keys: Keys, installation: str, silence: timedelta) -> None:
        self._client = client
        self._keys = keys
        self._installation = installation
        self._unreadable = keys.ring(installation, "outcomes:unreadable")
        lately = (keys.own(what) for what in ("finished", "settled", "settled:before"))
        self._ends = reading.Settling(
            client,
            [
                keys.ring(installation, "outcomes"),
                *lately,
                keys.ring(installation, "fed"),
                keys.meta,
            ],
            silence=silence,
            keep=self._keep,
            forget=script("bullmq", "acknowledge"),
        )
        self._sweep = "0"  # where to go on through all that was fed; empty: it was gone through
        self._swept = time.monotonic()
        self._missed = False  # events may be gone that nobody read

    def read(self, n: int, timeout: float) -> list[Outcomes]:
        """Read ends, about n; first those that nobody has acknowledged for long."""
        end = time.monotonic() + timeout
        while True:
            last, more = self._collect()
            found = self._ends.read(n, 0)
            if found or (end <= time.monotonic() and not more):
                return found
            if not more and not self._wait(last, end):
                return self._ends.read(n, 0)  # the first read may only have made the group

    def acknowledge(self, settled: Sequence[Outcomes]) -> None:
        """Forget ends, and jobs that have ended."""
        self._ends.acknowledge(settled)

    def hand_over(self, read: Sequence[Outcomes]) -> None:
        """Let others read ends at once."""
        self._ends.hand_over(read)

    def _collect(self) -> tuple[bytes, bool]:
        """Find what others ended; say which event was the last, and whether there is more to look
        at.
        """
        now = time.monotonic()
        if not self._sweep and now - self._swept > (SWEEP_SOON if self._missed else SWEEP):
            self._sweep, self._swept, self._missed = "0", now, False
        args = [self._installation, LOOKED_AT, self._sweep]
        _, read, following, last, gone, lost = self._client.run(
            script("bullmq", "collect"), [self._keys.meta], args
        )
        if lost:
            logger.warning(
                "queue %s: Redis lost the results of %d finished jobs, read from the jobs instead",
                self._keys.queue,
                lost,
                extra=log_fields(queue=self._keys.queue),
            )
        self._missed = self._missed or bool(gone)
        self._sweep = following.decode() if following != b"0" else ""
        return last, read == LOOKED_AT or bool(self._sweep)

    def collect_events(self) -> None:
        """Read all events that nobody has read, so that each end which others made is a result."""
        read = LOOKED_AT
        while read == LOOKED_AT:
            args = [self._installation, LOOKED_AT, ""]
            _, read, _, _, gone, _ = self._client.run(
                script("bullmq", "collect"), [self._keys.meta], args
            )
            self._missed = self._missed or bool(gone)

    def _wait(self, last: bytes, end: float) -> bool:
        """Wait for the next event, and return whether there is one. `Client.unblock` ends the wait.

        Every end of a job publishes an event.
        """
        patience = min(end - time.monotonic(), LONGEST_BLOCK)
        block = int(min(patience, SWEEP_SOON if self._missed else patience) * 1000)
        if block <= 0:
            return False
        events = self._keys.named("events")
        found = self._client.await_entries(
            events, "XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", events, last
        )
        if found:
            time.sleep(min(LINGER, max(0.0, end - time.monotonic())))  # let some come along
        return bool(found)

    def _keep(self, text: bytes, _: WireError) -> None:
        """Keep aside ends that nobody can read; they are found anew in their jobs."""
        self._client.call("LPUSH", self._unreadable, text)
        self._client.call("LTRIM", self._unreadable, 0, MOST_UNREADABLE - 1)
        self._sweep = "0"
