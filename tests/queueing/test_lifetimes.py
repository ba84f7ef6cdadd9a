"""Lifetimes of jobs that are submitted for later."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from scheduler import NewJob, Scheduler, State, Timeouts, handler
from scheduler.testing import Scheduler as ManualScheduler
from tests.queueing.conftest import MakeWorker

START = datetime(2030, 1, 1, tzinfo=UTC)  # of the scheduler whose time the test moves
WEEK = timedelta(days=7)
SHIFT = (
    "UPDATE job_queue SET run_at = run_at - %(by)s, created_at = created_at - %(by)s,"
    " updated_at = updated_at - %(by)s, expires_at = expires_at - %(by)s",
    "UPDATE job_ready SET run_at = run_at - %(by)s",
)


@pytest.mark.parametrize("count", [1, 3])
def test_a_lifetime_begins_when_the_job_can_run(instance: ManualScheduler, count: int) -> None:
    later, earlier = START + timedelta(days=30), START - timedelta(days=30)
    for options in ({"run_at": later}, {"delay": "30d"}, {}, {"run_at": earlier}):
        jobs = [NewJob("acme", "job", n, **options) for n in range(count)]
        for each in instance.submit_many(jobs):
            job = instance.get("acme", each.id)
            assert job.expires_at == max(job.run_at, job.created_at) + WEEK
    first = NewJob("acme", "first")
    second = NewJob("acme", "second", after=[first], delay="30d", timeouts=Timeouts(lifetime="1h"))
    _, made = instance.submit_many([first, second])
    job = instance.get("acme", made.id)
    assert job.expires_at == job.run_at + timedelta(hours=1)


def test_a_job_thirty_days_ahead_runs(
    ring: Scheduler, make_worker: MakeWorker, connection: psycopg.Connection[Any]
) -> None:
    handler("mail", queue="mail")(lambda ctx, payload: "sent")
    made = ring.submit("acme", "mail", queue="mail", delay="30d")
    for statement in SHIFT:
        connection.execute(statement.encode(), {"by": timedelta(days=30)})
    make_worker()
    job = ring.wait("acme", made.id, timeout=60)
    assert (job.state, job.result) == (State.COMPLETED, "sent")
