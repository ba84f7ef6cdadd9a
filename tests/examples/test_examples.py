"""The examples, served for real by what their users serve them with: each fire once, none lost when
one of two ends.
"""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import port_for
import psycopg
import pytest

from tests.support.checker import LedgerRow, read_ledger
from tests.support.lines import read_lines
from tests.support.waiting import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
SITE = EXAMPLES / "django_site"
SCRIPTS = Path(sysconfig.get_path("scripts"))


@dataclass(frozen=True, slots=True)
class Way:
    """How an example is served: a command, where, and what a SIGTERM makes of the server."""

    command: str
    folder: Path = EXAMPLES
    status: int = 0

    def arguments(self, port: int) -> list[str]:
        program, *rest = self.command.format(port=port).split()
        return [sys.executable if program == "python" else str(SCRIPTS / program), *rest]


KILLED = (
    -signal.SIGTERM
)  # uvicorn raises the signal again after its shutdown; development servers do not handle it
FASTAPI = Way("uvicorn fastapi_app:app --port {port}", status=KILLED)
FLASK = Way("flask --app flask_app run --port {port}", status=KILLED)
FLASK_DEBUG = Way("flask --app flask_app --debug run --port {port}")
GUNICORN = Way("gunicorn --config gunicorn_conf.py --bind 127.0.0.1:{port}")
GUNICORN_OF_TWO = Way("gunicorn --config gunicorn_conf.py --workers 2 --bind 127.0.0.1:{port}")
DJANGO = Way("python manage.py runserver --noreload {port}", SITE, status=KILLED)
DJANGO_RELOADING = Way("python manage.py runserver {port}", SITE)
DJANGO_GUNICORN = Way("gunicorn --workers 1 --bind 127.0.0.1:{port} mysite.wsgi", SITE)


class Server:
    """A process group that serves an example."""

    def __init__(self, way: Way, environment: dict[str, str], output: Path) -> None:
        self.way = way
        self.port = port_for.select_random()
        with output.open("ab") as log:
            self.process = subprocess.Popen(
                way.arguments(self.port),
                cwd=way.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def jobs(self) -> Any:
        """Ask for /jobs; nothing while nobody answers."""
        assert self.process.poll() is None, (
            f"{self.way.command} ended with {self.process.returncode}"
        )
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/jobs", timeout=5
            ) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            error.close()
            raise
        except OSError:
            return None

    def stop(self) -> int:
        """SIGTERM; whatever belongs to it ends with it."""
        self.process.terminate()
        status = self.process.wait(timeout=60)
        wait_for(lambda: not self.alive(), "nothing of the server is left", timeout=60)
        return status

    def alive(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        if self.alive():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Stage:
    """Servers on one schema, the file that their jobs write, and the ledger."""

    def __init__(
        self, dsn: str, schema: str, connection: psycopg.Connection[Any], folder: Path
    ) -> None:
        self.schema = schema
        self.connection = connection
        self.servers: list[Server] = []
        self.fires_file = folder / "fires"
        self.output_file = folder / "output"
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if name != "SCHEDULER_DATABASE_URL"
            },
            "DATABASE_URL": dsn,
            "SCHEDULER_SCHEMA": schema,
            "EXAMPLE_LOG": str(self.fires_file),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_RUNTIME_DIR": str(folder),  # for gunicorn's control socket
        }

    def serve(self, way: Way, count: int = 1) -> list[Server]:
        """Start so many at once and wait until all of them answer."""
        servers = [Server(way, self.environment, self.output_file) for _ in range(count)]
        self.servers += servers
        for server in servers:
            (job,) = wait_for(server.jobs, f"{way.command} answers", timeout=60)
            assert (job["tenant"], job["job_id"]) == ("acme", "heartbeat")
            assert datetime.fromisoformat(job["next_run_at"]).tzinfo is not None
        return servers

    def fires(self) -> list[tuple[int, datetime]]:
        """Which process ran which fire, in the order of the fires."""
        lines = (line.split() for line in read_lines(self.fires_file))
        return sorted(
            ((int(pid), datetime.fromisoformat(at)) for pid, at in lines), key=lambda fire: fire[1]
        )

    def await_fires(self, more: int) -> list[tuple[int, datetime]]:
        """Wait for so many more; the ledger has them too, so that the next is most of a second
        away.
        """
        before = len(self.fires())
        wait_for(
            lambda: len(self.fires()) >= before + more, f"{more} more fires", timeout=more + 10
        )
        wait_for(lambda: len(self.ledger()) >= len(self.fires()), "the ledger has them")
        return self.fires()[before:]

    def ledger(self) -> list[LedgerRow]:
        return read_ledger(self.connection, self.schema)

    def prove(self) -> None:
        """Each fire once, no gap, and the ledger tells the same story."""
        fires = self.fires()
        moments = [at for _, at in fires]
        assert moments == [moments[0] + timedelta(seconds=n) for n in range(len(moments))]
        ledger = self.ledger()
        assert [
            (int((row.holder or "").rpartition(":")[2]), row.fire.at) for row in ledger
        ] == fires
        assert {(row.outcome, row.attempt, row.missed_count) for row in ledger} == {
            ("success", 1, 0)
        }


@pytest.fixture
def stage(
    dsn: str, schema: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> Iterator[Stage]:
    stage = Stage(dsn, schema, connection, tmp_path)
    try:
        yield stage
    finally:
        for server in stage.servers:
            server.kill()
        if stage.output_file.exists():
            sys.stderr.write(stage.output_file.read_text(errors="replace"))


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(FASTAPI, id="fastapi"),
        pytest.param(FLASK, id="flask"),
        pytest.param(GUNICORN_OF_TWO, id="flask-gunicorn-preload"),
        pytest.param(DJANGO, id="django"),
        pytest.param(DJANGO_GUNICORN, id="django-gunicorn"),
    ],
)
def test_each_fire_runs_once_on_two_servers_of_which_one_ends(stage: Stage, way: Way) -> None:
    first, second = stage.serve(way, 2)
    stage.await_fires(2)
    assert first.stop() == way.status
    later = stage.await_fires(1)
    assert {os.getpgid(pid) for pid, _ in later} == {second.process.pid}
    assert second.stop() == way.status
    stage.prove()


def test_gunicorns_master_runs_no_job_and_each_of_its_workers_has_a_scheduler(stage: Stage) -> None:
    (server,) = stage.serve(GUNICORN)
    first = wait_for(lambda: listeners(stage, 4), "four schedulers listen")
    worker, _ = stage.await_fires(1)[-1]
    os.kill(worker, signal.SIGKILL)
    wait_for(
        lambda: len(listeners(stage, 4) - first) == 1,
        "the new worker's listens in place of the killed one's",
    )
    stage.await_fires(2)
    assert server.stop() == 0
    stage.prove()
    assert server.process.pid not in {pid for pid, _ in stage.fires()}


def listeners(stage: Stage, count: int) -> set[int]:
    """Name the one connection on which each scheduler listens, if there are so many."""
    found = stage.connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE "
        "'LISTEN %'"
    ).fetchall()
    return {pid for (pid,) in found} if len(found) == count else set()


@pytest.mark.parametrize(
    "way", [pytest.param(FLASK_DEBUG, id="flask"), pytest.param(DJANGO_RELOADING, id="django")]
)
def test_a_reloader_leaves_the_jobs_to_its_child(stage: Stage, way: Way) -> None:
    (server,) = stage.serve(way)
    assert wait_for(lambda: listeners(stage, 1), "one scheduler listens")
    stage.await_fires(2)
    assert server.stop() == way.status
    stage.prove()
    assert server.process.pid not in {pid for pid, _ in stage.fires()}


@pytest.mark.parametrize("command", ["check", "migrate"])
def test_a_management_command_starts_no_scheduler(stage: Stage, command: str) -> None:
    subprocess.run(
        [sys.executable, "manage.py", command],
        cwd=SITE,
        env=stage.environment,
        check=True,
        capture_output=True,
        timeout=60,
    )
    found = stage.connection.execute("SELECT to_regnamespace(%s)", (stage.schema,)).fetchone()
    assert found == (None,)
