"""pgqueuer on a pool of asyncpg. Runs in an environment of its own."""

import asyncpg
import jobs
from commands import URL
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries
from queued import run

BATCH = 500


async def driver():
    return AsyncpgPoolDriver(await asyncpg.create_pool(URL, min_size=2, max_size=10))


async def connect():
    queries = Queries(await driver())
    if (await queries.driver.fetch("SELECT to_regclass('pgqueuer') AS found"))[0]["found"] is None:
        await queries.install()
    return queries


def send(queries, number):
    return queries.enqueue("noop", str(number).encode())


def many(queries, numbers):
    return queries.enqueue(
        ["noop"] * len(numbers), [str(each).encode() for each in numbers], [0] * len(numbers)
    )


async def work(*_):
    await connect()
    worker = PgQueuer(await driver())

    @worker.entrypoint("noop")
    async def noop(job):
        jobs.stamp(0, int(job.payload))

    await worker.run(batch_size=BATCH)


if __name__ == "__main__":
    run(
        "pgqueuer",
        connect=connect,
        send=send,
        many=many,
        work=work,
        left="SELECT count(*) FROM pgqueuer",
        prefetch=f"{BATCH}, a batch",
        setting=f"batches of {BATCH}",
    )
