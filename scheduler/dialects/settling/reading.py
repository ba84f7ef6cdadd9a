"""Ends of attempts on their way to the ledger: a stream that all settlers of a ledger read
together.

What a settler read and does not acknowledge comes to another after its silence. What it read
without getting the answer comes soon: a moment after Redis answers again, it claims what nobody has
acknowledged since. Others may have had some of it in their hands all the while; then it is settled
twice, of which the second time finds nothing to do.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from scheduler.dialects.client import LONGEST_BLOCK, Client, Script, script
from scheduler.dialects.ends import EPOCH, ends_of, rescued
from scheduler.dialects.interface import Outcomes
from scheduler.dialects.settling.fence import REMEMBERED_MS
from scheduler.errors import QueueError, QueueUnavailable, WireError

GROUP = "settlers"
# one name for all: what matters is how long nobody has acknowledged, and names would pile up
SETTLER = "settler"
MILLISECOND = timedelta(milliseconds=1)
AT_ONCE = 100
MOST_BYTES = 32 * 1024 * 1024  # at once; and so many more as an entry has
IN_HAND = 1.0  # seconds: half of them others are left what they may have in their hands


class Settling:
    """What one ledger reads of a queue.

    keys: those that `forget` is given. First a stream; then a hash of jobs that ended and are not
    settled, and two of those that were settled lately. keep: is given what nobody can read; its job
    will be fed again. field: the field of a stream entry that has the results. If it is a format
    number, an entry with a higher number is left unacknowledged, and `newer` is called with it.
    """

    def __init__(
        self,
        client: Client,
        keys: Sequence[str],
        *,
        silence: timedelta,
        keep: Callable[[bytes, WireError], None],
        forget: Script = script("settling", "acknowledge"),  # noqa: B008 - read once
        field: bytes = b"ends",
        newer: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._stream, self._finished = keys[:2]
        self._idle = silence // MILLISECOND
        self._keep = keep
        self._forget = forget
        self._field = field
        self._newer = newer
        self._density = 100  # ends in an entry of the stream, as last seen
        self._size = 1  # its bytes
        self._back: float | None = (
            None  # after an answer did not come: since when Redis answers again, or infinity
        )

    def read(self, n: int, timeout: float) -> list[Outcomes]:
        """Read ends, about n; first those that nobody has acknowledged for long."""
        try:
            entries = self._entries(
                max(1, min(n // self._density, MOST_BYTES // self._size)), timeout
            )
            found = [
                read
                for entry, fields in entries
                if (read := self._outcomes(entry, fields)) is not None
            ]
        except QueueError as error:
            if isinstance(error, QueueUnavailable):
                self._back = math.inf
            if not ("NOGROUP" in str(error) or "UNBLOCKED the stream" in str(error)):
                raise
            self._begin()
            return []
        if found:
            self._density = max(1, sum(len(each.ends) for each in found) // len(found))
            self._size = max(1, sum(each.size for each in found) // len(found))
        return found

    def acknowledge(self, settled: Sequence[Outcomes]) -> None:
        """Forget ends."""
        for start in range(0, len(settled), AT_ONCE):
            batch = settled[start : start + AT_ONCE]
            args: list[Any] = [GROUP, len(batch), REMEMBERED_MS, *(each.token for each in batch)]
            for each in batch:
                for end in each.ends:
                    if end.state.terminal:
                        args += (end.job_id, f"{end.feed}:{end.attempt}")
            self._client.run(self._forget, self._keys, args)

    def hand_over(self, read: Sequence[Outcomes]) -> None:
        """Let others read ends at once: as if they had been in our hands for too long."""
        for start in range(0, len(read), AT_ONCE):
            tokens = [each.token for each in read[start : start + AT_ONCE]]
            self._client.run(
                script("settling", "hand_over"),
                [self._stream],
                [GROUP, SETTLER, self._idle, *tokens],
            )

    def _entries(self, n: int, timeout: float) -> list[Any]:
        if claimed := self._claimed(n):
            return claimed
        block = int(min(timeout, LONGEST_BLOCK) * 1000)  # BLOCK 0 would be for ever
        waiting = ("BLOCK", block) if block > 0 else ()
        read = (
            "XREADGROUP",
            "GROUP",
            GROUP,
            SETTLER,
            "COUNT",
            n,
            *waiting,
            "STREAMS",
            self._stream,
            ">",
        )
        answer = self._client.await_entries(self._stream, *read)
        return list(answer[0][1]) if answer else []

    def _claimed(self, n: int) -> list[Any]:
        """Read what nobody has acknowledged for long; a moment after Redis is back, since an answer
        did not come.
        """
        since = time.monotonic() - self._back if self._back is not None else 0.0
        if since < IN_HAND:
            _, found = self._claim(self._idle, b"0-0", n)
            if self._back is not None:
                self._back = min(self._back, time.monotonic())
            return found
        idle, cursor = min(self._idle, int((since - IN_HAND / 2) * 1000)), b""
        while cursor != b"0-0":
            cursor, found = self._claim(idle, cursor or b"0-0", n)
            if found:
                return found
        self._back = None
        return []

    def _claim(self, idle: int, cursor: bytes, n: int) -> tuple[bytes, list[Any]]:
        answer = self._client.call(
            "XAUTOCLAIM", self._stream, GROUP, SETTLER, idle, cursor, "COUNT", n
        )
        return answer[0], [entry for entry in answer[1] if entry and entry[1]]

    def _begin(self) -> None:
        try:
            self._client.call("XGROUP", "CREATE", self._stream, GROUP, "0", "MKSTREAM")
        except QueueError as error:
            if "BUSYGROUP" not in str(error):  # another settler was faster
                raise

    def _outcomes(self, entry: bytes, fields: Mapping[bytes, bytes]) -> Outcomes | None:
        text = fields.get(self._field, b"")
        if not text and (number := self._newer_format(fields)):
            self._newer(number)
            return None
        recorded_at = _recorded_at(entry)
        try:
            return Outcomes(entry, ends_of(text, recorded_at), len(text))
        except WireError as error:
            self._keep(text, error)
            ends, lost = rescued(text, recorded_at)
            if lost:
                self._client.call("HDEL", self._finished, *lost)
            if ends:
                return Outcomes(entry, ends, len(text))
            self.acknowledge([Outcomes(entry, ())])
            return None

    def _newer_format(self, fields: Mapping[bytes, bytes]) -> int | None:
        """Return the format number of a stream entry that this version does not read."""
        if not self._field.isdigit():
            return None
        numbers = [int(each) for each in fields if each.isdigit() and len(each) <= 4]
        return max((each for each in numbers if each > int(self._field)), default=None)


def _recorded_at(entry: bytes) -> datetime | None:
    """Read the time of a stream entry, which Redis gave it; None: somebody else named the entry."""
    try:
        return EPOCH + int(entry.partition(b"-")[0]) * MILLISECOND
    except (ValueError, OverflowError):
        return None
