"""Routes of queues, which all tenants share: look into them, pause and resume them, see to dead
letters.
"""

from scheduler.model.queues import QueueEntry, QueueStats
from scheduler.web import schemas, shapes
from scheduler.web.access import PAYLOADS, READ, WRITE
from scheduler.web.jobs import QUEUE
from scheduler.web.problems import Problem
from scheduler.web.route import Call, Route
from scheduler.web.schemas import (
    LARGEST_PAGE,
    LIMIT,
    MOMENT,
    YES,
    listed,
    named,
    record,
    text,
    whole,
)

NAME = {"name": QUEUE}
DEEPEST = 10_000
COUNTED = 1000


def list_queues(call: Call) -> object:
    """Say how much is in each queue."""
    return {"items": [_queue(each) for each in call.scheduler.queues(most=COUNTED)]}


def get_queue(call: Call) -> object:
    """Say how much is in a queue."""
    return _queue(call.scheduler.queue(call.given["name"]).stats(COUNTED))


def peek_queue(call: Call) -> object:
    """Read the next jobs of a queue."""
    found = call.scheduler.queue(call.given["name"]).peek(call.given.get("limit", 100))
    return {"items": [_entry(call, each) for each in found]}


def pause_queue(call: Call) -> object:
    """Stop a queue."""
    return {"paused_at": call.scheduler.pause_queue(call.given["name"])}


def resume_queue(call: Call) -> object:
    """Let a queue go on."""
    return {"was_paused": call.scheduler.resume_queue(call.given["name"])}


def list_dead(call: Call) -> object:
    """Read dead letters."""
    return letters_json(
        call, call.given["name"], call.given.get("limit", 100), call.given.get("skip", 0)
    )


def requeue_dead(call: Call) -> object:
    """Let dead letters run again: those that are named, or the newest."""
    queue = call.scheduler.queue(call.given["name"])
    ids = call.body.get("ids")
    done = queue.requeue([each.id for each in queue.dead(LARGEST_PAGE)] if ids is None else ids)
    return {"requeued": dict(done.jobs), "refused": dict(done.refused)}


def purge_dead(call: Call) -> object:
    """Drop all dead letters, for a caller that names the queue twice."""
    name = call.given["name"]
    if call.body["confirm"] != name:
        raise Problem(
            "refused",
            f"confirm must be the name of the queue, {name!r}: its dead letters are gone after it",
        )
    return {"purged": call.scheduler.queue(name).purge()}


def letters_json(
    call: Call, name: str, limit: int, skip: int = 0
) -> dict[str, list[dict[str, object]]]:
    """Show some dead letters of a queue."""
    return {"items": [_entry(call, each) for each in call.scheduler.queue(name).dead(limit, skip)]}


def _queue(stats: QueueStats) -> dict[str, object]:
    plain = {name: getattr(stats, name) for name in QueueStats.__dataclass_fields__}
    return {
        **plain,
        "waiting": {str(level.value): count for level, count in stats.waiting.items()},
        "breakers": {
            state.word: count for state, count in sorted(stats.breakers.items(), reverse=True)
        },
    }


def _entry(call: Call, entry: QueueEntry) -> dict[str, object]:
    plain = {
        name: getattr(entry, name)
        for name in QueueEntry.__dataclass_fields__
        if name not in ("payload", "raw")
    }
    return plain | (shapes.payload_json(entry.payload) if PAYLOADS in call.caller.scopes else {})


ENTRIES = record({"items": listed(named("QueueEntry"))})
BY_ID = {"type": "object", "additionalProperties": text()}

ROUTES = (
    Route(
        name="list_queues",
        method="GET",
        path="/queues",
        summary="Say how much is in each queue that is configured, "
        "was ever fed, or has jobs that wait",
        scope=READ,
        call=list_queues,
        fleet=True,
        answers={200: record({"items": listed(named("Queue"))})},
    ),
    Route(
        name="get_queue",
        method="GET",
        path="/queues/{name}",
        summary="Say how much is in a queue",
        scope=READ,
        call=get_queue,
        fleet=True,
        places=NAME,
        answers={200: named("Queue")},
    ),
    Route(
        name="peek_queue",
        method="GET",
        path="/queues/{name}/peek",
        summary="Read the next jobs of a queue, in the order in which they are taken",
        scope=READ,
        call=peek_queue,
        fleet=True,
        places=NAME,
        query={"limit": LIMIT},
        answers={200: ENTRIES},
    ),
    Route(
        name="pause_queue",
        method="POST",
        path="/queues/{name}/pause",
        summary="Stop a queue: nothing is fed to it and nothing taken from it",
        scope=WRITE,
        call=pause_queue,
        fleet=True,
        places=NAME,
        body=record({}),
        answers={200: record({"paused_at": MOMENT})},
    ),
    Route(
        name="resume_queue",
        method="POST",
        path="/queues/{name}/resume",
        summary="Let a queue go on",
        scope=WRITE,
        call=resume_queue,
        fleet=True,
        places=NAME,
        body=record({}),
        answers={200: record({"was_paused": YES})},
    ),
    Route(
        name="list_dead",
        method="GET",
        path="/queues/{name}/dead",
        summary="Read dead letters, newest first: those of the ledger, then those of others",
        scope=READ,
        call=list_dead,
        fleet=True,
        places=NAME,
        query={"limit": LIMIT, "skip": whole(0, DEEPEST, default=0)},
        answers={200: ENTRIES},
    ),
    Route(
        name="requeue_dead",
        method="POST",
        path="/queues/{name}/dead/requeue",
        summary=f"Let dead letters run again: those that are named, or the newest {LARGEST_PAGE}",
        scope=WRITE,
        call=requeue_dead,
        fleet=True,
        places=NAME,
        body=record({"ids": listed(schemas.NAME, minItems=1, maxItems=LARGEST_PAGE)}, required=()),
        answers={
            200: record(
                {"requeued": {**BY_ID, "description": "the new job of each"}, "refused": BY_ID}
            )
        },
    ),
    Route(
        name="purge_dead",
        method="POST",
        path="/queues/{name}/dead/purge",
        summary="Drop all dead letters of a queue; the ledger keeps what it knows of its jobs",
        scope=WRITE,
        call=purge_dead,
        fleet=True,
        places=NAME,
        body=record({"confirm": text(100, description="the name of the queue")}),
        answers={200: record({"purged": whole(0)})},
    ),
)
