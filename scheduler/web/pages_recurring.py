"""Recurring jobs: the list with their last outcomes, and the page of one."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from scheduler.store.pages import Cell
from scheduler.web import charts
from scheduler.web.charts import Point
from scheduler.web.formats import clock, span, tone, words
from scheduler.web.pages_data import CELLS, STRIPS
from scheduler.web.visit import Shown, Visit

ROWS = 20
HISTORY = 50
RUN = ("trigger_recurring", "Run now", "")
STEERING = {
    "on": (RUN, ("pause_recurring", "Pause", "")),
    "paused": (RUN, ("resume_recurring", "Resume", "primary")),
}
LATE = timedelta(minutes=1)


async def recurring(visit: Visit) -> Shown:
    """List the registered jobs of a tenant."""
    tenant, after = visit.chosen, visit.request.query_params.get("after")
    if tenant is None:
        return Shown("recurring.html", {"jobs": [], "tenant": None, "cursor": None, "after": None})
    place = {"cursor": after} if after else {}
    page, cells = await asyncio.gather(
        visit.ask("list_recurring", tenant=tenant, limit=ROWS, **place),
        visit.ask(STRIPS, tenant=tenant, limit=ROWS, **place),
    )
    jobs = page["items"]
    by_job: dict[str, list[Cell]] = {}
    for cell in cells:
        by_job.setdefault(cell.id, []).append(cell)
    return Shown(
        "recurring.html",
        {
            "jobs": [{**job, "state": state(job)} for job in jobs],
            "strips": {job["job_id"]: _strip(by_job.get(job["job_id"], [])) for job in jobs},
            "steering": STEERING,
            "tenant": tenant,
            "cursor": page["cursor"],
            "after": after,
        },
    )


async def recurring_job(visit: Visit) -> Shown:
    """Show one registered job: what it will do, what it did, how long that took."""
    tenant, job_id = visit.given("tenant"), visit.given("id")
    before = visit.request.query_params.get("before")
    told = await visit.ask("explain_recurring", tenant=tenant, job_id=job_id)
    place = {"cursor": before} if before else {}
    history = await visit.ask("list_history", tenant=tenant, job_id=job_id, limit=HISTORY, **place)
    first = next(iter(told["next_fires"]), None)
    return Shown(
        "recurring_job.html",
        {
            "job": told,
            "state": state({**told, "next_run_at": first}),
            "history": history["items"],
            "cursor": history["cursor"],
            "before": before,
            "durations": _durations(history["items"]),
        },
    )


def state(job: dict[str, Any]) -> str:
    """Say in one word how a registered job is."""
    if job["running_fire_at"] is not None:
        return "running"
    if job["paused_at"] is not None:
        return "paused"
    if job["next_run_at"] is None:
        return "done"
    return "late" if job["next_run_at"] < datetime.now(UTC) - LATE else "waiting"


def _strip(cells: Sequence[Cell]) -> Markup:
    points = [Point(_titled(cell), None, tone(cell.outcome)) for cell in reversed(cells)]
    failed = sum(1 for point in points if point.tone == "bad")
    told = f"the last {len(cells)} runs, {failed} failed" if cells else "it has not run yet"
    return charts.strip(told, points, CELLS)


def _titled(cell: Cell) -> str:
    took = "" if cell.took is None else f" after {span(cell.took)}"
    why = f": {cell.reason}" if cell.reason else ""
    return f"{clock(cell.at)} · {words(cell.outcome)}{took}{why}"


def _durations(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Draw how long the runs took, oldest first."""
    ran = [row for row in reversed(rows) if row["duration_seconds"] is not None]
    if not ran:
        return None
    values = sorted(row["duration_seconds"] for row in ran)
    points = [
        Point(
            f"{clock(row['at'])} · {words(row['outcome'])} after {span(row['duration_seconds'])}",
            row["duration_seconds"],
            tone(row["outcome"]),
        )
        for row in ran
    ]
    median, most = values[len(values) // 2], values[-1]
    desc = f"{len(ran)} runs; half took at most {span(median)}, the longest {span(most)}."
    return {
        "svg": charts.dots("How long runs took", desc, points, most),
        "median": median,
        "most": most,
        "from": ran[0]["at"],
        "to": ran[-1]["at"],
        "count": len(ran),
    }
