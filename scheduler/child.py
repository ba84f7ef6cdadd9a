"""What runs in a child process: `python -m scheduler.child READ WRITE`, started by `Processes`."""

import asyncio
import importlib
import inspect
import json
import logging
import os
import queue
import sys
import threading
from datetime import datetime
from typing import IO, Any

from scheduler.model.body import Body, Cancelled, RunContext
from scheduler.model.failures import describe

_sending = threading.RLock()  # a handler of the body's own may log while it sends


class Forward(logging.Handler):
    """Log lines go to the parent, which knows where they belong."""

    def __init__(self, pipe: IO[str]) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        send(self._pipe, {"log": [record.name, record.levelno, self.format(record)]})


def send(pipe: IO[str], message: dict[str, object]) -> None:
    """Write one message; threads of the body may log at the same time."""
    with _sending:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()


def listen(pipe: IO[str], calls: "queue.SimpleQueue[dict[str, Any]]", running: dict[int, Cancelled]) -> None:
    """Read messages; without a parent there is nothing to live for."""
    for line in pipe:
        message = json.loads(line)
        if "cancel" not in message:
            calls.put(message)
        elif message["number"] in running:
            running[message["number"]].because(message["cancel"])
    os._exit(0)


def call(function: str, values: dict[str, Any] | None, cancelled: Cancelled) -> None:
    """Import a function and call it to its end."""
    module, _, name = function.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    body = Body.of(found)
    result = body.fn(context(values, cancelled)) if body.takes_context and values is not None else body.fn()
    if inspect.isawaitable(result):
        asyncio.run(_settle(result))


async def _settle(awaitable: Any) -> None:
    await awaitable


def context(values: dict[str, Any], cancelled: Cancelled) -> RunContext:
    """Make the context anew from its values."""
    deadline = values.pop("deadline")
    fire_at = values.pop("fire_at")
    extra = {"tenant": values["tenant"], "job_id": values["job_id"], "fire_at": fire_at}
    return RunContext(
        **values,
        fire_at=datetime.fromisoformat(fire_at),
        deadline=datetime.fromisoformat(deadline) if deadline else None,
        cancelled=cancelled,
        logger=logging.LoggerAdapter(logging.getLogger("scheduler.job"), extra),
    )


def main(read: int, write: int) -> None:
    """Serve calls, one after another, until the parent is gone."""
    out = os.fdopen(write, "w", encoding="utf-8")
    calls: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    running: dict[int, Cancelled] = {}
    reader = os.fdopen(read, encoding="utf-8")
    threading.Thread(target=listen, args=(reader, calls, running), daemon=True).start()
    logging.basicConfig(level=logging.INFO, handlers=[Forward(out)])
    while True:
        message = calls.get()
        if "path" in message:
            sys.path[:] = message["path"]
            continue
        cancelled = Cancelled()
        running[message["number"]] = cancelled
        end: str | None = None
        try:
            call(message["call"], message["context"], cancelled)
        except BaseException as error:  # noqa: BLE001 - SystemExit and friends end the body, not the child
            end = describe(error)
        running.clear()
        send(out, {"end": end})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
