"""Handlers that another process can import."""

from scheduler import JobContext, PermanentError
from scheduler.model.body import Here


def double(ctx: JobContext, payload: int) -> list[object]:
    ctx.progress(50)
    return [payload * 2, "process" if Here.is_child else "thread"]


def permanent(ctx: JobContext, payload: bytes) -> None:
    raise PermanentError(f"refused: {payload!r}", code="E7")


UNSTORABLE = {"set": {1, 2}, "bytes": b"x", "nul": "a\0b", "large": "x" * 2**20}


def unstorable(ctx: JobContext, payload: str) -> object:
    return UNSTORABLE[payload]


def endless(ctx: JobContext, payload: object) -> None:
    while True:
        pass


def reports(ctx: JobContext, payload: int) -> None:
    for number in range(1, payload + 1):
        ctx.progress(number, f"row {number}")


def key(ctx: JobContext, payload: object) -> list[object]:
    return [ctx.idempotency_key, "process" if Here.is_child else "thread"]
