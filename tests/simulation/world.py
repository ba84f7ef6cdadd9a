"""A deterministic world: virtual time, a real Postgres, and actors that run one at a time, switch
by switch.

An actor is a thread that holds the baton or waits for it. Around every statement there are three
switches: before it, executed but not committed, and committed but not answered. At each of them the
world may let others go first, crash the actor's process, break its connection, or let time pass. A
seed decides everything, so a seed repeats everything.
"""

import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from scheduler.errors import StoreUnavailable
from scheduler.store.queries import names, statement

START = datetime(2030, 1, 1, tzinfo=UTC)
NEVER_WAITS = frozenset(
    {
        "claim",
        "claim_queued",
        "claim_triggers",
        "redrive",
        "redrive_queued",
        "bury",
        "overdue",
        "mirror",
        "sweep",
        "lookup",
        "explain",
        "stranded",
        "unmirrored",
        "live",
    }
)
TABLES = ("job", "job_lock", "job_history", "job_instance")


class Crash(BaseException):
    """The process of this actor was killed."""


class Violation(AssertionError):
    """The system did what it must never do."""


class Actor:
    """One thread of one process. `step` is called again and again; it returns the seconds until the
    next call.
    """

    def __init__(
        self, world: "World", process: "Process", name: str, step: Callable[[], float | None]
    ) -> None:
        self.world, self.process, self.name, self.step = world, process, name, step
        self.wake_at = world.now
        self.midway = False  # inside a step, at a switch
        self.ended = False
        self.blocked_in: str | None = None
        self.backend: int | None = None
        self.doing = ""
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def ready(self) -> bool:
        return not (self.ended or self.process.suspended or self.blocked_in) and (
            self.midway or self.wake_at <= self.world.now
        )

    def resume(self) -> None:
        """Give it the baton until its next switch, or until it waits for a lock inside Postgres."""
        self._go.release()
        while not self._back.acquire(timeout=0.02):
            if self.world.blocked(self.backend):
                self.blocked_in = self.doing
                self.world.seen[f"{self.doing} waited"] += 1
                if self.doing in NEVER_WAITS:
                    raise Violation(f"{self.doing} of {self.process.name} waited for a lock")
                return

    def unblocked(self) -> bool:
        """Whether a statement that waited has come to its next switch."""
        while not self._back.acquire(timeout=0.005):
            if self.world.blocked(self.backend):
                return False
        self.blocked_in = None
        return True

    def switch(self) -> None:
        """Hand the baton back; a killed process never gets it again."""
        self.midway = True
        self._back.release()
        self._go.acquire()
        if self.process.crashed:
            raise Crash

    def _run(self) -> None:
        self._go.acquire()
        try:
            while not self.process.crashed:
                try:
                    delay = self.step()
                except StoreUnavailable:
                    self.world.seen["unavailable"] += 1
                    delay = 1.0
                self.midway = False
                seconds = 3600.0 if delay is None else max(0.0, delay)
                self.wake_at = self.world.now + timedelta(microseconds=math.ceil(seconds * 1e6))
                self._back.release()
                self._go.acquire()
        except Crash:
            pass
        except BaseException as error:
            self.world.errors.append(error)
        self.ended = True
        self._back.release()


class Process:
    """What dies together."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.crashed = False
        self.suspended = False
        self.actors: list[Actor] = []

    def spawn(self, name: str, step: Callable[[], float | None]) -> Actor:
        actor = Actor(self.world, self, f"{self.name}.{name}", step)
        self.actors.append(actor)
        return actor

    def poke(self, actor: Actor) -> None:
        actor.wake_at = min(actor.wake_at, self.world.now)

    def crash(self) -> None:
        """SIGKILL: every actor ends where it is; what was not committed is rolled back."""
        self.crashed, self.suspended = True, False
        for actor in self.actors:
            if actor.midway:
                self.world.seen[f"crash in {actor.doing}"] += 1
            while actor.blocked_in and not actor.unblocked():
                self.world.cancel(actor.backend)
            if not actor.ended:
                actor._go.release()
                actor._back.acquire()
            actor.thread.join()


class SimDatabase:
    """Stands where `Database` stands: each statement is a transaction of its own, with switches
    around it.
    """

    def __init__(self, world: "World", process: Process, schema: str) -> None:
        self.world, self.process, self.schema = world, process, schema
        self.actor: Actor | None = None
        self._names = {statement(t, n, schema): n for t in TABLES for n in names(t)}

    def run(self, query: bytes, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        world, actor = self.world, self.world.current
        actor.doing = self._names.get(query) or str(parameters["name"])
        actor.switch()
        self._break("before")
        connection = world.connect()
        actor.backend = connection.info.backend_pid
        try:
            moment = {"now": world.now} if "now" in parameters else {}
            cursor = connection.execute(query, {**parameters, **moment}, prepare=True, binary=True)
            rows = cursor.fetchall() if cursor.description else []
            actor.backend = None
            actor.switch()
            self._break("uncommitted")
            connection.commit()
        except psycopg.OperationalError as error:
            connection.close()
            if isinstance(error, psycopg.errors.DeadlockDetected):
                raise Violation("deadlock") from error
            raise StoreUnavailable(str(error)) from error
        except BaseException:
            connection.rollback()
            world.give_back(connection)
            raise
        world.give_back(connection)
        actor.switch()
        self._break("unanswered")
        return rows

    def _break(self, where: str) -> None:
        if self.world.faults and self.world.rng.random() < 0.02:
            self.world.seen[f"connection broke {where}"] += 1
            raise StoreUnavailable(f"broke {where}")


class World:
    """Time, chance, and whose turn it is."""

    def __init__(self, seed: int, connections: list[psycopg.Connection[Any]], dsn: str) -> None:
        self.rng = random.Random(seed)
        self.now = START
        self.faults = True
        self.processes: list[Process] = []
        self.seen: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._connections, self._dsn = connections, dsn
        self._current: Actor | None = None
        self._monitor = connections.pop() if connections else psycopg.connect(dsn)
        self._monitor.autocommit = True

    @property
    def current(self) -> Actor:
        assert self._current is not None
        return self._current

    def monotonic(self) -> float:
        return (self.now - START).total_seconds()

    def wall(self) -> datetime:
        return self.now

    def live(self) -> list[Process]:
        return [process for process in self.processes if not process.crashed]

    def step(self) -> bool:
        """Let one actor that is ready go on to its next switch; False if there is none."""
        actors = [actor for process in self.live() for actor in process.actors]
        for actor in actors:
            if actor.blocked_in:
                actor.unblocked()
        ready = [actor for actor in actors if actor.ready()]
        if not ready:
            return False
        self._current = self.rng.choice(ready)
        self._current.resume()
        if self.errors:
            raise self.errors[0]
        return True

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def settle(self, schema: str, tenant: str) -> None:
        """Let whatever was submitted be done; rows that somebody holds are not."""
        rows = SQL("SELECT id FROM {0}.job_queue WHERE tenant = %s FOR UPDATE SKIP LOCKED").format(
            Identifier(schema)
        )
        gone = (
            SQL("DELETE FROM {0}.job_queue WHERE id IN (").format(Identifier(schema))
            + rows
            + SQL(")")
        )
        self._monitor.execute(gone, (tenant,))

    def unlock(self, schema: str, tenant: str, job_id: str) -> tuple[Any, ...] | None:
        """Delete a lock row by hand, unless a transaction holds it; return the lease it had."""
        query = SQL(
            "DELETE FROM {0}.job_lock l USING (SELECT ctid FROM {0}.job_lock WHERE tenant = %s AND "
            "id = %s FOR UPDATE SKIP LOCKED) d WHERE l.ctid = d.ctid"
            " RETURNING l.fire_at, l.triggered, l.missed_from"
        ).format(Identifier(schema))
        return self._monitor.execute(query, (tenant, job_id)).fetchone()

    def blocked(self, backend: int | None) -> bool:
        if backend is None:
            return False
        row = self._monitor.execute(
            "SELECT cardinality(pg_blocking_pids(%s)) > 0", (backend,)
        ).fetchone()
        return bool(row and row[0])

    def cancel(self, backend: int | None) -> None:
        self._monitor.execute("SELECT pg_cancel_backend(%s)", (backend,))

    def connect(self) -> psycopg.Connection[Any]:
        connection = self._connections.pop() if self._connections else psycopg.connect(self._dsn)
        connection.autocommit = False
        return connection

    def give_back(self, connection: psycopg.Connection[Any]) -> None:
        self._connections.append(connection)

    def close(self) -> None:
        for process in self.live():
            process.crash()
        self.give_back(self._monitor)
