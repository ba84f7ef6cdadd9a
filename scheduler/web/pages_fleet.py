"""Instances and workers: who is there, who holds what, whose clock is wrong, whose breaker is
open.
"""

from collections import defaultdict
from typing import Any

from scheduler.store.pages import Held
from scheduler.web.pages_data import LEASES
from scheduler.web.problems import Problem
from scheduler.web.visit import Shown, Visit

ROWS = 100
SKEWED = 1.0
NAMED = 4


async def fleet(visit: Visit) -> Shown:
    """Show who runs jobs."""
    after = visit.request.query_params.get("after")
    page = await visit.maybe("list_instances", limit=ROWS, **_from(after))
    if isinstance(page, Problem):
        return Shown("fleet.html", {"problem": page})
    held: dict[object, list[Held]] = defaultdict(list)
    for lease in await visit.ask(LEASES):
        held[lease.owner].append(lease)
    queues = await visit.maybe("list_queues")
    past = visit.request.query_params.get("past")
    workers = await visit.maybe("list_workers", limit=ROWS, **_from(past))
    away = isinstance(workers, Problem)
    return Shown(
        "fleet.html",
        {
            "problem": None,
            "instances": sorted(page["items"], key=lambda each: (not each["live"], each["label"])),
            "leases": dict(held),
            "cursor": page["cursor"],
            "after": after,
            "skewed": SKEWED,
            "queues": [] if isinstance(queues, Problem) else queues["items"],
            "workers": [] if away else [worker(each) for each in workers["items"]],
            "away": workers if away and workers.code != "not_configured" else None,
            "more": None if away else workers["cursor"],
            "past": past,
        },
    )


def worker(found: dict[str, Any]) -> dict[str, Any]:
    """Add to a worker what is shown of its jobs: some, those that are named besides, and how many
    are not.
    """
    jobs = [job for at in found["queues"] for job in at["jobs"]]
    unnamed = max(0, (found["holds"] or 0) - len(jobs))
    overdue = sum(len(at["overdue"]) for at in found["queues"])
    shown = {"jobs": jobs[:NAMED], "others": jobs[NAMED:], "unnamed": unnamed, "overdue": overdue}
    return {**found, **shown}


def _from(cursor: str | None) -> dict[str, str]:
    return {"cursor": cursor} if cursor else {}
