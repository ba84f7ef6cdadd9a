"""Ends of attempts on their way to the ledger: those of our workers, and those that workers of others made.

Ours append theirs to a stream of the ledger as they end a job. What others ended is found by the queue's events, and
in what was fed and has not ended: each is appended to that stream once, by a script. So one stream has them all.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from scheduler.dialects.bullmq import wire
from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.client import LONGEST_BLOCK, Client, script
from scheduler.dialects.ends import ends_of, rescued
from scheduler.dialects.interface import Outcomes
from scheduler.errors import QueueError, WireError

GROUP = "settlers"
SETTLER = "settler"  # one name for all: what matters is how long nobody has acknowledged
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
        self._stream = keys.ring(installation, "outcomes")
        self._idle = silence // wire.MILLISECOND
        self._density = 100  # ends in an entry of the stream, as last seen
        self._sweep = "0"  # where to go on through all that was fed; empty: it was gone through
        self._swept = time.monotonic()
        self._missed = False  # events may be gone that nobody read

    def read(self, n: int, timeout: float) -> list[Outcomes]:
        """Read ends, about n; first those that nobody has acknowledged for long."""
        count, end = max(1, n // self._density), time.monotonic() + timeout
        while True:
            last, more = self._collect()
            found = self._entries(count)
            if found or (end <= time.monotonic() and not more):
                break
            if not more:
                self._wait(last, end)
        read = [each for entry, fields in found if (each := self._outcomes(entry, fields)) is not None]
        if read:
            self._density = max(1, sum(len(each.ends) for each in read) // len(read))
        return read

    def acknowledge(self, settled: Sequence[Outcomes]) -> None:
        """Forget ends, and jobs that have ended."""
        keys = [self._stream, self._keys.ring(self._installation, "fed"), self._keys.meta]
        for start in range(0, len(settled), 100):
            batch = settled[start : start + 100]
            args: list[Any] = [GROUP, len(batch), *(each.token for each in batch)]
            for each in batch:
                for end in each.ends:
                    if end.state.terminal:
                        args += (end.job_id, f"{end.feed}:{end.attempt}")
            self._client.run(script("bullmq", "acknowledge"), keys, args)

    def _collect(self) -> tuple[bytes, bool]:
        """Find what others ended; say which event was the last, and whether there is more to look at."""
        now = time.monotonic()
        if not self._sweep and now - self._swept > (SWEEP_SOON if self._missed else SWEEP):
            self._sweep, self._swept, self._missed = "0", now, False
        args = [self._installation, LOOKED_AT, self._sweep]
        _, read, following, last, gone = self._client.run(script("bullmq", "collect"), [self._keys.meta], args)
        self._missed = self._missed or bool(gone)
        self._sweep = following.decode() if following != b"0" else ""
        return last, read == LOOKED_AT or bool(self._sweep)

    def _entries(self, n: int) -> list[Any]:
        try:
            claim = ("XAUTOCLAIM", self._stream, GROUP, SETTLER, self._idle, "0-0", "COUNT", n)
            _, claimed, *_ = self._client.call(*claim)
            entries = [entry for entry in claimed if entry and entry[1]]
            if entries:
                return entries
            read = ("XREADGROUP", "GROUP", GROUP, SETTLER, "COUNT", n, "STREAMS", self._stream, ">")
            answer = self._client.wait(*read, near=self._stream)
        except QueueError as error:
            if not ("NOGROUP" in str(error) or "UNBLOCKED the stream" in str(error)):
                raise
            self._begin()
            return []
        return list(answer[0][1]) if answer else []

    def _begin(self) -> None:
        try:
            self._client.call("XGROUP", "CREATE", self._stream, GROUP, "0", "MKSTREAM")
        except QueueError as error:
            if "BUSYGROUP" not in str(error):  # another settler was faster
                raise

    def _wait(self, last: bytes, end: float) -> None:
        """Wait for an event after the last: whoever ends a job says one."""
        patience = min(end - time.monotonic(), LONGEST_BLOCK)
        block = int(min(patience, SWEEP_SOON if self._missed else patience) * 1000)
        if block <= 0:
            return
        events = self._keys.named("events")
        if self._client.wait("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", events, last, near=events):
            time.sleep(min(LINGER, max(0.0, end - time.monotonic())))  # let some come along

    def _outcomes(self, entry: bytes, fields: Mapping[bytes, bytes]) -> Outcomes | None:
        """Read a batch of ends; one that nobody can read is kept aside, and found anew in its job."""
        text = fields.get(b"ends", b"")
        try:
            return Outcomes(entry, ends_of(text))
        except WireError:
            self._client.call("LPUSH", f"{self._stream}:unreadable", text)
            self._client.call("LTRIM", f"{self._stream}:unreadable", 0, MOST_UNREADABLE - 1)
            ends, lost = rescued(text)
            if lost:
                self._client.call("HDEL", self._keys.named("ring:finished"), *lost)
                self._sweep = "0"
            if ends:
                return Outcomes(entry, ends)
            self.acknowledge([Outcomes(entry, ())])
            return None
