"""`scheduler up` as people start it: a process, its output, signals at bad moments, and nothing
left behind.
"""

import os
import pty
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from scheduler.cli.configuration import effective
from scheduler.cli.house import House
from scheduler.embedded import redis
from scheduler.errors import ConfigError
from scheduler.events import Event, FireEnded
from tests.embedded.leftovers import open_folder, running
from tests.observe.scrapes import Scrape, ready
from tests.support.kubernetes import service_variables
from tests.support.waiting import rest, wait_for

COMMAND = [sys.executable, "-m", "scheduler", "up"]


@pytest.fixture
def home() -> Iterator[Path]:
    """A home and a temporary folder of this test; nothing may run in them when it is over."""
    with open_folder() as folder:
        yield folder


def environment(home: Path) -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in {"SCHEDULER_DATABASE_URL", "DATABASE_URL"}
    }
    return kept | {"SCHEDULER_HOME": str(home), "TMPDIR": str(home)}


@contextmanager
def started(home: Path, *options: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home) | variables,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        line = process.stdout.readline()
        assert line, f"it ended before it said {text!r}: {lines}"
        lines.append(line)
    return lines


def test_it_shows_fires_of_both_tenants_and_ends_by_itself(home: Path) -> None:
    fires = [
        r"acme/heartbeat success \d+ ms \(\d",
        r"acme/fetch-rates success \d+ ms",
        r"globex/cleanup success \d+ ms",
    ]
    for seconds in (3, 12, 48):  # long enough for a fire of each, however slow the machine is
        done = subprocess.run(
            [*COMMAND, "--for", str(seconds)],
            check=False,
            capture_output=True,
            text=True,
            env=environment(home),
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert not running(home)
        assert re.search(
            r"up: postgres embedded in \S+/postgres, redis embedded in \S+/redis\n", done.stdout
        )
        assert "ended after" in done.stdout.splitlines()[-1]
        if all(re.search(each, done.stdout) for each in fires):
            break
    else:
        raise AssertionError(done.stdout)
    assert re.search(r"ended after \S+ s: \d+ success", done.stdout.splitlines()[-1])


def test_it_says_where_one_can_ask_how_it_is(home: Path) -> None:
    with started(home) as process:
        address = re.findall(r"health (http://127.0.0.1:\d+)", read_until(process, "health")[-1])[0]
        assert ready(address) == (200, [])
        fires = "scheduler_fires_total"
        wait_for(
            lambda: (Scrape.of(address).value(fires, outcome="success") or 0) > 0,
            "a fire is counted",
        )


def test_it_serves_the_api_and_the_dashboard_of_its_jobs_to_this_machine(home: Path) -> None:
    with started(home) as process:
        address = re.findall(
            r"dashboard (http://127.0.0.1:\d+)", read_until(process, "dashboard")[-1]
        )[0]
        with urllib.request.urlopen(
            f"{address}/api/v1/recurring?tenant=acme", timeout=20
        ) as answer:
            assert "heartbeat" in answer.read().decode()
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert answer.headers["content-type"].startswith("text/html")


def free_port(host: str = "127.0.0.1") -> int:
    """A free port below those that the kernel chooses, so that no other test takes it."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port


def test_up_binds_the_configured_hosts_and_ports(home: Path) -> None:
    health, web = free_port("127.0.0.2"), free_port("127.0.0.3")
    (home / "up.yaml").write_text(
        f"observability: {{host: 127.0.0.2, metrics_port: {health}}}\nweb: {{host: 127.0.0.3}}\n"
    )
    services = {**service_variables("web"), **service_variables("scheduler")}
    with started(
        home, f"--config={home / 'up.yaml'}", SCHEDULER_WEB_PORT=str(web), **services
    ) as process:
        line = "".join(read_until(process, "dashboard"))
        assert f"health http://127.0.0.2:{health}" in line
        assert f"dashboard http://127.0.0.3:{web}" in line
        assert ready(f"http://127.0.0.2:{health}") == (200, [])


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        ("observability.metrics_port", "OBSERVABILITY_METRICS_PORT"),
        ("web.port", "SCHEDULER_WEB_PORT"),
    ],
)
def test_up_names_the_key_of_a_port_in_use(home: Path, key: str, variable: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            COMMAND,
            check=False,
            capture_output=True,
            text=True,
            env=environment(home) | {variable: port},
            timeout=60,
        )
    assert done.returncode != 0
    assert f"{key}: cannot listen on 127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_within_seconds(home: Path, number: signal.Signals) -> None:
    with started(home) as process:
        read_until(process, "globex/cleanup")
        since = time.monotonic()
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
        assert time.monotonic() - since < 30
        assert (process.returncode, errors) == (0, "")
        assert "ended after" in out.splitlines()[-1]
    assert not running(home)


def test_impatience_does_no_harm(home: Path) -> None:
    with started(home) as process:
        read_until(process, "globex/cleanup")
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            rest(0.02)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    assert not running(home)


@pytest.mark.parametrize("after", [0.0, 0.3, 0.8])
def test_a_signal_during_the_start_ends_it_too(home: Path, after: float) -> None:
    with started(home) as process:
        read_until(process, "starting")
        rest(after)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    wait_for(lambda: not running(home), "the end of an initdb that was interrupted")


def test_a_killed_one_takes_its_servers_along(home: Path) -> None:
    with started(home) as process:
        read_until(process, "globex/cleanup")
        process.kill()
    wait_for(lambda: not running(home), "the end of the servers")
    assert sorted(entry.name for entry in home.iterdir()) == ["postgres", "redis"]


def test_a_reader_who_has_read_enough_ends_it(home: Path) -> None:
    with started(home) as process:
        read_until(process, "globex/cleanup")
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0
    assert not running(home)


def test_two_share_one_database_and_the_first_to_leave_disturbs_nobody(home: Path) -> None:
    with started(home) as first, started(home) as second:
        read_until(first, "up:")
        read_until(second, "up:")
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
        since = [line for _ in range(3) for line in read_until(second, "acme/heartbeat success")]
        second.send_signal(signal.SIGINT)
        out, errors = second.communicate(timeout=60)
    assert (first.returncode, second.returncode, errors) == (0, 0, "")
    assert not [
        line for line in [*since, *out.splitlines()] if "warning" in line or "error" in line
    ]
    assert not running(home)


def test_a_given_database_is_used_and_its_password_never_shown(home: Path, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS scheduler_up CASCADE")
        try:
            given = f"{dsn} password=swordfish"
            with started(home, "--database", given) as process:
                lines = read_until(process, "success")
                process.send_signal(signal.SIGTERM)
                out, errors = process.communicate(timeout=60)
            assert (process.returncode, errors) == (0, "")
            assert "swordfish" not in "".join(lines) + out
            fires = connection.execute("SELECT count(*) FROM scheduler_up.job_history").fetchone()
            assert fires is not None
            assert fires[0] > 0
        finally:
            connection.execute("DROP SCHEMA IF EXISTS scheduler_up CASCADE")
    assert not (home / "postgres").exists()


def test_an_unreachable_database_is_one_line_with_a_cure(home: Path) -> None:
    given = "postgresql://ada:swordfish@127.0.0.1:1/app"
    with started(home, "--database", given) as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.fullmatch(r"scheduler: .*refused.*--database.*\n", errors)
    assert "swordfish" not in out + errors
    assert not running(home)


def test_without_redis_it_says_so_and_goes_on(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: object
) -> None:
    def nothing() -> str:
        raise ConfigError("no Redis here")

    assert isinstance(caplog, pytest.LogCaptureFixture)
    monkeypatch.setattr(redis, "redis_binary", nothing)
    events: list[Event] = []
    house = House(dsn, events.append, effective(Path(os.devnull), {}))
    try:
        house.open()
        assert house.places is not None
        assert house.places.redis == "none"
        assert "no Redis here" in caplog.text
        wait_for(lambda: any(isinstance(event, FireEnded) for event in events), "a fire")
    finally:
        house.close()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS scheduler_up CASCADE")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_on_a_terminal_it_is_a_board_and_the_screen_is_given_back(
    home: Path, number: signal.Signals
) -> None:
    leader, follower = pty.openpty()
    shown = b""
    with subprocess.Popen(
        COMMAND,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment(home) | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
    ) as process:
        os.close(follower)

        def read() -> bool:
            nonlocal shown
            while select.select([leader], [], [], 0.05)[0]:
                try:
                    more = os.read(leader, 65536)
                except OSError:
                    more = b""
                if not more:
                    return True
                shown += more
            return False

        def board() -> bool:
            read()
            return all(
                word in shown
                for word in (b"NEXT", b"import-orders", b"globex", b"success", b"redis")
            )

        try:
            wait_for(board, "a board", timeout=60)
            assert b"\x1b[?1049h" in shown
            process.send_signal(number)
            wait_for(read, "its end", timeout=60)
            assert process.wait(60) == 0
        finally:
            process.kill()  # or it would wait for ever for somebody to read
    os.close(leader)
    assert shown.rindex(b"\x1b[?1049l") > shown.rindex(b"\x1b[?1049h")
    assert b"\x1b[?25h" in shown, "the cursor is back"
    assert b"scheduler: ended after" in shown
    assert not running(home)


def test_a_terminal_that_goes_away_ends_it(home: Path) -> None:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        COMMAND, stdin=follower, stdout=follower, stderr=follower, env=environment(home)
    ) as process:
        os.close(follower)
        wait_for(
            lambda: running(home / "postgres") and os.read(leader, 65536), "a start", timeout=60
        )
        os.close(leader)
        assert process.wait(60) == 0
    assert not running(home)
