"""A worker process that kills itself at one point of a job: python -m tests.worker.mortal

Arguments: URL of Redis, dialect, queue, point, a file for the starts of handlers, and how many
processes die (the file has a line for each death).
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from scheduler import JobContext, ReaperRule, Worker, handler
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.worker.consumer import QueueConsumer
from tests.support.lines import append, read_lines

url, dialect, queue, point, journal, deaths = sys.argv[1:]
QUEUES: dict[str, Any] = {
    "standard": StandardQueue,
    "reliable": ReliableQueue,
    "bullmq": BullMQQueue,
    "conveyor": ConveyorQueue,
}
Queue = QUEUES[dialect]
path = Path(journal)
renewed = threading.Semaphore(0)


def die() -> None:
    """End this process, unless enough processes have died."""
    if sum(line == "death" for line in read_lines(path)) < int(deaths):
        append(path, "death")
        os.kill(os.getpid(), signal.SIGKILL)


@handler("job", queue=queue)
def work(ctx: JobContext, payload: object) -> None:
    append(path, f"start {ctx.attempt_id} {ctx.previous_attempt_id}")
    if point == "handler entered":
        die()
    if point == "handler entered, lease marked":
        while renewed.acquire(blocking=False):
            pass
        renewed.acquire()  # it can have been sent before the handler began
        renewed.acquire()
        die()


def after(name: str, happened: Callable[[Any], object]) -> None:
    """Die after a call of the queue, if it did what the point needs."""
    plain = getattr(Queue, name, None)
    if plain is None:  # the dialect has no such call
        return

    def call(self: Any, *args: Any, **options: Any) -> Any:
        answer = plain(self, *args, **options)
        if happened(answer):
            die()
        return answer

    setattr(Queue, name, call)


plain_renew, plain_answered, plain_finish = Queue.renew, QueueConsumer.answered, Queue.finish


def renew(self: Any, *args: Any, begun: Any = None, **options: Any) -> Any:
    """Only one point is about leases that a renewal has marked as begun. At the others its mark
    names none: a worker without any mark counts as one that has begun whatever it holds.
    """
    if begun is not None and point != "handler entered, lease marked":
        begun = begun._replace(last=0, unbegun=())
    answer = plain_renew(self, *args, begun=begun, **options)
    renewed.release()
    return answer


def answered(self: QueueConsumer, call: Any, accepted: Any, attempts: Any) -> None:
    if attempts and point == "answer received":
        die()
    plain_answered(self, call, accepted, attempts)


def finish(self: Any, results: Any, **options: Any) -> Any:
    if results and point == "result not sent":
        die()
    return plain_finish(self, results, **options)


Queue.renew = renew
Queue.finish = finish
QueueConsumer.answered = answered  # type: ignore[method-assign]
if point == "script done":
    after("fetch", bool)
    after("fetch_next", bool)
    after("finish", lambda answer: answer[1])
Worker(
    url,
    [queue],
    dialect=dialect,
    concurrency=1,  # no other call marks the lease
    lease="1s",
    reaper=ReaperRule(interval=timedelta(seconds=0.2)),
).run()
