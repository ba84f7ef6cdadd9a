"""Submitted jobs: the list, and the page of one with its attempts, its error and what it waits
for.
"""

import json
from datetime import datetime
from typing import Any

from scheduler.model.labels import Priority
from scheduler.model.states import TERMINAL, State
from scheduler.store.pages import Edge
from scheduler.web import charts
from scheduler.web.formats import first_line
from scheduler.web.jobs import LOOKED
from scheduler.web.pages_data import AROUND, MOST_EDGES
from scheduler.web.visit import Shown, Visit

ROWS = 50
FILTERS = ("state", "type", "queue")


async def jobs(visit: Visit) -> Shown:
    """List the submitted jobs of a tenant."""
    tenant, query = visit.chosen, visit.request.query_params
    wanted = {name: query[name] for name in FILTERS if query.get(name)}
    values: dict[str, Any] = {
        "tenant": tenant,
        "wanted": wanted,
        "states": list(State),
        "jobs": [],
        "cursor": None,
        "looked": None,
        "after": query.get("after"),
        "priorities": {each.value: each.name.lower() for each in Priority},
    }
    if tenant is not None:
        given: dict[str, Any] = {
            **wanted,
            **({"state": [wanted["state"]]} if "state" in wanted else {}),
        }
        if query.get("after"):
            given["cursor"] = query["after"]
        page = await visit.ask("list_jobs", tenant=tenant, limit=ROWS, **given)
        short = page["cursor"] is not None and len(page["items"]) < ROWS
        values.update(jobs=page["items"], cursor=page["cursor"], looked=LOOKED if short else None)
    return Shown("jobs.html", values)


async def job(visit: Visit) -> Shown:
    """Show one submitted job."""
    tenant, job_id = visit.given("tenant"), visit.given("id")
    found = await visit.ask("get_job", tenant=tenant, id=job_id)
    edges: list[Edge] = await visit.ask(AROUND, tenant=tenant, id=job_id)
    before, after = ([edge for edge in edges if edge.before is side] for side in (True, False))
    return Shown(
        "job.html",
        {
            "job": found,
            "priority": Priority(found["priority"]).name.lower(),
            "ended": found["state"] in TERMINAL,
            "retriable": found["state"] in (State.FAILED, State.DEAD_LETTER, State.CANCELLED),
            "steps": steps(found),
            "before": before,
            "after": after,
            "links_in": charts.links(len(before), into=True),
            "links_out": charts.links(len(after), into=False),
            "capped": max(len(before), len(after)) >= MOST_EDGES,
            "payload": _written(found, "payload"),
            "result": _written(found, "result"),
        },
    )


def steps(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Tell the life of a job in the order in which it happened."""
    told: list[dict[str, Any]] = [
        {"at": found["created_at"], "word": "submitted", "note": f"to queue {found['queue']}"}
    ]
    if found["run_at"] > found["created_at"] and not found["attempts"]:
        told.append({"at": found["run_at"], "word": "due", "note": ""})
    for each in found["attempts"]:
        began, ended = (_read(each.get(name)) for name in ("started_at", "finished_at"))
        worker = f"on {each['worker']}" if each.get("worker") else ""
        told.append(
            {
                "at": began,
                "until": ended,
                "word": each.get("outcome") or "running",
                "note": worker,
                "attempt": each["attempt"],
                "error": first_line(each.get("error")),
            }
        )
    runs = found["state"] == State.RUNNING and found["started_at"] is not None
    if runs:
        told.append(
            {"at": found["started_at"], "word": "running", "note": "", "attempt": found["attempt"]}
        )
    if found["cancel_requested_at"] is not None:
        told.append({"at": found["cancel_requested_at"], "word": "asked to end", "note": ""})
    if found["completed_at"] is not None:
        told.append(
            {"at": found["completed_at"], "word": found["state"], "note": found["reason"] or ""}
        )
    elif not runs:
        told.append({"at": None, "word": found["state"], "note": "now"})
    return told


def _read(said: object) -> datetime | None:
    if isinstance(said, str):
        return datetime.fromisoformat(said)
    return said if isinstance(said, datetime) else None


def _written(found: dict[str, Any], what: str) -> str | None:
    """Write a payload or a result for people, if this visitor may see it."""
    if f"{what}_base64" in found:
        return f"base64: {found[f'{what}_base64']}"
    return json.dumps(found[what], indent=2, ensure_ascii=False) if what in found else None
