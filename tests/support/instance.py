"""The script that each process of a fleet runs: an app that initialises, registers its jobs and
waits for SIGTERM.

It ends by itself when its standard input does: no process outlives the test that started it.
"""

import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import scheduler
from scheduler import Registration, RunContext, Scheduler
from scheduler.events import Event, FireEnded, LeaseLost
from scheduler.model.definition import Delivery
from tests.support.records import Journal

DRAIN = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of the fleet: its schedule in plain numbers, and which of the bodies below it runs, for
    how long.
    """

    job_id: str
    start_at: datetime
    every: float | None = None
    body: str = "hold"
    seconds: float = 0.0
    fifo: str = ""
    delivery: Delivery = "at_least_once"
    tenant: str = "acme"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one process is told."""

    dsn: str
    schema: str
    folder: str
    jobs: tuple[Job, ...]
    lease: str
    workers: int = 16
    prepare: bool = True
    forks: int = 0

    def to_json(self) -> str:
        """Write it for the command line."""
        return json.dumps(asdict(self), default=datetime.isoformat)

    @classmethod
    def from_json(cls, text: str) -> "Options":
        """Read what `to_json` wrote."""
        data = json.loads(text)
        jobs = (
            Job(**{**job, "start_at": datetime.fromisoformat(job["start_at"])})
            for job in data.pop("jobs")
        )
        return cls(**data, jobs=tuple(jobs))

    @property
    def journal(self) -> Journal:
        """The file of the bodies' own records."""
        return Journal(Path(self.folder) / "records")


def hold(job: Job, context: RunContext) -> None:
    """Wait, deaf to any cancellation."""
    if job.seconds:
        threading.Event().wait(job.seconds)


def die(job: Job, context: RunContext) -> None:
    """Kill this process, whatever else runs in it."""
    hold(job, context)
    os.kill(os.getpid(), signal.SIGKILL)


def busy(job: Job, context: RunContext) -> None:
    """Keep the interpreter busy with Python code."""
    end = time.monotonic() + job.seconds
    while time.monotonic() < end:
        pass


def read_first(job: Job, context: RunContext) -> None:
    """Hold the GIL in one C call until the test writes to the FIFO, in the first attempt only."""
    if context.attempt == 1:
        file = os.open(job.fifo, os.O_RDONLY)
        libc = ctypes.PyDLL(None)  # unlike CDLL, it keeps the GIL during a call
        libc.read(file, ctypes.create_string_buffer(1), ctypes.c_size_t(1))
        os.close(file)


BODIES: dict[str, Callable[[Job, RunContext], None]] = {
    body.__name__: body for body in (hold, die, busy, read_first)
}


def run(job: Job, journal: Journal, context: RunContext) -> None:
    """Record, run the body, record."""
    named = (context.tenant, context.job_id, context.fire_at, context.attempt, context.fence)
    journal.append("start", *named)
    BODIES[job.body](job, context)
    journal.append("end", *named)


def note(journal: Journal, event: Event) -> None:
    """Record what this process is told of its runs."""
    if isinstance(event, FireEnded):
        journal.append("accepted", event.tenant, event.job_id, event.fire_at, event.attempt)
    elif isinstance(event, LeaseLost):
        journal.append("lost", event.tenant, event.job_id, event.fire_at, event.attempt)


def start(options: Options) -> Scheduler:
    """Initialise and register."""
    journal = options.journal
    made = scheduler.initialise(
        options.dsn,
        schema=options.schema,
        lease=options.lease,
        max_workers=options.workers,
        sync_every="5s",
        prepare=options.prepare,
    )
    made.subscribe(partial(note, journal))
    scheduler.register_many(
        Registration(
            tenant=job.tenant,
            job_id=job.job_id,
            fn=partial(run, job, journal),
            every=None if job.every is None else timedelta(seconds=job.every),
            start_at=job.start_at,
            delivery=job.delivery,
        )
        for job in options.jobs
    )
    return made


def live(options: Options) -> None:
    """Say that we are ready, wait for SIGTERM, drain."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    (Path(options.folder) / f"ready.{os.getpid()}").touch()
    while not stop.wait(1.0):
        pass
    scheduler.cancel(DRAIN)


def main(options: Options) -> None:
    """Run until told to stop; with `forks`, fork so many children first, as a preloading server
    does.
    """
    start(options)
    children = []
    for _ in range(options.forks):
        child = os.fork()
        if not child:
            scheduler.jobs()
            live(options)
            return
        children.append(child)
    waiting = [threading.Thread(target=_bury, args=(options, child)) for child in children]
    for thread in waiting:
        thread.start()
    live(options)
    for thread in waiting:
        thread.join()


def _bury(options: Options, child: int) -> None:
    _, status = os.waitpid(child, 0)
    (Path(options.folder) / f"ended.{child}").write_text(
        str(os.waitstatus_to_exitcode(status)), encoding="utf-8"
    )


def _end_with_stdin() -> None:
    while os.read(0, 1):
        pass
    os._exit(3)


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s"
    )
    main(Options.from_json(sys.argv[1]))
