"""Routes of events: what happens, as it happens."""

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from scheduler.web.access import READ
from scheduler.web.route import Call, Route
from scheduler.web.schemas import text

SENT_WITHIN = 30.0


class EventStream(Response):
    """Server-sent events, until the reader leaves, reads nothing for a while, or the server
    ends.
    """

    def __init__(self, call: Call) -> None:
        super().__init__(headers={"content-type": "text/event-stream", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what happens."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send(scope, send))
        leaving = asyncio.create_task(_left(receive))
        _, others = await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, scope: Scope, send: Send) -> None:
        call = self._call
        last = next(
            (
                value.decode("latin-1")
                for name, value in scope["headers"]
                if name == b"last-event-id"
            ),
            None,
        )
        with call.streams.slots.taken(call.caller):
            events = call.streams.read(call.tenant, last or call.given.get("last_event_id"))
            try:
                async for part in events:
                    async with asyncio.timeout(SENT_WITHIN):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            finally:
                await events.aclose()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_events(call: Call) -> Response:
    """Stream what happens to the jobs of a tenant."""
    with call.streams.slots.taken(call.caller):  # refuse it while there is still an answer to give
        call.streams.open(call.tenant)
    return EventStream(call)


ROUTES = (
    Route(
        name="read_events",
        method="GET",
        path="/events",
        summary="Follow what happens to the jobs of a tenant, as server-sent events",
        scope=READ,
        call=read_events,
        query={
            "last_event_id": text(
                100, description="go on after this event, as the header Last-Event-ID says"
            )
        },
        answers={
            200: text(
                description="events `job`, `progress`, `recurring`, and `gap` if some were missed"
            )
        },
        streams=True,
    ),
)
