"""The command line: `scheduler up`, `scheduler migrate`. What goes wrong is one line on stderr, never a traceback."""

import contextlib
import json
import math
from collections.abc import Iterator

import click

from scheduler.cli.dsn import without_secrets
from scheduler.cli.up import Up
from scheduler.config import checked_schema
from scheduler.errors import ConfigError, SchedulerError, StoreError, StoreUnavailable
from scheduler.store import schema as store_schema
from scheduler.store.engine import Database

DATABASE = "SCHEDULER_DATABASE_URL"


class Failure(click.ClickException):
    """An error of ours, in one line; the exit code is 1."""

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        """Say it on stderr."""
        click.echo(f"scheduler: {self.message}", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="singleton-scheduler", prog_name="scheduler")
def cli() -> None:
    """Register jobs in every instance of your app; each fire runs once. Postgres decides."""


@cli.command(short_help="Watch sample jobs of two tenants fire, on servers of its own.")
@click.option("--for", "seconds", type=click.FloatRange(min=0, min_open=True), help="End after so many seconds.")
@click.option(
    "--database",
    metavar="DSN",
    envvar=DATABASE,
    help=f"Use this Postgres, schema scheduler_up, not an embedded one. [{DATABASE}]",
)
def up(seconds: float | None, database: str | None) -> None:
    """Start Postgres and Redis out of wheels, and a scheduler with sample jobs of two tenants; watch them fire.

    Ctrl-C ends it. Run it again in a second terminal: both share one database, and each fire still runs once.
    """
    if seconds is not None and math.isnan(seconds):
        raise click.BadParameter("must be a number of seconds", param_hint="--for")
    with _one_line(database):
        Up(_given(database), seconds=seconds).run()


@cli.command(short_help="Bring the tables to the version of this package.")
@click.option(
    "--database",
    metavar="DSN",
    envvar=[DATABASE, "DATABASE_URL"],
    help=f"The Postgres to migrate. [{DATABASE}, DATABASE_URL]",
)
@click.option("--schema", metavar="NAME", default="scheduler", show_default=True, help="The Postgres schema.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def migrate(database: str | None, schema: str, *, as_json: bool) -> None:
    """Bring the tables to the version of this package, and print the versions before and after.

    Twenty deploys may run it at once; one that finds nothing to do changes nothing.
    """
    with _one_line(database):
        given = _given(database)
        if given is None:
            raise click.UsageError(f"name a database: --database DSN, or set {DATABASE}")
        tables = Database.open(given, schema=checked_schema(schema), prepare=False)
        try:
            before, after = store_schema.migrate(tables)
        finally:
            tables.close()
    if as_json:
        click.echo(json.dumps({"schema": schema, "before": before, "after": after}))
    else:
        click.echo(f"schema {schema}: version {before} -> {after}{'' if before != after else ' (nothing to do)'}")


def _given(database: str | None) -> str | None:
    if database is not None and not database.strip():
        raise ConfigError("database: is empty; pass a DSN like postgresql://user@host/app")
    return database


@contextlib.contextmanager
def _one_line(database: str | None) -> Iterator[None]:
    try:
        yield
    except SchedulerError as error:
        message = " ".join(without_secrets(str(error), database).split())
        if type(error) in (StoreError, StoreUnavailable) and database is not None:
            message += f"; is the server up, and is --database (or {DATABASE}) right?"
        raise Failure(message) from None
