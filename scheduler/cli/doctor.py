"""The command that looks at the servers, the tables and the queues, and says what is wrong."""

from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from scheduler.cli import rules
from scheduler.cli.database import database_options, named, one_line, redis_option
from scheduler.cli.dsn import without_secrets
from scheduler.cli.options import Configuration
from scheduler.cli.show import emit, emit_json, pairs, screen, visible
from scheduler.config import checked_settings
from scheduler.doctor import CHECKS, Finding, Severity, examine

STYLES = {Severity.FAULT: "failure", Severity.WARNING: "warning", Severity.NOTE: "quiet"}


@click.command(short_help="Look for what is wrong: Postgres, tables, Redis, queues.")
@redis_option
@database_options
def doctor(config: Configuration, *, as_json: bool) -> None:
    """Look at Postgres, the tables, Redis and its queues, and say what is wrong, what it means, and
    the cure.

    It only reads, in a few seconds. Exit code 1: there are faults or warnings.

    Example: scheduler doctor --json
    """
    with one_line(config.scheduler.database):
        dsn = named(config)
        settings = checked_settings(dsn, rules.scheduler_options(config))
        found = sorted(examine(dsn, settings), key=lambda each: [*Severity].index(each.severity))
    if as_json:
        emit_json(
            {
                "checks": len(CHECKS),
                "findings": [{**asdict(each), "seen": _seen(each, dsn)} for each in found],
            }
        )
    else:
        emit(_shown(found, dsn), screen())
    if any(each.severity is not Severity.NOTE for each in found):
        raise SystemExit(1)


def _shown(found: Sequence[Finding], dsn: str) -> RenderableType:
    bad = sum(each.severity is not Severity.NOTE for each in found)
    end = Text(
        f"{len(CHECKS)} checks: {f'{bad} findings' if bad else 'all is well'}",
        style="" if bad else "success",
    )
    return Group(*(_block(each, dsn) for each in found), end)


def _block(each: Finding, dsn: str) -> RenderableType:
    head = Text(f"{each.severity} ", style=STYLES[each.severity]) + Text(each.check, style="bold")
    told = [("seen", visible(_seen(each, dsn))), ("means", each.means), ("cure", each.cure)]
    return Padding(
        Group(head, Padding(pairs((label, Text(text)) for label, text in told), (0, 0, 0, 2))),
        (0, 0, 1, 0),
    )


def _seen(each: Finding, dsn: str) -> str:
    return " ".join(without_secrets(each.seen, dsn).split())


COMMANDS = (doctor,)
