"""Ours in BullMQ's protocol: its client for Python sends, a Worker of that dialect works. Handlers
are BENCH_KIND. A job with "seconds" is slow.
"""

import asyncio
import os
import time

import jobs
from commands import URL, WORKERS
from queued import run

from scheduler import Worker, handler
from scheduler.bullmq import NewJob, Queue

KIND = os.environ.get("BENCH_KIND", "sync")
LEFT = "redis.call('LLEN', 'bull:bench:wait') + redis.call('LLEN', 'bull:bench:active')"


@handler("sync", queue="bench")
def sync(_, data):
    jobs.stamp(0, data["number"])
    if "seconds" in data:
        time.sleep(data["seconds"])


@handler("async", queue="bench")
async def coroutine(_, data):
    jobs.stamp(0, data["number"])
    if "seconds" in data:
        await asyncio.sleep(data["seconds"])


def connect():
    return Queue("bench", URL)


def send(queue, number):
    queue.add(KIND, {"number": number}, removeOnComplete=True)


def many(queue, numbers):
    queue.add_many([NewJob(KIND, {"number": number}, removeOnComplete=True) for number in numbers])


def work():
    Worker(URL, ["bench"], dialect="bullmq", concurrency=WORKERS).run()


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
