"""Bad requests and bad times: what is wrong is named, and never the server's fault."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import httpx
import psycopg
import pytest

from scheduler import Scheduler
from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.web.app import application
from scheduler.web.serve import Server
from tests.web.conftest import API, MakeClient, client_of

WRONG: dict[str, tuple[Any, int, str]] = {
    "no type": ({}, 400, "'type' is a required property"),
    "an unknown key": ({"type": "x", "paylod": 1}, 400, "'paylod' was unexpected"),
    "a priority that is none": ({"type": "x", "priority": 9}, 400, "body.priority"),
    "a text for a number": (
        {"type": "x", "retry": {"max_attempts": "3"}},
        400,
        "body.retry.max_attempts",
    ),
    "no duration": ({"type": "x", "delay": "soon"}, 400, "body.delay"),
    "no moment": ({"type": "x", "run_at": "tomorrow"}, 400, "body.run_at"),
    "a moment without a zone": ({"type": "x", "run_at": "2030-01-01T00:00:00"}, 400, "body.run_at"),
    "both": (
        {"type": "x", "delay": "1h", "run_at": "2030-01-01T00:00:00Z"},
        422,
        "run_at and delay",
    ),
    "a job that is not there": (
        {"type": "x", "after": ["00000000-0000-4000-8000-000000000000"]},
        422,
        "00000000-0000",
    ),
    "a NUL in the payload": ({"type": "x", "payload": {"a": "\0"}}, 422, "payload['a']"),
    "a huge number": ({"type": "x", "payload": 2**70}, 422, "more than 64 bits"),
    "half a character": ({"type": "\ud800"}, 400, "surrogates not allowed"),
    "no base64": ({"type": "x", "payload_base64": "?"}, 422, "payload_base64"),
    "a payload too large": ({"type": "x", "payload": "x" * 1_048_576}, 422, "1,048,578 bytes"),
    "a list": ([], 400, "body"),
}


@pytest.fixture
def http(client: MakeClient) -> httpx.Client:
    return client("acme", **{"content-type": "application/json"})


def test_a_wrong_body_is_refused_with_its_culprit(http: httpx.Client, ring: Scheduler) -> None:
    for name, (body, status, culprit) in WRONG.items():
        answer = http.post("/jobs", content=json.dumps(body))
        assert answer.status_code == status, f"{name}: {answer.text}"
        assert answer.headers["content-type"] == "application/problem+json"
        assert culprit in answer.json()["message"], f"{name}: {answer.text}"
        assert answer.json()["cure"], name
        assert answer.json()["request_id"] == answer.headers["x-request-id"], name
    assert ring.find("acme").jobs == ()


NOT_JSON = {
    "nothing": b"",
    "half": b'{"type": ',
    "NaN": b'{"type": "x", "payload": NaN}',
    "bytes": b"\xff",
    "deep": b"[" * 100_000,
    "a number of 5,000 digits": b'{"type": "x", "payload": ' + b"9" * 5000 + b"}",
}


def test_what_is_not_json_is_refused(http: httpx.Client) -> None:
    for name, body in NOT_JSON.items():
        answer = http.post("/jobs", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), name


def test_a_wrong_query_or_address_is_refused_with_its_culprit(http: httpx.Client) -> None:
    wrong = {
        "/jobs?limit=0": (400, "limit"),
        "/jobs?limit=1001": (400, "limit"),
        "/jobs?limit=many": (400, "limit"),
        "/jobs?limit=1&limit=2": (400, "limit"),
        "/jobs?stat=dead": (400, "'stat' was unexpected"),
        "/jobs?state=gone": (400, "state"),
        "/jobs?tenant=%00": (400, "tenant"),
        "/jobs?tag_value=1": (422, "tag_value"),
        "/jobs/7": (400, "id"),
        "/jobs/00000000-0000-4000-8000-000000000000?id=7": (400, "id"),
        "/jobs/00000000-0000-4000-8000-000000000000": (404, "00000000-0000"),
        "/recurring/nobody": (404, "'nobody'"),
        "/recurring/": (400, "job_id"),
        "/nothing": (404, "nothing"),
    }
    for path, (status, culprit) in wrong.items():
        answer = http.get(path)
        assert answer.status_code == status, f"{path}: {answer.text}"
        assert culprit in answer.json()["message"], f"{path}: {answer.text}"


def test_other_methods_are_refused_with_those_that_there_are(http: httpx.Client) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        answer = http.request(method, "/jobs")
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == {"GET", "POST"}
        assert answer.json()["code"] == "method_not_allowed"


def test_a_body_that_is_too_large_is_not_read(http: httpx.Client) -> None:
    limit = 4 * 1_048_576
    assert http.post("/jobs", content=b" " * (limit + 1)).status_code == 413
    said = 0

    def endless() -> Any:
        nonlocal said
        while said < 10 * limit:
            said += 65_536
            yield b" " * 65_536

    with contextlib.suppress(httpx.WriteError):  # it may be closed while we go on
        assert http.post("/jobs", content=endless()).status_code == 413
    assert said < 8 * limit


def test_a_state_that_forbids_it_is_a_conflict(http: httpx.Client, ring: Scheduler) -> None:
    live = ring.submit("acme", "x", delay="1h")
    answer = http.post(f"/jobs/{live.id}/retry", json={})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert str(live.id) in answer.json()["message"]


def test_while_postgres_is_away_it_says_so(redis_server: EmbeddedRedis) -> None:
    with EmbeddedPostgres(durable=False) as postgres:
        ring = Scheduler(postgres.dsn, redis=redis_server.url, listen=False).start()
        server = Server(application(ring), "127.0.0.1", 0)
        server.start()
        try:
            with httpx.Client(
                base_url=server.url + API, params={"tenant": "acme"}, timeout=30
            ) as http:
                assert http.get("/jobs").status_code == 200
                postgres.stop()
                away = http.get("/jobs")
                assert (away.status_code, away.json()["code"]) == (503, "unavailable")
                assert int(away.headers["retry-after"]) >= 1
        finally:
            server.stop()
            ring.cancel(timeout=0)


def test_while_redis_is_away_jobs_are_read_and_queues_say_so(dsn: str, schema: str) -> None:
    with EmbeddedRedis() as redis:
        ring = Scheduler(
            dsn, schema=schema, redis=redis.url, queues={"mail": {"dialect": "standard"}}
        ).start()
        server = Server(application(ring), "127.0.0.1", 0)
        server.start()
        try:
            with httpx.Client(base_url=server.url + API, timeout=30) as http:
                assert http.get("/queues/mail/peek").json() == {"items": []}
                redis.stop()
                away = http.get("/queues/mail/peek")
                assert (away.status_code, away.json()["code"]) == (503, "unavailable")
                assert http.get("/queues").json()["items"][0]["error"]
                assert http.get("/workers").json()["code"] == "unavailable"
                fleet = httpx.get(f"{server.url}/fleet", timeout=30)
                assert (fleet.status_code, "Redis is away" in fleet.text) == (200, True)
                assert http.get("/jobs", params={"tenant": "acme"}).status_code == 200
        finally:
            server.stop()
            ring.cancel(timeout=0)


def test_a_scheduler_that_is_not_started_is_unavailable(dsn: str, schema: str) -> None:
    server = Server(application(Scheduler(dsn, schema=schema)), "127.0.0.1", 0)
    server.start()
    try:
        assert httpx.get(f"{server.url}{API}/jobs?tenant=acme").status_code == 503
    finally:
        server.stop()


def test_slow_statements_do_not_hold_up_the_loop(
    client: MakeClient, ring: Scheduler, connection: psycopg.Connection[Any]
) -> None:
    with connection.transaction():
        connection.execute("LOCK TABLE job_queue")
        slow = [threading.Thread(target=lambda: client().get("/jobs")) for _ in range(8)]
        for each in slow:
            each.start()
        assert client().get("/openapi.json").status_code == 200
        assert client(None).get("/jobs").status_code == 401
        assert all(each.is_alive() for each in slow), "they were answered after the slow ones"
    for each in slow:
        each.join()


def test_bytes_that_are_no_http_harm_nobody(serve: Callable[..., str]) -> None:
    url = httpx.URL(serve())
    for garbage in (
        b"\x16\x03\x01" * 50,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"a" * 200_000,
        b"POST /api/v1/jobs HTTP/1.1\r\n",
    ):
        with socket.create_connection((url.host, url.port or 80), timeout=5) as plain:
            plain.sendall(garbage)
    with client_of(str(url).rstrip("/"), None) as http:
        assert http.get("/openapi.json").status_code == 200
