"""What a command prints once: foreign text that cannot act, instants and spans, tables as wide as
their place.

A pipe gets every id whole, however long; a terminal too narrow for a table gets one block for each
row.
"""

import errno
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import click
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scheduler.cli.view import brief, console

WIDEST = 1_000_000
GAP = 2
PADDING = (0, GAP, 0, 0)
LABEL = 11
NOBODY_READS = (errno.EPIPE, errno.EIO)


class Failure(click.ClickException):
    """An error of ours, in one line; the exit code is 1."""

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        """Say it on stderr."""
        click.echo(f"scheduler: {self.message}", err=True)


def visible(text: str) -> str:
    """Write what a terminal would obey, or not show, as escapes: control characters, changes of
    direction.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def moment(instant: datetime) -> str:
    """Write an instant to the second."""
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"


def until(instant: datetime, now: datetime) -> str:
    """Say how far off a fire is."""
    left = instant - now
    if left > timedelta(0):
        return f"in {brief(left)}"
    return "now" if left > timedelta(seconds=-1) else f"{brief(-left)} late"


def on_terminal() -> bool:
    """Whether a person sees it; forced colours alone make no terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def screen() -> Console:
    """Make the console on stdout, endless to the right where nobody sees its edge."""
    made = console()
    if not on_terminal():
        made.width = WIDEST
    return made


def listing(
    heads: Sequence[str],
    rows: Sequence[Sequence[Text]],
    *,
    folds: Mapping[str, int],
    place: Console,
) -> RenderableType:
    """Lay rows out as a table; `folds` says how narrow columns may become. Where that is too wide
    still: as blocks.
    """
    table = [[Text(head, style="quiet") for head in heads], *rows]
    widths = [max(cell_len(row[at].plain) for row in table) for at in range(len(heads))]
    room = place.width - GAP * (len(heads) - 1)
    if sum(widths) <= room:
        return Text("\n").join(_line(row, widths) for row in table)
    least = [min(width, folds.get(head, width)) for head, width in zip(heads, widths, strict=True)]
    if (left := room - sum(least)) < 0:
        return Group(*(_block(heads, row) for row in rows))
    # Left to itself, rich makes such a table wider than its place, and cuts what is beyond.
    folded = Table(box=None, padding=PADDING, pad_edge=False, header_style="quiet")
    for head, narrow, wide in zip(heads, least, widths, strict=True):
        more = min(left, wide - narrow)
        left -= more
        folded.add_column(head, overflow="fold", width=narrow + more)
    for row in rows:
        folded.add_row(*row)
    return folded


def pairs(rows: Iterable[tuple[str, Text]]) -> Table:
    """Lay out labels and what they say."""
    grid = Table.grid(padding=PADDING)
    grid.add_column(style="quiet", no_wrap=True, min_width=LABEL)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, text)
    return grid


def emit(shown: RenderableType, place: Console) -> None:
    """Print something, with no blanks at the ends of lines in a pipe."""
    with place.capture() as captured:
        place.print(shown)
    text = captured.get()
    _write(text if on_terminal() else "".join(f"{line.rstrip()}\n" for line in text.splitlines()))


def emit_json(value: object) -> None:
    """Print one JSON document, in ASCII."""
    _write(json.dumps(value, default=_plain) + "\n")


def _line(row: Sequence[Text], widths: Sequence[int]) -> Text:
    """Pad cells to one line: for ten thousand rows a `Table` takes twice as long."""
    line = Text()
    for cell, width in zip(row, widths, strict=True):
        line.append_text(cell).append(" " * (width - cell_len(cell.plain) + GAP))
    line.rstrip()
    return line


def _block(heads: Sequence[str], row: Sequence[Text]) -> Padding:
    said = [
        (head.lower(), text)
        for head, text in zip(heads, row, strict=True)
        if text.plain not in ("", "-")
    ]
    return Padding(pairs(said), (0, 0, 1, 0))


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"no JSON for {type(value).__name__}")


def _write(text: str) -> None:
    """Write all of it now; a reader who has left is no error, a full disk is."""
    try:
        click.echo(text, file=sys.stdout, nl=False, color=True)
    except OSError as error:
        # What is still buffered must not fail again when Python ends.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno not in NOBODY_READS:
            raise Failure(f"cannot write: {error.strerror}") from None
