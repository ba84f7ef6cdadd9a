"""A worker alone on its queue: what it takes, and when."""

import threading
import time

import scheduler
from scheduler import handler
from scheduler.dialects.client import Client
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.embedded.redis import EmbeddedRedis
from tests.dialects.values import job
from tests.queueing.conftest import MakeWorker


def test_a_job_that_comes_while_an_end_is_sent_is_taken_at_once(
    redis: Client, redis_server: EmbeddedRedis, make_worker: MakeWorker
) -> None:
    ran = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.set()

    make_worker()
    queue = ReliableQueue(Client(redis_server.url), "mail")
    for _ in range(500):  # each comes while the end of the one before is on its way
        ran.clear()
        pushed = time.monotonic()
        queue.push([job(installation="", type="mail")], epoch="")
        assert ran.wait(10)
        assert time.monotonic() - pushed < 2.0
