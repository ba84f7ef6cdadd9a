import io
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from scheduler.cli.board import Board
from scheduler.cli.samples import SAMPLES
from scheduler.cli.view import PALETTE, Places, brief
from scheduler.events import (
    Event,
    FireCrashed,
    FireEnded,
    FireSkipped,
    FireStarted,
    LeaseLost,
    Synced,
)
from scheduler.model.job import JobInfo
from scheduler.model.outcomes import Outcome

NOW = datetime.now(UTC)
JOB: dict[str, Any] = {"tenant": "acme", "job_id": "report", "fire_at": NOW}
EVENTS: list[Event] = [
    Synced(jobs=6, skew=timedelta(milliseconds=-3.2)),
    FireStarted(**JOB, attempt=1, lateness=timedelta(milliseconds=7)),
    FireEnded(
        **JOB,
        attempt=2,
        outcome=Outcome.FAILED,
        duration=timedelta(seconds=1.25),
        error="[bold]no[/bold] markup\nTraceback: none of it",
    ),
    FireSkipped(**JOB, reason="overlap"),
    LeaseLost(**JOB, attempt=1, reason="not renewed"),
    FireCrashed(**JOB, reason="its process died 3 times"),
]


def drawn(width: int, height: int, encoding: str = "utf-8") -> list[str]:
    """The board after one of each event, as text."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(
        theme=PALETTE, highlight=False, file=file, width=width, height=height, force_terminal=False
    )
    board = Board(console)
    board.opened(
        Places(
            postgres="embedded in ~/.local/share/singleton-scheduler/postgres",
            redis="redis://x:1/0",
            health="http://x:2",
            web="http://x:3",
        )
    )
    for event in EVENTS:
        board.tell(event)
    board.tell(logging.LogRecord("scheduler", logging.WARNING, "", 0, "loop: %s", ("away",), None))
    board._jobs = [
        JobInfo(
            tenant=sample.tenant,
            job_id=sample.job_id,
            spec=sample.checked().spec,
            runnable=True,
            next_run_at=datetime.now(UTC) + timedelta(seconds=99.9),
            paused_at=None,
            trigger_at=None,
            running_fire_at=None,
            holder=None,
            last_fire_at=NOW if sample.tenant == "globex" else None,
            last_outcome=Outcome.SUCCESS if sample.tenant == "globex" else None,
            last_finished_at=None,
        )
        for sample in SAMPLES
    ]
    console.print(board.picture())
    file.seek(0)
    return file.read().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (76, 24)])
def test_everything_is_seen_and_fits(width: int, height: int) -> None:
    lines = drawn(width, height)
    text = "\n".join(lines)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    for word in (
        "report",
        "5 s",
        "1m39s",
        "failed",
        "1.2 s",
        "7 ms",
        "skew -3.2 ms",
        "globex/",
        "import-orders",
    ):
        assert word in text.replace("globex ", "globex/"), word
    for word in (
        "[bold]no[/bold]",
        "overlap",
        "not renewed",
        "its process died",
        "loop: away",
        "start 2",
    ):
        assert word in text, word
    assert "Traceback" not in text


@pytest.mark.parametrize(("width", "height"), [(40, 10), (20, 3)])
def test_a_small_terminal_shows_less_and_does_no_harm(width: int, height: int) -> None:
    assert max(map(len, drawn(width, height))) <= width


def test_a_terminal_without_unicode_gets_plain_signs() -> None:
    assert "* success" in "\n".join(drawn(80, 24, "latin-1"))


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0 ms"),
        (0.0042, "4 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (61, "1m01s"),
        (3725, "1h02m"),
        (-0.5, "-500 ms"),
    ],
)
def test_spans_are_brief(seconds: float, written: str) -> None:
    assert brief(timedelta(seconds=seconds)) == written
