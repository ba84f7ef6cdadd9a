"""Where Redis is and how it is reached, out of a URL or piece by piece, checked; no message quotes
a password.

redis://user:password@host:6379/0           one server, or some nodes of a cluster:
host1:6379,host2:6379 unix://user:password@/run/redis.sock?db=0   one server of this machine
redis+sentinel://user:password@host1:26379,host2:26379/mymaster/0   whichever server Sentinel says
rediss://, rediss+sentinel://               the same over TLS
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self
from urllib.parse import parse_qsl, unquote

from scheduler.errors import ConfigError
from scheduler.model.durations import duration

MOST_CONNECTIONS = 10_000  # each queue that is waited at has one
SECONDS = timedelta(seconds=5)
SOON = timedelta(seconds=1)
LONGEST = timedelta(days=1)  # a socket cannot wait for a month
SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
ESCAPE = "; write /, @, :, #, ? and % in a name or password as %2F, %40, %3A, %23, %3F and %25"

_URL = re.compile(r"([a-z+]+)://([^/?]*)([^?]*)\??(.*)", re.IGNORECASE)
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:/@,]+))(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files for TLS: whose certificates we trust (the system's by default), and who we are, where
    Redis asks.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    check_hostname: bool = True

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            _text(f"tls.{name}", getattr(self, name))
        _switch("tls.check_hostname", self.check_hostname)
        if (self.cert is None) != (self.key is None):
            raise ConfigError("redis.tls: cert and key belong together; name both, or neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """How Redis is reached.

    addresses: "host:port" each, or the path of a Unix socket; several are nodes of one cluster, or
    with `master` the Sentinels that know the server of that name. timeout: how long an answer may
    take. dial_timeout: how long a connection may take to open; it is tried `max_retries` times
    more, a command never. max_connections: how many commands may be under way at once, besides one
    connection for each queue that is waited at. min_idle: how many connections are opened at the
    start.
    """

    addresses: Sequence[str] = ("localhost",)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    max_connections: int = MOST_CONNECTIONS
    min_idle: int = 0
    dial_timeout: timedelta = SECONDS
    timeout: timedelta = SECONDS
    max_retries: int = 0
    tls: Tls | None = None
    master: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("username", "password", "master", "sentinel_username", "sentinel_password"):
            _text(name, getattr(self, name))
        _number("db", self.db, 0, 2**31 - 1)
        _number("max_connections", self.max_connections, 1, MOST_CONNECTIONS)
        _number("min_idle", self.min_idle, 0, self.max_connections)
        _number("max_retries", self.max_retries, 0, 100)
        for name in ("dial_timeout", "timeout"):
            object.__setattr__(
                self, name, duration(getattr(self, name), name=f"redis.{name}:", error=ConfigError)
            )
            if getattr(self, name) > LONGEST:
                raise ConfigError(f"redis.{name}: must be at most a day")
        if isinstance(self.addresses, str) or not self.addresses:
            raise ConfigError('redis.addresses: must be a list like ["localhost:6379"]')
        object.__setattr__(self, "addresses", tuple(self.addresses))
        self._check_addresses()
        if self.master is None and (self.sentinel_username or self.sentinel_password):
            raise ConfigError(
                "redis: a name or password for Sentinel needs `master`, the name of the server to "
                "find"
            )

    def _check_addresses(self) -> None:
        if self.path is None:
            self.hosts  # noqa: B018 - it raises
        elif len(self.addresses) > 1 or self.master is not None or self.tls is not None:
            raise ConfigError(
                "redis: a Unix socket leads to one server, without TLS and Sentinel; name it alone"
            )

    @property
    def path(self) -> str | None:
        """The Unix socket, if it is one."""
        return next((each for each in self.addresses if each.startswith("/")), None)

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """The hosts and ports."""
        usual = 6379 if self.master is None else 26379
        return [_host(address, place, usual) for place, address in enumerate(self.addresses, 1)]

    def quick(self) -> "RedisOptions":
        """Give up soon, for those who would rather go on than wait."""
        return replace(
            self,
            dial_timeout=min(self.dial_timeout, SOON),
            timeout=min(self.timeout, SOON),
            max_retries=0,
            min_idle=0,
        )

    @classmethod
    def of(cls, url: object, **options: Any) -> Self:
        """Read a URL; options that are given besides win over what it says."""
        if not isinstance(url, str):
            raise ConfigError(
                f"redis: must be a URL like redis://localhost:6379/0, not {type(url).__name__}"
            )
        found = _URL.fullmatch(url)
        if found is None or found[1].lower() not in SCHEMES:
            raise ConfigError(f"redis: must be a URL that begins with {'://, '.join(SCHEMES)}://")
        if "@" in found[3] + found[4] or "#" in url:
            raise ConfigError(f"redis: there is an @ or # where none can be{ESCAPE}")
        return cls(**{**_read(found[1].lower(), *found.groups()[1:]), **options})


def _read(scheme: str, where: str, path: str, query: str) -> dict[str, Any]:
    said, _, hosts = where.rpartition("@")
    username, _, password = said.partition(":")
    found: dict[str, Any] = {
        "username": unquote(username) or None,
        "password": unquote(password) or None,
    }
    path = unquote(path)
    if scheme == "unix":
        if hosts or not path:
            raise ConfigError(f"redis: a Unix socket is written unix:///run/redis.sock{ESCAPE}")
        found["addresses"] = (path,)
    else:
        found["addresses"] = tuple(hosts.split(",")) if hosts else ("localhost",)
        RedisOptions(
            addresses=found["addresses"]
        )  # before anything is quoted: it may be half a password
        db = path.strip("/")
        if scheme.endswith("+sentinel"):
            found["master"], _, db = db.partition("/")
            if not found["master"]:
                raise ConfigError(
                    "redis: Sentinel needs the name of the server, as in "
                    "redis+sentinel://host/mymaster"
                )
        if db:
            found["db"] = _whole("db", db)
    options, tls = _query(query)
    if scheme.startswith("rediss"):
        found["tls"] = Tls(**tls)
    elif tls:
        raise ConfigError("redis: TLS needs a URL that begins with rediss:// or rediss+sentinel://")
    return {**found, **options}


def _query(query: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what stands behind the question mark; what begins with tls_ is returned apart."""
    options: dict[str, Any] = {}
    tls: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        reader = _OPTIONS.get(name)
        if reader is None:
            raise ConfigError(
                f"redis: there is no option {name[:40]!r}; a URL may have {', '.join(_OPTIONS)}"
            )
        if name.startswith("tls_"):
            tls[name[4:]] = reader(name, value)
        else:
            options[name] = reader(name, value)
    return options, tls


def _whole(name: str, value: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", value):
        raise ConfigError(f"redis.{name}: must be a number, not {value[:40]!r}")
    return int(value)


def _yes(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"redis.{name}: must be true or false, not {value[:40]!r}")
    return value.lower() == "true"


def _as_it_is(_: str, value: str) -> str:
    return value


_OPTIONS: Mapping[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(("db", "max_connections", "min_idle", "max_retries"), _whole),
    **dict.fromkeys(("username", "password", "sentinel_username", "sentinel_password"), _as_it_is),
    **dict.fromkeys(("dial_timeout", "timeout", "tls_ca", "tls_cert", "tls_key"), _as_it_is),
    "tls_check_hostname": _yes,
}


def _host(address: str, place: int, usual: int) -> tuple[str, int]:
    found = _HOST.fullmatch(address)
    port = int(found[3] or usual) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise ConfigError(
            f"redis: address {place} is not a host and a port from 1 to 65535, as in "
            f"host:6379{ESCAPE}"
        )
    return found[1] or found[2], port


def _text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"redis.{name}: must be a text, or left out")


def _number(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"redis.{name}: must be a number from {least} to {most}, not {value!r}")


def _switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"redis.{name}: must be true or false, not {value!r}")
