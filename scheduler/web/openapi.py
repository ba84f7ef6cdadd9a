"""The OpenAPI 3.1 document, made of the table of routes."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from scheduler.web import problems, shapes
from scheduler.web.route import Route
from scheduler.web.schemas import Schema, named

PROBLEM: Schema = {"application/problem+json": {"schema": named("Problem")}}
ALWAYS = (400, 401, 403, 404, 405, 409, 422, 429, 500, 503)


def document(routes: Iterable[Route], base: str) -> Schema:
    """Describe the API below `base`."""
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(_template(route.path), {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "singleton-scheduler",
            "version": version("singleton-scheduler"),
            "description": (
                "Recurring jobs, each fire once; submitted jobs, through queues. Instants are UTC."
            ),
        },
        "servers": [{"url": base}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": shapes.COMPONENTS,
        },
    }


def _operation(route: Route) -> Schema:
    said: Schema = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.subject],
        "description": (
            f"Needs the scope `{route.scope}`{' and all tenants' if route.fleet else ''}."
        ),
        "parameters": list(_parameters(route)),
        "responses": dict(_responses(route)),
    }
    if route.body is not None:
        said["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": route.body}},
        }
    return said


def _parameters(route: Route) -> Iterator[Schema]:
    for name, schema in route.places.items():
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    for name, schema in route.asked.items():
        yield {"name": name, "in": "query", "required": False, "schema": schema}


def _responses(route: Route) -> Iterator[tuple[str, Schema]]:
    for status, schema in route.answers.items():
        kind = "text/event-stream" if route.streams else "application/json"
        yield (
            str(status),
            {
                "description": schema.get("description", "done"),
                "content": {kind: {"schema": schema}},
            },
        )
    for status in (*ALWAYS, *((413, 415) if route.body is not None else ())):
        said = " or ".join(
            f"`{code}`: {cure}" for code, (of, cure) in problems.CODES.items() if of == status
        )
        yield str(status), {"description": said, "content": PROBLEM}


def _template(path: str) -> str:
    return re.sub(r":\w+\}", "}", path)
