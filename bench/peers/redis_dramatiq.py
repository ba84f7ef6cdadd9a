"""dramatiq, which has no call for many. Runs in an environment of its own."""

import os
import time

os.environ["dramatiq_queue_prefetch"] = "1000"  # noqa: SIM112 - so it is spelt

import dramatiq
import jobs
from commands import URL
from dramatiq.brokers.redis import RedisBroker
from queued import run

THREADS = 2


def connect():
    dramatiq.set_broker(RedisBroker(url=URL))

    @dramatiq.actor(actor_name="noop", queue_name="bench")
    def noop(number):
        jobs.stamp(0, number)

    return noop


def send(noop, number):
    noop.send(number)


def work():
    dramatiq.Worker(connect().broker, worker_threads=THREADS).start()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    run(
        "dramatiq",
        connect=connect,
        send=send,
        work=work,
        left="redis.call('HLEN', 'dramatiq:bench.msgs')",
        prefetch="1000, with those that run",
        setting=f"{THREADS} threads, prefetch 1000",
    )
