"""Workers of other projects, as far as Redis shows them."""

import contextlib
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.client import Client


@contextlib.contextmanager
def foreigners(redis: Client, url: str) -> Iterator[None]:
    """Let a worker of BullMQ, node-1 at queue video, and one of Conveyor, go-1 with two jobs, be
    there.
    """
    redis.call("ZADD", "workers:active", int(time.time()), "go-1")
    redis.call("SADD", "worker:active:go-1", "a", "b")
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port or 0)) as connection:
        if address.password:
            connection.sendall(f"AUTH {address.password}\r\n".encode())
            assert connection.recv(100) == b"+OK\r\n"
        connection.sendall(f"CLIENT SETNAME {Keys('video').client_name('node-1')}\r\n".encode())
        assert connection.recv(100) == b"+OK\r\n"
        yield
