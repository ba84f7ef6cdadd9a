"""Events over a real connection: what happens, where a reader goes on, and that a slow one harms
nobody; and wait.
"""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from scheduler import Scheduler
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.web import streams
from scheduler.web.app import application
from scheduler.web.serve import Server
from tests.support.waiting import wait_for
from tests.web.conftest import TOKENS, MakeClient, client_of, working


class Reader:
    """Reads a stream in a thread: (id, event, data) each."""

    def __init__(self, http: httpx.Client, **headers: str) -> None:
        self.heard: list[tuple[str, str, Any]] = []
        self.comments = 0
        self.began = threading.Event()
        self._leave = contextlib.ExitStack()
        self._answer = self._leave.enter_context(
            http.stream("GET", "/events", headers=headers, timeout=30)
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self.began.wait(60)

    def _read(self) -> None:
        event: dict[str, str] = {}
        with contextlib.suppress(httpx.HTTPError):
            for line in self._answer.iter_lines():
                self.began.set()
                self.comments += line.startswith(":")
                name, _, value = line.partition(": ")
                if line:
                    event[name] = value
                elif "data" in event:
                    self.heard.append(
                        (event.get("id", ""), event["event"], json.loads(event["data"]))
                    )
                    event = {}

    def names(self) -> list[str]:
        return [name for _, name, _ in self.heard]

    def leave(self) -> None:
        with contextlib.suppress(OSError):
            self._answer.extensions["network_stream"].get_extra_info("socket").shutdown(
                socket.SHUT_RDWR
            )
        self._thread.join(60)
        self._leave.close()


@pytest.fixture
def reader() -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def read(http: httpx.Client, **headers: str) -> Reader:
        made.append(Reader(http, **headers))
        return made[-1]

    yield read
    for each in made:
        each.leave()


@pytest.fixture
def worker(redis_server: EmbeddedRedis) -> Iterator[None]:
    with working(redis_server, "echo", lambda ctx, payload: payload):
        yield


@pytest.fixture
def server(ring: Scheduler) -> Iterator[Server]:
    made = Server(application(ring, tokens=TOKENS, rate_limit=0), "127.0.0.1", 0)
    made.start()
    yield made
    made.stop()


def submitted(ring: Scheduler, tenant: str = "acme") -> str:
    return str(ring.submit(tenant, "echo", {"n": 1}, queue="mail").id)


def states(reader: Reader, job: str) -> list[str]:
    return [data["state"] for _, name, data in reader.heard if name == "job" and data["id"] == job]


def test_a_reader_hears_of_the_jobs_of_its_tenant_and_of_no_other(
    client: MakeClient, ring: Scheduler, worker: None, reader: Callable[..., Reader]
) -> None:
    mine, rivals = reader(client("acme")), reader(client("rival"))
    ring.register("acme", "tick", lambda: None, every="1d")
    job = ""

    def heard() -> bool:
        nonlocal job
        job = submitted(ring)
        ring.wait("acme", job, 10)
        return any(name == "job" for name in mine.names())

    wait_for(heard, "a job's state")
    wait_for(lambda: "completed" in states(mine, job), "its end")
    ring.trigger("acme", "tick")
    wait_for(
        lambda: any(data.get("outcome") == "success" for _, _, data in mine.heard),
        "the run of a recurring job",
    )
    assert rivals.names() == []
    assert all("payload" not in data for _, _, data in mine.heard)


def test_progress_is_an_event_of_its_own(
    client: MakeClient,
    ring: Scheduler,
    redis_server: EmbeddedRedis,
    reader: Callable[..., Reader],
) -> None:
    mine = reader(client("acme"))

    def rows(ctx: Any, payload: object) -> None:
        for percent in (10, 20, 30):
            ctx.progress(percent, f"{percent} rows")

    def published() -> str | None:
        job = str(ring.submit("acme", "rows", queue="mail").id)
        ring.wait("acme", job, 10)
        wait_for(lambda: "completed" in states(mine, job), "its end")
        return job if "progress" in mine.names() else None

    with working(redis_server, "rows", rows):
        job = wait_for(published, "the worker publishes progress")
    progress = [data for _, name, data in mine.heard if name == "progress" and data["id"] == job]
    assert [(each["progress"], each["message"]) for each in (progress[0], progress[-1])] == [
        (10, "10 rows"),
        (30, "30 rows"),
    ]
    assert {each["state"] for each in progress} == {"running"}
    assert progress[0].keys() == {"tenant", "id", "state", "at", "progress", "message"}
    assert all("progress" not in data for _, name, data in mine.heard if name == "job")


def test_who_comes_back_goes_on_where_it_was(
    client: MakeClient, ring: Scheduler, worker: None, reader: Callable[..., Reader]
) -> None:
    first = reader(client())
    wait_for(
        lambda: ring.wait("acme", submitted(ring), 10).completed_at and first.heard,
        "the first event",
    )
    last = first.heard[0][0]
    first.leave()
    missed = submitted(ring)
    ring.wait("acme", missed, 10)
    second = reader(client(), **{"last-event-id": last})
    wait_for(lambda: "completed" in states(second, missed), "what happened meanwhile")
    assert "gap" not in second.names()
    numbers = [int(each.partition("-")[2]) for each, _, _ in second.heard]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] == int(last.partition("-")[2]) + 1
    for unknown in ("0-1", "x", f"{last}0000", "-"):
        third = reader(client(), **{"last-event-id": unknown})
        wait_for(lambda reader=third: reader.names()[:1] == ["gap"], "that something was missed")  # type: ignore[misc]


def test_a_reader_that_does_not_read_holds_up_nobody_and_no_memory(
    server: Server, reader: Callable[..., Reader]
) -> None:
    url = httpx.URL(server.url)
    with (
        client_of(server.url, "acme") as http,
        socket.create_connection((url.host, url.port or 80)) as stuck,
    ):
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        stuck.sendall(
            b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret of "
            b"acme\r\n\r\n"
        )
        quick = reader(http)
        stream = server._site.streams._streams["acme"]
        wait_for(lambda: stream.readers == 2, "both")
        for number in range(40):
            for _ in range(500):
                stream.add("job", {"n": number, "text": "x" * 500})
            wait_for(
                lambda number=number: quick.heard and quick.heard[-1][2].get("n", -1) == number,  # type: ignore[misc]
                "the newest",
            )
        assert stream.readers == 2  # it is still there, ten megabytes behind
        assert len(stream._events) == streams.REMEMBERED


def test_a_reader_that_falls_behind_is_told_so() -> None:
    async def behind() -> tuple[int, list[bytes] | None, list[bytes] | None]:
        stream = streams.Stream(asyncio.get_running_loop())
        slow = stream.place(None)
        assert slow == 0
        for number in range(streams.REMEMBERED + 1):
            stream.add("job", {"n": number})
        now, lost = stream.since(slow)
        _, rest = stream.since(now - 2)
        return now, lost, rest

    now, lost, rest = asyncio.run(behind())
    assert now == streams.REMEMBERED + 1
    assert lost is None
    assert rest is not None
    assert [b'"n":999' in rest[0], b'"n":1000' in rest[1]] == [True, True]


def test_nothing_happens_and_the_line_is_kept_open(
    client: MakeClient,
    ring: Scheduler,
    reader: Callable[..., Reader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.05)
    quiet = reader(client())
    wait_for(lambda: quiet.comments >= 3, "signs of life")


def test_one_token_cannot_take_all_places(
    server: Server, ring: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_EACH", 2)
    job = ring.submit("acme", "x", delay="1h").id
    with client_of(server.url, "acme") as http, client_of(server.url, "rival") as other:
        waits = [
            threading.Thread(target=lambda: http.get(f"/jobs/{job}/wait?seconds=18"))
            for _ in range(2)
        ]
        for each in waits:
            each.start()
        wait_for(lambda: server._site.streams.slots._taken.get("acme") == 2, "both")
        for path in (f"/jobs/{job}/wait?seconds=0", "/events"):
            refused = http.get(path)
            assert (refused.status_code, refused.json()["code"]) == (429, "busy")
            assert refused.headers["retry-after"] == "2"
        assert other.get(f"/jobs/{job}/wait?seconds=0").status_code == 404
        for each in waits:
            each.join()
        assert http.get(f"/jobs/{job}/wait?seconds=0").status_code == 202


def test_wait_answers_as_soon_as_the_job_has_ended(
    client: MakeClient, ring: Scheduler, worker: None
) -> None:
    job = submitted(ring)
    ended = client().get(f"/jobs/{job}/wait", params={"seconds": 20})
    assert ended.status_code == 200
    assert (ended.json()["state"], ended.json()["result"]) == ("completed", {"n": 1})
    later = ring.submit("acme", "echo", queue="mail", delay="1h")
    began = time.monotonic()
    waiting = client().get(f"/jobs/{later.id}/wait", params={"seconds": 1})
    assert (waiting.status_code, waiting.json()["state"]) == (202, "delayed")
    assert 0.9 < time.monotonic() - began < 18


def test_many_waits_hold_up_nobody(client: MakeClient, ring: Scheduler) -> None:
    job = ring.submit("acme", "x", delay="1h").id
    waits = [
        threading.Thread(target=lambda: client().get(f"/jobs/{job}/wait?seconds=18"))
        for _ in range(20)
    ]
    for each in waits:
        each.start()
    assert client().get("/jobs").status_code == 200
    assert all(each.is_alive() for each in waits), "it was answered after them"
    ring.cancel_job("acme", job)
    for each in waits:
        each.join()


def test_streams_end_with_the_server(server: Server, reader: Callable[..., Reader]) -> None:
    with client_of(server.url, "acme") as http:
        open_ = reader(http)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 30
        wait_for(lambda: not open_._thread.is_alive(), "its end")
