"""The commands about queues, on real tables and a real Redis, beside a real scheduler and a real
worker.
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scheduler import (
    BreakerRule,
    JobContext,
    NewJob,
    PermanentError,
    RetryPolicy,
    Scheduler,
    TemporaryError,
    Worker,
    handler,
)
from scheduler.cli.main import cli
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.model.breaker import BreakerState
from tests.support.foreigners import foreigners
from tests.support.waiting import wait_for

SECRET = "only-in-the-payload"
FILE = '{"id":"%s","filepath":"/a","filesize":1,"priority":"low","retries":3,"creation_time":""}'

Command = Callable[..., Result]


@pytest.fixture
def command(
    dsn: str,
    schema: str,
    redis: Client,
    redis_server: EmbeddedRedis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    """The command line on the test's schema and Redis; its queues are in a file."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scheduler.yaml").write_text(
        "queues:\n  video: {dialect: bullmq}\n  go: {dialect: conveyor}\n"
    )

    def run(*arguments: str, database: bool = True) -> Result:
        tables = ["--schema", schema, "--database", dsn] if database else []
        options = ["--redis", redis_server.url, *tables]
        return CliRunner().invoke(
            cli, [*arguments[:1], *options, *arguments[1:]], catch_exceptions=False
        )

    return run


@pytest.fixture
def ring(dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis) -> Iterator[Scheduler]:
    with Scheduler(dsn, schema=schema, redis=redis_server.url) as made:
        yield made


@pytest.fixture
def dead(ring: Scheduler, redis_server: EmbeddedRedis) -> Iterator[list[str]]:
    """Three jobs of queue mail that failed; the worker lives on."""

    @handler("send", queue="mail")
    def send(ctx: JobContext, payload: dict[str, Any]) -> None:
        if not ctx.correlation_id:
            raise PermanentError("no such address")

    worker = Worker(redis_server.url, ["mail"])
    worker.start()
    once = RetryPolicy(max_attempts=1)
    made = ring.submit_many(
        [NewJob("acme", "send", {"to": SECRET}, queue="mail", retry=once) for _ in range(3)]
    )
    for each in made:
        ring.wait("acme", each.id, timeout=60)
    yield [str(each.id) for each in made]
    worker.stop(grace=1)


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_queues_are_listed_with_their_numbers(command: Command, ring: Scheduler) -> None:
    ring.submit("acme", "send", {"to": SECRET}, queue="mail")
    wait_for(lambda: ring.queue("mail").stats().waiting and ring.queue("mail").peek(), "it is fed")
    told = {each["queue"]: each for each in document(command("queues", "--json"))}
    assert {name: each["dialect"] for name, each in told.items()} == {
        "go": "conveyor",
        "mail": "standard",
        "video": "bullmq",
    }
    assert told["mail"]["waiting"] == {"critical": 0, "high": 0, "normal": 1, "low": 0, "bulk": 0}
    assert (told["mail"]["ready"], told["mail"]["workers"], told["mail"]["error"]) == (0, 0, None)
    shown = command("queues").stdout
    assert "normal 1" in shown
    assert "conveyor" in shown


def test_workers_are_listed_with_what_they_hold_and_their_breakers(
    command: Command, ring: Scheduler, redis_server: EmbeddedRedis
) -> None:
    held, release = threading.Event(), threading.Event()

    def hold(ctx: JobContext, payload: object) -> None:
        if payload == "fail":
            raise TemporaryError("away")
        held.set()
        release.wait(60)

    assert (
        command("workers").stdout == "no worker lives; start one: scheduler worker --app MODULE\n"
    )
    handler("hold\x1b[31m", queue="mail")(hold)
    worker = Worker(
        redis_server.url, ["mail"], breaker=BreakerRule(min_samples=1, cooldown_period="1h")
    )
    worker.start()
    try:
        made = ring.submit("acme", "hold\x1b[31m", None, queue="mail")
        assert held.wait(60)
        ring.submit("acme", "hold\x1b[31m", "fail", queue="mail")
        wait_for(
            lambda: ring.queue("mail").stats().breakers == {BreakerState.OPEN: 1},
            "its breaker is open",
        )
        wait_for(lambda: [each.holds for each in ring.workers()] == [1], "it says what it holds")
        [told] = document(command("workers", "--json"))
        [at] = told["queues"]
        assert (told["name"], told["kind"], told["pid"], told["holds"]) == (
            worker.name,
            "scheduler",
            os.getpid(),
            1,
        )
        assert (at["name"], at["breaker"], at["jobs"][0]["id"]) == ("mail", "open", str(made.id))
        assert datetime.fromisoformat(at["breaker_until"]) > datetime.fromisoformat(told["seen_at"])
        head, line = command("workers", "mail").stdout.splitlines()
        assert head.split()[:2] == ["WORKER", "KIND"]
        assert line.endswith(f" UTC  acme {made.id} (hold\\x1b[31m)")
        assert "open until" in line
        assert document(command("workers", "go", "--json")) == []
        assert document(command("workers", "--json", database=False)) == []
    finally:
        release.set()
        worker.stop(grace=1)


def test_workers_of_others_are_listed_as_far_as_they_show(
    command: Command, ring: Scheduler, redis: Client, redis_server: EmbeddedRedis
) -> None:
    with foreigners(redis, redis_server.url):
        told = {each["name"]: each for each in document(command("workers", "--json"))}
        assert {
            name: (each["kind"], each["holds"], each["pid"]) for name, each in told.items()
        } == {
            "go-1": ("conveyor", 2, None),
            "node-1": ("bullmq", None, None),
        }
        _, go, node = (line.split() for line in command("workers").stdout.splitlines())
    assert (go[:2], go[-4:]) == (["go-1", "conveyor"], ["-", "2", "-", "-"])
    assert (node[:2], node[-4:]) == (["node-1", "bullmq"], ["video", "-", "-", "-"])


def test_a_redis_that_is_away_is_said_and_what_postgres_knows_is_shown(
    command: Command, ring: Scheduler
) -> None:
    ring.submit("acme", "later", None, queue="mail", delay="1h")
    ring.submit("acme", "now", None, queue="mail")
    wait_for(lambda: ring.queue("mail").peek(), "it is fed")
    result = command("queues", "--redis", "redis://127.0.0.1:1", "--json")
    told = {each["queue"]: each for each in document(result)}
    assert told["mail"]["ready"] == 1
    assert "Redis" in told["mail"]["error"]
    away = command("workers", "--redis", "redis://127.0.0.1:1", "--json")
    assert (away.exit_code, away.stdout, len(away.stderr.splitlines())) == (1, "", 1)


def test_a_redis_that_hangs_is_not_waited_for_again_and_again(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REDIS_READ_TIMEOUT", "REDIS_WRITE_TIMEOUT"):
        monkeypatch.setenv(name, "200ms")
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        result = command(
            "peek",
            "video",
            "--redis",
            f"redis://127.0.0.1:{silent.getsockname()[1]}",
            database=False,
        )
        assert (result.exit_code, result.stdout) == (1, "")
        assert "Timeout" in result.stderr
        silent.setblocking(False)
        opened = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                opened += 1
    assert 0 < opened <= 4  # by configuration each would be tried three times more


def test_the_next_jobs_without_their_payload_unless_it_is_asked_for(
    command: Command, ring: Scheduler
) -> None:
    made = ring.submit("acme", "send", {"to": SECRET}, queue="mail")
    wait_for(lambda: ring.queue("mail").peek(), "it is fed")
    [seen] = document(command("peek", "mail", "--json"))
    assert (seen["id"], seen["tenant"], seen["type"], "payload" in seen) == (
        str(made.id),
        "acme",
        "send",
        False,
    )
    assert SECRET not in command("peek", "mail").stdout
    assert document(command("peek", "mail", "--payload", "--json"))[0]["payload"] == {"to": SECRET}
    assert SECRET in command("peek", "mail", "--payload", "-n", "1").stdout
    assert command("peek", "go").stdout == "nothing waits in queue go\n"


def test_a_queue_that_is_not_there(command: Command, ring: Scheduler) -> None:
    for name in (
        "workers",
        "peek",
        "requeue-dlq",
        "purge-dlq",
        "pause-queue",
        "resume-queue",
        "stats-keys",
    ):
        result = command(name, "\x1b[31mnope", *(["--all"] if name == "requeue-dlq" else []))
        assert (result.exit_code, result.stdout) == (2, "")
        assert (
            result.stderr == "scheduler: there is no queue '\\x1b[31mnope'; there are go, video\n"
        )


def test_dead_letters_run_again_each_once(
    command: Command, ring: Scheduler, dead: list[str]
) -> None:
    letters = document(command("peek", "mail", "--dead", "--json"))
    assert {each["id"] for each in letters} == set(dead)
    assert "no such address" in command("peek", "mail", "--dead").stdout
    result = command("requeue-dlq", "mail", "--id", dead[0], "--id", "nope", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["requeued"], list(told["refused"])) == (1, 1, ["nope"])
    assert str(ring.get("acme", told["jobs"][dead[0]]).retried_from) == dead[0]
    assert "2 requeued" in command("requeue-dlq", "mail", "--all").stdout.replace(
        "3 requeued", "2 requeued"
    )
    assert command("requeue-dlq", "mail").exit_code == 2


def test_nothing_is_purged_without_yes(command: Command, ring: Scheduler, dead: list[str]) -> None:
    told = document(command("purge-dlq", "mail", "--json"))
    assert told == {"queue": "mail", "purged": 0, "would_purge": 3, "dry_run": True}
    assert (
        command("purge-dlq", "mail").stdout == "would remove 3 dead letters; say --yes to do it\n"
    )
    assert len(ring.queue("mail").dead()) == 3
    assert document(command("purge-dlq", "mail", "--yes", "--json"))["purged"] == 3
    assert ring.queue("mail").dead() == []
    assert ring.get("acme", dead[0]).state.terminal


def test_ends_are_counted_from_the_ledger(command: Command, dead: list[str]) -> None:
    told = document(command("stats", "--since", "10m", "--json"))
    assert told["ended"]["mail"]["failed"] == 3
    assert told["ended"]["mail"]["per_second"] == 0.005
    assert told["jobs"]["dead"] == 3
    shown = command("stats").stdout.splitlines()
    assert shown[0] == "dead 3"
    assert shown[-1].split()[:3] == ["all", "0", "3"]
    assert command("stats", "--since", "soon").exit_code == 1


def test_keys_are_listed_and_removed_and_what_a_ledger_has_is_fed_again(
    command: Command, ring: Scheduler, redis: Client
) -> None:
    made = ring.submit("acme", "send", 1, queue="mail")
    wait_for(lambda: ring.queue("mail").peek(), "it is fed")
    redis.call("SET", "of:others", "1")
    keys = document(command("stats-keys", "mail", "--json"))
    assert {"queue": "mail", "key": "jobqueue:{mail}:waiting", "type": "zset", "size": 1} in keys
    assert "jobqueue:{mail}:waiting" in command("stats-keys").stdout
    told = document(command("purge-all", "--json"))
    assert (told["dry_run"], told["purged"], told["would_purge"] >= 3) == (True, 0, True)
    assert ring.queue("mail").peek()
    assert document(command("purge-all", "--yes", "--json"))["purged"] >= 3
    assert redis.call("GET", "of:others") == b"1"
    wait_for(
        lambda: [each.id for each in ring.queue("mail").peek()] == [str(made.id)], "it is fed again"
    )


def test_a_queue_is_paused_and_resumed(command: Command, ring: Scheduler) -> None:
    ring.submit("acme", "send", 1, queue="mail")
    wait_for(lambda: ring.queue("mail").peek(), "it is fed")
    since = document(command("pause-queue", "mail", "--json"))["paused_at"]
    assert ring.queue("mail").stats().paused_at.isoformat() == since  # type: ignore[union-attr]
    assert "paused since" in command("queues").stdout
    assert command("resume-queue", "mail").stdout == "queue mail goes on\n"
    assert document(command("resume-queue", "mail", "--json")) == {
        "queue": "mail",
        "was_paused": False,
    }


def test_without_a_database_redis_alone_is_seen_and_the_originals_queue(
    command: Command, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCHEDULER_DATABASE", "SCHEDULER_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    redis.call("LPUSH", "jobqueue:low_priority", FILE % "a")
    redis.call("LPUSH", "jobqueue:dead_letter", FILE % "b", "not a job")
    told = {each["queue"]: each for each in document(command("queues", "--json", database=False))}
    assert set(told) == {"files", "go", "video"}
    assert (told["files"]["waiting"]["low"], told["files"]["dead"]) == (1, 2)
    result = command("requeue-dlq", "files", "--all", "--json", database=False)
    assert result.exit_code == 1, "one of them is no job"
    assert json.loads(result.stdout)["jobs"] == {"b": "b"}
    assert redis.call("LLEN", "jobqueue:low_priority") == 2
    assert command("pause-queue", "files", database=False).exit_code == 0
    assert command("stats", database=False).exit_code == 1
    assert document(command("purge-all", "--yes", "--json", database=False))["queues"]["files"] >= 3
    assert redis.call("KEYS", "*") == []
