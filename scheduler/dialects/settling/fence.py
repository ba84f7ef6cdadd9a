"""The fence: a push that Redis hears of late is refused, and until then it is known what was
settled.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from scheduler.dialects.client import Client
from scheduler.dialects.interface import Pushed
from scheduler.errors import EpochLost, QueueUnavailable
from scheduler.log import keys
from scheduler.model.attempts import QueuedJob

logger = logging.getLogger("scheduler")

SOON = 5.0  # seconds from the statement that takes jobs to the script that puts them in
REMEMBERED_MS = 10_000  # longer than that, whoever settles it in between
LOOK_HOLDS = 5.0  # seconds for which a look at Redis's clock counts
# r: its earlier result is missing, so it is enqueued again
PUSHED: Final = {"n": Pushed.NEW, "r": Pushed.NEW, "k": Pushed.KNOWN, "f": Pushed.FINISHED}


class Fence:
    """Says until when a push may be carried out, by the clock of the server that is reached through
    a client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ahead = 0.0  # Redis's clock of our monotonic one, in ms, or a little less
        self._until = 0.0

    @contextmanager
    def until(self, began: float | None) -> Iterator[int | str]:
        """Say in ms until when what is ours since `began` may be pushed; empty: whenever."""
        try:
            yield (
                "" if began is None or self._client.clustered else self._ms(began + SOON)
            )  # a cluster has many clocks
        except QueueUnavailable:
            self._until = 0.0  # it may be another's by now
            raise

    def _ms(self, moment: float) -> int:
        if time.monotonic() >= self._until:
            seconds, microseconds = self._client.call("TIME")
            heard = time.monotonic()
            self._ahead = int(seconds) * 1000 + int(microseconds) / 1000 - heard * 1000
            self._until = heard + LOOK_HOLDS
        return int(moment * 1000 + self._ahead)


def withdrawal(job: QueuedJob) -> str:
    """Encode the argument of the scripts `cancel` that makes them withdraw a job."""
    return f"withdraw:{job.feed}:{job.attempt}:{REMEMBERED_MS}"


def log_missing_results(queue: str, jobs: int) -> None:
    """Log how many jobs were enqueued again because Redis has lost their results."""
    if jobs:
        logger.warning(
            "queue %s: Redis has lost the results of %d finished jobs, re-enqueued them",
            queue,
            jobs,
            extra=keys(queue=queue),
        )


def pushed(answer: bytes) -> list[Pushed]:
    """Read what a script says that pushed jobs."""
    if answer == b"lost":
        raise EpochLost
    if answer == b"late":
        raise QueueUnavailable("Redis: it has taken too long to get there")
    return [PUSHED[each] for each in answer.decode()]
