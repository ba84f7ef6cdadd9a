"""A small HTTP server of a process: /healthz, /readyz, /metrics; and why it is not ready."""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import TypeVar

from scheduler.errors import ConfigError, LifecycleError, SchedulerError
from scheduler.observe.watched import Watched

logger = logging.getLogger("scheduler")

LOOPBACK = "127.0.0.1"
JSON, TEXT = "application/json", "text/plain; charset=utf-8"
NO_EXTRA = "the extra metrics is not installed: pip install 'singleton-scheduler[metrics]'"

Answer = tuple[HTTPStatus, str, bytes]
Http = TypeVar("Http", bound=HTTPServer)


class Pages:
    """What is answered: why it is not ready, and the metrics, with their content type, if they can be written."""

    def __init__(self, reasons: Callable[[], list[str]], metrics: Callable[[], tuple[str, bytes]] | None) -> None:
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


def reasons(watched: Sequence[Watched]) -> list[str]:
    """Say why a process is not ready: the parts that do not work, and servers that do not answer."""
    found: list[str] = []
    for each in watched:
        try:
            troubles = [f"{part.name}: {part.trouble}" for part in each.look().parts if part.trouble is not None]
            found += troubles
            if not troubles:  # or whoever asks would wait for a server that hangs, to hear the same
                each.reach()
        except LifecycleError:
            found.append("not started")
        except SchedulerError as error:
            found.append(str(error))
    return found


def _readiness(found: Sequence[str]) -> Answer:
    """Write reasons down; without any it is ready."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
    return status, JSON, json.dumps({"ready": not found, "reasons": list(dict.fromkeys(found))}).encode()


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
        try:
            status, kind, body = type(self).answer(self.path)
        except Exception:  # whoever asks must not harm us, nor see what it was
            logger.exception("%s cannot be answered", self.path)
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, b"it failed; the log says how\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's
        """Be quiet: it is asked every few seconds."""


def listen(kind: type[Http], port: int, answer: Callable[[str], Answer]) -> Http:
    """Listen on loopback; 0 is any port that is free."""
    handler = type("Handler", (Handler,), {"answer": staticmethod(answer)})
    try:
        return kind((LOOPBACK, port), handler)
    except OSError as error:
        reason = f"nobody can ask how this process is: {LOOPBACK}:{port} cannot be listened on ({error.strerror})"
        raise ConfigError(f"observability.metrics_port: {reason}; choose another port") from None


class Server:
    """Answers in threads of its own, until it is stopped."""

    def __init__(self, port: int, answer: Callable[[str], Answer]) -> None:
        self._http = listen(ThreadingHTTPServer, port, answer)
        self.address = f"http://{LOOPBACK}:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="scheduler-health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer nobody any more."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
