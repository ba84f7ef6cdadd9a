"""The script that each process of the ring's proofs runs: an instance that feeds and settles, or a
worker.

It ends by itself when its standard input does: no process outlives the test that started it.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import scheduler.queueing.settler
import scheduler.queueing.upkeep
from scheduler import JobContext, Scheduler, Timeouts, Worker, handler
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.interface import Delivery, Result
from scheduler.dialects.queue_options import QueueOptions
from scheduler.dialects.standard.keys import Keys
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.model.reaper import ReaperRule
from tests.support.lines import append
from tests.support.ring_mutants import mutate
from tests.support.ring_points import Points

SLICE = 0.02
LONG = 3_600_000_000  # microseconds
OWN = "own"  # a tag of what an instance of a fleet submits itself
QUIET = "quiet"  # a file of a fleet that waits for the end of all jobs
UNMARKED = "odd-unmarked"  # a queue whose Redis forgets its mark again and again


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one process is told. `hasty`: it looks soon for what the dead hold; None leaves all as
    it is by default.
    """

    role: str
    dsn: str
    schema: str
    redis: str
    folder: str
    queue: str = "work"
    dialect: str = "standard"
    lease: str = "30s"
    concurrency: int = 50
    workers: int = 1
    hasty: float | None = None
    points: bool = False
    submits: bool = False
    spare: bool = False
    fault: str = ""
    times: int = 1
    mutant: str = ""

    def to_json(self) -> str:
        """Write it for the command line."""
        return json.dumps(asdict(self))

    @property
    def journal(self) -> Path:
        """The file of what handlers did, and of ends that Redis took."""
        return Path(self.folder) / "journal"


def note(options: Options, what: str, job_id: str, attempt: int) -> None:
    """Write a line into the journal."""
    append(options.journal, f"{what} {job_id} {attempt} {os.getpid()} {time.monotonic():.6f}")


def be_hasty(seconds: float) -> None:
    """Shorten what is waited for before the work of the dead is taken up."""
    scheduler.queueing.settler.PATIENCE = 1.0
    scheduler.queueing.upkeep.YOUNG_US = (1_000_000, 60_000_000)
    defaults: dict[str, Any] = QueueOptions.__init__.__kwdefaults__  # type: ignore[assignment]
    defaults["settler_silence"] = timedelta(seconds=max(1.0, seconds))


def note_accepted(options: Options) -> None:
    """Write down each end of a job that Redis took from this process."""
    kinds: dict[str, type[Any]] = {
        "bullmq": BullMQQueue,
        "conveyor": ConveyorQueue,
        "standard": StandardQueue,
    }
    kind = kinds[options.dialect]
    plain = kind.finish

    def finish(
        queue: Any, results: Sequence[Result], **fetching: Any
    ) -> tuple[list[bool], list[Delivery]]:
        accepted, taken = plain(queue, results, **fetching)
        for result, taken_over in zip(results, accepted, strict=True):
            if taken_over and result.end is not None and result.end.state.terminal:
                note(options, "accepted", result.delivery.job.id, result.delivery.attempt)
        return accepted, taken

    kind.finish = finish


def body(options: Options, ctx: JobContext, payload: dict[str, Any]) -> dict[str, int]:
    """Fail as often as one is told, else take the time that one is told."""
    note(options, "start", ctx.id, ctx.attempt)
    for _ in range(round(payload.get("seconds", 0) / SLICE)):
        threading.Event().wait(SLICE)  # in slices: who is stopped meanwhile has the rest before him
    note(options, "end", ctx.id, ctx.attempt)
    if ctx.attempt <= payload.get("fails", 0):
        ctx.checkpoint(ctx.attempt)
        raise ValueError(f"not yet, {ctx.attempt}")
    return {"attempt": ctx.attempt}


def submit(options: Options, instance: Scheduler, stop: threading.Event) -> None:
    """Submit jobs, which may go straight into Redis; some of them to a queue that has just
    forgotten its mark.
    """
    client = Client(options.redis)
    number = 0
    while not stop.wait(0.1):
        if (Path(options.folder) / QUIET).exists():
            continue
        number += 1
        instance.submit("acme", "job", {}, queue=options.queue, tags={OWN: "1"})
        if number % 5 == 0:
            ring = instance._running().ring
            assert ring is not None
            soon = Timeouts(lifetime="3s")
            instance.submit("acme", "job", {}, queue=UNMARKED, tags={OWN: "1"}, timeouts=soon)
            client.call("UNLINK", Keys.from_queue(UNMARKED).epoch(ring._ledger.installation))
            instance.submit("acme", "job", {}, queue=UNMARKED, tags={OWN: "1"}, timeouts=soon)


def queues_of(options: Options) -> list[str]:
    """Name the queues of a worker: one that has several waits in another way."""
    return [options.queue, f"{options.queue}-spare"] if options.spare else [options.queue]


def main(options: Options) -> None:
    """Work until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    if options.hasty is not None:
        be_hasty(options.hasty)
    if options.mutant:
        mutate(options.mutant)
        scheduler.queueing.upkeep.YOUNG_US = (
            LONG,
            LONG,
        )  # what a wrong copy loses is not found again
    if options.role == "worker":
        note_accepted(options)
        for queue in queues_of(options):
            handler("job", queue=queue)(lambda ctx, payload: body(options, ctx, payload))
    reaper = ReaperRule()
    if options.hasty is not None:
        reaper = ReaperRule(interval=timedelta(seconds=options.hasty))
    workers = (
        []
        if options.role != "worker"
        else [
            Worker(
                options.redis,
                queues_of(options),
                dialect=options.dialect,
                lease=options.lease,
                concurrency=options.concurrency,
                reaper=reaper,
            )
            for _ in range(options.workers)
        ]
    )

    def dying(name: str) -> None:
        flight = sum(len(each.in_flight) for worker in workers for each in worker._consumers)
        append(Path(options.folder) / "died", f"{os.getpid()} {flight} {name}")

    if options.points:
        points = Path(options.folder) / "points"
        Points(options.role, options.schema, points, options.fault, options.times, dying).install()
    instance = None
    if options.role == "instance":
        queues = {options.queue: {"dialect": options.dialect}}
        instance = Scheduler(
            options.dsn, schema=options.schema, redis=options.redis, queues=queues, reaper=reaper
        ).start()
    for worker in workers:
        worker.start()
    if instance is not None and options.submits:
        threading.Thread(target=submit, args=(options, instance, stop), daemon=True).start()
    (Path(options.folder) / f"ready.{os.getpid()}").touch()
    stop.wait()
    for worker in workers:
        worker.stop(grace=5.0)
    if instance is not None:
        instance.cancel(timeout=5.0)


def _end_with_stdin() -> None:
    while os.read(0, 1):
        pass
    os._exit(3)


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s"
    )
    main(Options(**json.loads(sys.argv[1])))
