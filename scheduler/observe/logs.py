"""How lines of a log are written: JSON where a machine reads them, and for whoever sits at a
terminal.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from scheduler.errors import ConfigError
from scheduler.log import KEYS, logger
from scheduler.model.texts import storable
from scheduler.trace import ids

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
LONGEST_TEXT = 65_536
LONGEST_VALUE = 1000


def configure(level: str = "info", *, stream: TextIO | None = None) -> None:
    """Write logs to a stream, stderr by default, unless the app says where they go; `level` is the
    scheduler's own.

    As JSON, a line each; readable, if the stream is a terminal. The command line calls it. A
    library does not: an app that wants such lines calls it itself, or gives `JsonLines` to a
    handler of its own.
    """
    if level not in LEVELS:
        raise ConfigError(f"level: must be one of {', '.join(LEVELS)}, not {level!r}")
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(Readable() if out.isatty() else JsonLines())
    logging.lastResort = handler  # for lines of which nobody else has said where they go
    logger.setLevel(LEVELS[level])


class JsonLines(logging.Formatter):
    """A line as JSON: level, ts, msg, and those keys of the list that it has; whatever else it has
    is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Write a line."""
        line: dict[str, Any] = {
            "level": record.levelname.lower(),
            "ts": datetime.fromtimestamp(record.created, UTC),
            "msg": storable(whole(self, record), LONGEST_TEXT),
            **known(record),
        }
        return orjson.dumps(line, option=orjson.OPT_UTC_Z).decode()


class Readable(logging.Formatter):
    """A line for a person: what its text does not say of the job stands behind it. Nothing acts on
    the terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Write a line."""
        text = whole(self, record)
        rest = [f"{key}={value}" for key, value in known(record).items() if str(value) not in text]
        at = datetime.fromtimestamp(record.created).astimezone()
        said = " ".join([f"{at:%H:%M:%S}", f"{record.levelname:7}", text, *rest])
        return "".join(
            each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in said
        )


def whole(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Put the error of a line, if it has one, below its text."""
    error = record.exc_text or (
        formatter.formatException(record.exc_info) if record.exc_info else None
    )
    return "\n".join(part for part in (record.getMessage(), error, record.stack_info) if part)


def known(record: logging.LogRecord) -> dict[str, str | int]:
    """Read the keys of a line, with the span in which it is logged."""
    found = {key: record.__dict__[key] for key in KEYS if record.__dict__.get(key) is not None}
    if "trace_id" not in found and (here := ids()) is not None:
        found["trace_id"], found["span_id"] = here
    return {
        key: each if isinstance(each, int) else storable(str(each), LONGEST_VALUE)
        for key, each in found.items()
    }
