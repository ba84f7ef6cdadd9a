"""Connections to Redis, lent to whoever has a command, and taken back."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from redis.backoff import EqualJitterBackoff
from redis.connection import ConnectionPool
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,  # noqa: A004
    TimeoutError,  # noqa: A004
)
from redis.sentinel import SentinelConnectionPool

BACKOFF = EqualJitterBackoff(cap=0.5, base=0.05)


class Pool(ConnectionPool):
    """Connections; the opening of one is tried again: nothing was asked on it, so nothing can
    happen twice.

    One that was used is lent again from here: what redis-py counts and asks around each takes
    longer than a command.
    """

    tries = 0

    def reset(self) -> None:
        """Begin anew, also in a process that was forked."""
        self._used: list[Any] = []
        super().reset()

    def lend(self) -> Any:
        """Lend a connection that lives and on which nothing is to be read."""
        self._checkpid()
        with contextlib.suppress(IndexError):
            connection = self._used.pop()
            if self._fit(connection):
                return connection
            self.release(connection)
        return self.get_connection()

    def take_back(self, connection: Any) -> None:
        """Have a connection back; what is closed is opened again when it is needed."""
        self._used.append(connection)

    def _fit(self, connection: Any) -> bool:
        try:
            return bool(
                connection.is_connected
                and not connection.can_read()
                and self.owns_connection(connection)
            )
        except Exception:  # noqa: BLE001 - whoever closes it meanwhile makes redis-py stumble over what is gone
            return False

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """Open a connection, or have one that redis-py keeps."""
        failures = 0
        while True:
            try:
                return super().get_connection(*args, **options)
            except AuthenticationError:
                raise
            except (ConnectionError, TimeoutError):
                failures += 1
                self.failed()
                if failures > self.tries:
                    raise
            time.sleep(BACKOFF.compute(failures))

    def failed(self) -> None:
        """Hear that none could be opened."""


class MasterPool(Pool, SentinelConnectionPool):
    """Connections to the server that Sentinel names at the moment."""

    def failed(self) -> None:
        """Ask another Sentinel."""
        self.sentinel_manager.doubt()


@contextlib.contextmanager
def lent(pool: Any) -> Iterator[Any]:
    """Lend a connection; one on which something went wrong is not used again."""
    connection = pool.lend()
    try:
        yield connection
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.take_back(connection)
