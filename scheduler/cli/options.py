"""Every key of the configuration. A section is a class, a key a field of it with its default and
what it may be.

What each does is in `docs/running.md`, in the same order.
"""

# ruff: noqa: RUF009 - `setting` makes a field

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from scheduler.cli.dsn import HIDDEN, without_secrets
from scheduler.cli.kinds import (
    Kind,
    Refused,
    addresses,
    choice,
    dsn,
    lasting,
    listening,
    number,
    option,
    optional,
    pattern,
    queue,
    sendable,
    share,
    span,
    structured,
    switch,
    table,
    tenants,
    text,
    texts,
    whole,
)
from scheduler.config import DEFAULTS, Tenants
from scheduler.dialects.reliable.keys import LEVELS, LISTS
from scheduler.errors import ConfigError
from scheduler.web.access import Token

Mask = Callable[[str], str]


def setting(
    default: Any, kind: Kind, *, mask: Mask | None = None, also: tuple[str, ...] = ()
) -> Any:
    """Make a field; `mask` hides what is secret in it, `also` are other environment variables that
    set it.
    """
    metadata = {"kind": kind, "mask": mask, "also": also}
    return field(default_factory=lambda: kind.read(default), metadata=metadata)


def hidden(_: str) -> str:
    """Hide everything."""
    return HIDDEN


def _dsn(said: str) -> str:
    return without_secrets(said, said)


def without_password(url: str) -> str:
    """Hide who we are in the URL of a Redis."""
    return re.sub(r"(password=)[^&]*", rf"\1{HIDDEN}", re.sub(r"://[^/]*@", f"://{HIDDEN}@", url))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS to Redis."""

    enabled: bool = setting(default=False, kind=switch())
    ca: str | None = setting(None, optional(text()))
    cert: str | None = setting(None, optional(text()))
    key: str | None = setting(None, optional(text()))
    check_hostname: bool = setting(default=True, kind=switch())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentinel:
    """Sentinels, at `redis.addr`, that know where the server is."""

    master: str | None = setting(None, optional(text()))
    username: str | None = setting(None, optional(text()))
    password: str | None = setting(None, optional(text()), mask=hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    """How Redis is reached."""

    addr: str | tuple[str, ...] | None = setting(
        "localhost:6379", addresses(), mask=without_password, also=("REDIS_URL",)
    )
    username: str | None = setting(None, optional(text()))
    password: str | None = setting(None, optional(text()), mask=hidden)
    db: int = setting(0, whole(0))
    pool_size_multiplier: int = setting(10, whole(1, 1000))
    min_idle_conns: int = setting(5, whole(0))
    dial_timeout: timedelta = setting("5s", span(most="1d"))
    read_timeout: timedelta = setting("3s", span(most="1d"))
    write_timeout: timedelta = setting("3s", span(most="1d"))
    max_retries: int = setting(3, whole(0, 100))
    tls: Tls = field(default_factory=Tls)
    sentinel: Sentinel = field(default_factory=Sentinel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long jobs without a policy of their own wait between attempts."""

    base: timedelta = setting("500ms", span())
    max: timedelta = setting("10s", span())


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The worker, and the keys of the original."""

    count: int = setting(16, whole(1, 10_000))
    processes: int = setting(1, whole(1, 10_000))
    fetch: str = setting("strict", choice("strict", "weighted"))
    grace: timedelta = setting("30s", span())
    heartbeat_ttl: timedelta = setting("30s", span("5s"))
    max_retries: int = setting(3, whole(0, 99))
    backoff: Backoff = field(default_factory=Backoff)
    file_queue: str = setting("files", queue())
    priorities: tuple[str, ...] = setting(list(LISTS), texts(least=1, most=len(LEVELS)))
    queues: Mapping[str, str] = setting(LISTS, table())
    processing_list_pattern: str = setting("jobqueue:worker:%s:processing", pattern())
    heartbeat_key_pattern: str = setting("jobqueue:processing:worker:%s", pattern())
    completed_list: str = setting("jobqueue:completed", text())
    dead_letter_list: str = setting("jobqueue:dead_letter", text())
    brpoplpush_timeout: timedelta = setting("1s", span(most="10s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaper:
    """How what silent workers hold is looked for."""

    interval: timedelta = setting("5s", span())
    base_delay: timedelta = setting("10ms", span())
    scan_count: int = setting(100, whole(1, 10_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """The producer."""

    scan_dir: str = setting("./data", text())
    include_globs: tuple[str, ...] = setting(["**/*"], texts(least=1))
    exclude_globs: tuple[str, ...] = setting(["**/*.tmp", "**/.DS_Store"], texts())
    default_priority: str = setting("low", text())
    high_priority_exts: tuple[str, ...] = setting([".pdf", ".docx", ".xlsx", ".zip"], texts())
    rate_limit_per_sec: int = setting(100, whole(0))
    rate_limit_key: str = setting("jobqueue:rate_limit:producer", text())


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """When a worker stops taking the jobs of a queue."""

    failure_threshold: float = setting(0.5, share())
    window: timedelta = setting("1m", span())
    cooldown_period: timedelta = setting("30s", span())
    min_samples: int = setting(20, whole(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Traces."""

    enabled: bool = setting(default=False, kind=switch())
    endpoint: str = setting("", text(empty=True), mask=without_password)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observability:
    """What others see of the process."""

    host: str = setting("127.0.0.1", text())
    metrics_port: int = setting(9090, whole(1, 65535))
    log_level: str = setting("info", choice("debug", "info", "warn", "warning", "error"))
    queue_sample_interval: timedelta = setting("2s", span())
    tracing: Tracing = field(default_factory=Tracing)


def _tokens() -> Kind:
    """Tokens of the HTTP API by name; in an environment variable as YAML or JSON has them."""

    def read(value: object) -> dict[str, Mapping[str, object]]:
        if not isinstance(value, Mapping) or not all(
            isinstance(name, str) and name for name in value
        ):
            raise Refused("must be tokens by names; `scheduler web-token NAME` makes one")
        try:
            return {sendable(name): Token.of(name, said).plain() for name, said in value.items()}
        except ConfigError as error:
            raise Refused(str(error)) from None

    return Kind(read, structured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    """The HTTP API and the dashboard."""

    host: str = setting("127.0.0.1", text())
    port: int = setting(8080, whole(1, 65535))
    rate_limit_per_sec: int = setting(50, whole(0, 100_000))
    tokens: Mapping[str, Mapping[str, object]] = setting({}, _tokens())


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSection:
    """The arguments of `Scheduler`."""

    database: str | None = setting(
        None, dsn("database"), mask=_dsn, also=("SCHEDULER_DATABASE_URL", "DATABASE_URL")
    )
    schema: str = setting(DEFAULTS["schema"], option("schema"))
    tenants: Tenants = setting(DEFAULTS["tenants"], option("tenants", tenants))
    sync_every: timedelta = setting(DEFAULTS["sync_every"], lasting("sync_every"))
    lease: timedelta = setting(DEFAULTS["lease"], lasting("lease"))
    max_workers: int = setting(DEFAULTS["max_workers"], option("max_workers", number))
    label: str | None = setting(DEFAULTS["label"], option("label"))
    app: str | None = setting(DEFAULTS["app"], option("app"))
    version: int | None = setting(DEFAULTS["version"], option("version", number))
    migrate: bool = setting(DEFAULTS["migrate"], option("migrate", switch().plain))
    listen: str | bool | None = setting(DEFAULTS["listen"], listening(), mask=_dsn)
    prepare: bool = setting(DEFAULTS["prepare"], option("prepare", switch().plain))
    max_payload: int = setting(DEFAULTS["max_payload"], option("max_payload", number))
    retention: timedelta | None = setting(DEFAULTS["retention"], optional(lasting("retention")))
    callback_secret: str | None = setting(None, option("callback_secret"), mask=hidden)
    callback_private: bool = setting(
        DEFAULTS["callback_private"], option("callback_private", switch().plain)
    )
    grace: timedelta = setting("30s", span())


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """All of it. `queues`: the dialect of each queue that is not `standard`."""

    scheduler: SchedulerSection = field(default_factory=SchedulerSection)
    redis: Redis = field(default_factory=Redis)
    queues: Mapping[str, Mapping[str, str]] = setting(
        DEFAULTS["queues"], option("queues", structured)
    )
    worker: Worker = field(default_factory=Worker)
    reaper: Reaper = field(default_factory=Reaper)
    producer: Producer = field(default_factory=Producer)
    circuit_breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    observability: Observability = field(default_factory=Observability)
    web: Web = field(default_factory=Web)
