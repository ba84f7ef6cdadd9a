"""Roles as people start them: processes with an app, a configuration, real servers, and signals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from tests.support.lines import read_lines
from tests.support.waiting import wait_for

APP = """
import threading
import scheduler

def note(*words):
    with open("journal", "a") as journal:
        print(*words, file=journal)

@scheduler.handler("file", queue="files")
def file(ctx, payload):
    note("file", payload["filepath"])

@scheduler.handler("mail", queue="mail")
def mail(ctx, payload):
    note("mail", ctx.attempt)

@scheduler.handler("sms", queue="sms")
def sms(ctx, payload):
    note("sms")

@scheduler.handler("file", queue="slow")
def slow(ctx, payload):
    note("slow", ctx.attempt)
    threading.Event().wait(60)

async def later(instance):
    instance.register("acme", "later", lambda: note("later"))

def register(instance):
    instance.register("acme", "tick", lambda: note("tick"))
    if instance.settings.redis is not None:
        instance.register("acme", "mail", queue="mail")
"""
ENTRY = (
    '{"id":"%s","filepath":"/data/%s","filesize":1,"priority":"low","retries":0,'
    '"creation_time":"2025-09-12T10:00:00.123456789Z","trace_id":"","span_id":""}'
)


@dataclass
class Started:
    """A process of a role; its output is in files."""

    process: subprocess.Popen[bytes]
    folder: Path

    def said(self) -> str:
        return (self.folder / "stderr").read_text()

    def journal(self) -> list[str]:
        return list(read_lines(self.folder / "journal"))

    def met(self, line: str) -> bool:
        assert self.process.poll() is None or line in self.journal(), self.said()
        return line in self.journal()

    def wait_for(self, line: str) -> None:
        wait_for(lambda: self.met(line), f"{line!r} in the journal")

    def wait_to_say(self, text: str) -> None:
        wait_for(
            lambda: text in self.said() or self.process.poll() is not None, f"{text!r} on stderr"
        )
        assert text in self.said()

    def ended(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(timeout=60)


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Start]:
    """Start a command in a folder of its own, where `app.py` is; keywords are environment
    variables.
    """
    (tmp_path / "app.py").write_text(APP)
    made: list[Started] = []

    def start(*arguments: str, **environment: str) -> Started:
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SCHEDULER_", "DATABASE_"))
        }
        with (tmp_path / "stdout").open("wb") as out, (tmp_path / "stderr").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scheduler", *arguments],
                cwd=tmp_path,
                stdout=out,
                stderr=err,
                env=clean | {"REDIS_ADDR": redis_server.url} | environment,
            )
        made.append(Started(process, tmp_path))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.wait()


def put(redis: Client, name: str, where: str = "jobqueue:low_priority") -> None:
    redis.call("LPUSH", where, ENTRY % (name, name))


def test_flag_role_worker_runs_the_handlers_of_the_app(start: Start, redis: Client) -> None:
    put(redis, "a.txt")
    worker = start("run", "--role=worker", "--app", "app")
    worker.wait_for("file /data/a.txt")
    assert worker.ended(signal.SIGTERM) == 0
    assert redis.call("LLEN", "jobqueue:completed") == 1


def test_flag_role_scheduler_runs_what_the_app_registers(
    start: Start, dsn: str, schema: str
) -> None:
    started = start(
        "run",
        "--role=scheduler",
        "--app=app:register",
        DATABASE_URL=dsn,
        SCHEDULER_SCHEMA=schema,
        REDIS_ADDR="none",
    )
    started.wait_for("tick")
    assert started.ended(signal.SIGINT) == 0
    with psycopg.connect(dsn) as connection:
        query = f"SELECT outcome FROM \"{schema}\".job_history WHERE kind = 'fire'".encode()
        assert connection.execute(query).fetchall() == [("success",)]


def test_flag_role_producer_queues_files_and_ends(
    start: Start, redis: Client, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a.txt", "b.pdf"):
        (tmp_path / "data" / name).touch()
    producer = start("run", "--role=producer", "--json")
    assert producer.ended() == 0, producer.said()
    assert json.loads((tmp_path / "stdout").read_text())["queued"] == {"high": 1, "low": 1}
    assert [redis.call("LLEN", f"jobqueue:{each}_priority") for each in ("high", "low")] == [1, 1]


def test_flag_role_all_is_scheduler_producer_and_worker_in_one_process(
    start: Start, redis: Client, dsn: str, schema: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").touch()
    started = start(
        "run", "--role=all", "--app=app:register", DATABASE_URL=dsn, SCHEDULER_SCHEMA=schema
    )
    for line in ("tick", "mail 1", f"file {tmp_path}/data/a.txt"):
        started.wait_for(line)

    def settled() -> bool:
        with psycopg.connect(dsn) as connection:
            query = f"SELECT 1 FROM \"{schema}\".job_history WHERE outcome = 'completed'".encode()
            return bool(connection.execute(query).fetchall())

    wait_for(settled, "the end of the mail in the ledger")
    assert started.ended(signal.SIGTERM) == 0, started.said()


def test_role_all_without_a_folder_of_files_runs_without_a_producer(
    start: Start, redis: Client, dsn: str, schema: str
) -> None:
    started = start(
        "run", "--role=all", "--app=app:register", DATABASE_URL=dsn, SCHEDULER_SCHEMA=schema
    )
    started.wait_for("mail 1")
    started.wait_to_say("producer.scan_dir: there is no './data': role all runs without a producer")
    assert started.ended(signal.SIGTERM) == 0, started.said()
    assert start("run", "--role=producer").ended() == 2


def test_flag_role_must_be_one_of_them(start: Start) -> None:
    started = start("run", "--role=admin")
    assert started.ended() == 2
    assert "'scheduler', 'producer', 'worker', 'all'" in started.said()


def test_flag_config_names_the_file(start: Start, redis: Client, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("worker: {file_queue: slow, grace: 100ms}")
    put(redis, "a.txt")
    worker = start("worker", "--config=my.yaml", "--app=app", "--queue=slow")
    worker.wait_for("slow 1")
    assert worker.ended(signal.SIGTERM) == 0
    assert redis.call("LLEN", "jobqueue:low_priority") == 1  # put back, as if it had not been taken


def test_flag_config_missing_file_is_allowed(start: Start, redis: Client) -> None:
    put(redis, "a.txt")
    worker = start("run", "--role=worker", "--config=none.yaml", "--app=app")
    worker.wait_for("file /data/a.txt")
    assert "there is no none.yaml" in worker.said()


def test_invalid_values_are_not_allowed_and_all_are_said_with_exit_code_2(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "scheduler.yaml").write_text("worker: {count: 0, cuont: 1}")
    started = start("run", "--role=all", REDIS_DB="x")
    assert started.ended() == 2
    lines = started.said().splitlines()
    assert [line.split(":")[1].strip() for line in lines] == [
        "redis.db",
        "worker.cuont",
        "worker.count",
    ]


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "says"),
    [
        (
            ["--role=worker", "--app=nowhere"],
            {},
            1,
            "app: nowhere cannot be imported: ModuleNotFoundError",
        ),
        (["--role=worker", "--app=broken"], {}, 1, "broken.py, line 2"),
        (["--role=worker", "--app=eager"], {}, 1, "--app module:register"),
        (["--role=worker", "--app=app:nothing"], {}, 1, "app: app has no function 'nothing'"),
        (
            ["--role=scheduler", "--app=app:later"],
            {"REDIS_ADDR": "none"},
            1,
            "app: app:later is `async def`",
        ),
        (["--role=worker"], {}, 2, "app: there are no handlers"),
        (
            ["--role=worker", "--app=app"],
            {"REDIS_ADDR": "none"},
            2,
            "redis.addr: must not be empty",
        ),
        (
            ["--role=worker", "--app=app"],
            {"REDIS_PASSWORD": "trout77", "REDIS_USERNAME": "a"},
            1,
            "Redis refused",
        ),
        (
            ["--role=all", "--app=app"],
            {"SCHEDULER_WORKER_PROCESSES": "2"},
            2,
            "worker.processes: must be 1 in role all",
        ),
        (
            ["--role=all"],
            {"PRODUCER_DEFAULT_PRIORITY": "mid"},
            2,
            "producer.default_priority: 'mid' is none of",
        ),
        (
            ["--role=scheduler"],
            {
                "SCHEDULER_DATABASE": "postgresql://ada:trout77@127.0.0.1:1/app",
                "REDIS_ADDR": "none",
            },
            1,
            "refused",
        ),
    ],
)
def test_process_exits_non_zero_on_fatal_errors_with_one_line(
    start: Start,
    tmp_path: Path,
    dsn: str,
    schema: str,
    arguments: list[str],
    environment: dict[str, str],
    code: int,
    says: str,
) -> None:
    environment = {"DATABASE_URL": dsn, "SCHEDULER_SCHEMA": schema, **environment}
    (tmp_path / "broken.py").write_text("import os\nos.nothing()\n")
    (tmp_path / "eager.py").write_text(
        "import scheduler\nscheduler.register('acme', 'x', print, every='1h')\n"
    )
    started = start("run", *arguments, **environment)
    assert started.ended() == code, started.said()
    assert started.said().count("\n") == 1, started.said()
    assert len(started.said()) < 300
    assert started.said().startswith("scheduler: ")
    assert says in started.said()
    assert "trout77" not in started.said()


def test_redis_that_is_away_at_the_start_is_waited_for(start: Start) -> None:
    server = EmbeddedRedis()
    worker = start(
        "run",
        "--role=worker",
        "--app=app",
        REDIS_ADDR=server.url,
        REDIS_MAX_RETRIES="0",
    )
    worker.wait_to_say("waiting for it")
    with server:
        client = Client(server.url)
        put(client, "late.txt")
        worker.wait_for("file /data/late.txt")
        client.close()
        assert worker.ended(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("role", "number"),
    [("worker", signal.SIGTERM), ("worker", signal.SIGINT), ("all", signal.SIGTERM)],
)
def test_a_second_signal_ends_at_once(
    start: Start,
    redis: Client,
    dsn: str,
    schema: str,
    tmp_path: Path,
    role: str,
    number: signal.Signals,
) -> None:
    (tmp_path / "data").mkdir()
    put(redis, "a.txt")
    environment = {
        "SCHEDULER_WORKER_FILE_QUEUE": "slow",
        "DATABASE_URL": dsn,
        "SCHEDULER_SCHEMA": schema,
    }
    started = start("run", f"--role={role}", "--app=app", **environment)
    started.wait_for("slow 1")
    started.process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        started.process.wait(timeout=0.5)  # the handler has its grace
    assert started.ended(number) == 128 + number


@pytest.mark.parametrize(
    "environment",
    [{"role": "worker"}, {"role": "worker", "SCHEDULER_WORKER_PROCESSES": "2"}, {"role": "all"}],
)
def test_the_echo_of_a_signal_is_not_a_second_one(
    start: Start, redis: Client, dsn: str, schema: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "data").mkdir()
    role, *given = environment.items()
    slow = {
        "SCHEDULER_WORKER_FILE_QUEUE": "slow",
        "SCHEDULER_WORKER_GRACE": "1s",
        "DATABASE_URL": dsn,
        "SCHEDULER_SCHEMA": schema,
    }
    started = start("run", f"--role={role[1]}", "--app=app", **slow, **dict(given))
    put(redis, "a.txt")
    started.wait_for("slow 1")
    started.process.send_signal(
        signal.SIGTERM
    )  # as `timeout` does: to its child, and to the group of both
    assert started.ended(signal.SIGTERM) == 0


def test_a_second_signal_ends_several_processes_at_once(start: Start, redis: Client) -> None:
    put(redis, "a.txt")
    started = start(
        "run",
        "--role=worker",
        "--app=app",
        SCHEDULER_WORKER_FILE_QUEUE="slow",
        SCHEDULER_WORKER_PROCESSES="2",
    )
    started.wait_for("slow 1")
    started.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        started.process.wait(timeout=0.5)
    assert started.ended(signal.SIGINT) == 128 + signal.SIGINT


def test_processes_whose_parent_is_gone_end_too(start: Start, redis: Client) -> None:
    started = start("run", "--role=worker", "--app=app", SCHEDULER_WORKER_PROCESSES="2")
    wait_for(lambda: redis.call("ZCARD", "jobqueue:{mail}:workers") == 2, "two workers")
    children = (
        Path(f"/proc/{started.process.pid}/task/{started.process.pid}/children").read_text().split()
    )
    assert len(children) == 2
    started.ended(signal.SIGKILL)
    wait_for(
        lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children),
        "they end as well",
    )


def test_flag_queue_is_the_only_one_that_is_worked(start: Start, redis: Client) -> None:
    put(redis, "a.txt")
    worker = start("worker", "--app=app", "--queue=mail", "--queue=sms")
    worker.wait_to_say("queues mail, sms")
    assert worker.ended(signal.SIGTERM) == 0
    assert worker.journal() == []
    assert redis.call("LLEN", "jobqueue:low_priority") == 1


def test_flag_queue_without_a_handler_is_refused(start: Start) -> None:
    worker = start("worker", "--app=app", "--queue=fax")
    assert worker.ended() == 2
    assert "no handler is registered for 'fax'; import the module" in worker.said()


def test_worker_processes_is_how_many_there_are(start: Start, redis: Client) -> None:
    worker = start("worker", "--app=app", "--queue=mail", SCHEDULER_WORKER_PROCESSES="2")
    wait_for(lambda: redis.call("ZCARD", "jobqueue:{mail}:workers") == 2, "two workers")
    assert worker.ended(signal.SIGTERM) == 0


def test_worker_grace_is_how_long_handlers_may_go_on(start: Start, redis: Client) -> None:
    put(redis, "a.txt")
    worker = start(
        "worker",
        "--app=app",
        "--queue=slow",
        SCHEDULER_WORKER_FILE_QUEUE="slow",
        SCHEDULER_WORKER_GRACE="200ms",
    )
    worker.wait_for("slow 1")
    assert worker.ended(signal.SIGTERM) == 0
    assert redis.call("LLEN", "jobqueue:low_priority") == 1


def test_observability_log_level_decides_what_is_said(start: Start, redis: Client) -> None:
    put(redis, "a.txt")
    worker = start("run", "--role=worker", "--app=app", OBSERVABILITY_LOG_LEVEL="error")
    worker.wait_for("file /data/a.txt")
    assert worker.ended(signal.SIGTERM) == 0
    assert worker.said() == ""
