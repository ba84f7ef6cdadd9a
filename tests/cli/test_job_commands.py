"""The commands about submitted jobs, on real servers; and that all commands read one configuration."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scheduler.cli.database import VARIABLES
from scheduler.cli.main import cli
from tests.conftest import MakeScheduler


@pytest.mark.parametrize(
    "arguments",
    [["jobs"], ["history", "acme"], ["explain", "acme", "a"], ["pause", "acme", "a"], ["migrate"]],
    ids=lambda arguments: str(arguments[0]),
)
def test_the_database_comes_from_the_file_the_environment_or_a_flag(
    make_scheduler: MakeScheduler,
    dsn: str,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    make_scheduler().register("acme", "a", print, every="1h")
    monkeypatch.chdir(tmp_path)
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)

    def run(*more: str) -> int:
        return CliRunner().invoke(cli, [*arguments, "--json", *more], catch_exceptions=False).exit_code

    named = json.dumps({"scheduler": {"database": dsn, "schema": schema}})
    assert run() == 2
    Path("scheduler.yaml").write_text(named)
    assert run() == 0
    Path("scheduler.yaml").rename("other.yaml")
    assert run("--config", "other.yaml") == 0
    monkeypatch.setenv("SCHEDULER_DATABASE", "postgresql://127.0.0.1:1/nowhere")
    assert run("--config", "other.yaml") == 1
    assert run("--config", "other.yaml", "--database", dsn) == 0
    Path("other.yaml").write_text("scheduler: {lease: soon}")
    assert run("--config", "other.yaml", "--database", dsn) == 2
