"""Commands that look at jobs and steer them: on the tables alone, whether or not any instance
runs.
"""

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime

import click
from rich.panel import Panel
from rich.text import Text

from scheduler.cli.cells import (
    HISTORY_FOLDS,
    HISTORY_HEADS,
    JOB_FOLDS,
    JOB_HEADS,
    explained,
    history_cells,
    history_facts,
    job_cells,
    job_facts,
    made_visible,
)
from scheduler.cli.database import database_options, opened
from scheduler.cli.options import Configuration
from scheduler.cli.show import (
    emit,
    emit_json,
    listing,
    moment,
    on_terminal,
    pairs,
    screen,
    until,
    visible,
)
from scheduler.model.definition import Key
from scheduler.model.texts import name, storable
from scheduler.periodic.control import Control
from scheduler.store import schema as store_schema
from scheduler.store.job import JobTable
from scheduler.store.job_history import HistoryTable
from scheduler.store.job_instance import InstanceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the commands read and write."""

    jobs: JobTable
    history: HistoryTable
    instances: InstanceTable
    control: Control


@click.command(short_help="List the jobs: when each fires next, what it does now, how it went.")
@click.option("--tenant", metavar="T", help="Only those of this tenant.")
@database_options
def jobs(tenant: str | None, config: Configuration, *, as_json: bool) -> None:
    """List the jobs of all tenants, or of one: schedule, next fire, last outcome, and what each
    does now.

    Example: scheduler jobs --tenant acme
    """
    with _tables(config) as tables:
        chosen = None if tenant is None else [name(tenant, what="tenant")]
        rows, now = sorted(tables.jobs.mirror(chosen)), tables.jobs.instant()
    if as_json:
        emit_json([job_facts(row) for row in rows])
    elif rows:
        place = screen()
        emit(
            listing(JOB_HEADS, [job_cells(row, now) for row in rows], folds=JOB_FOLDS, place=place),
            place,
        )
    else:
        whose = (
            f"{'' if tenant is None else f' of tenant {visible(tenant)}'} in schema "
            f"{config.scheduler.schema}"
        )
        how = 'scheduler.register("acme", "report", function, every="15m")'
        emit(
            Text(f"no job{whose}; an instance of your app registers one: {how}"),
            screen(),
        )


@click.command(short_help="Print the newest rows of the ledger, newest first.")
@click.argument("tenant")
@click.argument("job", required=False)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many rows."
)
@database_options
def history(
    tenant: str, job: str | None, limit: int, config: Configuration, *, as_json: bool
) -> None:
    """Print what became of the fires of TENANT, or of its JOB, and who changed what; newest first.

    Example: scheduler history acme report --limit 50
    """
    with _tables(config) as tables:
        job_id = None if job is None else name(job, what="job_id")
        rows = tables.history.newest(name(tenant, what="tenant"), job_id, limit=limit)
        if not rows and job_id is not None:
            tables.control.explain(Key(tenant, job_id))  # raises for a job that never was
    if as_json:
        emit_json([history_facts(row) for row in rows])
    elif rows:
        place = screen()
        emit(
            listing(
                HISTORY_HEADS,
                [history_cells(row) for row in rows],
                folds=HISTORY_FOLDS,
                place=place,
            ),
            place,
        )
    else:
        emit(
            Text(
                "nothing has happened yet: "
                f"{_named(tenant, job) if job else f'tenant {visible(tenant)}'}"
            ),
            screen(),
        )


@click.command(short_help="Say what a job will do, what it did and why, and who can run it.")
@click.argument("tenant")
@click.argument("job")
@database_options
def explain(tenant: str, job: str, config: Configuration, *, as_json: bool) -> None:
    """Say what the JOB of TENANT will do, what it did and why, and which instances can run it.

    Example: scheduler explain acme report
    """
    with _tables(config) as tables:
        told, now = tables.control.explain(_key(tenant, job)), tables.jobs.instant()
    if as_json:
        emit_json(asdict(told))
    elif on_terminal():
        shown = made_visible(told)
        title = Text(f" {shown.tenant}/{shown.job_id} ", style="title")
        emit(
            Panel(
                pairs(explained(shown, now)), title=title, title_align="left", border_style="quiet"
            ),
            screen(),
        )
    else:
        emit(Text(str(made_visible(told))), screen())


@click.command(short_help="Let the fires of a job pass it by, until it is resumed.")
@click.argument("tenant")
@click.argument("job")
@database_options
def pause(tenant: str, job: str, config: Configuration, *, as_json: bool) -> None:
    """Pause the JOB of TENANT in the whole fleet; a run under way ends as it would have.

    Example: scheduler pause acme report
    """
    with _tables(config) as tables:
        key = _key(tenant, job)
        was_paused = _is_paused(tables, key)
        paused_at = tables.control.pause(key)
    if as_json:
        emit_json({**key._asdict(), "paused_at": paused_at, "was_paused": was_paused})
    else:
        did = f"{_named(*key)} was paused already," if was_paused else f"paused {_named(*key)}"
        emit(Text(f"{did} since {moment(paused_at)}"), screen())


@click.command(short_help="Let a paused job go on with its next fire.")
@click.argument("tenant")
@click.argument("job")
@database_options
def resume(tenant: str, job: str, config: Configuration, *, as_json: bool) -> None:
    """Let the JOB of TENANT go on with its first fire after now; those that passed are one row of
    the ledger.

    Example: scheduler resume acme report
    """
    with _tables(config) as tables:
        key = _key(tenant, job)
        was_paused = _is_paused(tables, key)
        next_run_at, now = tables.control.resume(key), tables.jobs.instant()
    if as_json:
        emit_json({**key._asdict(), "next_run_at": next_run_at, "was_paused": was_paused})
    else:
        did = f"resumed {_named(*key)}" if was_paused else f"{_named(*key)} was not paused"
        fire = (
            "nothing is to come" if next_run_at is None else f"next fire {_ahead(next_run_at, now)}"
        )
        emit(Text(f"{did}: {fire}"), screen())


@click.command(short_help="Run a job soon, beside its schedule.")
@click.argument("tenant")
@click.argument("job")
@database_options
def trigger(tenant: str, job: str, config: Configuration, *, as_json: bool) -> None:
    """Ask for one run of the JOB of TENANT, also when it is paused; two asked for before it starts
    are one.

    Example: scheduler trigger acme report
    """
    with _tables(config) as tables:
        key = _key(tenant, job)
        trigger_at, runnable_on = tables.control.trigger(key), tables.instances.live(key)
    if as_json:
        emit_json({**key._asdict(), "trigger_at": trigger_at, "runnable_on": runnable_on})
    else:
        free = (
            "an instance is free"
            if runnable_on
            else "an instance registers its function (none that lives has it)"
        )
        emit(
            Text(f"triggered {_named(*key)} at {moment(trigger_at)}: it runs as soon as {free}"),
            screen(),
        )


COMMANDS = (jobs, history, explain, pause, resume, trigger)


@contextmanager
def _tables(config: Configuration) -> Iterator[Tables]:
    with opened(config) as store:
        store_schema.check(store)
        rows, instances = JobTable(store, lambda: None), InstanceTable(store, lambda: None)
        control = Control(jobs=rows, instances=instances, holder=_who())
        yield Tables(
            jobs=rows,
            history=HistoryTable(store, lambda: None),
            instances=instances,
            control=control,
        )


def _who() -> str:
    """Name the person for the audit rows."""
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return storable(f"cli:{user}@{socket.gethostname()}", 200)


def _key(tenant: str, job: str) -> Key:
    return Key(name(tenant, what="tenant"), name(job, what="job_id"))


def _named(tenant: str, job: str) -> str:
    return visible(f"{tenant}/{job}")


def _is_paused(tables: Tables, key: Key) -> bool:
    (known,) = tables.jobs.lookup([key])
    return known.paused_at is not None


def _ahead(instant: datetime, now: datetime) -> str:
    return f"{until(instant, now)}, {moment(instant)}"
