"""Signatures of callbacks: made here, and checked by whoever receives one with `verify_callback`.

`t=<unix seconds>,v1=<hex>`: HMAC-SHA256 of the seconds, a dot and the body. A later scheme would be
a v2 beside it.
"""

import hashlib
import hmac
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import orjson

from scheduler.errors import InvalidOption, InvalidSignature
from scheduler.model.durations import brief, duration

SIGNATURE = "Scheduler-Signature"
DELIVERY = "Scheduler-Delivery"


def sign(secret: str, body: bytes, *, at: datetime) -> str:
    """Sign a body at a moment."""
    seconds = str(int(at.timestamp()))
    return f"t={seconds},v1={_digest(secret, seconds, body)}"


def verify_callback(
    secret: str, headers: Mapping[str, str], body: bytes, *, tolerance: timedelta | str = "5m"
) -> Mapping[str, Any]:
    """Check that a callback is genuine, and return what it says; raises `InvalidSignature` if it is
    not.

    secret: the `callback_secret` of the scheduler. headers: of the request. body: its bytes as they
    came, unparsed. tolerance: how old it may be, and how far your clock may be off. The same one
    may come twice, as after a crash: its `Scheduler-Delivery` header is the same then.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidOption(
            f"body must be the bytes of the request as they came, not {type(body).__name__}"
        )
    allowed = duration(tolerance, name="tolerance").total_seconds()
    seconds, signatures = _parts(headers)
    body = bytes(body)
    expected = _digest(secret, seconds, body).encode()
    if not any(hmac.compare_digest(expected, each.encode()) for each in signatures):
        raise InvalidSignature(
            "the callback was not signed with this secret, or its body was changed: pass the "
            "callback_secret of the"
            " scheduler, and the body as it came, before anything parses it"
        )
    off = time.time() - int(seconds)
    if abs(off) > allowed:
        when = "old" if off > 0 else "ahead of this clock"
        raise InvalidSignature(
            f"the callback is {brief(timedelta(seconds=int(abs(off))))} {when}, more than the "
            "tolerance of"
            f" {brief(timedelta(seconds=allowed))}: it was sent again by somebody, or a clock is "
            "wrong"
        )
    said: Mapping[str, Any] = orjson.loads(body)
    return said


def _parts(headers: Mapping[str, str]) -> tuple[str, list[str]]:
    header = next(
        (value for name, value in headers.items() if name.lower() == SIGNATURE.lower()), None
    )
    if header is None:
        raise InvalidSignature(
            f"the request has no {SIGNATURE} header: it is no callback of a scheduler"
        )
    pairs = [pair.strip().partition("=") for pair in header.split(",")]
    times = [value for name, _, value in pairs if name == "t"]
    signatures = [value for name, _, value in pairs if name == "v1"]
    if (
        len(times) != 1
        or not (times[0].isascii() and times[0].isdigit() and len(times[0]) <= 12)
        or not signatures
    ):
        raise InvalidSignature(f"the {SIGNATURE} header must be like t=<unix seconds>,v1=<hex>")
    return times[0], signatures


def _digest(secret: str, seconds: str, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
