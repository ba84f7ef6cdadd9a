"""Queues, which all tenants share: how much is where, what is next, dead letters."""

import asyncio
from typing import Any

from scheduler.model.breaker import BreakerState
from scheduler.model.labels import Priority
from scheduler.web import charts
from scheduler.web.charts import Column
from scheduler.web.formats import first_line, number
from scheduler.web.pages_data import ENDS, LETTERS, Minute, Parts, together
from scheduler.web.pages_fleet import ROWS, worker
from scheduler.web.problems import Problem
from scheduler.web.queues import COUNTED
from scheduler.web.schemas import LARGEST_PAGE
from scheduler.web.visit import Shown, Visit

NEXT = 10
GROUPED = 200
FEWEST = 20
RATED = 20
LAST = 5
TYPES = 20
WORST_FIRST = (*(state.word for state in sorted(BreakerState, reverse=True)), None)


async def queues(visit: Visit) -> Shown:
    """Show all queues."""
    found, ends = await asyncio.gather(visit.maybe("list_queues"), _ends(visit))
    if isinstance(found, Problem):
        return Shown("queues.html", {"queues": [], "problem": found, "hidden": 0})
    items = [_queue(each, ends) for each in found["items"]]
    return Shown(
        "queues.html", {"queues": items, "problem": None, "hidden": len(visit.tenants) - RATED}
    )


async def queue(visit: Visit) -> Shown:
    """Show one queue, and what is next in it."""
    name = visit.given("name")
    found = await visit.ask("get_queue", name=name)
    ends, entries = await asyncio.gather(
        _ends(visit), visit.maybe("peek_queue", name=name, limit=NEXT)
    )
    trouble = isinstance(entries, Problem)
    told = entries if trouble else await visit.maybe("list_workers", queue=name, limit=LARGEST_PAGE)
    away = isinstance(told, Problem)
    workers = [] if away else sorted(told["items"], key=_breaker)
    unhandled = list(found["unhandled"].items())
    return Shown(
        "queue.html",
        {
            "queue": _queue(found, ends),
            "entries": [] if trouble else entries["items"],
            "problem": entries if trouble else None,
            "priorities": {each.value: each.name.lower() for each in Priority},
            "workers": [worker(each) for each in workers[:ROWS]],
            "unseen": len(workers[ROWS:]),
            "away": told if away else None,
            "unhandled": unhandled[:TYPES],
            "more_unhandled": len(unhandled[TYPES:]),
        },
    )


async def dead(visit: Visit) -> Shown:
    """Show dead letters, by queue and by what killed them."""
    found = await visit.maybe("list_queues")
    if isinstance(found, Problem):
        return Shown(
            "dead.html", {"queues": [], "problem": found, "most": GROUPED, "counted": COUNTED}
        )
    only = visit.request.query_params.get("name")
    queues = [each for each in found["items"] if each["dead"] and only in (None, each["name"])]
    most = max(FEWEST, GROUPED // max(1, len(queues)))
    letters = await visit.ask(LETTERS, names=[each["name"] for each in queues], limit=most)
    shown = [{**each, "groups": _groups(visit, letters[each["name"]])} for each in queues]
    return Shown("dead.html", {"queues": shown, "problem": None, "most": most, "counted": COUNTED})


async def purge(visit: Visit) -> Shown:
    """Ask once more before dead letters are dropped."""
    name = visit.given("name")
    return Shown(
        "purge.html", {"queue": await visit.ask("get_queue", name=name), "counted": COUNTED}
    )


def _groups(visit: Visit, letters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put letters together that died of the same, each with the address of its job."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for letter in letters:
        to = (
            visit.link("/job", tenant=letter["tenant"], id=letter["id"])
            if letter["tenant"]
            else None
        )
        groups.setdefault((letter["type"], first_line(letter["reason"])), []).append(
            {**letter, "to": to}
        )
    made = [{"type": kind, "why": why, "letters": found} for (kind, why), found in groups.items()]
    return sorted(made, key=lambda group: -len(group["letters"]))


def _breaker(worker: dict[str, Any]) -> int:
    """Say how good the breaker of a worker at one queue is; the worst is least."""
    return min(
        (WORST_FIRST.index(at["breaker"]) for at in worker["queues"]), default=len(WORST_FIRST)
    )


def _told(ends: Parts) -> str:
    return f"{number(sum(ends.values()))} ended, {number(ends.get('bad', 0))} failed"


async def _ends(visit: Visit) -> list[Minute]:
    """Read how jobs of the first tenants ended lately."""
    if not visit.tenants or not visit.all_tenants:
        return []
    found: list[Minute] = await visit.ask(ENDS, tenants=visit.tenants[:RATED])
    return found


def _queue(found: dict[str, Any], lately: list[Minute]) -> dict[str, Any]:
    """Add to a queue what is drawn of it."""
    waiting = {Priority(int(level)): count for level, count in found["waiting"].items()}
    parts = [
        (f"level-{level.value}", f"{level.name.lower()}: {number(waiting[level])}", waiting[level])
        for level in sorted(waiting)
    ]
    minutes = [(minute.word, minute.queues.get(found["name"], {})) for minute in lately]
    most = max((sum(ends.values()) for _, ends in minutes), default=0)
    columns = [Column(f"{at} · {_told(ends)}" if ends else "", ends) for at, ends in minutes]
    recent = together(ends for _, ends in minutes[-LAST - 1 : -1])
    total = sum(waiting.values())
    return {
        **found,
        "depth": charts.share(f"{number(total)} wait in {found['name']}, by priority", parts),
        "total": total,
        "levels": [
            (level.name.lower(), waiting[level], level.value)
            for level in sorted(waiting)
            if waiting[level]
        ],
        "ends": charts.bars(f"Ended each minute in {found['name']}", "", columns, most)
        if most
        else None,
        "rate": sum(recent.values()) / LAST,
        "failing": recent.get("bad", 0) / LAST,
        "about": any(minute.about for minute in lately),
    }
