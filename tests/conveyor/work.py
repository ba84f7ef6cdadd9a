"""What handlers do in a fleet of both kinds, and where they write it down: database 1 of the same
Redis.
"""

import os
import time
from typing import Any

import redis

NORMAL, FAILS_ONCE, HANGS_ONCE = b"", b"fails once", b"hangs once"
HANGS = 2  # of each kind, at most; whoever hangs is killed


class Fails(Exception):
    """It failed, as it was told to."""


def log(url: str) -> Any:
    return redis.Redis.from_url(url.removesuffix("/0") + "/1", protocol=2, decode_responses=True)


_logs: dict[str, Any] = {}


def work(url: str, who: str, uuid: str, payload: bytes) -> None:
    """Say that it began, do as the payload says, and say that it ended."""
    record = _logs.setdefault(url, log(url))
    record.rpush("log", f"begin {uuid} {who}")
    first = record.incr(f"tries:{uuid}") == 1
    if payload == FAILS_ONCE and first:
        raise Fails
    if payload == HANGS_ONCE and first and record.incr(f"hung:{who}") <= HANGS:
        record.rpush("hangs", f"{who} {os.getpid()}")
        time.sleep(60)
    record.rpush("log", f"end {uuid} {who}")
