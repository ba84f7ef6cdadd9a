"""The database that a command is given: its options, opened and closed, and one line for what goes wrong."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from scheduler.cli.dsn import without_secrets
from scheduler.cli.show import Failure, visible
from scheduler.config import checked_schema
from scheduler.errors import ConfigError, SchedulerError, StoreError, StoreUnavailable
from scheduler.store.engine import Database

DATABASE = "SCHEDULER_DATABASE_URL"
VARIABLES = ("SCHEDULER_DATABASE", DATABASE, "DATABASE_URL")  # those of `scheduler run`

F = TypeVar("F", bound=Callable[..., Any])


def database_options(command: F) -> F:
    """Give a command `--database`, `--schema` and `--json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else."),
        click.option("--schema", metavar="NAME", default="scheduler", show_default=True, help="The Postgres schema."),
        click.option(
            "--database",
            metavar="DSN",
            envvar=VARIABLES,
            help=f"The Postgres to use. [{', '.join(VARIABLES)}]",
        ),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def opened(database: str | None, schema: str) -> Iterator[Database]:
    """Open the tables without starting anything, and close them; inside, every error is one line."""
    with one_line(database):
        dsn = given(database)
        if dsn is None:
            raise click.UsageError(f"name a database: --database DSN, or set {DATABASE}")
        tables = Database.open(dsn, schema=checked_schema(schema), prepare=False)
        try:
            yield tables
        finally:
            tables.close()


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
