"""Run `async def` bodies on an asyncio loop, and bring their ends back to the worker."""

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextvars import Context
from functools import partial
from typing import NamedTuple

from scheduler.model.body import Cancelled

logger = logging.getLogger("scheduler")

LOOK = 1.0


class Call(NamedTuple):
    """A body to start: what makes its coroutine, what cancels it, and who is told its result, or
    its error.
    """

    start: Callable[[], Awaitable[object]]
    cancelled: Cancelled
    ended: Callable[[object, BaseException | None], None]


class Coroutines:
    """Runs bodies on the app's own loop, or on one on a thread of its own, started when the first
    body needs it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._lock = threading.Lock()
        self._given = loop is not None
        self._loop = loop
        self._stopping = False

    def run(self, awaitable: Awaitable[object], cancelled: Cancelled) -> object:
        """Run a body to its real end, after whatever it does when `cancelled` cancels its task."""
        loop = self.start()
        ended: Future[object] = Future()

        def start() -> None:
            task = loop.create_task(_contain(awaitable, ended))
            task.add_done_callback(lambda _: _end(ended))
            cancelled.then(lambda: _call(loop, task.cancel))

        try:
            loop.call_soon_threadsafe(start)
        except RuntimeError:  # the app's loop has ended before its scheduler
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise
        while not wait([ended], timeout=LOOK).done:
            if cancelled.causes and not loop.is_running():
                raise RuntimeError("the app's loop has stopped: what runs on it will not go on")
        return ended.result()

    def begin(self, calls: Sequence[Call]) -> None:
        """Start bodies without waiting for them, each in a context of its own; its end is told on
        the loop's thread.
        """
        loop = self.start()
        if asyncio._get_running_loop() is loop:  # noqa: SLF001 - documented; the other raises where there is none
            _begin(loop, calls)
        else:
            loop.call_soon_threadsafe(_begin, loop, calls)

    def stop(self) -> None:
        """End the loop, cancelling what still runs on it; the app's own is the app's to end."""
        with self._lock:
            self._stopping = True
            if self._loop is not None and not self._given:
                _call(self._loop, self._loop.stop)

    def start(self) -> asyncio.AbstractEventLoop:
        """Start the loop, unless it is; return it."""
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=self._run, args=(loop,), name="scheduler-asyncio", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # there cannot be more: the next body may have one
                    loop.close()
                    raise
                self._loop = loop
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._stopping:
            try:
                loop.run_forever()  # a body may have stopped it
            except (
                SystemExit,
                KeyboardInterrupt,
            ):  # of a task that a body made; the body is told of it too
                logger.exception("a task of an async body tried to end the loop of all of them")
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _begin(loop: asyncio.AbstractEventLoop, calls: Sequence[Call]) -> None:
    for call in calls:
        task = loop.create_task(_report(call), context=Context())
        call.cancelled.then(partial(_call, loop, task.cancel))


async def _report(call: Call) -> None:
    """Run a body to its end and tell it, whatever it raises."""
    try:
        result = await call.start()
    except BaseException as error:  # noqa: BLE001 - it is the worker's to classify
        call.ended(None, error)
    else:
        call.ended(result, None)


def _end(ended: "Future[object]") -> None:
    """Settle what a task that was cancelled before its first step could not."""
    if not ended.done():
        ended.set_exception(CancelledError())


async def _contain(awaitable: Awaitable[object], ended: "Future[object]") -> None:
    """Keep whatever a body raises from the loop: SystemExit would end it, and every other body with
    it.
    """
    try:
        result = await awaitable
    except BaseException as error:  # noqa: BLE001 - it is the worker's to classify
        ended.set_exception(error)
    else:
        ended.set_result(result)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended, and everything on it
        loop.call_soon_threadsafe(callback)
