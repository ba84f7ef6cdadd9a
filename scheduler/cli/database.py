"""What commands share: the configuration with the flags over it, the database opened, one line for
what goes wrong.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from scheduler.cli.configuration import Effective, effective
from scheduler.cli.dsn import without_secrets
from scheduler.cli.kinds import addresses
from scheduler.cli.options import Configuration
from scheduler.cli.rules import broken
from scheduler.cli.show import Failure, visible
from scheduler.config import checked_schema
from scheduler.errors import ConfigError, SchedulerError, StoreError, StoreUnavailable
from scheduler.store.engine import Database

DATABASE = "SCHEDULER_DATABASE_URL"
VARIABLES = ("SCHEDULER_DATABASE", DATABASE, "DATABASE_URL")  # those of `scheduler run`
USUAL = Path("scheduler.yaml")

F = TypeVar("F", bound=Callable[..., Any])


class Misconfigured(Failure):
    """A configuration that cannot be; one line for each thing that is wrong, and exit code 2."""

    exit_code = 2

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        """Say it on stderr."""
        for line in self.message.splitlines():
            click.echo(f"scheduler: {visible(line)}", err=True)


config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    default=USUAL,
    show_default=True,
    metavar="PATH",
    help="The YAML file; it may be missing. Environment variables win over it.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else."
)
redis_option = click.option(
    "--redis",
    metavar="URL",
    help="The Redis to use. [SCHEDULER_REDIS_ADDR, REDIS_ADDR, REDIS_URL, redis.addr]",
)


def database_options(command: F) -> F:
    """Give a command `--database`, `--schema`, `--config` and `--json`; it is called with the
    `config` that holds.

    A flag wins over an environment variable, and that over the file. A command may also have
    `redis_option`.
    """

    @wraps(command)
    def configured(
        *args: Any, path: Path, database: str | None, schema: str | None, **rest: Any
    ) -> Any:
        config = read(path).values
        flags: dict[str, Any] = {
            name: flag
            for name, flag in (("database", database), ("schema", schema))
            if flag is not None
        }
        config = replace(config, scheduler=replace(config.scheduler, **flags))
        if "redis" in rest:
            config = _with_redis(config, rest.pop("redis"))
            config = replace(
                config, redis=replace(config.redis, max_retries=0)
            )  # a person waits for it
        return command(*args, config=config, **rest)

    given_options = (
        json_option,
        config_option,
        click.option(
            "--schema",
            metavar="NAME",
            help="The Postgres schema. [SCHEDULER_SCHEMA, default: scheduler]",
        ),
        click.option(
            "--database", metavar="DSN", help=f"The Postgres to use. [{', '.join(VARIABLES)}]"
        ),
    )
    for option in given_options:
        configured = option(configured)
    return configured  # type: ignore[return-value]


def read(path: Path) -> Effective:
    """Read the configuration, as `scheduler run` does."""
    if path != USUAL and not os.access(
        path, os.F_OK
    ):  # of a path that cannot be, `Path.exists` raises
        click.echo(
            f"scheduler: there is no {path}: defaults, and what the environment says", err=True
        )
    try:
        found = effective(path)
    except ConfigError as error:
        raise Misconfigured(str(error)) from None
    for warning in found.warnings:
        click.echo(f"scheduler: warning: {warning}", err=True)
    return found


@contextlib.contextmanager
def opened(config: Configuration) -> Iterator[Database]:
    """Open the tables without starting anything, and close them; inside, every error is one
    line.
    """
    with one_line(config.scheduler.database):
        tables = Database.open(
            named(config), schema=checked_schema(config.scheduler.schema), prepare=False
        )
        try:
            yield tables
        finally:
            tables.close()


def named(config: Configuration) -> str:
    """Return the DSN; a command starts no server of its own."""
    dsn = given(config.scheduler.database)
    if dsn is None:
        raise click.UsageError(
            f"name a database: --database DSN, or set {DATABASE}, or scheduler.database in {USUAL}"
        )
    return dsn


def given(database: str | None) -> str | None:
    """Check that a DSN which was given says anything."""
    if database is not None and not database.strip():
        raise ConfigError("database: is empty; pass a DSN like postgresql://user@host/app")
    return database


@contextlib.contextmanager
def one_line(database: str | None) -> Iterator[None]:
    """Turn our errors into a `Failure`, without the passwords of the DSN."""
    try:
        yield
    except SchedulerError as error:
        message = visible(" ".join(without_secrets(str(error), database).split()))
        if type(error) in (StoreError, StoreUnavailable) and database is not None:
            message += f"; is the server up, and is --database (or {DATABASE}) right?"
        raise Failure(message) from None


def _with_redis(config: Configuration, redis: str | None) -> Configuration:
    if redis is None:
        return config
    try:
        config = replace(config, redis=replace(config.redis, addr=addresses().read(redis)))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--redis") from None
    if wrong := broken(config):
        raise Misconfigured("\n".join(wrong))
    return config
