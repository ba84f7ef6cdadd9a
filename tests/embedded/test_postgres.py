import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from scheduler.embedded import postgres
from scheduler.embedded.account import Account
from scheduler.embedded.postgres import EmbeddedPostgres, shared_folder, shared_postgres
from scheduler.errors import ConfigError
from tests.embedded.leftovers import running
from tests.support.waiting import wait_for

USER = """
import sys
from pathlib import Path
from scheduler.embedded.postgres import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]) if sys.argv[1] else None, durable=False)
print(server.start(), flush=True)
sys.stdin.readline()
server.stop()
"""


def ask(dsn: str, query: str = "SELECT 42") -> object:
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
    return row and row[0]


def postmaster(folder: Path) -> int:
    return int((folder / "postmaster.pid").read_text().split()[0])


@contextmanager
def user_of(folder: Path | None, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that uses the server of a folder, and the DSN it got; a line on its stdin
    makes it leave.
    """
    command = [sys.executable, "-c", USER, "" if folder is None else str(folder)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    with process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def leave(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=30)
    assert process.returncode == 0


def test_it_starts_halts_resumes_and_stops(place: Path) -> None:
    server = EmbeddedPostgres(place / "data", durable=False)
    dsn = server.start()
    assert ask(dsn) == 42
    assert ask(dsn, "SHOW fsync") == "off"
    assert server.start() == dsn

    for mode in ("fast", "immediate"):
        server.halt(mode=mode)
        with pytest.raises(psycopg.OperationalError):
            ask(dsn)
        assert not running(place)
        server.resume()
        assert ask(dsn) == 42

    server.stop()
    assert not running(place)
    server.stop()
    with pytest.raises(ConfigError, match="not started"):
        server.halt()


def test_the_data_stays_in_a_given_folder(place: Path) -> None:
    with EmbeddedPostgres(place / "data") as server:
        ask(server.dsn, "SELECT 7 AS n INTO kept")
    with EmbeddedPostgres(place / "data") as server:
        assert ask(server.dsn, "SELECT n FROM kept") == 7
        assert ask(server.dsn, "SHOW fsync") == "on"


def test_a_temporary_folder_is_removed() -> None:
    with EmbeddedPostgres(durable=False) as server:
        folder = Path(server.socket_folder)
        assert ask(server.dsn) == 42
        assert folder.stat().st_mode & 0o077 == 0, "others could connect"
    assert not folder.exists()
    assert not running(folder)


def test_a_crashed_server_can_be_resumed(place: Path) -> None:
    with EmbeddedPostgres(place / "data", durable=False) as server:
        os.kill(postmaster(place / "data"), signal.SIGKILL)
        wait_for(lambda: not running(place), "the end of a killed server")
        server.resume()
        assert ask(server.dsn) == 42


def test_processes_share_one_server_and_the_last_one_ends_it(place: Path) -> None:
    folder = place / "data"
    mine = EmbeddedPostgres(folder, durable=False)
    with user_of(folder) as (first, dsn), user_of(folder) as (second, _):
        started = postmaster(folder)
        assert mine.start() == dsn
        leave(first)
        assert ask(dsn) == 42
        mine.stop()
        assert ask(dsn) == 42
        assert mine.start() == dsn
        leave(second)
        assert ask(dsn) == 42
        assert postmaster(folder) == started
    mine.stop()
    with pytest.raises(psycopg.OperationalError):
        ask(dsn)


def test_many_processes_start_at_once(place: Path) -> None:
    folder = place / "data"
    command = [sys.executable, "-c", USER, str(folder)]
    users = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    try:
        dsns = {user.stdout.readline().strip() for user in users if user.stdout}
        assert len(dsns) == 1
        assert ask(dsns.pop()) == 42
        assert (
            len(
                [
                    line
                    for line in running(place)
                    if "/bin/postgres" in line and "keeper" not in line
                ]
            )
            == 1
        )
    finally:
        told = [user.communicate("\n", timeout=60) for user in users]
    assert [user.returncode for user in users] == [0] * 6, told


@pytest.mark.parametrize("temporary", [True, False])
def test_the_server_ends_when_its_only_user_is_killed(place: Path, temporary: bool) -> None:
    with user_of(None if temporary else place / "data", TMPDIR=str(place)) as (user, dsn):
        assert ask(dsn) == 42
        user.kill()
    wait_for(lambda: not running(place), "the end of a server without users")
    assert [entry.name for entry in place.iterdir()] == ([] if temporary else ["data"])


def test_a_server_whose_keeper_was_killed_is_replaced(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = place / "data"
    with user_of(folder) as (user, _):
        (keeper,) = [line for line in running(place) if "keeper.py" in line]
        os.kill(int(keeper.split()[0]), signal.SIGKILL)
        user.kill()
    orphan = postmaster(folder)
    with EmbeddedPostgres(folder, durable=False) as server:
        assert ask(server.dsn) == 42
        assert postmaster(folder) != orphan
    assert f"ending process {orphan}" in caplog.text


def test_a_stale_pid_file_does_no_harm(place: Path) -> None:
    folder = place / "data"
    with EmbeddedPostgres(folder, durable=False):
        kept = (folder / "postmaster.pid").read_text()
    (folder / "postmaster.pid").write_text(kept.replace(kept.split()[0], str(os.getpid()), 1))
    with EmbeddedPostgres(folder, durable=False) as server:
        assert ask(server.dsn) == 42


def test_an_interrupted_initdb_is_begun_anew(place: Path) -> None:
    folder = place / "data"
    with EmbeddedPostgres(folder, durable=False):
        pass
    (folder / "PG_VERSION").unlink()
    (folder / "initdb").mkdir()
    (folder / "initdb" / "half").touch()
    with EmbeddedPostgres(folder, durable=False) as server:
        assert ask(server.dsn) == 42


def test_a_folder_with_something_else_in_it_is_refused(place: Path) -> None:
    folder = place / "data"
    folder.mkdir()
    (folder / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="neither empty nor a folder of Postgres"):
        EmbeddedPostgres(folder).start()


def test_a_folder_of_another_version_is_an_error_that_says_so(place: Path) -> None:
    folder = place / "data"
    with EmbeddedPostgres(folder, durable=False):
        pass
    (folder / "PG_VERSION").write_text("9\n")
    with pytest.raises(ConfigError, match=r"did not start in .*data: .*version 9"):
        EmbeddedPostgres(folder, durable=False).start()


@pytest.mark.parametrize("name", ["a b", 'quo"ted', "50%41 &x=y?", "ünï"])
def test_any_folder_name_will_do(place: Path, name: str) -> None:
    with EmbeddedPostgres(place / name, durable=False) as server:
        assert ask(server.dsn) == 42


def test_a_path_that_cannot_hold_a_socket_is_an_error(place: Path) -> None:
    with pytest.raises(ConfigError, match="too long for a Unix socket"):
        EmbeddedPostgres(place / ("x" * 100)).start()
    with pytest.raises(ConfigError, match="comma"):
        EmbeddedPostgres(place / "a,b").start()
    assert not list(place.iterdir())


def test_settings_of_libpq_in_the_environment_do_not_matter(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {
        "PGPORT": "1",
        "PGHOST": "nowhere.invalid",
        "PGDATA": "/nowhere",
        "LC_ALL": "xx_YY",
    }.items():
        monkeypatch.setenv(key, value)
    with EmbeddedPostgres(place / "data", durable=False) as server:
        assert ask(server.dsn) == 42


def test_without_the_wheel_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'singleton-scheduler\[embedded\]'"):
        EmbeddedPostgres().start()


def test_root_is_told_which_folder_is_closed_and_everybody_else_may_use_their_own(
    place: Path,
) -> None:
    home = place / "home"
    home.mkdir(mode=0o700)
    server = EmbeddedPostgres(home / "data", durable=False)
    if os.geteuid() == 0:
        with pytest.raises(ConfigError, match=f"cannot pass {home}; set SCHEDULER_HOME"):
            server.start()
    else:
        with server:
            assert ask(server.dsn) == 42
    assert home.stat().st_mode & 0o777 == 0o700, "nobody's home is opened"


def test_binaries_in_a_closed_folder_are_copied_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "CACHE", place / "cache")
    installed = postgres._binaries(Account(os.geteuid(), os.getegid())).parent
    copied = postgres._copied(installed)
    assert postgres._copied(installed) == copied
    assert len(list((place / "cache").iterdir())) == 1
    told = subprocess.run(
        [copied / "bin" / "initdb", "--version"], check=True, capture_output=True, text=True
    ).stdout
    assert told.startswith("initdb (PostgreSQL)")
    assert Account(4_000_000, 4_000_000).closed(copied / "bin" / "initdb") is None
    assert all(path.stat().st_mode & 0o004 for path in copied.rglob("*"))


def test_the_shared_one_is_where_the_environment_says(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDULER_HOME", str(place / "home"))
    assert shared_folder() == place / "home" / "postgres"
    try:
        dsn = shared_postgres()
        assert shared_postgres() == dsn
        assert ask(dsn) == 42
    finally:
        postgres._shared.pop(place / "home" / "postgres").stop()


def test_the_shared_one_is_in_the_users_data_or_for_root_where_its_user_can_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SCHEDULER_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert shared_folder() == Path("/data/singleton-scheduler/postgres")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert shared_folder() == Path("/home/ada/.local/share/singleton-scheduler/postgres")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert shared_folder() == Path("/var/lib/singleton-scheduler/postgres")
