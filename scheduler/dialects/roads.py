"""The roads to Redis: one server, a cluster, or whichever server Sentinel names; and a first look
at who answers.

redis-py repeats no command for us, because a script that was not answered may have run. Only the
opening of a connection is tried again.
"""

import contextlib
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,  # noqa: A004
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004
)
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from scheduler.dialects.lending import MasterPool, Pool
from scheduler.errors import ConfigError, QueueError
from scheduler.model.addresses import MOST_CONNECTIONS, RedisOptions, Tls

OLDEST = (6, 2)


@dataclass(frozen=True, slots=True)
class RedisEvicts:
    """A Redis that throws keys away when it is full; logged as a warning, as this value."""

    policy: str

    def __str__(self) -> str:
        return (
            f"Redis: maxmemory-policy is {self.policy}: when full it forgets jobs and leases; set "
            "it to noeviction"
        )


@dataclass(frozen=True, slots=True)
class Opened:
    """Connections for commands, others for those that block, and what was seen of the server."""

    commands: Any
    blocking: Any
    clustered: bool
    warning: RedisEvicts | None

    def close(self) -> None:
        """Close all connections."""
        _close(self.commands, self.blocking)


def check_files(tls: Tls | None) -> None:
    """Raise if the files for TLS cannot be used."""
    if tls is None:
        return
    what = f"ca {tls.ca!r}"
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            what = f"cert {tls.cert!r} with key {tls.key!r}"
            context.load_cert_chain(
                tls.cert, tls.key, password=""
            )  # or it would ask at the terminal
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"redis.tls: cannot use {what}: {error}") from None


def open_connections(options: RedisOptions, longest_block: float) -> Opened:
    """Find out what is there, and connect."""
    commands, server, warning = _found(options)
    clustered = server.get("mode") == "cluster"
    longer = options.timeout.total_seconds() + longest_block
    if not clustered:
        opened = Opened(commands, _server(options, longer), clustered, warning)
    else:
        _close(commands)
        opened = Opened(_cluster(options), _cluster(options, longer), clustered, warning)
    try:
        _warm(opened, options.min_idle)
    except BaseException:
        opened.close()
        raise
    return opened


def _found(options: RedisOptions) -> tuple[Any, dict[str, str], RedisEvicts | None]:
    """Connect to the first address where somebody answers, and ask who it is."""
    roads: Sequence[tuple[str, int] | None] = (
        [None] if options.master or options.path else options.hosts
    )
    for place, host in enumerate(roads, 1):
        connected = _server(options, host=host)
        try:
            return connected, _checked(_asked(connected), options), _evicts(connected)
        except BaseException as error:
            _close(connected)
            away = isinstance(error, ConnectionError | TimeoutError) and not isinstance(
                error, AuthenticationError
            )
            if not away or place == len(roads):
                raise
    raise AssertionError


def _asked(connected: Any) -> dict[str, str]:
    """Ask a server who it is, with the one command that every user may run."""
    try:
        return _read(connected.execute_command("HELLO"))
    except ResponseError as error:
        if "unknown command" in str(error).lower():
            raise QueueError(
                "Redis: this server does not know HELLO; Redis 6.2 or newer is needed"
            ) from error
        raise


def _read(answer: Any) -> dict[str, str]:
    if not isinstance(answer, list):
        return {}
    said = {key.decode(): value for key, value in zip(answer[::2], answer[1::2], strict=True)}
    return {key: value.decode() for key, value in said.items() if isinstance(value, bytes)}


def _checked(server: dict[str, str], options: RedisOptions) -> dict[str, str]:
    version, mode = server.get("version", "something else"), server.get("mode")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        raise QueueError(f"Redis: this server is {version}; Redis 6.2 or newer is needed")
    if mode == "sentinel":
        raise QueueError(
            "Redis: this is a Sentinel; write redis+sentinel://host:26379/mymaster to find its "
            "server"
        )
    if mode == "cluster":
        if options.path is not None:
            raise QueueError(
                "Redis: this is a cluster; write redis://host,host with some of its nodes"
            )
    elif options.master is None and len(options.addresses) > 1:
        raise QueueError(
            "Redis: several addresses are for a cluster, and this server is none; name one, or "
            "write"
            " redis+sentinel://host,host/mymaster if these are Sentinels"
        )
    return server


def _evicts(connected: Any) -> RedisEvicts | None:
    try:
        policy = connected.execute_command("INFO", "memory").get("maxmemory_policy", "noeviction")
    except ResponseError:
        return None  # we may not ask
    return None if policy == "noeviction" else RedisEvicts(policy)


def _server(
    options: RedisOptions, timeout: float | None = None, *, host: tuple[str, int] | None = None
) -> Any:
    """One server: at its Unix socket, at a host, or where Sentinel says."""
    settings = {**_settings(options, timeout), "db": options.db, "retry": Retry(NoBackoff(), 0)}
    master: Any = MasterPool
    if options.path is not None:
        del settings["socket_keepalive"]
        pool = Pool(connection_class=UnixDomainSocketConnection, path=options.path, **settings)
    elif options.master is not None:
        pool = master(
            options.master, _Sentinels(options), redis_connect_func=_as_master, **settings
        )
    else:
        name, port = host or options.hosts[0]
        kind = SSLConnection if settings.pop("ssl", False) else Connection
        pool = Pool(connection_class=kind, host=name, port=port, **settings)
    pool.tries = options.max_retries
    return redis.Redis.from_pool(pool)


def _cluster(options: RedisOptions, timeout: float | None = None) -> Any:
    node: Any = ClusterNode
    nodes = [node(host, port) for host, port in options.hosts]
    return redis.RedisCluster(
        startup_nodes=nodes, retry=Retry(NoBackoff(), 0), **_settings(options, timeout)
    )


def _settings(options: RedisOptions, timeout: float | None) -> dict[str, Any]:
    return {
        "username": options.username,
        "password": options.password,
        "socket_timeout": options.timeout.total_seconds() if timeout is None else timeout,
        "socket_connect_timeout": options.dial_timeout.total_seconds(),
        "socket_keepalive": True,
        "max_connections": MOST_CONNECTIONS,
        "protocol": 2,
        **_tls(options.tls),
    }


def _tls(tls: Tls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    return {
        "ssl": True,
        "ssl_ca_certs": tls.ca,
        "ssl_certfile": tls.cert,
        "ssl_keyfile": tls.key,
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": tls.check_hostname,
    }


class _Sentinels:
    """Asks one Sentinel after the other, beginning with the one that was right the last time."""

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        self._first = 0

    def doubt(self) -> None:
        """Begin with another: this one may be cut off from the others, and not know of a
        failover.
        """
        self._first += 1

    def discover_master(self, name: str) -> tuple[str, int]:
        """Find out where a server is."""
        hosts, first = self._options.hosts, self._first
        silent: list[Exception] = []
        for place in range(first, first + len(hosts)):
            try:
                found = self._asked(hosts[place % len(hosts)], name)
            except (ConnectionError, TimeoutError) as error:
                if isinstance(error, AuthenticationError):
                    raise
                silent.append(error)
                continue
            if found is not None:
                self._first = place
                return found
        if len(silent) < len(hosts):
            raise ResponseError(
                f"Sentinel knows no server {name!r}; it is the name after `sentinel monitor`"
            )
        raise MasterNotFoundError(
            f"none of {len(hosts)} Sentinels answers: {silent[-1]}"
        ) from silent[-1]

    def _asked(self, host: tuple[str, int], name: str) -> tuple[str, int] | None:
        options = self._options
        settings = _settings(options, options.dial_timeout.total_seconds())
        settings |= {"username": options.sentinel_username, "password": options.sentinel_password}
        asked: Any = redis.Redis(host[0], host[1], retry=Retry(NoBackoff(), 0), **settings)
        try:
            found = asked.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        except AuthenticationError as error:
            raise AuthenticationError(f"Sentinel: {error}") from error
        finally:
            _close(asked)
        return None if found is None else (found[0].decode(), int(found[1]))


def _as_master(connection: Any) -> None:
    """Begin a connection to a server that Sentinel named; it may have been told late that it is
    none any more.
    """
    connection.on_connect()
    connection.send_command("HELLO")
    if _read(connection.read_response()).get("role") != "master":
        raise ConnectionError("the server that Sentinel names is not the master")


def _warm(opened: Opened, count: int) -> None:
    """Open connections before they are needed."""
    nodes = opened.commands.get_primaries() if opened.clustered else []
    for each in [node.redis_connection for node in nodes] or [opened.commands]:
        pool = each.connection_pool
        taken: list[Any] = []
        try:
            taken.extend(pool.get_connection() for _ in range(count))
        finally:
            for connection in taken:
                pool.release(connection)


def _close(*connections: Any) -> None:
    for each in connections:
        with contextlib.suppress(RedisError, OSError):
            each.close()
