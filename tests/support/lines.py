"""Files that many processes append lines to while others read them."""

import os
from collections.abc import Iterator
from pathlib import Path


def append(path: Path, line: str) -> None:
    """Add a line in one write; opened anew each time, so that forked processes share no
    descriptor.
    """
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines that are whole: a write that crosses a page may be seen by halves, or be cut
    by a kill.
    """
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            yield from (line.rstrip("\n") for line in lines if line.endswith("\n"))
