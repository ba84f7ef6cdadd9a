"""The keeper, run by its path in a process of its own: a server lives as long as somebody holds
`users.lock` shared.

It holds `server.lock` while the server runs. Arguments: the folder, "keep" or "remove" it at the
end, uid and gid of the server, the signals that end it from kind to cruel, and the server's
command. Standard library only.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PATIENCE = 10.0


def keep(
    folder: Path, *, remove: bool, user: dict[str, Any], signals: list[int], command: list[str]
) -> int:
    """Run the server until it ends, by itself or because nobody uses it any more."""
    for number in (signal.SIGINT, signal.SIGHUP):
        # Meant for our users. A handler, because a server would inherit that a signal is ignored.
        signal.signal(number, _nothing)
    with (folder / "server.lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        server = subprocess.Popen(command, cwd="/", **user)  # noqa: S603 - a server of ours, on our own log
        signal.signal(signal.SIGTERM, lambda *_: _send(server, signals[0]))
        unused = threading.Event()
        threading.Thread(
            target=_end_when_unused, args=(folder, server, signals, unused), daemon=True
        ).start()
        code = server.wait()
        if unused.is_set() and remove:
            shutil.rmtree(folder, ignore_errors=True)
        return code


def as_user(uid: int, gid: int) -> dict[str, Any]:
    """Say to `subprocess` whom to run as; only root can run as somebody else."""
    return {} if uid == os.geteuid() else {"user": uid, "group": gid, "extra_groups": []}


def _end_when_unused(
    folder: Path, server: "subprocess.Popen[bytes]", signals: list[int], unused: threading.Event
) -> None:
    with (folder / "users.lock").open("ab") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        unused.set()
        for number in signals:
            _send(server, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(PATIENCE)
                break
        # the lock stays ours until this process ends: nobody joins what is ending
        threading.Event().wait()


def _send(server: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.pid, number)


def _nothing(*_: object) -> None:
    """Let a signal pass."""


if __name__ == "__main__":
    where, then, uid_, gid_, numbers, *rest = sys.argv[1:]
    sys.exit(
        keep(
            Path(where),
            remove=then == "remove",
            user=as_user(int(uid_), int(gid_)),
            signals=[int(number) for number in numbers.split(",")],
            command=rest,
        )
    )
