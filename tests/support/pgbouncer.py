"""A real PgBouncer in transaction mode in front of the tests' Postgres."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Self

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

CONFIG = """
[databases]
* = host={host} port={port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
"""


class PgBouncer:
    """Listens on a free port of loopback while it is entered."""

    def __init__(self, dsn: str) -> None:
        self._server = conninfo_to_dict(dsn)
        binary = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if binary is None:
            pytest.skip("PgBouncer is not installed (Debian: apt install pgbouncer)")
        self._binary = binary

    def __enter__(self) -> Self:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._folder = Path(tempfile.mkdtemp(prefix="scheduler-pgbouncer-"))
        self._folder.chmod(0o755)
        self._config = self._folder / "pgbouncer.ini"
        server = self._server
        self._config.write_text(
            CONFIG.format(
                host=server["host"], port=server["port"], user=server["user"], listen=port
            )
        )
        self.dsn = make_conninfo(
            "", host="127.0.0.1", port=port, user=server["user"], dbname=server["dbname"]
        )
        self.start()
        return self

    def start(self) -> None:
        """Start it, also after a kill: where it was, with none of its clients."""
        self._process = subprocess.Popen(
            [self._binary, str(self._config)],
            user=self._user(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(50):
            try:
                psycopg.connect(self.dsn, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                threading.Event().wait(0.05)
        self.__exit__()
        raise AssertionError("PgBouncer did not start")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def _user(self) -> str | None:
        """It refuses to run as root; whoever owns the server's socket can reach it."""
        host = str(self._server["host"])
        if os.geteuid() != 0:
            return None
        return Path(host).owner() if host.startswith("/") else "nobody"

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
