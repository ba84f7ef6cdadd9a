"""procrastinate with its async psycopg connector. Runs in an environment of its own."""

import jobs
import procrastinate
from commands import URL
from queued import run

AT_ONCE = 20
LEFT = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"


async def make():
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=URL, min_size=2, max_size=AT_ONCE)
    )

    @app.task(name="noop", queue="bench")
    async def noop(number):
        jobs.stamp(0, number)

    await app.open_async()
    found = await app.connector.execute_query_one_async(
        "SELECT to_regclass('procrastinate_jobs') AS found"
    )
    if found["found"] is None:
        await app.schema_manager.apply_schema_async()
    return app, noop


async def connect():
    return (await make())[1]


def send(noop, number):
    return noop.defer_async(number=number)


def many(noop, numbers):
    return noop.batch_defer_async(*({"number": number} for number in numbers))


async def work(*_):
    app, _ = await make()
    await app.run_worker_async(
        queues=["bench"], concurrency=AT_ONCE, delete_jobs="always", install_signal_handlers=False
    )


if __name__ == "__main__":
    run(
        "procrastinate",
        connect=connect,
        send=send,
        many=many,
        work=work,
        left=LEFT,
        prefetch="0",
        setting=f"concurrency {AT_ONCE}",
    )
