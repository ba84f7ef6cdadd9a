"""Sentinel, for real: three of them, a master and its replica, and a master that is killed."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from scheduler import JobContext, Worker, handler
from scheduler.dialects import client as client_module
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Pushed
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.errors import QueueError, QueueUnavailable
from tests.dialects.servers import Sentinel, Server, any_binary, free_port, one, started
from tests.dialects.values import job
from tests.support.waiting import wait_for

NAME = "mymaster"


@dataclass
class Watched:
    """A master, its replica, and who watches them."""

    master: Server
    replica: Server
    sentinels: list[Sentinel]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{NAME}/0?timeout=2s&dial_timeout=1s&max_retries=1"

    def named(self) -> int:
        """The port of the server that the first Sentinel names."""
        return int(self.sentinels[0].admin("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])


@pytest.fixture
def watched() -> Iterator[Watched]:
    binary = any_binary()
    with contextlib.ExitStack() as stack:
        quick = ("--repl-diskless-sync-delay", "0")
        master = stack.enter_context(one(binary, *quick))
        replica = stack.enter_context(
            one(binary, *quick, "--replicaof", "127.0.0.1", str(master.port))
        )
        lines = (
            f"sentinel monitor {NAME} 127.0.0.1 {master.port} 2",
            f"sentinel down-after-milliseconds {NAME} 500",
            f"sentinel failover-timeout {NAME} 4000",
        )
        sentinels = []
        for _ in range(3):
            sentinel = Sentinel(binary, *lines)
            stack.callback(sentinel.stop)
            started(sentinel)
            sentinels.append(sentinel)
        wait_for(
            lambda: replica.admin("INFO", "replication")["master_link_status"] == "up",
            "the replica follows",
        )
        wait_for(
            lambda: all(_sees_all(sentinel) for sentinel in sentinels),
            "the Sentinels know each other",
        )
        yield Watched(master, replica, sentinels)


def _sees_all(sentinel: Sentinel) -> bool:
    state = sentinel.admin("SENTINEL", "MASTER", NAME)
    said = dict(zip(state[::2], state[1::2], strict=True)) if isinstance(state, list) else state
    words = {_word(key): _word(value) for key, value in said.items()}
    return (words["num-other-sentinels"], words["num-slaves"]) == ("2", "1")


def _word(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_a_worker_goes_on_with_the_replica_when_the_master_is_killed(watched: Watched) -> None:
    client = Client(watched.url)
    queue = StandardQueue(client, "mail", installation="3f1e")
    later = datetime.now(UTC) + timedelta(days=1)
    jobs = [job(installation="", expires_at=later) for _ in range(200)]
    assert queue.push(jobs, epoch="") == [Pushed.NEW] * 200
    assert watched.master.admin("WAIT", 1, 5000) == 1  # the replica has them all
    ran: list[str] = []
    killed = threading.Event()

    @handler("send", queue="mail")
    def send(context: JobContext, payload: object) -> None:
        ran.append(context.id)
        if len(ran) > 100:
            killed.wait(60)

    worker = Worker(watched.url, ["mail"], concurrency=2, lease="10s")
    try:
        worker.start()
        wait_for(lambda: len(ran) >= 20, "it works")
        os.kill(watched.master.pid, signal.SIGKILL)
        assert len(set(ran)) < 200
        killed.set()
        wait_for(
            lambda: watched.named() == watched.replica.port,
            "the replica becomes master",
            timeout=60,
        )
        wait_for(
            lambda: set(ran) == {each.id for each in jobs},
            "all that the replica had is done",
            timeout=60,
        )
        wait_for(lambda: _left(queue) == 0, "nothing is left")
    finally:
        worker.stop(grace=1.0)
        client.close()


def _left(queue: StandardQueue) -> int:
    depths = queue.depths()
    return sum(depths.waiting.values()) + depths.running + depths.retrying


def test_a_master_that_hangs_is_left_for_the_new_one(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LONGEST_BLOCK", 1.0)
    client = Client(f"{watched.url}&timeout=500ms")
    queue = StandardQueue(client, "mail", worker="w1", installation="3f1e")
    assert queue.push([job()], epoch="") == [Pushed.NEW]
    assert queue.fetch(0, timeout=0.01) == []
    assert watched.master.admin("WAIT", 1, 5000) == 1
    pid = watched.master.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(
            lambda: watched.named() == watched.replica.port,
            "the replica becomes master",
            timeout=60,
        )
        for call in (lambda: queue.push([job()], epoch=""), lambda: queue.fetch(0, timeout=1)):
            with pytest.raises(QueueUnavailable):
                call()
        assert queue.push([job()], epoch="") == [Pushed.NEW]
        assert len(queue.fetch(3, timeout=1)) == 2
        assert queue.fetch(0, timeout=0.01) == []
    finally:
        os.kill(pid, signal.SIGCONT)
    client.close()


def test_a_master_that_became_a_replica_is_left(watched: Watched) -> None:
    client = Client(watched.url)
    queue = StandardQueue(client, "mail", worker="w1", installation="3f1e")
    assert queue.push([job()], epoch="") == [Pushed.NEW]
    watched.master.admin("REPLICAOF", "127.0.0.1", watched.replica.port)
    with pytest.raises(QueueUnavailable, match="previous master"):
        queue.push([job()], epoch="")
    with pytest.raises(
        QueueUnavailable, match="is not the master"
    ):  # the Sentinels have not seen it yet
        queue.push([job()], epoch="")
    watched.master.admin("REPLICAOF", "NO", "ONE")
    assert queue.push([job()], epoch="") == [Pushed.NEW]
    client.close()


def test_a_sentinel_that_does_not_answer_and_one_that_is_wrong(watched: Watched) -> None:
    silent, wrong, _ = watched.sentinels
    port = silent.port
    silent.stop()
    # Cut off from the others it would not know of a failover: it names the replica as the master.
    wrong.admin("SENTINEL", "REMOVE", NAME)
    wrong.admin("SENTINEL", "MONITOR", NAME, "127.0.0.1", watched.replica.port, 3)
    hosts = ",".join(f"127.0.0.1:{each}" for each in (port, wrong.port, watched.sentinels[2].port))
    client = Client(f"redis+sentinel://{hosts}/{NAME}?max_retries=1")
    assert client.call("SET", "a", "1")
    assert watched.master.admin("GET", "a") == b"1"
    client.close()
    with pytest.raises(QueueError, match="knows no server 'other'") as caught:
        Client(f"redis+sentinel://{hosts}/other").call("PING")
    assert not isinstance(caught.value, QueueUnavailable)
    with pytest.raises(QueueUnavailable, match="none of 1 Sentinels answers"):
        Client(f"redis+sentinel://127.0.0.1:{free_port()}/{NAME}").call("PING")
    with pytest.raises(QueueError, match="this is a Sentinel"):
        Client(f"redis://127.0.0.1:{wrong.port}").call("PING")


def test_sentinels_with_a_password_of_their_own() -> None:
    binary = any_binary()
    with one(binary, "--requirepass", "sesame") as server:
        lines = (
            f"sentinel monitor {NAME} 127.0.0.1 {server.port} 1",
            f"sentinel auth-pass {NAME} sesame",
        )
        sentinel = started(Sentinel(binary, *lines, "requirepass open"))
        try:
            url = f"redis+sentinel://:sesame@127.0.0.1:{sentinel.port}/{NAME}"
            assert Client(f"{url}?sentinel_password=open").call("PING")
            for wrong in (url, f"{url}?sentinel_password=shut"):
                with pytest.raises(QueueError, match="name or password: Sentinel") as caught:
                    Client(wrong).call("PING")
                assert "sesame" not in str(caught.value)
        finally:
            sentinel.stop()
