"""What makes a process believe a wrong time: real libfaketime where it is installed, else our own
shim.
"""

import os
import struct
from pathlib import Path

SHIM = Path(__file__).parent / "skewed"


def libfaketime() -> Path | None:
    """Find the library; LIBFAKETIME names it where it is not in the usual place."""
    named = os.environ.get("LIBFAKETIME")
    found = [Path(named)] if named else sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return found[0] if found else None


def skewed(seconds: int) -> dict[str, str]:
    """Return the environment of a process whose wall clock is so far ahead."""
    library = libfaketime()
    if not seconds:
        return {}
    if library is not None:
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME": f"{seconds:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    return {"PYTHONPATH": _path(), "SKEW_SECONDS": str(seconds)}


def shifting(file: Path) -> dict[str, str]:
    """Return the environment of a process whose wall clock is as far ahead as a file says; `shift`
    writes it.
    """
    return {"PYTHONPATH": _path(), "SKEW_FILE": str(file)}


def shift(file: Path, seconds: float) -> None:
    """Put the clocks of all processes that look into a file so far ahead, at once."""
    with file.open("r+b" if file.exists() else "wb") as written:
        written.write(struct.pack("d", seconds))


def _path() -> str:
    return os.pathsep.join([str(SHIM), *filter(None, [os.environ.get("PYTHONPATH")])])
