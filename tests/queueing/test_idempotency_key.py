"""Handlers see the idempotency keys of their jobs, whichever way a job takes to its handler."""

import pytest

from scheduler import JobContext, NewJob, PermanentError, RetryPolicy, Scheduler, State, handler
from scheduler.config import DIALECTS
from scheduler.dialects.client import Client
from tests.queueing import children
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

QUICK = RetryPolicy(initial_delay="50ms", jitter=False)


@pytest.fixture(params=list(DIALECTS))
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_handlers_see_keys_in_threads_loops_and_processes(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    @handler("thread", queue="mail")
    def in_thread(ctx: JobContext, payload: object) -> list[object]:
        return [ctx.idempotency_key, "thread"]

    @handler("loop", queue="mail")
    async def on_loop(ctx: JobContext, payload: object) -> list[object]:
        return [ctx.idempotency_key, "loop"]

    handler("process", queue="mail", executor="process")(children.key)
    make_worker()
    kinds = ("thread", "loop", "process")
    keyed = [ring.submit("acme", kind, queue="mail", idempotency_key="o-7") for kind in kinds]
    plain = [ring.submit("acme", kind, queue="mail") for kind in kinds]
    results = [ring.wait("acme", each.id, timeout=60).result for each in (*keyed, *plain)]
    assert results == [[key, kind] for key in ("o-7", None) for kind in kinds]


def test_every_attempt_has_the_key_and_a_child_job_its_own(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    seen: list[tuple[str, int, str | None]] = []

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        seen.append((ctx.type, ctx.attempt, ctx.idempotency_key))
        if ctx.attempt == 1:
            raise ConnectionError
        ctx.submit("child", queue="mail", idempotency_key="of the child")

    @handler("child", queue="mail")
    def child(ctx: JobContext, payload: object) -> None:
        seen.append((ctx.type, ctx.attempt, ctx.idempotency_key))

    make_worker()
    ring.submit("acme", "mail", queue="mail", idempotency_key="k", retry=QUICK)
    wait_for(lambda: len(seen) == 3, "the child has run")
    assert seen == [("mail", 1, "k"), ("mail", 2, "k"), ("child", 1, "of the child")]


def test_jobs_keep_their_keys_when_redis_loses_its_data(
    ring: Scheduler, redis: Client, make_worker: MakeWorker
) -> None:
    seen: dict[object, str | None] = {}

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        seen[payload] = ctx.idempotency_key

    keys = ["a", None, "c", "d", None]
    made = ring.submit_many(
        [NewJob("acme", "mail", n, queue="mail", idempotency_key=key) for n, key in enumerate(keys)]
    )

    def are_fed() -> bool:
        services = ring._running().ring
        assert services is not None
        known = services.ring.queue("mail").known([str(each.id) for each in made])
        return all(each is not None for each in known)

    wait_for(are_fed, "all jobs are in Redis")
    redis.call("FLUSHALL")
    make_worker()
    for each in made:
        ring.wait("acme", each.id, timeout=60)
    assert seen == dict(enumerate(keys))


def test_retried_job_has_the_key_of_the_job_that_failed(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    seen: list[str | None] = []

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        seen.append(ctx.idempotency_key)
        if len(seen) == 1:
            raise PermanentError("no such address")

    make_worker()
    failed = ring.submit("acme", "mail", queue="mail", idempotency_key="k")
    assert ring.wait("acme", failed.id, timeout=60).idempotency_key == "k"
    retried = ring.retry_job("acme", failed.id)
    assert (retried.duplicate, ring.get("acme", retried.id).idempotency_key) == (False, "k")
    assert ring.wait("acme", retried.id, timeout=60).state is State.COMPLETED
    assert seen == ["k", "k"]
    assert ring.submit("acme", "mail", queue="mail", idempotency_key="k").id == failed.id
