"""The command line, put together. What goes wrong is one line on stderr, never a traceback."""

import math
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from scheduler.cli import bench, doctor, inspect, jobs, queues, run, web
from scheduler.cli.database import (
    DATABASE,
    config_option,
    database_options,
    given,
    one_line,
    opened,
    read,
)
from scheduler.cli.options import Configuration
from scheduler.cli.show import emit_json
from scheduler.store import schema as store_schema

INTERRUPTED = 130


class Quiet(click.Group):
    """A group whose commands Ctrl-C ends without a word."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


@click.group(cls=Quiet, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="singleton-scheduler", prog_name="scheduler")
def cli() -> None:
    """Register jobs in every instance of your app; each fire runs once. Postgres decides."""


@cli.command(short_help="Watch sample jobs of two tenants fire, on servers of its own.")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="End after so many seconds.",
)
@click.option(
    "--database",
    metavar="DSN",
    envvar=DATABASE,
    help=f"Use this Postgres, schema scheduler_up, not an embedded one. [{DATABASE}]",
)
@config_option
def up(seconds: float | None, database: str | None, path: Path) -> None:
    """Start an embedded Postgres and Redis and a scheduler with sample jobs, and show the fires.

    Ctrl-C ends it. Run it again in a second terminal: both share one database, and each fire still
    runs once. Sections observability and web of the configuration apply; ports that are not
    configured are the defaults, or free ones if those are in use.

    Example: scheduler up --for 60
    """
    if seconds is not None and math.isnan(seconds):
        raise click.BadParameter("must be a number of seconds", param_hint="--for")
    from scheduler.cli.up import Up  # noqa: PLC0415 - its samples have handlers, which are no worker's but its own

    config = read(path)
    with one_line(database):
        Up(given(database), config, seconds=seconds).run()


@cli.command(short_help="Bring the tables to the version of this package.")
@database_options
def migrate(config: Configuration, *, as_json: bool) -> None:
    """Bring the tables to the version of this package, and print the versions before and after.

    Twenty deploys may run it at once; one that finds nothing to do changes nothing.

    Example: scheduler migrate --database postgresql://localhost/app
    """
    schema = config.scheduler.schema
    with opened(config) as tables:
        before, after = store_schema.migrate(tables)
    if as_json:
        emit_json({"schema": schema, "before": before, "after": after})
    else:
        click.echo(
            f"schema {schema}: version {before} -> "
            f"{after}{'' if before != after else ' (nothing to do)'}"
        )


@cli.command(short_help="Print what makes your shell complete our commands.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete commands and options; source it, or put it where
    SHELL looks.

    Example: scheduler completion bash > ~/.local/share/bash-completion/completions/scheduler
    """
    made = get_completion_class(shell)
    if made is not None:
        click.echo(made(cli, {}, "scheduler", "_SCHEDULER_COMPLETE").source())


for group in (inspect, jobs, doctor, bench, queues, run, web):
    for command in group.COMMANDS:
        cli.add_command(command)
