"""What runs in a child process of `Processes`: calls come in over one pipe, their ends go out over
another.
"""

import asyncio
import contextlib
import ctypes
import importlib
import inspect
import json
import logging
import os
import queue
import signal
import threading
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import IO, Any

from scheduler.errors import (
    JobCancelled,
    PermanentError,
    SchedulerError,
    TemporaryError,
)
from scheduler.log import KEYS
from scheduler.model.body import Body, Cancelled, Here, RunContext
from scheduler.model.durations import duration
from scheduler.model.failures import describe
from scheduler.model.handling import JobContext
from scheduler.model.payloads import InvalidResult, encode_result
from scheduler.trace import joined

_sending = threading.RLock()  # a handler of the body's own may log while it sends


class Forward(logging.Handler):
    """Log lines go to the parent, which knows where they belong."""

    def __init__(self, pipe: IO[str]) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line; one that cannot be formatted harms nobody."""
        try:
            known = {key: getattr(record, key) for key in KEYS if hasattr(record, key)}
            send(self._pipe, {"log": [record.name, record.levelno, self.format(record), known]})
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)


def send(pipe: IO[str], message: dict[str, object]) -> None:
    """Write one message; threads of the body may log at the same time."""
    with _sending:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()


class Calls:
    """What the parent asks for, read by a thread; without a parent there is nothing to live for."""

    def __init__(self, pipe: IO[str]) -> None:
        self._waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._cancelled: dict[int, Cancelled] = {}
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def next(self) -> tuple[dict[str, Any], Cancelled]:
        """Wait for a call, and for whatever may cancel it."""
        message = self._waiting.get()
        return message, self._cancelled[message["number"]]

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            message = json.loads(line)
            if "cancel" in message:
                self._cancelled[message["number"]].because(message["cancel"])
            else:
                self._cancelled = {message["number"]: Cancelled()}
                self._waiting.put(message)
        os._exit(0)


def call(message: dict[str, Any], cancelled: Cancelled, out: IO[str]) -> object:
    """Import a function and call it to its end."""
    module, _, name = message["call"].partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    values = message["context"]
    if "payload" in message or "bytes" in message:
        payload = message["bytes"].encode("latin-1") if "bytes" in message else message["payload"]
        send(out, {"began": True})
        result = found(job_context(values, cancelled, out), payload)
    else:
        body = Body.of(found)
        send(out, {"began": True})
        result = (
            body.fn(context(values, cancelled))
            if body.takes_context and values is not None
            else body.fn()
        )
    return asyncio.run(_settle(result)) if inspect.isawaitable(result) else result


async def _settle(awaitable: Any) -> object:
    return await awaitable


def job_context(values: dict[str, Any], cancelled: Cancelled, out: IO[str]) -> JobContext:
    """Make the context of a handler from its data; what the handler reports goes to the parent."""
    return JobContext(
        SimpleNamespace(**values["job"]),
        values["attempt"],
        datetime.fromisoformat(values["deadline"]),
        cancelled,
        values["last_checkpoint"],
        values["worker"],
        values["sequence"],
        partial(_tell, out),
    )


def _tell(out: IO[str], what: str, value: Any) -> None:
    send(out, {"tell": [what, value]})


def _end(result: object) -> dict[str, object]:
    """Return the message with a result, or with the reason why it cannot be stored."""
    encoded = encode_result(result)
    if isinstance(encoded, InvalidResult):
        return {"end": None, "invalid_result": encoded.reason}
    return {"end": None, "result": result}


def _failure(error: BaseException) -> dict[str, object]:
    """Report an error, with what the handler said of it."""
    report: dict[str, object] = {"end": describe(error)}
    if isinstance(error, JobCancelled):
        report["failure"] = ["cancelled"]
    elif isinstance(error, PermanentError):
        report["failure"] = ["permanent", str(error.code)]
    elif isinstance(error, TemporaryError):
        wait = error.retry_after
        with contextlib.suppress(SchedulerError):
            seconds = None if wait is None else duration(wait, name="retry_after").total_seconds()
            report["failure"] = ["temporary", seconds]
    return report


def context(values: dict[str, Any], cancelled: Cancelled) -> RunContext:
    """Make the context anew from its values."""
    deadline = values.pop("deadline")
    fire_at = values.pop("fire_at")
    return RunContext(
        **values,
        fire_at=datetime.fromisoformat(fire_at),
        deadline=datetime.fromisoformat(deadline) if deadline else None,
        cancelled=cancelled,
    )


def main(read: int, write: int) -> None:
    """Serve calls, one after another, until the parent is gone."""
    Here.is_child = True
    _die_with_parent()
    for descriptor in (read, write):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - its only parameter
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, lambda *_: None
        )  # sent to all of a service: the parent drains, and ends us
    out = os.fdopen(write, "w", encoding="utf-8")
    calls = Calls(os.fdopen(read, encoding="utf-8"))
    logging.basicConfig(level=logging.INFO, handlers=[Forward(out)], format="%(message)s")
    while True:
        message, cancelled = calls.next()
        try:
            with joined(message.get("trace")):
                result = call(message, cancelled, out)
            end = _end(result if "payload" in message or "bytes" in message else None)
        except BaseException as error:  # noqa: BLE001 - SystemExit and friends end the body, not the child
            end = _failure(error)
        send(out, {**end, "seen": cancelled.seen})


def _die_with_parent() -> None:
    """Ask Linux for it: a body that holds the GIL would not notice that its parent was killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
