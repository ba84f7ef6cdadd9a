"""The commands that look at jobs and steer them, on real tables, while a real scheduler runs beside
them.
"""

import getpass
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from rich.text import Text

from scheduler import RunContext, Scheduler
from scheduler.cli.main import cli
from scheduler.cli.show import listing
from scheduler.cli.view import PALETTE
from scheduler.store import schema as store_schema
from tests.conftest import MakeScheduler
from tests.support.waiting import wait_for

FAR = datetime(2100, 1, 1, tzinfo=UTC)
HOLDER = f"cli:{getpass.getuser()}@{socket.gethostname()}"
HOSTILE = "[red]x[/red]\x1b[31m\x1b]0;t\x07\u202e\n\ttail"
ESCAPED = r"[red]x[/red]\x1b[31m\x1b]0;t\x07\u202e\n\ttail"

Command = Callable[..., Result]


@pytest.fixture
def command(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line on the test's schema."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*arguments: str) -> Result:
        options = ["--schema", schema, "--database", dsn]
        return CliRunner().invoke(
            cli, [*arguments[:1], *options, *arguments[1:]], catch_exceptions=False
        )

    return run


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Set at the end of a test: what its bodies wait for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def fleet(make_scheduler: MakeScheduler, held: threading.Event) -> Scheduler:
    """An instance with a job of every kind: one runs, one has failed, one is paused, one is over,
    one waits.
    """
    scheduler = make_scheduler(label="web-1")

    def stuck(ctx: RunContext) -> None:
        held.wait(60)

    def fail() -> None:
        raise ValueError(f"no {HOSTILE}")

    scheduler.register("acme", "backup", stuck, every="1h", start_at=datetime.now(UTC))
    scheduler.register("acme", "import", fail)
    scheduler.register("acme", "report", print, every="15m", start_at=FAR)
    scheduler.register("acme", "rates", print, cron="0 6 * * 1-5", timezone="Europe/Berlin")
    scheduler.register("globex", "once", lambda: None)
    scheduler.pause("acme", "rates")
    wait_for(
        lambda: outcomes(scheduler, "acme", "import") and outcomes(scheduler, "globex", "once"),
        "two ends",
    )
    wait_for(lambda: scheduler.explain("acme", "backup").running_fire_at, "a run")
    # The claim commits before the loop copies its answer into the mirror.
    wait_for(
        lambda: all(
            job.next_run_at is None or job.next_run_at > datetime.now(UTC)
            for job in scheduler.jobs()
        ),
        "the mirror to show the claim",
    )
    wait_for(lambda: scheduler.explain("globex", "once").runnable_on, "its presence")
    return scheduler


def outcomes(scheduler: Scheduler, tenant: str, job: str) -> list[str]:
    return [row.outcome for row in scheduler.history(tenant, job) if row.kind != "audit"]


def parsed(result: Result) -> Any:
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.isascii()
    return json.loads(result.stdout)


def printed(result: Result) -> list[str]:
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert all(line == line.rstrip() for line in lines)
    return lines


def failed(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.fullmatch(r"scheduler: [^\n]+\n", result.stderr), result.stderr
    assert "\x1b" not in result.stderr
    return result.stderr


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def process(dsn: str, schema: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in {"DATABASE_URL", "FORCE_COLOR"}
    }
    environment |= {"SCHEDULER_DATABASE_URL": dsn, **options.pop("env", {})}
    given = [sys.executable, "-m", "scheduler", *arguments, "--schema", schema]
    return subprocess.Popen(
        given,
        **{
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "env": environment,
            **options,
        },
    )


def on_terminal(dsn: str, schema: str, *arguments: str, columns: int) -> tuple[list[str], str]:
    """What a terminal of that width is sent: its lines without colours, and all of it."""
    leader, follower = pty.openpty()
    sent = b""
    shape = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "24"}
    with process(dsn, schema, *arguments, stdout=follower, stderr=follower, env=shape) as running:
        os.close(follower)
        try:
            while more := os.read(leader, 65536):
                sent += more
        except OSError:
            pass
        assert running.wait(60) == 0, sent
    os.close(leader)
    text = sent.decode()
    return [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()], text


def test_jobs_lists_every_job_with_its_state(fleet: Scheduler, command: Command) -> None:
    head, *lines = printed(command("jobs"))
    assert head.split() == ["TENANT", "JOB", "SCHEDULE", "NEXT", "AT", "LAST", "STATE"]
    cells = [re.split(r"  +", line) for line in lines]
    assert [row[:2] for row in cells] == [
        ["acme", "backup"],
        ["acme", "import"],
        ["acme", "rates"],
        ["acme", "report"],
        ["globex", "once"],
    ]
    backup, failing, rates, report, once = cells
    assert backup[2].startswith("every 1h from ")
    assert re.fullmatch(r"in 59m\d\ds|in 1h00m", backup[3])
    assert backup[-1] == "running on web-1"
    assert failing[2:] == ["once", "-", "-", "failed", "done"]
    assert rates[2:] == ["cron 0 6 * * 1-5 (Europe/Berlin)", "-", "-", "-", "paused"]
    assert re.fullmatch(r"in \d+d\d\dh", report[3])
    assert report[4:] == ["2100-01-01 00:00:00 UTC", "-", "waiting"]
    assert once[2:] == ["once", "-", "-", "success", "done"]


def test_jobs_as_json_says_what_the_mirror_says(fleet: Scheduler, command: Command) -> None:
    told = parsed(command("jobs", "--json"))
    found = {job.job_id: job for job in fleet.jobs()}
    assert [(job["tenant"], job["job_id"]) for job in told] == [
        (job.tenant, job.job_id) for job in fleet.jobs()
    ]
    for job in told:
        known = found[job["job_id"]]
        assert job["schedule"] == str(known.spec.schedule)
        assert job["next_run_at"] == iso(known.next_run_at)
    states = {job["job_id"]: job["states"] for job in told}
    assert states == {
        "backup": ["running"],
        "import": ["done"],
        "rates": ["paused"],
        "report": ["waiting"],
        "once": ["done"],
    }
    backup = told[0]
    assert backup["holder"] == "web-1"
    assert datetime.fromisoformat(backup["running_fire_at"]).utcoffset() == timedelta(0)


def test_jobs_of_one_tenant_are_its_own(fleet: Scheduler, command: Command) -> None:
    assert [job["job_id"] for job in parsed(command("jobs", "--tenant", "globex", "--json"))] == [
        "once"
    ]
    assert parsed(command("jobs", "--tenant", "nobody", "--json")) == []
    assert printed(command("jobs", "--tenant", "nobody"))[0].startswith(
        "no job of tenant nobody in schema "
    )


def test_no_job_at_all_is_said_with_how_to_register_one(
    make_scheduler: MakeScheduler, command: Command
) -> None:
    make_scheduler()
    (line,) = printed(command("jobs"))
    assert line.startswith("no job in schema ")
    assert "scheduler.register(" in line
    assert parsed(command("jobs", "--json")) == []


def test_history_is_newest_first_with_the_first_line_of_the_error(
    fleet: Scheduler, command: Command
) -> None:
    head, *lines = printed(command("history", "acme", "import"))
    lines.sort(key=lambda line: " audit " in line)  # a first fire may be as old as the registration
    assert head.split() == [
        "AT",
        "JOB",
        "KIND",
        "OUTCOME",
        "TOOK",
        "START",
        "HOLDER",
        "MISSED",
        "WHY",
    ]
    newest = re.split(r"  +", lines[0])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", newest[0])
    assert newest[1:4] == ["import", "fire", "failed"]
    assert re.fullmatch(r"\d+ ms", newest[4])
    assert newest[5:8] == ["1", "web-1", "-"]
    assert newest[8] == r"ValueError: no [red]x[/red]\x1b[31m\x1b]0;t\x07\u202e"
    assert re.split(r"  +", lines[-1])[1:4] == ["import", "audit", "registered"]
    whole = [line.split()[:2] for line in printed(command("history", "acme"))[1:]]
    assert whole == sorted(whole, reverse=True)
    assert len(printed(command("history", "acme", "--limit", "2"))) == 1 + 2


def test_history_as_json_is_the_ledger(fleet: Scheduler, command: Command) -> None:
    told, known = parsed(command("history", "acme", "--json")), fleet.history("acme")
    assert len(told) == len(known)
    for row, entry in zip(told, known, strict=True):
        assert (row["job_id"], row["kind"], row["outcome"]) == (
            entry.job_id,
            entry.kind,
            entry.outcome,
        )
        assert (row["at"], row["finished_at"]) == (iso(entry.at), iso(entry.finished_at))
        assert (row["error"], row["holder"], row["attempt"]) == (
            entry.error,
            entry.holder,
            entry.attempt,
        )
        took = (
            None
            if entry.started_at is None
            else (entry.finished_at - entry.started_at).total_seconds()
        )
        assert row["duration_seconds"] == took


def test_history_counts_what_was_missed(make_scheduler: MakeScheduler, command: Command) -> None:
    scheduler = make_scheduler()
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    scheduler.register("acme", "late", lambda: None, every="1h", start_at=start)
    wait_for(lambda: outcomes(scheduler, "acme", "late"), "a run")
    (row,) = [line for line in printed(command("history", "acme", "late")) if " success " in line]
    assert re.search(rf"  \d since {start:%Y-%m-%d %H:%M:%S} UTC$", row)
    (told,) = [
        row for row in parsed(command("history", "acme", "late", "--json")) if row["kind"] == "fire"
    ]
    assert (told["missed_from"], told["missed_count"]) == (
        iso(start),
        int(re.findall(r"(\d) since", row)[0]),
    )


def test_history_of_nothing_says_so(fleet: Scheduler, command: Command) -> None:
    assert printed(command("history", "nobody")) == ["nothing has happened yet: tenant nobody"]
    assert parsed(command("history", "nobody", "--json")) == []


def test_history_of_a_job_that_was_unregistered_is_still_there(
    fleet: Scheduler, command: Command
) -> None:
    fleet.unregister("acme", "report")
    assert "unregistered" in printed(command("history", "acme", "report"))[1]


def test_explain_prints_the_explanation(fleet: Scheduler, command: Command) -> None:
    assert (
        printed(command("explain", "acme", "report"))
        == str(fleet.explain("acme", "report")).splitlines()
    )
    told, known = (
        parsed(command("explain", "acme", "report", "--json")),
        fleet.explain("acme", "report"),
    )
    assert told["next_fires"] == [iso(fire) for fire in known.next_fires]
    assert (told["schedule"], told["runnable_on"], told["notes"]) == (known.schedule, ["web-1"], [])
    failing = parsed(command("explain", "acme", "import", "--json"))
    assert (failing["last_outcome"], failing["why"]) == (
        "failed",
        fleet.explain("acme", "import").why,
    )


def test_pause_and_resume_say_what_happened_and_the_ledger_says_who(
    fleet: Scheduler, command: Command
) -> None:
    (paused,) = printed(command("pause", "acme", "report"))
    since = fleet.explain("acme", "report").paused_at
    assert since is not None
    assert paused == f"paused acme/report since {since:%Y-%m-%d %H:%M:%S} UTC"
    (again,) = printed(command("pause", "acme", "report"))
    assert again == f"acme/report was paused already, since {since:%Y-%m-%d %H:%M:%S} UTC"
    (resumed,) = printed(command("resume", "acme", "report"))
    assert re.fullmatch(
        r"resumed acme/report: next fire in \d+d\d\dh, 2100-01-01 00:00:00 UTC", resumed
    )
    (same,) = printed(command("resume", "acme", "report"))
    assert same.startswith("acme/report was not paused: next fire in ")
    audit = [
        (row.outcome, row.holder) for row in fleet.history("acme", "report") if row.kind == "audit"
    ]
    assert audit == [("resumed", HOLDER), ("paused", HOLDER), ("registered", "web-1")]


def test_pause_and_resume_as_json(fleet: Scheduler, command: Command) -> None:
    job = {"tenant": "acme", "job_id": "report"}
    paused = parsed(command("pause", "acme", "report", "--json"))
    assert paused == job | {
        "paused_at": iso(fleet.explain("acme", "report").paused_at),
        "was_paused": False,
    }
    assert parsed(command("pause", "acme", "report", "--json")) == paused | {"was_paused": True}
    resumed = job | {"next_run_at": iso(FAR)}
    assert parsed(command("resume", "acme", "report", "--json")) == resumed | {"was_paused": True}
    assert parsed(command("resume", "acme", "report", "--json")) == resumed | {"was_paused": False}


def test_resuming_a_job_that_is_over_says_that_nothing_is_to_come(
    fleet: Scheduler, command: Command
) -> None:
    command("pause", "globex", "once")
    assert printed(command("resume", "globex", "once")) == [
        "resumed globex/once: nothing is to come"
    ]


def test_a_triggered_job_runs(fleet: Scheduler, command: Command) -> None:
    (line,) = printed(command("trigger", "acme", "report"))
    assert re.fullmatch(
        r"triggered acme/report at [-\d]{10} [:\d]{8} UTC: it runs as soon as an instance is free",
        line,
    )
    wait_for(lambda: outcomes(fleet, "acme", "report") == ["success"], "a run")
    told = parsed(command("trigger", "acme", "report", "--json"))
    assert told["runnable_on"] == ["web-1"]
    wait_for(lambda: outcomes(fleet, "acme", "report") == ["success"] * 2, "another run")
    assert iso(fleet.history("acme", "report")[0].at) == told["trigger_at"]


def test_without_an_instance_everything_is_answered_and_a_trigger_waits(
    fleet: Scheduler, command: Command
) -> None:
    fleet.pause("acme", "report")
    fleet.cancel(timeout=0.1)
    assert "(none that lives has it)" in printed(command("trigger", "acme", "report"))[0]
    report = {job["job_id"]: job["states"] for job in parsed(command("jobs", "--json"))}["report"]
    assert report == ["paused", "triggered"]
    assert "paused, triggered" in "\n".join(printed(command("jobs")))
    assert "  runnable on nobody" in printed(command("explain", "acme", "report"))


@pytest.mark.parametrize("verb", ["explain", "pause", "resume", "trigger", "history"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_unknown_job_is_one_line_and_code_1(
    make_scheduler: MakeScheduler, command: Command, verb: str, options: Sequence[str]
) -> None:
    make_scheduler()
    line = failed(command(verb, "acme", "no\x1b[31mne", *options))
    assert line == "scheduler: there is no job 'no\\x1b[31mne' of tenant 'acme'\n"


@pytest.mark.parametrize(
    "arguments", [["jobs"], ["history", "a"], ["explain", "a", "b"], ["pause", "a", "b"]]
)
def test_a_missing_schema_says_how_to_make_it(command: Command, arguments: Sequence[str]) -> None:
    line = failed(command(*arguments))
    assert "not installed" in line
    assert "scheduler migrate" in line


def test_a_schema_of_another_version_is_not_touched(
    make_scheduler: MakeScheduler, command: Command, connection: psycopg.Connection[Any]
) -> None:
    make_scheduler().cancel()
    connection.execute("DELETE FROM schema_version")
    connection.execute(
        "INSERT INTO schema_version (version) VALUES (%s)", [store_schema.VERSION - 1]
    )
    assert "run `scheduler migrate`" in failed(command("jobs"))
    connection.execute("INSERT INTO schema_version (version) VALUES (999)")
    assert "upgrade the singleton-scheduler package" in failed(command("jobs", "--json"))


@pytest.mark.parametrize(
    "database",
    ["postgresql://ada:trout77@127.0.0.1:1/app", "host=127.0.0.1 port=1 password=trout77 nonsense"],
)
def test_a_wrong_dsn_is_one_line_without_its_password(database: str) -> None:
    for arguments in (["jobs"], ["trigger", "a", "b", "--json"]):
        line = failed(
            CliRunner().invoke(cli, [*arguments, "--database", database], catch_exceptions=False)
        )
        assert "database" in line
        assert "trout" not in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["jobs"], "name a database"),
        (["jobs", "acme"], "unexpected extra argument"),
        (["history"], "TENANT"),
        (["history", "acme", "--limit", "0"], "--limit"),
        (["explain", "acme"], "JOB"),
        (["pause"], "TENANT"),
        (["trigger", "a", "b", "c"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_code_2(arguments: Sequence[str], says: str) -> None:
    clean: dict[str, str | None] = {"SCHEDULER_DATABASE_URL": None, "DATABASE_URL": None}
    result = CliRunner().invoke(cli, arguments, env=clean, catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_a_job_of_a_later_version_is_listed_and_never_a_traceback(
    fleet: Scheduler, command: Command, connection: psycopg.Connection[Any]
) -> None:
    fleet.cancel(timeout=0.1)
    spec = json.dumps({"cron": "0 6 * * *", "timezone": "Mars/Base", "gravity": 0.38})
    connection.execute(
        "UPDATE job SET spec = %s, next_run_at = now() - interval '3 days' WHERE id = 'rates'",
        [spec],
    )
    rates = next(line for line in printed(command("jobs")) if " rates " in line)
    assert re.search(r"cron 0 6 \* \* \* \(Mars/Base\) .* foreign, paused$", rates)
    for verb in ("explain", "pause", "resume", "trigger"):
        result = command(verb, "acme", "rates")
        assert result.exit_code in (0, 1)
        assert len(result.stderr.splitlines()) == result.exit_code


def test_a_name_that_cannot_be_is_code_1(make_scheduler: MakeScheduler, command: Command) -> None:
    make_scheduler()
    assert "tenant must have 1 to 200 characters" in failed(command("jobs", "--tenant", ""))
    assert "job_id must have 1 to 200 characters" in failed(command("pause", "acme", "x" * 201))


@pytest.fixture
def hostile(make_scheduler: MakeScheduler) -> Scheduler:
    """A job whose every text would like to act on the terminal."""
    scheduler = make_scheduler(label=HOSTILE)

    def fail() -> None:
        raise ValueError(HOSTILE)

    scheduler.register(HOSTILE, HOSTILE, fail, every="1h", start_at=datetime.now(UTC))
    wait_for(lambda: outcomes(scheduler, HOSTILE, HOSTILE), "a run")
    return scheduler


def test_foreign_text_is_escaped_in_a_pipe(hostile: Scheduler, command: Command) -> None:
    (_, job) = printed(command("jobs"))
    assert job.startswith(f"{ESCAPED}  {ESCAPED}  every 1h")
    (_, fire, registered) = sorted(
        printed(command("history", HOSTILE)), key=lambda line: " audit " in line
    )
    assert f"{ESCAPED}  fire   failed" in fire
    assert f"{ESCAPED}  -" in registered
    assert printed(command("explain", HOSTILE, HOSTILE))[0].startswith(
        f"{ESCAPED}/{ESCAPED}: every 1h"
    )
    for verb in ("pause", "resume", "trigger"):
        assert f"{ESCAPED}/{ESCAPED}" in printed(command(verb, HOSTILE, HOSTILE))[0]
    assert parsed(command("jobs", "--json"))[0]["job_id"] == HOSTILE


@pytest.mark.parametrize("columns", [300, 60])
def test_foreign_text_does_not_act_on_a_terminal(
    hostile: Scheduler, dsn: str, schema: str, columns: int
) -> None:
    for arguments in (["jobs"], ["history", HOSTILE], ["explain", HOSTILE, HOSTILE]):
        lines, sent = on_terminal(dsn, schema, *arguments, columns=columns)
        assert max(map(len, lines)) <= columns
        assert ESCAPED in "".join(re.sub(r"[\s│]", "", line) for line in lines).replace("|", "")
        for harm in ("\x1b]0;", "\x07", "\u202e", "\x1b[31m"):
            assert harm not in sent


def test_a_wide_terminal_gets_a_table_in_colour_and_a_narrow_one_blocks(
    fleet: Scheduler, dsn: str, schema: str
) -> None:
    lines, sent = on_terminal(dsn, schema, "jobs", columns=160)
    assert len(lines) == 1 + len(fleet.jobs())
    assert "\x1b[" in sent
    lines, _ = on_terminal(dsn, schema, "jobs", columns=44)
    assert max(map(len, lines)) <= 44
    assert [line.split() for line in lines[:3]] == [
        ["tenant", "acme"],
        ["job", "backup"],
        lines[2].split(),
    ]
    assert sum(line.split() == ["tenant", "acme"] for line in lines) == 4
    assert ["state", "running", "on", "web-1"] in [line.split() for line in lines]


def test_a_terminal_gets_the_explanation_in_a_panel(
    fleet: Scheduler, dsn: str, schema: str
) -> None:
    for columns in (120, 40):
        lines, _ = on_terminal(dsn, schema, "explain", "acme", "rates", columns=columns)
        assert "acme/rates" in lines[0]
        assert max(map(len, lines)) <= columns
        text = " ".join(" ".join(lines).replace("│", " ").split())
        assert "schedule cron 0 6 * * 1-5 (Europe/Berlin)" in text
        assert "note it is paused" in text


@pytest.mark.parametrize("width", range(20, 140))
def test_nothing_is_cut_and_nothing_is_too_wide_at_any_width(width: int) -> None:
    cells = [
        "acme",
        "import-orders",
        "every 1h from 2026-11-16 03:36:28 UTC",
        "in 1h00m",
        "running on web-1.example",
    ]
    heads = ["A", "B", "C", "D", "E"]
    place = Console(theme=PALETTE, file=io.StringIO(), width=width)
    place.print(
        listing(heads, [[Text(cell) for cell in cells]] * 2, folds={"C": 16, "E": 10}, place=place)
    )
    assert isinstance(place.file, io.StringIO)
    shown = place.file.getvalue()
    assert max(len(line) for line in shown.splitlines()) <= width
    blocks = shown.startswith("a ")
    told = "".join(cells) * 2 + ("abcde" * 2 if blocks else "ABCDE")
    assert sorted("".join(shown.split())) == sorted("".join(told.split()))


def test_ids_are_whole_in_a_pipe_however_long(
    make_scheduler: MakeScheduler, command: Command
) -> None:
    scheduler = make_scheduler()
    scheduler.register("t" * 200, "j" * 200, print, every="1h")
    (_, line) = printed(command("jobs"))
    assert line.startswith(f"{'t' * 200}  {'j' * 200}  every 1h")
    (_, row) = printed(command("history", "t" * 200))
    assert "j" * 200 in row


def test_as_a_process_it_prints_json_and_nothing_else(
    fleet: Scheduler, dsn: str, schema: str
) -> None:
    with process(dsn, schema, "jobs", "--json", env={"FORCE_COLOR": "1"}) as running:
        out, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, "")
    assert [job["job_id"] for job in json.loads(out)] == [job.job_id for job in fleet.jobs()]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_who_has_left_is_no_error(
    fleet: Scheduler, dsn: str, schema: str, options: Sequence[str]
) -> None:
    with process(dsn, schema, "jobs", *options) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line(fleet: Scheduler, dsn: str, schema: str) -> None:
    with (
        Path("/dev/full").open("w") as full,
        process(dsn, schema, "jobs", "--json", stdout=full) as running,
    ):
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 1
    assert errors == "scheduler: cannot write: No space left on device\n"


def test_ctrl_c_ends_it_without_a_word(
    fleet: Scheduler, dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    with connection.transaction():
        connection.execute("LOCK TABLE job IN ACCESS EXCLUSIVE MODE")
        with process(f"{dsn} application_name={schema}", schema, "jobs") as running:
            waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
            with psycopg.connect(dsn, autocommit=True) as other:
                wait_for(lambda: other.execute(waits, [schema]).fetchall(), "a query that waits")
            running.send_signal(signal.SIGINT)
            out, errors = running.communicate(timeout=60)
    assert (running.returncode, out, errors) == (130, "", "")
