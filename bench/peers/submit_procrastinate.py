"""procrastinate with its psycopg connector, not async. Runs in an environment of its own."""

import procrastinate
import psycopg
from commands import URL
from submissions import ORDER, ORDERS, counted, payload, run


def connect():
    app = procrastinate.App(
        connector=procrastinate.SyncPsycopgConnector(conninfo=URL, min_size=1, max_size=2)
    )

    @app.task(name="mail", queue="default")
    def mail(**_):
        pass

    app.open()
    if (
        app.connector.execute_query_one("SELECT to_regclass('procrastinate_jobs') AS found")[
            "found"
        ]
        is None
    ):
        app.schema_manager.apply_schema()
    return mail


def single(count):
    mail = connect()
    return counted(lambda number: mail.defer(**payload(number)), count)


def inside(count):
    mail = connect()
    with psycopg.connect(URL) as connection:
        connection.execute(ORDERS)
        connection.commit()
        deferrer = mail.configure(connection=connection)

        def one(number):
            connection.execute(ORDER)
            deferrer.defer(**payload(number))
            connection.commit()

        return counted(one, count)


def many(batches, size):
    mail = connect()
    return counted(
        lambda _: mail.batch_defer(*[payload(number) for number in range(size)]), batches, warm=2
    )


if __name__ == "__main__":
    run("procrastinate", {"single": single, "inside": inside, "many": many})
