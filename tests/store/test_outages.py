"""Errors of Postgres: which are outages, which blame a value, and which are neither."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from scheduler import StoreError, StoreUnavailable
from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.errors import InvalidData
from scheduler.store.engine import BoundedConnection, Database
from tests.support.recorder import until

# Classes 08 (connection), 53 (resources), 57 (operator intervention) and 58 (system), and what
# another transaction or a timeout causes.
OUTAGES = (
    *("08000", "08001", "08003", "08004", "08006", "08007", "08P01"),
    *("25006", "25P03", "25P04", "40001", "40P01", "53100", "53200", "53300", "55P03"),
    *("57014", "57P01", "57P02", "57P03", "57P04", "57P05", "58000", "58030"),
)
DATA_ERRORS = (
    *("22001", "22003", "22021", "22P05", "23502", "23505", "23514", "54000", "54001", "54011"),
)
OTHERS = ("0A000", "25P02", "42501", "P0001", "XX000", "XX001")


@pytest.fixture
def database(dsn: str, schema: str) -> Iterator[Database]:
    database = Database.open(dsn, schema=schema, prepare=True)
    yield database
    database.close()


def raised(database: Database, sqlstate: str) -> StoreError:
    code = f"DO $$ BEGIN RAISE EXCEPTION 'made' USING ERRCODE = '{sqlstate}'; END $$"
    with pytest.raises(StoreError) as caught:
        database.run(code.encode(), {})
    return caught.value


@pytest.mark.parametrize("sqlstate", OUTAGES)
def test_an_outage_can_be_tried_again(database: Database, sqlstate: str) -> None:
    error = raised(database, sqlstate)
    assert isinstance(error, StoreUnavailable), sqlstate
    assert database.run(b"SELECT 1", {}) == [(1,)]


@pytest.mark.parametrize("sqlstate", DATA_ERRORS)
def test_a_data_error_blames_the_value(database: Database, sqlstate: str) -> None:
    assert isinstance(raised(database, sqlstate), InvalidData), sqlstate


def test_a_value_that_psycopg_refuses_is_a_data_error(database: Database) -> None:
    with pytest.raises(InvalidData):
        database.run(b"SELECT %(text)s::text", {"text": "a\0b"})


@pytest.mark.parametrize("sqlstate", OTHERS)
def test_other_errors_are_neither_outages_nor_data_errors(
    database: Database, sqlstate: str
) -> None:
    assert type(raised(database, sqlstate)) is StoreError, sqlstate


def idle_in_transaction(connection: BoundedConnection, admin: psycopg.Connection[Any]) -> None:
    connection.execute("SET idle_in_transaction_session_timeout = '10ms'")


def transaction_timeout(connection: BoundedConnection, admin: psycopg.Connection[Any]) -> None:
    if connection.info.server_version < 170000:
        pytest.skip("this server has no transaction_timeout")
    connection.execute("SET transaction_timeout = '10ms'")


def terminated(connection: BoundedConnection, admin: psycopg.Connection[Any]) -> None:
    admin.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))


def idle_session(connection: BoundedConnection, admin: psycopg.Connection[Any]) -> None:
    connection.rollback()
    connection.execute("SET idle_session_timeout = '10ms'")


CLOSERS = {
    "25P03": idle_in_transaction,
    "25P04": transaction_timeout,
    "57P01": terminated,
    "57P05": idle_session,
}


@pytest.mark.parametrize("sqlstate", CLOSERS)
def test_a_connection_that_the_server_closes_is_an_outage(
    database: Database, connection: psycopg.Connection[Any], sqlstate: str
) -> None:
    def use() -> None:
        with database.transaction() as own:
            pid = own.info.backend_pid
            CLOSERS[sqlstate](own, connection)
            query = "SELECT FROM pg_stat_activity WHERE pid = %s"
            until(lambda: connection.execute(query, (pid,)).fetchone() is None)
            own.execute("SELECT 1")

    # The error of the server can be lost with its connection.
    with pytest.raises(StoreUnavailable, match=f"{sqlstate}|server closed the connection"):
        use()
    assert database.run(b"SELECT 1", {}) == [(1,)]


def crash(server: EmbeddedPostgres, pid: int) -> None:
    os.kill(pid, signal.SIGQUIT)  # a backend that crashes: the server restarts all of them


def shut_down(server: EmbeddedPostgres, pid: int) -> None:
    server.halt(mode="fast")


def shut_down_immediately(server: EmbeddedPostgres, pid: int) -> None:
    server.halt(mode="immediate")


@pytest.mark.parametrize("close", [crash, shut_down, shut_down_immediately])
def test_a_server_that_crashes_or_stops_is_an_outage(
    close: Callable[[EmbeddedPostgres, int], None],
) -> None:
    with EmbeddedPostgres(durable=False) as server:
        database = Database.open(server.dsn, schema="public", prepare=True)
        with pytest.raises(StoreUnavailable):
            _use_until_closed(database, lambda pid: close(server, pid))
        if close is not crash:
            with pytest.raises(StoreUnavailable):
                database.run(b"SELECT 1", {})
            server.resume()

        def works() -> bool:  # 57P03 while the server starts
            try:
                return database.run(b"SELECT 1", {}) == [(1,)]
            except StoreUnavailable:
                return False

        until(works)
        database.close()


def _use_until_closed(database: Database, close: Callable[[int], None]) -> None:
    with database.transaction() as own:
        close(own.info.backend_pid)
        while True:
            own.execute("SELECT 1")
            threading.Event().wait(0.05)
