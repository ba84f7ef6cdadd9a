import os
import tempfile
from pathlib import Path

import pytest

from scheduler.embedded.account import Account, account, temporary_folder
from scheduler.errors import ConfigError

STRANGER = Account(4_000_000, 4_000_000)


def test_servers_never_run_as_root() -> None:
    chosen = account()
    assert chosen.uid != 0
    assert chosen.foreign == (os.geteuid() == 0)


def test_the_folder_that_somebody_cannot_pass_is_named(place: Path) -> None:
    inner = place / "closed" / "open"
    inner.mkdir(parents=True)
    assert STRANGER.closed(inner / "file") is None
    (place / "closed").chmod(0o750)
    assert STRANGER.closed(inner / "file") == place / "closed"
    assert Account(4_000_000, inner.stat().st_gid).closed(inner / "file") is None
    assert Account(os.geteuid(), os.getegid()).closed(inner / "file") is None


def test_a_closed_or_long_tmpdir_is_passed_over(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unusable in (place / "closed", place / ("long" * 20)):
        unusable.mkdir(mode=0o700)
        monkeypatch.setattr(tempfile, "tempdir", str(unusable))
        made = temporary_folder("sched-", account())
        try:
            assert made.parent != unusable or os.geteuid() != 0
            assert len(str(made)) < 80
            assert made.stat().st_mode & 0o777 == 0o700
        finally:
            made.rmdir()


def test_no_usable_temporary_folder_is_an_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "scheduler.embedded.account._temporary_parents", lambda: iter([place / ("long" * 20)])
    )
    with pytest.raises(ConfigError, match="set TMPDIR"):
        temporary_folder("sched-", account())


def test_folders_are_made_passable_whatever_the_umask(place: Path) -> None:
    before = os.umask(0o077)
    try:
        STRANGER.make(place / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert STRANGER.closed(place / "a" / "b" / "c") is None
