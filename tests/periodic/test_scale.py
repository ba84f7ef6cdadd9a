"""10,000 jobs over 1,000 tenants: all of them are there, and no tenant sees or moves another's.

How long it takes is for `bench/recurring.py`.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from scheduler import Scheduler
from scheduler.events import Synced
from tests.conftest import MakeScheduler
from tests.support.recorder import Recorder

TENANTS = [f"tenant-{n:04d}" for n in range(1000)]
IDS = [f"job-{n}" for n in range(10)]  # the same in every tenant: only the tenant tells them apart
FAR = datetime(2100, 1, 1, tzinfo=UTC)


def nothing() -> None:
    pass


def register_all(instance: Scheduler) -> None:
    instance.register_many(
        {"tenant": tenant, "job_id": job_id, "fn": nothing, "every": "1h", "start_at": FAR}
        for job_id in IDS
        for tenant in TENANTS
    )


def others(instance: Scheduler, tenant: str) -> list[Any]:
    return [job for job in instance.jobs() if job.tenant != tenant]


def test_ten_thousand_jobs_of_a_thousand_tenants(
    make_scheduler: MakeScheduler, connection: psycopg.Connection[Any], recorder: Recorder
) -> None:
    first, second = recorder.listen(make_scheduler(sync_every="1s")), make_scheduler()
    register_all(first)
    rows = connection.execute(
        "SELECT tenant, id, xmin, ctid FROM job ORDER BY tenant, id"
    ).fetchall()
    register_all(second)
    assert Counter(row[0] for row in rows) == dict.fromkeys(TENANTS, 10)
    assert connection.execute("SELECT count(*) FROM job_lock").fetchone() == (10_000,)
    assert (
        connection.execute("SELECT tenant, id, xmin, ctid FROM job ORDER BY tenant, id").fetchall()
        == rows
    ), "found, and left alone"

    for instance in (first, second):
        instance._running().sync.sync()
        jobs = instance.jobs()
        assert [(job.tenant, job.job_id) for job in jobs] == [
            (tenant, job_id) for tenant in TENANTS for job_id in IDS
        ]
        assert all(job.runnable and job.next_run_at == FAR for job in jobs)
        for tenant in TENANTS[::100]:
            assert instance.jobs(tenant) == [job for job in jobs if job.tenant == tenant]
        assert instance.jobs("tenant-") == []

    one = TENANTS[500]
    before = others(first, one)
    second.unregister(one, "job-0")
    second.unregister(one, "job-1")
    second.register(one, "job-1", nothing, every="2h", start_at=FAR)
    recorder.wait(
        lambda: (
            recorder.of(Synced)[-1].jobs == 9_999 and first.jobs(one)[0].every == timedelta(hours=2)
        )
    )
    assert [job.job_id for job in first.jobs(one)] == IDS[1:]
    assert others(first, one) == before
    assert {entry.tenant for entry in first.history(one, limit=1000)} == {one}
    watching = make_scheduler(tenants=[one])
    assert [(job.tenant, job.job_id, job.runnable) for job in watching.jobs()] == [
        (one, job_id, False) for job_id in IDS[1:]
    ]
