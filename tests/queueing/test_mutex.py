"""No lock of the ring is held across I/O: not across a command of Redis, a statement, or anybody's
code.
"""

import asyncio

import pytest

import scheduler
from scheduler import NewJob, Scheduler, State, Worker, handler
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.events import Event
from scheduler.observe.metrics import Metrics
from scheduler.store.engine import BoundedConnection
from scheduler.worker.executor import Executor
from tests.periodic.test_mutex import RING
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for
from tests.support.watch import Watch

STARTING = {"scheduler.app.Scheduler": "scheduler.app.Scheduler._start"}


def test_no_lock_of_the_ring_is_held_across_io(
    dsn: str,
    schema: str,
    redis: Client,
    redis_server: EmbeddedRedis,
    make_worker: MakeWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch(STARTING)
    watch.begin(monkeypatch)
    for owner, name in (
        (BoundedConnection, "wait"),
        (Client, "run"),
        (Client, "call"),
        (Client, "wait"),
    ):
        watch.over(owner, name, monkeypatch)

    def listener(event: Event) -> None:
        watch.slow("a listener")

    @handler("sync", queue="mail", concurrency=2)
    def sync(ctx: scheduler.JobContext, payload: object) -> None:
        watch.slow("a handler")
        ctx.progress(50)
        if ctx.attempt == 1:
            raise ValueError

    @handler("async", queue="mail")
    async def run(ctx: scheduler.JobContext, payload: object) -> None:
        watch.slow("an async handler")
        await asyncio.sleep(0)

    instance = Scheduler(
        dsn, schema=schema, redis=redis_server.url, callback_secret="a secret of sixteen"
    )
    instance.subscribe(listener)
    worker: Worker = make_worker(breaker=scheduler.BreakerRule(min_samples=10_000))
    metrics = Metrics(["mail"]).watch(instance).watch(worker)
    with instance:
        kinds = ["sync", "async"] * 20
        retry = scheduler.RetryPolicy(initial_delay="10ms")
        url = "http://127.0.0.1:1/"
        made = instance.submit_many(
            [NewJob("acme", kind, queue="mail", retry=retry, callback_url=url) for kind in kinds]
        )
        redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        for each in made:
            assert instance.wait("acme", each.id, timeout=60).state is State.COMPLETED
        later = instance.submit("acme", "sync", queue="mail", delay="1h")
        instance.cancel_job("acme", later.id)
        redis.call("FLUSHALL")
        last = instance.submit("acme", "sync", queue="mail", retry=retry)
        assert instance.wait("acme", last.id, timeout=60).state is State.COMPLETED
        assert list(metrics.collect())

        def all_taken() -> bool:
            instance.submit_many(
                [NewJob("acme", "async", number, queue="mail") for number in range(100)]
            )
            return watch.taken >= RING

        wait_for(all_taken, "every lock of the ring is taken", every=0.2)
        worker.stop(grace=1)
    assert watch.violations == []


def test_a_command_under_a_lock_is_seen(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch({})
    watch.begin(monkeypatch)
    watch.over(Client, "call", monkeypatch)
    executor = Executor(1)
    with executor.lock:
        redis.call("PING")
    held = "Client.call while scheduler.worker.executor.Executor is held"
    assert watch.violations[0].startswith(held)
