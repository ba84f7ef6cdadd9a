"""rq with the worker that does not fork for every job. Runs in an environment of its own."""

import jobs
from commands import URL
from queued import run
from redis import Redis
from rq import Queue, SimpleWorker

KEPT_S = 500
LEFT = (
    "redis.call('LLEN', 'rq:queue:bench') + redis.call('LLEN', 'rq:queue:bench:intermediate')"
    " + redis.call('ZCARD', 'rq:wip:bench')"
)


def connect():
    return Queue("bench", connection=Redis.from_url(URL))


def send(queue, number):
    queue.enqueue(jobs.stamp, 0, number, result_ttl=KEPT_S)


def many(queue, numbers):
    queue.enqueue_many(
        [queue.prepare_data(jobs.stamp, (0, number), result_ttl=KEPT_S) for number in numbers]
    )


def work():
    queue = connect()
    SimpleWorker([queue], connection=queue.connection).work(logging_level="ERROR")


if __name__ == "__main__":
    run(
        "rq",
        connect=connect,
        send=send,
        many=many,
        work=work,
        left=LEFT,
        prefetch="0",
        setting="SimpleWorker, which does not fork",
    )
