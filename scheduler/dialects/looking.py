"""What the commands about queues share in every dialect: names and sizes of keys, payloads, and
what cannot be read.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from scheduler.dialects.client import Client
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.queues import QueueEntry, QueueKey

AT_ONCE = 500
SIZES = {
    b"list": "LLEN",
    b"hash": "HLEN",
    b"set": "SCARD",
    b"zset": "ZCARD",
    b"stream": "XLEN",
    b"string": "STRLEN",
}


def glob(text: str) -> str:
    """Write a text so that a pattern of Redis finds it as it is."""
    return "".join(f"\\{each}" if each in "[]*?\\^" else each for each in text)


def scanned(client: Client, near: str, pattern: str) -> Iterator[list[str]]:
    """Go through the names of keys that fit a pattern."""
    cursor: Any = 0
    while True:
        cursor, found = client.scan(near, cursor, pattern, AT_ONCE, None)
        if found:
            yield [name.decode(errors="surrogateescape") for name in found]
        if not int(cursor):
            return


def sized(client: Client, names: Sequence[str]) -> list[QueueKey]:
    """Say what keys are and how large; without those that are gone."""
    found = []
    for name in names:
        kind = client.call("TYPE", name)
        kind = kind if isinstance(kind, bytes) else str(kind).encode()
        if kind in SIZES:
            found.append(
                QueueKey(name=name, type=kind.decode(), size=int(client.call(SIZES[kind], name)))
            )
    return found


def erased(client: Client, names: Sequence[str]) -> int:
    """Remove keys."""
    return sum(int(client.call("UNLINK", name)) for name in names)


def entry_of(job: QueuedJob, raw: bytes, reason: str | None = None) -> QueueEntry:
    """Make what one sees of a job."""
    try:
        payload = orjson.loads(job.payload) if job.form == "json" else job.payload
    except ValueError:
        payload = job.payload
    return QueueEntry(
        id=job.id,
        tenant=job.tenant or None,
        type=job.type,
        priority=job.priority,
        attempts=job.attempt,
        created_at=job.created_at if job.created_at.year > 1970 else None,
        reason=reason,
        payload=payload,
        raw=raw,
    )


def unreadable(raw: bytes, reason: str) -> QueueEntry:
    """Make what one sees of what nobody can read."""
    name = hashlib.sha1(raw, usedforsecurity=False).hexdigest()
    return QueueEntry(
        id=name, tenant=None, type="", priority=Priority.NORMAL, reason=reason, payload=raw, raw=raw
    )
