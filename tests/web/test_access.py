"""Who may do what: tokens, scopes, tenants, rates; what browsers are kept from; what is logged."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from scheduler import Scheduler
from scheduler.web.access import LOCAL, Access, Caller, hashed, minted
from scheduler.web.app import application
from scheduler.web.problems import Problem
from scheduler.web.route import Route
from scheduler.web.serve import Server
from scheduler.web.sessions import COOKIE, Sessions
from scheduler.web.table import ROUTES
from tests.support.waiting import wait_for
from tests.web.conftest import API, TOKENS, MakeClient, client_of, token

Serve = Callable[..., str]


def ask(http: httpx.Client, route: Route, body: Any = None, **given: Any) -> httpx.Response:
    """Call a route with values that fit; a stream is not read."""
    places = {name: given.pop(name, _place(name)) for name in route.places}
    path = route.path.replace(":path}", "}").format(**places)
    sent = (
        {} if route.body is None else {"json": BODIES.get(route.name, {}) if body is None else body}
    )
    with http.stream(route.method, path, params=given, **sent) as answer:
        if not route.streams or answer.is_error:
            answer.read()
        return answer


BODIES: dict[str, Any] = {
    "submit_job": {"type": "x"},
    "submit_jobs": {"jobs": [{"type": "x"}]},
    "requeue_dead": {},
    "purge_dead": {"confirm": "mail"},
}


def _place(name: str) -> str:
    return str(uuid4()) if name == "id" else "mail"


def snapshot(ring: Scheduler, tenant: str) -> list[Any]:
    """All that a tenant has, but for what time does by itself."""
    recurring = [
        (job.job_id, job.paused_at, job.trigger_at, job.next_run_at)
        for job in ring.registered(tenant)
    ]
    jobs = [(job.id, job.state, job.cancel_requested_at) for job in ring.find(tenant).jobs]
    return [recurring, jobs, [row.place for row in ring.history(tenant)]]


def test_a_token_of_one_tenant_neither_reads_nor_touches_another_through_any_route(
    client: MakeClient, ring: Scheduler
) -> None:
    ring.register("rival", "secret", lambda: None, every="1d")
    live = ring.submit("rival", "secret", {"secret": 1}, delay="1h", tags={"secret": "1"})
    over = ring.submit("rival", "secret", delay="1h")
    ring.cancel_job("rival", over.id)
    before = snapshot(ring, "rival")
    http = client("acme")
    for route in ROUTES:
        if route.fleet:
            assert ask(http, route).status_code == 403, route.name
            continue
        assert ask(http, route, tenant="rival").status_code == 403, route.name
        for known in (live.id, over.id):
            answer = ask(
                http, route, **{name: known if name == "id" else "secret" for name in route.places}
            )
            if route.places:
                assert answer.status_code == 404, route.name
            elif not route.streams:
                assert answer.status_code in (200, 201), route.name
                assert not {"secret", str(live.id), str(over.id)} & set(
                    re.findall(r"[\w-]+", answer.text)
                ), route.name
    assert snapshot(ring, "rival") == before


def test_each_route_needs_a_token_and_its_scope(client: MakeClient, ring: Scheduler) -> None:
    for route in ROUTES:
        nobody = ask(client(None), route)
        assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, "Bearer"), (
            route.name
        )
        assert ask(client("nobody"), route).status_code == 401, route.name
        refused = ask(client("writer" if route.scope == "read" else "reader"), route)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), route.name
        assert route.scope in refused.json()["message"]


def test_payloads_and_results_are_hidden_unless_the_token_may_see_them(
    client: MakeClient, ring: Scheduler
) -> None:
    job = ring.submit("acme", "x", {"secret": 1}, delay="1h")
    paths = [f"/jobs/{job.id}", "/jobs", f"/jobs/{job.id}/wait?seconds=0", "/history"]
    for path in paths:
        assert "secret" not in client("reader").get(path).text
    assert '"secret":1' in client("acme").get(paths[0]).text


def test_a_token_of_several_tenants_has_to_name_one(client: MakeClient, ring: Scheduler) -> None:
    http = client("both")
    assert http.get("/jobs").status_code == 422
    assert http.get("/jobs", params={"tenant": "rival"}).status_code == 200
    assert http.get("/jobs", params={"tenant": "third"}).status_code == 403
    assert client("operator").get("/jobs", params={"tenant": "third"}).status_code == 200


def test_only_hashes_of_tokens_are_kept_and_all_are_compared() -> None:
    made = minted()
    assert len(made) > 40
    access = Access([token("a"), token("b")], 0)
    assert made not in repr(vars(access))
    assert access.holder("secret of b") == Caller(
        name="b", scopes=LOCAL.scopes, tenants=frozenset({"acme"})
    )
    assert access.holder(hashed("secret of b")) is None


def test_who_asks_too_often_is_told_when_to_come_back(serve: Serve, ring: Scheduler) -> None:
    url = serve(*TOKENS, rate_limit=5)
    with client_of(url, "acme") as http, client_of(url, "rival") as other:
        answers = [http.get("/jobs") for _ in range(10)]
        assert [answer.status_code for answer in answers] == [200] * 10
        while (
            answers[-1].status_code == 200 and len(answers) < 200
        ):  # what a slow machine lets come back is spent too
            answers.append(http.get("/jobs"))
        assert answers[-1].status_code == 429
        assert answers[-1].json()["code"] == "rate_limited"
        assert answers[-1].headers["retry-after"] == "1"
        assert other.get("/jobs").status_code == 200


def test_a_bucket_fills_again() -> None:
    access = Access([], 10)

    def spent() -> int:
        count = 0
        with contextlib.suppress(Problem):
            while count < 1000:
                access.spend(LOCAL)
                count += 1
        return count

    assert 20 <= spent() < 30
    assert wait_for(spent, "a place in the bucket", timeout=60) < 10


FOREIGN = {
    "a name that is not this machine's": {"host": "evil.example"},
    "a proxy": {"x-forwarded-for": "10.0.0.1"},
    "another proxy": {"forwarded": "for=10.0.0.1"},
}


def test_without_tokens_only_this_machine_is_served(serve: Serve, ring: Scheduler) -> None:
    url = serve()
    with client_of(url, None) as http:
        assert http.get("/jobs", params={"tenant": "acme"}).status_code == 200
        assert http.post("/jobs", params={"tenant": "acme"}, json={"type": "x"}).status_code == 201
        for name, headers in FOREIGN.items():
            assert (
                http.get("/jobs", params={"tenant": "acme"}, headers=headers).status_code == 401
            ), name


FORGED = {
    "from another site": {"origin": "http://evil.example"},
    "from another port": {"origin": "http://127.0.0.1:1"},
    "as a browser says": {"sec-fetch-site": "cross-site"},
    "from a file": {"origin": "null"},
}


def test_a_page_of_elsewhere_in_a_browser_here_writes_nothing(
    serve: Serve, ring: Scheduler
) -> None:
    url = serve()
    with client_of(url, None) as http:
        params = {"tenant": "acme"}
        for name, headers in FORGED.items():
            assert (
                http.post("/jobs", params=params, json={"type": "x"}, headers=headers).status_code
                == 401
            ), name
        own = http.post("/jobs", params=params, json={"type": "x"}, headers={"origin": url})
        assert own.status_code == 201
        form = http.post(
            "/jobs", params=params, content='{"type": "x"}', headers={"content-type": "text/plain"}
        )
        assert form.status_code == 415
    assert len(ring.find("acme").jobs) == 1


@pytest.fixture
def audited(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[logging.LogRecord]]]:
    with caplog.at_level(logging.INFO, "scheduler"):
        yield lambda: [
            record for record in caplog.records if record.getMessage().startswith("audit:")
        ]


def test_each_write_leaves_a_line_that_says_who_what_and_which(
    client: MakeClient, ring: Scheduler, audited: Callable[[], list[logging.LogRecord]]
) -> None:
    http = client("acme", **{"x-request-id": "from-outside-7"})
    made = http.post("/jobs", json={"type": "x", "payload": "hidden", "delay": "1h"})
    assert made.headers["x-request-id"] == "from-outside-7"
    http.post(f"/jobs/{made.json()['id']}/cancel", json={"reason": "hidden"})
    http.get("/jobs")
    client("reader").post("/jobs", json={"type": "x"})
    first, second, third = (record.getMessage() for record in audited())
    assert first == f"audit: 'acme' submit_job -> 201 {made.json()['id']}"
    assert second == f"audit: 'acme' cancel_job id='{made.json()['id']}' -> 200"
    assert third == "audit: 'reader' submit_job -> 403"
    assert [getattr(record, "request_id", None) for record in audited()][:2] == [
        "from-outside-7"
    ] * 2
    assert "hidden" not in f"{first} {second}"


def test_every_answer_has_the_headers_that_keep_browsers_from_harm(
    client: MakeClient, ring: Scheduler
) -> None:
    for path in ("/jobs", "/nothing", "/openapi.json"):
        headers = client().get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
        assert len(headers["x-request-id"]) == 16
    assert client(**{"x-request-id": "no\tgood"}).get("/jobs").headers["x-request-id"] != "no\tgood"


def test_a_session_reads_and_never_writes_through_the_api(serve: Serve, ring: Scheduler) -> None:
    sessions = Sessions(Access(TOKENS, 0))

    def request(cookie: str = "", **headers: str) -> Request:
        sent = {"host": "here", "cookie": f"{COOKIE}={cookie}", **headers}
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()]
        return Request(
            {
                "type": "http",
                "method": "POST",
                "path": "/",
                "headers": raw,
                "scheme": "http",
                "query_string": b"",
            }
        )

    response = Response()
    assert sessions.begin(request(), response, "secret of reader").name == "reader"
    said = response.headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=strict" in said
    cookie = said.partition("=")[2].partition(";")[0]
    found = sessions.caller(request(cookie))
    assert found is not None
    assert found.name == "reader"
    for forged in (cookie[:-1], f"x{cookie}", "", "...", cookie.replace(".", "")):
        assert sessions.caller(request(forged)) is None
    assert Sessions(Access(TOKENS, 0)).caller(request(cookie)) is None
    sessions.check_csrf(request(cookie), sessions.csrf(request(cookie)))
    for bad in (request("other"), request(cookie, origin="http://evil.example")):
        with pytest.raises(Problem):
            sessions.check_csrf(bad, sessions.csrf(request(cookie)))
    with pytest.raises(Problem):
        sessions.begin(request(), Response(), "nobody's")

    site = application(ring, tokens=TOKENS).state.site
    site.sessions = sessions
    with pytest.raises(Problem) as refused:
        site.identify(request(cookie))
    assert refused.value.code == "unauthorized"
    reading = request(cookie)
    reading.scope["method"] = "GET"
    assert site.identify(reading).name == "reader"


def test_it_may_be_mounted_into_an_app_of_yours(ring: Scheduler) -> None:
    yours = Starlette(routes=[Mount("/queue", application(ring, tokens=TOKENS))])
    yours.state.site = application(
        ring, tokens=TOKENS
    ).state.site  # what our own server asks for its end
    server = Server(yours, "127.0.0.1", 0)
    server.start()
    try:
        with client_of(f"{server.url}/queue", "acme") as http:
            assert http.get("/openapi.json").json()["servers"] == [{"url": f"/queue{API}"}]
            assert http.post("/jobs", json={"type": "x"}).status_code == 201
            assert http.get("/nothing").json()["code"] == "not_found"
    finally:
        server.stop()
