"""Files as jobs: which files of a folder a producer takes, in which priority, and what came of
them.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scheduler.errors import ConfigError
from scheduler.model.globs import Globs

HIGH = "high"
MOST_NAMED = 100


class File(NamedTuple):
    """A file as it was found."""

    path: str
    size: int
    mtime_ns: int
    priority: str

    @property
    def id(self) -> str:
        """Name its job: the same until the file changes."""
        told = f"{self.path}\0{self.mtime_ns}\0{self.size}".encode()
        return hashlib.blake2b(told, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRule:
    """What a producer does: section `producer` of the configuration. Globs are relative to
    `scan_dir`.
    """

    scan_dir: str = "./data"
    include_globs: tuple[str, ...] = ("**/*",)
    exclude_globs: tuple[str, ...] = ("**/*.tmp", "**/.DS_Store")
    default_priority: str = "low"
    high_priority_exts: tuple[str, ...] = (".pdf", ".docx", ".xlsx", ".zip")
    rate_limit_per_sec: int = 100
    rate_limit_key: str = "jobqueue:rate_limit:producer"

    def __post_init__(self) -> None:
        """Check all; a line for each key that is wrong."""
        wrong = {
            "include_globs": _no_globs(self.include_globs)
            if self.include_globs
            else "name at least one, such as **/*",
            "exclude_globs": _no_globs(self.exclude_globs),
            "high_priority_exts": _no_extensions(self.high_priority_exts),
            "rate_limit_per_sec": self.rate_limit_per_sec < 0
            and f"must be 0, for no limit, or more, not {self.rate_limit_per_sec}",
            **{
                key: not getattr(self, key) and "must not be empty"
                for key in ("scan_dir", "rate_limit_key")
            },
        }
        if any(wrong.values()):
            raise ConfigError(
                "\n".join(f"producer.{key}: {why}" for key, why in wrong.items() if why)
            )

    def check_priorities(self, words: Mapping[str, Any]) -> None:
        """Check that there are queues for the priorities that files get."""
        known = ", ".join(words)
        if self.default_priority not in words:
            raise ConfigError(
                f"producer.default_priority: {self.default_priority!r} is none of {known}"
            )
        if self.high_priority_exts and HIGH not in words:
            raise ConfigError(
                f"producer.high_priority_exts: must be empty, for there is no {HIGH!r} among "
                f"{known}"
            )

    def priority(self, name: str) -> str:
        """Say in which priority a file of this name goes."""
        exts = tuple(ext.lower() for ext in self.high_priority_exts)
        return HIGH if name.lower().endswith(exts) else self.default_priority


@dataclass(slots=True)
class Summary:
    """What came of a scan.

    `queued` is by priority. A batch whose answer was lost is sent again, and counts as `unchanged`
    if it had arrived. Of what was skipped, `named` has the first hundred, with the reason.
    `finished`: nothing stopped it.
    """

    queued: Counter[str] = field(default_factory=Counter)
    unchanged: int = 0
    excluded: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    named: list[tuple[str, str]] = field(default_factory=list)
    finished: bool = False

    def skip(self, path: str, reason: str) -> None:
        """Note that something is left out, and why; a name that is not UTF-8 is written with
        escapes.
        """
        self.skipped[reason] += 1
        if len(self.named) < MOST_NAMED:
            self.named.append(
                (path.encode(errors="surrogateescape").decode(errors="backslashreplace"), reason)
            )


def _no_globs(globs: tuple[str, ...]) -> str | None:
    try:
        Globs(globs)
    except ValueError as error:
        return str(error)
    return None


def _no_extensions(extensions: tuple[str, ...]) -> str | None:
    wrong = [each for each in extensions if not each.startswith(".") or len(each) < 2]
    return (
        f"must begin with a dot and go on, unlike {', '.join(map(repr, wrong))}" if wrong else None
    )
