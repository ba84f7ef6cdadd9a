"""The commands that run roles out of a configuration, and the one that shows it."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import click
from rich.text import Text

from scheduler.cli.configuration import DEFAULT
from scheduler.cli.database import Misconfigured, config_option, json_option, read
from scheduler.cli.dsn import without_secrets
from scheduler.cli.options import Configuration
from scheduler.cli.roles import ROLES, run, work
from scheduler.cli.show import Failure, emit, emit_json, listing, screen, visible
from scheduler.errors import ConfigError, SchedulerError

app_option = click.option(
    "--app",
    metavar="MODULE[:FUNCTION]",
    help="Import this module of yours, for its handlers. FUNCTION is called with the scheduler, to "
    "register recurring"
    " jobs, in the roles scheduler and all; a worker only imports the module.",
)


@click.command(
    "run", short_help="Run a role: scheduler, producer, worker, or all of them in one process."
)
@click.option("--role", type=click.Choice(ROLES), required=True, help="What this process is.")
@config_option
@app_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print what a producer did as one JSON document."
)
def run_role(role: str, path: Path, app: str | None, *, as_json: bool) -> None:
    """Run a role until SIGTERM or SIGINT; a producer until it has seen every file.

    A second signal ends it at once.

    Example: scheduler run --role=scheduler --app shop.jobs:register
    """
    if app is not None and role == "producer":
        raise click.BadParameter(
            "a producer runs nothing of yours; leave it out", param_hint="--app"
        )
    if as_json and role != "producer":
        raise click.BadParameter("only a producer has something to print", param_hint="--json")
    with configured(path) as config:
        run(role, config, app, as_json=as_json)


@click.command(short_help="Run a worker of some queues.")
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; may be repeated."
)
@config_option
@app_option
def worker(queues: tuple[str, ...], path: Path, app: str | None) -> None:
    """Run the handlers of an app on jobs from Redis until SIGTERM or SIGINT: of all its queues, or
    of some.

    A second signal ends it at once.

    Example: scheduler worker --app shop.jobs --queue mail
    """
    with configured(path) as config:
        work(config, app, queues or None)


@click.group("config", short_help="Look at the configuration.")
def config_group() -> None:
    """Look at the configuration."""


@config_group.command(short_help="Print every key with its value, and where that comes from.")
@config_option
@json_option
def show(path: Path, *, as_json: bool) -> None:
    """Print every key with its value, and where that comes from: default, file, or an environment
    variable.

    Example: scheduler config show --config /etc/scheduler.yaml
    """
    found = read(path)
    if as_json:
        emit_json(
            {key.name: {"value": value, "origin": origin} for key, value, origin in found.rows()}
        )
        return
    rows = [
        [
            Text(key.name),
            Text(_written(value)),
            Text(origin, style="quiet" if origin == DEFAULT else "accent"),
        ]
        for key, value, origin in found.rows()
    ]
    place = screen()
    emit(listing(("KEY", "VALUE", "FROM"), rows, folds={"VALUE": 20}, place=place), place)


COMMANDS = (run_role, worker, config_group)


@contextlib.contextmanager
def configured(path: Path) -> Iterator[Configuration]:
    """Read the configuration; inside, every error of ours is one line."""
    config = read(path).values
    try:
        yield config
    except SchedulerError as error:
        said = without_secrets(str(error), config.scheduler.database)
        raise (Misconfigured if isinstance(error, ConfigError) else Failure)(
            visible(" ".join(said.split()))
        ) from None


def _written(value: object) -> str:
    if value is None or value == "":
        return "-"
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
