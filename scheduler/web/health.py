"""Health checks on the port of the HTTP API: /healthz and /readyz, as on the observability port.

They need no token and have no rate limit, so their reasons name no host and no error message; the
observability port has the details. Concurrent requests for /readyz share one check, so that
no number of callers makes more than one query at a time.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from scheduler.app import Scheduler
from scheduler.observe.health import Answer, Pages, reasons


def health(scheduler: Scheduler) -> list[BaseRoute]:
    """Return the routes of the health checks."""
    checks = HealthChecks(scheduler)
    return [
        Route("/healthz", checks.liveness, methods=["GET"]),
        Route("/readyz", checks.readiness, methods=["GET"]),
    ]


class HealthChecks:
    """Answers health checks in a thread of its own: they work while the API is overloaded."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._pages = Pages(lambda: reasons([scheduler], detailed=False), None)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scheduler-web-health")
        self._running: asyncio.Future[Answer] | None = None

    async def liveness(self, _: Request) -> Response:
        """Answer /healthz."""
        return _response(self._pages.answer("/healthz"))

    async def readiness(self, _: Request) -> Response:
        """Answer /readyz."""
        loop, running = asyncio.get_running_loop(), self._running
        if running is None or running.done() or running.get_loop() is not loop:
            running = loop.run_in_executor(self._thread, self._pages.answer, "/readyz")
            self._running = running
        # A client that disconnects must not cancel the check of the others.
        return _response(await asyncio.shield(running))


def _response(answer: Answer) -> Response:
    status, kind, body = answer
    return Response(body, status, {"content-type": kind})
