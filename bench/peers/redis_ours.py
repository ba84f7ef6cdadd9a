"""Ours without a ledger: pushed into a queue of BENCH_DIALECT, run by a Worker. Handlers are
BENCH_KIND.
"""

import os
from datetime import UTC, datetime, timedelta

import jobs
import orjson
from commands import URL, WORKERS
from queued import run

from scheduler import Worker, handler
from scheduler.dialects.client import Client
from scheduler.dialects.opening import open_queue
from scheduler.model.attempts import QueuedJob
from scheduler.model.ids import new_ids
from scheduler.model.labels import Priority

KIND = os.environ.get("BENCH_KIND", "sync")
DIALECT = os.environ.get("BENCH_DIALECT", "standard")
LEDGER, EPOCH = "bench", "1"  # ends go into the stream of a ledger, as they would with an instance
LEFT = f"redis.call('HLEN', '{'ring:bench' if DIALECT == 'conveyor' else 'jobqueue:{bench}'}:jobs')"
WEEK = timedelta(days=7)


@handler("sync", queue="bench")
def sync(_, number):
    jobs.stamp(0, number)


@handler("async", queue="bench")
async def coroutine(_, number):
    jobs.stamp(0, number)


def connect():
    queue = open_queue(Client(URL), "bench", {"dialect": DIALECT}, installation=LEDGER)
    queue.begin(EPOCH)
    return queue


def made(numbers):
    """As `submit` makes them: jobs of one call share their instant."""
    now = datetime.now(UTC)
    return [
        QueuedJob(
            str(key),
            "bench",
            KIND,
            "bench",
            Priority.NORMAL,
            1,
            0,
            "json",
            orjson.dumps(number),
            None,
            None,
            None,
            now,
            now + WEEK,
            LEDGER,
        )
        for key, number in zip(new_ids(len(numbers)), numbers, strict=True)
    ]


def send(queue, number):
    queue.push(made([number]), epoch=EPOCH)


def many(queue, numbers):
    queue.push(made(numbers), epoch=EPOCH)


def work():
    Worker(URL, ["bench"], dialect=DIALECT, concurrency=WORKERS).run()


if __name__ == "__main__":
    run(
        "singleton-scheduler",
        connect=connect,
        send=send,
        many=many,
        work=work,
        left=LEFT,
        prefetch="0",
        setting=f"{KIND} handler, concurrency {WORKERS}",
    )
