"""A configuration out of a text and an environment, as a process would read it."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from scheduler import ConfigError
from scheduler.cli.configuration import Effective, effective

Read = Callable[..., Effective]
Wrong = Callable[..., list[str]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a file that says this, in an environment that says that."""

    def read(text: str = "", **environment: str) -> Effective:
        path = tmp_path / "scheduler.yaml"
        path.write_text(dedent(text))
        return effective(path, environment)

    return read


@pytest.fixture
def wrong(read: Read) -> Wrong:
    """The lines that say what is wrong with it."""

    def wrong(text: str = "", **environment: str) -> list[str]:
        with pytest.raises(ConfigError) as raised:
            read(text, **environment)
        return str(raised.value).splitlines()

    return wrong
