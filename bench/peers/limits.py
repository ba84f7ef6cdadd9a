"""What the servers and their Python clients can do at most: no job, no promise, one process, one
connection.

redis      rates of bare commands, and how long a blocked pop takes to wake
postgres   rates of bare statements, and how long a notification takes
"""

import os
import time

import psycopg
import redis
from commands import URL, main

VALUE = b"x" * 64
SIZE = 1000
SAMPLES = 200


def rate(count, function):
    """Jobs a second of a call that does `count`, after one that warms."""
    function()
    start = time.perf_counter()
    function()
    return count / (time.perf_counter() - start)


def middle_ms(once):
    return sorted(once() for _ in range(SAMPLES))[SAMPLES // 2] * 1000


def in_redis():
    client = redis.Redis.from_url(os.environ["BENCH_REDIS"])
    client.flushall()
    values = [VALUE] * SIZE

    def piped():
        for _ in range(20):
            pipe = client.pipeline(transaction=False)
            for _ in range(SIZE):
                pipe.lpush("pushed", VALUE)
            pipe.execute()

    found = {
        "trip": rate(3000, lambda: [client.ping() for _ in range(3000)]),
        "push": rate(3000, lambda: [client.lpush("pushed", VALUE) for _ in range(3000)]),
        "piped": rate(20 * SIZE, piped),
        "values": rate(100 * SIZE, lambda: [client.lpush("values", *values) for _ in range(100)]),
        "popped": rate(50 * SIZE, lambda: [client.rpop("values", 100) for _ in range(SIZE // 2)]),
    }
    with client.client() as pops, client.client() as pushes:
        connection = pops.connection

        def wake():
            connection.send_command("BLPOP", "woken", 5)
            time.sleep(0.001)  # the server has it, and blocks
            start = time.perf_counter()
            pushes.lpush("woken", VALUE)
            connection.read_response()
            return time.perf_counter() - start

        found["wake_ms"] = middle_ms(wake)
    return found


def in_postgres():
    with (
        psycopg.connect(URL, autocommit=True) as connection,
        psycopg.connect(URL, autocommit=True) as listener,
    ):
        connection.execute("DROP TABLE IF EXISTS limits")
        connection.execute(
            "CREATE TABLE limits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text)"
        )
        listener.execute("LISTEN limits")

        def copied():
            for _ in range(20):
                with connection.cursor().copy("COPY limits (payload) FROM STDIN") as copy:
                    for _ in range(SIZE):
                        copy.write_row((VALUE.decode(),))

        def taken():
            for _ in range(10):
                connection.execute(
                    "DELETE FROM limits WHERE id IN (SELECT id FROM limits ORDER BY id LIMIT 1000"
                    " FOR UPDATE SKIP LOCKED) RETURNING id, payload"
                ).fetchall()

        def heard():
            start = time.perf_counter()
            connection.execute("NOTIFY limits")
            next(listener.notifies(stop_after=1))
            return time.perf_counter() - start

        def inserted():
            for _ in range(300):
                connection.execute(
                    "INSERT INTO limits (payload) VALUES (%s)", (VALUE.decode(),), prepare=True
                )

        found = {
            "trip": rate(
                2000, lambda: [connection.execute("SELECT 1", prepare=True) for _ in range(2000)]
            ),
            "insert": rate(300, inserted),
            "copy": rate(20 * SIZE, copied),
        }
        connection.execute("VACUUM ANALYZE limits")
        found["taken"] = rate(10 * SIZE, taken)
        found["notify_ms"] = middle_ms(heard)
        connection.execute("DROP TABLE limits")
    return found


if __name__ == "__main__":
    main("psycopg", {"redis": in_redis, "postgres": in_postgres})
