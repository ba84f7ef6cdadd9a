"""Every role starts with the variables that Kubernetes sets for Services of the same names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from tests.cli.test_up import free_port
from tests.embedded.leftovers import open_folder
from tests.observe.scrapes import ready
from tests.support.kubernetes import service_variables
from tests.support.waiting import wait_for

SERVICES = ("web", "worker", "redis", "scheduler", "producer", "observability", "queues")
APP = """
import scheduler

@scheduler.handler("mail", queue="mail")
def mail(ctx, payload): ...
"""
LONG_RUNNING = {
    "scheduler": ["run", "--role=scheduler"],
    "all": ["run", "--role=all", "--app=app"],
    "run-worker": ["run", "--role=worker", "--app=app"],
    "worker": ["worker", "--app=app"],
    "web": ["web"],
    "up": ["up"],
}


@pytest.fixture
def variables(dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis) -> dict[str, str]:
    """The environment of a pod next to Services of every name that is also a section."""
    services = [service_variables(name) for name in SERVICES]
    merged = {name: value for each in services for name, value in each.items()}
    own = {
        "DATABASE_URL": dsn,
        "SCHEDULER_SCHEMA": schema,
        "REDIS_URL": redis_server.url,
        "OBSERVABILITY_METRICS_PORT": str(free_port()),
        "SCHEDULER_WEB_PORT": str(free_port()),
    }
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return kept | merged | own


@pytest.mark.parametrize("role", LONG_RUNNING)
def test_role_is_ready_next_to_services_of_its_name(
    role: str, variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    address = f"http://127.0.0.1:{variables['OBSERVABILITY_METRICS_PORT']}"

    def is_ready() -> bool:
        assert process.poll() is None, (tmp_path / "stderr").read_text()
        try:
            return ready(address)[0] == 200
        except OSError:
            return False

    with open_folder() as home, (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "scheduler", *LONG_RUNNING[role]],
            env=variables | {"SCHEDULER_HOME": str(home)},
            cwd=tmp_path,
            stdout=stderr,
            stderr=stderr,
        )
        try:
            wait_for(is_ready, "it is ready", timeout=60, every=0.2)
        finally:
            process.terminate()
            assert process.wait(40) == 0


@pytest.mark.parametrize("command", [["run", "--role=producer"], ["config", "show"]])
def test_command_succeeds_next_to_services_of_every_name(
    command: list[str], variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "scheduler", *command],
        check=False,
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
