"""Our worker in a fleet of both kinds: `python -m tests.conveyor.our_worker URL QUEUE`."""

import sys
from datetime import timedelta

from scheduler import JobContext, TemporaryError, Worker, handler
from scheduler.dialects.conveyor import queue
from scheduler.model.reaper import ReaperRule
from tests.conveyor.work import Fails, work

URL, QUEUE = sys.argv[1:]
queue.STUCK_FOR = timedelta(seconds=1)


@handler("work", queue=QUEUE)
def run(context: JobContext, payload: bytes) -> None:
    try:
        work(URL, "ours", str(context.id), payload)
    except Fails:
        raise TemporaryError("as it was told to") from None


if __name__ == "__main__":
    rule = ReaperRule(interval=timedelta(seconds=0.5))
    dialect = {QUEUE: {"dialect": "conveyor", "keys": "upstream"}}
    Worker(URL, [QUEUE], dialect=dialect, concurrency=4, lease="1s", reaper=rule).run()
