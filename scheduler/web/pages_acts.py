"""What forms on pages ask for: routes that steer, by their name, and where one is afterwards."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from scheduler.web.problems import Problem
from scheduler.web.route import Route
from scheduler.web.schemas import plain
from scheduler.web.visit import BY_NAME, Visit

DONE = {
    "trigger_recurring": "It runs in a moment, beside its schedule.",
    "pause_recurring": "Paused: its fires pass it by until it is resumed.",
    "resume_recurring": "Resumed: it goes on with its next fire.",
    "cancel_job": "Cancelled, or asked to end if a worker has it.",
    "retry_job": "Submitted anew; this is the new job.",
    "pause_queue": "Paused: nothing is fed to it, and workers take nothing from it.",
    "resume_queue": "Resumed: workers take its jobs again.",
    "requeue_dead": "Put back to run again",
    "purge_dead": "Dropped for good",
}
NOT_OF_ROUTES = frozenset({"csrf", "back", "act"})


async def performed(visit: Visit, form: Mapping[str, list[str]]) -> str:
    """Do what a form asks for; return where to go."""
    name = form.get("act", [""])[0]
    if name not in DONE or name not in BY_NAME:
        raise Problem("invalid_request", "act: this form asks for nothing that pages can do")
    route = BY_NAME[name]
    given, body = _asked(route, form)
    data = await visit.ask(route, body, **given)
    back = back_to(form.get("back", [""])[0])
    if name == "retry_job":
        back = f"/job?{urlencode({'tenant': given.get('tenant', ''), 'id': data['id']})}"
    said = urlencode({"done": name, **_counted(data)})
    return f"{visit.link(back)}{'&' if '?' in back else '?'}{said}"


def back_to(back: str) -> str:
    """Make sure that one stays on our pages; what is not an address of theirs is the first one."""
    return back if re.match(r"/(?!/)", back) and back.isprintable() and "\\" not in back else "/"


def _asked(route: Route, form: Mapping[str, list[str]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell what names the thing from what is asked of it."""
    known = (route.body or {}).get("properties", {})
    given: dict[str, Any] = {}
    body: dict[str, Any] = {}
    for name, values in form.items():
        if name in known:
            body[name] = plain(known[name], values)
        elif name not in NOT_OF_ROUTES:
            given[name] = values[0]
    return given, body


def _counted(data: object) -> dict[str, int]:
    """Say how many it was, where an answer is about several."""
    many = (
        next((data[name] for name in ("requeued", "purged") if name in data), None)
        if isinstance(data, dict)
        else None
    )
    return {} if many is None else {"n": many if isinstance(many, int) else len(many)}
