"""Recovery: a worker takes back what silent ones hold, each job as its own policy says."""

import logging
from collections.abc import Mapping

from scheduler.dialects.interface import Delivery, Queue, Result
from scheduler.events import Events, JobsRecovered
from scheduler.log import keys
from scheduler.model.failures import Category, Failure
from scheduler.model.retries import Backoff
from scheduler.queueing.attempt import NOBODY, USUAL, Attempt, Usual, failed

logger = logging.getLogger("scheduler")

LOST_WORKER = Failure(category=Category.SYSTEM, message="its worker was lost")


def recover(queue: Queue, worker: str, backoffs: Mapping[str, Backoff], usual: Usual, events: Events) -> None:
    """Take back what silent workers of a queue hold; say how much, and how much of it has no attempt left."""
    results: list[Result] = []

    def decide(delivery: Delivery) -> Result:
        results.append(taken_back(delivery, worker, backoffs, usual))
        return results[-1]

    moved = queue.recover(decide)
    if moved:
        buried = sum(each.end is not None and each.end.state.terminal for each in results)
        said = "queue %s: %d jobs taken back from silent workers"
        logger.warning(said, queue.name, moved, extra=keys(queue=queue.name))
        events.emit(JobsRecovered(queue=queue.name, count=moved, buried=buried))


def taken_back(delivery: Delivery, worker: str, backoffs: Mapping[str, Backoff], usual: Usual = USUAL) -> Result:
    """Decide what becomes of a delivery whose worker is silent."""
    attempt = Attempt(delivery, NOBODY, worker, lambda _: None, usual)
    return failed(attempt, LOST_WORKER, delivery.started_at, backoffs)
