"""What both ways of showing share: who is shown, how moments and spans are written, and the one
palette.
"""

import io
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, Self

from rich.console import Console
from rich.theme import Theme

from scheduler.events import (
    Event,
    FireCrashed,
    FireEnded,
    FireQueued,
    FireSkipped,
    FireStarted,
    JobRolledBack,
    JobsSettled,
    JobStranded,
    LeaseLost,
    QueueEvent,
    RedisLost,
    Synced,
)
from scheduler.model.definition import AppVersion
from scheduler.model.job import JobInfo
from scheduler.model.outcomes import Outcome
from scheduler.model.states import State

# Middle tones: legible on a dark and on a light background.
PALETTE = Theme(
    {
        "title": "bold #4c8fd6",
        "accent": "#4c8fd6",
        "success": "#3f9e5a",
        "warning": "#c08a1e",
        "failure": "bold #d0495c",
        "quiet": "#808890",
    }
)
STYLES = {
    Outcome.SUCCESS: "success",
    Outcome.SKIPPED: "warning",
    Outcome.TIMEOUT: "warning",
    Outcome.FAILED: "failure",
    Outcome.CRASHED: "failure",
}
SETTLED = {
    State.DEAD_LETTER: "failure",
    State.FAILED: "failure",
    State.RETRYING: "warning",
    State.CANCELLED: "quiet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the servers are, and where one can ask how the process is, as one may show it."""

    postgres: str
    redis: str
    health: str
    web: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the log: of which job, what happened, and how it looks."""

    tenant: str
    job_id: str
    word: str
    style: str
    text: str


class View(Protocol):
    """A way of showing what happens; called by one thread."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def opened(self, places: Places) -> None:
        """Everything runs."""
        ...

    def tell(self, message: Event | logging.LogRecord) -> None:
        """Something happened."""
        ...

    def draw(self, jobs: Sequence[JobInfo]) -> None:
        """Some time has passed."""
        ...

    def ending(self) -> None:
        """Everything is about to stop."""
        ...

    def closed(self, summary: str) -> None:
        """Everything has stopped."""
        ...


def console() -> Console:
    """Make the console on stdout; what its encoding lacks is a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(theme=PALETTE, highlight=False, file=sys.stdout)


def line(message: Event | logging.LogRecord) -> Line | None:
    """Say what a message is in the log, if it is anything there."""
    if isinstance(message, logging.LogRecord):
        style = "failure" if message.levelno >= logging.ERROR else "warning"
        return Line(
            tenant="",
            job_id="",
            word=message.levelname.lower(),
            style=style,
            text=message.getMessage(),
        )
    if isinstance(message, FireStarted | Synced | QueueEvent):
        return None
    if isinstance(message, JobsSettled):
        return _settled(message)
    if isinstance(message, RedisLost):
        text = f"Redis has lost its memory: {message.jobs} jobs are fed again"
        return Line(tenant="", job_id=message.queue, word="lost", style="failure", text=text)
    word, style, text = _happened(message)
    return Line(tenant=message.tenant, job_id=message.job_id, word=word, style=style, text=text)


def _settled(event: JobsSettled) -> Line | None:
    """Say what became of the jobs of a queue: often several at once."""
    if not event.jobs:
        return None
    tenants = {tenant for tenant, _, _ in event.jobs}
    counts = Counter(state for _, _, state in event.jobs)
    worst = next((style for state, style in SETTLED.items() if state in counts), "success")
    text = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    tenant = tenants.pop() if len(tenants) == 1 else ""
    return Line(tenant=tenant, job_id=event.queue, word="settled", style=worst, text=text)


def brief(span: timedelta) -> str:
    """Write a span in at most six characters."""
    seconds = span.total_seconds()
    if abs(seconds) < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d{hours % 24:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"


def _happened(  # noqa: PLR0911 - one for each event
    event: FireEnded
    | FireSkipped
    | FireQueued
    | LeaseLost
    | FireCrashed
    | JobStranded
    | JobRolledBack,
) -> tuple[str, str, str]:
    match event:
        case FireEnded():
            tries = f", start {event.attempt}" if event.attempt > 1 else ""
            error = f": {event.error.splitlines()[0]}" if event.error else ""
            return (
                str(event.outcome),
                STYLES.get(event.outcome, "quiet"),
                f"{brief(event.duration)}{tries}{error}",
            )
        case FireSkipped():
            return "skipped", "warning", event.reason
        case FireQueued():
            return "queued", "accent", f"as {event.queued_id}"
        case LeaseLost():
            return "lost", "failure", event.reason
        case FireCrashed():
            return "crashed", "failure", event.reason
        case JobStranded():
            return "stranded", "failure", "no live instance can run it"
        case JobRolledBack():
            before = AppVersion(event.app, event.previous_version)
            after = AppVersion(event.app, event.version)
            return "rolled back", "warning", f"from {before} to {after}"
