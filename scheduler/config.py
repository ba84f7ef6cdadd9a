"""Settings: what a scheduler is constructed with, checked; every error names its key."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, TypedDict

from scheduler.errors import ConfigError, InvalidName
from scheduler.model.addresses import RedisOptions
from scheduler.model.durations import duration
from scheduler.model.labels import checked_queue
from scheduler.model.payloads import DEFAULT_LIMIT, LARGEST_LIMIT
from scheduler.model.reaper import ReaperRule
from scheduler.model.texts import name, storable

if TYPE_CHECKING:
    from sqlalchemy import Engine

LONGEST_SCHEMA = 63
SHORTEST_SECRET = 16
MAX_VERSION = 2**63 - 1
DIALECTS: Mapping[
    str, Mapping[str, Sequence[str]]
] = {  # what each may be told, and the values if not any text
    "standard": {},
    "reliable": {},
    "bullmq": {"prefix": (), "compat": ("auto", "5", "6")},
    "conveyor": {"keys": ("seed", "upstream"), "namespace": ()},
}

Tenants = Literal["registered", "all"] | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of `Scheduler`, checked; no label means host and process id, no database the
    environment's.
    """

    database: "str | Engine | None"
    redis: RedisOptions | None
    queues: Mapping[str, Mapping[str, str]]
    schema: str
    tenants: Tenants
    sync_every: timedelta
    lease: timedelta
    max_workers: int
    label: str | None
    app: str | None
    version: int | None
    migrate: bool
    listen: str | bool
    prepare: bool
    max_payload: int
    retention: timedelta | None
    callback_secret: str | None = field(repr=False)
    callback_private: bool
    reaper: ReaperRule
    loop: asyncio.AbstractEventLoop | None


class SchedulerOptions(TypedDict, total=False):
    """The options of `Scheduler` and `initialise`; each is explained there."""

    redis: str | RedisOptions | None
    queues: Mapping[str, Mapping[str, str]]
    schema: str
    tenants: Tenants
    sync_every: timedelta | str
    lease: timedelta | str
    max_workers: int
    label: str | None
    app: str | None
    version: int | None
    migrate: bool
    listen: str | bool | None
    prepare: bool
    max_payload: int
    retention: timedelta | str | None
    callback_secret: str | None
    callback_private: bool
    reaper: ReaperRule
    loop: asyncio.AbstractEventLoop | None


DEFAULTS: SchedulerOptions = {
    "redis": None,
    "queues": {},
    "schema": "scheduler",
    "tenants": "registered",
    "sync_every": "1m",
    "lease": "30s",
    "max_workers": 16,
    "label": None,
    "app": None,
    "version": None,
    "migrate": True,
    "listen": None,
    "prepare": True,
    "max_payload": DEFAULT_LIMIT,
    "retention": "30d",
    "callback_secret": None,
    "callback_private": False,
    "reaper": ReaperRule(),
    "loop": None,
}


ALL = f"there are {', '.join(DEFAULTS)}"


def checked_settings(database: object, options: SchedulerOptions) -> Settings:
    """Check every setting before anything is started."""
    for unknown in set(options) - set(DEFAULTS):
        near = get_close_matches(unknown, DEFAULTS, n=1)
        raise ConfigError(
            f"{unknown}: there is no such option; " + (f"did you mean {near[0]}?" if near else ALL)
        )
    given: dict[str, object] = {**DEFAULTS, **options}
    prepare, retention = _switch(given["prepare"], name="prepare"), given["retention"]
    return Settings(
        database=_database(database),
        redis=_redis(given["redis"]),
        queues=checked_queues(given["queues"]),
        schema=checked_schema(given["schema"]),
        tenants=_tenants(given["tenants"]),
        sync_every=duration(given["sync_every"], name="sync_every", error=ConfigError),
        lease=_lease(given["lease"]),
        max_workers=_workers(given["max_workers"]),
        label=_label(given["label"]),
        app=_app(given["app"]),
        version=_version(given["version"]),
        migrate=_switch(given["migrate"], name="migrate"),
        listen=_listen(given["listen"], prepare=prepare),
        prepare=prepare,
        max_payload=_bytes(given["max_payload"]),
        retention=None
        if retention is None
        else duration(retention, name="retention", error=ConfigError),
        callback_secret=_secret(given["callback_secret"]),
        callback_private=_switch(given["callback_private"], name="callback_private"),
        reaper=_reaper(given["reaper"]),
        loop=_loop(given["loop"]),
    )


def checked_schema(schema: object) -> str:
    """Check the name of the Postgres schema; it is quoted wherever it is used."""
    if not isinstance(schema, str) or not schema or not schema.isprintable():
        raise ConfigError(f"schema: must be a printable text, not {schema!r}")
    if len(schema.encode(errors="replace")) > LONGEST_SCHEMA or schema.startswith("pg_"):
        raise ConfigError(
            f"schema: must be at most {LONGEST_SCHEMA} bytes and not begin with pg_, not "
            f"{schema[:80]!r}"
        )
    return schema


def _database(database: object) -> "str | Engine | None":
    if isinstance(database, str) and not database.strip():
        raise ConfigError("database: is empty; pass a DSN like postgresql://user@host/app, or None")
    if database is None or isinstance(database, str) or hasattr(database, "pool"):
        return database  # type: ignore[return-value]
    raise ConfigError(
        f"database: must be a DSN, a SQLAlchemy Engine or None, not {type(database).__name__}"
    )


def _redis(redis: object) -> RedisOptions | None:
    if redis is None or isinstance(redis, RedisOptions):
        return redis
    return RedisOptions.of(redis)


def checked_queues(queues: object, *, name: str = "queues") -> dict[str, Mapping[str, str]]:
    """Read which dialect each queue has, and what that is told."""
    if not isinstance(queues, Mapping):
        raise ConfigError(
            f'{name}: must be a dict like {{"mail": {{"dialect": "bullmq"}}}}, not {queues!r}'
        )
    found: dict[str, Mapping[str, str]] = {}
    for queue, options in queues.items():
        try:
            label = checked_queue(queue)
        except InvalidName as error:
            raise ConfigError(f"{name}: {error}") from None
        dialect = str(options.get("dialect", "standard")) if isinstance(options, Mapping) else ""
        known = DIALECTS.get(dialect)
        if known is None or set(options) - {"dialect", *known}:
            named = ", ".join(DIALECTS)
            more = f"; {dialect} also has {', '.join(known)}" if known else ""
            raise ConfigError(
                f'{name}: {label!r} must be like {{"dialect": "bullmq"}}; dialects are '
                f"{named}{more}"
            )
        for option, values in known.items():
            value = options.get(option, values[0] if values else "auto")
            if not isinstance(value, str) or not value or (values and value not in values):
                wanted = f"one of {', '.join(values)}" if values else "a text"
                raise ConfigError(f"{name}: {option} of {label!r} must be {wanted}, not {value!r}")
        found[label] = {"dialect": dialect, **options}
    return found


def _listen(listen: object, *, prepare: bool) -> str | bool:
    if listen is None:
        return prepare
    if not isinstance(listen, str | bool) or listen == "":
        raise ConfigError(f"listen: must be a DSN, True, False or None, not {listen!r}")
    return listen


def _bytes(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_LIMIT:
        raise ConfigError(
            f"max_payload: must be a number of bytes from 1 to {LARGEST_LIMIT}, not {limit!r}"
        )
    return limit


def _secret(secret: object) -> str | None:
    """Check what callbacks are signed with; it is never part of a message."""
    if secret is None:
        return None
    if not isinstance(secret, str) or len(secret) < SHORTEST_SECRET:
        raise ConfigError(
            f"callback_secret: must be a text of at least {SHORTEST_SECRET} characters, like"
            " secrets.token_urlsafe(32), that the receivers of callbacks know too"
        )
    return secret


def _loop(loop: object) -> asyncio.AbstractEventLoop | None:
    if loop is None or isinstance(loop, asyncio.AbstractEventLoop):
        return loop
    raise ConfigError(
        f"loop: must be an asyncio loop, like asyncio.get_running_loop(), not {type(loop).__name__}"
    )


def _reaper(reaper: object) -> ReaperRule:
    if not isinstance(reaper, ReaperRule):
        raise ConfigError(f"reaper: must be a scheduler.ReaperRule, not {type(reaper).__name__}")
    return reaper


def _switch(value: object, *, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: must be True or False, not {value!r}")
    return value


def _tenants(tenants: object) -> Tenants:
    if tenants in ("registered", "all"):
        return tenants
    if isinstance(tenants, str) or not isinstance(tenants, Iterable):
        raise ConfigError(
            f'tenants: must be "registered", "all" or a list of names, not {tenants!r}'
        )
    try:
        return [name(tenant, what="tenant") for tenant in tenants]
    except InvalidName as error:
        raise ConfigError(f"tenants: {error}") from None


def _lease(lease: object) -> timedelta:
    value = duration(lease, name="lease", error=ConfigError)
    if not timedelta(milliseconds=500) <= value <= timedelta(hours=1):
        raise ConfigError(f"lease: must be between 500ms and 1h, not {lease!r}")
    return value


def _workers(workers: object) -> int:
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= 10_000:
        raise ConfigError(f"max_workers: must be a number from 1 to 10000, not {workers!r}")
    return workers


def _app(app: object) -> str | None:
    if app is None:
        return None
    try:
        return name(app, what="app:")
    except InvalidName as error:
        raise ConfigError(str(error)) from None


def _version(version: object) -> int | None:
    if version is None:
        return None
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= MAX_VERSION:
        raise ConfigError(
            f"version: must be a whole number from 0 to {MAX_VERSION}, not {version!r}"
        )
    return version


def _label(label: object) -> str | None:
    if label is None:
        return None
    if not isinstance(label, str) or not label:
        raise ConfigError(f"label: must be a text, not {label!r}")
    return storable(label, 200)
