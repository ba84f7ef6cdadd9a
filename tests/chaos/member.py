"""The script of each process under attack: an instance, a worker, or a submitter. It writes down
what it does.

It ends by itself when its standard input does: no process outlives the run that started it.
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
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from scheduler import (
    JobContext,
    PermanentError,
    Registration,
    Scheduler,
    SchedulerError,
    Worker,
    handler,
)
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.interface import Delivery, Result
from scheduler.dialects.queue_options import QueueOptions
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.model.reaper import ReaperRule
from scheduler.worker.attempt import Attempt
from tests.chaos.diary import Diary
from tests.chaos.orders import PATIENT, SCHEMA, SLOW_TYPE, TENANT, TYPE, VISIBLE, Submitter
from tests.chaos.plan import CONCURRENCY, LEASE, QUEUES
from tests.support.instance import Job, note, run
from tests.support.records import Journal

_lease = threading.local()  # at: when the job of this thread was leased
KINDS: tuple[Any, ...] = (StandardQueue, BullMQQueue, ConveyorQueue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one process is told. `silence`: after how long what a dead settler had read is taken up
    by others.
    """

    slot: str
    dsn: str
    redis: str
    folder: str
    seed: str
    jobs: int
    crons: int
    first: datetime
    rate: float
    silence: float

    def to_json(self) -> str:
        """Write it for the command line."""
        return json.dumps(asdict(self), default=datetime.isoformat)

    @classmethod
    def from_json(cls, text: str) -> "Options":
        """Read what `to_json` wrote."""
        data = json.loads(text)
        return cls(**{**data, "first": datetime.fromisoformat(data["first"])})


def fires(options: Options) -> list[Job]:
    """The recurring jobs with a function: one fire a second each, spread over it; some take their
    time.
    """
    count = options.jobs
    return [
        Job(
            job_id=f"fire-{n:04d}",
            start_at=options.first + timedelta(seconds=n / count),
            every=1.0,
            seconds=0.2 if n % 10 == 0 else 0.0,
            tenant=TENANT,
        )
        for n in range(count)
    ]


def feeds(options: Options) -> list[Job]:
    """The recurring jobs with a queue: each of their fires becomes a submitted job."""
    return [
        Job(
            job_id=f"feed-{n:04d}",
            start_at=options.first + timedelta(seconds=n / 10),
            every=1.0,
            tenant=TENANT,
        )
        for n in range(options.crons)
    ]


def instance(options: Options, stop: threading.Event) -> None:
    """Fire, feed and settle."""
    made = Scheduler(
        options.dsn,
        schema=SCHEMA,
        redis=options.redis,
        queues=QUEUES,
        lease=f"{LEASE}s",
        sync_every="5s",
        max_workers=32,
        retention=None,
    )
    journal = Journal(Path(options.folder) / f"{options.slot}.{os.getpid()}.fires")
    made.subscribe(partial(note, journal))
    patiently(made.start, stop)
    every = timedelta(seconds=1)
    own = [
        Registration(
            tenant=TENANT,
            job_id=job.job_id,
            fn=partial(run, job, journal),
            every=every,
            start_at=job.start_at,
        )
        for job in fires(options)
    ]
    fed = [
        Registration(
            tenant=TENANT,
            job_id=job.job_id,
            queue="work",
            type=TYPE,
            payload={},
            every=every,
            start_at=job.start_at,
            retry=PATIENT,
            timeouts=VISIBLE,
        )
        for job in feeds(options)
    ]
    patiently(lambda: made.register_many([*own, *fed]), stop)
    ready(options)
    stop.wait()
    made.cancel(timeout=30.0)


def work(options: Options, stop: threading.Event) -> None:
    """Run the jobs of all queues."""
    diary = Diary(Path(options.folder), options.slot)
    note_accepted(diary)
    note_leases()
    workers = []
    for queue, dialect in QUEUES.items():
        handler(TYPE, queue=queue)(partial(body, diary))
        handler(SLOW_TYPE, queue=queue, concurrency=2)(partial(body, diary))
        workers.append(
            Worker(
                options.redis,
                [queue],
                dialect=dialect["dialect"],
                lease=f"{LEASE}s",
                concurrency=CONCURRENCY,
                reaper=ReaperRule(interval=timedelta(seconds=1)),
            )
        )
    for worker in workers:
        worker.start()
    ready(options)
    stop.wait()
    for worker in workers:
        worker.stop(grace=5.0)


def submit(options: Options, stop: threading.Event) -> None:
    """Submit jobs in transactions of one's own, and some by calls that commit by themselves."""
    made = Scheduler(
        options.dsn,
        schema=SCHEMA,
        redis=options.redis,
        queues=QUEUES,
        sync_every="5s",
        retention=None,
    )
    patiently(made.start, stop)
    ready(options)
    Submitter(
        made, options.dsn, Diary(Path(options.folder), options.slot), options.seed, options.rate
    ).run(stop)
    made.cancel(timeout=5.0)


def body(diary: Diary, ctx: JobContext, payload: dict[str, Any]) -> dict[str, int]:
    """Take the time that one is told, and fail, or kill this process, as one is told."""
    diary.start(ctx, _lease.at)
    if payload.get("seconds"):
        time.sleep(payload["seconds"])
    if payload.get("poison"):
        diary.job("poison", ctx.id, ctx.attempt)
        os.kill(os.getpid(), signal.SIGKILL)
    fails = payload.get("fails", 0)
    if fails < 0 or ctx.attempt <= fails:
        diary.job("fail", ctx.id, ctx.attempt)
        raise PermanentError("never") if fails < 0 else ValueError("not yet")
    diary.job("end", ctx.id, ctx.attempt)
    return {"attempt": ctx.attempt}


def note_leases() -> None:
    """Remember when the job of a thread was leased, by Redis's clock."""
    plain = Attempt.context

    def context(attempt: Attempt) -> JobContext:
        _lease.at = attempt.delivery.started_at.timestamp()
        return plain(attempt)

    Attempt.context = context  # type: ignore[assignment, method-assign]


def note_accepted(diary: Diary) -> None:
    """Write down each end of a job that Redis took from this process."""
    for kind in KINDS:
        kind.finish = _noting(diary, kind.finish)


def _noting(diary: Diary, plain: Any) -> Any:
    def finish(
        queue: Any, results: Sequence[Result], **fetching: Any
    ) -> tuple[list[bool], list[Delivery]]:
        accepted, taken = plain(queue, results, **fetching)
        for result, taken_over in zip(results, accepted, strict=True):
            if taken_over and result.end is not None:
                delivery, what = (
                    result.delivery,
                    "closed" if result.end.state.terminal else "accepted",
                )
                diary.job(what, delivery.job.id, delivery.attempt, delivery.job.feed)
        return accepted, taken

    return finish


def patiently(call: Any, stop: threading.Event) -> None:
    """Call until the servers are there."""
    while not stop.is_set():
        try:
            call()
        except SchedulerError as error:
            if not error.retryable:
                raise
            stop.wait(0.2)
        else:
            return


def ready(options: Options) -> None:
    """Say that we work."""
    (Path(options.folder) / f"{options.slot}.{os.getpid()}.ready").touch()


ROLES = {"instance": instance, "worker": work, "submitter": submit}


def main(options: Options) -> None:
    """Work until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    silence = timedelta(seconds=options.silence)
    defaults: Any = QueueOptions.__init__.__kwdefaults__
    defaults["settler_silence"] = silence
    ROLES[options.slot.split("-")[0]](options, stop)


def _end_with_stdin() -> None:
    while os.read(0, 1):
        pass
    os._exit(3)


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(message)s"
    )
    main(Options.from_json(sys.argv[1]))
