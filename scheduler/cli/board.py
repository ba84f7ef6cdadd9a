"""The live board: where the servers are, a table of the jobs, and below it the log of what
happens.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from scheduler.cli.view import STYLES, Line, Places, brief, line
from scheduler.events import Event, FireCrashed, FireEnded, FireSkipped, FireStarted, Synced
from scheduler.model.definition import Key
from scheduler.model.job import JobInfo
from scheduler.model.outcomes import Outcome

LOG_LINES = 200
FLASH = timedelta(milliseconds=600)
HINT = "Ctrl-C ends it. In a second terminal, run it again: each fire still runs once."


@dataclass(slots=True)
class Seen:
    """What this instance saw of a job."""

    started_at: datetime | None = None
    fire_at: datetime | None = None
    outcome: Outcome | None = None
    changed_at: datetime | None = None
    duration: timedelta | None = None
    lateness: timedelta | None = None
    runs: int = 0


class Board:
    """Draws on the terminal's other screen, and gives the first one back at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False)
        self._places: Places | None = None
        self._state = "starting: the first time takes a few seconds"
        self._skew = timedelta()
        self._seen: dict[Key, Seen] = {}
        self._jobs: Sequence[JobInfo] = []
        self._log: deque[tuple[datetime, Line]] = deque(maxlen=LOG_LINES)
        self._dot, self._running = (
            ("●", "◌") if console.encoding.lower().startswith("utf") else ("*", "~")
        )

    def __enter__(self) -> Self:
        self._live.start()
        self._refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def opened(self, places: Places) -> None:
        """Show where everything is."""
        self._places, self._state = places, HINT

    def tell(self, message: Event | logging.LogRecord) -> None:
        """Note what happened; it is seen at the next drawing."""
        now = datetime.now(UTC)
        told = line(message)
        if told is not None:
            self._log.append((now, told))
        match message:
            case Synced():
                self._skew = message.skew
            case FireStarted():
                seen = self._of(message.tenant, message.job_id)
                seen.started_at, seen.lateness = now, message.lateness
                seen.runs += 1
            case FireEnded():
                seen = self._of(message.tenant, message.job_id)
                seen.started_at, seen.fire_at, seen.changed_at = None, message.fire_at, now
                seen.outcome, seen.duration = message.outcome, message.duration
            case FireSkipped() | FireCrashed():
                seen = self._of(message.tenant, message.job_id)
                seen.changed_at = now
            case _:
                pass

    def draw(self, jobs: Sequence[JobInfo]) -> None:
        """Draw everything anew."""
        if not self._console.is_terminal:
            raise OSError("the terminal is gone")
        self._jobs = jobs
        self._refresh()

    def ending(self) -> None:
        """Say so."""
        self._state = "stopping"
        self._refresh()

    def closed(self, summary: str) -> None:
        """Leave a line on the screen that was there before."""
        self._console.print(f"scheduler: {summary}")

    def picture(self) -> RenderableType:
        """Compose what is shown, as high as the screen."""
        head, table = self._head(), self._table()
        used = 3 + 1 + (1 + len(self._jobs)) + 1 + 1  # head, space, table, rule, last line
        return Group(
            head,
            "",
            table,
            Rule(style="quiet"),
            self._tail(max(0, self._console.height - used)),
            Text(self._state, style="quiet", no_wrap=True, overflow="ellipsis"),
        )

    def _refresh(self) -> None:
        self._live.update(self.picture(), refresh=True)

    def _of(self, tenant: str, job_id: str) -> Seen:
        return self._seen.setdefault(Key(tenant, job_id), Seen())

    def _head(self) -> Table:
        head = Table.grid(padding=(0, 2), expand=True)
        head.add_column(width=9)
        head.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        head.add_column(justify="right", no_wrap=True)
        tenants = len({job.tenant for job in self._jobs})
        counts = f"{tenants} tenants, {len(self._jobs)} jobs" if self._jobs else ""
        places = self._places or Places(postgres="...", redis="...", health="...", web="")
        head.add_row(
            Text("scheduler", style="title"),
            Text(places.web, style="accent"),
            Text(counts, style="quiet"),
        )
        head.add_row(
            Text("postgres", style="quiet"), places.postgres, Text(self._clock(), style="quiet")
        )
        head.add_row(
            Text("redis", style="quiet"),
            places.redis,
            Text(f"health {places.health}", style="quiet"),
        )
        return head

    def _clock(self) -> str:
        return f"skew {self._skew.total_seconds() * 1000:+.1f} ms" if self._places else ""

    def _table(self) -> Table:
        wide = self._console.width >= 76
        table = Table(box=None, expand=True, padding=(0, 1), pad_edge=False, header_style="quiet")
        table.add_column("TENANT", ratio=1, no_wrap=True)
        table.add_column("JOB", ratio=2, no_wrap=True)
        for name, shown in (("EVERY", wide), ("NEXT", True)):
            if shown:
                table.add_column(name, justify="right", min_width=6, no_wrap=True)
        table.add_column("LAST", min_width=11, no_wrap=True)
        for name, shown in (("TOOK", True), ("LATE", wide), ("RUNS", True)):
            if shown:
                table.add_column(name, justify="right", min_width=6, no_wrap=True)
        for job in self._jobs:
            cells = self._row(job)
            table.add_row(*(cells if wide else [*cells[:2], *cells[3:6], cells[7]]))
        return table

    def _row(self, job: JobInfo) -> list[Text]:
        now = datetime.now(UTC)
        seen = self._seen.get(Key(job.tenant, job.job_id), Seen())
        left = (
            None
            if job.next_run_at is None
            else max(timedelta(), job.next_run_at - (now - self._skew))
        )
        took = now - seen.started_at if seen.started_at else seen.duration
        return [
            Text(job.tenant, style="accent"),
            Text(job.job_id, style="bold"),
            Text("once" if job.every is None else _interval(job.every), style="quiet"),
            Text(_countdown(left)),
            self._last(job, seen, now),
            Text("" if took is None else brief(took), style="accent" if seen.started_at else ""),
            Text("" if seen.lateness is None else brief(seen.lateness), style="quiet"),
            Text(str(seen.runs), style="" if seen.runs else "quiet"),
        ]

    def _last(self, job: JobInfo, seen: Seen, now: datetime) -> Text:
        if seen.started_at:
            return Text(f"{self._running} running", style="accent")
        outcome = seen.outcome
        elsewhere = job.last_fire_at is not None and (
            seen.fire_at is None or job.last_fire_at > seen.fire_at
        )
        if elsewhere:
            outcome = job.last_outcome
        if outcome is None:
            return Text("")
        shown = Text(f"{self._dot} {outcome}", style=STYLES.get(outcome, "quiet"))
        if seen.changed_at is not None and now - seen.changed_at < FLASH:
            shown.stylize("reverse")
        elif elsewhere:
            shown.stylize("dim")
        return shown

    def _tail(self, height: int) -> Table:
        tail = Table.grid(padding=(0, 2), expand=True)
        tail.add_column(no_wrap=True, width=8)
        tail.add_column(no_wrap=True, width=22)
        tail.add_column(no_wrap=True, width=8)
        tail.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
        shown = list(self._log)[-height:] if height else []
        for moment, told in shown:
            job = f"{told.tenant}/{told.job_id}" if told.job_id else ""
            when = moment.astimezone().strftime("%H:%M:%S")
            tail.add_row(
                Text(when, style="quiet"),
                job,
                Text(told.word, style=told.style),
                Text(told.text, style="quiet"),
            )
        for _ in range(height - len(shown)):
            tail.add_row("", "", "", "")
        return tail


def _interval(every: timedelta) -> str:
    seconds = every.total_seconds()
    return f"{seconds:g} s" if seconds < 60 else brief(every)


def _countdown(left: timedelta | None) -> str:
    if not left:
        return "-" if left is None else "due"
    return f"{left.total_seconds():.1f} s" if left < timedelta(minutes=1) else brief(left)
