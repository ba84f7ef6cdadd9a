"""Roads that are cut, hang, or drop what is sent, between real sockets."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.roads import Road, Roads


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that says what it hears."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(client: socket.socket) -> None:
            with contextlib.suppress(OSError), client:
                while data := client.recv(4096):
                    client.sendall(data)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def roads(echo: int, tmp_path: Path) -> Iterator[Roads]:
    with Roads(str(tmp_path / "none"), echo) as roads:
        yield roads


def said(connection: socket.socket, word: bytes) -> bytes:
    connection.sendall(word)
    return connection.recv(4096)


def travel(road: Road) -> socket.socket:
    return socket.create_connection(("127.0.0.1", road.port), timeout=60)


def test_an_open_road_carries_both_ways(roads: Roads) -> None:
    with travel(roads.open("redis")) as connection:
        assert said(connection, b"hello") == b"hello"


def test_a_cut_road_resets_whoever_is_on_it_and_whoever_comes(roads: Roads) -> None:
    road = roads.open("redis")
    with travel(road) as connection:
        assert said(connection, b"hello") == b"hello"
        roads.change(road, "cut")
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    with contextlib.suppress(ConnectionResetError), travel(road) as connection:
        assert connection.recv(1) == b""
    roads.change(road, "open")
    with travel(road) as connection:
        assert said(connection, b"again") == b"again"


def test_on_a_road_that_hangs_bytes_wait_until_it_heals(roads: Roads) -> None:
    road = roads.open("redis")
    with travel(road) as connection:
        assert said(connection, b"hello") == b"hello"
        roads.change(road, "hang")
        with travel(road) as late:
            connection.sendall(b"wait")
            late.sendall(b"me too")
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(4096)
            roads.change(road, "open")
            connection.settimeout(60)
            assert connection.recv(4096) == b"wait"
            assert late.recv(4096) == b"me too"


def test_a_road_that_drops_says_nothing_and_resets_when_it_heals(roads: Roads) -> None:
    road = roads.open("redis")
    with travel(road) as connection:
        assert said(connection, b"hello") == b"hello"
        roads.change(road, "drop")
        connection.sendall(b"gone")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(4096)
        roads.change(road, "open")
        connection.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(4096) == b""


def test_a_server_that_is_not_there_resets(roads: Roads) -> None:
    with contextlib.suppress(ConnectionResetError), travel(roads.open("postgres")) as connection:
        assert connection.recv(1) == b""
