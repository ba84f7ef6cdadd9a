"""A worker process whose poison jobs kill it: python -m tests.worker.poisonous

Arguments: URL of Redis, dialect, a file for the starts of handlers, and the queues. A line of the
file is the type and id of a job, its attempt, and the process.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from scheduler import JobContext, ReaperRule, Worker, handler
from tests.support.lines import append

url, dialect, journal, *queues = sys.argv[1:]


def note(kind: str, ctx: JobContext) -> None:
    append(Path(journal), f"{kind} {ctx.id} {ctx.attempt} {os.getpid()}")


def poison(ctx: JobContext, payload: object) -> None:
    """Kill this process, after a while in which other jobs start."""
    note("poison", ctx)
    time.sleep(1.5)
    os.kill(os.getpid(), signal.SIGKILL)


def ordinary(ctx: JobContext, payload: dict[str, Any]) -> None:
    note("ordinary", ctx)
    time.sleep(payload["seconds"])


for queue in queues:
    handler("poison", queue=queue)(poison)
    handler("ordinary", queue=queue)(ordinary)
Worker(
    url,
    queues,
    dialect=dialect,
    concurrency=10,
    lease="1s",
    reaper=ReaperRule(interval=timedelta(seconds=0.3)),
).run()
