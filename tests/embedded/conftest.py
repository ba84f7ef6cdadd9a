"""Folders that a server's own user can reach, and a look for processes that were left behind in
them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.leftovers import open_folder


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of this test; nothing may run in it when the test is over."""
    with open_folder() as folder:
        yield folder
