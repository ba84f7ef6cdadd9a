"""`scheduler web` and its configuration, as a process."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from click.testing import CliRunner

from scheduler.cli.configuration import effective
from scheduler.cli.main import cli
from scheduler.cli.rules import web_tokens
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import ConfigError
from scheduler.web.access import hashed
from tests.support.waiting import wait_for
from tests.web.conftest import client_of


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_token_is_printed_once_and_only_its_hash_is_configured(tmp_path: Path) -> None:
    made = CliRunner().invoke(cli, ["web-token", "ci", "--scope", "write", "--tenant", "acme"])
    assert made.exit_code == 0
    token = made.stderr.split()[0]
    assert token not in made.stdout
    known = yaml.safe_load(made.stdout)["web"]["tokens"]["ci"]
    assert known == {"sha256": hashed(token), "scopes": ["write"], "tenants": ["acme"]}
    (tmp_path / "scheduler.yaml").write_text(made.stdout)
    (read,) = web_tokens(effective(tmp_path / "scheduler.yaml", {}).values)
    assert (read.name, read.tenants) == ("ci", frozenset({"acme"}))
    again = json.loads(
        CliRunner().invoke(cli, ["web-token", "ci", "--all-tenants", "--json"]).stdout
    )
    assert again["token"] != token
    assert again["web"]["tokens"]["ci"]["tenants"] == "all"
    for wrong in ([], ["--tenant", "a", "--all-tenants"]):
        assert CliRunner().invoke(cli, ["web-token", "ci", *wrong]).exit_code == 2


HASH = "a" * 64
WRONG = {
    "web: {host: 0.0.0.0}": "web.tokens: must name a token where web.host is not this machine",
    "web: {port: 0}": "web.port: must be a whole number from 1 to 65535",
    "web: {tokens: [ci]}": "web.tokens: must be tokens by names",
    "web: {tokens: {ci: {sha256: my-secret, scopes: [read], tenants: all}}}": "'ci': sha256 must be the 64 hex digits",
    f"web: {{tokens: {{ci: {{sha256: {HASH}, scopes: [admin], tenants: all}}}}}}": "scopes must be a list of read",
    f"web: {{tokens: {{ci: {{sha256: {HASH}, scopes: [read]}}}}}}": "tenants must be a list of names, or all",
    f"web: {{tokens: {{ci: {{sha256: {HASH}, scope: [read], tenants: all}}}}}}": "there is no such key",
    f"web: {{tokens: {{a: &t {{sha256: {HASH}, scopes: [read], tenants: all}}, b: *t}}}}": "two have the same sha256",
}


def test_what_is_wrong_with_section_web_is_said_without_secrets(tmp_path: Path) -> None:
    for text, message in WRONG.items():
        (tmp_path / "scheduler.yaml").write_text(text)
        with pytest.raises(ConfigError) as raised:
            effective(tmp_path / "scheduler.yaml", {})
        assert message in str(raised.value), text
        assert "my-secret" not in str(raised.value)


def test_tokens_may_come_from_the_environment(tmp_path: Path) -> None:
    said = json.dumps({"ci": {"sha256": HASH, "scopes": ["read"], "tenants": ["a", "b"]}})
    values = effective(
        tmp_path / "none.yaml",
        {"SCHEDULER_WEB_TOKENS": said, "SCHEDULER_WEB_HOST": "0.0.0.0", "SCHEDULER_WEB_PORT": "99"},
    ).values
    assert (values.web.host, values.web.port) == ("0.0.0.0", 99)
    assert web_tokens(values)[0].tenants == frozenset({"a", "b"})


def test_scheduler_web_serves_until_it_is_told_to_end(
    dsn: str, schema: str, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    port = free_port()
    environment = {
        **os.environ,
        "SCHEDULER_DATABASE": dsn,
        "SCHEDULER_SCHEMA": schema,
        "REDIS_ADDR": redis_server.url,
        "SCHEDULER_WEB_PORT": str(port),
        "OBSERVABILITY_METRICS_PORT": str(free_port()),
    }
    command = [sys.executable, "-m", "scheduler", "web"]
    process = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:

        def there() -> bool:
            assert process.poll() is None
            try:
                with client_of(f"http://127.0.0.1:{port}", None) as http:
                    return http.get("/jobs", params={"tenant": "acme"}).status_code == 200
            except httpx.TransportError:
                return False

        wait_for(there, "its answer", timeout=60, every=0.2)
        second = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30
        )
        assert second.returncode == 2
        assert f"web.port: cannot listen on 127.0.0.1:{port}" in second.stderr
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 0
        assert f"http://127.0.0.1:{port}" in said
    finally:
        process.kill()
        process.communicate()
