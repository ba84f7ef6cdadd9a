"""The sample jobs of `scheduler up`: two tenants, and one of everything that a job can do."""

import asyncio
from datetime import UTC, datetime

from scheduler.model.body import RunContext
from scheduler.model.definition import Registration

# A start long ago, the same in every process: fires fall on round seconds, and the first one comes at once.
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
    Registration(tenant="acme", job_id="import-orders", fn=import_orders, every="4s", start_at=ALIGNED),
    Registration(tenant="acme", job_id="fetch-rates", fn=fetch_rates, every="3s", start_at=ALIGNED),
    Registration(tenant="globex", job_id="cleanup", fn=cleanup, every="3s", start_at=ALIGNED),
    Registration(tenant="globex", job_id="backup", fn=backup, every="6s", start_at=ALIGNED, timeout="1m"),
]
