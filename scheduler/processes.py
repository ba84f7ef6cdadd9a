"""Bodies in processes of their own: functions that hold the GIL, or that must end at their timeout whatever they do.

A child imports the function by its name and is given plain data: nothing is pickled. It lives on for the next body,
ends with its parent, and is killed when a body that was told to end does not.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from scheduler.model.body import Cancelled
from scheduler.model.failures import Reported

logger = logging.getLogger("scheduler")

GRACE = 1.0


class Processes:
    """Children that wait for bodies, started as they are needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._stopped = False

    def run(self, function: str, context: Mapping[str, object] | None, cancelled: Cancelled) -> None:
        """Call `module:name` in a child, with a context or without; raises what it reports."""
        with self._lock:
            child = next((self._idle.pop() for _ in list(self._idle) if self._idle[-1].alive()), None)
        child = child or _Child()
        try:
            child.call(function, context, cancelled)
        except BaseException:
            child.end()
            raise
        with self._lock:
            keep = not self._stopped and not cancelled
            if keep:
                self._idle.append(child)
        if not keep:
            child.end()

    def stop(self) -> None:
        """End the children that wait; one with a body ends when that one does."""
        with self._lock:
            self._stopped = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()


class _Child:
    """One child process, with a pipe each way; lines of JSON go through them."""

    def __init__(self) -> None:
        theirs, ours = os.pipe()
        read, write = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
                [sys.executable, "-m", "scheduler.child", str(theirs), str(write)],
                pass_fds=(theirs, write),
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            os.close(ours)
            os.close(read)
            raise
        finally:
            os.close(theirs)
            os.close(write)
        self._to = os.fdopen(ours, "w", encoding="utf-8")
        self._from = os.fdopen(read, encoding="utf-8")
        self._calls = 0
        self._send({"path": [str(place) for place in sys.path]})

    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def call(self, function: str, context: Mapping[str, object] | None, cancelled: Cancelled) -> None:
        """Let the child call a function to its end."""
        ended = threading.Event()
        self._calls += 1
        number = self._calls  # a cancel that comes late must not hit the next body
        self._send({"call": function, "context": context, "number": number})
        cancelled.then(lambda: self._tell(number, cancelled.reason, ended))
        try:
            for line in self._from:
                message: dict[str, Any] = json.loads(line)
                if "log" in message:
                    name, level, text = message["log"]
                    logging.getLogger(name).log(level, "%s", text)
                elif message["end"] is None:
                    return
                else:
                    raise Reported(message["end"])
        finally:
            ended.set()
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise Reported("killed: it did not end when it was told to" if cancelled else f"its process ended with {how}")

    def end(self) -> None:
        """End the child, by force if it does not."""
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, number: int, reason: str | None, ended: threading.Event) -> None:
        """Pass on that the body should end; wait for it on a thread of its own, and kill."""

        def insist() -> None:
            if not ended.wait(GRACE) and self._calls == number:
                self._process.kill()

        if ended.is_set():
            return
        self._send({"cancel": reason, "number": number})
        threading.Thread(target=insist, name="scheduler-kill", daemon=True).start()

    def _send(self, message: Mapping[str, object]) -> None:
        try:
            self._to.write(json.dumps(message) + "\n")
            self._to.flush()
        except (OSError, ValueError) as error:  # it died; what reads its answers says how
            logger.debug("a child cannot be written to: %s", error)
