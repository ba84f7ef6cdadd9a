"""Wait for the end of a job: woken when this instance settles it, and looking now and then in case
another does.
"""

import threading
import time
from collections.abc import Callable
from uuid import UUID

from scheduler.errors import WaitTimeout
from scheduler.events import Event, JobsSettled
from scheduler.model.oneshot import Job
from scheduler.store.job_queue import JobKey

FIRST_LOOK = 0.01
LAST_LOOK = 0.5


def wait(
    get: Callable[[str, UUID], Job],
    subscribe: Callable[[Callable[[Event], None]], Callable[[], None]],
    key: JobKey,
    timeout: float | None,
) -> Job:
    """Return a job once it has ended."""
    until = None if timeout is None else time.monotonic() + timeout
    settled = threading.Event()
    job_id = str(key.id)

    def listen(event: Event) -> None:
        if isinstance(event, JobsSettled) and any(each == job_id for _, each, _ in event.jobs):
            settled.set()

    unsubscribe = subscribe(listen)
    look = FIRST_LOOK
    try:
        while not (job := get(*key)).state.terminal:
            left = look if until is None else min(look, until - time.monotonic())
            if left <= 0:
                raise WaitTimeout(
                    f"job {key.id} has not ended within {timeout:g} s; it is {job.state}"
                )
            if settled.wait(left):
                settled.clear()
            look = min(look * 1.5, LAST_LOOK)
        return job
    finally:
        unsubscribe()
