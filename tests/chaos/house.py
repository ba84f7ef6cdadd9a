"""The servers under attack: a Postgres and a Redis, each on a disk of its own that can be full."""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import redis

from scheduler.embedded.account import account, temporary_folder
from scheduler.embedded.folder import Folder
from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import redis_binary
from scheduler.errors import ConfigError
from tests.support.waiting import wait_for

ROOMY = "8g"  # of a tmpfs only what is used costs memory
LARGEST_FILE = 1 << 20
LAST_SECOND = 1.0
FORGETFUL = ("empty", "last second lost")


class Disk:
    """A folder that can be full: as root a tmpfs that shrinks to what is in it, else no file may
    grow.
    """

    def __init__(self, prefix: str) -> None:
        self.folder = temporary_folder(prefix, account())
        self._mounted = os.geteuid() == 0 and self._mount(f"size={ROOMY},mode=0755")

    def fill(self, *servers: int) -> None:
        """Leave no room."""
        if self._mounted:
            found = os.statvfs(self.folder)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            self._mount(f"remount,size={used}")
        else:
            self._limit(servers, LARGEST_FILE)

    def clear(self, *servers: int) -> None:
        """Give it room again."""
        if self._mounted:
            self._mount(f"remount,size={ROOMY}")
        else:
            self._limit(servers, resource.RLIM_INFINITY)

    def remove(self) -> None:
        """Take it away."""
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _mount(self, options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def _limit(self, servers: tuple[int, ...], size: int) -> None:
        for pid in [each for server in servers for each in (server, *children(server))]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def children(pid: int) -> list[int]:
    """List the processes that a process has started."""
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Postgres:
    """A durable server; `socket` is where roads lead."""

    def __init__(self) -> None:
        self._disk = Disk("chaos-pg-")
        self._server = EmbeddedPostgres(self._disk.folder / "data")
        self.dsn = ""

    @property
    def socket(self) -> str:
        return f"{self._server.socket_folder}/.s.PGSQL.5432"

    def start(self) -> None:
        self.dsn = self._server.start()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_connections = 300")
        self.restart("fast", 0.0)

    def restart(self, how: str, seconds: float) -> None:
        """Stop it and start it again after so long."""
        self._server.halt(mode=how)
        time.sleep(seconds)
        self._resume()

    def no_space(self, how: str, seconds: float) -> None:
        """Let its disk be full for so long; it may die of that."""
        self._disk.fill(self._postmaster())
        time.sleep(seconds)
        self._disk.clear(self._postmaster())
        self._resume()

    def stop(self) -> None:
        self._server.stop()
        self._disk.remove()

    def _resume(self) -> None:
        """Start it unless it runs; one that is about to die is started once it has."""

        def answers() -> bool:
            try:
                self._server.resume()
                psycopg.connect(self.dsn, connect_timeout=2).close()
            except (ConfigError, psycopg.Error):
                return False
            return True

        wait_for(answers, "Postgres is back", timeout=60, every=0.1)

    def _postmaster(self) -> int:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(
                (Path(self._server.socket_folder) / "postmaster.pid").read_text().split("\n")[0]
            )
        return 0


class Redis:
    """A server that appends what it does to a file."""

    def __init__(self) -> None:
        user = account()
        self._disk = Disk("chaos-redis-")
        user.own(self._disk.folder)
        self._folder = Folder(self._disk.folder, name="Redis", user=user, temporary=False)
        self._binary = redis_binary()
        if user.closed(Path(self._binary)):
            self._binary = shutil.copy(self._binary, str(self._disk.folder))
        self._pid = 0
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]

    def start(self) -> bool:
        """Start it on what is on its disk, and say whether that is lost: a full disk may leave what
        it cannot read.
        """
        try:
            self._start()
        except ConfigError as error:
            if "Bad file format" not in str(error):
                raise
            self._empty()
            self._start()
            return True
        return False

    def _start(self) -> None:
        """Start it; it answers when it has read what there is."""
        if not self._folder.joined:
            self._folder.join()
        command = [
            self._binary,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
            "--aof-load-truncated",
            "yes",
            "--maxmemory-policy",
            "noeviction",
            "--dir",
            str(self._disk.folder),
        ]
        self._folder.keep(command, [signal.SIGTERM, signal.SIGKILL], dict(os.environ))
        self._folder.wait(self._answers)

    def restart(self, how: str, seconds: float) -> bool:
        """Stop it and start it again after so long: `in order`, `killed`, `empty`, or with its last
        second lost.

        Say whether it forgot anything.
        """
        files = (
            {path: path.stat().st_size for path in self._files(".aof")}
            if how == "last second lost"
            else {}
        )
        if files:
            time.sleep(LAST_SECOND)
        self._end(signal.SIGTERM if how == "in order" else signal.SIGKILL)
        if how == "empty":
            self._empty()
        for path, size in files.items():
            if path.exists():  # a rewrite would have kept all of it
                os.truncate(path, min(size, path.stat().st_size))
        time.sleep(seconds)
        return self.start() or how in FORGETFUL

    def flush(self, how: str, seconds: float) -> bool:
        """Let it forget everything."""
        with self._client() as client:
            return bool(client.flushall())

    def no_space(self, how: str, seconds: float) -> bool:
        """Let its memory or its disk be full for so long; say whether it forgot anything."""
        forgot = False
        if how == "disk":
            self._disk.fill(self._pid)
        else:
            self._limit_memory(1)
        time.sleep(seconds)
        if how == "disk":
            self._disk.clear(self._pid)
            if not self._folder.kept():  # without a tmpfs it dies of that
                forgot = self.start()
            wait_for(self._writes, "Redis writes again", every=0.02)
        else:
            self._limit_memory(0)
        return forgot

    def stop(self) -> None:
        self._folder.leave()
        self._disk.remove()

    def _writes(self) -> bool:
        with contextlib.suppress(redis.RedisError), self._client() as client:
            return bool(client.set("chaos", "writes"))
        return False

    def _limit_memory(self, limit: int) -> None:
        with self._client() as client:
            client.config_set("maxmemory", limit)

    def _empty(self) -> None:
        for path in list(self._files()):
            path.unlink()

    def _files(self, ending: str = "") -> Iterator[Path]:
        return (path for path in self._disk.folder.rglob(f"appendonly*{ending}") if path.is_file())

    def _end(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)
        self._folder.end(what=number.name)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), self._client() as client:
            self._pid = int(client.info("server")["process_id"])
            return bool(client.ping())
        return False

    @contextlib.contextmanager
    def _client(self) -> "Iterator[redis.Redis]":
        with contextlib.closing(redis.Redis(port=self.port, socket_timeout=10)) as client:
            yield client


class House:
    """Both of them."""

    def __init__(self) -> None:
        self.postgres = Postgres()
        self.redis = Redis()

    def __enter__(self) -> Self:
        try:
            self.postgres.start()
            self.redis.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.redis.stop()
        self.postgres.stop()
