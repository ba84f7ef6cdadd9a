"""What becomes of Redis' errors, of answers that never come, and of a server that was away."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from scheduler.dialects import client as client_module
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Pushed, Renewed
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.errors import ConfigError, QueueError, QueueUnavailable
from tests.dialects.servers import House, Server, free_port, one, started
from tests.dialects.values import ended, job

HELLO = b"*4\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"


@contextlib.contextmanager
def listening(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve connections with `talk`, each in a thread; yield the URL."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = door.accept()
                threading.Thread(target=safely, args=(connection,), daemon=True).start()

    def safely(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            talk(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"redis://127.0.0.1:{door.getsockname()[1]}/0"
    finally:
        with contextlib.suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)
        door.close()


@pytest.fixture
def server(lone_servers: House) -> Server:
    """One server, empty."""
    [found] = lone_servers.servers
    found.admin("FLUSHALL")
    return found


@pytest.fixture
def queue(server: Server) -> Iterator[ReliableQueue]:
    client = Client(server.url)
    yield ReliableQueue(client, "mail", worker="w1", installation="3f1e")
    client.close()


def test_nobody_there() -> None:
    with pytest.raises(QueueUnavailable):
        Client(f"redis://127.0.0.1:{free_port()}").call("PING")


@pytest.mark.parametrize(
    "url",
    ["http://x", "localhost:6379", "", "redis://x:port", "redis://[::1", "redis://x:99999999"],
)
def test_a_url_that_makes_no_sense(url: str) -> None:
    with pytest.raises(ConfigError, match="redis"):
        Client(url)


def _silence(_: socket.socket) -> None:
    threading.Event().wait(60)


def test_a_server_that_never_answers() -> None:
    with listening(_silence) as url:
        begun = time.monotonic()
        with pytest.raises(QueueUnavailable):
            Client(f"{url}?timeout=300ms").call("PING")
        assert time.monotonic() - begun < 30


def test_a_server_that_stops_answering(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LONGEST_BLOCK", 0.2)
    client = Client(f"{server.url}?timeout=2s")
    assert client.call("PING")
    assert client.wait("BLPOP", "nothing", 0.1) is None
    process = server.admin("INFO", "server")["process_id"]
    calls: list[Callable[[], object]] = [
        lambda: client.call("PING"),
        lambda: client.wait("BLPOP", "nothing", 0.1),
    ]
    for call in calls:
        begun = time.monotonic()
        os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(QueueUnavailable):
                call()
        finally:
            os.kill(process, signal.SIGCONT)
        assert time.monotonic() - begun < 30
        assert client.call("PING")
    client.close()


@pytest.mark.parametrize(
    "said",
    [
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script.",
        "MASTERDOWN Link with MASTER is down",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request",
        "UNBLOCKED force unblock from blocking operation",
        "NOREPLICAS Not enough good replicas to write.",
        "MISCONF Redis is configured to save RDB snapshots",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica.",
        "ERR max number of clients reached",
        "ERR Error running script (call to f_1): @user_script:3: -OOM command not allowed",
        "ERR Error running script (call to f_1): @user_script:3: -READONLY You can't write",
    ],
)
def test_what_passes_by_itself(said: str) -> None:
    assert isinstance(_error(said), QueueUnavailable)


@pytest.mark.parametrize(
    "said", ["ERR unknown command", "WRONGTYPE Operation against a key", "NOPERM no permissions"]
)
def test_what_does_not_pass_by_itself(said: str) -> None:
    error = _error(said)
    assert isinstance(error, QueueError)
    assert not isinstance(error, QueueUnavailable)


def _error(said: str) -> BaseException:
    """What becomes of a server that answers with an error, once it has said what it is."""

    def talk(connection: socket.socket) -> None:
        hello = b"*4\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"
        while heard := connection.recv(65536):
            if b"HELLO" in heard:
                connection.sendall(hello)
            elif b"INFO" in heard and b"SETINFO" not in heard:
                connection.sendall(b"$0\r\n\r\n")
            elif b"GET" in heard:
                connection.sendall(f"-{said}\r\n".encode())
            else:
                connection.sendall(b"+OK\r\n" * max(1, heard.count(b"*")))

    with listening(talk) as url, pytest.raises(QueueError) as caught:
        Client(url).call("GET", "x")
    return caught.value


def test_a_wrong_password(binary: str) -> None:
    with one(binary, "--requirepass", "right") as server:
        for url in (server.url, server.url.replace("//", "//:wrong@")):
            with pytest.raises(QueueError) as caught:
                Client(url).call("PING")
            assert not isinstance(caught.value, QueueUnavailable)
            assert "wrong" not in str(caught.value)
        assert Client(server.url.replace("//", "//:right@")).call("PING")


def test_a_replica_is_left_for_the_master(server: Server, queue: ReliableQueue) -> None:
    queue.push([job()], epoch="")
    server.admin("REPLICAOF", "127.0.0.1", free_port())
    try:
        for call in (
            lambda: queue.push([job()], epoch=""),
            lambda: queue.fetch(1, timeout=0),
            lambda: queue.begin("1"),
        ):
            with pytest.raises(QueueUnavailable):
                call()
    finally:
        server.admin("REPLICAOF", "NO", "ONE")
    assert queue.push([job()], epoch="") == [Pushed.NEW]


def test_a_full_redis_refuses_pushes_and_lets_work_go_on(
    server: Server, queue: ReliableQueue
) -> None:
    queue.push([job() for _ in range(4)], epoch="")
    taken = queue.fetch(2, timeout=0)
    server.admin("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.admin("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(QueueUnavailable):
            queue.push([job()], epoch="")
        assert queue.renew(dict.fromkeys(taken), lease=timedelta(seconds=30)) == [Renewed.KEPT] * 2
        accepted, more = queue.finish([ended(delivery) for delivery in taken], fetch=1)
        assert (accepted, len(more)) == ([True, True], 1)
        assert len(queue.fetch(1, timeout=0)) == 1
    finally:
        server.admin("CONFIG", "SET", "maxmemory", "0")
    assert queue.depths().waiting[job().priority] == 0


def test_a_command_is_never_repeated_after_its_answer_was_lost(server: Server) -> None:
    lossy = threading.Event()

    def talk(connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as far:
            while heard := connection.recv(65536):
                far.sendall(heard)
                answer = far.recv(65536)
                if lossy.is_set():
                    return
                connection.sendall(answer)

    with listening(talk) as url:
        client = Client(url)
        assert client.call("INCR", "n") == 1
        assert client.wait("INCR", "n") == 2
        lossy.set()
        with pytest.raises(QueueUnavailable):
            client.call("INCR", "n")
        with pytest.raises(QueueUnavailable):
            client.wait("INCR", "n")
        lossy.clear()
        assert client.call("GET", "n") == b"4"
        client.close()


def test_it_goes_on_after_a_restart_of_the_server(binary: str) -> None:
    server = started(Server(binary))
    try:
        client = Client(server.url)
        queue = ReliableQueue(client, "mail", worker="w1", installation="3f1e")
        assert queue.push([job()], epoch="") == [Pushed.NEW]
        assert queue.fetch(1, timeout=0.01)
        server.stop()
        for _ in range(2):
            with pytest.raises(QueueUnavailable):
                queue.push([job()], epoch="")
        server.start()
        assert queue.push([job()], epoch="") == [Pushed.NEW]
        assert len(queue.fetch(1, timeout=1)) == 1
        assert queue.fetch(1, timeout=0.01) == []
        client.close()
    finally:
        server.stop()


def test_a_connection_is_used_again_unless_the_server_closed_it(server: Server) -> None:
    client = Client(server.url)
    first = client.call("CLIENT", "ID")
    assert client.call("CLIENT", "ID") == first
    server.admin("CLIENT", "KILL", "ID", first)
    second = client.call("CLIENT", "ID")
    assert second != first
    assert client.call("CLIENT", "ID") == second
    client.close()


def test_what_nobody_asked_for_is_no_answer_to_what_follows() -> None:
    def talk(connection: socket.socket) -> None:
        while heard := connection.recv(65536):
            known = b"-ERR unknown command\r\n" if b"HELLO" not in heard else HELLO
            connection.sendall(
                {b"GET": b"$1\r\n1\r\n$1\r\n2\r\n"}.get(heard.split(b"\r\n")[2], known)
            )

    with listening(talk) as url:
        client = Client(url)
        assert [client.call("GET", "x") for _ in range(3)] == [b"1"] * 3
        client.close()


def test_a_forked_process_has_connections_of_its_own(server: Server) -> None:
    client = Client(server.url)
    ours, (read, write) = client.call("CLIENT", "ID"), os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, str(client.call("CLIENT", "ID")).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        assert int(told.read()) > ours
    assert client.call("CLIENT", "ID") == ours
    client.close()


def test_threads_that_begin_together_open_it_once(house: House) -> None:
    client = Client(house.url)
    threads = [threading.Thread(target=client.call, args=("GET", "x")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    client.close()
    assert client.call("GET", "x") is None  # closed, it is opened again
    client.close()
