"""Scripts say at their head what they are given and what they return, and it is so."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.dialects.client import Client, script
from scheduler.embedded.redis import EmbeddedRedis

FILES = sorted((Path(__file__).parents[2] / "scheduler/dialects").glob("*/lua/*.lua"))
PARTS = {
    (folder.rstrip("/") or path.parents[1].name, name)
    for path in FILES
    for folder, name in re.findall(r"^ *-- include: (\w+/)?(\w+)$", path.read_text(), re.MULTILINE)
}
WHOLE = [path for path in FILES if (path.parents[1].name, path.stem) not in PARTS]
TYPES = "string|list|hash|set|zset|stream"


def _head(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    return lines[:end]


def _code(path: Path) -> str:
    """A script with its parts, without comments."""
    text = script(path.parents[1].name, path.stem).text
    return "\n".join(line.split("--")[0] for line in text.splitlines())


def _used(code: str, name: str) -> tuple[set[int], bool]:
    """The numbers that a script names, and whether it computes others."""
    numbers = {int(found) for found in re.findall(rf"\b{name}\[(\d+)\]", code)}
    computed = bool(re.search(rf"\b{name}\[[^\]]*[a-z]|#{name}\b|\({name}[,)]", code))
    return numbers, computed


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with EmbeddedRedis() as server:
        opened = Client(server.url)
        yield opened
        opened.close()


def _name(path: Path) -> str:
    return f"{path.parents[1].name}/{path.stem}"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_script_begins_with_one_sentence(path: Path) -> None:
    text = path.read_text()
    assert re.fullmatch(r"-- [A-Z][^.]*\.", text.splitlines()[0])
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("path", WHOLE, ids=_name)
def test_a_head_names_the_keys_and_arguments_that_are_used(path: Path) -> None:
    head, code = _head(path), _code(path)
    assert any(line.startswith("-- Returns ") for line in head)
    for name, pattern in (
        ("KEYS", rf"-- KEYS\[(\d+)\] (?:{TYPES}): \S"),
        ("ARGV", r"-- ARGV\[(\d+)(?:\.\.)?\] \S"),
    ):
        said = [int(found[1]) for line in head if (found := re.match(pattern, line))]
        assert said == list(range(1, len(said) + 1)), f"{name} in order, and none left out"
        numbers, computed = _used(code, name)
        assert numbers <= set(said), f"{name} that the head does not name"
        assert computed or set(said) <= numbers, f"{name} that nobody uses"
        assert len([line for line in head if line.startswith(f"-- {name}[")]) == len(said)


@pytest.mark.parametrize("path", WHOLE, ids=_name)
def test_a_script_compiles_and_makes_no_global(path: Path, client: Client) -> None:
    assert client.call("SCRIPT", "LOAD", script(path.parents[1].name, path.stem).text)
    code = _code(path)
    local = set(re.findall(r"\blocal function (\w+)", code))
    for names in re.findall(
        r"\blocal ([\w, ]+)|\bfor ([\w, ]+?) (?:=|in)\b|\bfunction ?\w*\(([\w, .]*)\)", code
    ):
        local |= {name.strip() for each in names for name in each.split(",")}
    assigned = re.findall(r"^\s*((?:\w+, )*\w+) = ", code, re.MULTILINE)
    assert {name for each in assigned for name in each.split(", ")} <= local
    assert not re.search(r"^\s*function \w", code, re.MULTILINE)
