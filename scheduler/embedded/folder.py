"""A server's folder, and the locks in it by which processes share the server.

`start.lock` is held by whoever starts it, `users.lock` shared by everybody who uses it,
`server.lock` by its keeper. The kernel drops a dead process's locks: a crash is a way of leaving
like any other.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from scheduler.embedded import keeper
from scheduler.embedded.account import Account
from scheduler.errors import ConfigError

PATIENCE = 60.0

_left_running: list["subprocess.Popen[bytes]"] = []  # keepers of servers that others still use


class Folder:
    """Starts, shares and leaves the server of a folder; `name` is what errors call it."""

    def __init__(self, path: Path, *, name: str, user: Account, temporary: bool) -> None:
        self.path = path
        self._name = name
        self._user = user
        self._temporary = temporary
        self._joined: IO[bytes] | None = None
        self._joined_in = 0
        self._keeper: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Be the only one who starts the server."""
        with self._open("start.lock") as lock:
            self._lock(lock, fcntl.LOCK_EX, "another process has been starting it")
            yield

    def join(self) -> None:
        """Use the server: it lives at least as long as this process, or until `leave`."""
        lock = self._open("users.lock")
        try:
            self._lock(lock, fcntl.LOCK_SH, "it has been ending")
        except BaseException:
            lock.close()
            raise
        self._joined, self._joined_in = lock, os.getpid()

    def keep(
        self, command: Sequence[str], signals: Sequence[signal.Signals], environment: dict[str, str]
    ) -> None:
        """Let a keeper run the server; the caller waits until it answers."""
        arguments = [
            sys.executable,
            "-I",
            "-S",
            keeper.__file__,
            str(self.path),
            "remove" if self._temporary else "keep",
            str(self._user.uid),
            str(self._user.gid),
            ",".join(str(int(number)) for number in signals),
            *command,
        ]
        self._reap()
        with (self.path / "server.log").open("wb") as log:
            self._keeper = subprocess.Popen(  # noqa: S603 - our own file
                arguments,
                cwd="/",
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until the server answers, or raise what its log says."""
        if not until(lambda: ready() or self._failed()) or self._failed():
            raise ConfigError(
                f"embedded {self._name} did not start in {self.path}: {self._last_words()}"
            )

    def kept(self) -> bool:
        """Whether the server runs under a keeper."""
        return self._taken("server.lock", fcntl.LOCK_SH)

    def end(self, *, what: str) -> None:
        """Wait until the server has ended."""
        if not until(lambda: not self.kept()):
            raise ConfigError(f"embedded {self._name} in {self.path} did not end: {what}")
        self._reap()

    def leave(self) -> None:
        """Use the server no more; returns when it has ended, or as soon as it is clear that others
        use it.
        """
        lock, self._joined = self._joined, None
        if lock is None:
            return
        with lock:
            if self._joined_in != os.getpid():
                return  # inherited through a fork: closing our copy says nothing about our parent
            fcntl.flock(lock, fcntl.LOCK_UN)
        until(lambda: not self.kept() or self._others())
        self._reap()
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)

    @property
    def joined(self) -> bool:
        """Whether this process uses the server."""
        return self._joined is not None

    def _others(self) -> bool:
        if self._temporary:
            return False
        # Nobody but users holds it shared: the keeper takes it whole, once and for all.
        return self._taken("users.lock", fcntl.LOCK_EX) and not self._taken(
            "users.lock", fcntl.LOCK_SH
        )

    def _taken(self, name: str, kind: int) -> bool:
        try:
            with (self.path / name).open("rb") as lock:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False

    def _open(self, name: str) -> IO[bytes]:
        try:
            return (self.path / name).open("ab")
        except OSError as error:
            raise ConfigError(
                f"embedded {self._name}: {self.path} cannot be used ({error.strerror}); set "
                "SCHEDULER_HOME to a folder"
                " of yours"
            ) from None

    def _lock(self, lock: IO[bytes], kind: int, otherwise: str) -> None:
        def locked() -> bool:
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not until(locked):
            raise ConfigError(
                f"embedded {self._name} in {self.path}: {otherwise} for {PATIENCE:.0f} s"
            )

    def _failed(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is not None and not self.kept()

    def _last_words(self) -> str:
        try:
            lines = (self.path / "server.log").read_text(errors="replace").split("\n")
        except OSError:
            lines = []
        words = [line.strip() for line in lines if line.strip()]
        telling = [
            line for line in words if "FATAL" in line or "DETAIL" in line or "rror" in line
        ] or words[-1:]
        return "; ".join(telling[:3]) or "it said nothing"

    def _reap(self) -> None:
        process, self._keeper = self._keeper, None
        if process is None:
            return
        if self.kept():
            _left_running.append(process)
            return
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            _left_running.append(process)


def until(done: Callable[[], bool], *, patience: float = PATIENCE) -> bool:
    """Wait until something is true, and say whether it became so in time."""
    end = time.monotonic() + patience
    pause = threading.Event()
    while not done():
        if time.monotonic() > end:
            return False
        pause.wait(0.01)
    return True
