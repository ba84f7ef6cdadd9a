"""APScheduler 3 with its SQLAlchemyJobStore and a pool of threads. Runs in an environment of its
own.
"""

import datetime as dt

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from commands import URL, WORKERS, main, ready, timed


def make():
    return BackgroundScheduler(
        jobstores={
            "default": SQLAlchemyJobStore(URL.replace("postgresql:", "postgresql+psycopg:"))
        },
        executors={"default": ThreadPoolExecutor(WORKERS)},
        timezone=dt.UTC,
        job_defaults={"misfire_grace_time": None, "coalesce": True},
    )


def register(jobs):
    prefix, count, due = jobs
    first = dt.datetime.fromtimestamp(due, dt.UTC)
    scheduler = make()
    scheduler.start(paused=True)

    def add():
        for n in range(count):
            scheduler.add_job(
                "jobs:stamp",
                "interval",
                hours=1,
                start_date=first,
                next_run_time=first,
                args=(due, n),
                id=f"{prefix}{n}",
            )

    return timed(add)


def serve(*_):
    """Its store has the jobs already."""
    make().start()
    ready()


if __name__ == "__main__":
    main("apscheduler", {"register": register, "register-singly": register, "serve": serve})
