"""The first page: what fires when, how much ends and how late it starts, what is late, what is
dead.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from scheduler.store.pages import Coming, Letter
from scheduler.web import charts
from scheduler.web.charts import Column, Point
from scheduler.web.formats import number, span
from scheduler.web.pages_data import (
    AHEAD,
    HOURS,
    MINUTE,
    MOST_JOBS,
    MOST_LETTERS,
    NEXT,
    Hour,
    Minute,
    Parts,
    together,
)
from scheduler.web.problems import Problem
from scheduler.web.queues import COUNTED
from scheduler.web.visit import Shown, Visit

LANES = 4
LISTED = 6
NAMES = {
    "good": "succeeded",
    "bad": "failed",
    "warn": "timed out",
    "next": "queued",
    "calm": "skipped or cancelled",
}


async def overview(visit: Visit) -> Shown:
    """Show the last hour, and what is to come."""
    shown = [visit.tenant] if visit.tenant else visit.tenants[:LANES]
    hours, queues = await asyncio.gather(_hours(visit, shown), _queues(visit))
    minutes = [hour.minutes for hour in hours.values()]
    added = [
        (group[0], together(each.all for each in group)) for group in zip(*minutes, strict=True)
    ]
    return Shown(
        "overview.html",
        {
            "hours": hours,
            "hidden": 0 if visit.tenant else len(visit.tenants) - len(shown),
            "lanes": {tenant: _lane(tenant, hour) for tenant, hour in hours.items()},
            "now": next((hour.now for hour in hours.values()), None),
            "throughput": throughput(added, about=any(hour.about for hour in hours.values())),
            "latency": latency(minutes),
            "tiles": _tiles(hours, queues),
            "late": sorted(
                (
                    (each.at, tenant, each.id)
                    for tenant, hour in hours.items()
                    for each in hour.late()
                ),
            )[:LISTED],
            "dead": sorted(
                ((tenant, each) for tenant, hour in hours.items() for each in hour.letters),
                key=lambda pair: pair[1].at,
                reverse=True,
            )[:LISTED],
            "quiet": not any(hour.busy for hour in hours.values()),
            "queues_trouble": queues
            if isinstance(queues, Problem) and queues.code == "unavailable"
            else None,
        },
    )


async def _hours(visit: Visit, tenants: list[str]) -> dict[str, Hour]:
    if not tenants:
        return {}
    asked = visit.ask(HOURS, tenants=tenants), visit.ask(NEXT, tenants=tenants, limit=LISTED)
    hours: dict[str, Hour]
    ahead: tuple[list[Coming], list[Letter]]
    hours, ahead = await asyncio.gather(*asked)
    for job in ahead[0]:
        hours[job.tenant].coming.append(job)
    for letter in ahead[1]:
        hours[letter.tenant].letters.append(letter)
    return hours


async def _queues(visit: Visit) -> Any:
    return await visit.maybe("list_queues") if visit.all_tenants else None


def throughput(added: Sequence[tuple[Minute, Parts]], *, about: bool) -> dict[str, Any] | None:
    """Draw how much ended in each minute."""
    if not any(parts for _, parts in added):
        return None
    most = max(sum(parts.values()) for _, parts in added)
    whole = together(parts for _, parts in added)
    total, failed = sum(whole.values()), whole.get("bad", 0)
    columns = [Column(f"{minute.word} · {_told(parts)}", parts) for minute, parts in added]
    desc = (
        f"In the last hour {number(total)} ended, {number(failed)} failed; at most {number(most)} "
        "in one minute."
    )
    return {
        "svg": charts.bars("Ended each minute", desc, columns, most),
        "most": most,
        "total": total,
        "failed": failed,
        "about": about,
        "from": added[0][0].at,
    }


def latency(hours: Sequence[Sequence[Minute]]) -> dict[str, Any] | None:
    """Draw how late things started."""
    usual, late = [], []
    for group in zip(*hours, strict=True):
        at = group[0].word
        known = [
            (sum(each.all.values()), each.usual, each.late)
            for each in group
            if each.late is not None
        ]
        weight = sum(count for count, _, _ in known)
        middle = sum(count * (each or 0) for count, each, _ in known) / weight if weight else None
        worst = max((each for _, _, each in known if each is not None), default=None)
        usual.append(Point(f"{at} · median {span(middle)}" if known else "", middle))
        late.append(Point(f"95 % within {span(worst)}" if known else "", worst))
    values = [point.value for point in late if point.value is not None]
    if not values:
        return None
    most = max(values)
    middles = sorted(point.value for point in usual if point.value is not None)
    desc = (
        f"In the median minute half started within {span(middles[len(middles) // 2])}; the worst "
        f"95 % was {span(most)}."
    )
    svg = charts.lines("How late fires and jobs start", desc, {"late": late, "usual": usual}, most)
    return {"svg": svg, "most": most, "usual": middles[len(middles) // 2], "from": hours[0][0].at}


def _lane(tenant: str, hour: Hour) -> Markup:
    """Draw the fires of a tenant: what was, and what is to come."""
    columns = [
        Column(f"{minute.word} · {_told(minute.fires)}" if minute.fires else "", minute.fires)
        for minute in hour.minutes
    ]
    soon = {each.at: each.many for each in hour.coming if each.what == "minute"}
    first = hour.minutes[-1].at + MINUTE
    for number_ in range(AHEAD):
        at = first + number_ * MINUTE
        count = soon.get(at, 0) + (soon.get(hour.minutes[-1].at, 0) if number_ == 0 else 0)
        said = f"{at:%H:%M} · {number(count)} to come" if count else ""
        columns.append(Column(said, {"next": count} if count else {}))
    total = together(minute.fires for minute in hour.minutes)
    desc = (
        f"In the last hour: {_told(total) or 'nothing'}. To come in {AHEAD} minutes: "
        f"{number(sum(soon.values()))}."
    )
    return charts.lane(f"Fires of {tenant}", desc, columns, len(hour.minutes))


def _told(parts: Parts) -> str:
    return ", ".join([f"{parts[tone]:,} {word}" for tone, word in NAMES.items() if parts.get(tone)])


def _tiles(hours: dict[str, Hour], queues: Any) -> list[dict[str, Any]]:
    ended = together(minute.all for hour in hours.values() for minute in hour.minutes)
    failed, about = ended.get("bad", 0), any(hour.about for hour in hours.values())
    late = sum(hour.count("late") for hour in hours.values())
    dead = sum(hour.letters[0].total for hour in hours.values() if hour.letters)
    capped = any(hour.letters and hour.letters[0].total >= MOST_LETTERS for hour in hours.values())
    tiles: list[dict[str, Any]] = [
        {
            "name": "Recurring jobs",
            "path": "/recurring",
            "value": sum(hour.jobs for hour in hours.values()),
            "more": any(hour.jobs >= MOST_JOBS // len(hours) for hour in hours.values()),
            "note": f"{number(late)} late"
            if late
            else f"{sum(h.count('paused') for h in hours.values())} paused",
            "tone": "warn" if late else "",
        },
        {
            "name": "Ended in the last hour",
            "path": "/jobs",
            "value": sum(ended.values()),
            "about": about,
            "note": f"{number(failed)} failed",
            "tone": "bad" if failed else "",
        },
    ]
    if isinstance(queues, dict):
        items = queues["items"]
        waiting = sum(sum(each["waiting"].values()) + each["ready"] for each in items)
        tiles += [
            {
                "name": "Waiting in queues",
                "path": "/queues",
                "value": waiting,
                "more": any(each["ready"] >= COUNTED for each in items),
                "note": (
                    f"{sum(1 for each in items if each['paused'])} of {len(items)} queues paused"
                ),
                "tone": "",
            },
            {
                "name": "Running now",
                "path": "/queues",
                "value": sum(each["running"] for each in items),
                "note": (
                    f"{number(sum(each['retrying'] for each in items))} wait for another attempt"
                ),
                "tone": "",
            },
        ]
    tiles.append(
        {
            "name": "Dead letters",
            "path": "/dead",
            "value": dead,
            "more": capped,
            "note": "need a decision" if dead else "nothing to see to",
            "tone": "bad" if dead else "",
        }
    )
    return tiles
