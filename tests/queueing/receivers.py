"""Receivers of callbacks: real HTTP servers that note what they are told and answer as a test
wants.
"""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answers = Callable[["Received"], tuple[int, dict[str, str]]]


@dataclass(frozen=True)
class Received:
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes
    number: int


@dataclass
class Receiver:
    """A server that runs."""

    port: int
    got: list[Received] = field(default_factory=list)

    def url(self, path: str = "/hook", *, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def paths(self) -> list[str]:
        return [each.path for each in self.got]


def fine(_: Received) -> tuple[int, dict[str, str]]:
    return 204, {}


@contextmanager
def receiver(answers: Answers = fine, *, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a server on this machine; `answers` runs in a thread for each request and may take its
    time.
    """
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                request = Received(self.path, dict(self.headers.items()), body, len(made.got) + 1)
                made.got.append(request)
            status, headers = answers(request)
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        made = Receiver(port=server.server_address[1])
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        yield made
        server.shutdown()
        thread.join(60)
