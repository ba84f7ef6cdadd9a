"""Routes of submitted jobs: submit, look, wait, cancel, retry."""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from scheduler.model.labels import LONGEST_KEY, LONGEST_URL, MOST_TAGS, Priority
from scheduler.model.oneshot import Job
from scheduler.model.policies import Timeouts
from scheduler.model.retries import RetryPolicy
from scheduler.model.submission import NewJob, Submission
from scheduler.web import shapes
from scheduler.web.access import PAYLOADS, READ, WRITE
from scheduler.web.problems import Problem
from scheduler.web.route import Answer, Call, Route
from scheduler.web.schemas import (
    CURSOR,
    DURATION,
    LIMIT,
    MOMENT,
    NAME,
    UUID,
    YES,
    Schema,
    listed,
    named,
    record,
    text,
    whole,
)

MOST = 1000
LOOKED = 5000
LONGEST_WAIT = 60
FIRST_LOOK = 0.02
LAST_LOOK = 1.0

QUEUE = text(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}$")
_DELAYS = {"initial_delay": DURATION, "max_delay": DURATION}
_NEW: dict[str, Schema] = {
    "type": NAME,
    "payload": {"description": "any JSON"},
    "payload_base64": text(description="or bytes"),
    "queue": {**QUEUE, "default": "default"},
    "run_at": MOMENT,
    "delay": DURATION,
    "priority": {**shapes.PRIORITY, "default": Priority.NORMAL.value},
    "idempotency_key": text(LONGEST_KEY, least=1),
    "idempotency_window": {**DURATION, "default": "24h"},
    "after": listed(UUID, description="must have succeeded", maxItems=MOST),
    "after_any": listed(UUID, description="one must have ended", maxItems=MOST),
    "retry": record({**shapes.RETRY, **_DELAYS}, required=()),
    "timeouts": record(dict.fromkeys(shapes.TIMEOUTS, DURATION), required=()),
    "tags": {
        "type": "object",
        "maxProperties": MOST_TAGS,
        "propertyNames": NAME,
        "additionalProperties": text(500, least=1),
    },
    "correlation_id": text(LONGEST_KEY, least=1),
    "callback_url": text(LONGEST_URL, least=1),
}
_OTHERS: Schema = {
    "anyOf": [UUID, whole(0, MOST - 1, description="the place of another job of this batch")]
}
_IN_BATCH = {
    **_NEW,
    "after": listed(_OTHERS, maxItems=MOST),
    "after_any": listed(_OTHERS, maxItems=MOST),
}
ID = {"id": UUID}


def submit_job(call: Call) -> Answer:
    """Submit one job."""
    (made,) = _submitted(call, [call.body])
    return Answer(200 if made.duplicate else 201, _submission(made))


def submit_jobs(call: Call) -> object:
    """Submit many, all or none."""
    return {"items": [_submission(made) for made in _submitted(call, call.body["jobs"])]}


def list_jobs(call: Call) -> object:
    """Read a page of jobs."""
    given = call.given
    tag, value = given.get("tag"), given.get("tag_value")
    if tag is None and value is not None:
        raise Problem("refused", "tag_value: needs tag beside it")
    found = call.scheduler.find(
        call.tenant,
        state=given.get("state") or None,
        type=given.get("type"),
        queue=given.get("queue"),
        tag=tag if value is None or tag is None else {tag: value},
        limit=given.get("limit", 100),
        cursor=given.get("cursor"),
        most=LOOKED,
    )
    return {
        "items": [shapes.job_json(job, payloads=False) for job in found.jobs],
        "cursor": found.cursor,
    }


def get_job(call: Call) -> object:
    """Read one job."""
    return _shown(call, call.scheduler.get(call.tenant, call.given["id"]))


async def wait_for_job(call: Call) -> Answer:
    """Wait for the end of a job, without a thread."""
    until = asyncio.get_running_loop().time() + call.given.get("seconds", 30)
    look = FIRST_LOOK
    with call.streams.slots.taken(call.caller):
        while True:
            job = await call.blocking(call.scheduler.get, call.tenant, call.given["id"])
            left = until - asyncio.get_running_loop().time()
            if job.state.terminal or left <= 0 or call.streams.closing:
                return Answer(200 if job.state.terminal else 202, _shown(call, job))
            await asyncio.sleep(min(look, left))
            look = min(look * 1.5, LAST_LOOK)


def cancel_job(call: Call) -> object:
    """End a job, or ask for its end."""
    state = call.scheduler.cancel_job(
        call.tenant,
        call.given["id"],
        reason=call.body.get("reason"),
        force=call.body.get("force", False),
    )
    return {"state": state}


def retry_job(call: Call) -> object:
    """Submit a job anew that ended without success."""
    return _submission(call.scheduler.retry_job(call.tenant, call.given["id"]))


def _submitted(call: Call, bodies: list[dict[str, Any]]) -> list[Submission]:
    new = [NewJob(call.tenant, **_options(body)) for body in bodies]
    for job, body in zip(new, bodies, strict=True):
        for option in ("after", "after_any"):
            if body.get(option):
                setattr(job, option, [_other(new, each, option) for each in body[option]])
    return call.scheduler.submit_many(new)


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    options = {
        name: value
        for name, value in body.items()
        if name not in ("payload_base64", "after", "after_any")
    }
    if "payload_base64" in body:
        if "payload" in body:
            raise Problem(
                "refused", "payload and payload_base64 exclude each other; give one of them"
            )
        try:
            options["payload"] = base64.b64decode(body["payload_base64"], validate=True)
        except (binascii.Error, ValueError):
            raise Problem("refused", "payload_base64 is not base64") from None
    if "run_at" in body:
        options["run_at"] = datetime.fromisoformat(body["run_at"])
    if "priority" in body:
        options["priority"] = Priority(int(body["priority"]))
    if "retry" in body:
        retry = dict(body["retry"])
        if "max_attempts" in retry:
            retry["max_attempts"] = int(retry["max_attempts"])  # JSON has 3.0 for 3
        options["retry"] = RetryPolicy(**retry)
    if "timeouts" in body:
        options["timeouts"] = Timeouts(**body["timeouts"])
    return options


def _other(new: list[NewJob], named_by: str | float, option: str) -> NewJob | str:
    if isinstance(named_by, str):
        return named_by
    if named_by >= len(new):
        raise Problem("refused", f"{option}: there is no job {named_by} in this batch")
    return new[int(named_by)]


def _shown(call: Call, job: Job) -> dict[str, Any]:
    return shapes.job_json(job, payloads=PAYLOADS in call.caller.scopes)


def _submission(made: Submission) -> dict[str, Any]:
    return {"id": made.id, "duplicate": made.duplicate}


ROUTES = (
    Route(
        name="submit_job",
        method="POST",
        path="/jobs",
        summary="Submit a job",
        scope=WRITE,
        call=submit_job,
        body=record(_NEW, required=("type",)),
        answers={201: named("Submission"), 200: named("Submission")},
    ),
    Route(
        name="list_jobs",
        method="GET",
        path="/jobs",
        summary=(
            "List jobs, without payloads: live ones, newest first, "
            "then those that ended, the last to end first;"
            f" a page looks at {LOOKED:,} of either, "
            "so that it may be short or empty and yet have a cursor:"
            " what fits may come further on"
        ),
        scope=READ,
        call=list_jobs,
        query={
            "state": listed(shapes.STATE, maxItems=9, description="any of these"),
            "type": NAME,
            "queue": QUEUE,
            "tag": NAME,
            "tag_value": text(500, least=1, pattern=r"^[^\u0000]*$"),
            "limit": LIMIT,
            "cursor": CURSOR,
        },
        answers={200: named("JobPage")},
    ),
    Route(
        name="submit_jobs",
        method="POST",
        path="/jobs/batch",
        summary="Submit many jobs at once, all or none",
        scope=WRITE,
        call=submit_jobs,
        body=record(
            {"jobs": listed(record(_IN_BATCH, required=("type",)), minItems=1, maxItems=MOST)}
        ),
        answers={201: record({"items": listed(named("Submission"))})},
    ),
    Route(
        name="get_job",
        method="GET",
        path="/jobs/{id}",
        summary="Read a job, live or ended",
        scope=READ,
        call=get_job,
        places=ID,
        answers={200: named("Job")},
    ),
    Route(
        name="wait_for_job",
        method="GET",
        path="/jobs/{id}/wait",
        summary="Wait until a job has ended; 202 if it has not by then",
        scope=READ,
        call=wait_for_job,
        places=ID,
        query={"seconds": whole(0, LONGEST_WAIT, default=30)},
        answers={200: named("Job"), 202: named("Job")},
    ),
    Route(
        name="cancel_job",
        method="POST",
        path="/jobs/{id}/cancel",
        summary="End a job that has not begun; "
        "ask one that runs to end, or end it at once by force",
        scope=WRITE,
        call=cancel_job,
        places=ID,
        body=record({"reason": text(1000), "force": {**YES, "default": False}}, required=()),
        answers={200: record({"state": shapes.STATE})},
    ),
    Route(
        name="retry_job",
        method="POST",
        path="/jobs/{id}/retry",
        summary="Submit a job anew that failed, died or was cancelled",
        scope=WRITE,
        call=retry_job,
        places=ID,
        body=record({}),
        answers={201: named("Submission")},
    ),
)
