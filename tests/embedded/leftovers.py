"""What is left of a test's servers: processes that run in its folder, or name it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler.embedded.account import account, temporary_folder
from tests.support.waiting import wait_for


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder with a short path that every user can pass (pytest's own are closed), and see
    it left empty.
    """
    folder = temporary_folder("sched-", account())
    os.chown(folder, os.geteuid(), os.getegid())
    folder.chmod(0o711)
    try:
        yield folder
        wait_for(lambda: not running(folder), f"the end of everything in {folder}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def running(folder: Path) -> list[str]:
    """Describe the processes whose command names a folder or that work in it."""
    if not Path("/proc/self/cwd").exists():
        listed = subprocess.run(
            ["ps", "-axo", "command="], check=True, capture_output=True, text=True
        ).stdout
        return [line for line in listed.splitlines() if str(folder) in line]
    return [
        found
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (found := _of(entry, folder))
    ]


def _of(process: Path, folder: Path) -> str | None:
    try:
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        works_in = (process / "cwd").readlink()
    except OSError:  # it has just ended, or is somebody else's
        return None
    return (
        f"{process.name} {command}"
        if str(folder) in command or works_in.is_relative_to(folder)
        else None
    )
