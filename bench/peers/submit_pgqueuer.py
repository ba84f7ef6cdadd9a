"""pgqueuer on one asyncpg connection, with uvloop. Runs in an environment of its own."""

import asyncpg
import orjson
import uvloop
from commands import URL
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from submissions import ORDER, ORDERS, acounted, payload, run


async def connect():
    connection = await asyncpg.connect(URL)
    queries = Queries(AsyncpgDriver(connection))
    if await connection.fetchval("SELECT to_regclass('pgqueuer')") is None:
        await queries.install()
    return connection, queries


async def single(count):
    _, queries = await connect()
    return await acounted(
        lambda number: queries.enqueue("mail", orjson.dumps(payload(number))), count
    )


async def inside(count):
    connection, queries = await connect()
    await connection.execute(ORDERS)

    async def one(number):
        async with connection.transaction():
            await connection.execute(ORDER)
            await queries.enqueue("mail", orjson.dumps(payload(number)))

    return await acounted(one, count)


async def many(batches, size):
    _, queries = await connect()

    async def one(_):
        payloads = [orjson.dumps(payload(number)) for number in range(size)]
        await queries.enqueue(["mail"] * size, payloads, [0] * size)

    return await acounted(one, batches, warm=2)


def awaited(function):
    return lambda *numbers: uvloop.run(function(*numbers))


if __name__ == "__main__":
    run("pgqueuer", {"single": awaited(single), "inside": awaited(inside), "many": awaited(many)})
