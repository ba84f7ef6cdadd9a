"""Serves an application over HTTP, in a thread: bound when `start` returns, gone when `stop`
does.
"""

import contextlib
import socket
import threading

import uvicorn
from starlette.applications import Starlette

from scheduler.observe.health import cannot_listen, host_and_port
from scheduler.web.site import Site

GRACE = 3


class Server:
    """One application at one address. Port 0: any that is free; `url` says which."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        self._site: Site = app.state.site
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE,
            h11_max_incomplete_event_size=64 * 1024,
        )
        self._socket = _bound(host, port)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [self._socket]},
            name="scheduler-web",
            daemon=True,
        )

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End all streams, let requests under way end for a moment, and close."""
        self._site.streams.close()
        self._server.should_exit = True
        self._thread.join(GRACE + 5)
        self._socket.close()


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with contextlib.ExitStack() as on_error:
            made = on_error.enter_context(socket.socket(family, kind, protocol))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(100)
            on_error.pop_all()
    except OSError as error:
        keys = ("host", "port")
        raise cannot_listen("web", keys, host_and_port(host, port), error) from None
    return made
