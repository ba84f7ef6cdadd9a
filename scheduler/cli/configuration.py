"""The configuration of a process: a YAML file, over it the environment; everything that is wrong is
said at once.
"""

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
from scheduler.model.addresses import RedisOptions

DEFAULT = "default"
FILE = "file"
LONGEST = 80
BRIEF = Repr()  # a few lines of YAML may stand for more than any memory holds
BRIEF.maxlevel, BRIEF.maxstring, BRIEF.maxother = 2, LONGEST, LONGEST

PREFIX = "SCHEDULER_"
REDIS_URL = "REDIS_URL"
# Keys that the specification sets by unprefixed environment variables. Other keys have none: short
# names such as WEB_PORT belong to other programs, too.
UNPREFIXED_KEYS = frozenset(
    f"{section}.{name}"
    for section, names in {
        "redis": "addr username password db pool_size_multiplier min_idle_conns dial_timeout "
        "read_timeout write_timeout max_retries",
        "worker": "count heartbeat_ttl max_retries backoff.base backoff.max priorities queues "
        "processing_list_pattern heartbeat_key_pattern completed_list dead_letter_list "
        "brpoplpush_timeout",
        "producer": "scan_dir include_globs exclude_globs default_priority high_priority_exts "
        "rate_limit_per_sec rate_limit_key",
        "circuit_breaker": "failure_threshold window cooldown_period min_samples",
        "observability": "metrics_port log_level queue_sample_interval tracing.enabled "
        "tracing.endpoint",
    }.items()
    for name in names.split()
)
# Variables with the prefix that other parts of the package read.
OTHER_VARIABLES = frozenset({"SCHEDULER_HOME", "SCHEDULER_TEST_DATABASE_URL"})
MISSPELT_RATIO = 0.7  # difflib's similarity from which an unknown name counts as misspelt

# Variables that Kubernetes sets in every container for each Service of the namespace.
_SERVICE_VARIABLE = re.compile(
    r"\w+?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)"
)
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its dotted name, and the environment variables that set it, the first before the
    others.
    """

    name: str
    kind: Kind
    mask: Mask | None
    variables: tuple[str, ...]

    @property
    def prefixed(self) -> str:
        """The variable with the prefix SCHEDULER_, which wins over the others."""
        return self.variables[0]

    def shown(self, value: object) -> object:
        """Write a value so that it may be seen."""
        plain = shown(value)
        if self.mask is None or plain is None or isinstance(plain, bool):
            return plain
        return (
            [self.mask(each) for each in plain]
            if isinstance(plain, list)
            else self.mask(str(plain))
        )


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds, and where each value comes from: "default", "file", or the name of an environment
    variable.
    """

    values: Configuration
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()

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
    """Read a file, which may be missing, and the environment; raises with a line for each thing
    that is wrong.
    """
    reading = _Reading(os.environ if environment is None else environment)
    found, reading.wrong = _loaded(path)
    values = reading.section(Configuration, found, "")
    reading.check_variables()
    reading.wrong += [
        line.replace("redis.addr:", "redis.addr (from REDIS_URL):", 1)
        if reading.origins["redis.addr"] == REDIS_URL
        else line
        for line in broken(values)
        if not any(name in line for name in reading.unread)
    ]
    reading.check_redis_url(values)
    if reading.wrong:
        raise ConfigError("\n".join(reading.wrong))
    return Effective(values, reading.origins, tuple(reading.warnings))


class _Reading:
    """One reading: what was wrong, and where values come from."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.wrong: list[str] = []
        self.warnings: list[str] = []
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
                values[name] = self.section(_section(each), given.get(name), f"{path}{name}.")
            else:
                value = self._value(_key(each, f"{path}{name}"), given, name)
                if value is not _DEFAULT:
                    values[name] = value
        return section(**values)

    def check_variables(self) -> None:
        """Report variables that look like settings and are not: misspelt ones as errors.

        A variable without the prefix never causes an error, since it can belong to any program.
        """
        names = {variable: key for key in keys() for variable in key.variables}
        sections = dict(_sections(Configuration, ""))
        for variable in sorted(self._environment):
            value = self._environment[variable].strip()
            if not value or not variable.startswith(PREFIX) or variable in names:
                continue
            if variable in OTHER_VARIABLES or _is_service_variable(variable, value):
                continue
            self._report_unknown(variable, names, sections)
        for key in keys():
            former = key.name.upper().replace(".", "_")
            value = self._environment.get(former, "").strip()
            if (
                value
                and former not in key.variables
                and self.origins[key.name] not in key.variables
                and not _is_service_variable(former, value)
            ):
                self.warnings.append(f"{former} is not read; {key.name} is set by {key.prefixed}")

    def check_redis_url(self, values: Configuration) -> None:
        """Report `redis.*` keys that contradict the URL in REDIS_URL."""
        url = values.redis.addr
        if self.origins["redis.addr"] != REDIS_URL or not isinstance(url, str):
            return
        try:
            found = RedisOptions.of(url)
        except ConfigError:
            return  # reported already
        redis = values.redis
        for name, in_url, value in (
            ("username", found.username, redis.username),
            ("password", found.password, redis.password),
            ("db", found.db or None, redis.db),
            ("tls.enabled", found.tls is not None or None, redis.tls.enabled),
            ("sentinel.master", found.master, redis.sentinel.master),
        ):
            origin = self.origins[f"redis.{name}"]
            if origin != DEFAULT and in_url is not None and in_url != value:
                where = "the file" if origin == FILE else origin
                self.wrong.append(
                    f"redis.{name}: the value from {where} and REDIS_URL contradict each other; "
                    "remove one of them"
                )

    def _report_unknown(
        self, variable: str, names: Mapping[str, Key], sections: Mapping[str, str]
    ) -> None:
        short = variable.removeprefix(PREFIX)
        section = sections.get(variable)
        if section is not None:
            inside = [each for each in names if each.startswith(f"{variable}_")]
            self.wrong.append(f"{variable}: {section} is a section; set {', '.join(inside)}")
            return
        known = {name.removeprefix(PREFIX): name for name in names if name.startswith(PREFIX)}
        near = get_close_matches(short, known, n=1, cutoff=MISSPELT_RATIO)
        if near:
            self.wrong.append(
                f"{variable}: there is no such setting; did you mean {known[near[0]]}?"
            )
            return
        own = [each for each in sections if variable.startswith(f"{each}_")]
        if own:
            inside = [each for each in names if each.startswith(f"{max(own, key=len)}_")]
            self.wrong.append(
                f"{variable}: there is no such setting; there are {', '.join(inside)}"
            )
            return
        self.warnings.append(f"{variable} is not a setting and is ignored")

    def _value(self, key: Key, given: Mapping[str, Any], name: str) -> object:
        origin, value = DEFAULT, None
        variable = self._variable(key)
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
            found = (
                ""
                if isinstance(error, Refused)
                else f", not {_kind(value) if key.mask else _found(value)}"
            )
            self.unread.append(key.name)
            self.wrong.append(
                f"{key.name}: {error}{found} (from {origin if variable else 'the file'})"
            )
            return _DEFAULT

    def _variable(self, key: Key) -> str | None:
        """Return the variable that sets a key, or None.

        Kubernetes sets `X_PORT=tcp://...` for a Service called x. Such a value is skipped.
        """
        for name in key.variables:
            value = self._environment.get(name, "").strip()
            if name.endswith("_PORT") and _SERVICE_URL.match(value):
                self.warnings.append(
                    f"{name}={visible(value[:LONGEST])} is ignored: it looks like a variable that "
                    f"Kubernetes sets for a Service; {key.name} needs a number"
                )
            elif value:
                return name
        return None


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
        lines = [
            f"{path}, line {key.start_mark.line + 1}: {visible(str(key.value))} is there twice"
            for key in twice
        ]
        return yaml.safe_load(text), lines
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{where}: is not YAML: {_problem(error)}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path}: is not YAML: it must be text in UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path}: is not YAML that anybody would write: it is too deep") from None
    except (
        ValueError,
        LookupError,
        AttributeError,
    ):  # how PyYAML says that a value is not of its kind
        raise ConfigError(
            f"{path}: has a value that cannot be read: a number, a date, or what has a tag"
        ) from None


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Say what is wrong, without names: a password that begins with * or ! is one to YAML."""

    def kept(found: re.Match[str]) -> str:
        return found[0] if len(found[1]) < 2 or found[1][0] in "<\\" else "that one"

    return re.sub(r"'([^']*)'", kept, (error.problem or "").replace('"', "'"))


def _twice(node: yaml.Node | None, seen: set[int]) -> Iterator[yaml.Node]:
    """Find keys that come twice: YAML would take the last, and say nothing. What has a name may be
    in itself.
    """
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
    upper = name.upper().replace(".", "_")
    prefixed = upper if upper.startswith(PREFIX) else PREFIX + upper
    also: tuple[str, ...] = each.metadata["also"]
    if name in UNPREFIXED_KEYS:
        also = (upper, *also)
    return Key(name, each.metadata["kind"], each.metadata["mask"], (prefixed, *also))


def _sections(section: type, path: str) -> Iterator[tuple[str, str]]:
    """Yield every section but `scheduler`: the variable that it would have, and its name."""
    for each in fields(section):
        if "kind" not in each.metadata and each.name != "scheduler":
            name = f"{path}{each.name}"
            yield PREFIX + name.upper().replace(".", "_"), name
            yield from _sections(_section(each), f"{name}.")


def _is_service_variable(variable: str, value: str) -> bool:
    """Whether Kubernetes sets the variable for a Service."""
    if _SERVICE_VARIABLE.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _SERVICE_URL.match(value) is not None


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
    return (
        "nothing"
        if value is None
        else written
        if len(written) <= LONGEST
        else f"{written[:LONGEST]}..."
    )


def _kind(value: object) -> str:
    """Name a value that may be secret."""
    return "nothing" if value is None else f"a value of the kind {type(value).__name__}"
