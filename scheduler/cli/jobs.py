"""Commands about submitted jobs: on the tables, and what Redis knows of those under way; no
instance needs to run.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.panel import Panel
from rich.text import Text

from scheduler.cli import rules
from scheduler.cli.database import database_options, opened, redis_option
from scheduler.cli.job_cells import FIND_FOLDS, FIND_HEADS, found_cells, job_facts, timeline
from scheduler.cli.options import Configuration
from scheduler.cli.show import emit, emit_json, listing, on_terminal, pairs, screen, visible
from scheduler.config import Settings, checked_settings
from scheduler.dialects.client import Client
from scheduler.errors import LifecycleError
from scheduler.events import Event
from scheduler.model.labels import Priority
from scheduler.model.states import State
from scheduler.queueing.admin import Queues
from scheduler.queueing.calls import QueueCalls
from scheduler.queueing.ledger import alone
from scheduler.queueing.ring import Ring
from scheduler.store import schema as store_schema
from scheduler.store.engine import Database
from scheduler.store.job_queue import QueueTable
from scheduler.store.ring import RingTable
from scheduler.store.steps import Databases, run

payload_option = click.option(
    "--payload", "with_payload", is_flag=True, help="Print payload and result too."
)


class Calls(QueueCalls):
    """The calls about submitted jobs, without an instance: nothing is fed or settled here."""

    def __init__(self, settings: Settings, tables: Database, ring: Ring | None) -> None:
        self.settings = settings
        self._tables = Databases(tables, tables)
        self._redis = ring

    def _queue(self) -> tuple[Databases, QueueTable, int]:
        return (
            self._tables,
            QueueTable(self.settings.schema, lambda: None),
            self.settings.max_payload,
        )

    def _ring(self) -> Ring | None:
        return self._redis

    def _queues(self) -> Queues:
        raise LifecycleError("queues have commands of their own")

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Refuse: nothing happens in this process."""
        raise LifecycleError(f"there are no events without an instance, for {listener}")


@click.command(short_help="Print a submitted job: its state, and what became of each attempt.")
@click.argument("tenant")
@click.argument("job_id", metavar="ID")
@payload_option
@redis_option
@database_options
def get(
    tenant: str, job_id: str, config: Configuration, *, with_payload: bool, as_json: bool
) -> None:
    """Print the job ID of TENANT, live or ended: its state, and what became of each attempt.

    Example: scheduler get acme 3f1e9c5a-6a0f-4a51-9d0f-0d6a4a6f2f10 --payload
    """
    with calls(config) as jobs:
        job = jobs.get(tenant, job_id)
    if as_json:
        emit_json(job_facts(job, with_payload=with_payload))
        return
    told = pairs(timeline(job, with_payload=with_payload))
    title = Text(f" {visible(job.tenant)}/{job.id} ", style="title")
    framed = (
        Panel(told, title=title, title_align="left", border_style="quiet")
        if on_terminal()
        else told
    )
    emit(framed, screen())


@click.command(short_help="List submitted jobs, by state, queue, type or tag.")
@click.argument("tenant")
@click.option(
    "--state",
    "states",
    type=click.Choice([each.value for each in State]),
    multiple=True,
    help="In this state; may be repeated.",
)
@click.option("--queue", metavar="NAME", help="Of this queue.")
@click.option("--type", "type_", metavar="TYPE", help="Of this type.")
@click.option("--tag", metavar="NAME[=VALUE]", help="With this tag, or this value of it.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many at most."
)
@click.option("--cursor", metavar="TEXT", help="Go on where an earlier page ended.")
@payload_option
@redis_option
@database_options
def find(
    tenant: str,
    states: tuple[str, ...],
    type_: str | None,
    tag: str | None,
    config: Configuration,
    *,
    with_payload: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """List the submitted jobs of TENANT: live ones, newest first, then those that ended, the last
    to end first.

    Example: scheduler find acme --state failed --state dead_letter --queue mail
    """
    label, has_value, value = (tag or "").partition("=")
    wanted: str | Mapping[str, str] | None = {label: value} if has_value else tag
    with calls(config) as jobs:
        page = jobs.find(
            tenant,
            state=[State(each) for each in states] or None,
            type=type_,
            tag=wanted,
            **filters,
        )
    if as_json:
        told = [job_facts(job, with_payload=with_payload) for job in page.jobs]
        emit_json({"jobs": told, "cursor": page.cursor})
        return
    if not page.jobs:
        emit(Text(f"no such job of tenant {visible(tenant)}"), screen())
    else:
        rows = [found_cells(job, with_payload=with_payload) for job in page.jobs]
        heads = (*FIND_HEADS, "PAYLOAD") if with_payload else FIND_HEADS
        place = screen()
        emit(listing(heads, rows, folds=FIND_FOLDS, place=place), place)
    if page.cursor:
        click.echo(f"scheduler: there are more: --cursor {page.cursor}", err=True)


@click.command(short_help="Submit a one-shot job.")
@click.argument("tenant")
@click.argument("type_", metavar="TYPE")
@click.option(
    "--queue", metavar="NAME", default="default", show_default=True, help="Through which queue."
)
@click.option(
    "--payload",
    metavar="JSON|@FILE|-",
    default="null",
    help="The payload: JSON, a file of it, or stdin.",
)
@click.option(
    "--priority",
    type=click.Choice([each.name.lower() for each in Priority]),
    default="normal",
    show_default=True,
    help="Who goes first.",
)
@click.option(
    "--run-at",
    metavar="INSTANT",
    help="Not before then: ISO 8601 with a zone, as 2030-01-31T06:00:00Z.",
)
@click.option("--delay", metavar="SPAN", help='Not before so long from now, as "15m".')
@click.option(
    "--key", metavar="TEXT", help="Its idempotency key: within a day, the same is one job."
)
@click.option(
    "--tag", "tags", metavar="NAME=VALUE", multiple=True, help="A label of yours; may be repeated."
)
@click.option(
    "--after",
    metavar="ID",
    multiple=True,
    help="A job that must have succeeded before; may be repeated.",
)
@click.option(
    "--correlation-id", metavar="TEXT", help="A label of yours that names what it belongs to."
)
@redis_option
@database_options
def submit(
    tenant: str,
    type_: str,
    config: Configuration,
    *,
    payload: str,
    priority: str,
    run_at: str | None,
    key: str | None,
    tags: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Submit a job of TYPE for TENANT, and print its id.

    Example: scheduler submit acme send-receipt --queue mail --payload '{"order": 7}' --key
    receipt-7
    """
    options |= {
        "priority": Priority[priority.upper()],
        "idempotency_key": key,
        "tags": _tags(tags),
        "run_at": _at(run_at),
    }
    with calls(config) as jobs:
        made = jobs.submit(tenant, type_, _payload(payload), **options)
    if as_json:
        emit_json({"tenant": tenant, "id": str(made.id), "duplicate": made.duplicate})
    else:
        emit(
            Text(f"{made.id}{' (an earlier job with the same key)' if made.duplicate else ''}"),
            screen(),
        )


@click.command(
    "cancel-job", short_help="End a submitted job that has not begun; ask a running one to end."
)
@click.argument("tenant")
@click.argument("job_id", metavar="ID")
@click.option("--reason", metavar="TEXT", help="Why, for the ledger.")
@click.option(
    "--force", is_flag=True, help="End a running one at once; what its handler does is refused."
)
@redis_option
@database_options
def cancel_job(
    tenant: str,
    job_id: str,
    reason: str | None,
    config: Configuration,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """End the job ID of TENANT, and all that wait for its success; one that runs is asked to end.

    Example: scheduler cancel-job acme 3f1e9c5a-6a0f-4a51-9d0f-0d6a4a6f2f10 --reason "wrong order"
    """
    with calls(config) as jobs:
        state = jobs.cancel_job(tenant, job_id, reason=reason, force=force)
    if as_json:
        emit_json({"tenant": tenant, "id": job_id, "state": state})
    else:
        asked = "" if state is State.CANCELLED else ": it is asked to end"
        emit(Text(f"{visible(job_id)} is {state}{asked}"), screen())


@click.command("retry-job", short_help="Submit a job anew that failed, died or was cancelled.")
@click.argument("tenant")
@click.argument("job_id", metavar="ID")
@redis_option
@database_options
def retry_job(tenant: str, job_id: str, config: Configuration, *, as_json: bool) -> None:
    """Submit the job ID of TENANT anew, which failed, died or was cancelled, and print the id of
    the new one.

    Example: scheduler retry-job acme 3f1e9c5a-6a0f-4a51-9d0f-0d6a4a6f2f10
    """
    with calls(config) as jobs:
        made = jobs.retry_job(tenant, job_id)
    if as_json:
        emit_json({"tenant": tenant, "id": str(made.id), "retried_from": job_id})
    else:
        emit(Text(f"{made.id}"), screen())


COMMANDS = (get, find, submit, cancel_job, retry_job)


@contextmanager
def calls(config: Configuration) -> Iterator[Calls]:
    """Open tables and Redis for a command; inside, every error is one line."""
    with opened(config) as tables:
        store_schema.check(tables)
        settings = checked_settings(config.scheduler.database, rules.scheduler_options(config))
        client = None if settings.redis is None else Client(settings.redis)
        try:
            yield Calls(
                settings, tables, None if client is None else _ring(client, settings, tables)
            )
        finally:
            if client is not None:
                client.close()


def _ring(client: Client, settings: Settings, tables: Database) -> Ring:
    rows = run(
        Databases(tables, tables), alone(RingTable(settings.schema, lambda: None).installation())
    )
    return Ring(client, settings.queues, str(rows[0][0]), lambda: datetime.now(UTC))


def _payload(given: str) -> object:
    try:
        if given == "-":
            given = sys.stdin.read()
        elif given.startswith("@"):
            given = Path(given[1:]).read_text("utf-8")
        return json.loads(given)
    except OSError as error:
        raise click.BadParameter(
            f"cannot be read: {error.strerror}", param_hint="--payload"
        ) from None
    except ValueError:
        raise click.BadParameter(
            "must be JSON in UTF-8, or @ and a file of it", param_hint="--payload"
        ) from None


def _tags(given: Iterable[str]) -> dict[str, str]:
    wrong = next((each for each in given if "=" not in each), None)
    if wrong is not None:
        raise click.BadParameter(
            f"must be like order=7, not {visible(wrong)!r}", param_hint="--tag"
        )
    return dict(each.split("=", 1) for each in given)


def _at(given: str | None) -> datetime | None:
    try:
        return None if given is None else datetime.fromisoformat(given)
    except ValueError:
        raise click.BadParameter(
            "must be like 2030-01-31T06:00:00Z", param_hint="--run-at"
        ) from None
