"""A TCP road to a Postgres on a Unix socket that can go silent: bytes are held, nothing is closed,
nobody is told.
"""

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

CHUNK = 65536


class SilentProxy:
    """Listens on 127.0.0.1 and forwards. One thread; what is silenced stays open and is never read
    again.
    """

    def __init__(self, socket_path: str) -> None:
        self._target = socket_path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._held: list[socket.socket] = []
        self._refusing_new = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="proxy")

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def silence(self, *, new: bool = False) -> int:
        """Hold every present connection for ever, and with `new` those to come until `heal`; return
        how many.
        """
        with self._lock:
            self._refusing_new = new
            count = len(self._peers) // 2
            for one in list(self._peers):
                self._selector.unregister(one)
                self._held.append(one)
            self._peers.clear()
        return count

    def heal(self) -> None:
        """Forward new connections again; the held ones stay dead."""
        with self._lock:
            self._refusing_new = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        self._waker.send(b"x")
        self._thread.join()
        for one in (self._listener, self._waker, self._woken, *self._peers, *self._held):
            one.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select():
                ready = key.fileobj
                if ready is self._listener:
                    self._accept()
                elif isinstance(ready, socket.socket) and ready is not self._woken:
                    self._forward(ready)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        with self._lock:
            if self._refusing_new:
                self._held.append(client)
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                server.close()
                return
            for one, other in ((client, server), (server, client)):
                self._peers[one] = other
                self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        with self._lock:
            target = self._peers.get(source)
            if target is None:
                return  # silenced since the select
            with contextlib.suppress(OSError):
                data = source.recv(CHUNK)
                if data:
                    target.sendall(data)
                    return
            for one in (source, target):
                del self._peers[one]
                self._selector.unregister(one)
                one.close()
