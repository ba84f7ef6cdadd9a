"""celery, which has no call for many, with its pool solo. Runs in an environment of its own."""

import jobs
from celery import Celery
from commands import URL
from queued import run

PREFETCH = 100
ARGUMENTS = [
    "worker",
    "--pool",
    "solo",
    "--concurrency",
    "1",
    "--loglevel",
    "ERROR",
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
]


def make():
    app = Celery("bench", broker=URL)
    app.conf.update(
        task_ignore_result=True,
        task_default_queue="bench",
        worker_prefetch_multiplier=PREFETCH,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )
    return app, app.task(name="noop")(jobs.stamp)


def connect():
    return make()[1]


def send(noop, number):
    noop.apply_async((0, number))


def work():
    make()[0].worker_main(ARGUMENTS)


if __name__ == "__main__":
    run(
        "celery",
        connect=connect,
        send=send,
        work=work,
        left="redis.call('LLEN', 'bench') + redis.call('HLEN', 'unacked')",
        prefetch=f"{PREFETCH}",
        setting=f"pool solo, prefetch {PREFETCH}",
    )
