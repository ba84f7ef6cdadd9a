"""`scheduler up`: servers out of wheels, a scheduler with sample jobs, and what they do, live.

Whatever happens (signals, events, log records, the end of the start) comes to the main thread as a
message through one queue: a signal handler only puts, and nobody else touches the screen.
"""

import logging
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from scheduler.cli.board import Board
from scheduler.cli.configuration import Effective
from scheduler.cli.house import House
from scheduler.cli.lines import Lines
from scheduler.cli.view import View, brief, console
from scheduler.events import Event, FireEnded, FireSkipped

FRAME = 0.125
STARTING_MAY_TAKE = 5.0  # once somebody wants it to end
STOPPING_MAY_TAKE = 15.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

logger = logging.getLogger("scheduler")


@dataclass(frozen=True, slots=True)
class Stop:
    """A message: end, somebody asks for it."""


@dataclass(frozen=True, slots=True)
class Done:
    """A message: the work in the background has ended."""

    error: BaseException | None


class Unfinished(Exception):
    """The work in the background takes too long."""


Message = Stop | Done | Event | logging.LogRecord


class Up:
    """Runs until a signal, until its time is over, or until nobody reads its output."""

    def __init__(self, database: str | None, config: Effective, *, seconds: float | None) -> None:
        self._seconds = float("inf") if seconds is None else seconds
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._house = House(database, self._inbox.put, config)
        screen = console()
        live = screen.is_terminal and not screen.is_dumb_terminal
        self._view: View = Board(screen) if live else Lines(screen)
        self._counts: Counter[str] = Counter()

    def run(self) -> None:
        """Start, show, stop; raises what kept it from starting."""
        _signals_to(self._inbox)
        _log_records_to(self._inbox)
        since = time.monotonic()
        failure: BaseException | None = None
        with _reader_may_leave(), self._view:
            failure = self._work(self._house.open, patience=float("inf"))
            places = self._house.places
            if failure is None and places is not None and not self._house.ending:
                self._view.opened(places)
                self._show()
            self._view.ending()
        if not isinstance(failure, Unfinished):
            failure = self._work(self._house.close, patience=STOPPING_MAY_TAKE) or failure
        if failure is None:
            with _reader_may_leave():
                self._view.closed(self._summary(time.monotonic() - since))
        _ignore_signals()
        if isinstance(failure, Unfinished):
            # The keepers end the servers as soon as this process is gone.
            os._exit(0 if self._house.ending else 1)
        if failure is not None:
            raise failure

    def _show(self) -> None:
        end = time.monotonic() + self._seconds
        frame = 0.0
        while (now := time.monotonic()) < end:
            if now >= frame:
                self._view.draw(self._house.jobs())
                frame = now + FRAME
            message = self._next(min(frame, end) - now)
            if isinstance(message, Stop):
                return
            self._tell(message)

    def _work(self, work: Callable[[], None], *, patience: float) -> BaseException | None:
        """Do something in a thread of its own and return its error; once asked to stop, do not wait
        much longer.
        """
        threading.Thread(target=self._report, args=(work,), name="up", daemon=True).start()
        end = time.monotonic() + patience
        while (left := end - time.monotonic()) > 0:
            message = self._next(left)
            if isinstance(message, Done):
                return message.error
            if isinstance(message, Stop) and not self._house.ending:
                self._house.ending = True
                end = min(end, time.monotonic() + STARTING_MAY_TAKE)
            with suppress(OSError):  # whether anybody still reads is seen when the work is done
                self._tell(message)
        return Unfinished()

    def _report(self, work: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:  # noqa: BLE001 - raised again in the main thread
            error = raised
        self._inbox.put(Done(error))

    def _next(self, seconds: float) -> Message | None:
        try:
            return self._inbox.get(timeout=max(0.0, min(seconds, 3600.0)))
        except queue.Empty:
            return None

    def _tell(self, message: Message | None) -> None:
        if message is None or isinstance(message, Stop | Done):
            return
        if isinstance(message, FireEnded):
            self._counts[message.outcome] += 1
        elif isinstance(message, FireSkipped):
            self._counts["skipped"] += 1
        self._view.tell(message)

    def _summary(self, seconds: float) -> str:
        counts = (
            ", ".join(f"{count} {word}" for word, count in self._counts.most_common()) or "no fires"
        )
        return f"ended after {brief(timedelta(seconds=seconds))}: {counts}"


class Forward(logging.Handler):
    """Puts log records into the queue."""

    def __init__(self, inbox: "queue.SimpleQueue[Message]") -> None:
        super().__init__(logging.WARNING)
        self._inbox = inbox

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record on, unless an event says the same."""
        if record.levelno > logging.WARNING or "%s/%s fire" not in str(record.msg):
            self._inbox.put(record)


def _signals_to(inbox: "queue.SimpleQueue[Message]") -> None:
    """From now on signals are messages, to the end of the process: no moment is left where one
    could hurt.
    """
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: inbox.put(Stop()))


def _ignore_signals() -> None:
    """Everything is done; Python itself would let a signal that comes while it ends kill the
    process.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _log_records_to(inbox: "queue.SimpleQueue[Message]") -> None:
    logger.addHandler(Forward(inbox))
    logger.propagate = False


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """A closed pipe or terminal is a way to end us, not an error."""
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
