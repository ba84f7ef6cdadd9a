import json
import subprocess
import sys
from collections.abc import Sequence

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg.sql import SQL, Identifier

from scheduler.cli.database import VARIABLES
from scheduler.cli.main import cli
from scheduler.store.schema import VERSION


def scheduler(*arguments: str, environment: dict[str, str] | None = None) -> Result:
    clean: dict[str, str | None] = dict.fromkeys(VARIABLES)
    return CliRunner().invoke(
        cli, arguments, env=clean | (environment or {}), catch_exceptions=False
    )


def failed(result: Result, code: int = 1) -> str:
    """The one line of a failure."""
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_an_empty_schema_is_made_and_a_second_time_there_is_nothing_to_do(
    dsn: str, schema: str
) -> None:
    first = scheduler("migrate", "--database", dsn, "--schema", schema)
    assert (first.exit_code, first.output) == (0, f"schema {schema}: version 0 -> {VERSION}\n")
    second = scheduler("migrate", "--schema", schema, environment={"DATABASE_URL": dsn})
    assert second.output == f"schema {schema}: version {VERSION} -> {VERSION} (nothing to do)\n"


@pytest.mark.parametrize(
    "variable", ["SCHEDULER_DATABASE", "SCHEDULER_DATABASE_URL", "DATABASE_URL"]
)
def test_json_is_one_object(dsn: str, schema: str, variable: str) -> None:
    done = scheduler("migrate", "--schema", schema, "--json", environment={variable: dsn})
    assert json.loads(done.output) == {"schema": schema, "before": 0, "after": VERSION}


def test_a_schema_of_a_later_version_is_left_alone(dsn: str, schema: str) -> None:
    scheduler("migrate", "--database", dsn, "--schema", schema)
    with psycopg.connect(dsn, autocommit=True) as connection:
        newer = SQL("INSERT INTO {}.schema_version (version) VALUES (999)").format(
            Identifier(schema)
        )
        connection.execute(newer)
    line = failed(scheduler("migrate", "--database", dsn, "--schema", schema))
    assert "upgrade the singleton-scheduler package" in line


@pytest.mark.parametrize(
    ("database", "says"),
    [
        ("postgresql://ada:trout77@127.0.0.1:1/app", "refused"),
        ("postgresql+psycopg://ada:trout77@127.0.0.1:1/app", "refused"),
        ("postgresql://ada:tro@ut77@127.0.0.1:1/app", "is the server up"),
        ("host=127.0.0.1 port=1 password='trout77' user=ada", "refused"),
        ("host=127.0.0.1 port=1 password=trout77 nonsense", "database: not a DSN"),
        ("postgresql//ada:trout77@127.0.0.1/app", "database: not a DSN"),
        ("postgresql://ada:trout77@127.0.0.1:port/app", "is the server up"),
        ("mysql://ada:trout77@127.0.0.1/app", "must be a postgresql:// URL"),
        ("postgresql://127.0.0.1:1/app?password=trout77&user=ada", "refused"),
    ],
)
def test_a_wrong_dsn_is_one_line_with_a_cure_and_without_the_password(
    database: str, says: str
) -> None:
    line = failed(scheduler("migrate", "--database", database))
    assert line.startswith("scheduler: ")
    assert says in line
    assert "--database" in line or "database:" in line
    assert "trout" not in line
    assert "ut77" not in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["migrate"], "--database"),
        (["migrate", "--database"], "requires an argument"),
        (["up", "--for", "-1"], "--for"),
        (["up", "--for", "nan"], "--for"),
        (["up", "--for", "soon"], "--for"),
        (["down"], "down"),
    ],
)
def test_wrong_usage_is_code_2(arguments: Sequence[str], says: str) -> None:
    result = scheduler(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--database", " "], "database: is empty"),
        (["--database", "x", "--schema", "pg_mine"], "schema: must be"),
    ],
)
def test_a_wrong_setting_is_code_1_and_named(arguments: Sequence[str], says: str) -> None:
    assert says in failed(scheduler("migrate", *arguments))


def test_as_a_process_it_prints_no_traceback() -> None:
    command = [
        sys.executable,
        "-m",
        "scheduler",
        "migrate",
        "--database",
        "postgresql://127.0.0.1:1/app",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_help_names_every_command_and_version_is_ours() -> None:
    assert {"up", "migrate"} <= set(scheduler("--help").output.split())
    assert scheduler("--version").output.startswith("scheduler, version ")
