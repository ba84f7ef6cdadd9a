"""bullmq for Python. Runs in an environment of its own."""

import asyncio
import os

import jobs
from bullmq import Queue, Worker
from commands import URL
from queued import run

OPTIONS = {"removeOnComplete": True}
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "10"))
LEFT = "redis.call('LLEN', 'bull:bench:wait') + redis.call('LLEN', 'bull:bench:active')"


async def connect():
    return Queue("bench", {"connection": URL})


def send(queue, number):
    return queue.add("noop", {"number": number}, OPTIONS)


def many(queue, numbers):
    return queue.addBulk(
        [{"name": "noop", "data": {"number": number}, "opts": OPTIONS} for number in numbers]
    )


async def noop(job, _):
    jobs.stamp(0, job.data["number"])


async def work():
    worker = Worker("bench", noop, {"connection": URL, "concurrency": CONCURRENCY})
    await asyncio.Event().wait()
    await worker.close()


if __name__ == "__main__":
    run(
        "bullmq",
        connect=connect,
        send=send,
        many=many,
        work=work,
        left=LEFT,
        prefetch="0",
        setting=f"concurrency {CONCURRENCY}",
    )
