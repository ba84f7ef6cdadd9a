"""What happens to a tenant's jobs, for any number of readers: one bounded memory for all of them.

A reader has nothing but its place in that memory: one that is slow falls behind, is told that it
missed something, and costs the others nothing. The same place, sent as Last-Event-ID, is where a
reader goes on that comes back.
"""

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

import orjson

from scheduler.app import Scheduler
from scheduler.errors import ConfigError, SchedulerError
from scheduler.model.job import HistoryPlace
from scheduler.web.access import Caller
from scheduler.web.problems import Problem

REMEMBERED = 1000
HEARTBEAT = 15.0
LINGERS = 30.0  # without a reader: who comes back misses nothing
LEDGER_EVERY = 1.0
LEDGER_ROWS = 200
AGAIN = 1.0
HEARS_WITHIN = 2.0
MOST = 200
MOST_EACH = 50
MOST_TENANTS = 32

logger = logging.getLogger("scheduler")


class Slots:
    """How many long requests are under way, of all callers and of each."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    @contextlib.contextmanager
    def taken(self, caller: Caller) -> Iterator[None]:
        """Take a place for as long as a request lasts; raises if there is none."""
        mine = self._taken.get(caller.name, 0)
        if mine >= MOST_EACH or sum(self._taken.values()) >= MOST:
            raise Problem(
                "busy",
                f"{mine} streams and waits of {caller.name} are open, and no more are allowed now",
            )
        self._taken[caller.name] = mine + 1
        try:
            yield
        finally:
            self._taken[caller.name] -= 1
            if not self._taken[caller.name]:
                del self._taken[caller.name]


class Stream:
    """The newest events of a tenant. Whoever hears of one adds it, from any thread; readers wait on
    the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._run = secrets.token_hex(4)  # places of an earlier process mean nothing here
        self._events: deque[bytes] = deque(maxlen=REMEMBERED)
        self._next = 0
        self._changed = asyncio.Event()
        self._told = False
        self.readers = 0
        self.left_at = time.monotonic()

    def add(self, name: str, data: object) -> None:
        """Remember an event, and wake the readers."""
        with self._lock:
            self._next += 1
            said = orjson.dumps(data)
            self._events.append(
                b"id: %s-%d\nevent: %s\ndata: %s\n\n"
                % (self._run.encode(), self._next, name.encode(), said)
            )
            told, self._told = self._told, True
        if not told:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there are no readers
                self._loop.call_soon_threadsafe(self._wake)

    def place(self, last: str | None) -> int | None:
        """Find the place after an event by its id; None: it is no longer known. Without an id, the
        end.
        """
        if last is None:
            return self._next
        run, _, number = last.partition("-")
        known = run == self._run and number.isascii() and number.isdecimal() and len(number) < 18
        return int(number) if known and int(number) <= self._next else None

    def since(self, place: int) -> tuple[int, list[bytes] | None]:
        """Return what came after a place, and the new one; None: some of it is forgotten."""
        with self._lock:
            if self._next - place > len(self._events):
                return self._next, None
            count = self._next - place
            return self._next, list(self._events)[len(self._events) - count :] if count else []

    async def wait(self, place: int, seconds: float) -> None:
        """Wait for an event after a place."""
        changed = self._changed
        if self._next == place:
            try:
                async with asyncio.timeout(seconds):
                    await changed.wait()
            except TimeoutError:
                return

    def _wake(self) -> None:
        self._told = False
        self._changed.set()
        self._changed = asyncio.Event()


class Streams:
    """The streams of tenants that somebody reads; each hears of changes through Redis, and looks
    into the ledger.
    """

    def __init__(self, scheduler: Scheduler, blocking: Callable[..., Awaitable[object]]) -> None:
        self._scheduler = scheduler
        self._blocking = blocking
        self._streams: dict[str, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._hearing: dict[str, threading.Thread] = {}
        self.slots = Slots()
        self.closing = False

    def open(self, tenant: str) -> Stream:
        """Return the stream of a tenant, which begins now if nobody reads it yet."""
        stream = self._streams.get(tenant)
        if stream is None:
            if len(self._streams) >= MOST_TENANTS:
                raise Problem("busy", f"{MOST_TENANTS} tenants are watched, and no more can be")
            stream = self._streams[tenant] = Stream(asyncio.get_running_loop())
            task = asyncio.create_task(self._look(tenant, stream))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return stream

    async def read(self, tenant: str, last: str | None) -> AsyncGenerator[bytes, None]:
        """Go through the events of a tenant, from the one after `last` on, as lines of a stream."""
        stream = self.open(tenant)
        stream.readers += 1
        try:
            place = stream.place(last)
            yield b"retry: 2000\n\n"
            while not self.closing:
                place, events = (
                    (stream.place(None) or 0, None) if place is None else stream.since(place)
                )
                if events is None:
                    yield b"event: gap\ndata: {}\n\n"
                elif events:
                    yield b"".join(events)
                before = time.monotonic()
                await stream.wait(place, HEARTBEAT)
                if time.monotonic() - before >= HEARTBEAT:
                    yield b": still here\n\n"
        finally:
            stream.readers -= 1
            stream.left_at = time.monotonic()

    def close(self) -> None:
        """End all streams, from another thread than the loop's."""
        self.closing = True
        for stream in list(self._streams.values()):
            stream.add("gap", {})
        for thread in list(self._hearing.values()):
            thread.join(HEARS_WITHIN)

    def _idle(self, stream: Stream) -> bool:
        return self.closing or (not stream.readers and time.monotonic() - stream.left_at > LINGERS)

    async def _look(self, tenant: str, stream: Stream) -> None:
        """Look into the ledger now and then: what recurring jobs did is said nowhere else."""
        hears = threading.Thread(
            target=self._hear, args=(tenant, stream), name="scheduler-events", daemon=True
        )
        self._hearing[tenant] = hears
        hears.start()
        seen: set[HistoryPlace] | None = None
        while not self._idle(stream):
            try:
                seen = await self._blocking(self._news, tenant, stream, seen, hears.is_alive())  # type: ignore[assignment]
            except (SchedulerError, Problem) as error:
                logger.debug("the ledger cannot be watched: %s", error)
            await asyncio.sleep(LEDGER_EVERY)
        del self._streams[tenant], self._hearing[tenant]

    def _news(
        self,
        tenant: str,
        stream: Stream,
        seen: set[HistoryPlace] | None,
        hears: bool,  # noqa: FBT001
    ) -> set[HistoryPlace]:
        rows = self._scheduler.history(tenant, limit=LEDGER_ROWS)
        for row in reversed(rows if seen is not None else ()):
            if seen is not None and row.place not in seen:
                if row.kind != "job":
                    facts = {
                        "job_id": row.job_id,
                        "kind": row.kind,
                        "outcome": row.outcome,
                        "at": row.at,
                    }
                    stream.add("recurring", {"tenant": tenant, **facts})
                elif not hears:
                    stream.add(
                        "job",
                        {"tenant": tenant, "id": row.job_id, "state": row.outcome, "at": row.at},
                    )
        return {row.place for row in rows}

    def _hear(self, tenant: str, stream: Stream) -> None:
        """Hear of the state changes of submitted jobs, for as long as anybody reads."""
        while not self._idle(stream):
            try:
                for change in self._scheduler.events(tenant, until=lambda: self._idle(stream)):
                    tenant, job_id, state, at, progress, message = change
                    data = {"tenant": tenant, "id": job_id, "state": state, "at": at}
                    if progress is None:
                        stream.add("job", data)
                    else:
                        stream.add("progress", {**data, "progress": progress, "message": message})
            except ConfigError:
                return  # there is no Redis: the ledger alone tells
            except SchedulerError as error:
                logger.debug("state changes cannot be heard: %s", error)
                stream.add("gap", {})
            if not self._idle(stream):
                time.sleep(AGAIN)
