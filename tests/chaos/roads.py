"""TCP roads between members and servers, each of which can be cut, hang, or drop what is sent on it.

cut: connections are reset, and so is whoever comes. hang: bytes wait, and go on when it heals.
drop: bytes vanish, and what was open meanwhile is reset when it heals.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

Connect = Callable[
    [Callable[[], asyncio.Protocol]], Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]
]


class End(asyncio.Protocol):
    """One end of a connection; what it hears, it says at the other."""

    def __init__(self, road: "Road") -> None:
        self.road = road
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None
        self.early = b""  # some versions of asyncio hear a little though they are told to pause

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.road.ends.add(self)
        if self.other is None:
            transport.pause_reading()
            self.road.arrived(self)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
        elif self.road.state != "drop" and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.listen()

    def listen(self) -> None:
        """Hear what is sent, unless the road hangs."""
        if self.transport is not None and self.other is not None and self.road.state != "hang":
            self.transport.resume_reading()

    def reset(self) -> None:
        """End this connection without a word."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.road.ends.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class Road:
    """The way from one member to one server."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._tasks: set[asyncio.Task[None]] = set()
        self.state = "open"
        self.ends: set[End] = set()
        self.port = 0

    def arrived(self, client: End) -> None:
        """Let a client in, as far as the road goes."""
        if self.state == "cut":
            client.reset()
        elif self.state == "open":
            task = asyncio.get_running_loop().create_task(self._join(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def change(self, state: str) -> None:
        """Break it in one of the three ways, or open it."""
        was, self.state = self.state, state
        if state == "cut" or was == "drop":
            for end in list(self.ends):
                end.reset()
        for end in list(self.ends):
            if end.transport is None or end.transport.is_closing():
                continue
            if end.other is None and state == "open":
                self.arrived(end)
            elif state == "hang":
                end.transport.pause_reading()
            else:
                end.listen()

    async def _join(self, client: End) -> None:
        server = End(self)
        server.other = client
        try:
            await self._connect(lambda: server)
        except OSError:
            client.reset()
            return
        client.other = server
        client.data_received(client.early)
        client.listen()
        if client.transport is None or client.transport.is_closing():
            server.reset()


class Roads:
    """A thread of roads; made for a Postgres on a Unix socket and a Redis on a port."""

    def __init__(self, postgres: str, redis: int) -> None:
        self._postgres = postgres
        self._redis = redis
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="roads", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._roads: list[Road] = []

    def open(self, server: str) -> Road:
        """Open a road to a server; its port is `port`."""
        loop = self._loop
        if server == "postgres":
            road = Road(lambda made: loop.create_unix_connection(made, self._postgres))
        else:
            road = Road(lambda made: loop.create_connection(made, "127.0.0.1", self._redis))
        road.port = asyncio.run_coroutine_threadsafe(self._listen(road), loop).result(10)
        return road

    def change(self, road: Road, state: str) -> None:
        """Break a road, or open it."""
        self._loop.call_soon_threadsafe(road.change, state)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self, road: Road) -> int:
        server = await self._loop.create_server(lambda: End(road), "127.0.0.1", 0)
        self._servers.append(server)
        self._roads.append(road)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for road in self._roads:
            road.change("cut")
        await asyncio.sleep(0)  # the resets are on their way
