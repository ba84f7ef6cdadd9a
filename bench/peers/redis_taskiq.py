"""taskiq with its stream broker; many are concurrent calls for one each. Runs in an environment of
its own.
"""

import asyncio

import jobs
from commands import URL
from queued import run
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

AT_ONCE = 500
CONNECTIONS = 20
# The stream keeps what was acknowledged: those that nobody has read yet, and those read and not
# acknowledged.
LEFT = "(function() local group = redis.call('XINFO', 'GROUPS', 'bench')[1] return group[12] + group[6] end)()"


def make():
    broker = RedisStreamBroker(URL, queue_name="bench", max_connection_pool_size=CONNECTIONS)

    @broker.task(task_name="noop")
    async def noop(number):
        jobs.stamp(0, number)

    return broker, noop


async def connect():
    broker, noop = make()
    await broker.startup()
    return noop


def send(noop, number):
    return noop.kiq(number)


async def many(noop, numbers):
    gate = asyncio.Semaphore(CONNECTIONS)

    async def one(number):
        async with gate:
            await noop.kiq(number)

    await asyncio.gather(*map(one, numbers))


async def work():
    await run_receiver_task(
        make()[0], run_startup=True, max_async_tasks=AT_ONCE, max_prefetch=AT_ONCE
    )


if __name__ == "__main__":
    run(
        "taskiq-redis",
        connect=connect,
        send=send,
        many=many,
        work=work,
        left=LEFT,
        prefetch=f"{AT_ONCE}, and a read of the stream",
        setting=f"streams, {AT_ONCE} at once",
        gathers=True,
    )
