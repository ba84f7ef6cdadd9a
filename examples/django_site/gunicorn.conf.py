"""What gunicorn reads by itself when it is started here."""

import contextlib
from typing import Any

import scheduler

workers = 4
graceful_timeout = 30


def worker_exit(_server: Any, _worker: Any) -> None:
    # Jobs may end first; without this they have one second. Not initialised: a worker that could
    # not start, or the master, which calls this for a worker that it finds dead.
    with contextlib.suppress(scheduler.NotInitialised):
        scheduler.cancel(timeout=graceful_timeout - 5)
