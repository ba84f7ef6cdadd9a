"""arq, which polls; many are concurrent calls for one each. Runs in an environment of its own."""

import asyncio

import jobs
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker
from commands import URL
from queued import run

AT_ONCE = 100
CONNECTIONS = 20
POLL_S = 0.01


async def noop(_, number):
    jobs.stamp(0, number)


def settings():
    found = RedisSettings.from_dsn(URL)
    found.max_connections = CONNECTIONS
    return found


def connect():
    return create_pool(settings())


def send(pool, number):
    return pool.enqueue_job("noop", number)


async def many(pool, numbers):
    gate = asyncio.Semaphore(CONNECTIONS)

    async def one(number):
        async with gate:
            await send(pool, number)

    await asyncio.gather(*map(one, numbers))


async def work():
    worker = Worker(
        functions=[noop],
        redis_settings=settings(),
        max_jobs=AT_ONCE,
        poll_delay=POLL_S,
        keep_result=0,
        handle_signals=False,
    )
    await worker.async_run()


if __name__ == "__main__":
    run(
        "arq",
        connect=connect,
        send=send,
        many=many,
        work=work,
        left="redis.call('ZCARD', 'arq:queue')",
        prefetch="0",
        setting=f"{AT_ONCE} at once, polls every {POLL_S * 1000:g} ms",
        gathers=True,
    )
