"""Routes of workers: who lives to work at queues, what each holds, and how its circuit breakers
are.
"""

from scheduler.web.access import READ
from scheduler.web.jobs import QUEUE
from scheduler.web.route import Call, Route
from scheduler.web.schemas import CURSOR, LIMIT, named


def list_workers(call: Call) -> object:
    """Read a page of workers, by name; of one queue, as they are there."""
    limit, queue = call.given.get("limit", 100), call.given.get("queue")
    kind, _, name = call.given.get("cursor", "").partition(" ")
    scheduler = call.scheduler
    found = scheduler.workers() if queue is None else scheduler.queue(queue).workers()
    page = [each for each in found if (each.name, each.kind) > (name, kind)][:limit]
    return {
        "items": [each.plain() for each in page],
        "cursor": f"{page[-1].kind} {page[-1].name}" if len(page) == limit else None,
    }


ROUTES = (
    Route(
        name="list_workers",
        method="GET",
        path="/workers",
        summary="List the workers that live, what each holds, and how its circuit breakers are; at "
        "most 500 of a queue",
        scope=READ,
        call=list_workers,
        fleet=True,
        query={
            "queue": {**QUEUE, "description": "only those at this queue, and what they are there"},
            "limit": LIMIT,
            "cursor": {**CURSOR, "pattern": r"^[a-z]+ [^\u0000]+$"},
        },
        answers={200: named("WorkerPage")},
    ),
)
