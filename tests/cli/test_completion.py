"""All commands together: each has an example, --json where it prints data, and documented exit
codes.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from scheduler.cli.main import cli
from scheduler.doctor import CHECKS

DOCUMENT = (Path(__file__).parents[2] / "docs/commands.md").read_text("utf-8")
OURS = {
    **os.environ,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
}
NO_DATA = {"up", "worker", "web", "completion"}  # a live view, a process that logs, a script


def commands(group: click.Group = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


@pytest.mark.parametrize(("name", "command"), [*commands()], ids=[name for name, _ in commands()])
def test_every_command_has_an_example_json_and_exit_codes(
    name: str, command: click.Command
) -> None:
    told = CliRunner().invoke(cli, [*name.split(), "--help"])
    assert told.exit_code == 0
    assert f"Example: scheduler {name}" in " ".join(told.stdout.split())
    assert command.short_help
    assert ("--json" in told.stdout) == (name not in NO_DATA)
    row = re.search(rf"^\| `scheduler {name}[ `].*\| ([^|]+) \|$", DOCUMENT, re.MULTILINE)
    assert row is not None, f"docs/commands.md has no row for {name}"
    assert {"0", "2"} <= set(re.findall(r"\d+", row[1]))


def test_the_document_names_no_command_that_is_not_there() -> None:
    named = re.findall(r"^\| `scheduler ([a-z-]+(?: show)?)", DOCUMENT, re.MULTILINE)
    assert sorted(named) == [name for name, _ in commands()]


def test_the_document_names_every_check_of_the_doctor() -> None:
    section = DOCUMENT.partition("## Doctor")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    assert sorted(check for row in rows for check in re.findall(r"`([a-z-]+)`", row)) == sorted(
        CHECKS
    )


def test_bash_completes_commands_and_options() -> None:
    script = CliRunner().invoke(cli, ["completion", "bash"]).stdout
    asks = """
complete_words() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  _scheduler_completion scheduler
  echo "${COMPREPLY[*]}"
}
complete_words scheduler doc
complete_words scheduler find --st
complete_words scheduler completion f
"""
    done = subprocess.run(
        ["bash"],
        input=script + asks,
        env=OURS,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.splitlines(), done.stderr) == (["doctor", "--state", "fish"], "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_answered(shell: str) -> None:
    script = CliRunner().invoke(cli, ["completion", shell])
    assert script.exit_code == 0
    assert f"_SCHEDULER_COMPLETE={shell}_complete" in script.stdout
    asked = {"_SCHEDULER_COMPLETE": f"{shell}_complete", "COMP_WORDS": "scheduler doc"}
    asked["COMP_CWORD"] = "doc" if shell == "fish" else "1"
    done = subprocess.run(
        ["scheduler"], env=OURS | asked, check=True, capture_output=True, text=True, timeout=60
    )
    assert "doctor" in done.stdout
