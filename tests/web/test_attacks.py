"""Attacks on the site: forged cookies, headers and forms, requests that are made to take long, and
servers away.
"""

import base64
import re
import time
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from scheduler import Scheduler
from scheduler.web.pages import PAGES
from scheduler.web.sessions import COOKIE
from scheduler.web.table import ROUTES
from tests.web.conftest import API, TOKENS, MakeClient, Serve, Visitor, browser, csrf

BROKEN_ORIGIN = {"origin": "http://[broken"}


def test_a_token_of_a_form_is_no_signature_of_a_session(serve: Serve) -> None:
    name = base64.urlsafe_b64encode(b"operator").decode()
    with browser(serve(*TOKENS)) as here:
        for said in (f"{name}.{2**33}.x", f"xxx.{2**33}.x", "..", "x.y.z", "a"):
            page = here.get("/login", headers={"cookie": f"{COOKIE}={said}"})
            for forged in (said, f"csrf:{said}"):
                answer = here.get("/", headers={"cookie": f"{COOKIE}={forged}.{csrf(page)}"})
                assert (answer.status_code, answer.headers["location"]) == (303, "/login")


def test_who_logs_out_takes_the_cookie_along(visitor: Visitor) -> None:
    person, thief = visitor(), visitor(None)
    thief.cookies.update(person.cookies)
    assert thief.get("/").status_code == 200
    person.post("/logout", data={"csrf": csrf(person.get("/"))})
    assert thief.get("/").status_code == 303


def test_a_login_makes_a_new_session_whatever_the_browser_came_with(visitor: Visitor) -> None:
    planted = visitor()
    session = planted.cookies[COOKIE]
    planted.post("/login", data={"csrf": csrf(planted.get("/login")), "token": "secret of reader"})
    assert planted.cookies[COOKIE] != session


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_behind_tls_the_cookie_stays_there(serve: Serve, scheme: str) -> None:
    with browser(serve(*TOKENS)) as here:
        form = {"csrf": csrf(here.get("/login")), "token": "secret of acme"}
        answer = here.post("/login", data=form, headers={"x-forwarded-proto": scheme})
        assert ("Secure" in answer.headers["set-cookie"]) is (scheme == "https")


def test_an_origin_that_cannot_be_read_is_of_elsewhere(serve: Serve, ring: Scheduler) -> None:
    with browser(serve()) as here:
        form = {"act": "pause_queue", "name": "mail", "csrf": csrf(here.get("/queues"))}
        assert here.post("/do", data=form, headers=BROKEN_ORIGIN).status_code == 403
        sent = here.post("/api/v1/jobs?tenant=acme", json={"type": "x"}, headers=BROKEN_ORIGIN)
        assert sent.status_code == 401
    assert not ring.queue("mail").stats().paused


@pytest.mark.parametrize(
    "header", ["x-forwarded-for", "forwarded", "x-forwarded-host", "x-real-ip", "via"]
)
def test_behind_a_proxy_nobody_is_on_this_machine(
    serve: Serve, ring: Scheduler, header: str
) -> None:
    with browser(serve()) as here:
        assert here.get("/jobs", headers={header: "x"}).status_code == 401


def test_a_page_of_elsewhere_reads_nothing_here_but_a_link_to_us_works(
    serve: Serve, ring: Scheduler
) -> None:
    with browser(serve()) as here:
        elsewhere = {"sec-fetch-site": "cross-site"}
        for mode, status in {"no-cors": 401, "cors": 401, "navigate": 200}.items():
            assert (
                here.get("/jobs", headers={**elsewhere, "sec-fetch-mode": mode}).status_code
                == status
            )
        own = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
        assert here.get("/jobs", headers=own).status_code == 200


HOSTS = {
    "localhost": 200,
    "LOCALHOST:80": 200,
    "127.0.0.1:9": 200,
    "[::1]:9": 200,
    "": 401,
    "evil.example": 401,
    "[": 401,
    "127.0.0.1.evil.example": 401,
    "localhost.evil.example": 401,
    "127.0.0.1@evil.example": 401,
    "0.0.0.0": 401,
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_that_was_made_to_mean_this_machine_is_none_of_ours(
    serve: Serve, ring: Scheduler, host: str
) -> None:
    with browser(serve()) as here:
        for path in ("/jobs", "/api/v1/jobs?tenant=acme"):
            assert here.get(path, headers={"host": host}).status_code == HOSTS[host]


ODD = (
    "//[",
    "http://[",
    "/ok\r\nset-cookie: a=b",
    "/\ud800",
    "//evil.example",
    "/\\evil.example",
    "/" + "x" * 9000,
)


@pytest.mark.parametrize("path", ["/theme", "/do"])
def test_wherever_a_form_wants_to_go_back_to_one_stays_here(
    serve: Serve, ring: Scheduler, path: str
) -> None:
    with browser(serve()) as here:
        form = {
            "csrf": csrf(here.get("/queues")),
            "act": "pause_queue",
            "name": "mail",
            "theme": "dark",
        }
        for back in ODD:
            sent = urlencode({**form, "back": back}, errors="surrogatepass").encode()
            kind = {"content-type": "application/x-www-form-urlencoded"}
            answer = here.post(path, content=sent, headers=kind)
            if answer.status_code != 400:
                assert answer.status_code == 303, back
                assert re.match(r"/(?![/\\])", answer.headers["location"]), back
                assert "a=b" not in answer.headers.get("set-cookie", "")


QUERIES = (
    "tenant=%00",
    "tenant=%ED%A0%80",
    "tenant=%FF",
    "tenant=" + "x" * 300,
    "done=purge_dead&n=" + "9" * 5000,
    "done=purge_dead&n=%D9%A3",
    "after=%00",
    "before=%00",
    "name=%00",
    "name=mail%0A",
    "id=%00&tenant=acme",
    "id=x&tenant=acme",
    "tenant=acme&tenant=rival",
    "state=%00",
    "type=%00",
    "type=%ED%A0%80",
    "queue=%00",
    "%00=%00",
    "=",
    "&" * 500,
)


def test_no_query_of_a_page_or_a_route_is_the_servers_fault(serve: Serve, ring: Scheduler) -> None:
    with browser(serve()) as here:
        addresses = [
            *PAGES,
            "/login",
            *(f"{API}{route.path}" for route in ROUTES if route.method == "GET"),
        ]
        for path in addresses:
            known = re.sub(
                r"\{id\}", str(uuid4()), re.sub(r"\{name\}|\{job_id:path\}", "mail", path)
            )
            for query in QUERIES:
                with here.stream("GET", f"{known}?{query}") as answer:  # events would have no end
                    assert answer.status_code < 500, f"{known}?{query}"


def test_a_thousand_names_in_a_query_do_not_hold_up_the_loop(client: MakeClient) -> None:
    query = "&".join(f"{number:x}" for number in range(12_000))
    began = time.process_time()
    assert client().get(f"/jobs?{query}").status_code == 400
    assert time.process_time() - began < 2


def test_a_batch_of_far_too_many_is_refused_before_each_is_looked_at(client: MakeClient) -> None:
    for each in ("1", '{"type":"x"}'):
        body = f'{{"jobs":[{",".join([each] * 100_000)}]}}'
        began = time.process_time()
        answer = client(**{"content-type": "application/json"}).post("/jobs/batch", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        assert time.process_time() - began < 2
