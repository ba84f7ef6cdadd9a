"""What one sees of a producer: on a terminal, in a pipe, as JSON."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis

PROGRAM = """
import sys, threading
from scheduler.cli.produce import produce
from scheduler.dialects.client import Client
from scheduler.dialects.reliable.keys import Keys
from scheduler.model.files import ProducerRule

stop = threading.Event()
if "stopped" in sys.argv:
    stop.set()
rule = ProducerRule(scan_dir=sys.argv[2], rate_limit_per_sec=int(sys.argv[3]))
produce(Client(sys.argv[1]), rule, Keys.original(), stop, as_json="--json" in sys.argv)
"""


@pytest.fixture
def command(redis_server: EmbeddedRedis, tmp_path: Path) -> list[str]:
    """A producer of a folder with two files to queue, one that is excluded and two that are
    skipped.
    """
    client = Client(redis_server.url)
    client.call("FLUSHALL")
    client.close()
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.pdf", "b.txt", "c.tmp"):
        (folder / name).write_text(name)
    (folder / "loop\x1b[31m").symlink_to("loop\x1b[31m")
    (folder / "nowhere").symlink_to("none")
    return [sys.executable, "-c", PROGRAM, redis_server.url, str(folder), "0"]


def run(command: list[str]) -> tuple[str, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout, done.stderr


def on_terminal(command: list[str]) -> tuple[str, str]:
    """What it writes to a pipe on stdout, and to a terminal on stderr."""
    leader, follower = pty.openpty()
    shape = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "24"}
    sent = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower, env=shape) as running:
        os.close(follower)
        try:
            while more := os.read(leader, 65536):
                sent += more
        except OSError:  # it has ended
            pass
        assert running.stdout is not None
        told = running.stdout.read().decode()
        assert running.wait(60) == 0
    os.close(leader)
    return told, sent.decode()


def test_a_summary_says_what_was_queued_unchanged_excluded_and_skipped(command: list[str]) -> None:
    said, errors = run(command)
    head, *skipped = said.splitlines()
    assert head == "queued 2 (high 1, low 1), unchanged 0, excluded 1, skipped 2"
    folder = command[4]
    assert sorted(skipped) == [
        f"  skipped {folder}/loop\\x1b[31m: links in a circle",
        f"  skipped {folder}/nowhere: a link that leads nowhere",
    ]
    assert errors == ""  # no bar where nobody looks
    assert run(command)[0].startswith("queued 0, unchanged 2, excluded 1, skipped 2\n")


def test_a_summary_says_that_it_was_stopped(command: list[str]) -> None:
    assert (
        run([*command, "stopped"])[0]
        == "queued 0, unchanged 0, excluded 0, skipped 0; stopped before the end\n"
    )


def test_json_for_machines(command: list[str]) -> None:
    said, _ = on_terminal([*command, "--json"])
    document = json.loads(said)
    named = document.pop("named")
    assert document == {
        "queued": {"high": 1, "low": 1},
        "unchanged": 0,
        "excluded": 1,
        "skipped": {"links in a circle": 1, "a link that leads nowhere": 1},
        "finished": True,
    }
    assert {each["reason"] for each in named} == set(document["skipped"])


def test_a_progress_bar_on_a_terminal(command: list[str], tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / "data" / f"{number}").touch()
    said, sent = on_terminal([*command[:-1], "50"])
    counts = [int(count) for count in re.findall(r"queued (\d+)", sent)]
    assert counts == sorted(counts)
    assert len(set(counts)) > 2, "the figures move"
    assert "\u2501" in sent, "the bar"
    assert said.startswith("queued 42 (high 1, low 41), ")
