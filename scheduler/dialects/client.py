"""A connection to Redis, alone or a cluster: scripts by their hash, a deadline on every wait, and errors of ours."""

import contextlib
import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    ConnectionError,  # noqa: A004
    DataError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004
    TryAgainError,
)
from redis.retry import Retry

from scheduler.errors import ConfigError, QueueError, QueueUnavailable

DEADLINE = 5.0
UNANSWERED = 2  # batches that Redis may have while the next is made
LONGEST_BLOCK = 10.0
MOST_CONNECTIONS = 10_000  # each queue that is waited at has one; redis-py would stop at 100
AWAY = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    MasterDownError,
    ClusterDownError,
    ClusterError,
    RedisClusterException,
    TryAgainError,
    OutOfMemoryError,
)
ALSO_AWAY = (
    "UNBLOCKED",
    "BUSY ",
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "OOM",
    "MISCONF",
)


@dataclass(frozen=True, slots=True)
class Script:
    """A script of ours, with the hash by which Redis knows it."""

    name: str
    text: str
    sha: str


@cache
def script(dialect: str, name: str) -> Script:
    """Read a script; a line `-- include: other` stands for another file of the folder."""
    folder = files("scheduler.dialects") / dialect / "lua"
    lines = []
    for line in (folder / f"{name}.lua").read_text("utf-8").splitlines():
        _, found, other = line.partition("-- include: ")
        lines.append((folder / f"{other}.lua").read_text("utf-8") if found else line)
    text = "\n".join(lines)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Client:
    """Commands and scripts, from any thread; opened by the first of them, and again after a fork."""

    def __init__(self, url: str, *, deadline: float = DEADLINE) -> None:
        self._url = url
        self._deadline = deadline
        self._lock = threading.Lock()
        self._open: tuple[Any, Any] | None = None
        self._clustered = False
        try:
            redis.ConnectionPool.from_url(url)  # opens nothing yet
        except ValueError as error:
            raise ConfigError(f"redis: {error}") from None

    def run(self, what: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script."""
        commands, _ = self._opened()
        with self._translated():
            try:
                return commands.execute_command("EVALSHA", what.sha, len(keys), *keys, *args)
            except NoScriptError:
                return commands.execute_command("EVAL", what.text, len(keys), *keys, *args)

    def run_each(self, what: Script, keys: Sequence[str], batches: Iterable[Sequence[Any]]) -> list[Any]:
        """Run a script for one batch of arguments after another; the next is made while Redis has the one before."""
        commands, _ = self._opened()
        if self._clustered:
            return [self.run(what, keys, args) for args in batches]
        answers: list[Any] = []
        sent: deque[Sequence[Any]] = deque()
        with self._translated(), _lent(commands.connection_pool) as connection:
            for args in batches:
                connection.send_command("EVALSHA", what.sha, len(keys), *keys, *args)
                sent.append(args)
                if len(sent) > UNANSWERED:
                    answers.append(self._answer(connection, what, keys, sent.popleft()))
            while sent:
                answers.append(self._answer(connection, what, keys, sent.popleft()))
        return answers

    def _answer(self, connection: Any, what: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return connection.read_response()
        except NoScriptError:
            return self.run(what, keys, args)

    def call(self, *command: Any) -> Any:
        """Run one command."""
        commands, _ = self._opened()
        with self._translated():
            return commands.execute_command(*command)

    def wait(self, *command: Any, near: str | None = None) -> Any:
        """Run a command that blocks, on connections of its own; it may say to wait up to LONGEST_BLOCK seconds.

        `near`: a key of it, where one cannot tell from its name which of its words are keys.
        """
        _, blocking = self._opened()
        with self._translated():
            return blocking.execute_command(*command, **self._at(blocking, near))

    def scan(self, near: str, cursor: Any, pattern: str, count: int) -> tuple[Any, list[bytes]]:
        """Look for keys in the server that has the key `near`; give back the cursor to go on with, 0 at the end."""
        commands, _ = self._opened()
        with self._translated():
            command = ("SCAN", cursor, "MATCH", pattern, "COUNT", count)
            answer = commands.execute_command(*command, **self._at(commands, near))
            if isinstance(answer, dict):
                [answer] = answer.values()
            following, found = answer
            return (next(iter(following.values())) if isinstance(following, dict) else following), found

    def _at(self, connection: Any, near: str | None) -> dict[str, Any]:
        return {"target_nodes": connection.get_node_from_key(near)} if near and self._clustered else {}

    @contextlib.contextmanager
    def subscribed(self, channel: str) -> Iterator[Callable[[float], list[bytes]]]:
        """Listen on a channel; what is yielded returns what was said within so many seconds."""
        _, blocking = self._opened()
        listening = blocking.pubsub(ignore_subscribe_messages=True)
        with self._translated():
            listening.subscribe(channel)

        def hear(timeout: float) -> list[bytes]:
            with self._translated():
                message = listening.get_message(timeout=timeout)
            return [message["data"]] if message is not None else []

        try:
            yield hear
        finally:
            with contextlib.suppress(RedisError, OSError):
                listening.close()

    @property
    def clustered(self) -> bool:
        """Whether it is a cluster: then the keys of a command must share their hash tag."""
        self._opened()
        return self._clustered

    def close(self) -> None:
        """Close all connections; the next command opens them again."""
        with self._lock:
            opened, self._open = self._open, None
        _close(opened or ())

    def _opened(self) -> tuple[Any, Any]:
        opened = self._open
        if opened is None:
            with self._translated():
                made = self._connect()
            with self._lock:
                opened = self._open = self._open or made
            if opened is not made:
                _close(made)  # another thread was faster
        return opened

    def _connect(self) -> tuple[Any, Any]:
        single = self._redis(redis.Redis, self._deadline)
        with contextlib.closing(single):
            mode = single.info("server").get("redis_mode")
        self._clustered = mode == "cluster"
        kind = redis.RedisCluster if self._clustered else redis.Redis
        return self._redis(kind, self._deadline), self._redis(kind, LONGEST_BLOCK + self._deadline)

    def _redis(self, kind: Any, timeout: float) -> Any:
        """Open; a command is never repeated for us, because a script that was not answered may have run."""
        return kind.from_url(
            self._url,
            socket_timeout=timeout,
            socket_connect_timeout=self._deadline,
            max_connections=MOST_CONNECTIONS,
            **({} if self._url.startswith("unix") else {"socket_keepalive": True}),
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except AuthenticationError as error:
            raise QueueError(f"Redis refused our name or password: {error}") from error
        except AWAY as error:
            if isinstance(error, ReadOnlyError | MasterDownError):
                self.close()  # a failover: the address may lead to another server now
            raise QueueUnavailable(f"Redis: {error}") from error
        except (ResponseError, DataError) as error:
            said = str(error).partition(": -")[2] or str(error)  # of a script, Redis 6.2 says first where in it
            if said.startswith("READONLY"):
                self.close()
            if said.startswith(ALSO_AWAY):
                raise QueueUnavailable(f"Redis: {error}") from error
            raise QueueError(f"Redis: {error}") from error
        except (RedisError, OSError) as error:
            raise QueueUnavailable(f"Redis: {error}") from error


def _close(connections: Sequence[Any]) -> None:
    for each in connections:
        with contextlib.suppress(RedisError, OSError):
            each.close()


@contextlib.contextmanager
def _lent(pool: Any) -> Iterator[Any]:
    """Lend a connection; one on which something went wrong is not used again."""
    connection = pool.get_connection()
    try:
        yield connection
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
