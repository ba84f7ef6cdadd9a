"""A route: everything there is to say of it. The table of them makes the server, the document, and
the tests.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from scheduler.app import Scheduler
from scheduler.web.access import Caller
from scheduler.web.schemas import NAME, Checked, Schema, record
from scheduler.web.streams import Streams

T = TypeVar("T")

TENANT: Schema = {**NAME, "description": "whose; a token of one tenant may leave it out"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route answers where it has several answers."""

    status: int
    data: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that was let through: `given` are its path and its query; `tenant` is "" of what
    belongs to all.
    """

    scheduler: Scheduler
    caller: Caller
    tenant: str
    given: Mapping[str, Any]
    body: Any
    streams: Streams
    blocking: Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation.

    name: in the document and in the audit log. path: below /api/v1. scope: what the token needs.
    call: runs in a thread, unless it is a coroutine function. fleet: it belongs to all tenants, and
    needs a token of all. several: it is about the `tenants` that are given, each of which the
    caller needs. places: what is in the path. answers: schemas by status, the usual one first.
    """

    name: str
    method: Literal["GET", "POST"]
    path: str
    summary: str
    scope: str
    call: Callable[[Call], object]
    answers: Mapping[int, Schema]
    fleet: bool = False
    several: bool = False
    places: Mapping[str, Schema] = field(default_factory=dict)
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Schema | None = None
    streams: bool = False

    @property
    def subject(self) -> str:
        """What it is about."""
        return self.path.split("/")[1]

    @property
    def asked(self) -> dict[str, Schema]:
        """What may be in its query."""
        return dict(self.query) if self.fleet or self.several else {"tenant": TENANT, **self.query}

    def checks(self) -> tuple[Checked, Checked | None]:
        """Make the checks of what is given to it, and of its body."""
        given = record({**self.places, **self.asked}, required=tuple(self.places))
        return Checked("", given), None if self.body is None else Checked("body", self.body)
