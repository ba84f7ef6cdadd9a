"""Writes and reads `wire.Job`, from the description of the protobuf format alone: it knows nothing
of our module.
"""

from collections.abc import Iterable, Mapping
from typing import Any

TEXT, TIME, NUMBER = "text", "time", "number"
FIELDS = {
    "uuid": (1, TEXT),
    "type": (2, TEXT),
    "queue": (3, TEXT),
    "payload": (4, TEXT),
    "run_at": (5, TIME),
    "parent_uuid": (6, TEXT),
    "predecessor_uuid": (7, TEXT),
    "started_at": (8, TIME),
    "retry": (9, NUMBER),
    "max_retries": (10, NUMBER),
    "last_failure": (11, TEXT),
    "status": (12, NUMBER),
}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative number is written as the 64 bits that it has
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def moment(seconds: int, nanos: int) -> bytes:
    return (b"\x08" + varint(seconds) if seconds else b"") + (
        b"\x10" + varint(nanos) if nanos else b""
    )


def encode(fields: Mapping[str, Any], unknown: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """Fields in the order of their numbers, none that has its default, and what is unknown behind
    them.
    """
    out = b""
    for name, (number, kind) in FIELDS.items():
        value = fields.get(name)
        if kind == TIME and value is not None:
            out += block(number, moment(*value))
        elif kind == NUMBER and value:
            out += varint(number << 3) + varint(value)
        elif kind == TEXT and value:
            out += block(number, value.encode() if isinstance(value, str) else value)
    return out + b"".join(block(number, content) for number, content in unknown)


def decode(raw: bytes) -> dict[int, Any]:
    """Values by number; the last of each."""
    found: dict[int, Any] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (raw[at] & 0x7F) << shift
            shift += 7
            at += 1
            if raw[at - 1] < 0x80:
                return value

    while at < len(raw):
        tag = number()
        if tag & 7 == 0:
            found[tag >> 3] = number()
        else:
            size = number()
            found[tag >> 3] = raw[at : at + size]
            at += size
    return found


def remarshal(found: Mapping[int, Any]) -> bytes:
    """Write what was read, as Go does: its own fields by their numbers, and those that it does not
    know behind them.
    """
    out = b""
    for number, value in sorted(found.items()):
        out += (
            block(number, value)
            if isinstance(value, bytes)
            else varint(number << 3) + varint(value)
        )
    return out
