"""Ours. Also `bare JOBS BATCH`: the statements of claim and finish alone, without loop, threads and
bodies.
"""

import os
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import jobs
from commands import URL, WORKERS, main, ready, timed

from scheduler import Registration, Scheduler
from scheduler.model.definition import JobSpec, Key
from scheduler.model.outcomes import Outcome
from scheduler.model.schedules import Fire
from scheduler.model.schedules import due as decide
from scheduler.store.engine import Database
from scheduler.store.job import JobTable
from scheduler.store.job_lock import Finish, Holder, LockTable, Wanted

LEASE = os.environ.get("BENCH_LEASE", "30s")


def make(**settings):
    return Scheduler(URL, max_workers=WORKERS, **settings)


def definitions(prefix, count, due):
    first = datetime.fromtimestamp(due, UTC)
    body = jobs.hang if prefix == "hang" else jobs.stamp
    for n in range(count):
        yield Registration(
            tenant="bench",
            job_id=f"{prefix}{n}",
            fn=partial(body, due, n),
            every=timedelta(hours=1),
            start_at=first,
        )


def register(named):
    with make() as scheduler:
        return timed(lambda: scheduler.register_many(definitions(*named)))


def register_singly(named):
    def add(scheduler):
        for job in definitions(*named):
            scheduler.register(
                job.tenant, job.job_id, job.fn, every=job.every, start_at=job.start_at
            )

    with make() as scheduler:
        return timed(partial(add, scheduler))


def serve(*named):
    settings = {"lease": LEASE} if any(prefix == "hang" for prefix, *_ in named) else {}
    scheduler = make(**settings).start()
    scheduler.register_many([job for each in named for job in definitions(*each)])
    ready()


def bare(named, batch):
    """Claim and finish what is stored and due, batch by batch."""
    prefix, count, _ = named
    database = Database.open(URL, schema="scheduler", prepare=True)
    locks = LockTable(
        database, lambda: None, Holder(owner=uuid4(), label="bare", lease=timedelta(seconds=30))
    )
    rows = [
        row
        for row in JobTable(database, lambda: None).mirror(["bench"])
        if row.job_id.startswith(prefix)
    ][:count]
    now = datetime.now(UTC)
    wanted = []
    for row in rows:
        spec = JobSpec.from_json(row.spec)
        fire = decide(spec.schedule, spec.policy, seen=row.next_run_at, now=now)
        wanted.append(Wanted(Key(row.tenant, row.job_id), row.spec_hash, row.next_run_at, fire))
    wanted.sort(key=lambda want: want.key)
    claiming = finishing = 0.0
    for start in range(0, len(wanted), int(batch)):
        chunk = wanted[start : start + int(batch)]
        began = time.perf_counter()
        answers = locks.claim(chunk)
        claiming += time.perf_counter() - began
        if any(answer.verdict != "run" for answer in answers):
            raise RuntimeError(f"not every fire was claimed: {answers[0]}")
        ends = [
            Finish(
                chunk[at].key,
                fence,
                Fire(chunk[at].due.fire_at),
                1,
                Outcome.SUCCESS,
                None,
                now,
                now,
            )
            for at, _, fence, *_ in answers
        ]
        began = time.perf_counter()
        accepted = locks.finish(ends)
        finishing += time.perf_counter() - began
        if not all(accepted):
            raise RuntimeError("not every finish was accepted")
    return {
        "claim_s": claiming,
        "finish_s": finishing,
        "rate": len(wanted) / (claiming + finishing),
    }


if __name__ == "__main__":
    main(
        "singleton-scheduler",
        {"register": register, "register-singly": register_singly, "serve": serve, "bare": bare},
    )
