"""Several worker processes under one parent: forked before any thread, started again when one dies, ended together."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from scheduler.service import Asked
from scheduler.trace import flush

logger = logging.getLogger("scheduler")

RESTART_AFTER = 1.0
LOOK_EVERY = 0.1


class Family:
    """A parent that only watches its children."""

    def __init__(
        self,
        count: int,
        work: Callable[[], None],
        grace: float,
        meanwhile: Callable[[float], object] = time.sleep,
    ) -> None:
        self._count = count
        self._work = work
        self._grace = grace
        self._meanwhile = meanwhile
        self._children: dict[int, float] = {}  # by process id, when it was started
        self._signals: list[int] = []
        self._asked = Asked()

    def run(self) -> None:
        """Keep so many children at work until a signal ends them."""
        before = {each: signal.signal(each, self._on_signal) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self._signals:
                while len(self._children) < self._count and not self._signals:
                    self._bear()
                self._reap(missed=True)
                self._meanwhile(LOOK_EVERY)
            self._end()
            if len(self._signals) > 1:
                os._exit(128 + self._signals[1])
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def _bear(self) -> None:
        parent = os.getpid()
        child = os.fork()
        if child:
            self._children[child] = time.monotonic()
            return
        status = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)  # Ctrl-C is the parent's to hand on
            if not self._signals:  # one that came meanwhile was for us
                threading.Thread(target=_follow, args=[parent], name="scheduler-family", daemon=True).start()
                self._work()
            status = 0
        except BaseException:
            logger.exception("a worker process failed")
        finally:
            flush()
            os._exit(status)

    def _reap(self, *, missed: bool) -> None:
        for child, born in list(self._children.items()):
            with contextlib.suppress(ChildProcessError):
                found, status = os.waitpid(child, os.WNOHANG)
                if not found:
                    continue
                if missed:
                    code = os.waitstatus_to_exitcode(status)
                    logger.error("worker process %d ended with %d; starting another", child, code)
                    time.sleep(max(0.0, born + RESTART_AFTER - time.monotonic()))
            del self._children[child]

    def _end(self) -> None:
        """Hand the signal on and wait; a second one, or children that outlive the grace, end at once."""
        self._tell(signal.SIGTERM)
        until = time.monotonic() + self._grace + 10
        while self._children and len(self._signals) < 2 and time.monotonic() < until:
            self._reap(missed=False)
            time.sleep(LOOK_EVERY)
        self._tell(signal.SIGKILL)
        while self._children:
            self._reap(missed=False)
            time.sleep(LOOK_EVERY / 10)

    def _tell(self, number: int) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._asked.heard():
            self._signals.append(number)


def _follow(parent: int) -> None:
    """End this process as a signal would, once its parent is gone: nobody else would end it."""
    while os.getppid() == parent:
        time.sleep(RESTART_AFTER)
    logger.error("the parent of this worker process is gone; it ends as well")
    os.kill(os.getpid(), signal.SIGTERM)
