"""Instances and workers: who is there, who holds what, whose clock is wrong."""

from collections import defaultdict

from scheduler.store.pages import Held
from scheduler.web.pages_data import LEASES
from scheduler.web.problems import Problem
from scheduler.web.visit import Shown, Visit

ROWS = 100
SKEWED = 1.0


async def fleet(visit: Visit) -> Shown:
    """Show who runs jobs."""
    after = visit.request.query_params.get("after")
    place = {"cursor": after} if after else {}
    page = await visit.maybe("list_instances", limit=ROWS, **place)
    if isinstance(page, Problem):
        return Shown(
            "fleet.html",
            {
                "instances": [],
                "problem": page,
                "leases": {},
                "queues": [],
                "cursor": None,
                "after": None,
                "skewed": SKEWED,
            },
        )
    held: dict[object, list[Held]] = defaultdict(list)
    for lease in await visit.ask(LEASES):
        held[lease.owner].append(lease)
    queues = await visit.maybe("list_queues")
    return Shown(
        "fleet.html",
        {
            "instances": sorted(page["items"], key=lambda each: (not each["live"], each["label"])),
            "leases": dict(held),
            "queues": [] if isinstance(queues, Problem) else queues["items"],
            "problem": None,
            "cursor": page["cursor"],
            "after": after,
            "skewed": SKEWED,
        },
    )
