"""`scheduler config show`: every key with its value and its origin, and no secret."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scheduler.cli.main import cli

Show = Callable[..., str]


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Run it in a folder of its own; keywords are environment variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for name in ("SCHEDULER_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def show(*arguments: str, code: int = 0, **environment: str) -> str:
        done = CliRunner().invoke(
            cli, ["config", "show", *arguments], env=environment, catch_exceptions=False
        )
        assert done.exit_code == code, done.output
        return done.stderr if code else done.stdout

    return show


def test_config_show_prints_values_with_their_origin(show: Show, tmp_path: Path) -> None:
    (tmp_path / "scheduler.yaml").write_text("worker: {count: 3}")
    lines = [line.split() for line in show(SCHEDULER_WORKER_PROCESSES="2").splitlines()]
    assert lines[0] == ["KEY", "VALUE", "FROM"]
    assert ["worker.count", "3", "file"] in lines
    assert ["worker.processes", "2", "SCHEDULER_WORKER_PROCESSES"] in lines
    assert ["worker.fetch", "strict", "default"] in lines


def test_config_show_json_is_one_document(show: Show) -> None:
    found: dict[str, Any] = json.loads(show("--json", WORKER_BACKOFF_MAX="1m30s"))
    assert found["worker.backoff.max"] == {"value": "1m30s", "origin": "WORKER_BACKOFF_MAX"}
    assert found["worker.priorities"] == {"value": ["high", "low"], "origin": "default"}


def test_config_show_masks_secrets(show: Show) -> None:
    secrets = {
        "REDIS_ADDR": "redis+sentinel://ada:trout77@127.0.0.1:26379/main?sentinel_password=trout77",
        "REDIS_PASSWORD": "trout77",
        "SCHEDULER_REDIS_SENTINEL_PASSWORD": "trout77",
        "SCHEDULER_CALLBACK_SECRET": "trout77" * 3,
        "DATABASE_URL": "postgresql://ada:trout77@127.0.0.1/app",
        "SCHEDULER_LISTEN": "host=127.0.0.1 password=trout77",
        "OBSERVABILITY_TRACING_ENDPOINT": "http://ada:trout77@127.0.0.1:4317",
    }
    for text in (show(**secrets), show("--json", **secrets)):
        assert "trout77" not in text
        assert "redis+sentinel://***@127.0.0.1:26379/main" in text
        assert "127.0.0.1/app" in text


def test_config_show_refuses_a_path_that_cannot_be(show: Show) -> None:
    for path in ("x" * 300, "/dev/null/x"):
        assert "cannot be read" in show("--config", path, code=2)


def test_config_show_says_what_is_wrong(show: Show, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("redis: {read_timeout: 1s}")
    said = show("--config", "my.yaml", code=2)
    assert said == (
        "scheduler: redis.write_timeout: must be as redis.read_timeout; a connection has one limit for both\n"
    )
