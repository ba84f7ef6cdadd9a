"""Opens queues in their dialects, and checks what a dialect supports."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from scheduler.dialects.bullmq.admin import BullMQAdmin
from scheduler.dialects.bullmq.options import refusal
from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Admin, Queue
from scheduler.dialects.queue_options import QueueOptions
from scheduler.dialects.reliable.admin import ReliableAdmin
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.standard.admin import StandardAdmin
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.errors import ConfigError
from scheduler.model.reaper import ReaperRule
from scheduler.model.retries import RetryPolicy

DEFAULT: Mapping[str, str] = {"dialect": "standard"}
RELIABLE: Mapping[str, str] = {"dialect": "reliable"}


def open_queue(
    client: Client,
    name: str,
    options: Mapping[str, str] = DEFAULT,
    *,
    installation: str = "",
    worker: str = "",
    lease: timedelta = timedelta(seconds=30),
    reaper: ReaperRule = ReaperRule(),  # noqa: B008 - frozen
    weighted: bool = False,
    keys: Keys | None = None,
) -> Queue:
    """Open a queue in its dialect.

    options: validated settings of the queue. weighted: every priority gets a share of what is
    fetched. keys: names of the lists, for the dialect reliable.
    """
    told: dict[str, Any] = {
        "installation": installation,
        "worker": worker,
        "lease": lease,
        "options": QueueOptions(weighted=weighted, reaper=reaper),
    }
    own: dict[str, Any] = {key: value for key, value in options.items() if key != "dialect"}
    if weighted and options["dialect"] not in ("reliable", "standard"):
        raise ConfigError(
            f'fetch: queue {name!r} has the dialect {options["dialect"]}, which only has "strict"'
        )
    if options["dialect"] == "bullmq":
        return BullMQQueue(client, name, **told, **own)
    if options["dialect"] == "conveyor":
        return _conveyor()(client, name, **told, **own)
    if options["dialect"] == "reliable":
        return ReliableQueue(client, name, **told, keys=keys)
    return StandardQueue(client, name, **told)


def open_admin(
    client: Client,
    name: str,
    options: Mapping[str, str] = DEFAULT,
    *,
    installation: str = "",
    original: Keys | None = None,
) -> Admin:
    """Open a queue for a person, as its `options` say; `original`: keys as the original names
    them.
    """
    own: dict[str, Any] = {key: value for key, value in options.items() if key != "dialect"}
    if original is not None:
        return ReliableAdmin(client, name, keys=original)
    if options["dialect"] == "bullmq":
        return BullMQAdmin(client, name, installation=installation, **own)
    if options["dialect"] == "conveyor":
        _conveyor()
        from scheduler.dialects.conveyor.admin import ConveyorAdmin  # noqa: PLC0415 - it is there now

        return ConveyorAdmin(client, name, installation=installation, **own)
    if options["dialect"] == "reliable":
        return ReliableAdmin(client, name, installation=installation)
    return StandardAdmin(client, name, installation=installation)


def _conveyor() -> Callable[..., Queue]:
    """Find the dialect that needs an extra."""
    try:
        from scheduler.dialects.conveyor.queue import ConveyorQueue  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            'queues: Conveyor needs protobuf: pip install "singleton-scheduler[conveyor]"'
        ) from error
    return ConveyorQueue


def unsupported(options: Mapping[str, str], retry: RetryPolicy) -> str | None:
    """Say why jobs of a queue cannot be retried so; None: they can."""
    return refusal(retry) if options["dialect"] == "bullmq" else None
