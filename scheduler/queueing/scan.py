"""A walk through a folder: files that a producer takes, one after another, however many there are.

Links to files are followed, links to folders are not: so nothing goes in circles, or out of the
folder.
"""

import errno
import os
import stat
import threading
from collections.abc import Iterator
from typing import Any

from scheduler.errors import ConfigError
from scheduler.model.files import File, ProducerRule, Summary
from scheduler.model.globs import Globs

NOT_UTF8 = "its name is not UTF-8"
LINKED_FOLDER = "a link to a folder is not followed"
BROKEN_LINK = "a link that leads nowhere"
MOST_OPEN = 100  # handles of folders; of deeper ones the entries are kept
NO_FILE = "neither a file nor a folder"
UNREADABLE = "no permission to read it"
REASONS = {
    errno.ENOENT: "it vanished meanwhile",
    errno.ENOTDIR: "it vanished meanwhile",
    errno.ELOOP: "links in a circle",
    errno.EACCES: UNREADABLE,
    errno.EPERM: UNREADABLE,
}


class Scan:
    """One walk. What it leaves out is counted in the summary; of each folder that it is in, a
    handle is open.
    """

    def __init__(self, rule: ProducerRule, summary: Summary, stop: threading.Event) -> None:
        self._rule = rule
        self._summary = summary
        self._stop = stop
        self._included = Globs(rule.include_globs)
        self._excluded = Globs(rule.exclude_globs)
        self._root = os.path.abspath(rule.scan_dir)  # noqa: PTH100 - links stay as the user names them
        self._open: list[tuple[Any, str]] = []

    def __iter__(self) -> Iterator[File]:
        if not _utf8(self._root) or "\0" in self._root:
            raise ConfigError(f"producer.scan_dir: {self._root!r} is not a path in UTF-8")
        try:
            self._open.append((os.scandir(self._root), ""))
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise ConfigError(f"producer.scan_dir: {self._root!r} cannot be read: {why}") from None
        try:
            while self._open and not self._stop.is_set():
                found = self._next()
                if found is not None:
                    yield found
        finally:
            while self._open:
                self._leave()

    def _next(self) -> File | None:
        """Look at what comes next, and return it if it is a file to take."""
        listing, inside = self._open[-1]
        try:
            entry = next(listing, None)
        except OSError as error:
            self._summary.skip(f"{self._root}/{inside}", _reason(error))
            entry = None
        if entry is None:
            self._leave()
            return None
        try:
            return self._look(entry, inside + entry.name)
        except OSError as error:
            broken = error.errno == errno.ENOENT and os.path.lexists(entry.path)
            self._summary.skip(entry.path, BROKEN_LINK if broken else _reason(error))
            return None

    def _look(self, entry: os.DirEntry[str], relative: str) -> File | None:
        if not _utf8(entry.name):
            self._summary.skip(entry.path, NOT_UTF8)
        elif entry.is_dir(follow_symlinks=False):
            self._enter(entry, relative)
        elif self._excluded.match(relative) or not self._included.match(relative):
            self._summary.excluded += 1
        else:
            return self._file(entry)
        return None

    def _file(self, entry: os.DirEntry[str]) -> File | None:
        known = entry.stat()
        if stat.S_ISDIR(known.st_mode):
            self._summary.skip(entry.path, LINKED_FOLDER)
        elif not stat.S_ISREG(known.st_mode):
            self._summary.skip(entry.path, NO_FILE)
        elif not os.access(entry.path, os.R_OK, effective_ids=True):
            self._summary.skip(entry.path, UNREADABLE)
        else:
            return File(
                entry.path, known.st_size, known.st_mtime_ns, self._rule.priority(entry.name)
            )
        return None

    def _enter(self, entry: os.DirEntry[str], relative: str) -> None:
        if self._excluded.match_all_in(relative):
            self._summary.excluded += 1
        else:
            listing = os.scandir(entry.path)
            self._open.append(
                (listing if len(self._open) < MOST_OPEN else _kept(listing), f"{relative}/")
            )

    def _leave(self) -> None:
        listing, _ = self._open.pop()
        listing.close()


def _kept(listing: Any) -> Iterator[os.DirEntry[str]]:
    with listing:
        entries = list(listing)
    return (entry for entry in entries)


def _utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reason(error: OSError) -> str:
    return REASONS.get(error.errno or 0) or os.strerror(error.errno or 0)
