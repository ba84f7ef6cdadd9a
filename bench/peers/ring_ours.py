"""Ours: jobs submitted into Postgres, carried through Redis. `serve instance` feeds and settles,
`serve worker` runs.

The context of the calls that send is an application that only submits; with BENCH_ROAD=straight it
is an instance that feeds and settles too. A call of one job then returns after that has gone
straight into Redis; `committed` tells when its commit was.
"""

import os
import time

import jobs
from commands import URL, WORKERS, ready
from queued import run

from scheduler import NewJob, Scheduler, Worker, handler
from scheduler.queueing.shortcut import Shortcut
from scheduler.service import collect_rarely

REDIS = os.environ["BENCH_REDIS"]
KIND = os.environ.get("BENCH_KIND", "sync")
STRAIGHT = os.environ.get("BENCH_ROAD") == "straight"
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
    made = Scheduler(URL, redis=REDIS if STRAIGHT else None).start()
    if STRAIGHT:
        collect_rarely()
        time.sleep(1)  # an application that is up: it knows its queues
    return made


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


class Commits:
    """When the last commit was, if what it committed went straight on."""

    at = 0.0

    def __init__(self):
        plain = Shortcut.push

        def push(shortcut, way):
            Commits.at = time.time()
            plain(shortcut, way)

        Shortcut.push = push

    def __call__(self):
        found, Commits.at = Commits.at or time.time(), 0.0
        return found


if __name__ == "__main__":
    run(
        "singleton-scheduler",
        connect=connect,
        send=send,
        many=many,
        work=work,
        left=LEFT,
        close=Scheduler.cancel,
        committed=Commits(),
        prefetch="0",
        setting=f"{KIND} handler, concurrency {WORKERS}",
    )
