"""Payloads: JSON or bytes, checked before anything is stored, and never shown in a message (section
9).
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import orjson

from scheduler.errors import InvalidPayload
from scheduler.model.texts import storable

DEFAULT_LIMIT = 1024 * 1024
LARGEST_LIMIT = 16 * 1024 * 1024
_STRICT = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)

DEEPEST = 250
PLAIN = (bool, int, float, str, dict, list, tuple)
_LEAVES = frozenset({bool, int, str, type(None)})
_BYTES = (bytes, bytearray, memoryview)
_NUL = rb"\u0000"

Form = Literal["json", "bytes"]


def encode(
    payload: object, *, limit: int = DEFAULT_LIMIT, what: str = "payload"
) -> tuple[Form, bytes]:
    """Turn a payload into its form and its bytes; raises `InvalidPayload` with the place of what is
    wrong.
    """
    if isinstance(payload, _BYTES):
        form: Form = "bytes"
        encoded = bytes(payload)
    else:
        form, encoded = "json", _json(payload, what)
    validate_size(encoded, limit, what)
    return form, encoded


def validate_size(encoded: bytes, limit: int, what: str = "payload") -> None:
    """Raise `InvalidPayload` if there are more than `limit` bytes."""
    if len(encoded) > limit:
        raise InvalidPayload(
            f"{what} has {len(encoded):,} bytes, more than the {limit:,} that are allowed; store "
            "the data elsewhere and pass on its key"
        )


class InvalidResult(NamedTuple):
    """Stands for the return value of a handler that cannot be stored."""

    reason: str


def encode_result(returned: object) -> bytes | InvalidResult | None:
    """Encode the return value of a handler. A value that cannot be stored does not fail its job."""
    if returned is None:
        return None
    if isinstance(returned, InvalidResult):
        return returned
    try:
        form, encoded = encode(returned, what="the result")
    except InvalidPayload as error:
        return InvalidResult(storable(str(error), 1000))
    except Exception as error:  # noqa: BLE001 - a value of the user, whose methods can raise
        return InvalidResult(f"reading the result raised {type(error).__name__}")
    return encoded if form == "json" else InvalidResult("the result is bytes, and must be JSON")


def decode(form: Form, encoded: bytes) -> object:
    """Read what `encode` wrote."""
    return bytes(encoded) if form == "bytes" else orjson.loads(encoded)


def _json(payload: object, what: str) -> bytes:
    # orjson writes more than JSON has (UUIDs, enums) and NaN as null: what it would not read back
    # is refused. Keys that are no texts it refuses itself, and a NUL is sooner found in what it
    # wrote.
    try:
        if _plain(payload):
            encoded = orjson.dumps(payload, option=_STRICT)
            if encoded.find(_NUL) < 0 or _culprit(payload, what, 0) is None:
                return encoded
        reason = "it is not JSON"
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error)
    place, found = _culprit(payload, what, 0) or (what, reason)
    raise InvalidPayload(f"{place} cannot be JSON: {found}") from None


def _plain(value: object) -> bool:
    """Whether JSON has values of such kinds; says nothing about where it has not."""
    kind = type(value)
    if kind is dict:
        parts = value.values()  # type: ignore[attr-defined]
    elif kind is list or kind is tuple:
        parts = value
    elif kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    else:
        return kind in _LEAVES
    return _LEAVES.issuperset(map(type, parts)) or all(map(_plain, parts))


def _culprit(value: object, place: str, depth: int) -> tuple[str, str] | None:
    """Find the first thing that JSON cannot hold: its place, and what it is."""
    if depth > DEEPEST:
        return place[:200], "it is nested too deeply"
    wrong = _wrong(value)
    if wrong is not None:
        return place, wrong
    for inner, part in _parts(value, place):
        found = _culprit(part, inner, depth + 1)
        if found is not None:
            return found
    return None


def _parts(value: object, place: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"a key of {place}", key
            yield f"{place}[{str(key)[:40]!r}]", item
    elif isinstance(value, list | tuple):
        yield from ((f"{place}[{number}]", item) for number, item in enumerate(value))


def _wrong(value: object) -> str | None:
    if isinstance(value, str):
        return _bad_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a JSON number"
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return "the number has more than 64 bits"
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        return "its keys must be texts"
    if value is None or type(value) in PLAIN:
        return None
    return f"it is of type {type(value).__name__}; use texts, numbers, lists and dicts, or bytes"


def _bad_text(text: str) -> str | None:
    if "\0" in text:
        return "the text contains NUL"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "the text contains a lone surrogate"
    return None if type(text) is str else "it is a subclass of str"
