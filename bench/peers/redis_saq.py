"""saq; many are concurrent calls for one each. Runs in an environment of its own."""

import asyncio

import jobs
from commands import URL
from queued import run
from saq import Queue, Worker

FOREVER = -1


async def noop(_, *, number):
    jobs.stamp(0, number)


async def connect():
    queue = Queue.from_url(URL, name="bench")
    await queue.connect()
    return queue


def send(queue, number):
    return queue.enqueue("noop", number=number, ttl=FOREVER)


def many(queue, numbers):
    return asyncio.gather(*(send(queue, number) for number in numbers))


async def work():
    await Worker(await connect(), functions=[noop], concurrency=20).start()


if __name__ == "__main__":
    run(
        "saq",
        connect=connect,
        send=send,
        many=many,
        work=work,
        left="redis.call('ZCARD', 'saq:bench:incomplete')",
        prefetch="0",
        setting="concurrency 20",
        gathers=True,
    )
