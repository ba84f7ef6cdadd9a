"""A connection to Redis, by whatever road: scripts by their hash, a deadline on every wait, and
errors of ours.
"""

import contextlib
import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import hiredis
from redis.exceptions import (
    AuthenticationError,
    DataError,
    MasterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004
)

from scheduler.dialects.away import ALSO_AWAY, AWAY, distrusted, told
from scheduler.dialects.lending import lent
from scheduler.dialects.roads import Opened, check_files, open_connections
from scheduler.errors import QueueError, QueueUnavailable
from scheduler.model.addresses import RedisOptions

logger = logging.getLogger("scheduler")

UNANSWERED = 2  # batches that Redis may have while the next is made
LONGEST_BLOCK = 10.0


@dataclass(frozen=True, slots=True)
class Script:
    """A script of ours, with the hash by which Redis knows it."""

    name: str
    text: str
    sha: str


@cache
def script(dialect: str, name: str) -> Script:
    """Read a script; a line `-- include: other` or `-- include: folder/other` stands for another
    file.
    """
    root, lines = files("scheduler.dialects"), []
    for line in (root / dialect / "lua" / f"{name}.lua").read_text("utf-8").splitlines():
        _, found, other = line.partition("-- include: ")
        folder, _, part = other.rpartition("/")
        lines.append(
            (root / (folder or dialect) / "lua" / f"{part}.lua").read_text("utf-8")
            if found
            else line
        )
    text = "\n".join(lines)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Client:
    """Commands and scripts, from any thread; opened by the first of them, and again after a
    fork.
    """

    def __init__(self, redis: str | RedisOptions) -> None:
        self._options = redis if isinstance(redis, RedisOptions) else RedisOptions.of(redis)
        check_files(self._options.tls)
        self._lock = threading.Condition()
        self._open: Opened | None = None
        self._warned = False
        self._under_way = 0
        self._blocked: set[int] = set()  # what Redis calls the connections on which somebody waits
        self._nameless = False  # we may not ask what it calls them

    def run(self, what: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script."""
        with self._turn() as opened:
            return _run(opened, what, keys, args)

    def run_each(
        self, what: Script, keys: Sequence[str], batches: Iterable[Sequence[Any]]
    ) -> list[Any]:
        """Run a script for one batch of arguments after another; the next is made while Redis has
        the one before.
        """
        if self.clustered:
            return [self.run(what, keys, args) for args in batches]
        answers: list[Any] = []
        sent: deque[Sequence[Any]] = deque()
        with self._turn() as opened, lent(opened.commands.connection_pool) as connection:
            for args in batches:
                _send(connection, "EVALSHA", what.sha, len(keys), *keys, *args)
                sent.append(args)
                if len(sent) > UNANSWERED:
                    answers.append(_answer(opened, connection, what, keys, sent.popleft()))
            while sent:
                answers.append(_answer(opened, connection, what, keys, sent.popleft()))
        return answers

    def call(self, *command: Any) -> Any:
        """Run one command."""
        with self._turn() as opened:
            return _call(opened, opened.commands, command)

    def wait(self, *command: Any, near: str | None = None) -> Any:
        """Run a command that blocks, on connections of its own; it may say to wait up to
        LONGEST_BLOCK seconds.

        `near`: a key of it, where one cannot tell from its name which of its words are keys.
        """
        opened = self._opened()
        with self._translated():
            return _call(opened, opened.blocking, command, near)

    def await_entries(self, stream: str, *command: Any) -> Any:
        """Run a command that waits for entries of a stream, as `wait` does; `unblock` ends it
        without a loss.
        """
        opened = self._opened()
        if opened.clustered:
            return self.wait(*command, near=stream)
        with self._translated(), lent(opened.blocking.connection_pool) as connection:
            _send_all(connection, ("CLIENT", "ID"), command)
            return self._awaited(
                connection, lambda: opened.blocking.parse_response(connection, command[0])
            )

    def wait_and_run(
        self, command: Sequence[Any], what: Script, keys: Sequence[str], args: Sequence[Any]
    ) -> Any:
        """Run a command that blocks, then a script, in one round trip; None, at once: `unblock`
        would not end it.
        """
        opened = self._opened()
        if opened.clustered or self._nameless:
            return None
        with self._translated():
            try:
                with lent(opened.blocking.connection_pool) as connection:
                    following = ("EVALSHA", what.sha, len(keys), *keys, *args)
                    _send_all(connection, ("CLIENT", "ID"), command, following)
                    self._awaited(connection, connection.read_response)
                    return connection.read_response()
            except NoScriptError:
                return _run(opened, what, keys, args)

    def _awaited(self, connection: Any, read: Callable[[], Any]) -> Any:
        """Read what Redis calls a connection, then what it is waited for."""
        number = _number(connection)
        self._nameless = not number
        try:
            self._blocked.add(number)
            return read()
        finally:
            self._blocked.discard(number)

    def unblock(self, through: "Client") -> None:
        """Let those end who wait: what was given to them they have, and nothing is on its way; or
        else cut them off.
        """
        try:
            for number in list(self._blocked):
                through.call("CLIENT", "UNBLOCK", number or "unknown")
        except QueueError:
            self.close()

    def scan(
        self, near: str, cursor: Any, pattern: str, count: int, kind: str | None = "list"
    ) -> tuple[Any, list[bytes]]:
        """Look for keys in the server that has the key `near`; give back the cursor to go on with,
        0 at the end.
        """
        with self._turn() as opened:
            command = (
                "SCAN",
                cursor,
                "MATCH",
                pattern,
                *(("TYPE", kind) if kind else ()),
                "COUNT",
                count,
            )
            answer = _call(opened, opened.commands, command, near)
            if isinstance(answer, dict):
                [answer] = answer.values()
            following, found = answer
            return (
                next(iter(following.values())) if isinstance(following, dict) else following
            ), found

    @contextlib.contextmanager
    def subscribed(self, channel: str) -> Iterator[Callable[[float], list[bytes]]]:
        """Listen on a channel; what is yielded returns what was said within so many seconds."""
        listening = self._opened().blocking.pubsub(ignore_subscribe_messages=True)
        with self._translated():
            listening.subscribe(channel)
            listening.get_message(
                timeout=self._options.timeout.total_seconds()
            )  # once it answers, nothing is missed

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
        return self._opened().clustered

    def close(self) -> None:
        """Close all connections; the next command opens them again."""
        with self._lock:
            opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def _opened(self) -> Opened:
        opened = self._open
        if opened is None:
            with self._translated():
                made = open_connections(self._options, LONGEST_BLOCK)
            with self._lock:
                opened = self._open = self._open or made
                warn, self._warned = made.warning if not self._warned else None, True
            if warn is not None:
                logger.warning("%s", warn)
            if opened is not made:
                made.close()  # another thread was faster
        return opened

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Opened]:
        """Wait for our turn to run a command, when as many as may be are under way."""
        opened, most = self._opened(), self._options.max_connections
        with self._lock:
            if self._under_way >= most and not self._lock.wait_for(
                lambda: self._under_way < most, self._options.timeout.total_seconds()
            ):
                raise QueueUnavailable(
                    f"Redis: {most} commands are under way, as many as max_connections lets"
                )
            self._under_way += 1
        try:
            with self._translated():
                yield opened
        finally:
            with self._lock:
                self._under_way -= 1
                self._lock.notify()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except AuthenticationError as error:
            raise QueueError(f"Redis refused our name or password: {error}") from error
        except AWAY as error:
            if distrusted(error):
                raise QueueError(
                    f"Redis has a certificate that we do not trust; is tls.ca its CA? {error}"
                ) from error
            if isinstance(error, ReadOnlyError | MasterDownError):
                self.close()  # a failover: the address may lead to another server now
            doubt = (
                isinstance(error, TimeoutError)
                and self._options.tls is not None
                and self._open is None
            )
            raise QueueUnavailable(
                told(error) + ("; does it speak TLS at that port?" if doubt else "")
            ) from error
        except (ResponseError, DataError) as error:
            said = str(error).partition(": -")[2] or str(
                error
            )  # of a script, Redis 6.2 says first where in it
            if said.startswith("READONLY"):
                self.close()
            if said.startswith(ALSO_AWAY):
                raise QueueUnavailable(told(error)) from error
            raise QueueError(told(error)) from error
        except (RedisError, OSError) as error:
            raise QueueUnavailable(told(error)) from error


def _call(opened: Opened, connections: Any, command: Sequence[Any], near: str | None = None) -> Any:
    if opened.clustered:
        return connections.execute_command(*command, **_at(connections, near))
    with lent(connections.connection_pool) as connection:
        _send(connection, *command)
        return connections.parse_response(connection, command[0])


def _run(opened: Opened, what: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
    try:
        if opened.clustered:
            return opened.commands.execute_command("EVALSHA", what.sha, len(keys), *keys, *args)
        with lent(opened.commands.connection_pool) as connection:
            _send(connection, "EVALSHA", what.sha, len(keys), *keys, *args)
            return connection.read_response()
    except NoScriptError:
        return _call(opened, opened.commands, ("EVAL", what.text, len(keys), *keys, *args))


def _send(connection: Any, *command: Any) -> None:
    """Send a command; redis-py would look at each of its values, and a batch has thousands."""
    connection.send_packed_command([hiredis.pack_command(command)])


def _send_all(connection: Any, *commands: Sequence[Any]) -> None:
    connection.send_packed_command([b"".join(map(hiredis.pack_command, map(tuple, commands)))])


def _number(connection: Any) -> int:
    """Read what Redis calls a connection; 0 if we may not ask."""
    try:
        return int(connection.read_response())
    except ResponseError:
        return 0


def _answer(
    opened: Opened, connection: Any, what: Script, keys: Sequence[str], args: Sequence[Any]
) -> Any:
    try:
        return connection.read_response()
    except NoScriptError:
        return _run(opened, what, keys, args)


def _at(cluster: Any, near: str | None) -> dict[str, Any]:
    return {"target_nodes": cluster.get_node_from_key(near)} if near else {}
