"""What every bench here needs: servers, peers in processes of their own, CPU pinning, medians, a
table, a file.

A peer is a script in peers/ that speaks the command line of peers/commands.py.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import select
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

sys.path.append(sys.path.pop(0))  # this folder comes last: its redis.py is not the library

import psycopg
import redis

from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import EmbeddedRedis

HERE = Path(__file__).resolve().parent
VENVS = Path(os.environ.get("BENCH_VENVS") or HERE / ".venv-bench")
NODE = Path(os.environ.get("BENCH_NODE") or HERE / ".node-bench")
PACKAGES = {
    "apscheduler3": ("apscheduler==3.11.3", "sqlalchemy==2.1.8", "psycopg[binary]==3.3.8"),
    # sniffio is imported and not declared; a newer anyio fails
    "apscheduler4": (
        "apscheduler==4.0.0a6",
        "sqlalchemy[asyncio]==2.1.8",
        "asyncpg==0.32.0",
        "sniffio",
        "anyio==4.9.0",
    ),
    "arq": ("arq==0.28.0", "hiredis==3.5.0", "uvloop==0.23.0"),
    "bullmq": ("bullmq==3.4.4", "hiredis==3.5.0", "uvloop==0.23.0"),
    "celery": ("celery[redis]==5.7.0", "hiredis==3.5.0"),
    "dramatiq": ("dramatiq[redis]==2.2.1", "hiredis==3.5.0"),
    "huey": ("huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"),
    "pgqueuer": ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0", "orjson"),
    "procrastinate": ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8"),
    "rq": ("rq==2.12.0", "hiredis==3.5.0"),
    "saq": ("saq[redis,hiredis]==0.26.4", "typing_extensions", "uvloop==0.23.0"),
    "taskiq": ("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis==3.5.0", "uvloop==0.23.0"),
    "node-bullmq": ("node@22", "bullmq@6.7.0", "ioredis@6.0.0"),
    "graphile-worker": ("node@22", "graphile-worker@0.18.0"),
    "pg-boss": ("node@22", "pg-boss@12.35.0"),
}
NODES = ("node-bullmq", "graphile-worker", "pg-boss")
RECORD = struct.Struct("<dII")
TICKS = os.sysconf("SC_CLK_TCK")
CALM = 0.4  # cores that other work on the machine may take


class Stamp(NamedTuple):
    """What a body wrote when it started: the time, the second it was due, and its number."""

    start: float
    due: int
    number: int


class Stamps:
    """The file that bodies append to, 16 bytes a start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clear()

    def clear(self) -> None:
        self.path.write_bytes(b"")

    def count(self) -> int:
        return self.path.stat().st_size // RECORD.size

    def read(self) -> list[Stamp]:
        data = self.path.read_bytes()
        return [
            Stamp(*record)
            for record in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])
        ]

    def wait(self, count: int, *, limit: float, quiet: float = 0.0) -> bool:
        """Wait for `count` stamps and then until none comes for `quiet` seconds; say whether they
        came.
        """
        end = time.monotonic() + limit
        seen, since = -1, time.monotonic()
        while time.monotonic() < end:
            if (found := self.count()) != seen:
                seen, since = found, time.monotonic()
            if found >= count and time.monotonic() - since >= quiet:
                return True
            time.sleep(0.01)
        return self.count() >= count


def until(holds: Callable[[], bool], limit: float) -> bool:
    """Wait until something holds, for so many seconds at most; to ask takes a tenth of the time at
    most.
    """
    end = time.monotonic() + limit
    while (asked := time.monotonic()) < end:
        if holds():
            return True
        time.sleep(max(0.005, 10 * (time.monotonic() - asked)))
    return False


class Server:
    """A durable Postgres of this run on a Unix socket, with a database `bench` that `reset` makes
    anew.
    """

    def __init__(self, cpus: str | None) -> None:
        self._cpus = cpus
        self._folder = Path(tempfile.mkdtemp(prefix="bench-postgres-"))
        self._postgres = EmbeddedPostgres(self._folder, durable=True)

    def __enter__(self) -> Self:
        self._postgres.start()
        self.url = f"postgresql://postgres@/bench?host={self._postgres.socket_folder}"
        self._place()
        return self

    def __exit__(self, *_: object) -> None:
        self._postgres.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def sql(self, *queries: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run queries one by one and return the rows of the last."""
        dsn = self.url.replace("/bench?", f"/{database}?")
        with psycopg.connect(dsn, autocommit=True) as connection:
            for query in queries:
                cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def counting(self, query: str) -> Iterator[Callable[[], int]]:
        """Yield what runs a query again and again, on a connection that stays: a new one is dear to
        the server.
        """
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield lambda: connection.execute(query).fetchone()[0]

    def reset(self) -> None:
        """Make an empty database; the checkpoint keeps the dirty pages of one measurement out of
        the next.
        """
        self.sql(
            "DROP DATABASE IF EXISTS bench WITH (FORCE)", "CREATE DATABASE bench", "CHECKPOINT"
        )

    def allow(self, connections: int) -> None:
        """Take so many connections at once; the server is started anew."""
        self.sql(f"ALTER SYSTEM SET max_connections = {connections}")
        self._postgres.halt()
        self._postgres.resume()
        self._place()

    def settle(self) -> None:
        """Do what autovacuum does by itself for tables that grow more slowly than ours."""
        self.sql("VACUUM ANALYZE", database="bench")

    def cpu(self) -> float:
        return cpu_seconds(self.pid)

    def _place(self) -> None:
        self.pid = int((self._folder / "postmaster.pid").read_text().split()[0])
        pin(self.pid, self._cpus)  # backends to come inherit it


class Redis:
    """A Redis of this run without persistence, on a free port."""

    def __init__(self, cpus: str | None) -> None:
        self._cpus = cpus
        self._redis = EmbeddedRedis()

    def __enter__(self) -> Self:
        self.url = self._redis.start()
        self.client = redis.Redis.from_url(
            self.url, socket_timeout=120
        )  # to forget ten million jobs takes long
        self.pid = self.client.info("server")["process_id"]
        pin(self.pid, self._cpus)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._redis.stop()

    def reset(self) -> None:
        self.client.flushall()
        self.client.config_resetstat()

    def settle(self) -> None:
        """Nothing has to be done after a queue was filled."""

    def ask(self, expression: str) -> int:
        """Evaluate a Lua expression."""
        return int(self.client.eval(f"return {expression}", 0) or 0)

    def memory(self) -> int:
        return int(self.client.info("memory")["used_memory"])

    def cpu(self) -> float:
        return cpu_seconds(self.pid)

    @contextlib.contextmanager
    def monitored(self) -> Iterator[Callable[[], int]]:
        """Watch a block; the yielded function says how many commands clients have sent, not
        counting those of scripts.

        INFO counts both together; MONITOR marks the lines of scripts. A pipeline counts as many as
        it has commands.
        """
        counted, stop = 0, threading.Event()
        with socket.create_connection(("127.0.0.1", self._redis.port)) as connection:
            for command in (f"AUTH {self._redis.password}", "MONITOR"):
                connection.sendall(f"{command}\r\n".encode())
                connection.recv(16)
            connection.settimeout(0.2)

            def count() -> None:
                nonlocal counted
                rest = b""
                while not stop.is_set():
                    with contextlib.suppress(TimeoutError):
                        *lines, rest = (rest + connection.recv(1 << 20)).split(b"\r\n")
                        counted += sum(b" lua] " not in line[:40] for line in lines)

            thread = threading.Thread(target=count)
            thread.start()
            try:
                yield lambda: counted
            finally:
                stop.set()
                thread.join()


@dataclass
class Peer:
    """A contestant: its interpreter, its script in peers/, and what its processes find in their
    environment.
    """

    name: str
    python: Path
    script: str
    environment: dict[str, str]
    log: Path
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.info = self.call("info")

    def call(self, *arguments: object, cpus: str | None = None) -> dict[str, Any]:
        """Run a command to its end and return its answer."""
        with self.calling(*arguments, cpus=cpus) as answer:
            return answer

    @contextlib.contextmanager
    def calling(self, *arguments: object, cpus: str | None = None) -> Iterator[dict[str, Any]]:
        """Run a command; yield its answer as soon as it has one. Whoever takes part in the work
        stays until the end.
        """
        process = self._start(arguments, cpus)
        alarm = threading.Timer(600, process.kill)
        alarm.start()
        try:
            answer = next((line for line in process.stdout if line.startswith("{")), None)
            if answer is not None:
                yield json.loads(answer)
            process.communicate()
        finally:
            alarm.cancel()
            process.kill()
        if process.returncode or answer is None:
            raise RuntimeError(
                f"{self.name} {arguments}: exit {process.returncode}, see {self._keep_log()}"
            )

    @contextlib.contextmanager
    def serving(
        self, *jobs: object, cpus: str | None = None, processes: int = 1
    ) -> Iterator[list[subprocess.Popen]]:
        """Run instances that have these jobs; they are ready when this begins and killed when it
        ends.
        """
        running = [self._start(("serve", *jobs), cpus) for _ in range(processes)]
        try:
            for process in running:
                if (
                    not select.select([process.stdout], [], [], 120)[0]
                    or "ready" not in process.stdout.readline()
                ):
                    raise RuntimeError(f"{self.name}: did not get ready, see {self._keep_log()}")
            yield running
        finally:
            for process in running:
                process.kill()
                process.communicate()

    def _start(self, arguments: Sequence[object], cpus: str | None) -> subprocess.Popen:
        command = [str(self.python), str(HERE / "peers" / self.script), *map(str, arguments)]
        with self.log.open("a") as log:
            return subprocess.Popen(
                [*(["taskset", "-c", cpus] if cpus else []), *command],
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _keep_log(self) -> Path:
        kept = Path(tempfile.gettempdir()) / f"bench-{self.name}.log"
        shutil.copy(self.log, kept)
        return kept


class Pins(NamedTuple):
    """Which CPUs the server, a lone client, and several clients run on; None: the kernel
    chooses.
    """

    server: str | None
    client: str | None
    clients: str | None

    @classmethod
    def of(cls, mode: str) -> "Pins":
        """split: the server on CPU 0, a lone client on CPU 1, several on both; same: all on CPU
        0.
        """
        if mode == "none" or not shutil.which("taskset") or (os.cpu_count() or 1) < 2:
            return cls(None, None, None)
        return cls("0", "0", "0") if mode == "same" else cls("0", "1", "0,1")


def environment(name: str, *packages: str) -> Path:
    """Return the interpreter of a peer's own virtual environment, made on first use."""
    python = VENVS / name / "bin" / "python"
    if not python.exists():
        say(f"installing {' '.join(packages)} into {VENVS / name}")
        VENVS.mkdir(parents=True, exist_ok=True)
        (VENVS / ".gitignore").write_text("*\n")
        subprocess.run([sys.executable, "-m", "venv", VENVS / name], check=True)
        try:
            subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        except BaseException:
            shutil.rmtree(VENVS / name, ignore_errors=True)
            raise
    return python


def node(name: str, *packages: str) -> Path:
    """Return the Node of a peer's own folder of packages, made on first use."""
    binary = NODE / name / "node_modules" / ".bin" / "node"
    if not binary.exists():
        say(f"installing {' '.join(packages)} into {NODE / name}")
        (NODE / name).mkdir(parents=True, exist_ok=True)
        (NODE / ".gitignore").write_text("*\n")
        try:
            command = [
                "npm",
                "install",
                "--silent",
                "--no-fund",
                "--no-audit",
                "--prefix",
                NODE / name,
                *packages,
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=NODE / name)
        except BaseException:
            shutil.rmtree(NODE / name, ignore_errors=True)
            raise
    return binary


def installed(name: str) -> Path | None:
    """Return what runs a peer; None, and say what it needs, if it cannot be installed."""
    packages, home = PACKAGES[name], (NODE if name in NODES else VENVS) / name
    try:
        return node(name, *packages) if name in NODES else environment(name, *packages)
    except (subprocess.CalledProcessError, OSError):
        wanted = " ".join(f"'{package}'" for package in packages)
        kind = "npm packages" if name in NODES else "environment"
        say(f"{name} is left out: make its {kind} in {home} and install {wanted} into it")
        return None


def pin(pid: int, cpus: str | None) -> None:
    """Pin a process, its threads and its descendants."""
    for member in tree(pid) if cpus else []:
        for task in Path(f"/proc/{member}/task").iterdir():
            os.sched_setaffinity(int(task.name), {int(cpu) for cpu in cpus.split(",")})


def tree(pid: int) -> list[int]:
    """List a process and its living descendants."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
            found.append(pid)
    return found


def cpu_seconds(pid: int) -> float:
    """Add up the CPU of a process and its descendants, those that ended included."""
    total = 0
    for member in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15]))
    return total / TICKS


@contextlib.contextmanager
def elsewhere() -> Iterator[Callable[[], float]]:
    """Watch a block; afterwards the yielded function says how many cores went to work that was not
    the bench's.

    Servers and peers are descendants of the bench, and so count as its own.
    """

    def foreign() -> float:
        user, nice, system, _, _, irq, softirq, steal, *_ = map(
            int, Path("/proc/stat").read_text().split()[1:11]
        )
        return (user + nice + system + irq + softirq + steal) / TICKS - cpu_seconds(os.getpid())

    began, before = time.monotonic(), foreign()
    cores = 0.0
    yield lambda: cores
    cores = max(0.0, foreign() - before) / max(0.01, time.monotonic() - began)


def quiet(patience: float) -> None:
    """Wait until other work leaves the machine alone, at most so many seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        with elsewhere() as busy:
            time.sleep(0.5)
        if busy() < CALM:
            return


def speed() -> float:
    """Count how often a fixed Python loop runs in a second, in thousands: compare runs by it, with
    care.
    """
    end, count = time.perf_counter() + 0.3, 0
    while time.perf_counter() < end:
        sum(range(100))
        count += 1
    return count / 0.3 / 1000


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def number(value: float) -> str:
    return (
        f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:,.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
    )


def spread(values: Sequence[float]) -> str:
    """Show a median and, of several values, the least and the greatest."""
    if not values:
        return "-"
    middle = number(statistics.median(values))
    return (
        middle if len(values) == 1 else f"{middle} ({number(min(values))}..{number(max(values))})"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table that reads well in a terminal and in Markdown."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        for row in (head, *rows)
    ]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def load(name: str) -> ModuleType:
    """Import another bench, by its path: redis.py has the name of a library."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", HERE / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def machine(server: Server | None = None, queues: Redis | None = None) -> dict[str, Any]:
    """Describe where and on what a bench ran."""
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next(
        (line.split(":")[1].strip() for line in cpuinfo.splitlines() if "model name" in line), ""
    )
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "cpu": f"{os.cpu_count()} x {model or platform.processor()}",
        "python": platform.python_version(),
        "postgres": server and server.sql("SHOW server_version")[0][0],
        "fsync": server and server.sql("SHOW fsync")[0][0],
        "redis": queues and queues.client.info("server")["redis_version"],
        "load": os.getloadavg()[0],
        "speed": speed(),
    }


def store(name: str, result: dict[str, Any]) -> Path:
    """Write a result to results/<name>-<date>.json."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{datetime.now(UTC):%Y-%m-%d-%H%M}.json"
    path.write_text(json.dumps(result, indent=1, default=str) + "\n")
    return path


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Begin a bench's command line with what all of them take; a bench that is stopped stops what
    it started.
    """
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda which, _: sys.exit(f"stopped by signal {which}"))
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reps", type=int, default=3, help="interleaved repetitions (default 3)")
    parser.add_argument(
        "--pin", choices=["split", "same", "none"], default="split", help=Pins.of.__doc__
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=20.0,
        help="seconds to wait for a quiet machine, each time",
    )
    parser.add_argument(
        "--tries", type=int, default=3, help="measurements, where other work disturbs them"
    )
    parser.add_argument("--quick", action="store_true", help="a small look of half a minute")
    return parser


def say(message: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {message}", file=sys.stderr, flush=True)
