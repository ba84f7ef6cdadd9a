"""Data that only pages need, by routes of their own: scopes, tenants and limits hold for them as in the API."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from scheduler.store.pages import Coming, Ended, Letter
from scheduler.web.access import READ
from scheduler.web.formats import tone
from scheduler.web.route import Call, Route
from scheduler.web.schemas import ANY, LIMIT, NAME, listed, whole
from scheduler.web.schemas import UUID as IS_UUID

MINUTES = 60
AHEAD = 20
MINUTE = timedelta(minutes=1)
MOST_TENANTS = 200
MOST_JOBS = 10_000
MOST_LETTERS = 1000
SAMPLE = 240
CELLS = 20
MOST_EDGES = 12


@dataclass(slots=True)
class Minute:
    """What ended in one minute, by tone, of all, of fires and of each queue; `about`: it was estimated."""

    at: datetime
    all: Counter[str] = field(default_factory=Counter)
    fires: Counter[str] = field(default_factory=Counter)
    queues: dict[str, Counter[str]] = field(default_factory=dict)
    usual: float | None = None
    late: float | None = None
    about: bool = False


@dataclass(frozen=True, slots=True)
class Hour:
    """What a tenant's jobs did in the last hour, what they are to do, and which are dead."""

    now: datetime
    minutes: list[Minute]
    coming: list[Coming]
    letters: list[Letter]

    def count(self, what: str) -> int:
        """Count registered jobs that are so."""
        return sum(each.many for each in self.coming if each.what == what)

    @property
    def busy(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.count("all") or self.letters or any(minute.all for minute in self.minutes))

    def late(self) -> Iterator[Coming]:
        """Name the jobs that should have fired."""
        return (each for each in self.coming if each.what == "late")


def list_tenants(call: Call) -> object:
    """Name tenants."""
    return call.scheduler.pages.tenants(limit=MOST_TENANTS)


def look_at_hour(call: Call) -> Hour:
    """Read the last hour of a tenant; of a busy minute its newest rows, from which the rest is estimated."""
    most, pages = call.given["most"], call.scheduler.pages
    now, rows = pages.minutes(call.tenant, minutes=MINUTES, most=most)
    return Hour(
        now,
        list(_minutes(now, rows, most)),
        pages.coming(call.tenant, minutes=AHEAD, most=MOST_JOBS),
        pages.dead(call.tenant, limit=call.given.get("limit", 5), most=MOST_LETTERS),
    )


def look_at_strips(call: Call) -> object:
    """Read the newest ends of some registered jobs."""
    return call.scheduler.pages.strips(call.tenant, call.given["ids"], limit=CELLS)


def look_around(call: Call) -> object:
    """Read what a job waits for, and what waits for it."""
    return call.scheduler.pages.around(call.tenant, UUID(call.given["id"]), limit=MOST_EDGES)


def look_at_leases(call: Call) -> object:
    """Read which fires are under way."""
    return call.scheduler.pages.held(limit=200, most=MOST_JOBS)


def _minutes(now: datetime, rows: list[Ended], most: int) -> Iterator[Minute]:
    first = now.replace(second=0, microsecond=0) - (MINUTES - 1) * MINUTE
    by_minute: dict[datetime, list[Ended]] = {}
    for row in rows:
        by_minute.setdefault(row.minute, []).append(row)
    for number in range(MINUTES):
        minute = Minute(first + number * MINUTE)
        found = by_minute.get(minute.at, [])
        factor = 1.0
        for whole_minute in (row for row in found if row.kind is None):
            minute.usual, minute.late = whole_minute.usual, whole_minute.late
            if whole_minute.many >= most:  # the rest was not read
                end = min(now, minute.at + MINUTE)
                seen = max((end - whole_minute.since).total_seconds(), 1.0)
                factor, minute.about = max(1.0, (end - minute.at).total_seconds() / seen), True
        for row in (row for row in found if row.kind is not None):
            much = round(row.many * factor)
            minute.all[tone(row.outcome)] += much
            if row.queue is None:
                minute.fires[tone(row.outcome)] += much
            else:
                minute.queues.setdefault(row.queue, Counter())[tone(row.outcome)] += much
        yield minute


TENANTS = Route(
    name="list_tenants", method="GET", path="/pages/tenants", summary="", scope=READ, call=list_tenants,
    answers={200: ANY}, fleet=True,
)  # fmt: skip
HOUR = Route(
    name="look_at_hour", method="GET", path="/pages/hour", summary="", scope=READ, call=look_at_hour,
    answers={200: ANY}, places={"most": whole(1, SAMPLE)}, query={"limit": LIMIT},
)  # fmt: skip
STRIPS = Route(
    name="look_at_strips", method="GET", path="/pages/strips", summary="", scope=READ, call=look_at_strips,
    answers={200: ANY}, places={"ids": listed(NAME, maxItems=1000)},
)  # fmt: skip
AROUND = Route(
    name="look_around", method="GET", path="/pages/around", summary="", scope=READ, call=look_around,
    answers={200: ANY}, places={"id": IS_UUID},
)  # fmt: skip
LEASES = Route(
    name="look_at_leases", method="GET", path="/pages/leases", summary="", scope=READ, call=look_at_leases,
    answers={200: ANY}, fleet=True,
)  # fmt: skip
