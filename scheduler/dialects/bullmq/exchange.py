"""The script `finish`, which ends deliveries and takes the next: what it is told, and what it
answers.
"""

import random
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast

from scheduler.dialects.bullmq import wire
from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.bullmq.options import KEEP_ALL
from scheduler.dialects.bullmq.schedulers import iterate
from scheduler.dialects.bullmq.wire import TOLD, Taken
from scheduler.dialects.client import Client, script
from scheduler.dialects.ends import end_bytes
from scheduler.dialects.interface import Delivery, Result
from scheduler.dialects.leasing import NO_FETCH, Fetch, previous_of_next
from scheduler.errors import WireError
from scheduler.model.states import State

LARGEST_BATCH = 1000
MOST_RESULTS = 500
VALUES = 7  # of a result
MOST_BYTES = 8 * 1024 * 1024  # in one call; and so many more as one job has
NO_DELAY = timedelta()
NAME = re.compile(
    rb"^[A-Za-z_][\w.<>]*: "
)  # an error says first what it is; BullMQ's reasons are its message alone
FRAMES = b'\n  File "'


class Answer(NamedTuple):
    """What came of it; `wait_ms`: until one should look again, -1 if there is nothing to wait
    for. `passed`: how many jobs of full types were passed over.
    """

    accepted: list[bool]
    taken: list[Delivery]
    wait_ms: int
    passed: int = 0


class Exchange:
    """The deliveries of one queue, to and from one worker."""

    def __init__(
        self, client: Client, keys: Keys, worker: str, *, compat: str, most_unsettled: int
    ) -> None:
        self._client = client
        self._keys = keys
        self._worker = worker
        self._compat = compat
        self._most_unsettled = most_unsettled

    def run(
        self,
        written: Sequence[Any],
        lease: timedelta,
        fetch: Fetch = NO_FETCH,
        *,
        dead: bool = False,
        wake: bool = False,
    ) -> Answer:
        """End deliveries and lease more jobs."""
        args = [
            self._worker,
            lease // wire.MILLISECOND,
            min(fetch.n, LARGEST_BATCH),
            "dead" if dead else "live",
            self._most_unsettled,
            self._compat,
            len(written) // VALUES,
            "wake" if wake else "",
            fetch.first,
            fetch.limits,
            fetch.begun,
            *written,
        ]
        answer, wait, _, told, passed = self._client.run(
            script("bullmq", "finish"), [self._keys.meta], args
        )
        return Answer([each == 49 for each in answer], self._taken(told), wait, passed)

    def held(self) -> list[Delivery]:
        """Read what the worker holds."""
        return self._taken(
            self._client.run(script("bullmq", "held"), [self._keys.meta], [self._worker])
        )

    def _taken(self, told: Sequence[bytes]) -> list[Delivery]:
        """Read jobs that are in the worker's hands: what cannot be read fails, what comes in a
        series goes on.
        """
        taken, unreadable = self.deliveries(told)
        if unreadable:
            self.run(unreadable, NO_DELAY)
        for each in taken:
            if each.scheduler:
                iterate(self._client, self._keys, each, compat=self._compat)
        return list(taken)

    def deliveries(self, told: Sequence[bytes]) -> tuple[list[Taken], list[Any]]:
        """Read what a script tells of jobs; what cannot be read fails."""
        taken: list[Taken] = []
        unreadable: list[Any] = []
        for start in range(0, len(told), TOLD):
            each = told[start : start + TOLD]
            try:
                taken.append(wire.delivery_of(self._keys.queue, each))
            except WireError as error:
                unreadable += (
                    each[0],
                    f"failed:0:1:-1:{KEEP_ALL}",
                    each[1],
                    str(error),
                    str(error),
                    b"",
                    b"",
                )
        return taken, unreadable


def calls(results: Sequence[Result]) -> Iterator[list[Any]]:
    """Write ends, in as many calls as they need; at least one."""
    written: list[Any] = []
    size = 0
    for result in results:
        if size > MOST_BYTES or len(written) >= VALUES * MOST_RESULTS:
            yield written
            written, size = [], 0
        values = written_of(result)
        written += values
        size += len(values[3]) + len(values[6])
    yield written


def written_of(result: Result, *, redelivered: bool = False) -> tuple[Any, ...]:
    """Write one end, as the script reads it. redelivered: it returns an orphaned lease."""
    delivery, end = cast("Taken", result.delivery), result.end
    job, rules = delivery.job, delivery.rules
    if end is None:
        verb = "return" if result.begun else "back"
        if redelivered:
            verb = "redeliver"
        if result.unhandled or result.delay is not None:
            verb = "later"
        delay = (result.delay or NO_DELAY) // wire.MILLISECOND
        head = f"{verb}:{delay}:0:0:{previous_of_next(result)}"
        return job.id, head, delivery.raw, b"", b"", b"", b""
    told = end_bytes(end) if job.installation else b""
    progress = wire.progress_bytes(result.note)
    if end.state is State.COMPLETED:
        head = f"completed:0:0:0:{rules.keep_completed}"
        return job.id, head, delivery.raw, end.result or b"null", b"", progress, told
    trace = (end.error or end.state.value).encode(errors="replace")
    reason = NAME.sub(b"", trace.partition(FRAMES)[0].rstrip(b"\n"), count=1)
    if end.state is State.RETRYING:
        delay = max(0, (end.delay or NO_DELAY) // wire.MILLISECOND)
        if rules.jitter:
            delay = int(delay * (1 - random.random() * rules.jitter))  # noqa: S311
        verb = "first" if rules.lifo else "retry"
        head = f"{verb}:{delay}:0:{rules.traces}:{previous_of_next(result)}"
    else:
        attempts = job.policies()[0].max_attempts if job.installation else rules.attempts
        head = f"failed:0:{attempts}:{rules.traces}:{rules.keep_failed}"
    return job.id, head, delivery.raw, reason, trace, progress, told
