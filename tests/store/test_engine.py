"""Connections: deadlines, errors of ours, engines, poolers, and servers that go away or turn
read-only.
"""

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import create_engine
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool, QueuePool

from scheduler import ConfigError, Scheduler, StoreError, StoreUnavailable
from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.events import FireEnded
from scheduler.store.engine import Database, _connect
from scheduler.store.queries import statement
from tests.conftest import MakeScheduler
from tests.support.pgbouncer import PgBouncer
from tests.support.recorder import Recorder, until


def url(dsn: str, drivername: str = "postgresql+psycopg") -> URL:
    parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    return URL.create(
        drivername,
        username=parts["user"],
        password=parts.get("password"),
        database=parts["dbname"],
        query={"host": parts["host"], "port": parts["port"]},
    )


@pytest.fixture
def database(dsn: str, schema: str) -> Iterator[Database]:
    database = Database.open(dsn, schema=schema, prepare=True)
    yield database
    database.close()


def busy(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE query LIKE '%pg_sleep(77)%' AND state = 'active' AND pid <> pg_backend_pid()"
    ).fetchone()
    return int(row[0]) if row else 0


def test_a_statement_past_its_deadline_is_cancelled_on_the_server_too(
    database: Database, connection: psycopg.Connection[Any]
) -> None:
    database.deadline = 0.5
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match="in time"):
        database.run(b"SELECT pg_sleep(77)", {})
    assert time.monotonic() - start < 30
    until(lambda: busy(connection) == 0, timeout=60)
    assert database.run(b"SELECT 1", {}) == [(1,)]


def test_the_deadline_holds_in_autocommit_behind_a_transaction_pooler(
    dsn: str, connection: psycopg.Connection[Any], schema: str
) -> None:
    with PgBouncer(dsn) as pooler:
        database = Database.open(pooler.dsn, schema=schema, prepare=False)
        database.deadline = 0.5
        with pytest.raises(StoreUnavailable, match="in time"):
            database.run(b"SELECT pg_sleep(77)", {})
        until(lambda: busy(connection) == 0, timeout=60)
        assert database.run(b"SELECT 1", {}) == [(1,)]
        database.close()


def test_a_transaction_has_a_timeout_on_the_server(database: Database) -> None:
    database.deadline = 3.0
    with database.transaction() as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("3s",)
    with database.connection() as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)


def test_a_scheduler_works_behind_a_transaction_pooler(
    dsn: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    with PgBouncer(dsn) as pooler:
        instance = make_scheduler(database=pooler.dsn, prepare=False, listen=dsn)
        instance.register("acme", "x", recorder.body, every="200ms")
        recorder.wait(lambda: len(recorder.runs) >= 5)
        instance.cancel()


@pytest.mark.parametrize(
    "options", [{}, {"poolclass": NullPool}, {"pool_size": 1, "max_overflow": 0}]
)
def test_an_engine_gives_connections_of_our_own(
    dsn: str, make_scheduler: MakeScheduler, recorder: Recorder, options: dict[str, Any]
) -> None:
    engine = create_engine(url(dsn), **options)
    with engine.connect() as theirs:  # their pool may be full
        instance = make_scheduler(database=engine)
        instance.register("acme", "x", recorder.body, every="100ms")
        recorder.wait(lambda: len(recorder.runs) >= 3)
        instance.cancel()
        assert type(theirs.connection.driver_connection) is psycopg.Connection
    engine.dispose()


def test_an_engine_of_another_driver_is_refused_with_the_cure(schema: str) -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(ConfigError, match="psycopg"):
        Database.open(engine, schema=schema, prepare=True)


def test_sqlalchemys_url_spelling_is_understood(dsn: str, schema: str) -> None:
    database = Database.open(
        url(dsn).render_as_string(hide_password=False), schema=schema, prepare=True
    )
    assert database.run(b"SELECT 1", {}) == [(1,)]
    database.close()
    with pytest.raises(ConfigError, match="postgresql"):
        Database.open("mysql://localhost/x", schema=schema, prepare=True)


def test_third_party_errors_do_not_leak_and_carry_no_details(database: Database) -> None:
    with pytest.raises(StoreError, match="division by zero") as caught:
        database.run(b"SELECT 1/0", {})
    assert not isinstance(caught.value, StoreUnavailable)
    with pytest.raises(StoreError) as caught:
        database.run(b"SELECT 'secret'::int", {})
    assert "\n" not in str(caught.value)


def test_a_full_pool_is_an_error_that_asks_for_another_try(dsn: str, schema: str) -> None:
    connect: Any = partial(_connect, dsn)
    database = Database(
        QueuePool(connect, pool_size=1, max_overflow=0, timeout=0.1), schema=schema, prepare=True
    )
    with database.connection(), pytest.raises(StoreUnavailable, match="in use"):
        database.run(b"SELECT 1", {})
    assert database.run(b"SELECT 1", {}) == [(1,)]
    database.close()


def test_an_unreachable_server_is_said_at_start_and_leaves_no_thread(schema: str) -> None:
    before = threading.active_count()
    with pytest.raises(StoreUnavailable):
        Scheduler("postgresql://127.0.0.1:1/none", schema=schema).start()
    assert threading.active_count() == before


def test_a_failover_to_a_read_only_server_is_survived(recorder: Recorder) -> None:
    with EmbeddedPostgres(durable=False) as server:
        instance = Scheduler(server.dsn, lease="2s").start()
        instance.register("acme", "x", recorder.body, every="200ms")
        recorder.wait(lambda: len(recorder.runs) >= 3)
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            for mode in ("on", "off"):
                admin.execute("SET default_transaction_read_only = off")
                admin.execute("SET transaction_read_only = off")
                admin.execute(f"ALTER SYSTEM SET default_transaction_read_only = {mode}")
                admin.execute("SELECT pg_reload_conf()")
                if mode == "on":
                    until(
                        lambda: (
                            instance._instance is not None
                            and instance._instance.loop_service.failures >= 1
                        )
                    )
        seen = len(recorder.runs)
        recorder.wait(lambda: len(recorder.runs) >= seen + 3)
        instance.cancel()


def test_instants_are_utc_whatever_the_sessions_zone(database: Database) -> None:
    with database.connection() as connection:
        connection.execute("SET TimeZone = 'Europe/Paris'")
        (row,) = connection.execute(
            "SELECT '2030-03-31T01:30:00Z'::timestamptz", binary=True
        ).fetchall()
    assert row[0].utcoffset().total_seconds() == 0


@pytest.fixture
def make_database(dsn: str) -> Iterator[Any]:
    """Make databases of another encoding beside the tests' own."""
    made: list[str] = []

    def make(encoding: str) -> str:
        name = f"scheduler_{encoding.lower()}_{len(made)}"
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(
                f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0".encode()
            )
        made.append(name)
        return make_conninfo(dsn, dbname=name)

    yield make
    with psycopg.connect(dsn, autocommit=True) as admin:
        for name in made:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_a_database_of_another_encoding_keeps_what_it_can(
    make_database: Any, recorder: Recorder
) -> None:
    def costs() -> None:
        raise ValueError("5 €")

    with Scheduler(make_database("LATIN1"), lease="2s") as instance:
        recorder.listen(instance)
        instance.register("acmé", "dear", costs)
        instance.register("acmé", "good", recorder.body, every="200ms")
        recorder.wait(lambda: len(recorder.runs) >= 3)
        recorder.wait(lambda: [event for event in recorder.of(FireEnded) if event.job_id == "dear"])
        (entry,) = [entry for entry in instance.history("acmé", "dear") if entry.kind == "fire"]
        assert "5 \\u20ac" in str(entry.error)
        with pytest.raises(StoreError):
            instance.register("t€", "x", costs)


def test_a_database_that_keeps_no_text_is_refused(make_database: Any) -> None:
    with pytest.raises(ConfigError, match="SQL_ASCII"):
        Scheduler(make_database("SQL_ASCII")).start()


def test_statements_are_prepared_once_where_that_is_allowed(dsn: str, schema: str) -> None:
    for prepare in (True, False):
        database = Database.open(dsn, schema=schema, prepare=prepare)
        for _ in range(3):
            database.run(statement("job", "instant", schema), {"now": None})
        with database.connection() as connection:
            rows = connection.execute(
                "SELECT count(*), sum(generic_plans) FROM pg_prepared_statements"
            ).fetchall()
        assert rows == ([(1, 3)] if prepare else [(0, None)])
        database.close()


def test_a_connection_that_is_borrowed_while_its_pool_is_replaced_ends_when_it_comes_back(
    dsn: str,
) -> None:
    database = Database.open(dsn, schema="x", prepare=False)
    with database.connection() as connection:
        database.close()
    assert connection.closed


def test_a_pooler_is_named_when_prepare_was_forgotten_and_its_clients_inherit_nothing(
    dsn: str,
) -> None:
    with PgBouncer(dsn) as pooler:
        database = Database.open(pooler.dsn, schema="x", prepare=True)
        with pytest.raises(ConfigError, match="pass prepare=False"):
            database.run(statement("job", "instant", "x"), {"now": None})
        database.close()
        with psycopg.connect(pooler.dsn) as connection:
            assert connection.execute("SHOW enable_seqscan").fetchone() == ("on",)


def test_an_engines_own_connections_keep_their_settings(dsn: str) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    database = Database.open(engine, schema="x", prepare=True)
    for _ in range(3):
        database.run(statement("job", "instant", "x"), {"now": None})
    with database.connection() as connection:
        assert connection.execute("SHOW enable_seqscan").fetchall() == [("on",)]
        assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [
            (0,)
        ]
    database.close()
    engine.dispose()
