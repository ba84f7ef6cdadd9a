"""Large arrays of parameters, packed as Postgres reads them: psycopg looks at each element, several
times.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

HEAD = struct.Struct(
    "!iiIii"
)  # dimensions, whether there are nulls, type of the elements, how many, from which on
LENGTH = struct.Struct("!i")
NULL = LENGTH.pack(-1)
SIXTEEN = LENGTH.pack(16)
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
TOGETHER = 64  # numbers that are packed in one call, each after its size
INTEGERS, INSTANTS = (
    (struct.Struct(f"!{kind}"), struct.Struct("!" + kind * TOGETHER)) for kind in ("ii", "iq")
)


@dataclass(frozen=True, slots=True)
class Packed:
    """An array as it is sent."""

    data: bytes = field(repr=False)


class Texts(Packed):
    """A text[]."""


class Uuids(Packed):
    """A uuid[]."""


class Blobs(Packed):
    """A bytea[]."""


class Integers(Packed):
    """An int4[]."""


class Numbers(Packed):
    """An int8[]."""


class Instants(Packed):
    """A timestamptz[]."""


def texts(values: Iterable[str | None]) -> Texts:
    """Pack texts."""
    return Texts(_packed(25, [None if value is None else value.encode() for value in values]))


def blobs(values: Sequence[bytes | None]) -> Blobs:
    """Pack bytes."""
    return Blobs(_packed(17, values))


def uuids(values: Iterable[UUID]) -> Uuids:
    """Pack UUIDs."""
    parts = [SIXTEEN + value.bytes for value in values]
    return Uuids(_head(2950, len(parts)) + b"".join(parts))


def integers(values: Iterable[int | None]) -> Integers:
    """Pack numbers of 32 bits."""
    return Integers(_numbers(23, 4, *INTEGERS, list(values)))


def numbers(values: Iterable[int]) -> Numbers:
    """Pack numbers of 64 bits."""
    return Numbers(_numbers(20, 8, *INSTANTS, list(values)))


def instants(values: Iterable[datetime | None]) -> Instants:
    """Pack instants."""
    numbers = [None if value is None else (value - EPOCH) // MICROSECOND for value in values]
    return Instants(_numbers(1184, 8, *INSTANTS, numbers))


def _numbers(
    oid: int, size: int, one: struct.Struct, some: struct.Struct, values: Sequence[int | None]
) -> bytes:
    parts, together = [], 0
    if None not in values:
        together = len(values) - len(values) % TOGETHER
        for begin in range(0, together, TOGETHER):
            sized: list[int | None] = [size] * (2 * TOGETHER)
            sized[1::2] = values[begin : begin + TOGETHER]
            parts.append(some.pack(*sized))
    parts += [NULL if value is None else one.pack(size, value) for value in values[together:]]
    return _head(oid, len(values), nulls=None in values) + b"".join(parts)


def _packed(oid: int, values: Sequence[bytes | None]) -> bytes:
    parts: list[bytes] = []
    pack = LENGTH.pack
    for value in values:
        if value is None:
            parts.append(NULL)
        else:
            parts += (pack(len(value)), value)
    return _head(oid, len(values), nulls=None in values) + b"".join(parts)


def _head(oid: int, count: int, *, nulls: bool = False) -> bytes:
    return HEAD.pack(1, nulls, oid, count, 1) if count else struct.pack("!iii", 0, 0, oid)


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Packed) -> Buffer | None:
        return obj.data


for _kind, _oid in (
    (Texts, 1009),
    (Uuids, 2951),
    (Blobs, 1001),
    (Integers, 1007),
    (Numbers, 1016),
    (Instants, 1185),
):
    _dumper = type(f"_{_kind.__name__}Dumper", (_PackedDumper,), {"oid": _oid})
    psycopg.adapters.register_dumper(_kind, _dumper)
