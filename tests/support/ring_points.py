"""Fault points: before and after each call of Redis and Postgres that a part of the ring makes, one
can die.

They are found by wrapping the clients, and compared with the call sites that stand in the source.
"""

import ast
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import scheduler
from scheduler.dialects.client import Client
from scheduler.store.engine import BoundedConnection, Database
from scheduler.store.queries import names, statement
from tests.support.lines import append, read_lines

PACKAGE = Path(scheduler.__file__).parent
PARTS = {
    "feeder": "queueing",
    "settler": "queueing",
    "shortcut": "queueing",
    "upkeep": "queueing",
    "consumer": "worker",
    "worker": "worker",
}
DIALECT = ("queue", "finish", "recovery")
CLIENT = ("run", "run_each", "call", "wait", "wait_and_run", "await_entries", "scan")
COMMANDS: dict[str, Callable[..., str]] = {  # what a call is named by, whatever its queue is
    "scan": lambda *_: "SCAN",
    "wait_and_run": lambda command, *_: str(command[0]),
    "await_entries": lambda _, command, *__: str(command),
}
LEDGER = ("run", "rows")
QUEUE = (
    "push",
    "fetch",
    "fetch_next",
    "finish",
    "renew",
    "held",
    "recover",
    "outcomes",
    "acknowledge",
    "known",
    "cancel",
    "epoch",
    "begin",
    "depths",
)
LOOKS = (
    "waits",
    "leave",
    "hand_over",
    "unhandled_types",
)  # of whoever watches, and of those that end in order: no job depends on them


class Points:
    """The fault points of this process: noted in a file as they are first reached; at one of them
    it kills itself.
    """

    def __init__(
        self,
        role: str,
        schema: str,
        path: Path,
        fault: str,
        times: int,
        dying: Callable[[str], None],
    ) -> None:
        self._role = role
        self._path = path
        self._fault = fault
        self._left = times
        self._dying = dying
        self._lock = threading.Lock()
        self._seen: set[tuple[str, str]] = set()
        self._statements = {
            statement(table, name, schema): name
            for table in ("job_queue", "ring")
            for name in names(table)
        }

    def install(self) -> None:
        """Wrap the clients."""
        for method in CLIENT:
            self._wrap(Client, method, COMMANDS.get(method, self._command))
        self._wrap(
            BoundedConnection, "execute", lambda query, *_: self._statements.get(query, "other")
        )
        plain = Database.transaction

        @contextmanager
        def transaction(
            database: Database, deadline: float | None = None
        ) -> Iterator[BoundedConnection]:
            with plain(database, deadline) as connection:
                yield connection
                self.reach("commit", "before")
            self.reach("commit", "after")

        Database.transaction = transaction  # type: ignore[method-assign, assignment]

    def _wrap(self, owner: type, method: str, what: Callable[..., str]) -> None:
        plain = getattr(owner, method)

        @wraps(plain)
        def wrapped(this: Any, *args: Any, **kwargs: Any) -> Any:
            name = what(*args)
            self.reach(name, "before")
            answer = plain(this, *args, **kwargs)
            self.reach(name, "after")
            return answer

        setattr(owner, method, wrapped)

    def _command(self, what: Any, *_: Any) -> str:
        return str(getattr(what, "name", what))

    def reach(self, what: str, when: str) -> None:
        """Be at a point: note it, and die if it is the one."""
        if what in LOOKS:
            return
        frames = list(_frames())
        parts = [(file, function) for file, _, function in frames if Path(file).stem in PARTS]
        if not parts:
            return
        file, function = parts[0]
        name = f"{self._role} {Path(file).stem}.{function} {what} {when}"
        places = ",".join(f"{file}:{line}" for file, line, _ in frames)
        with self._lock:
            if (name, places) not in self._seen:
                self._seen.add((name, places))
                append(self._path, f"{name}\t{places}")
            if name != self._fault:
                return
            self._left -= 1
            if self._left == 0:
                self._dying(name)
                os.kill(os.getpid(), signal.SIGKILL)


def _frames() -> Iterator[tuple[str, int, str]]:
    """Give the frames under us that are of the ring's parts, or of the dialect."""
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if (
            path.parent.name in ("queueing", "worker", "standard", "settling", "dialects")
            and PACKAGE in path.parents
        ):
            yield str(path.relative_to(PACKAGE)), frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]


def read_points(path: Path) -> dict[str, set[str]]:
    """Read the points that were reached, each with the places in the source that led to it."""
    found: dict[str, set[str]] = {}
    for line in read_lines(path):
        name, _, places = line.partition("\t")
        found.setdefault(name, set()).update(places.split(","))
    return found


def sites() -> dict[str, tuple[str, range]]:
    """Find the call sites in the source: of the client in the dialect; of the queue and the ledger
    in the parts.
    """
    found: dict[str, tuple[str, range]] = {}
    files = [f"{package}/{part}.py" for part, package in PARTS.items()] + [
        f"dialects/standard/{part}.py" for part in DIALECT
    ]
    files += ["dialects/settling/reading.py", "dialects/settling/fence.py"]
    for file in files:
        nodes = list(ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))))
        looks = [each for each in nodes if isinstance(each, ast.FunctionDef) and each.name in LOOKS]
        watched = {id(node) for each in looks for node in ast.walk(each)}
        for node in nodes:
            if id(node) in watched:
                continue
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and _calls_out(node.func)
            ):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                found[f"{file}:{node.lineno} {ast.unparse(node.func)}"] = file, lines
    return found


def _calls_out(function: ast.Attribute) -> bool:
    receiver, method = ast.unparse(function.value), function.attr
    if receiver.endswith("_client"):
        return method in CLIENT
    if receiver.endswith("_ledger"):
        return method in LEDGER
    return method in QUEUE and (
        receiver.endswith("queue") or receiver.startswith("self._ring.queue(")
    )


def without_point(points: dict[str, set[str]]) -> list[str]:
    """Name the call sites that no point led through."""
    reached = {place for places in points.values() for place in places}
    return [
        site
        for site, (file, lines) in sites().items()
        if not any(f"{file}:{line}" in reached for line in lines)
    ]
