"""The commands about submitted jobs, on real servers; and that all commands read one
configuration.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scheduler import JobContext, PermanentError, Scheduler, State, TemporaryError, Worker, handler
from scheduler.cli.database import VARIABLES
from scheduler.cli.main import cli
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from tests.cli.test_inspect import HOSTILE, on_terminal, process
from tests.conftest import MakeScheduler
from tests.support.waiting import wait_for


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
        return (
            CliRunner().invoke(cli, [*arguments, "--json", *more], catch_exceptions=False).exit_code
        )

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


@pytest.fixture
def fleet(
    make_scheduler: MakeScheduler, redis: Client, redis_server: EmbeddedRedis
) -> Iterator[Scheduler]:
    """An instance that feeds and settles, and a worker whose handler does as its payload says."""

    @handler("work", queue="mail")
    def work(ctx: JobContext, payload: Any) -> object:
        if payload == "fail":
            raise PermanentError(f"no {HOSTILE}")
        if payload == "wait":
            assert wait_for(lambda: ctx.cancelled, "a cancel")
        if payload == "again" and ctx.attempt == 1:
            raise TemporaryError("later")
        return {"done": payload}

    scheduler = make_scheduler(redis=redis_server.url)
    worker = Worker(redis_server.url, queues=["mail"], concurrency=2, lease="2s")
    worker.start()
    yield scheduler
    worker.stop(grace=2.0)


Command = Callable[..., Result]


@pytest.fixture
def command(dsn: str, schema: str, redis_server: EmbeddedRedis) -> Command:
    def run(*arguments: str, given: str | None = None) -> Result:
        options = ["--schema", schema, "--database", dsn, "--redis", redis_server.url]
        return CliRunner().invoke(
            cli, [*arguments[:1], *options, *arguments[1:]], input=given, catch_exceptions=False
        )

    return run


def parsed(result: Result) -> Any:
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def submitted(command: Command, payload: str, *options: str) -> str:
    work = ("acme", "work", "--queue", "mail", "--payload", json.dumps(payload), "--json")
    return str(parsed(command("submit", *work, *options))["id"])


def test_a_job_is_submitted_and_its_timeline_is_printed(fleet: Scheduler, command: Command) -> None:
    job = submitted(
        command, "again", "--tag", "order=7", "--correlation-id", "c-1", "--priority", "high"
    )
    assert fleet.wait("acme", job, timeout=60).state is State.COMPLETED
    told = parsed(command("get", "acme", job, "--json"))
    assert (told["state"], told["attempt"], told["tags"], told["priority"]) == (
        "completed",
        2,
        {"order": "7"},
        "high",
    )
    assert [each["outcome"] for each in told["attempts"]] == ["retrying", "completed"]
    assert "payload" not in told
    assert "result" not in told
    told = parsed(command("get", "acme", job, "--json", "--payload"))
    assert (told["payload"], told["result"]) == ("again", {"done": "again"})
    lines = command("get", "acme", job).stdout.splitlines()
    labels = [line.split("  ")[0] for line in lines]
    assert labels == [
        "state",
        "job",
        "tags",
        "correlation",
        "submitted",
        "attempt 1",
        "attempt 2",
        "ended",
    ]
    assert "retrying after" in lines[5]
    assert lines[5].endswith(": temporary: TemporaryError: later")
    assert "again" not in "".join(lines)
    assert '{"done": "again"}' in command("get", "acme", job, "--payload").stdout


def test_a_job_without_a_handler_is_printed_with_the_reason(
    fleet: Scheduler, command: Command
) -> None:
    job = str(fleet.submit("acme", "fax\x1b", queue="mail").id)
    reason = 'no live worker handles type "fax\x1b"'
    wait_for(lambda: fleet.get("acme", job).reason == reason, "it is parked")
    assert parsed(command("get", "acme", job, "--json"))["reason"] == reason
    [line] = [each for each in command("get", "acme", job).stdout.splitlines() if "waits" in each]
    assert line.endswith('no live worker handles type "fax\\x1b"')
    [queue] = parsed(command("queues", "--json"))
    assert (queue["queue"], queue["unhandled"]) == ("mail", {"fax\x1b": 1})
    assert "no handler: fax\\x1b 1" in " ".join(command("queues").stdout.split())


def test_find_filters_and_goes_on_where_it_ended(fleet: Scheduler, command: Command) -> None:
    failing = submitted(command, "fail", "--tag", "order=7")
    fine = [submitted(command, "fine", "--tag", "order=8") for _ in range(3)]
    for job in (failing, *fine):
        fleet.wait("acme", job, timeout=60)

    def found(*filters: str) -> set[str]:
        return {job["id"] for job in parsed(command("find", "acme", "--json", *filters))["jobs"]}

    assert found() == {failing, *fine}
    assert (
        found("--state", "failed", "--state", "dead_letter")
        == found("--tag", "order=7")
        == {failing}
    )
    assert found("--tag", "order", "--queue", "mail", "--type", "work") == {failing, *fine}
    assert found("--type", "play") == found("--queue", "default") == set()
    first = parsed(command("find", "acme", "--json", "--limit", "2"))
    rest = parsed(command("find", "acme", "--json", "--limit", "2", "--cursor", first["cursor"]))
    assert {job["id"] for job in first["jobs"] + rest["jobs"]} == {failing, *fine}
    table = command("find", "acme", "--state", "failed")
    assert (table.exit_code, table.stderr) == (0, "")
    assert "\x1b" not in table.stdout
    assert "PAYLOAD" not in table.stdout
    assert command("find", "acme", "--state", "failed", "--payload").stdout.endswith('"fail"\n')
    assert command("find", "nobody").stdout == "no such job of tenant nobody\n"


def test_a_payload_comes_from_a_file_or_from_stdin(
    make_scheduler: MakeScheduler, command: Command, tmp_path: Path
) -> None:
    make_scheduler()
    (tmp_path / "payload.json").write_text('{"from": "file"}')
    jobs = [
        parsed(
            command(
                "submit", "acme", "work", "--payload", given, "--json", given='{"from": "stdin"}'
            )
        )["id"]
        for given in (f"@{tmp_path}/payload.json", "-")
    ]
    payloads = [
        parsed(command("get", "acme", job, "--payload", "--json"))["payload"] for job in jobs
    ]
    assert payloads == [{"from": "file"}, {"from": "stdin"}]


def test_submit_has_the_options_of_the_call(
    make_scheduler: MakeScheduler, command: Command
) -> None:
    scheduler = make_scheduler()
    first = parsed(
        command(
            "submit", "acme", "work", "--key", "k", "--run-at", "2100-01-31T06:00:00Z", "--json"
        )
    )
    again = parsed(command("submit", "acme", "work", "--key", "k", "--json"))
    assert again == {"tenant": "acme", "id": first["id"], "duplicate": True}
    assert (
        command("submit", "acme", "work", "--key", "k").stdout
        == f"{first['id']} (an earlier job with the same key)\n"
    )
    assert scheduler.get("acme", first["id"]).run_at == datetime(2100, 1, 31, 6, tzinfo=UTC)
    later = parsed(
        command("submit", "acme", "work", "--after", first["id"], "--delay", "1h", "--json")
    )
    job = scheduler.get("acme", later["id"])
    assert (job.state, job.run_at - job.created_at) == (State.PENDING, timedelta(hours=1))


def test_a_job_is_cancelled_and_retried(fleet: Scheduler, command: Command) -> None:
    waits = submitted(command, "fine", "--delay", "1h")
    told = parsed(command("cancel-job", "acme", waits, "--reason", "wrong order", "--json"))
    assert told == {"tenant": "acme", "id": waits, "state": "cancelled"}
    assert parsed(command("get", "acme", waits, "--json"))["reason"] == "wrong order"
    runs = submitted(command, "wait")
    wait_for(lambda: fleet.get("acme", runs).state is State.RUNNING, "a run")
    assert "runs since" in command("get", "acme", runs).stdout
    assert command("cancel-job", "acme", runs).stdout == f"{runs} is running: it is asked to end\n"
    assert fleet.wait("acme", runs, timeout=60).state.terminal
    again = parsed(command("retry-job", "acme", waits, "--json"))
    assert again["retried_from"] == waits
    assert fleet.wait("acme", again["id"], timeout=60).state is State.COMPLETED
    assert command("retry-job", "acme", again["id"]).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["get", "acme", "7"], 1, "must be the UUID"),
        (["get", "acme", "3f1e9c5a-6a0f-4a51-9d0f-0d6a4a6f2f10"], 1, "there is no job"),
        (["get", "acme"], 2, "Missing argument"),
        (["find", "acme", "--state", "odd"], 2, "--state"),
        (["find", "acme", "--cursor", "odd"], 1, "cursor is not one"),
        (["submit", "acme", "work", "--payload", "{"], 2, "must be JSON"),
        (["submit", "acme", "work", "--payload", "@/nowhere"], 2, "cannot be read"),
        (["submit", "acme", "work", "--run-at", "soon"], 2, "--run-at"),
        (
            ["submit", "acme", "work", "--run-at", "2030-01-31T06:00:00"],
            1,
            "must carry a time zone",
        ),
        (["submit", "acme", "work", "--tag", "order"], 2, "order=7"),
        (["submit", "acme", "work", "--queue", "a b"], 1, "queue must be"),
        (["cancel-job", "acme", "3f1e9c5a-6a0f-4a51-9d0f-0d6a4a6f2f10"], 1, "there is no job"),
        (["retry-job", "acme", "x"], 1, "must be the UUID"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_cannot_be_is_one_line_and_a_code(
    make_scheduler: MakeScheduler, command: Command, arguments: list[str], code: int, says: str
) -> None:
    make_scheduler()
    result = command(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr
    if code == 1:
        assert result.stderr.count("\n") == 1


def test_without_redis_jobs_are_shown_as_postgres_has_them(
    make_scheduler: MakeScheduler, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_scheduler()
    monkeypatch.setenv("REDIS_ADDR", "none")

    def run(*arguments: str) -> Any:
        options = ["--schema", schema, "--database", dsn, "--json"]
        return parsed(CliRunner().invoke(cli, [*arguments, *options], catch_exceptions=False))

    job = run("submit", "acme", "work")["id"]
    assert run("get", "acme", job)["state"] == "pending"
    assert run("cancel-job", "acme", job)["state"] == "cancelled"


def test_while_redis_is_away_jobs_are_shown_as_postgres_has_them_and_it_is_said(
    make_scheduler: MakeScheduler, redis: Client, redis_server: EmbeddedRedis, dsn: str, schema: str
) -> None:
    scheduler = make_scheduler(redis=redis_server.url)
    job = scheduler.submit("acme", "work", None, queue="mail")
    wait_for(lambda: scheduler.get("acme", job.id).state is State.SCHEDULED, "a job that is fed")
    options = ["--json", "--redis", "redis://127.0.0.1:1/0"]
    with process(
        dsn, schema, "get", "acme", str(job.id), *options, env={"REDIS_MAX_RETRIES": "0"}
    ) as running:
        out, err = running.communicate(timeout=60)
    assert (running.returncode, json.loads(out)["state"]) == (0, "scheduled")
    assert "queue mail: jobs are shown as Postgres has them: Redis: " in err
    assert err.count("\n") == 1


def test_a_timeline_fits_a_terminal_and_foreign_text_does_not_act_on_it(
    fleet: Scheduler, command: Command, dsn: str, schema: str, redis_server: EmbeddedRedis
) -> None:
    job = submitted(command, "fail")
    fleet.wait("acme", job, timeout=60)
    for columns in (50, 120):
        for arguments in (["get", "acme", job], ["find", "acme"]):
            lines, sent = on_terminal(
                dsn, schema, *arguments, "--redis", redis_server.url, columns=columns
            )
            assert "\x1b]" not in sent
            assert all(len(line) <= columns for line in lines)
