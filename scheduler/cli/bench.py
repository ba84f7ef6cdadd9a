"""The command that measures the configured servers."""

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from scheduler.cli import rules
from scheduler.cli.database import database_options, named, one_line, redis_option
from scheduler.cli.measure import PHASES, Figure, Scratch, measure
from scheduler.cli.options import Configuration
from scheduler.cli.show import emit, emit_json, listing, screen
from scheduler.config import checked_settings
from scheduler.errors import ConfigError

MILLISECONDS = 1000
HEADS = ("WHAT", "JOBS/S", "P50", "P99")


@click.command(short_help="Measure the configured servers, in a schema and a queue of its own.")
@click.option(
    "--jobs",
    "count",
    type=click.IntRange(10, 10_000),
    default=1000,
    show_default=True,
    help="How many.",
)
@redis_option
@database_options
def bench(count: int, config: Configuration, *, as_json: bool) -> None:
    """Submit, feed and work jobs that do nothing, in a schema and a queue of its own, and print how
    fast it went.

    Both are removed at the end; no other job is touched. The role needs the right to make a schema.

    Example: scheduler bench --jobs 5000
    """
    place = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        one_line(config.scheduler.database),
        Progress(*columns, console=place, transient=True, disable=not place.is_terminal) as bar,
    ):
        settings = checked_settings(named(config), rules.scheduler_options(config))
        if settings.redis is None:
            raise ConfigError("redis.addr: must not be empty; bench measures Redis too")
        task = bar.add_task("", total=len(PHASES))
        scratch = Scratch(named(config), settings.redis, settings.prepare, settings.listen)
        figures = list(
            measure(scratch, count, lambda what: bar.update(task, description=what, advance=1))
        )
    if as_json:
        emit_json(
            {
                "jobs": count,
                "figures": {each.name.replace(" ", "_"): _facts(each) for each in figures},
            }
        )
    else:
        where = screen()
        emit(listing(HEADS, [_cells(each) for each in figures], folds={}, place=where), where)


def _facts(figure: Figure) -> dict[str, float]:
    if figure.per_second is not None:
        return {"per_second": round(figure.per_second, 1)}
    times = {"p50_seconds": figure.p50, "p99_seconds": figure.p99}
    return {name: time.total_seconds() for name, time in times.items() if time is not None}


def _cells(figure: Figure) -> list[Text]:
    rate = "-" if figure.per_second is None else f"{figure.per_second:,.0f}"
    times = [
        "-" if time is None else f"{time.total_seconds() * MILLISECONDS:.2f} ms"
        for time in (figure.p50, figure.p99)
    ]
    return [Text(figure.name, style="bold"), Text(rate), *map(Text, times)]


COMMANDS = (bench,)
