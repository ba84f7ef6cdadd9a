"""Ours. Also `install DATABASE SCHEMA`, and `batches DATABASE SCHEMA BATCHES WARM N`: feed and
settle.
"""

import time
from uuid import UUID

import psycopg
from commands import URL
from submissions import ORDER, ORDERS, counted, payload, run

from scheduler import NewJob, Scheduler
from scheduler.model.fairness import Waiting, shares
from scheduler.model.labels import Priority
from scheduler.model.states import State
from scheduler.queueing.ending import end
from scheduler.store.engine import Database
from scheduler.store.job_queue import Ending, JobKey, QueueTable
from scheduler.store.ring import RingTable
from scheduler.store.schema import migrate
from scheduler.store.steps import Databases
from scheduler.store.steps import run as run_steps


def single(count):
    with Scheduler(URL) as scheduler:
        return counted(lambda number: scheduler.submit("bench", "mail", payload(number)), count)


def inside(count):
    with Scheduler(URL) as scheduler, psycopg.connect(URL) as connection:
        connection.execute(ORDERS)
        connection.commit()

        def one(number):
            connection.execute(ORDER)
            scheduler.submit("bench", "mail", payload(number), connection=connection)
            connection.commit()

        return counted(one, count)


def many(batches, size):
    with Scheduler(URL) as scheduler:

        def one(_):
            scheduler.submit_many(
                [NewJob("bench", "mail", payload(number)) for number in range(size)]
            )

        return counted(one, batches, warm=2)


def opened(database, schema, prepare=True):
    return Database.open(URL.replace("/bench?", f"/{database}?"), schema=schema, prepare=prepare)


def install(database, schema):
    migrate(opened(database, schema))
    return {}


def feed(table, schema, size):
    """Take a batch in one transaction, as a feeder does: who waits, and of each tenant its
    share.
    """
    waiting = [Waiting._make(row) for row in (yield table.waiting(limit=size))]
    taking = table.feed("default", shares(waiting, {Priority.NORMAL: size}, size))
    rows = yield taking
    if not rows:
        yield RingTable(schema, lambda: None).of_queue("open_queue", "default")
        rows = yield taking
    return rows


def batches(database, schema, count, warm, size):
    """Feed and end what is ready; the first batches, which warm, are not counted, but in the
    CPU.
    """
    stores = Databases(opened(database, schema), opened(database, schema, prepare=False))
    table = QueueTable(schema, lambda: None)
    feeding = settling = 0.0
    cpu = time.process_time()
    for number in range(count + warm):
        if number == warm:
            feeding = settling = 0.0
        began = time.perf_counter()
        rows = run_steps(stores, feed(table, schema, size))
        feeding += time.perf_counter() - began
        keys = [JobKey(tenant, UUID(id_)) for _, tenant, id_, *_ in rows]
        endings = [Ending(key=key, state=State.COMPLETED, feed=1, attempt=1) for key in keys]
        began = time.perf_counter()
        ended, _ = run_steps(stores, end(table, endings))
        settling += time.perf_counter() - began
        if len(rows) != size or len(ended) != size:
            raise RuntimeError(f"{len(rows)} were fed and {len(ended)} ended, not {size}")
    return {"feed_s": feeding, "settle_s": settling, "cpu_s": time.process_time() - cpu}


if __name__ == "__main__":
    run(
        "singleton-scheduler",
        {"single": single, "inside": inside, "many": many, "install": install, "batches": batches},
    )
