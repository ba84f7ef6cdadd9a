"""The ASGI application: `application(scheduler)` serves by itself, or is mounted into an app of
yours.
"""

import json
import logging
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler.app import Scheduler
from scheduler.web.access import Access, Token
from scheduler.web.health import health
from scheduler.web.openapi import document
from scheduler.web.pages import pages
from scheduler.web.problems import Problem
from scheduler.web.route import Route
from scheduler.web.schemas import plain
from scheduler.web.site import Site, request_id
from scheduler.web.table import ROUTES

PREFIX = "/api/v1"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self';"
        " connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

logger = logging.getLogger("scheduler")


def application(
    scheduler: Scheduler, *, tokens: Sequence[Token] = (), rate_limit: int = 50
) -> Starlette:
    """Make the application of a scheduler, which is started by whoever made it.

    tokens: who may ask; without any only this machine is served, and may do everything. rate_limit:
    how many requests a second each may make, 0 for any number.

    /healthz and /readyz need no token. In a mounted application they are below the mount.
    """
    site = Site(scheduler, Access(tokens, rate_limit))
    app = Starlette(
        routes=[*health(scheduler), *api(site), *pages(site)],
        exception_handlers={HTTPException: _unrouted},
    )
    app.add_middleware(Guard)
    app.state.site = site
    return app


def api(site: Site) -> list[BaseRoute]:
    """Make the routes of the API out of the table."""
    paths: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = route
    made: list[BaseRoute] = [
        HttpRoute(f"{PREFIX}{path}", Endpoint(site, methods)) for path, methods in paths.items()
    ]
    return [HttpRoute(f"{PREFIX}/openapi.json", _described), *made]


class Endpoint:
    """What answers at one path."""

    def __init__(self, site: Site, methods: Mapping[str, Route]) -> None:
        self._site = site
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; whatever happens, in one shape."""
        request = Request(scope, receive)
        try:
            response = await self._answered(request)
        except Problem as problem:
            response = refusal(problem)
        except Exception:
            logger.exception("a request failed", extra={"request_id": request_id.get()})
            response = refusal(Problem("internal_error", "something went wrong on the server"))
        await response(scope, receive, send)

    async def _answered(self, request: Request) -> Response:
        route = self._methods.get(request.method)
        if route is None:
            refused = refusal(
                Problem("method_not_allowed", f"{request.method[:20]} is not for this address")
            )
            refused.headers["allow"] = ", ".join(self._methods)
            return refused
        caller = self._site.identify(request)
        given = _given(route, request)
        body: object = None
        if route.body is not None:
            body = await self._site.blocking(
                parsed, await read_json(request, self._site.largest_body)
            )
        status, data = await self._site.perform(route, caller, given, body)
        if isinstance(data, Response):
            return data
        return Response(orjson.dumps(data), status, media_type="application/json")


def refusal(problem: Problem) -> Response:
    """Make the answer to a request that is refused."""
    headers = {}
    if problem.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(problem.retry_after)))
    if problem.status == 413:
        headers["connection"] = "close"  # what is left of the body is not read
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    said = orjson.dumps(problem.body(request_id.get()))
    return Response(said, problem.status, headers, media_type="application/problem+json")


async def read_body(request: Request, most: int) -> bytes:
    """Read a body that may not be larger than that, and no more of it."""
    length = request.headers.get("content-length", "0")
    body = bytearray()
    if not length.isdecimal() or int(length[:20]) <= most:
        async for part in request.stream():
            body += part
            if len(body) > most:
                break
        else:
            return bytes(body)
    raise Problem("too_large", f"the body has more than {most:,} bytes")


async def read_json(request: Request, most: int) -> bytes:
    """Read a body that says it is JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # also what keeps forms of other sites out
        raise Problem("unsupported_media_type", f"the body is {kind or 'of no type'!r}")
    return await read_body(request, most)


def parsed(body: bytes) -> object:
    """Parse JSON; a large one takes a while, and a thread."""
    try:
        value: object = json.loads(body, parse_constant=_no_number)
        if b"\\ud" in body.lower():  # half a character is none that could be stored
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Problem("invalid_request", f"the body is not JSON: {reason}") from None


class Guard:
    """Gives each request an id, and each answer the headers that keep browsers from harm."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = next(
            (
                value.decode("latin-1")
                for name, value in scope["headers"]
                if name == b"x-request-id"
            ),
            "",
        )
        known = said if _REQUEST_ID.fullmatch(said) else secrets.token_hex(8)
        request_id.set(known)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                own = {**HEADERS, "x-request-id": known}.items()
                more = [
                    (name.encode(), value.encode())
                    for name, value in own
                    if name.encode() not in there
                ]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, guarded)


def _given(route: Route, request: Request) -> dict[str, Any]:
    schemas = route.asked
    twice = set(request.query_params) & set(request.path_params)
    if twice:
        raise Problem(
            "invalid_request", f"{', '.join(sorted(twice))}: is in the path, and not for the query"
        )
    said: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        said.setdefault(name, []).append(value)
    return {
        **{name: plain(schemas.get(name, {}), values) for name, values in said.items()},
        **request.path_params,
    }


def _no_number(said: str) -> object:
    raise ValueError(f"{said} is not a number of JSON")


async def _described(request: Request) -> Response:
    base = f"{request.scope.get('root_path', '')}{PREFIX}"
    return Response(orjson.dumps(document(ROUTES, base)), media_type="application/json")


async def _unrouted(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "invalid_request")
    message = {404: "there is nothing at this address", 405: "this method is not for this address"}
    response = refusal(Problem(code, message.get(status, "the request cannot be understood")))
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response
