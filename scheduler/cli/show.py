"""What a command prints once: foreign text that cannot act, instants and spans, tables as wide as their place.

A pipe gets every id whole, however long; a terminal too narrow for a table gets one block for each row.
"""

import errno
import json
import os
import sys
from collections.abc import Sequence
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
FOLDS_AT = 24
LABEL = 11
NOBODY_READS = (errno.EPIPE, errno.EIO)


class Failure(click.ClickException):
    """An error of ours, in one line; the exit code is 1."""

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        """Say it on stderr."""
        click.echo(f"scheduler: {self.message}", err=True)


def visible(text: str) -> str:
    """Write what a terminal would obey, or not show, as escapes: control characters, changes of direction."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
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


def listing(heads: Sequence[str], rows: Sequence[Sequence[Text]], *, folds: str, place: Console) -> RenderableType:
    """Lay rows out as a table whose column `folds` takes what is left, or as blocks where that is too little."""
    widths = [max(map(cell_len, [head, *(row[at].plain for row in rows)])) for at, head in enumerate(heads)]
    least = sum(min(width, FOLDS_AT) if head == folds else width for head, width in zip(heads, widths, strict=True))
    if least + GAP * (len(heads) - 1) > place.width:
        return Group(*(_block(heads, row) for row in rows))
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="quiet")
    for head, width in zip(heads, widths, strict=True):
        if head == folds:
            table.add_column(head, overflow="fold")
        else:
            table.add_column(head, no_wrap=True, width=width)
    for row in rows:
        table.add_row(*row)
    return table


def pairs(rows: Sequence[tuple[str, Text]]) -> Table:
    """Lay out labels and what they say."""
    grid = Table.grid(padding=(0, GAP, 0, 0))
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


def _block(heads: Sequence[str], row: Sequence[Text]) -> Padding:
    said = [(head.lower(), text) for head, text in zip(heads, row, strict=True) if text.plain not in ("", "-")]
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
