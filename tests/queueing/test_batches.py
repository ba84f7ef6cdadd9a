"""submit_many: large batches, which go out in parts, and batches of jobs that differ; all of a
call, or nothing.
"""

import dataclasses
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from scheduler import InvalidOption, InvalidPayload, NewJob, Priority, RetryPolicy, StoreError
from scheduler.model.fairness import Share
from scheduler.queueing.calls import PART
from scheduler.testing import START, Scheduler
from tests.queueing.conftest import fed, steps

HOUR = timedelta(hours=1)


def test_a_large_batch_goes_out_in_parts_and_is_there_in_order_and_whole(
    instance: Scheduler,
) -> None:
    made = instance.submit_many(NewJob("acme", "x", n) for n in range(3 * PART + 1))
    assert [job.duplicate for job in made] == [False] * len(made)
    table = instance._running().queue
    rows = steps(instance, fed(table, "default", [Share(Priority.NORMAL, "acme", 10_000)]))
    assert [row[1] for row in rows] == [job.id for job in made]


@pytest.mark.parametrize("wrong", [{"payload": {1, 2}}, {"timeouts": "long"}, {"tags": {"a": 1}}])
def test_a_large_batch_with_one_wrong_job_leaves_nothing(
    instance: Scheduler, wrong: dict[str, Any]
) -> None:
    batch = [NewJob("acme", "x", n) for n in range(3 * PART)]
    batch[-1] = dataclasses.replace(batch[-1], **wrong)
    with pytest.raises((InvalidPayload, InvalidOption)):
        instance.submit_many(batch)
    assert instance.find("acme").jobs == ()
    instance.submit("acme", "x")


def test_a_large_batch_that_the_server_refuses_leaves_nothing(
    instance: Scheduler, own: psycopg.Connection[Any]
) -> None:
    own.execute(
        "ALTER TABLE job_queue ADD CONSTRAINT small CHECK (octet_length(payload) < 1000) NOT VALID"
    )
    own.commit()
    batch = [NewJob("acme", "x", n) for n in range(3 * PART)]
    batch[PART] = NewJob("acme", "x", "y" * 2000)
    with pytest.raises(StoreError, match="small"):
        instance.submit_many(batch)
    assert instance.find("acme").jobs == ()
    assert len(instance.submit_many(batch[:PART])) == PART


@pytest.mark.parametrize("differ", ["tenants", "options", "alike"])
def test_jobs_of_a_batch_are_as_submitted_however_much_they_differ(
    instance: Scheduler, differ: str
) -> None:
    options: list[dict[str, Any]] = [
        {"tags": {"a": "1"}, "correlation_id": "c", "callback_url": "https://example.com/"},
        {"delay": "1h"},
        {},
        {"priority": Priority.LOW, "retry": RetryPolicy(max_attempts=2)},
        {"run_at": START, "queue": "mail"},
    ]
    batch = [
        NewJob(
            f"acme{n % 7}" if differ == "tenants" else "acme",
            "x",
            n,
            **options[n % 5 if differ == "options" else 0],
        )
        for n in range(50)
    ]
    for new, made in zip(batch, instance.submit_many(batch), strict=True):
        job = instance.get(new.tenant, made.id)
        assert (job.payload, job.tags, job.correlation_id) == (
            new.payload,
            new.tags or {},
            new.correlation_id,
        )
        assert (job.callback_url, job.priority, job.queue) == (
            new.callback_url,
            new.priority,
            new.queue,
        )
        assert job.retry.max_attempts == new.retry.max_attempts
        assert job.run_at == START + (HOUR if new.delay else timedelta(0))
