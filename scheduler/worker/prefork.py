"""Several worker processes under one parent, which starts another when one exits.

The parent forks before it has threads. It only watches its children and forwards signals to them.
"""

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

RESTART_DELAY_S = 1.0
POLL_INTERVAL_S = 0.1
EXIT_MARGIN_S = 10.0


class Prefork:
    """Runs `work` in `count` child processes until a signal ends them."""

    def __init__(
        self,
        count: int,
        work: Callable[[], None],
        grace: float,
        idle: Callable[[float], object] = time.sleep,
    ) -> None:
        self._count = count
        self._work = work
        self._grace = grace
        self._idle = idle
        self._children: dict[int, float] = {}  # by process id, when it was started
        self._signals: list[int] = []
        self._asked = Asked()

    def run(self) -> None:
        """Keep the children running until a signal; a second signal kills them."""
        before = {
            each: signal.signal(each, self._on_signal) for each in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            while not self._signals:
                while len(self._children) < self._count and not self._signals:
                    self._fork()
                self._reap(restart=True)
                self._idle(POLL_INTERVAL_S)
            self._stop()
            if len(self._signals) > 1:
                os._exit(128 + self._signals[1])
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def _fork(self) -> None:
        parent = os.getpid()
        child = os.fork()
        if child:
            self._children[child] = time.monotonic()
            return
        status = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)  # Ctrl-C reaches the parent alone, which forwards it
            if not self._signals:  # a signal during the fork was meant for both
                threading.Thread(
                    target=_exit_with, args=[parent], name="scheduler-prefork", daemon=True
                ).start()
                self._work()
            status = 0
        except BaseException:
            logger.exception("a worker process failed")
        finally:
            flush()
            os._exit(status)

    def _reap(self, *, restart: bool) -> None:
        for child, started in list(self._children.items()):
            with contextlib.suppress(ChildProcessError):
                found, status = os.waitpid(child, os.WNOHANG)
                if not found:
                    continue
                if restart:
                    code = os.waitstatus_to_exitcode(status)
                    logger.error("worker process %d exited with %d; starting another", child, code)
                    time.sleep(max(0.0, started + RESTART_DELAY_S - time.monotonic()))
            del self._children[child]

    def _stop(self) -> None:
        """Forward the signal and wait; kill after the grace period, or at a second signal."""
        self._kill(signal.SIGTERM)
        until = time.monotonic() + self._grace + EXIT_MARGIN_S
        while self._children and len(self._signals) < 2 and time.monotonic() < until:
            self._reap(restart=False)
            time.sleep(POLL_INTERVAL_S)
        self._kill(signal.SIGKILL)
        while self._children:
            self._reap(restart=False)
            time.sleep(POLL_INTERVAL_S / 10)

    def _kill(self, number: int) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._asked.heard():
            self._signals.append(number)


def _exit_with(parent: int) -> None:
    """Stop this process as SIGTERM would, once its parent is gone: nothing else would stop it."""
    while os.getppid() == parent:
        time.sleep(RESTART_DELAY_S)
    logger.error("the parent of this worker process is gone; this process stops as well")
    os.kill(os.getpid(), signal.SIGTERM)
