"""The configuration of a process: a YAML file, over it the environment; everything that is wrong is said at once."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Any

import yaml

from scheduler.cli.kinds import Kind, Refused, shown
from scheduler.cli.options import Configuration, Mask
from scheduler.cli.rules import broken
from scheduler.cli.show import visible
from scheduler.errors import ConfigError

DEFAULT = "default"
FILE = "file"
LONGEST = 80
BRIEF = Repr()  # a few lines of YAML may stand for more than any memory holds
BRIEF.maxlevel, BRIEF.maxstring, BRIEF.maxother = 2, LONGEST, LONGEST


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its dotted name, and the environment variables that set it, the first before the others."""

    name: str
    kind: Kind
    mask: Mask | None
    variables: tuple[str, ...]

    def shown(self, value: object) -> object:
        """Write a value so that it may be seen."""
        plain = shown(value)
        if self.mask is None or plain is None or isinstance(plain, bool):
            return plain
        return [self.mask(each) for each in plain] if isinstance(plain, list) else self.mask(str(plain))


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds, and where each value comes from: "default", "file", or the name of an environment variable."""

    values: Configuration
    origins: Mapping[str, str]

    def rows(self) -> Iterator[tuple[Key, object, str]]:
        """Go through all keys: each with its value, fit to be seen, and its origin."""
        for key in keys():
            value: Any = self.values
            for part in key.name.split("."):
                value = getattr(value, part)
            yield key, key.shown(value), self.origins[key.name]


def keys(section: type = Configuration, path: str = "") -> Iterator[Key]:
    """Go through all keys, in their order."""
    for each in fields(section):
        name = f"{path}{each.name}"
        if "kind" in each.metadata:
            yield _key(each, name)
        else:
            yield from keys(_section(each), f"{name}.")


def effective(path: Path, environment: Mapping[str, str] | None = None) -> Effective:
    """Read a file, which may be missing, and the environment; raises with a line for each thing that is wrong."""
    reading = _Reading(os.environ if environment is None else environment)
    found, reading.wrong = _loaded(path)
    values = reading.section(Configuration, found, "")
    reading.wrong += [line for line in broken(values) if not any(name in line for name in reading.unread)]
    if reading.wrong:
        raise ConfigError("\n".join(reading.wrong))
    return Effective(values, reading.origins)


class _Reading:
    """One reading: what was wrong, and where values come from."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.wrong: list[str] = []
        self.unread: list[str] = []  # of these, no rule can tell
        self.origins: dict[str, str] = {}

    def section(self, section: type, found: object, path: str) -> Any:
        """Read a section, as far as it can be read."""
        given = {} if found is None else found
        if not isinstance(given, Mapping):
            self.unread.append(path.rstrip(".") or "the file")
            self.wrong.append(f"{self.unread[-1]}: must be a section with keys, not {_kind(given)}")
            given = {}
        known = {each.name: each for each in fields(section)}
        self.wrong += [_unknown(path, name, known) for name in given if name not in known]
        values = {}
        for name, each in known.items():
            if "kind" not in each.metadata:
                self._refuse_whole(_section(each), f"{path}{name}")
                values[name] = self.section(_section(each), given.get(name), f"{path}{name}.")
            else:
                value = self._value(_key(each, f"{path}{name}"), given, name)
                if value is not _DEFAULT:
                    values[name] = value
        return section(**values)

    def _refuse_whole(self, section: type, name: str) -> None:
        """Refuse a variable that would say all of a section in a section; shorter names may be anybody's."""
        variable = name.upper().replace(".", "_")
        if "." in name and self._environment.get(variable, "").strip():
            named = ", ".join(key.variables[0] for key in keys(section, f"{name}."))
            self.wrong.append(f"{name}: is a section; set {named} (from {variable})")

    def _value(self, key: Key, given: Mapping[str, Any], name: str) -> object:
        origin, value = DEFAULT, None
        variable = next((each for each in key.variables if self._environment.get(each, "").strip()), None)
        if variable is not None:
            origin, value = variable, key.kind.plain(self._environment[variable])
        elif name in given:
            origin, value = FILE, given[name]
        self.origins[key.name] = origin
        if origin == DEFAULT:
            return _DEFAULT
        try:
            return key.kind.read(value)
        except ValueError as error:
            found = "" if isinstance(error, Refused) else f", not {_kind(value) if key.mask else _found(value)}"
            self.unread.append(key.name)
            self.wrong.append(f"{key.name}: {error}{found} (from {origin if variable else 'the file'})")
            return _DEFAULT


_DEFAULT = object()


def _loaded(path: Path) -> tuple[object, list[str]]:
    """Read the file; None if there is none. Beside it, a line for each key that comes twice."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None, []
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        twice = _twice(yaml.compose(text, yaml.SafeLoader), set())
        lines = [f"{path}, line {key.start_mark.line + 1}: {visible(str(key.value))} is there twice" for key in twice]
        return yaml.safe_load(text), lines
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{where}: is not YAML: {_problem(error)}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path}: is not YAML: it must be text in UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path}: is not YAML that anybody would write: it is too deep") from None
    except (ValueError, LookupError, AttributeError):  # how PyYAML says that a value is not of its kind
        raise ConfigError(f"{path}: has a value that cannot be read: a number, a date, or what has a tag") from None


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Say what is wrong, without names: a password that begins with * or ! is one to YAML."""

    def kept(found: re.Match[str]) -> str:
        return found[0] if len(found[1]) < 2 or found[1][0] in "<\\" else "that one"

    return re.sub(r"'([^']*)'", kept, (error.problem or "").replace('"', "'"))


def _twice(node: yaml.Node | None, seen: set[int]) -> Iterator[yaml.Node]:
    """Find keys that come twice: YAML would take the last, and say nothing. What has a name may be in itself."""
    if isinstance(node, yaml.MappingNode) and id(node) not in seen:
        seen.add(id(node))
        met = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else id(key)
            if name in met:
                yield key
            met.add(name)
            yield from _twice(value, seen)


def _key(each: "Field[Any]", name: str) -> Key:
    of_name = name.upper().replace(".", "_")
    return Key(name, each.metadata["kind"], each.metadata["mask"], (of_name, *each.metadata["also"]))


def _section(each: "Field[Any]") -> type:
    return each.default_factory  # type: ignore[return-value]


def _unknown(path: str, name: object, known: Mapping[str, object]) -> str:
    near = get_close_matches(str(name), known, n=1)
    cure = f"did you mean {path}{near[0]}?" if near else f"there are {', '.join(known)}"
    return f"{path}{visible(str(name)[:LONGEST])}: there is no such key; {cure}"


def _found(value: object) -> str:
    try:
        written = BRIEF.repr(value)
    except ValueError:  # a number may be too long to write
        return _kind(value)
    return "nothing" if value is None else written if len(written) <= LONGEST else f"{written[:LONGEST]}..."


def _kind(value: object) -> str:
    """Name a value that may be secret."""
    return "nothing" if value is None else f"a value of the kind {type(value).__name__}"
