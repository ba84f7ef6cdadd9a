"""Globs of paths: `**` for any folders, `*`, `?`, `[a-z]`, `[!a-z]`, `{a,b}`, and a backslash
before what is meant.
"""

import re
from collections.abc import Sequence

_PARTS = re.compile(
    r"(?:^|(?<=/))(?P<folders>(?:\*\*/)+)|(?:^|(?<=/))(?P<rest>\*\*)\Z|(?P<many>\*+)|(?P<one>\?)"
    r"|\[(?P<negated>[!^]?)(?P<set>\]?[^]/]*)\]|(?P<brace>[{},])|\\(?P<escaped>.)|(?P<plain>[^[\\])",
    re.DOTALL,
)
_FIXED = {"folders": "(?:.*/)?", "rest": ".*", "many": "[^/]*", "one": "[^/]"}


class Globs:
    """Paths, relative to a folder, that any of these globs matches."""

    def __init__(self, globs: Sequence[str]) -> None:
        """Read globs; a ValueError says what is wrong with the first that is none."""
        self._paths = _either(globs)
        self._whole = _either([glob for glob in globs if glob == "**" or glob.endswith("/**")])

    def match(self, path: str) -> bool:
        """Whether a path is meant."""
        return self._paths.fullmatch(path) is not None

    def match_all_in(self, folder: str) -> bool:
        """Whether everything in a folder is meant, and so one need not look into it."""
        return self._whole.fullmatch(f"{folder}/") is not None


def _either(globs: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(_expression, globs)) or r"(?!)", re.DOTALL)


def _expression(glob: str) -> str:
    if glob.startswith("/") or not {".", "..", ""}.isdisjoint(glob.split("/")):
        raise ValueError(
            f"{glob!r} can match no path: paths are relative to scan_dir, without '.' and '..'"
        )
    made, depth, at = [], 0, 0
    while at < len(glob):
        found = _PARTS.match(glob, at)
        if found is None:
            raise ValueError(
                f"{glob!r} has a '[' or a backslash that nothing follows up; write \\[ or \\\\ for "
                "itself"
            )
        kind, text, at = found.lastgroup or "", found[0], found.end()
        if kind in _FIXED:
            made.append(_FIXED[kind])
        elif kind == "set":
            made.append(_set(found))
        elif kind == "brace":
            depth += {"{": 1, "}": -1, ",": 0}[text]
            made.append({"{": "(?:", "}": ")", ",": "|" if depth else ","}[text])
        else:
            made.append(re.escape(text[-1]))
        if depth < 0:
            break
    expression = "".join(made)
    try:
        re.compile(expression)
    except re.error:
        depth = -1
    if depth:
        raise ValueError(f"{glob!r} is no glob: its braces or brackets do not fit together")
    return expression


def _set(found: re.Match[str]) -> str:
    members = re.sub(r"([\\\[\]^&~|])", r"\\\1", found["set"])
    return f"(?!/)[{'^' if found['negated'] else ''}{members}]"
