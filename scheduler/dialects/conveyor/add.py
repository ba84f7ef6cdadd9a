"""Add, as the specification has it: validation, marshalling, and then the steps; each can be taken
alone.

The steps are in `adding.lua`, where scripts take them too that bring children, heirs and what is
due.
"""

from typing import Any
from uuid import UUID, uuid4

from scheduler.dialects.client import Client, script
from scheduler.dialects.conveyor import wire
from scheduler.dialects.conveyor.keys import Keys
from scheduler.errors import InvalidJob

PLACES = {"c": "children", "o": "onComplete", "s": "scheduled", "a": "active", "q": "queue"}


REFUSED = {
    "x": "these bytes are no job that workers could read",
    "w": "its queue is the key of something else, which is no list; choose another name",
}


def add(client: Client, keys: Keys, job: Any, *, dead_parent: bool = False) -> str:
    """Add a job where it belongs: with its parent, with its predecessor, scheduled, or in its
    queue; say where.
    """
    return _run(client, keys, "dead" if dead_parent else "add", _marshalled(job, keys))


def add_to_parent(client: Client, keys: Keys, job: Any) -> str:
    """Add a job to the children of its parent."""
    raw = _marshalled(job, keys)
    return _run(client, keys, 1, raw, needs=job.parent_uuid, what="a parent")


def add_to_predecessor(client: Client, keys: Keys, job: Any) -> str:
    """Add a job to the heirs of its predecessor."""
    raw = _marshalled(job, keys)
    return _run(client, keys, 2, raw, needs=job.predecessor_uuid, what="a predecessor")


def schedule(client: Client, keys: Keys, job: Any) -> str:
    """Schedule a job for its time."""
    raw = _marshalled(job, keys)
    return _run(client, keys, 3, raw, needs=job.HasField("run_at"), what="a time to run at")


def follow(client: Client, keys: Keys, job: Any) -> str:
    """Note that a parent which is past its own run waits for this job."""
    raw = _marshalled(job, keys)
    return _run(client, keys, 4, raw, needs=job.parent_uuid, what="a parent")


def push(client: Client, keys: Keys, job: Any) -> str:
    """Push a job to its queue."""
    return _run(client, keys, 5, _marshalled(job, keys))


def _marshalled(job: Any, keys: Keys) -> bytes:
    """Check a job, give it an id if it has none, and write it."""
    if job is None:
        raise InvalidJob("there is no job to add")
    for name in ("type", "queue"):
        if not getattr(job, name):
            raise InvalidJob(f"a job needs a {name}")
    try:
        keys.queue(job.queue)
    except ValueError as error:
        raise InvalidJob(str(error)) from None
    job.uuid = job.uuid or str(uuid4())
    for name in ("uuid", "parent_uuid", "predecessor_uuid"):
        setattr(job, name, checked_uuid(getattr(job, name) or None, name))
    if job.uuid in (job.parent_uuid, job.predecessor_uuid):
        raise InvalidJob(f"job {job.uuid} would wait for itself")
    return wire.marshal(job)


def checked_uuid(value: object, name: str) -> str:
    """Check an id: it is part of keys; none is the empty text."""
    try:
        return "" if value is None else str(value if isinstance(value, UUID) else UUID(str(value)))
    except ValueError:
        raise InvalidJob(f"{name} must be a UUID, not {str(value)[:80]!r}") from None


def _run(
    client: Client, keys: Keys, step: str | int, raw: bytes, *, needs: object = True, what: str = ""
) -> str:
    if not needs:
        raise InvalidJob(f"this job has no {what.removeprefix('a ')}: nothing could wait for it")
    answer = client.run(
        script("conveyor", "add"), [keys.scheduled], [keys.names, step, raw]
    ).decode()
    if answer not in PLACES:
        raise InvalidJob(REFUSED[answer])
    return PLACES[answer]
