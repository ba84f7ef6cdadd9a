"""A client of Conveyor: add jobs to queues that Go, or our own workers, work.

    client = Client("redis://localhost:6379/0", keys="upstream")
    client.add(EncodeVideo(id=7))  # a protobuf message: its full name is type and queue
    client.add({"id": 7}, type="encode", queue="video")          # or JSON, or bytes

`scheduler.Worker(..., dialect="conveyor")` works such queues in Python.
"""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID, uuid4

try:
    from google.protobuf.message import EncodeError, Message
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'Conveyor needs protobuf: pip install "singleton-scheduler[conveyor]"'
    ) from error

from scheduler.app import in_thread
from scheduler.dialects.client import Client as Connection
from scheduler.dialects.conveyor import add as adding
from scheduler.dialects.conveyor.job_pb2 import Job
from scheduler.dialects.conveyor.keys import Keys
from scheduler.dialects.conveyor.wire import stamp
from scheduler.errors import ConfigError, InvalidJob, InvalidPayload, MarshalError, QueueUnavailable
from scheduler.model.addresses import RedisOptions
from scheduler.model.durations import duration
from scheduler.model.payloads import LARGEST_LIMIT, encode
from scheduler.trace import current

__all__ = ["Client", "InvalidJob", "MarshalError", "QueueUnavailable"]


class Client:
    """Adds jobs. Safe to use from any thread.

    redis: a URL, or `RedisOptions`. keys: "seed", names as in Conveyor's specification, or
    "upstream", as its Go code has them. namespace: what every key begins with, nothing or "conv" by
    default; in a cluster it needs a hash tag, as in "{conv}". `aadd` is the async twin of `add`.
    """

    def __init__(
        self, redis: str | RedisOptions, keys: str = "seed", *, namespace: str | None = None
    ) -> None:
        self._keys = Keys(keys, namespace)
        self._connection = Connection(redis)

    def add(
        self,
        payload: object,
        *,
        type: str | None = None,  # noqa: A002 - its name in Conveyor
        queue: str | None = None,
        parent: UUID | str | None = None,
        predecessor: UUID | str | None = None,
        run_at: datetime | None = None,
        uuid: UUID | str | None = None,
        dead_parent: bool = False,
        timeout: timedelta | str | None = None,
    ) -> UUID:
        """Add a job, and return its id.

        payload: a protobuf message, bytes, or JSON. type: the name of a message by default; queue:
        as the type. parent: it begins when the run of that job is over, and that job is done when
        it is. predecessor: it begins when that job is done, with all its children. dead_parent: the
        run of its parent is over, so that it may begin now. timeout: how long this may take. Raises
        `InvalidJob`, `MarshalError`, `QueueUnavailable`; each has `retryable`.
        """
        job = _job(payload, type, queue)
        job.uuid = adding.checked_uuid(uuid, "uuid") or str(uuid4())
        job.parent_uuid = adding.checked_uuid(parent, "parent")
        job.predecessor_uuid = adding.checked_uuid(predecessor, "predecessor")
        if run_at is not None:
            job.run_at.seconds, job.run_at.nanos = stamp(_instant(run_at))

        def call() -> None:
            adding.add(self._opened(), self._keys, job, dead_parent=dead_parent)

        if timeout is None:
            call()
        else:
            _within(duration(timeout, name="timeout").total_seconds(), call, job.uuid)
        return UUID(job.uuid)

    aadd = in_thread(add)

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> Connection:
        if self._connection.clustered and not self._keys.tagged:
            raise ConfigError(
                'namespace: needs a hash tag in a cluster, as in "{conv}": scripts use keys of one '
                "server"
            )
        return self._connection


def _job(payload: object, type_: str | None, queue: str | None) -> Any:
    name = type_
    try:
        if isinstance(payload, Message):
            name = type_ or payload.DESCRIPTOR.full_name
            payload = payload.SerializeToString()
        form, written = encode(payload, limit=LARGEST_LIMIT)
        json = form == "json"
    except InvalidPayload as error:
        raise MarshalError(str(error)) from error
    except (EncodeError, ValueError) as error:
        raise MarshalError(f"the payload of {name} cannot be written: {error}") from error
    if not name:
        raise InvalidJob("type: is needed, unless the payload is a protobuf message")
    try:
        return Job(
            type=name,
            queue=name if queue is None else queue,
            payload=written,
            json=json,
            trace=current(),
        )
    except (TypeError, ValueError) as error:
        raise InvalidJob(f"type and queue must be texts: {error}") from None


def _instant(run_at: object) -> datetime:
    if not isinstance(run_at, datetime) or run_at.tzinfo is None:
        raise InvalidJob(f"run_at must be an instant with a time zone, not {run_at!r}")
    return run_at


def _within(seconds: float, call: Callable[[], None], uuid: str) -> None:
    """Wait for a call no longer than this; it may be done all the same."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            failure.append(error)

    thread = threading.Thread(target=run, name="scheduler-conveyor-add", daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if thread.is_alive():
        raise QueueUnavailable(
            f"Redis has not answered within {seconds:g} s; job {uuid} may have been added"
        )
