"""The sample jobs of `scheduler up`: two tenants, and one of everything that a job can do."""

import asyncio
from datetime import UTC, datetime

from scheduler.errors import TemporaryError
from scheduler.model.body import RunContext
from scheduler.model.definition import Registration
from scheduler.model.handling import JobContext
from scheduler.worker.handlers import handler

# A start long ago, the same in every process: fires fall on round seconds, and the first one comes
# at once.
ALIGNED = datetime(2024, 1, 1, tzinfo=UTC)


def heartbeat() -> None:
    """Do nothing, often."""


def report(ctx: RunContext) -> None:
    """Work for a moment."""
    ctx.cancelled.wait(0.4)


def import_orders(ctx: RunContext) -> None:
    """Fail now and then, at the same fires in every instance."""
    ctx.cancelled.wait(0.05)
    if ctx.fire_at.second % 3 == 0:
        raise ConnectionError("the shop answered 503, try again later")


async def fetch_rates() -> None:
    """Wait without a thread."""
    await asyncio.sleep(0.2)


def cleanup(ctx: RunContext) -> None:
    """Work a little."""
    ctx.cancelled.wait(0.02)


def backup(ctx: RunContext) -> None:
    """Take longer than its interval: the fires meanwhile are skipped, and never two run at once."""
    if ctx.cancelled.wait(7.5):
        raise InterruptedError(f"stopped half-way: {ctx.cancelled.reason}")


SAMPLES = [
    Registration(tenant="acme", job_id="heartbeat", fn=heartbeat, every="2s", start_at=ALIGNED),
    Registration(tenant="acme", job_id="report", fn=report, every="5s", start_at=ALIGNED),
    Registration(
        tenant="acme", job_id="import-orders", fn=import_orders, every="4s", start_at=ALIGNED
    ),
    Registration(tenant="acme", job_id="fetch-rates", fn=fetch_rates, every="3s", start_at=ALIGNED),
    Registration(tenant="globex", job_id="cleanup", fn=cleanup, every="3s", start_at=ALIGNED),
    Registration(
        tenant="globex", job_id="backup", fn=backup, every="6s", start_at=ALIGNED, timeout="1m"
    ),
]


@handler("send-receipt", queue="mail")
def send_receipt(ctx: JobContext, payload: object) -> dict[str, object]:
    """Fail at every first attempt of some, and succeed at the second."""
    ctx.cancelled.wait(0.05)
    if ctx.attempt == 1 and ctx.id[0] in "0123":
        raise TemporaryError("the mail server is busy", retry_after="1s")
    return {"sent": payload}


@handler("resize", queue="images", timeout="10s")
async def resize(ctx: JobContext, payload: object) -> None:
    """Say how far it is, then let another job follow."""
    for percent in (25, 50, 75):
        await asyncio.sleep(0.1)
        ctx.progress(percent)
    ctx.submit("send-receipt", payload, queue="mail")


HANDLERS = [send_receipt, resize]
QUEUED = [
    Registration(
        tenant="acme",
        job_id="receipts",
        queue="mail",
        type="send-receipt",
        payload={"order": 7},
        every="3s",
        start_at=ALIGNED,
    ),
    Registration(
        tenant="globex",
        job_id="images",
        queue="images",
        type="resize",
        payload={"page": 1},
        every="5s",
        start_at=ALIGNED,
    ),
]
