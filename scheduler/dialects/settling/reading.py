"""Ends of attempts on their way to the ledger: a stream that all settlers of a ledger read together."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from scheduler.dialects.client import LONGEST_BLOCK, Client, Script, script
from scheduler.dialects.ends import ends_of, rescued
from scheduler.dialects.interface import Outcomes
from scheduler.dialects.settling.fence import REMEMBERED_MS
from scheduler.errors import QueueError, WireError

GROUP = "settlers"
SETTLER = "settler"  # one name for all: what matters is how long nobody has acknowledged, and names would pile up
MILLISECOND = timedelta(milliseconds=1)
AT_ONCE = 100


class Settling:
    """What one ledger reads of a queue.

    keys: those that `forget` is given. First a stream; then a hash of jobs that ended and are not settled, and two of
    those that were settled lately. keep: is given what nobody can read; its job will be fed again.
    """

    def __init__(
        self,
        client: Client,
        keys: Sequence[str],
        *,
        silence: timedelta,
        keep: Callable[[bytes, WireError], None],
        forget: Script = script("settling", "acknowledge"),  # noqa: B008 - read once
    ) -> None:
        self._client = client
        self._keys = keys
        self._stream, self._finished = keys[:2]
        self._idle = silence // MILLISECOND
        self._keep = keep
        self._forget = forget
        self._density = 100  # ends in an entry of the stream, as last seen

    def read(self, n: int, timeout: float) -> list[Outcomes]:
        """Read ends, about n; first those that nobody has acknowledged for long."""
        try:
            entries = self._entries(max(1, n // self._density), timeout)
        except QueueError as error:
            if not ("NOGROUP" in str(error) or "UNBLOCKED the stream" in str(error)):
                raise
            self._begin()
            return []
        found = [read for entry, fields in entries if (read := self._outcomes(entry, fields)) is not None]
        if found:
            self._density = max(1, sum(len(each.ends) for each in found) // len(found))
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

    def _entries(self, n: int, timeout: float) -> list[Any]:
        claim = ("XAUTOCLAIM", self._stream, GROUP, SETTLER, self._idle, "0-0", "COUNT", n)
        _, claimed, *_ = self._client.call(*claim)
        entries = [entry for entry in claimed if entry and entry[1]]
        if entries:
            return entries
        block = int(min(timeout, LONGEST_BLOCK) * 1000)  # BLOCK 0 would be for ever
        waiting = ("BLOCK", block) if block > 0 else ()
        read = ("XREADGROUP", "GROUP", GROUP, SETTLER, "COUNT", n, *waiting, "STREAMS", self._stream, ">")
        answer = self._client.await_entries(self._stream, *read)
        return list(answer[0][1]) if answer else []

    def _begin(self) -> None:
        try:
            self._client.call("XGROUP", "CREATE", self._stream, GROUP, "0", "MKSTREAM")
        except QueueError as error:
            if "BUSYGROUP" not in str(error):  # another settler was faster
                raise

    def _outcomes(self, entry: bytes, fields: Mapping[bytes, bytes]) -> Outcomes | None:
        text = fields.get(b"ends", b"")
        try:
            return Outcomes(entry, ends_of(text))
        except WireError as error:
            self._keep(text, error)
            ends, lost = rescued(text)
            if lost:
                self._client.call("HDEL", self._finished, *lost)
            if ends:
                return Outcomes(entry, ends)
            self.acknowledge([Outcomes(entry, ())])
            return None
