"""Routes of recurring jobs: list, explain, pause, resume, trigger."""

from scheduler.web import shapes
from scheduler.web.access import READ, WRITE
from scheduler.web.route import Call, Route
from scheduler.web.schemas import CURSOR, LIMIT, MOMENT, NAME, maybe, named, record

JOB = {"job_id": NAME}


def list_recurring(call: Call) -> object:
    """Read a page of registered jobs; the id of the last is where the next page begins."""
    limit = call.given.get("limit", 100)
    rows = call.scheduler.registered(call.tenant, after=call.given.get("cursor", ""), limit=limit)
    return {
        "items": [shapes.recurring_json(row) for row in rows],
        "cursor": rows[-1].job_id if len(rows) == limit else None,
    }


def explain_recurring(call: Call) -> object:
    """Say what a job will do, what it did, who can run it."""
    return shapes.explanation_json(call.scheduler.explain(call.tenant, call.given["job_id"]))


def pause_recurring(call: Call) -> object:
    """Let its fires pass a job by."""
    return {"paused_at": call.scheduler.pause(call.tenant, call.given["job_id"])}


def resume_recurring(call: Call) -> object:
    """Let a job go on."""
    return {"next_run_at": call.scheduler.resume(call.tenant, call.given["job_id"])}


def trigger_recurring(call: Call) -> object:
    """Ask for a run beside the schedule."""
    return {"trigger_at": call.scheduler.trigger(call.tenant, call.given["job_id"])}


ROUTES = (
    Route(
        name="list_recurring",
        method="GET",
        path="/recurring",
        summary="List recurring jobs, by id",
        scope=READ,
        call=list_recurring,
        query={"limit": LIMIT, "cursor": {**NAME, "description": CURSOR["description"]}},
        answers={200: named("RecurringPage")},
    ),
    Route(
        name="pause_recurring",
        method="POST",
        path="/recurring/{job_id:path}/pause",
        summary="Let its fires pass a job by, in the whole fleet, until it is resumed",
        scope=WRITE,
        call=pause_recurring,
        places=JOB,
        body=record({}),
        answers={200: record({"paused_at": MOMENT})},
    ),
    Route(
        name="resume_recurring",
        method="POST",
        path="/recurring/{job_id:path}/resume",
        summary="Let a paused job go on with its next fire",
        scope=WRITE,
        call=resume_recurring,
        places=JOB,
        body=record({}),
        answers={200: record({"next_run_at": maybe(MOMENT)})},
    ),
    Route(
        name="trigger_recurring",
        method="POST",
        path="/recurring/{job_id:path}/trigger",
        summary="Run a job soon, beside its schedule",
        scope=WRITE,
        call=trigger_recurring,
        places=JOB,
        body=record({}),
        answers={200: record({"trigger_at": MOMENT})},
    ),
    Route(
        name="explain_recurring",
        method="GET",
        path="/recurring/{job_id:path}",
        summary="Say what a job will do, what it did and why, and who can run it",
        scope=READ,
        call=explain_recurring,
        places=JOB,
        answers={200: named("Explanation")},
    ),
)
