"""Globs of paths, and the rule of a producer."""

import pytest

from scheduler.errors import ConfigError
from scheduler.model.files import File, ProducerRule
from scheduler.model.globs import Globs


@pytest.mark.parametrize(
    ("glob", "meant", "other"),
    [
        ("**/*", ["a", "a/b", "a/b/.c", "new\nline"], []),
        ("*", ["a", ".a"], ["a/b"]),
        ("**/*.tmp", ["a.tmp", ".tmp", "x/y/a.tmp"], ["a.tmpx", "a.tmp/b", "atmp"]),
        ("**/.DS_Store", [".DS_Store", "x/.DS_Store"], ["x.DS_Store"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "ab", "b/a/c"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a/bz", "az"]),
        ("**/a/**/b/*.txt", ["a/b/x.txt", "q/a/r/s/b/x.txt"], ["a/b/c/x.txt"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("?.txt", ["x.txt"], ["xy.txt", "/.txt"]),
        ("[a-c].[!x]", ["a.y", "c.]"], ["d.y", "a.x", "a./"]),
        ("[^x]", ["a"], ["x", "/"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[\\d]", ["d", "\\"], ["7"]),
        ("*.{jpg,jp{e,2}g,p?g}", ["a.jpg", "a.jpeg", "a.jp2g", "a.png"], ["a.jp", "a.gif"]),
        ("a,b", ["a,b"], ["a"]),
        (r"\*\{x\[", ["*{x["], ["a{x["]),
        ("a.b+(c)|d$", ["a.b+(c)|d$"], ["axb+(c)|d$", "d$"]),
        ("\u00e9/*", ["\u00e9/x"], ["e/x"]),
    ],
)
def test_what_a_glob_means(glob: str, meant: list[str], other: list[str]) -> None:
    globs = Globs([glob])
    assert [path for path in meant if not globs.match(path)] == []
    assert [path for path in other if globs.match(path)] == []


def test_any_of_several_globs_may_match_and_none_match_nothing() -> None:
    globs = Globs(["*.a", "*.b|*.c"])
    assert [globs.match(path) for path in ("x.a", "x.b|y.c", "x.c", "")] == [
        True,
        True,
        False,
        False,
    ]
    assert not Globs([]).match("")


def test_a_folder_that_is_excluded_whole_is_known_by_its_name() -> None:
    globs = Globs(["**/cache/**", "old/*", "new/**/*.txt"])
    folders = ("cache", "a/b/cache", "old", "new", "a/cached")
    assert [globs.match_all_in(folder) for folder in folders] == [True, True, False, False, False]
    assert Globs(["**"]).match_all_in("a")


@pytest.mark.parametrize(
    "glob", ["", "/a", "a//b", "a/", "../a", "a/./b", "[", "[a", "a\\", "{a", "a}", "{a}}", "[z-a]"]
)
def test_what_is_no_glob_is_refused_by_name(glob: str) -> None:
    with pytest.raises(ConfigError, match=r"^producer\.include_globs: '"):
        ProducerRule(include_globs=("**/*", glob))
    with pytest.raises(ConfigError, match=r"^producer\.exclude_globs: '"):
        ProducerRule(exclude_globs=("**/*", glob))


def test_the_rule_names_every_key_that_is_wrong_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerRule(
            scan_dir="",
            include_globs=(),
            exclude_globs=("[",),
            high_priority_exts=("pdf", "."),
            rate_limit_per_sec=-1,
            rate_limit_key="",
        )
    lines = str(caught.value).splitlines()
    assert {line.partition(":")[0] for line in lines} == {
        f"producer.{key}"
        for key in (
            "scan_dir",
            "include_globs",
            "exclude_globs",
            "high_priority_exts",
            "rate_limit_per_sec",
            "rate_limit_key",
        )
    }
    assert "'pdf', '.'" in str(caught.value)


def test_the_defaults_are_those_of_the_original() -> None:
    rule = ProducerRule()
    assert (rule.scan_dir, rule.include_globs, rule.exclude_globs) == (
        "./data",
        ("**/*",),
        ("**/*.tmp", "**/.DS_Store"),
    )
    assert (rule.default_priority, rule.high_priority_exts) == (
        "low",
        (".pdf", ".docx", ".xlsx", ".zip"),
    )
    assert (rule.rate_limit_per_sec, rule.rate_limit_key) == (100, "jobqueue:rate_limit:producer")


def test_an_id_is_of_path_size_and_time() -> None:
    file = File("/data/a", 1, 2, "low")
    assert len(file.id) == 32
    others = [
        file._replace(path="/data/b"),
        file._replace(size=12),
        file._replace(size=0, mtime_ns=12),
    ]
    assert len({file.id, *(other.id for other in others)}) == 4
    assert file._replace(priority="high").id == file.id
