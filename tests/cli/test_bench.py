"""The measure of the configured servers: real figures, and nothing left behind."""

import json
from typing import Any

import psycopg
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from scheduler import State
from scheduler.cli.main import cli
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from tests.conftest import MakeScheduler

SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'bench%'"


def test_figures_are_real_and_nothing_is_left_or_touched(
    make_scheduler: MakeScheduler,
    dsn: str,
    schema: str,
    redis: Client,
    redis_server: EmbeddedRedis,
    connection: psycopg.Connection[Any],
) -> None:
    scheduler = make_scheduler()
    job = scheduler.submit("bench", "bench", None)
    keys = set(redis.call("KEYS", "*"))
    given = [
        "bench",
        "--jobs",
        "100",
        "--database",
        dsn,
        "--schema",
        schema,
        "--redis",
        redis_server.url,
    ]
    done = CliRunner().invoke(cli, [*given, "--json"], catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, "")
    figures = json.loads(done.stdout)["figures"]
    assert all(
        figures[name]["per_second"] > 1 for name in ("submit", "enqueue", "drain", "end_to_end")
    )
    for name in ("postgres_round_trip", "redis_round_trip", "latency"):
        assert 0 < figures[name]["p50_seconds"] <= figures[name]["p99_seconds"] < 10
    assert connection.execute(SCHEMAS).fetchall() == []
    assert set(redis.call("KEYS", "*")) == keys
    assert scheduler.get("bench", job.id).state is State.PENDING
    table = CliRunner().invoke(cli, [*given, "--jobs", "10"], catch_exceptions=False)
    assert [line.split("  ")[0] for line in table.stdout.splitlines()] == [
        "WHAT",
        "postgres round trip",
        "redis round trip",
        "submit",
        "enqueue",
        "drain",
        "end to end",
        "latency",
    ]


def test_a_role_that_may_not_make_a_schema_is_told_so(
    dsn: str, redis_server: EmbeddedRedis, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("CREATE ROLE bench_reader LOGIN")
    try:
        as_reader = make_conninfo(dsn, user="bench_reader")
        done = CliRunner().invoke(
            cli, ["bench", "--database", as_reader, "--redis", redis_server.url]
        )
        assert done.exit_code == 1
        assert "bench needs a schema of its own, and the right to make one: " in done.stderr
        assert done.stderr.count("\n") == 1
    finally:
        connection.execute("DROP ROLE bench_reader")
