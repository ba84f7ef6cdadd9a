"""The site: who asks, whether they may, what they get. The API and the pages ask it the same
way.
"""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from starlette.requests import HTTPConnection

from scheduler.app import Scheduler
from scheduler.errors import SchedulerError
from scheduler.web.access import SAFE, WRITE, Access, Caller
from scheduler.web.problems import Problem, problem_of
from scheduler.web.route import Answer, Call, Route
from scheduler.web.schemas import Checked
from scheduler.web.sessions import Sessions
from scheduler.web.streams import Streams

THREADS = 4  # of the eight connections that the scheduler has
MOST_WAITING = 500
MOST_IDS = 10
BODIES = 4  # a body may be so many times as large as one payload

T = TypeVar("T")

logger = logging.getLogger("scheduler")
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="-")


class Site:
    """One scheduler, behind one door."""

    def __init__(self, scheduler: Scheduler, access: Access) -> None:
        self.scheduler = scheduler
        self.access = access
        self.sessions = Sessions(access)
        self.streams = Streams(scheduler, self.blocking)
        self.largest_body = BODIES * scheduler.settings.max_payload
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="scheduler-web")
        self._waiting = 0
        self._checks: dict[str, tuple[Checked, Checked | None]] = {}

    def identify(self, request: HTTPConnection, *, form: bool = False) -> Caller:
        """Say who asks, and count the request.

        By a token, by being on this machine where there are none, or by a session: to read, or in a
        `form` of ours.
        """
        caller = self.access.bearer(request) or self.access.local(request)
        if caller is None and (form or request.scope["method"] in SAFE):
            caller = self.sessions.caller(request)
        if caller is not None:
            self.access.spend(caller)
            return caller
        if self.access.open:
            raise Problem(
                "unauthorized",
                "there are no tokens: only this machine is served, and no page of elsewhere",
            )
        raise Problem("unauthorized", "a token is needed")

    async def perform(
        self, route: Route, caller: Caller, given: Mapping[str, Any], body: object = None
    ) -> tuple[int, object]:
        """Do what a route does, for a caller; return the status and the data. Raises `Problem`."""
        answer = Answer(500, None)
        try:
            answer = await self._answer(route, caller, given, body)
        except SchedulerError as error:
            problem = problem_of(error)
            if problem is None:
                raise
            answer = Answer(problem.status, None)
            raise problem from None
        except Problem as problem:
            answer = Answer(problem.status, None)
            raise
        finally:
            if route.scope == WRITE:
                _audit(route, caller, given, answer)
        return answer.status, answer.data

    async def blocking(self, call: Callable[..., T], *args: object) -> T:
        """Run what may wait in one of a few threads; the loop goes on."""
        if self._waiting >= MOST_WAITING:
            raise Problem("unavailable", "too many requests are waiting")
        self._waiting += 1
        try:
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, partial(context.run, call, *args)
            )
        finally:
            self._waiting -= 1

    async def _answer(
        self, route: Route, caller: Caller, given: Mapping[str, Any], body: object
    ) -> Answer:
        caller.needs(route.scope)
        checks = self._checks.get(route.name)
        if checks is None:
            checks = self._checks[route.name] = route.checks()
        checks[0].check(given)
        if checks[1] is not None:
            await self.blocking(checks[1].check, body)  # a batch has a thousand jobs to look at
        if route.fleet:
            caller.needs_all_tenants()
        for each in given["tenants"] if route.several else ():
            caller.tenant(each)
        tenant = "" if route.fleet or route.several else caller.tenant(given.get("tenant"))
        call = Call(
            scheduler=self.scheduler,
            caller=caller,
            tenant=tenant,
            given=given,
            body=body,
            streams=self.streams,
            blocking=self.blocking,
        )
        work: Any = route.call
        made = (
            await work(call)
            if inspect.iscoroutinefunction(work)
            else await self.blocking(work, call)
        )
        return made if isinstance(made, Answer) else Answer(next(iter(route.answers)), made)


def _audit(route: Route, caller: Caller, given: Mapping[str, Any], answer: Answer) -> None:
    """Leave one line for each write, also for each that was refused, unless it was for asking too
    often.
    """
    data = answer.data if isinstance(answer.data, dict) else {}
    made = [str(each["id"]) for each in data.get("items", [data]) if "id" in each]
    which = [f"{name}={str(value)[:200]!r}" for name, value in sorted(given.items())]
    ids = [
        *made[:MOST_IDS],
        *([f"and {len(made) - MOST_IDS} more"] if len(made) > MOST_IDS else []),
    ]
    logger.log(
        logging.INFO if answer.status < 400 else logging.WARNING,
        "audit: %r %s",
        caller.name,
        " ".join([route.name, *which, "->", str(answer.status), *ids]),
        extra={"request_id": request_id.get()},
    )
