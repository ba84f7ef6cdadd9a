"""Handlers that run in child processes."""

import time

from scheduler import JobContext


def asks(ctx: JobContext, payload: object) -> None:
    ctx.progress(1)
    while not ctx.cancelled:
        time.sleep(0.01)


def logs(ctx: JobContext, payload: object) -> None:
    ctx.logger.warning("in a %s", ctx.type)


def raises(ctx: JobContext, payload: object) -> None:
    ctx.progress(1)
    while True:
        ctx.raise_if_cancelled()
        time.sleep(0.01)


def waits(ctx: JobContext, payload: object) -> None:
    ctx.progress(1)
    ctx.cancelled.wait(60)


def reads_the_reason(ctx: JobContext, payload: object) -> None:
    ctx.progress(1)
    while ctx.cancelled.reason is None:
        time.sleep(0.01)
