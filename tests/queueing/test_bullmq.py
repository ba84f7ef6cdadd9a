"""Workers of ours on queues of BullMQ, filled by a producer of it."""

import threading
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

import orjson
import pytest
import redis as redis_py

import scheduler
from scheduler import RetryPolicy, Scheduler, State, Worker, handler
from scheduler.dialects.bullmq.add import NewJob, add
from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import BegunMark
from scheduler.dialects.queue_options import QueueOptions
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import ConfigError
from scheduler.recovery import orphaned_result
from tests.dialects.values import AT_ONCE, ended
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for

MAIL, OTHER = Keys("mail"), Keys("other")
SOON = RetryPolicy(backoff="constant", initial_delay="10ms", jitter=False)
CHECKS_AT_ONCE = QueueOptions(reaper=AT_ONCE)


@pytest.fixture
def dialect() -> str:
    return "bullmq"


def test_a_parent_in_another_queue_takes_the_place_that_is_free(
    redis: Client, make_worker: MakeWorker
) -> None:
    ended = threading.Event()

    @handler("child", queue="mail")
    def child(ctx: scheduler.JobContext, payload: object) -> None: ...

    @handler("parent", queue="other")
    def parent(ctx: scheduler.JobContext, payload: object) -> None:
        ended.set()

    make_worker(concurrency=1)
    took = []
    for _ in range(30):  # one that is quick is enough, on a busy machine too
        ended.clear()
        begun = time.monotonic()
        [above] = add(
            redis, OTHER, [NewJob(name="parent", children=True, options={"jobId": f"p-{begun}"})]
        )
        add(redis, MAIL, [NewJob(name="child", parent=(OTHER, above))])
        assert ended.wait(60)
        took.append(time.monotonic() - begun)
        if took[-1] < 0.5:
            break
    assert min(took) < 0.5, "whoever waited for a place looked again after a second"


def test_queues_of_one_worker_may_be_of_several_dialects(
    redis: Client, redis_server: EmbeddedRedis
) -> None:
    handler("one", queue="mail")(lambda _, payload: payload)
    handler("two", queue="other")(lambda _, payload: payload)
    worker = Worker(
        redis_server.url,
        ["mail", "other"],
        dialect={"other": {"dialect": "bullmq", "prefix": "jobs"}},
    )
    worker.start()
    try:
        job = add(redis, Keys("other", "jobs"), [NewJob(name="two", data=b"[1]")])[0]
        wait_for(
            lambda: redis.call("HGET", f"jobs:other:{job}", "returnvalue") == b"[1]", "it has run"
        )
    finally:
        worker.stop(grace=1)


def test_a_redelivered_lease_is_in_the_ledger_in_any_order_of_settling(
    dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis
) -> None:
    """The end of a charged lease is lost if an instance settles it after the end of its job. A
    redelivery has no end of its own.
    """
    queues = {"mail": {"dialect": "bullmq"}}
    with Scheduler(dsn, schema=schema, redis=redis_server.url, queues=queues) as feeder:
        made = feeder.submit("acme", "send", {}, queue="mail", retry=SOON)
        key = f"bull:mail:{made.id}"
        installation = wait_for(lambda: redis.call("HGET", key, "installation"), "it is fed")
    options: dict[str, Any] = {"installation": installation.decode(), "options": CHECKS_AT_ONCE}
    dead = BullMQQueue(redis, "mail", worker="dead", lease=timedelta(milliseconds=50), **options)
    assert len(dead.fetch(1, timeout=60, first=1, begun=BegunMark(1, 0))) == 1
    queue = BullMQQueue(redis, "mail", worker="w", **options)
    wait_for(lambda: queue.recover(orphaned_result) == 1, "it is redelivered")
    queue.outcomes(10, timeout=0.1)  # another instance has read what there is, and hangs
    [delivery] = queue.fetch(1, timeout=60)
    queue.finish([ended(delivery, uncharged=delivery.uncharged)])
    with Scheduler(dsn, schema=schema, redis=redis_server.url, queues=queues) as settler:
        job = settler.wait("acme", made.id, timeout=60)
    assert (job.state, job.attempt) == (State.COMPLETED, 2)
    assert job.attempts[-1]["uncharged"] == 1


def test_a_worker_that_stops_keeps_nothing_that_it_takes_meanwhile(
    redis: Client, redis_server: EmbeddedRedis, make_worker: MakeWorker
) -> None:
    handler("slow", queue="mail")(lambda *_: time.sleep(0.05))
    worker = make_worker()
    with closing(redis_py.Redis.from_url(redis_server.url)) as operator:
        wait_for(lambda: "bzpopmin" in str(operator.client_list()), "it waits")
        # At once: it is woken, and asks for the job while Redis is busy.
        head = orjson.dumps({"name": "slow", "id": "1"})
        together = operator.pipeline(transaction=False)
        together.eval(script("bullmq", "add").text, 1, MAIL.meta, "auto", "", head, b"{}", b"{}")
        together.eval("for i = 1, 4e7 do end", 0)
        asked = threading.Thread(target=together.execute)
        asked.start()
        rest(0.1)
        worker.stop(grace=0.0)
        asked.join()
        assert operator.llen("bull:mail:active") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dialect": "kafka"}, "dialects are standard, reliable, bullmq"),
        (
            {"dialect": "bullmq", "compat": "4"},
            "compat of 'mail' must be one of auto, 5, 6, not '4'",
        ),
        ({"dialect": "bullmq", "prefix": ""}, "prefix of 'mail' must be a text, not ''"),
        ({"dialect": "bullmq", "lease": "1s"}, "bullmq also has prefix, compat"),
        ({"dialect": "reliable", "prefix": "a"}, "dialects are standard, reliable, bullmq"),
    ],
)
def test_what_a_queue_is_told_is_checked(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scheduler.Scheduler(queues={"mail": options})


def test_a_child_that_its_queue_cannot_carry_is_refused(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    @handler("parent", queue="mail")
    def parent(ctx: scheduler.JobContext, payload: object) -> str:
        return str(ctx.submit("child", queue="other", retry=RetryPolicy(backoff="linear")).id)

    make_worker()
    job = ring.wait("acme", ring.submit("acme", "parent", queue="mail").id, timeout=60)
    assert job.state is State.COMPLETED
    child = ring.wait("acme", str(job.result), timeout=60)
    assert child.state is State.FAILED
    assert "queue 'other'" in (child.reason or "")
