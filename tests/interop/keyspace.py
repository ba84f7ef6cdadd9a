"""What is in Redis after a scenario, without what is never the same twice: times, made-up ids,
names of workers.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any

YEAR_MS = 365 * 24 * 3_600_000
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PARSED = {"data", "opts", "parent", "returnvalue", "progress"}
OF_THE_MOMENT = {"stalled-check", "limiter"}  # throttles that run out by themselves
Keyspace = dict[str, Any]


def dump(redis: Any, prefix: str = "bull") -> Keyspace:
    """Read everything; instants become "now" or how much later they are, in seconds."""
    ids: dict[str, str] = {}
    found: Keyspace = {}
    for key in sorted(redis.scan_iter(f"{prefix}:*")):
        kind = redis.type(key)
        if key.rsplit(":", 1)[-1] not in OF_THE_MOMENT and not _is_left_by_a_start(redis, key):
            found[key] = (kind, _READ[kind](redis, key), redis.pttl(key) > 0)
    for key in found:
        if key.endswith(":events"):
            for uuid in UUID.findall(json.dumps(redis.xrange(key))):
                ids.setdefault(
                    uuid, f"<id {len(ids) + 1}>"
                )  # in the order in which they were added
    named: Keyspace = json.loads(
        UUID.sub(lambda match: ids.get(match[0], "<token>"), json.dumps(found))
    )
    if "active" in json.dumps(named):
        named = {
            key: each for key, each in named.items() if not key.endswith(":marker")
        }  # who waits takes it away
    return {
        key: sorted(value) if kind == "set" else value for key, (kind, value, _) in named.items()
    } | {
        f"{key} is": (kind, "for a while" if passes else "to stay")
        for key, (kind, _, passes) in named.items()
    }


def _is_left_by_a_start(redis: Any, key: str) -> bool:
    """Whether a worker of ours stored its retry policy while it stopped, so that it expires."""
    return ":ring:retry:" in key and redis.pttl(key) > 0


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Say where two keyspaces differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = sorted(ours.keys() | theirs.keys())
        return [
            each
            for name in names
            for each in differences(ours.get(name), theirs.get(name), f"{where} {name}".strip())
        ]
    return [] if ours == theirs else [f"{where}: ours {ours}, Node's {theirs}"]


def _instant(milliseconds: float) -> object:
    """Say when it is, if it is an instant at all."""
    later = milliseconds - time.time() * 1000
    if abs(later) > YEAR_MS:
        return milliseconds
    return "now" if later < 2_500 else f"in {round(later / 5000) * 5} s"


def _score(key: str, score: float) -> object:
    return _instant(score / 4096) if key.endswith(":delayed") else _instant(score)


def _field(name: str, value: str) -> object:
    if name in PARSED:
        return json.loads(value)
    if name in ("timestamp", "processedOn", "finishedOn"):
        return _instant(float(value))
    if name == "stacktrace":
        return len(json.loads(value))
    return "<worker>" if name == "pb" else value


def _fields(redis: Any, key: str) -> dict[str, Any]:
    found = {name: _field(name, value) for name, value in redis.hgetall(key).items()}
    if key.endswith(":meta"):
        found.pop("version", None)  # written once by whoever opens a queue, not by a scenario
    return found


def _events(redis: Any, key: str) -> dict[str, Any]:
    """Events by job, each in order; between jobs the order is the worker's own affair."""
    found: dict[str, Any] = {}
    for _, fields in redis.xrange(key):
        if fields["event"] == "delayed":
            fields["delay"] = str(_instant(float(fields["delay"])))
        found.setdefault(fields.pop("jobId", ""), []).append(fields)
    return found


_READ: dict[str, Callable[[Any, str], object]] = {
    "string": lambda redis, key: redis.get(key),
    "list": lambda redis, key: redis.lrange(key, 0, -1),
    "set": lambda redis, key: list(redis.smembers(key)),
    "zset": lambda redis, key: {
        each: _score(key, score) for each, score in redis.zrange(key, 0, -1, withscores=True)
    },
    "hash": _fields,
    "stream": _events,
}
