"""Lines of the log: a closed list of keys, no payload and no secret, JSON or for a person."""

import ast
import io
import json
import logging
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

import scheduler
from scheduler import JobContext, RunContext, SchedulerError, handler
from scheduler.dialects.client import Client
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.errors import ConfigError, InvalidOption
from scheduler.log import KEYS, OWN, keys, logger, places
from scheduler.observe.logs import JsonLines, Readable, configure
from tests.conftest import MakeScheduler
from tests.dialects.values import NOW, job
from tests.observe.lines import Lines, lines
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

SOURCES = sorted(Path(scheduler.__file__).parent.rglob("*.py"))
__all__ = ["lines"]
CANONICAL = {
    "level",
    "ts",
    "msg",
    "trace_id",
    "span_id",
    "job_id",
    "queue",
    "worker_id",
    "request_id",
    "namespace",
}
OURS = {"fire_at", "attempt", "fence", "type"}
SECRET = "4012-8888-8888-1881"


def test_the_keys_are_those_of_the_seed_and_a_short_list_of_ours() -> None:
    assert CANONICAL - {"level", "ts", "msg"} | OURS == set(KEYS)
    documented = (Path(__file__).parents[2] / "docs" / "logs.md").read_text()
    assert [key for key in CANONICAL | OURS if f"| `{key}` |" not in documented] == []


def test_a_log_call_with_a_payload_fails(lines: Lines) -> None:
    with pytest.raises(InvalidOption, match="no key 'payload'"):
        logger.debug("job is taken", extra=keys(payload={"card": SECRET}))  # type: ignore[call-arg]
    assert lines.text == ""


def test_no_call_of_the_package_has_another_key() -> None:
    """A key is given by name to `keys`, by a `Keys` that mypy checks, or not at all."""
    calls = [
        (path, node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    found = 0
    for path, call in calls:
        name = (
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        )
        for keyword in call.keywords:
            if name in ("keys", "log_keys", "JobLogger") and keyword.arg is not None:
                assert keyword.arg in KEYS, f"{path.name}:{call.lineno} has {keyword.arg}"
            if keyword.arg == "extra" and name in (
                "debug",
                "info",
                "warning",
                "error",
                "exception",
                "log",
            ):
                found += 1
                literal = keyword.value.keys if isinstance(keyword.value, ast.Dict) else []
                named = [each.value if isinstance(each, ast.Constant) else None for each in literal]
                assert set(named) <= set(KEYS), f"{path.name}:{call.lineno} has {named}"
    assert found > 10


def test_no_other_logger_is_made() -> None:
    names = {
        (path.name, node.args[0].value)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "getLogger"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert {name for _, name in names} <= {*OWN, "scheduler.job"}


def test_what_a_handler_logs_names_its_job_and_nothing_else_may_be_put_to_it(
    redis: Client, make_worker: MakeWorker, lines: Lines
) -> None:
    refused: list[str] = []

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        ctx.logger.info("begun", extra={"span_id": "abc"})
        try:
            ctx.logger.info("with its payload", extra={"payload": payload})
        except InvalidOption as error:
            refused.append(str(error))

    worker = make_worker()
    sent = job(
        type="mail",
        correlation_id="r-7",
        payload=json.dumps(SECRET).encode(),
        expires_at=NOW + timedelta(days=36_500),
    )
    StandardQueue(redis, "mail", installation="3f1e").push([sent], epoch="")
    wait_for(lambda: refused, "it ran")
    [line] = lines.about(msg="begun")
    assert line.keys() <= CANONICAL | OURS
    assert line | {"ts": ""} == {
        "level": "info",
        "ts": "",
        "msg": "begun",
        "job_id": sent.id,
        "queue": "mail",
        "namespace": sent.tenant,
        "type": "mail",
        "attempt": 1,
        "worker_id": worker.name,
        "request_id": "r-7",
        "span_id": "abc",
    }
    assert "payload" in refused[0]
    assert SECRET not in lines.text


def test_a_failed_attempt_is_named_without_the_text_of_its_error(
    redis: Client, make_worker: MakeWorker, lines: Lines
) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        raise ValueError(
            f"card {SECRET} of lovelace@example.org is refused\nby redis://lovelace:{SECRET}@host"
        )

    worker = make_worker()
    sent = job(type="mail", policy={"max_attempts": 1}, expires_at=NOW + timedelta(days=36_500))
    StandardQueue(redis, "mail", installation="3f1e").push([sent], epoch="")
    wait_for(lambda: lines.about(level="warning"), "it failed")
    [line] = lines.about(level="warning")
    assert line["msg"].endswith(": dead_letter: ValueError")
    assert (line["job_id"], line["worker_id"], line["attempt"]) == (sent.id, worker.name, 1)
    assert SECRET not in lines.text
    assert "lovelace" not in lines.text


def test_a_failed_run_is_named_without_the_text_of_its_error(
    make_scheduler: MakeScheduler, lines: Lines
) -> None:
    said: list[str] = []

    def body(ctx: RunContext) -> None:
        ctx.logger.info("begun")
        said.append(ctx.fire_at.isoformat())
        raise ValueError(f"card {SECRET}")

    made = make_scheduler()
    made.register("acme", "charge", body)
    wait_for(lambda: lines.about(level="warning", job_id="charge"), "it failed")
    [line] = lines.about(level="warning", job_id="charge")
    assert line["msg"].endswith(": failed: ValueError")
    [begun] = lines.about(msg="begun")
    for each in (line, begun):
        assert (each["namespace"], each["fire_at"], each["attempt"]) == ("acme", said[0], 1)
        assert each["fence"] >= 1
    assert SECRET not in lines.text
    errors = [entry.error for entry in made.history("acme", "charge") if entry.error is not None]
    assert SECRET in errors[0], "whoever may read the ledger sees it there"


def test_what_postgres_says_of_a_row_is_in_no_line_however_it_is_formatted(dsn: str) -> None:
    plain, quoted = Lines(logging.Formatter("%(message)s")), list[str]()
    logger.addHandler(plain)
    try:
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "CREATE TEMPORARY TABLE card (number text CHECK (length(number) < 5))"
            )
            try:
                try:
                    connection.execute("INSERT INTO card VALUES (%s)", [SECRET])
                except psycopg.Error as error:
                    quoted.append(str(error))
                    raise SchedulerError("the row is refused") from error
            except SchedulerError:
                logger.exception("it failed")
    finally:
        logger.removeHandler(plain)
    assert SECRET in quoted[0], "Postgres quotes the row"
    assert "SchedulerError: the row is refused" in plain.text
    assert "CheckViolation" in plain.text
    assert "test_logs.py" in plain.text
    assert SECRET not in plain.text


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("redis://ada:pw7@host/0 is away", "redis://***@host/0 is away"),
        ("moved to https://host/hook?token=pw7", "moved to https://host/hook?***"),
        ("host=h password=pw7 user=u", "host=h password=*** user=u"),
        ("redis://ada:p/w@7@host/0 is away", "redis://***@host/0 is away"),
        ("host=h password='p w\\'7' user=u", "host=h password=*** user=u"),
        ("mail to ada@example.org: 3 of 4 done?", "mail to ada@example.org: 3 of 4 done?"),
    ],
    ids=["user", "query", "dsn", "slashes", "quoted", "harmless"],
)
def test_secrets_of_urls_are_hidden(said: str, written: str, lines: Lines) -> None:
    logger.warning("%s", said)
    assert lines.about(msg=written)


def test_errors_that_lead_to_themselves_are_written_too() -> None:
    first, second = ValueError(SECRET), TypeError(SECRET)
    first.__cause__, second.__cause__ = second, first
    assert places(first).splitlines() == ["ValueError", "TypeError"]


def test_a_line_that_cannot_be_json_is_written_all_the_same() -> None:
    record = logging.makeLogRecord({"msg": "a lone \ud800 and \0", "job_id": "\ud800"})
    line = json.loads(JsonLines().format(record))
    assert (line["msg"], line["job_id"]) == ("a lone \\ud800 and \\x00", "\\ud800")


def test_for_a_person_it_is_a_line_to_read_and_nothing_acts_on_the_terminal() -> None:
    record = logging.makeLogRecord(
        {
            "levelname": "INFO",
            "msg": "queue mail: \x1b[2J cleared",
            "queue": "mail",
            "job_id": "7\x07",
            "secret": SECRET,
        }
    )
    line = Readable().format(record)
    assert line.endswith("INFO    queue mail: \\x1b[2J cleared job_id=7\\x07")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "formatter"),
    [(Terminal(), Readable), (io.StringIO(), JsonLines)],
    ids=["tty", "pipe"],
)
def test_configure_writes_for_who_reads(
    stream: io.StringIO, formatter: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, before = logging.getLogger(), logger.level
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    monkeypatch.setattr(root, "handlers", [])
    try:
        configure("error", stream=stream)
        logger.warning("not said")
        logger.error("said")
        others = Lines(logging.Formatter("%(message)s"))
        root.addHandler(others)  # once the app says where
        logger.error("to others")
    finally:
        logger.setLevel(before)
    [line] = stream.getvalue().splitlines()
    record = logging.makeLogRecord({"msg": "said", "levelname": "ERROR"})
    assert line[-12:] == formatter().format(record)[-12:]
    assert others.text == "to others\n"


def test_configure_names_the_levels() -> None:
    with pytest.raises(ConfigError, match="level: must be one of debug, info"):
        configure("loud")


def test_importing_the_package_configures_nothing() -> None:
    code = (
        "import logging, scheduler; from scheduler.log import logger; root = logging.getLogger();"
        "print(root.handlers, root.level, logger.handlers, logger.level, logger.propagate)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/"
    )
    assert run.stdout.split() == ["[]", "30", "[]", "0", "True"]
