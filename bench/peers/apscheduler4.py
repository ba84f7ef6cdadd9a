"""APScheduler 4, a pre-release, on asyncpg: store and events. Runs in an environment of its own."""

import asyncio
import datetime as dt

import apscheduler4  # under this name the schedules find their function
import jobs
from apscheduler import AsyncScheduler
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.eventbrokers.asyncpg import AsyncpgEventBroker
from apscheduler.triggers.interval import IntervalTrigger
from commands import URL, main, timed
from sqlalchemy.ext.asyncio import create_async_engine

AT_ONCE = 100


async def stamp(due, number):
    jobs.stamp(due, number)


def make():
    engine = create_async_engine(URL.replace("postgresql:", "postgresql+asyncpg:"))
    return AsyncScheduler(
        SQLAlchemyDataStore(engine), AsyncpgEventBroker(URL), max_concurrent_jobs=AT_ONCE
    )


def register(named):
    prefix, count, due = named
    first = dt.datetime.fromtimestamp(due, dt.UTC)

    async def add():
        async with make() as scheduler:
            for n in range(count):
                trigger = IntervalTrigger(hours=1, start_time=first)
                await scheduler.add_schedule(
                    apscheduler4.stamp, trigger, id=f"{prefix}{n}", args=(due, n)
                )

    return timed(lambda: asyncio.run(add()))


async def run():
    async with make() as scheduler:
        print("ready", flush=True)
        await scheduler.run_until_stopped()


def serve(*_):
    """Its store has the schedules already."""
    asyncio.run(run())


if __name__ == "__main__":
    main("apscheduler", {"register": register, "register-singly": register, "serve": serve})
