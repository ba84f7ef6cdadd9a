"""The dashboard: pages for people, made on the server; forms of ours steer, and each is checked to
be ours.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib.resources import files
from urllib.parse import parse_qs

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from scheduler.web import pages_fleet, pages_jobs, pages_overview, pages_queues, pages_recurring
from scheduler.web.access import Caller
from scheduler.web.formats import FILTERS, clock
from scheduler.web.pages_acts import DONE, back_to, performed
from scheduler.web.problems import Problem
from scheduler.web.site import Site, request_id
from scheduler.web.visit import Shown, Visit

LARGEST_FORM = 100_000
THEMES = ("auto", "light", "dark")
THEME = "scheduler_theme"
YEAR = 365 * 24 * 3600
ORIGIN = {
    "referrer-policy": "same-origin"
}  # with none at all, browsers do not say whose forms these are
KINDS = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
NAVIGATION = (
    ("/", "Overview"),
    ("/recurring", "Recurring"),
    ("/jobs", "Jobs"),
    ("/queues", "Queues"),
    ("/dead", "Dead letters"),
    ("/fleet", "Fleet"),
)

logger = logging.getLogger("scheduler")

Page = Callable[[Visit], Awaitable[Shown]]
PAGES: dict[str, Page] = {
    "/": pages_overview.overview,
    "/recurring": pages_recurring.recurring,
    "/recurring/job": pages_recurring.recurring_job,
    "/jobs": pages_jobs.jobs,
    "/job": pages_jobs.job,
    "/queues": pages_queues.queues,
    "/queue": pages_queues.queue,
    "/dead": pages_queues.dead,
    "/dead/purge": pages_queues.purge,
    "/fleet": pages_fleet.fleet,
}


def pages(site: Site) -> list[BaseRoute]:
    """Make the routes of the dashboard."""
    desk = Desk(site)
    return [
        *(Route(path, desk.answer(page), methods=["GET"]) for path, page in PAGES.items()),
        Route("/do", desk.do, methods=["POST"]),
        Route("/login", desk.login, methods=["GET", "POST"]),
        Route("/logout", desk.logout, methods=["POST"]),
        Route("/theme", desk.theme, methods=["POST"]),
        Route("/static/{name}", desk.static, methods=["GET"]),
    ]


class Desk:
    """Answers visitors: who they are, what they get, what they may do."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._files = {
            each.name: each.read_bytes()
            for each in files("scheduler.web").joinpath("static").iterdir()
            if each.is_file()
        }
        self._version = hashlib.sha256(
            b"".join(self._files[name] for name in sorted(self._files))
        ).hexdigest()[:12]
        self._templates = Environment(
            loader=PackageLoader("scheduler.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= FILTERS

    def answer(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Make what answers at the address of a page."""

        async def answered(request: Request) -> Response:
            try:
                visit = Visit(self._site, request, self._site.identify(request))
            except Problem as problem:
                if self._site.access.open or problem.status != 401:
                    return self._refused(request, problem)
                return RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
            return await self._safely(visit, page)

        return answered

    async def do(self, request: Request) -> Response:
        """Do what a form asks for, and go back to its page."""
        try:
            form = await _form(request)
            visit = Visit(self._site, request, self._steering(request, form))
            return RedirectResponse(await performed(visit, form), 303)
        except Problem as problem:
            return self._refused(request, problem)

    async def login(self, request: Request) -> Response:
        """Let somebody in who has a token."""
        if request.method == "GET":
            return self._page(request, None, Shown("login.html", {"wrong": False}))
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/", 303)
        try:
            form = await _form(request)
            self._site.sessions.check_csrf(request, _one(form, "csrf"))
            self._site.sessions.begin(request, response, _one(form, "token").strip())
        except Problem as problem:
            if problem.status != 401:
                return self._refused(request, problem)
            return self._page(request, None, Shown("login.html", {"wrong": True}), 401)
        return response

    async def logout(self, request: Request) -> Response:
        """Let somebody out."""
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
        try:
            self._site.sessions.check_csrf(request, _one(await _form(request), "csrf"))
        except Problem as problem:
            return self._refused(request, problem)
        self._site.sessions.end(request, response)
        return response

    async def theme(self, request: Request) -> Response:
        """Remember how somebody wants to see the pages."""
        try:
            form = await _form(request)
            self._site.sessions.check_csrf(request, _one(form, "csrf"))
            back = request.scope.get("root_path", "") + back_to(_one(form, "back"))
        except Problem as problem:
            return self._refused(request, problem)
        response = RedirectResponse(back, 303)
        wanted = _one(form, "theme")
        path = request.scope.get("root_path", "") or "/"
        response.set_cookie(
            THEME,
            wanted if wanted in THEMES else THEMES[0],
            YEAR,
            path=path,
            httponly=True,
            samesite="strict",
        )
        return response

    async def static(self, request: Request) -> Response:
        """Give a file that belongs to the pages; its address changes with it."""
        name = request.path_params["name"]
        if name not in self._files:
            return self._refused(request, Problem("not_found", "there is nothing at this address"))
        kept = {"cache-control": f"public, max-age={YEAR}, immutable"}
        return Response(self._files[name], headers=kept, media_type=KINDS[name.rpartition(".")[2]])

    async def _safely(self, visit: Visit, page: Page) -> Response:
        """Show a page; whatever happens, something that a person can read."""
        try:
            await visit.settle()
            return self._page(visit.request, visit, await page(visit))
        except Problem as problem:
            return self._refused(visit.request, problem, visit)
        except Exception:
            logger.exception("a page failed", extra={"request_id": request_id.get()})
            return self._refused(
                visit.request,
                Problem("internal_error", "something went wrong on the server"),
                visit,
            )

    def _steering(self, request: Request, form: dict[str, list[str]]) -> Caller:
        self._site.sessions.check_csrf(request, _one(form, "csrf"))
        return self._site.identify(request, form=True)

    def _refused(self, request: Request, problem: Problem, visit: Visit | None = None) -> Response:
        shown = Shown("problem.html", {"problem": problem, "request_id": request_id.get()})
        return self._page(request, visit, shown, problem.status)

    def _page(
        self, request: Request, visit: Visit | None, shown: Shown, status: int = 200
    ) -> Response:
        root = request.scope.get("root_path", "")
        theme = request.cookies.get(THEME, THEMES[0])
        text = self._templates.get_template(shown.template).render(
            root=root,
            version=self._version,
            csrf=self._site.sessions.csrf(request),
            theme=theme if theme in THEMES else THEMES[0],
            themes=THEMES,
            navigation=NAVIGATION,
            path=request.scope["path"].removeprefix(root),
            visit=visit,
            now_said=clock(datetime.now(UTC)),
            open=self._site.access.open,
            done=DONE.get(request.query_params.get("done", "")),
            count=request.query_params.get("n", "")
            if request.query_params.get("n", "").isdecimal()
            else None,
            **shown.values,
        )
        return Response(text, status, ORIGIN, media_type="text/html")


async def _form(request: Request) -> dict[str, list[str]]:
    """Read a form as browsers send it."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_FORM:
            raise Problem("too_large", f"the form has more than {LARGEST_FORM:,} bytes")
    try:
        return parse_qs(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=2000
        )
    except ValueError:
        raise Problem("invalid_request", "the form cannot be read") from None


def _one(form: dict[str, list[str]], name: str) -> str:
    return form.get(name, [""])[0]
