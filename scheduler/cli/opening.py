"""What the commands about queues share: the queues opened without an instance, and a bar while it
takes long.
"""

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from scheduler.cli import rules
from scheduler.cli.database import given, one_line
from scheduler.cli.options import Configuration
from scheduler.cli.show import Failure, visible
from scheduler.config import Settings, checked_settings
from scheduler.dialects.client import Client
from scheduler.dialects.opening import open_admin
from scheduler.dialects.reliable.keys import Keys
from scheduler.errors import ConfigError, QueueError, UnknownQueue
from scheduler.queueing.admin import Queues
from scheduler.queueing.ledger import Ledger, alone
from scheduler.queueing.ring import Ring
from scheduler.store import schema as store_schema
from scheduler.store.engine import Database
from scheduler.store.job_queue import QueueTable
from scheduler.store.ring import RingTable
from scheduler.store.steps import Databases, run


class NoSuchQueue(Failure):
    """A queue that does not exist; the exit code is 2, as for any argument that cannot be."""

    exit_code = 2


@contextlib.contextmanager
def opened_queues(config: Configuration) -> Iterator[Queues]:
    """Open the queues, with the tables if a database is named; inside, every error is one line."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_line(config.scheduler.database))
        settings = checked_settings(config.scheduler.database, rules.scheduler_options(config))
        if settings.redis is None:
            raise ConfigError("redis.addr: must not be empty; queues are in Redis")
        client = Client(settings.redis)
        stack.callback(client.close)
        ledger = stack.enter_context(_opened_ledger(config, settings))
        installation = "" if ledger is None else ledger.installation
        ring = Ring(client, settings.queues, installation, lambda: datetime.now(UTC))
        try:
            yield Queues(ring, ledger, _originals(config, client))
        except UnknownQueue as error:
            raise NoSuchQueue(visible(str(error))) from None


@contextlib.contextmanager
def _opened_ledger(config: Configuration, settings: Settings) -> Iterator[Ledger | None]:
    dsn = given(config.scheduler.database)
    if dsn is None:
        yield None
        return
    tables = Database.open(dsn, schema=settings.schema, prepare=False)
    try:
        store_schema.check(tables)
        databases, ring = Databases(tables, tables), RingTable(settings.schema, lambda: None)
        installation = str(run(databases, alone(ring.installation()))[0][0])
        jobs = QueueTable(settings.schema, lambda: None)
        yield Ledger(databases=databases, jobs=jobs, ring=ring, installation=installation)
    finally:
        tables.close()


def _originals(config: Configuration, client: Client) -> dict[str, Keys]:
    """Name the queue that has the original's keys, if there are any of them."""
    name, keys = config.worker.file_queue, rules.original_keys(config)
    with contextlib.suppress(QueueError):  # whoever asks it next says so
        if next(open_admin(client, name, original=keys).names()):
            return {name: keys}
    return {}


@contextlib.contextmanager
def bar(what: str, total: int | None) -> Iterator[Callable[[int], int]]:
    """Show a bar where a person looks at stderr; what is yielded moves it on, and returns by how
    much.
    """
    place = Console(stderr=True)
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        console=place,
        transient=True,
        disable=not place.is_terminal,
    )
    with shown:
        task = shown.add_task(what, total=total)

        def advance(steps: int) -> int:
            shown.advance(task, steps)
            return steps

        yield advance
