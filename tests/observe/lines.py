"""The lines that were logged, as they are written."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.log import logger
from scheduler.observe.logs import JsonLines


class Lines(logging.StreamHandler[io.StringIO]):
    """What is logged, as it is written."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(io.StringIO())
        self.setFormatter(formatter)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def about(self, **wanted: object) -> list[dict[str, Any]]:
        read = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in read if wanted.items() <= line.items()]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """All lines of the scheduler, as JSON."""
    made, before = Lines(JsonLines()), logger.level
    logger.addHandler(made)
    logger.setLevel(logging.DEBUG)
    yield made
    logger.removeHandler(made)
    logger.setLevel(before)
