"""No library: psycopg alone writes the row of job_queue. `many` copies it, and that of job_ready,
in binary.

`autocommit N` is `single N` in one round trip, the least there can be.
"""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import orjson
import psycopg
from commands import URL
from submissions import ORDER, ORDERS, counted, payload, run

from scheduler.store.engine import Database
from scheduler.store.schema import migrate

COLUMNS = (
    "tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json, payload"
)
INSERT = (
    f"INSERT INTO scheduler.job_queue ({COLUMNS})"
    " VALUES (%s, %s, %s, %s, %s, now(), now(), now(), now() + interval '7 days', true, %s)"
)
COPY = f"COPY scheduler.job_queue ({COLUMNS}, seq) FROM STDIN (FORMAT binary)"
COPY_READY = (
    "COPY scheduler.job_ready (queue, priority, tenant, run_at, seq, id) FROM STDIN (FORMAT binary)"
)
TURNS = "SELECT nextval('scheduler.job_queue_seq_seq') FROM generate_series(1, %s)"
TYPES = [
    "text",
    "uuid",
    "text",
    "text",
    "int2",
    "timestamptz",
    "timestamptz",
    "timestamptz",
    "timestamptz",
    "bool",
    "bytea",
    "int8",
]
READY_TYPES = ["text", "int2", "text", "timestamptz", "int8", "uuid"]


def connect(**options):
    migrate(Database.open(URL, schema="scheduler", prepare=True))
    return psycopg.connect(URL, **options)


def insert(connection, number):
    row = ("bench", uuid4(), "mail", "default", 2, orjson.dumps(payload(number)))
    connection.execute(INSERT, row, prepare=True, binary=True)


def single(count):
    with connect() as connection:

        def one(number):
            insert(connection, number)
            connection.commit()

        return counted(one, count)


def autocommit(count):
    with connect(autocommit=True) as connection:
        return counted(lambda number: insert(connection, number), count)


def inside(count):
    with connect() as connection:
        connection.execute(ORDERS)

        def one(number):
            connection.execute(ORDER)
            insert(connection, number)
            connection.commit()

        return counted(one, count)


def many(batches, size):
    with connect() as connection:

        def one(_):
            now = datetime.now(UTC)
            end = now + timedelta(days=7)
            with connection.cursor(binary=True) as cursor:
                turns = cursor.execute(TURNS, (size,), prepare=True).fetchall()
                rows = [
                    (
                        "bench",
                        uuid4(),
                        "mail",
                        "default",
                        2,
                        now,
                        now,
                        now,
                        end,
                        True,
                        orjson.dumps(payload(number)),
                        seq,
                    )
                    for number, (seq,) in enumerate(turns)
                ]
                with cursor.copy(COPY) as copy:
                    copy.set_types(TYPES)
                    for row in rows:
                        copy.write_row(row)
                with cursor.copy(COPY_READY) as copy:
                    copy.set_types(READY_TYPES)
                    for row in rows:
                        copy.write_row((row[3], row[4], row[0], row[5], row[11], row[1]))
            connection.commit()

        return counted(one, batches, warm=2)


if __name__ == "__main__":
    run("psycopg", {"single": single, "autocommit": autocommit, "inside": inside, "many": many})
