"""Whom the servers run as: ourselves or, as root, a user without rights; and what that user can
reach.
"""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.embedded.keeper import as_user
from scheduler.errors import ConfigError

USER = "pgserver"  # the name that the wheel of Postgres uses too
LONGEST_SOCKET_FOLDER = (
    85  # bytes: a Unix socket's whole path has 104 on some systems, its name here up to 14
)


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine."""

    uid: int
    gid: int

    @property
    def foreign(self) -> bool:
        """Whether it is somebody other than this process."""
        return self.uid != os.geteuid()

    def options(self) -> dict[str, Any]:
        """Return what `subprocess` must be told to run as this user."""
        return as_user(self.uid, self.gid)

    def own(self, folder: Path) -> None:
        """Make a folder this user's, and only this user's."""
        folder.chmod(0o700)
        if self.foreign:
            os.chown(folder, self.uid, self.gid)

    def make(self, folder: Path) -> None:
        """Make a folder of this user, and folders above it that it can pass, whatever the umask."""
        for missing in reversed([path for path in folder.parents if not path.exists()]):
            missing.mkdir(exist_ok=True)
            missing.chmod(0o755)
        folder.mkdir(exist_ok=True)

    def closed(self, path: Path) -> Path | None:
        """Return the first folder above `path` that this user cannot pass, if there is one."""
        if not self.foreign:
            return None
        return next(
            (folder for folder in reversed(path.resolve().parents) if not self._passes(folder)),
            None,
        )

    def _passes(self, folder: Path) -> bool:
        found = folder.stat()
        bit = 0o100 if found.st_uid == self.uid else 0o010 if found.st_gid == self.gid else 0o001
        return bool(found.st_mode & bit)


def account() -> Account:
    """Choose whom to run servers as: Postgres refuses to be root, and Redis had better not be."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    for name in (USER, USER, "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            _add_user()
        else:
            return Account(found.pw_uid, found.pw_gid)
    raise ConfigError(
        "embedded servers do not run as root, and there is no other user: run `useradd --system "
        f"{USER}`"
    )


def temporary_folder(prefix: str, user: Account) -> Path:
    """Make a temporary folder of that user, where it can reach it and a socket's path is short
    enough.
    """
    for parent in _temporary_parents():
        folder = parent / f"{prefix}12345678"
        if os.access(parent, os.W_OK | os.X_OK) and fits(folder) and not user.closed(folder):
            made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            user.own(made)
            return made
    raise ConfigError(
        f"embedded servers: no temporary folder is short enough and open to user {user.uid}; set "
        "TMPDIR to one like"
        " /tmp"
    )


def fits(folder: Path) -> bool:
    """Whether a Unix socket fits into a folder, and clients can name it: a comma would make it
    two.
    """
    return len(os.fsencode(folder)) <= LONGEST_SOCKET_FOLDER and "," not in str(folder)


def _temporary_parents() -> Iterator[Path]:
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - mkdtemp makes the name
        if Path(folder).is_dir():
            yield Path(folder).resolve()


def _add_user() -> None:
    command = [
        "useradd",
        "--system",
        "--user-group",
        "--no-create-home",
        "--shell",
        "/usr/sbin/nologin",
        USER,
    ]
    try:
        subprocess.run(  # noqa: S603
            command, check=False, capture_output=True, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return
