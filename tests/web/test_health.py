"""Health checks on the port of the HTTP API."""

import gc
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from scheduler import ConfigError, Scheduler
from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.observe.health import Pages, reasons
from scheduler.web.app import application
from scheduler.web.serve import Server
from tests.support.waiting import wait_for
from tests.web.conftest import TOKENS, Serve, browser


def test_health_needs_no_token_and_equals_the_observability_port(
    ring: Scheduler, serve: Serve
) -> None:
    pages = Pages(lambda: reasons([ring]), None)
    with browser(serve(*TOKENS)) as http:
        wait_for(lambda: http.get("/readyz").status_code == 200, "it is ready")
        for path in ("/healthz", "/readyz"):
            status, kind, body = pages.answer(path)
            answer = http.get(path)
            assert (answer.status_code, answer.content) == (status, body)
            assert answer.headers["content-type"] == kind


def test_health_answers_any_host_without_tokens(serve: Serve) -> None:
    with browser(serve()) as http:
        headers = {"host": "10.1.2.3:8080", "x-forwarded-for": "10.9.9.9"}
        assert http.get("/healthz", headers=headers).status_code == 200
        wait_for(lambda: http.get("/readyz", headers=headers).status_code == 200, "it is ready")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_answers_head_without_a_body(serve: Serve, path: str) -> None:
    with browser(serve(*TOKENS)) as http:
        wait_for(lambda: http.head(path).status_code == 200, "it answers")
        assert http.head(path).content == b""
        assert http.post(path).status_code == 405


def test_health_is_not_rate_limited(serve: Serve) -> None:
    url = serve(*TOKENS, rate_limit=1)

    def ask(_: int) -> int:
        with browser(url) as http:
            return http.get("/readyz").status_code

    wait_for(lambda: ask(0) == 200, "it is ready")
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(ask, range(40))) == {200}


def test_health_of_a_mounted_app_is_below_its_mount(ring: Scheduler) -> None:
    inner = application(ring, tokens=TOKENS)
    outer = Starlette(routes=[Mount("/queue", inner)])
    outer.state.site = inner.state.site
    server = Server(outer, "127.0.0.1", 0)
    server.start()
    try:
        with browser(server.url) as http:
            assert http.get("/queue/healthz").status_code == 200
            assert http.get("/healthz").status_code == 404
    finally:
        server.stop()


def test_readiness_names_the_server_that_is_away_without_secrets(schema: str) -> None:
    with EmbeddedPostgres(durable=False) as postgres, EmbeddedRedis() as redis:
        dsn = f"{postgres.dsn}{'&' if '?' in postgres.dsn else '?'}password=trout77"
        with Scheduler(dsn, schema=schema, redis=redis.url) as scheduler:
            server = Server(application(scheduler, tokens=TOKENS), "127.0.0.1", 0)
            server.start()
            try:
                with browser(server.url) as http:
                    wait_for(lambda: http.get("/readyz").status_code == 200, "it is ready")
                    redis.stop()
                    wait_for(lambda: "Redis" in _reasons(http), "Redis is the reason", timeout=60)
                    without_redis = _reasons(http)
                    postgres.stop()
                    wait_for(
                        lambda: _reasons(http) != without_redis, "Postgres is a reason", timeout=60
                    )
                    assert "trout77" not in _reasons(http)
                    assert "/" not in _reasons(http), "an address or a socket is shown"
                    assert http.get("/healthz").status_code == 200
            finally:
                server.stop()


def _reasons(http: httpx.Client) -> str:
    answer = http.get("/readyz")
    found = answer.json()
    assert found["ready"] is (answer.status_code == 200)
    return json.dumps(found["reasons"])


def test_a_port_in_use_leaves_no_socket_open(ring: Scheduler) -> None:
    app = application(ring, tokens=TOKENS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=r"web\.port"):
            Server(app, "127.0.0.1", port)
    gc.collect()  # an open socket is a ResourceWarning, which fails the test
