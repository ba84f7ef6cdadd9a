"""One visit to a page: who looks, at which tenant, and what they may see. Data come by routes, as
in the API.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote_plus, urlencode

from starlette.requests import Request

from scheduler.web.access import WRITE, Caller
from scheduler.web.pages_data import MOST_TENANTS, TENANTS
from scheduler.web.problems import Problem
from scheduler.web.route import Route
from scheduler.web.site import Site
from scheduler.web.table import ROUTES

BY_NAME = {route.name: route for route in ROUTES}
PASSES = frozenset({"not_configured", "unavailable", "forbidden"})


@dataclass
class Visit:
    """A request of a page. `tenant`: the one that was asked for; None: none was."""

    site: Site
    request: Request
    caller: Caller
    tenants: list[str] = field(default_factory=list)
    tenant: str | None = None

    async def settle(self) -> None:
        """Find out which tenants there are for this visitor, and which is meant."""
        if self.caller.tenants is None:
            found = await self.maybe(TENANTS)
            self.tenants = [] if isinstance(found, Problem) else found
        else:
            self.tenants = sorted(self.caller.tenants)[:MOST_TENANTS]
        wanted = self.request.query_params.get("tenant")
        self.tenant = wanted or (self.tenants[0] if len(self.tenants) == 1 else None)

    @property
    def chosen(self) -> str | None:
        """The tenant of a page that is about one: the one that was asked for, or the first."""
        return self.tenant or next(iter(self.tenants), None)

    @property
    def all_tenants(self) -> bool:
        """Whether what belongs to all tenants is for this visitor."""
        return self.caller.tenants is None

    @property
    def writes(self) -> bool:
        """Whether this visitor may steer."""
        return WRITE in self.caller.scopes

    def given(self, name: str) -> str:
        """Read a value of the address that has to be there."""
        value = self.request.query_params.get(name)
        if not value:
            raise Problem(
                "invalid_request", f"{name}: the address of this page lacks it; begin at a list"
            )
        return value

    async def ask(self, route: str | Route, body: object = None, **given: object) -> Any:
        """Get what a route answers."""
        known = BY_NAME[route] if isinstance(route, str) else route
        _, data = await self.site.perform(known, self.caller, given, body)
        return data

    async def maybe(self, route: str | Route, **given: object) -> Any:
        """Get what a route answers, or the `Problem` if this visitor, or this process, has no such
        thing.
        """
        try:
            return await self.ask(route, **given)
        except Problem as problem:
            if problem.code not in PASSES:
                raise
            return problem

    def link(self, path: str, **query: object) -> str:
        """Write the address of a page of ours, wherever the site is mounted."""
        kept = [
            f"{name}={quote_plus(str(value))}"
            for name, value in query.items()
            if value not in (None, "")
        ]
        return (
            f"{self.request.scope.get('root_path', '')}{path}{'?' if kept else ''}{'&'.join(kept)}"
        )

    @cached_property
    def csrf(self) -> str:
        """What forms of this page carry."""
        return self.site.sessions.csrf(self.request)

    @property
    def watched(self) -> list[str]:
        """The tenants whose events this page listens to; a browser has few connections to give."""
        return [self.tenant] if self.tenant else self.tenants[:2]

    @cached_property
    def here(self) -> str:
        """The address of this page, to come back to, without what was said on it."""
        kept = [
            (name, value)
            for name, value in self.request.query_params.multi_items()
            if name not in ("done", "n")
        ]
        path = str(self.request.scope["path"]).removeprefix(self.request.scope.get("root_path", ""))
        return path + (f"?{urlencode(kept)}" if kept else "")


@dataclass(frozen=True, slots=True)
class Shown:
    """A page: its template, and what the template needs."""

    template: str
    values: Mapping[str, Any]
