"""Run `async def` bodies: an asyncio loop on a thread of its own, and their ends brought back to the worker."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any

from scheduler.model.job import Cancelled


class LoopThread:
    """An asyncio loop on a thread of its own, started when the first `async def` body needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, object], cancelled: Cancelled) -> object:
        """Run a coroutine to its end; `cancelled` cancels its task."""
        loop = self._started()
        ended: Future[object] = Future()
        loop.call_soon_threadsafe(_start_task, loop, coroutine, cancelled, ended)
        return ended.result()

    def stop(self) -> None:
        """End the loop."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_loop, args=(self._loop,), name="scheduler-asyncio", daemon=True).start()
            return self._loop


def _start_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, object], cancelled: Cancelled, ended: Future[object]
) -> None:
    """Start a body; its end is the task's own, after whatever it does when it is cancelled."""
    task = loop.create_task(coroutine)

    def done(task: asyncio.Task[object]) -> None:
        if task.cancelled():
            ended.set_exception(CancelledError())
        elif (error := task.exception()) is not None:
            ended.set_exception(error)
        else:
            ended.set_result(task.result())

    task.add_done_callback(done)
    cancelled.then(lambda: loop.call_soon_threadsafe(task.cancel))


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
