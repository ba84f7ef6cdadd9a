"""A small HTTP server of a process: /healthz, /readyz, /metrics; and why it is not ready."""

import contextlib
import errno
import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import TypeVar

from scheduler.errors import (
    ConfigError,
    LifecycleError,
    QueueError,
    SchedulerError,
    StoreError,
)
from scheduler.observe.watched import Watched

logger = logging.getLogger("scheduler")

JSON, TEXT = "application/json", "text/plain; charset=utf-8"
NO_EXTRA = "the extra metrics is not installed: pip install 'singleton-scheduler[metrics]'"

Answer = tuple[HTTPStatus, str, bytes]
Http = TypeVar("Http", bound=HTTPServer)


class Pages:
    """What is answered: why it is not ready, and the metrics, with their content type, if they can
    be written.
    """

    def __init__(
        self, reasons: Callable[[], list[str]], metrics: Callable[[], tuple[str, bytes]] | None
    ) -> None:
        self._reasons = reasons
        self._metrics = metrics

    def answer(self, path: str) -> Answer:
        """Answer a GET."""
        match path.partition("?")[0]:
            case "/healthz":
                return HTTPStatus.OK, TEXT, b"ok\n"
            case "/readyz":
                return _readiness(self._reasons())
            case "/metrics" if self._metrics is None:
                return HTTPStatus.NOT_IMPLEMENTED, TEXT, NO_EXTRA.encode()
            case "/metrics" if self._metrics is not None:
                return HTTPStatus.OK, *self._metrics()
            case _:
                return HTTPStatus.NOT_FOUND, TEXT, b"there are /healthz, /readyz and /metrics\n"


def reasons(watched: Sequence[Watched], *, detailed: bool = True) -> list[str]:
    """List why a process is not ready: parts that fail, and servers that do not answer.

    Without details no host name and no error message is included, for ports that need no token.
    """
    found: list[str] = []
    for each in watched:
        try:
            failing = [part for part in each.look().parts if part.trouble is not None]
            found += [f"{part.name}: {part.trouble}" if detailed else part.name for part in failing]
            if not failing:  # a failing part explains it; a server that hangs is not waited for
                each.reach()
        except LifecycleError:
            found.append("not started")
        except SchedulerError as error:
            found.append(str(error) if detailed else _server(error))
    return found


def _server(error: SchedulerError) -> str:
    if isinstance(error, StoreError):
        return "Postgres does not answer"
    return "Redis does not answer" if isinstance(error, QueueError) else "not ready"


def _readiness(found: Sequence[str]) -> Answer:
    """Write reasons down; without any it is ready."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
    return (
        status,
        JSON,
        json.dumps({"ready": not found, "reasons": list(dict.fromkeys(found))}).encode(),
    )


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server_version, sys_version = "scheduler", ""
    timeout = 5.0  # seconds, for whoever connects and says nothing
    answer: Callable[[str], Answer]

    def handle(self) -> None:
        """Answer; whoever is gone meanwhile is no trouble of ours."""
        with contextlib.suppress(OSError):
            super().handle()

    def do_GET(self) -> None:
        """Answer a GET."""
        self.wfile.write(self._head())

    def do_HEAD(self) -> None:
        """Answer a HEAD, which some health checks send."""
        self._head()

    def _head(self) -> bytes:
        """Send the status and the headers; return the body."""
        try:
            status, kind, body = type(self).answer(self.path)
        except Exception:  # whoever asks must not harm us, nor see what it was
            logger.exception("%s cannot be answered", self.path)
            status, kind, body = (
                HTTPStatus.INTERNAL_SERVER_ERROR,
                TEXT,
                b"it failed; the log says how\n",
            )
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's
        """Be quiet: it is asked every few seconds."""


def cannot_listen(section: str, keys: tuple[str, str], address: str, error: OSError) -> ConfigError:
    """Describe an address that cannot be bound. `keys` are the host's and the port's, by name."""
    host_is_wrong = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
    key, cure = (
        (keys[0], "set it to an address of this machine, or to 0.0.0.0 for all of them")
        if host_is_wrong
        else (keys[1], "choose another port")
    )
    reason = error.strerror or str(error)
    return ConfigError(f"{section}.{key}: cannot listen on {address}: {reason}; {cure}")


def host_and_port(host: str, port: int) -> str:
    """Write an address as a URL has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(kind: type[Http], host: str, port: int, answer: Callable[[str], Answer]) -> Http:
    """Listen on an address; port 0 is any free port.

    `HTTPServer.server_bind()` is replaced: it resolves the host's name, which takes seconds in a
    container without DNS, and is not needed.
    """
    handler = type("Handler", (Handler,), {"answer": staticmethod(answer)})
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

        def server_bind(server: HTTPServer) -> None:
            socketserver.TCPServer.server_bind(server)
            server.server_name, server.server_port = host, server.socket.getsockname()[1]

        bound = type(kind.__name__, (kind,), {"address_family": family, "server_bind": server_bind})
        return bound(address[:2], handler)  # type: ignore[no-any-return]
    except OSError as error:
        keys = ("host", "metrics_port")
        raise cannot_listen("observability", keys, host_and_port(host, port), error) from None


class Server:
    """Answers in threads of its own, until it is stopped."""

    def __init__(self, host: str, port: int, answer: Callable[[str], Answer]) -> None:
        self._http = listen(ThreadingHTTPServer, host, port, answer)
        self.address = f"http://{host_and_port(host, self._http.server_port)}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="scheduler-health", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Answer nobody any more."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
