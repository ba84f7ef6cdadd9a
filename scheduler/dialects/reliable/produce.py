"""The script `produce`, which queues files: each once until it changes, no more a second than the
rate of all.
"""

import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import orjson

from scheduler.dialects.client import Client, script
from scheduler.dialects.reliable import wire
from scheduler.dialects.reliable.keys import Keys
from scheduler.errors import ConfigError
from scheduler.model.files import File, ProducerRule

REMEMBERED = timedelta(days=30)
NANOSECONDS = 1_000_000_000


class Entry(NamedTuple):
    """A file with the job that it is to be."""

    file: File
    text: bytes


class Produced(NamedTuple):
    """What came of a batch: those that wait for the rate may be tried again after so many
    seconds.
    """

    queued: list[File]
    unchanged: int
    waiting: list[Entry]
    pause: float


class Intake:
    """Where files are queued."""

    def __init__(
        self, client: Client, rule: ProducerRule, keys: Keys, *, remembered: timedelta = REMEMBERED
    ) -> None:
        self._levels = {word: keys.words.index(word) + 1 for word in keys.words}
        rule.check_priorities(self._levels)
        self._client = client
        self._rule = rule
        self._keys = keys
        self._remembered = remembered

    def put(self, entries: Sequence[Entry]) -> Produced:
        """Queue files, as many as the rate allows now."""
        self._check_slots()
        keys = [
            *self._keys.levels,
            *self._keys.named("origins", "origins:before", "marker"),
            self._rule.rate_limit_key,
        ]
        args: list[Any] = [self._rule.rate_limit_per_sec, self._remembered // wire.MILLISECOND]
        for file, text in entries:
            args += (file.id, self._levels[file.priority], text)
        answer, pause_us = self._client.run(script("reliable", "produce"), keys, args)
        verdicts = answer.decode()
        return Produced(
            [
                entry.file
                for entry, verdict in zip(entries, verdicts, strict=True)
                if verdict == "n"
            ],
            verdicts.count("k"),
            [entry for entry, verdict in zip(entries, verdicts, strict=True) if verdict == "w"],
            pause_us / 1_000_000,
        )

    def _check_slots(self) -> None:
        if not self._client.clustered:
            return
        if not self._keys.tagged:
            raise ConfigError(
                "worker.queues: in a cluster all of them need one hash tag, as in "
                "jobqueue:{files}:low"
            )
        if not self._rule.rate_limit_key.startswith(self._keys.prefix):
            raise ConfigError(
                f"producer.rate_limit_key: in a cluster it must begin with {self._keys.prefix}"
            )


def entry_of(file: File) -> Entry:
    """Write the job of a file as the original does, with a trace of its own."""
    outer = {
        "id": file.id,
        "filepath": file.path,
        "filesize": file.size,
        "priority": file.priority,
        "retries": 0,
        "creation_time": rfc3339_nano(time.time_ns()),
        "trace_id": secrets.token_hex(16),
        "span_id": secrets.token_hex(8),
    }
    return Entry(file, orjson.dumps(outer))


def rfc3339_nano(instant_ns: int) -> str:
    """Write an instant as Go does: as many digits as it needs."""
    seconds, nanoseconds = divmod(instant_ns, NANOSECONDS)
    fraction = f".{nanoseconds:09}".rstrip("0").rstrip(".")
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"
