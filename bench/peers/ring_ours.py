"""Ours: jobs submitted into Postgres, carried through Redis. `serve instance` feeds and settles, `serve worker` runs.

The context of the calls that send is a Scheduler without Redis, as in an application that only submits.
"""

import os

import jobs
from commands import URL, WORKERS, ready
from queued import run

from scheduler import NewJob, Scheduler, Worker, handler
from scheduler.service import collect_rarely

REDIS = os.environ["BENCH_REDIS"]
KIND = os.environ.get("BENCH_KIND", "sync")
TENANTS = int(os.environ.get("BENCH_TENANTS", "1"))
FILL = "x" * int(os.environ.get("BENCH_FILL", "0"))  # bytes that a payload has beside its number
LEFT = "SELECT count(*) FROM scheduler.job_queue"


def number_of(payload):
    return payload["number"] if FILL else payload


@handler("sync", queue="bench")
def sync(_, payload):
    jobs.stamp(0, number_of(payload))


@handler("async", queue="bench")
async def coroutine(_, payload):
    jobs.stamp(0, number_of(payload))


def connect():
    return Scheduler(URL).start()


def given(number):
    """Tenant, type and payload."""
    return f"bench{number % TENANTS}", KIND, {"number": number, "fill": FILL} if FILL else number


def send(scheduler, number):
    scheduler.submit(*given(number), queue="bench")


def many(scheduler, numbers):
    scheduler.submit_many([NewJob(*given(number), queue="bench") for number in numbers])


def work(role):
    if role == "worker":
        Worker(REDIS, ["bench"], concurrency=WORKERS).run()
    else:
        Scheduler(URL, redis=REDIS).start()
        collect_rarely()  # as `scheduler run` does
        ready()


if __name__ == "__main__":
    run("singleton-scheduler", connect=connect, send=send, many=many, work=work, left=LEFT,
        setting=f"{KIND} handler, concurrency {WORKERS}")  # fmt: skip
