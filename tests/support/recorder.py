"""What bodies and events say happened, and a way to wait for it without sleeping."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from scheduler import RunContext, Scheduler
from scheduler.events import Event

E = TypeVar("E", bound=Event)


def until(done: Callable[[], Any], *, timeout: float = 60.0) -> None:
    """Wait for something that no event tells of."""
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, f"not within {timeout} s"
        threading.Event().wait(0.02)


class Recorder:
    """Collects runs and events under one condition."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.runs: list[RunContext] = []
        self.events: list[Event] = []

    def body(self, context: RunContext) -> None:
        """Record a run: usable as a job's function."""
        with self._changed:
            self.runs.append(context)
            self._changed.notify_all()

    def listen(self, scheduler: Scheduler) -> Scheduler:
        """Record the events of a scheduler."""
        scheduler.subscribe(self._event)
        return scheduler

    def wait(self, done: Callable[[], Any], *, timeout: float = 60.0) -> Any:
        """Wait until something recorded makes `done` true, and return what it gave."""
        with self._changed:
            if not self._changed.wait_for(done, timeout):
                seen = "\n".join(map(str, [*self.runs[-5:], *self.events[-10:]]))
                raise AssertionError(
                    f"not within {timeout} s; the last of {len(self.runs)} runs and events:\n{seen}"
                )
            return done()

    def of(self, kind: type[E]) -> list[E]:
        """The recorded events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def _event(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
