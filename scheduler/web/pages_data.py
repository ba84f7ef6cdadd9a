"""Data that only pages need, by routes of their own: scopes, tenants and limits hold for them as in
the API.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from scheduler.store.pages import Coming, Ended, Letter
from scheduler.web.access import READ
from scheduler.web.formats import tone
from scheduler.web.jobs import QUEUE
from scheduler.web.queues import letters_json
from scheduler.web.route import Call, Route
from scheduler.web.schemas import ANY, LIMIT, NAME, listed
from scheduler.web.schemas import UUID as IS_UUID

Parts = dict[str, float]  # how many of each tone

MINUTES = 60
RECENT = 20
AHEAD = 20
MINUTE = timedelta(minutes=1)
MOST_TENANTS = 200
MOST_JOBS = 10_000
MOST_LETTERS = 500
SAMPLE = 48
LEAST = 3
FASTEST = 240  # ends a second that are believed: a few at one instant are no measure
CELLS = 20
MOST_EDGES = 12
TENANTS_OF = {"tenants": listed(NAME, minItems=1, maxItems=MOST_TENANTS)}


@dataclass(slots=True)
class Minute:
    """What ended in one minute, by tone: all of it and fires, or jobs by queue; `about`: it was
    estimated.
    """

    at: datetime
    word: str
    all: Parts = field(default_factory=dict)
    fires: Parts = field(default_factory=dict)
    queues: dict[str, Parts] = field(default_factory=dict)
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

    @property
    def jobs(self) -> int:
        """How many registered jobs there are."""
        return sum(each.many for each in self.coming if each.id is None)

    def count(self, what: str) -> int:
        """Count registered jobs that are so."""
        return sum(each.many for each in self.coming if each.what == what and each.id is None)

    @property
    def busy(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.coming or self.letters or any(minute.all for minute in self.minutes))

    @property
    def about(self) -> bool:
        """Whether some of it was estimated."""
        return any(minute.about for minute in self.minutes)

    def late(self) -> Iterator[Coming]:
        """Name the jobs that should have fired, some of them."""
        return (each for each in self.coming if each.id is not None)


def together(parts: Iterable[Parts]) -> Parts:
    """Add up."""
    total: Parts = {}
    for each in parts:
        for shade, many in each.items():
            total[shade] = total.get(shade, 0) + many
    return total


def list_tenants(call: Call) -> object:
    """Name tenants."""
    return call.scheduler.pages.tenants(limit=MOST_TENANTS)


def look_at_hours(call: Call) -> dict[str, Hour]:
    """Read how things of some tenants ended in the last hour."""
    now, rows = _ended(call, MINUTES)
    minutes = _minutes(now, MINUTES)
    hours = {
        each: Hour(now, [Minute(one.at, one.word) for one in minutes], [], [])
        for each in call.given["tenants"]
    }
    for row, place, factor in rows:
        minute = hours[row.tenant].minutes[place]
        minute.usual, minute.late, minute.about = row.usual, row.late, factor is not None
        for outcomes, fire in ((row.fires or (), True), (row.jobs or (), False)):
            for outcome in set(outcomes):
                many = round(outcomes.count(outcome) * (factor or 1))
                _add(minute.all, outcome, many)
                if fire:
                    _add(minute.fires, outcome, many)
    return hours


def look_ahead(call: Call) -> tuple[list[Coming], list[Letter]]:
    """Read what is to come of some tenants, what is late, and what is dead."""
    tenants, pages = call.given["tenants"], call.scheduler.pages
    return (
        pages.coming(tenants, minutes=AHEAD, most=MOST_JOBS // len(tenants)),
        pages.dead(tenants, limit=call.given["limit"], most=MOST_LETTERS),
    )


def look_at_ends(call: Call) -> list[Minute]:
    """Read how jobs of some tenants ended lately, all in all."""
    now, rows = _ended(call, RECENT)
    minutes = _minutes(now, RECENT)
    for row, place, factor in rows:
        minute = minutes[place]
        minute.about = minute.about or factor is not None
        for queue, outcome in zip(row.queues or (), row.jobs or (), strict=True):
            _add(minute.queues.setdefault(queue, {}), outcome, factor or 1)
    return minutes


def look_at_letters(call: Call) -> object:
    """Read the newest dead letters of some queues."""
    return {
        name: letters_json(call, name, call.given["limit"])["items"] for name in call.given["names"]
    }


def look_at_strips(call: Call) -> object:
    """Read the newest ends of a page of registered jobs."""
    after, limit = call.given.get("cursor", ""), call.given["limit"]
    return call.scheduler.pages.strips(call.tenant, after=after, limit=limit, most=CELLS)


def look_around(call: Call) -> object:
    """Read what a job waits for, and what waits for it."""
    return call.scheduler.pages.around(call.tenant, UUID(call.given["id"]), limit=MOST_EDGES)


def look_at_leases(call: Call) -> object:
    """Read which fires are under way."""
    return call.scheduler.pages.held(limit=200, most=MOST_JOBS)


def _minutes(now: datetime, many: int) -> list[Minute]:
    """Make the last minutes, the oldest first."""
    last = now.replace(second=0, microsecond=0)
    moments = [last - number * MINUTE for number in reversed(range(many))]
    return [Minute(at, f"{at:%H:%M}") for at in moments]


def _ended(call: Call, many: int) -> tuple[datetime, list[tuple[Ended, int, float | None]]]:
    """Read the newest ends of the last minutes, each with its place and how many times more there
    are; None: all.
    """
    tenants = call.given["tenants"]
    most = max(LEAST, SAMPLE // len(tenants))
    now, rows = call.scheduler.pages.minutes(tenants, minutes=many, most=most)
    first = now.replace(second=0, microsecond=0) - (many - 1) * MINUTE
    return now, [(row, (row.minute - first) // MINUTE, _factor(row, now, most)) for row in rows]


def _factor(row: Ended, now: datetime, most: int) -> float | None:
    if len(row.fires or ()) + len(row.jobs or ()) < most:
        return None
    end = min(now, row.minute + MINUTE)
    seen = max((end - row.since).total_seconds(), most / FASTEST)
    after = 1 - 1 / most  # the oldest of them says since when, and is not within that time
    return max(1.0, after * (end - row.minute).total_seconds() / seen)


def _add(parts: Parts, outcome: str, many: float) -> None:
    shade = tone(outcome)
    parts[shade] = parts.get(shade, 0) + many


TENANTS = Route(
    name="list_tenants",
    method="GET",
    path="/pages/tenants",
    summary="",
    scope=READ,
    call=list_tenants,
    answers={200: ANY},
    fleet=True,
)
HOURS = Route(
    name="look_at_hours",
    method="GET",
    path="/pages/hours",
    summary="",
    scope=READ,
    call=look_at_hours,
    answers={200: ANY},
    places=TENANTS_OF,
    several=True,
)
NEXT = Route(
    name="look_ahead",
    method="GET",
    path="/pages/next",
    summary="",
    scope=READ,
    call=look_ahead,
    answers={200: ANY},
    places={**TENANTS_OF, "limit": LIMIT},
    several=True,
)
ENDS = Route(
    name="look_at_ends",
    method="GET",
    path="/pages/ends",
    summary="",
    scope=READ,
    call=look_at_ends,
    answers={200: ANY},
    places=TENANTS_OF,
    several=True,
)
LETTERS = Route(
    name="look_at_letters",
    method="GET",
    path="/pages/letters",
    summary="",
    scope=READ,
    call=look_at_letters,
    answers={200: ANY},
    places={"names": listed(QUEUE), "limit": LIMIT},
    fleet=True,
)
STRIPS = Route(
    name="look_at_strips",
    method="GET",
    path="/pages/strips",
    summary="",
    scope=READ,
    call=look_at_strips,
    answers={200: ANY},
    places={"limit": LIMIT},
    query={"cursor": NAME},
)
AROUND = Route(
    name="look_around",
    method="GET",
    path="/pages/around",
    summary="",
    scope=READ,
    call=look_around,
    answers={200: ANY},
    places={"id": IS_UUID},
)
LEASES = Route(
    name="look_at_leases",
    method="GET",
    path="/pages/leases",
    summary="",
    scope=READ,
    call=look_at_leases,
    answers={200: ANY},
    fleet=True,
)
