"""Bodies in processes of their own: functions that hold the GIL, or that must end at their timeout
whatever they do.

A child imports the function by its name and is given plain data: nothing is pickled. It lives on
for the next body, ends with its parent, and is killed when a body that was told to end does not.
"""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from scheduler.errors import JobCancelled, PermanentError, TemporaryError
from scheduler.log import keys
from scheduler.model.body import Cancelled
from scheduler.model.failures import Reported
from scheduler.model.payloads import InvalidResult
from scheduler.trace import current

logger = logging.getLogger("scheduler")

GRACE = 1.0
NONE = object()
BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); from scheduler.child import main;"
    " main(int(sys.argv[1]), int(sys.argv[2]))"
)


class Processes:
    """Children that wait for bodies, started as they are needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._stopped = False

    def run(
        self,
        function: str,
        context: Mapping[str, object] | None,
        cancelled: Cancelled,
        *,
        began: Callable[[], object] = lambda: None,
        payload: object = NONE,
        told: Callable[[str, Any], None] = lambda *_: None,
    ) -> object:
        """Call `module:name` in a child, with a context or without; raises what it reports.

        With a payload it is a handler: its context is a `JobContext`, what it says is told, what it
        returns returned.
        """
        message: dict[str, object] = {"call": function, "context": context}
        if (trace := current()) is not None:
            message["trace"] = trace
        if isinstance(payload, bytes):
            message["bytes"] = payload.decode("latin-1")
        elif payload is not NONE:
            message["payload"] = payload
        child = self._take()
        try:
            try:
                result = child.call(message, cancelled, began, told)
            except _Died:  # while it waited, or as it began: the function was not called
                child.end()
                child = _Child()
                result = child.call(message, cancelled, began, told)
        except BaseException:
            child.end()
            raise
        with self._lock:
            keep = not self._stopped and not cancelled.causes
            if keep:
                self._idle.append(child)
        if not keep:
            child.end()
        return result

    def _take(self) -> "_Child":
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                return _Child()
            if child.alive():
                return child
            child.end()

    def stop(self) -> None:
        """End the children that wait; one with a body ends when that one does."""
        with self._lock:
            self._stopped = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()


def _raised(message: Mapping[str, Any]) -> Exception:
    """Make an error of what a child reported; a failure that a handler named keeps its name."""
    text = str(message["end"])
    match message.get("failure"):
        case ["cancelled"]:
            return JobCancelled(text)
        case ["permanent", code]:
            return PermanentError(text, Reported(text), code=str(code))
        case ["temporary", seconds]:
            wait = None if seconds is None else timedelta(seconds=seconds)
            return TemporaryError(text, Reported(text), retry_after=wait)
    return Reported(text)


class _Died(Reported):
    """A child was gone before it called anything."""


class _Child:
    """One child process, in a session of its own, with a pipe each way; lines of JSON go through
    them.
    """

    def __init__(self) -> None:
        theirs, ours = os.pipe()
        self._read, write = os.pipe()
        arguments = [str(theirs), str(write), json.dumps([str(place) for place in sys.path])]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
                [sys.executable, "-P", "-c", BEGIN, *arguments],
                pass_fds=(theirs, write),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        except BaseException:
            os.close(ours)
            os.close(self._read)
            raise
        finally:
            os.close(theirs)
            os.close(write)
        self._to = os.fdopen(ours, "w", encoding="utf-8")
        self._calls = 0
        self._rest = b""

    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def call(
        self,
        what: Mapping[str, object],
        cancelled: Cancelled,
        began: Callable[[], object],
        told: Callable[[str, Any], None],
    ) -> object:
        """Let the child call a function to its end; `began` is called once the function is
        imported.
        """
        ended = threading.Event()
        called = False
        self._calls += 1
        number = self._calls  # a cancel that comes late must not hit the next body
        self._send({**what, "number": number})
        cancelled.then(lambda: self._tell(number, cancelled.causes[-1], ended))
        try:
            for message in self._messages():
                if "log" in message:
                    name, level, text, known = message["log"]
                    logging.getLogger(name).log(level, "%s", text, extra=keys(**known))
                elif "began" in message:
                    called = True
                    began()
                elif "tell" in message:
                    told(*message["tell"])
                else:
                    cancelled.seen = cancelled.seen or bool(message.get("seen"))
                    if message["end"] is None:
                        if "invalid_result" in message:
                            return InvalidResult(message["invalid_result"])
                        return message.get("result")
                    raise _raised(message)
        finally:
            ended.set()
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if cancelled.causes:
            raise Reported("killed: its function did not stop when it was asked to")
        raise (Reported if called else _Died)(f"its process ended with {how}")

    def end(self) -> None:
        """End the child, by force if it does not."""
        with contextlib.suppress(OSError):
            self._to.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        os.close(self._read)

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Read until the child is gone: a process that it left behind may keep the pipe open for
        ever.
        """
        while True:
            ready, _, _ = select.select([self._read], [], [], 0.5)
            data = os.read(self._read, 65_536) if ready else b""
            if not data and (ready or not self.alive()):
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from map(json.loads, lines)

    def _tell(self, number: int, reason: str | None, ended: threading.Event) -> None:
        """Pass on that the body should end; wait for it on a thread of its own, and kill."""

        def insist() -> None:
            if not ended.wait(GRACE) and self._calls == number:
                self._kill()

        if ended.is_set():
            return
        self._send({"cancel": reason, "number": number})
        threading.Thread(target=insist, name="scheduler-kill", daemon=True).start()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what the body started goes with it

    def _send(self, message: Mapping[str, object]) -> None:
        try:
            self._to.write(json.dumps(message) + "\n")
            self._to.flush()
        except (OSError, ValueError) as error:  # it died; what reads its answers says how
            logger.debug("a child cannot be written to: %s", error)
