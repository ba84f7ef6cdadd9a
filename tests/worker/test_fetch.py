"""Whose jobs a worker takes first, and whose it takes at all."""

from typing import Any

import pytest

from scheduler import ConfigError, JobContext, Priority, handler
from scheduler.dialects.client import Client
from scheduler.dialects.standard.queue import StandardQueue
from tests.dialects.values import job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for


@pytest.mark.parametrize(("fetch", "starves"), [("strict", True), ("weighted", False)])
def test_a_bulk_job_behind_an_endless_stream_of_critical_ones(
    redis: Client, make_worker: MakeWorker, fetch: str, *, starves: bool
) -> None:
    queue = StandardQueue(redis, "mail", installation="3f1e")
    ran: list[str] = []

    def push(priority: Priority, n: int) -> None:
        kind = "slow" if priority is Priority.BULK else "mail"
        queue.push([job(type=kind, priority=priority, installation="") for _ in range(n)], epoch="")

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: Any) -> None:
        push(Priority.CRITICAL, 1)
        ran.append("critical")

    @handler("slow", queue="mail")
    def slow(ctx: JobContext, payload: Any) -> None:
        ran.append("bulk")

    push(Priority.CRITICAL, 3000)  # more than it holds at once
    push(Priority.BULK, 1)
    make_worker(fetch=fetch, concurrency=2)
    wait_for(lambda: len(ran) >= 500, "many run")
    assert ("bulk" in ran) is not starves


def test_a_fetch_is_strict_or_weighted(make_worker: MakeWorker) -> None:
    handler("mail", queue="mail")(print)
    with pytest.raises(ConfigError, match='fetch: must be "strict" or "weighted", not \'fair\''):
        make_worker(fetch="fair")
