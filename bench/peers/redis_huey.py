"""huey, which has neither a call for many nor an acknowledgement: what a worker has taken is lost
with it.

Runs in an environment of its own.
"""

import logging

import jobs
from commands import URL
from huey import RedisHuey
from queued import run

THREADS = 2


def connect():
    huey = RedisHuey("bench", url=URL, results=False)

    @huey.task(name="noop")
    def noop(number):
        jobs.stamp(0, number)

    return huey, noop


def send(context, number):
    context[1](number)


def work():
    logging.getLogger("huey").setLevel(logging.ERROR)
    connect()[0].create_consumer(workers=THREADS, worker_type="thread", periodic=False).run()


if __name__ == "__main__":
    run(
        "huey",
        connect=connect,
        send=send,
        work=work,
        left="redis.call('LLEN', 'huey.redis.bench')",
        prefetch="0",
        setting=f"{THREADS} threads, no acknowledgement",
    )
