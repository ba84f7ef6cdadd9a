"""Routes of the ledger."""

import base64
import binascii
from datetime import datetime

import orjson

from scheduler.errors import InvalidOption
from scheduler.model.job import HistoryPlace
from scheduler.model.texts import name
from scheduler.web import shapes
from scheduler.web.access import READ
from scheduler.web.route import Call, Route
from scheduler.web.schemas import CURSOR, LIMIT, NAME, named

KINDS = ("fire", "trigger", "audit", "job")


def list_history(call: Call) -> object:
    """Read a page of the ledger."""
    limit, cursor = call.given.get("limit", 100), call.given.get("cursor")
    before = None if cursor is None else _place(cursor)
    rows = call.scheduler.history(call.tenant, call.given.get("job_id"), limit, before=before)
    return {
        "items": [shapes.history_json(row) for row in rows],
        "cursor": _cursor(rows[-1].place) if len(rows) == limit else None,
    }


def _cursor(place: HistoryPlace) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(list(place))).decode()


def _place(cursor: str) -> HistoryPlace:
    try:
        at, job_id, kind = orjson.loads(base64.urlsafe_b64decode(cursor.encode()))
        moment = datetime.fromisoformat(at)
        if kind not in KINDS or moment.tzinfo is None:
            raise ValueError(kind)
        job = "" if job_id == "" else name(job_id, what="job_id")  # "": an audit row of the tenant
        return HistoryPlace(moment, job, kind)
    except (ValueError, TypeError, binascii.Error):
        raise InvalidOption("cursor is not one that a page of the ledger gave") from None


ROUTES = (
    Route(
        name="list_history",
        method="GET",
        path="/history",
        summary="Read the ledger, newest first: of a tenant, or of one of its jobs",
        scope=READ,
        call=list_history,
        query={"job_id": NAME, "limit": LIMIT, "cursor": CURSOR},
        answers={200: named("HistoryPage")},
    ),
)
