"""Routes of instances: who is there to run jobs."""

from uuid import UUID

from scheduler.web import schemas, shapes
from scheduler.web.access import READ
from scheduler.web.route import Call, Route
from scheduler.web.schemas import LIMIT, named


def list_instances(call: Call) -> object:
    """Read a page of instances."""
    limit = call.given.get("limit", 100)
    after = UUID(call.given.get("cursor", str(UUID(int=0))))
    rows = call.scheduler.instances(after=after, limit=limit)
    return {
        "items": [shapes.instance_json(row) for row in rows],
        "cursor": str(rows[-1].id) if len(rows) == limit else None,
    }


ROUTES = (
    Route(
        name="list_instances",
        method="GET",
        path="/instances",
        summary="List the processes that run jobs, "
        "also those that left without a word in the last day",
        scope=READ,
        call=list_instances,
        fleet=True,
        query={"limit": LIMIT, "cursor": schemas.UUID},
        answers={200: named("InstancePage")},
    ),
)
