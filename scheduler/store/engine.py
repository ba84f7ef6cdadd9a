"""Connections: a pool, a deadline on every statement, and third-party errors turned into ours.

Works behind PgBouncer in transaction mode: autocommit, no session state but `plan_cache_mode` on
direct connections.
"""

import contextlib
import logging
import struct
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import orjson
import psycopg
from psycopg import errors as pg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format
from psycopg.types.json import set_json_loads
from sqlalchemy import Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool, QueuePool

from scheduler.errors import (
    ConfigError,
    InvalidData,
    SchedulerError,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
    TenantDeleting,
)
from scheduler.store.queries import statement

logger = logging.getLogger("scheduler")

Row = tuple[Any, ...]
STATEMENT_DEADLINE = 10.0
CONNECT_TIMEOUT = 10
# One plan for every batch size, kept for the session: made while the tables were empty it must not
# scan them when they are large, so each statement probes by key. Given at the start of a
# connection: a pooler, whose other clients would inherit them, refuses them there. Such plans look
# dearer than they are, and what is soon done is not compiled first.
PLANS = (
    "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off"
    " -c enable_mergejoin=off"
    " -c jit=off"
)
POOLER = "database: there is a pooler in between, like PgBouncer; pass prepare=False"
NOT_A_DSN = (
    "database: not a DSN; write postgresql://user:password@host/name, or host=... dbname=... "
    "user=..."
)
# Outages. The timeouts of transactions close the connection, and psycopg counts them as internal
# errors.
_AWAY = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    pg.ReadOnlySqlTransaction,
    pg.IdleInTransactionSessionTimeout,
    pg.TransactionTimeout,
    pg.SerializationFailure,
    pg.DeadlockDetected,
)
# Data exceptions, integrity constraint violations, program limits: a value is the cause.
_DATA_ERRORS = ("22", "23", "54")


_INT8 = struct.Struct("!q")
_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class DeadlineExceeded(psycopg.OperationalError):
    """A statement took longer than its deadline."""


class BoundedConnection(psycopg.Connection[Row]):
    """A connection whose every wait ends: a server, a pooler or a network that is silent cannot
    hold a thread.
    """

    deadline: float = STATEMENT_DEADLINE
    adopted: bool = False

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for the server, at most until the deadline; then the connection is no longer
        usable.
        """
        try:
            return super().wait(_until(time.monotonic() + self.deadline, gen), *args, **kwargs)
        except DeadlineExceeded:
            # The server may still be at work and hold locks: tell it to stop, on a connection of
            # its own.
            with contextlib.suppress(Exception):
                self.cancel_safe(timeout=2.0)
            self.pgconn.finish()
            raise


class UtcLoader(Loader):
    """Instants as aware datetimes in UTC, whatever the session's zone: arithmetic on them then
    knows no DST.
    """

    format = Format.BINARY

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._made: dict[int, datetime] = {}  # rows of one transaction share theirs

    def load(self, data: Buffer) -> datetime:
        """Read microseconds since 2000."""
        (microseconds,) = _INT8.unpack(data)
        made = self._made.get(microseconds)
        if made is None:
            made = self._made[microseconds] = _POSTGRES_EPOCH + timedelta(microseconds=microseconds)
        return made


class Database:
    """Runs statements on pooled connections, each in a transaction of its own unless inside
    `transaction()`.

    Every failure is a `StoreUnavailable` (trying again can help), an `InvalidData` (a value is the
    cause) or another `StoreError`. A `StoreUnavailable` closes all idle connections of the pool, so
    that new ones reach the server after a failover or a restart.
    """

    def __init__(
        self, pool: Pool, *, schema: str, prepare: bool, deadline: float = STATEMENT_DEADLINE
    ) -> None:
        self.schema = schema
        self.prepare = prepare
        self.deadline = deadline
        self._pool = pool
        self._lock = threading.Lock()

    @classmethod
    def open(cls, database: str | Engine, *, schema: str, prepare: bool) -> "Database":
        """Make a pool for a DSN, or one like an engine's own; connects on first use."""
        if isinstance(database, Engine):
            if database.dialect.driver != "psycopg":
                raise ConfigError(
                    "database: an Engine must use psycopg 3 (postgresql+psycopg://...), not "
                    f"{database.dialect.name}"
                    f"+{database.dialect.driver}; or pass its URL as a text"
                )
            pool = database.pool.recreate()  # its creator and hooks, but connections of our own
            # kept plans need settings that only a connection of our own making begins with
            prepare = False
        else:
            dsn = checked_dsn(database)
            connect: Any = partial(_connect, dsn, PLANS if prepare else "")
            pool = QueuePool(connect, pool_size=3, max_overflow=5, timeout=CONNECT_TIMEOUT)
        return cls(pool, schema=schema, prepare=prepare)

    def separate(self, *, deadline: float) -> "Database":
        """Give a part of the system connections that nobody else can use up."""
        return Database(
            self._pool.recreate(), schema=self.schema, prepare=self.prepare, deadline=deadline
        )

    def run(self, query: bytes, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one statement and return its rows."""
        with self.connection() as connection:
            return _run(connection, query, parameters, prepare=self.prepare)

    @contextlib.contextmanager
    def transaction(self, deadline: float | None = None) -> Iterator[BoundedConnection]:
        """Run several statements as one; a server-side timeout stands behind the deadline."""
        with self.connection(deadline) as connection:
            milliseconds = str(int(connection.deadline * 1000))
            connection.execute(
                statement("session", "begin", milliseconds), prepare=False
            )  # all in one round trip
            try:
                yield connection
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    connection.rollback()
                raise
            connection.commit()

    @contextlib.contextmanager
    def connection(self, deadline: float | None = None) -> Iterator[BoundedConnection]:
        """Borrow a connection; anything that goes wrong on it costs the pool that connection."""
        with translated():
            pool = self._pool
            proxy = pool.connect()
            try:
                adopted = self._adopt(proxy.driver_connection)
                adopted.deadline = deadline or self.deadline
                yield adopted
            except BaseException as error:
                proxy.invalidate()
                if isinstance(error, _AWAY):
                    self._replace(pool)
                raise
            else:
                if self._pool is not pool:
                    proxy.invalidate()  # a disposed pool would keep it open
            finally:
                proxy.close()

    def notifications(self, channels: Sequence[str]) -> Iterator[set[str]]:
        """Listen: yield the channels on which something was said, none now and then, until the
        connection breaks.
        """
        with self.connection() as connection:
            for channel in channels:
                connection.execute(statement("session", "listen", channel), {})
            yield set(channels)  # whatever was said before we listened
            while True:
                yield {heard.channel for heard in connection.notifies(timeout=0.2, stop_after=1)}

    def close(self) -> None:
        """Close idle connections; borrowed ones close when they come back."""
        self._replace(self._pool)

    def _check_encoding(self, connection: BoundedConnection) -> None:
        if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            raise ConfigError(
                "database: its encoding is SQL_ASCII, which keeps no text; use one in UTF8"
            )
        if connection.info.encoding != "utf-8":
            connection.execute(statement("session", "speak_utf8", self.schema), {})

    def _replace(self, pool: Pool) -> None:
        """Drop all idle connections: where one has gone, the others would each cost a deadline of
        their own.
        """
        with self._lock:
            if self._pool is pool:
                self._pool = pool.recreate()
        pool.dispose()

    def _adopt(self, connection: Any) -> BoundedConnection:
        if type(connection) is not BoundedConnection:
            if not isinstance(connection, psycopg.Connection):
                raise ConfigError(
                    "database: an Engine must give psycopg connections, not "
                    f"{type(connection).__name__}"
                )
            connection.__class__ = (
                BoundedConnection  # an engine's creator cannot be told which class to make
            )
        adopted: BoundedConnection = connection
        if not adopted.autocommit:
            adopted.autocommit = True
        if not adopted.adopted:
            adopted.adopted = True
            adopted.adapters.register_loader("timestamptz", UtcLoader)
            set_json_loads(orjson.loads, adopted)
            self._check_encoding(adopted)
            adopted.prepare_threshold = (
                5 if self.prepare else None
            )  # with None psycopg prepares nothing, asked or not
        return adopted


def _connect(dsn: str, settings: str = "") -> BoundedConnection:
    given = conninfo_to_dict(dsn)
    options: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT,
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
        "application_name": "scheduler",
        "client_encoding": "utf8",
    }
    chosen = {key: value for key, value in options.items() if key not in given}
    if settings:
        chosen["options"] = f"{given.get('options') or ''} {settings}".strip()
    return BoundedConnection.connect(dsn, autocommit=True, **chosen)


def checked_dsn(database: str) -> str:
    """Check a DSN, in libpq's spelling or SQLAlchemy's; what is wrong is said without quoting it,
    for its password.
    """
    scheme, found, _ = database.partition("://")
    if found and "+" in scheme:
        try:
            url = make_url(database)
        except (ArgumentError, ValueError):
            raise ConfigError(NOT_A_DSN) from None
        database = url.set(drivername=url.get_backend_name()).render_as_string(hide_password=False)
        scheme = url.get_backend_name()
    if found and scheme not in ("postgresql", "postgres"):
        raise ConfigError(f"database: must be a postgresql:// URL, not {scheme[:20]}://")
    try:
        conninfo_to_dict(database)
    except psycopg.ProgrammingError:
        raise ConfigError(NOT_A_DSN) from None
    return database


def _run(
    connection: BoundedConnection, query: bytes, parameters: Mapping[str, Any], *, prepare: bool
) -> list[Row]:
    cursor = connection.execute(query, parameters, prepare=prepare, binary=True)
    return cursor.fetchall() if cursor.description else []


def _until(deadline: float, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() >= deadline:
                raise DeadlineExceeded("the database did not answer in time")
            state = gen.send(ready)
    except StopIteration as end:
        return end.value


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn whatever psycopg or SQLAlchemy raise into errors of ours."""
    try:
        yield
    except (pg.UndefinedTable, pg.InvalidSchemaName, pg.UndefinedColumn) as error:
        raise SchemaMismatch(
            f"the database lacks a table or column ({_brief(error)}); run `scheduler migrate`, or "
            "connect to the database of the scheduler"
        ) from error
    except (pg.DuplicatePreparedStatement, pg.InvalidSqlStatementName) as error:
        raise ConfigError(POOLER) from error
    except psycopg.Error as error:
        raise _error(error) from error
    except PoolTimeout as error:
        raise StoreUnavailable("every connection of the pool is in use") from error
    except UnicodeError as error:
        raise InvalidData("a text cannot be sent to Postgres") from error
    except SQLAlchemyError as error:
        raise StoreUnavailable(f"no connection: {type(error).__name__}") from error


def _error(error: psycopg.Error) -> SchedulerError:
    if error.sqlstate == "TN001":  # raised by refuse_tenant
        return TenantDeleting(error.diag.message_primary)
    is_data = isinstance(error, psycopg.DataError)  # psycopg's own ones have no SQLSTATE
    if is_data or (error.sqlstate or "").startswith(_DATA_ERRORS):
        return InvalidData(f"Postgres refused a value: {_brief(error)}")
    if isinstance(error, _AWAY):
        if "unsupported startup parameter" in str(error):
            return ConfigError(POOLER)
        return StoreUnavailable(f"Postgres is away: {_brief(error)}")
    return StoreError(f"Postgres refused a statement: {_brief(error)}")


def _brief(error: psycopg.Error) -> str:
    """The first line only: details may quote rows."""
    message = (error.diag.message_primary or str(error)).strip().splitlines()
    return f"{message[0] if message else type(error).__name__}" + (
        f" [{error.sqlstate}]" if error.sqlstate else ""
    )
