"""Several statements as one unit, written once for every kind of connection.

A function of steps yields statements and is sent their rows; whoever drives it decides where they
run: on a connection of ours, or inside the transaction of the caller, which may be psycopg's or
SQLAlchemy's, sync or async.
"""

import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.errors import (
    DeadlockDetected,
    DuplicatePreparedStatement,
    InvalidSqlStatementName,
    SerializationFailure,
)
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from scheduler.errors import ConfigError, Conflict
from scheduler.store.engine import Database, Row, translated

T = TypeVar("T")
PREPARES = (
    "connection: it prepares statements behind a pooler like PgBouncer; connect with "
    'prepare_threshold=None (for SQLAlchemy: connect_args={"prepare_threshold": None})'
)


class Statement(NamedTuple):
    """One statement with its parameters. `alone`: it is the whole unit, and needs no transaction
    around it.
    """

    query: bytes
    parameters: Mapping[str, Any]
    alone: bool = False


class Pipeline(NamedTuple):
    """Statements that are the whole unit, of one row each: each is sent before the last is done."""

    statements: Iterable[Statement]


class Databases(NamedTuple):
    """Where steps run: a statement alone on connections that keep plans, a unit on some that plan
    anew each time.
    """

    preparing: Database
    planning: Database


Steps = Generator[Statement, list[Row], T]
SyncCaller = psycopg.Connection[Any] | Connection | Session


def run(
    databases: "Databases", steps: Steps[T], *, deadline: float | None = None, keep: bool = False
) -> T:
    """Run steps on a connection of our own, in a transaction if there are several, at most
    `deadline` seconds each.

    `keep`: their plans are kept, because no other would be better later.
    """
    try:
        statement = next(steps)
    except StopIteration as end:  # there is nothing to do
        return end.value  # type: ignore[no-any-return]
    database = databases.preparing if statement.alone or keep else databases.planning
    opened = database.connection(deadline) if statement.alone else database.transaction(deadline)
    with opened as connection:
        while True:
            cursor = connection.execute(
                statement.query, statement.parameters, prepare=database.prepare, binary=True
            )
            rows = cursor.fetchall() if cursor.description else []
            try:
                statement = steps.send(rows)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]


def run_pipeline(
    databases: "Databases", pipeline: Pipeline, *, deadline: float | None = None
) -> list[Row]:
    """Run statements in one transaction of our own, while the next ones are being made; return
    their rows.
    """
    database = databases.preparing
    with database.connection(deadline) as connection:
        with _pipelined(connection), connection.transaction():
            sent = [
                connection.execute(
                    statement.query, statement.parameters, prepare=database.prepare, binary=True
                )
                for statement in pipeline.statements
            ]
        return [row for cursor in sent for row in cursor.fetchall()]


def _pipelined(connection: psycopg.Connection[Any]) -> AbstractContextManager[Any]:
    return connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext()


def run_inside(connection: object, steps: Steps[T]) -> T:
    """Run steps in the caller's transaction; what goes wrong in the middle leaves nothing behind in
    it.
    """
    if isinstance(connection, psycopg.AsyncConnection) or _runs_sync(connection):
        raise ConfigError("connection: it is async; await asubmit() with it")
    if not isinstance(connection, psycopg.Connection | Connection | Session):
        raise ConfigError(
            "connection: must be a psycopg or SQLAlchemy Connection, or a Session, not "
            f"{type(connection).__name__}"
        )
    with _callers(), _savepoint(connection):
        rows: list[Row] | None = None
        while True:
            try:
                statement = next(steps) if rows is None else steps.send(rows)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            rows = _execute(connection, statement)


async def run_inside_async(connection: object, steps: Steps[T]) -> T:
    """Run steps in the caller's async transaction."""
    if _runs_sync(connection):
        inside: T = await connection.run_sync(run_inside, steps)  # type: ignore[attr-defined]
        return inside
    if not isinstance(connection, psycopg.AsyncConnection):
        return run_inside(connection, steps)
    with _callers():
        if (
            connection.info.transaction_status is TransactionStatus.IDLE
            and not connection.autocommit
        ):
            await connection.execute("")
        async with (
            connection.transaction(),
            connection.cursor(row_factory=tuple_row, binary=True) as cursor,
        ):
            rows: list[Row] | None = None
            while True:
                try:
                    statement = next(steps) if rows is None else steps.send(rows)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                await cursor.execute(statement.query, statement.parameters)
                rows = await cursor.fetchall() if cursor.description else []


def _runs_sync(connection: object) -> bool:
    """Whether it is an AsyncConnection or AsyncSession; their module needs greenlet, which is
    imported if they are.
    """
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    return module is not None and isinstance(
        connection, module.AsyncConnection | module.AsyncSession
    )


@contextmanager
def _callers() -> Iterator[None]:
    """Turn errors on a caller's connection into ours: what another transaction did first is theirs
    to repeat.
    """
    with translated():
        try:
            yield
        except (SerializationFailure, DeadlockDetected) as error:
            raise Conflict from error
        except (DuplicatePreparedStatement, InvalidSqlStatementName) as error:
            raise ConfigError(PREPARES) from error


def _savepoint(connection: SyncCaller) -> AbstractContextManager[Any]:
    if not isinstance(connection, psycopg.Connection):
        return connection.begin_nested()
    if connection.info.transaction_status is TransactionStatus.IDLE and not connection.autocommit:
        connection.execute(
            ""
        )  # begins the caller's transaction, so that ours is a savepoint inside it
    return connection.transaction()


def _execute(connection: SyncCaller, statement: Statement) -> list[Row]:
    if isinstance(connection, psycopg.Connection):
        with connection.cursor(row_factory=tuple_row, binary=True) as cursor:
            cursor.execute(statement.query, statement.parameters)
            return cursor.fetchall() if cursor.description else []
    plain = connection.connection() if isinstance(connection, Session) else connection
    try:
        result = plain.exec_driver_sql(statement.query.decode(), dict(statement.parameters))
    except DBAPIError as error:
        raise error.orig or error from None
    return [tuple(row) for row in result] if result.returns_rows else []
