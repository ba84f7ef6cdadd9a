"""Plain lines, one a fire, flushed: for pipes, logs and terminals that can do no more."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Self

from rich.console import Console

from scheduler.cli.view import Places, brief, line
from scheduler.events import Event, FireEnded, FireStarted
from scheduler.model.definition import Key
from scheduler.model.job import JobInfo


class Lines:
    """Writes what happens."""

    def __init__(self, console: Console) -> None:
        self._file = console.file
        self._lateness: dict[Key, timedelta] = {}

    def __enter__(self) -> Self:
        self._write("starting: the first time takes a few seconds")
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left to put right."""

    def opened(self, places: Places) -> None:
        """Say where everything is."""
        self._write(f"up: postgres {places.postgres}, redis {places.redis}")
        self._write(f"health {places.health}: /healthz, /readyz, /metrics")
        self._write(f"dashboard {places.web}")

    def tell(self, message: Event | logging.LogRecord) -> None:
        """Write a line for what ends a fire."""
        if isinstance(message, FireStarted):
            self._lateness[Key(message.tenant, message.job_id)] = message.lateness
            return
        told = line(message)
        if told is None:
            return
        job = f"{told.tenant}/{told.job_id} " if told.job_id else ""
        late = (
            self._lateness.pop(Key(told.tenant, told.job_id), None)
            if isinstance(message, FireEnded)
            else None
        )
        self._write(
            f"{job}{told.word} {told.text}" + ("" if late is None else f" ({brief(late)} late)")
        )

    def draw(self, jobs: Sequence[JobInfo]) -> None:
        """Time alone is not worth a line."""

    def ending(self) -> None:
        """Say so."""
        self._write("stopping")

    def closed(self, summary: str) -> None:
        """Say what came of it."""
        self._write(summary)

    def _write(self, text: str) -> None:
        moment = datetime.now().astimezone().isoformat(timespec="milliseconds")
        self._file.write(f"{moment} {text}\n")
        self._file.flush()
