"""Pages over HTTP: who sees what, forms of elsewhere, logins, where one goes afterwards, mounted
apps.
"""

import re
from html import unescape
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from scheduler import Scheduler
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.web import pages_fleet, pages_queues
from scheduler.web.app import application
from scheduler.web.pages import PAGES
from scheduler.web.pages_acts import back_to
from scheduler.web.serve import Server
from tests.support.foreigners import foreigners
from tests.support.waiting import wait_for
from tests.web.conftest import Serve, Visitor, browser, csrf, working


def nothing() -> None:
    """Do nothing."""


def test_who_is_not_logged_in_is_asked_to(visitor: Visitor) -> None:
    for path in PAGES:
        answer = visitor(None).get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    login = visitor(None)
    wrong = login.post("/login", data={"csrf": csrf(login.get("/login")), "token": "guessed"})
    assert wrong.status_code == 401
    assert "This token is not known" in wrong.text
    assert "guessed" not in wrong.text


def test_who_logs_out_is_out(visitor: Visitor) -> None:
    person = visitor()
    page = person.get("/")
    assert page.status_code == 200
    assert person.post("/logout", data={"csrf": csrf(page)}).headers["location"] == "/login"
    assert person.get("/").status_code == 303


def test_a_token_of_one_tenant_sees_it_alone(visitor: Visitor, ring: Scheduler) -> None:
    for tenant in ("acme", "rival"):
        ring.register(tenant, f"{tenant}-report", nothing, every="1h")
        ring.submit(tenant, f"{tenant}-type", queue="mail", delay="1h")
    rival = ring.submit("rival", "secret", delay="1h")
    person = visitor("acme")
    for path in PAGES:
        assert "rival" not in person.get(path).text
    for path in ("/", "/recurring", "/jobs"):
        assert "acme" in person.get(path).text
        refused = person.get(path, params={"tenant": "rival"})
        assert (refused.status_code, "rival-" in refused.text) == (403, False)
    for path, id_ in (("/job", str(rival.id)), ("/recurring/job", "rival-report")):
        assert person.get(path, params={"tenant": "rival", "id": id_}).status_code == 403
        assert person.get(path, params={"tenant": "acme", "id": id_}).status_code == 404
    for path in ("/queues", "/dead", "/fleet"):
        assert "belongs to all of them" in person.get(path).text


def test_where_no_worker_is_the_fleet_says_what_to_do(serve: Serve, ring: Scheduler) -> None:
    with browser(serve()) as here:
        fleet = here.get("/fleet").text
        assert "Nobody takes the jobs of these queues" in fleet
        assert "scheduler worker --app yourapp.jobs" in fleet
        assert (
            "scheduler worker --app yourapp.jobs --queue mail" in here.get("/queue?name=mail").text
        )


def test_without_redis_the_fleet_says_what_to_do(dsn: str, schema: str) -> None:
    with Scheduler(dsn, schema=schema) as alone:
        server = Server(application(alone), "127.0.0.1", 0)
        server.start()
        try:
            with browser(server.url) as here:
                page = here.get("/fleet")
                assert (page.status_code, "scheduler worker --app yourapp.jobs" in page.text) == (
                    200,
                    True,
                )
        finally:
            server.stop()


def test_workers_of_others_are_shown_as_far_as_they_show(
    dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis
) -> None:
    queues = {"video": {"dialect": "bullmq"}, "go": {"dialect": "conveyor"}}
    with (
        Scheduler(dsn, schema=schema, redis=redis_server.url, queues=queues) as ring,
        foreigners(redis, redis_server.url),
    ):
        server = Server(application(ring), "127.0.0.1", 0)
        server.start()
        try:
            with browser(server.url) as here:
                fleet = " ".join(re.sub("<[^>]+>", " ", here.get("/fleet").text).split())
                queue = here.get("/queue?name=go").text
        finally:
            server.stop()
    assert re.search(
        r"go-1 conveyor .*nobody says 2 jobs node-1 bullmq on 127.0.0.1, since .*video nobody says",
        fleet,
    )
    assert ">go-1<" in queue


def test_a_long_list_of_workers_has_pages(
    serve: Serve, ring: Scheduler, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_fleet, "ROWS", 1)
    monkeypatch.setattr(pages_queues, "ROWS", 1)
    with (
        working(redis_server, "x", print),
        working(redis_server, "x", print),
        browser(serve()) as here,
    ):
        first, second = wait_for(lambda: _two(ring), "both say so")
        page = here.get("/fleet").text
        assert (first in page, second in page) == (True, False)
        [link] = [unescape(each) for each in re.findall(r'href="(/fleet\?past=[^"]+)"', page)]
        page = here.get(link).text
        assert (first in page, second in page) == (False, True)
        assert "1 more are not shown" in here.get("/queue?name=mail").text


def test_types_without_a_handler_are_listed(
    serve: Serve, ring: Scheduler, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_queues, "TYPES", 1)
    url = serve()
    with working(redis_server, "x", print), browser(url) as here:
        job = ring.submit("acme", "<fax>", queue="mail")
        ring.submit("acme", "<fax>", queue="mail")
        ring.submit("acme", "sms", queue="mail")
        found = {"<fax>": 2, "sms": 1}
        wait_for(lambda: ring.queue("mail").stats().unhandled == found, "they are parked")
        wait_for(lambda: ring.get("acme", job.id).reason, "the row says that it was fed")
        page = here.get("/queue?name=mail").text
        assert re.search(r">&lt;fax&gt;</th><td [^>]*>2</td>", page)
        assert "1 more types are not shown" in page
        reason = "no live worker handles type &#34;&lt;fax&gt;&#34;"
        assert reason in here.get("/job", params={"tenant": "acme", "id": str(job.id)}).text
        assert reason in here.get("/jobs", params={"tenant": "acme"}).text
    with browser(url) as here:
        page = here.get("/queue?name=mail").text
    assert "Nobody works here" in page
    assert "Types without a handler" not in page


def _two(ring: Scheduler) -> list[str]:
    found = [f">{each.name}<" for each in ring.workers()]
    return found if len(found) == 2 else []


@pytest.mark.parametrize("who", ["acme", "reader"])
def test_payloads_are_for_who_may_see_them(visitor: Visitor, ring: Scheduler, who: str) -> None:
    made = ring.submit("acme", "charge", {"card": "4111"}, delay="1h")
    page = visitor(who).get("/job", params={"tenant": "acme", "id": str(made.id)}).text
    assert ("4111" in page) is (who == "acme")
    assert ("it takes a token with the scope" in page) is (who == "reader")


def test_who_may_only_read_has_no_buttons_and_no_way_around(
    visitor: Visitor, ring: Scheduler
) -> None:
    ring.register("acme", "report", nothing, every="1h")
    reader = visitor("reader")
    page = reader.get("/recurring")
    assert "Run now" not in page.text
    form = {"csrf": csrf(page), "act": "pause_recurring", "tenant": "acme", "job_id": "report"}
    assert reader.post("/do", data=form).status_code == 403
    assert ring.registered("acme")[0].paused_at is None


@pytest.mark.parametrize("token", ["", "0" * 64, "of another"])
def test_a_form_of_elsewhere_does_nothing(visitor: Visitor, ring: Scheduler, token: str) -> None:
    ring.register("acme", "report", nothing, every="1h")
    person = visitor()
    given = csrf(visitor().get("/recurring")) if token == "of another" else token
    form = {
        "csrf": given,
        "act": "pause_recurring",
        "tenant": "acme",
        "job_id": "report",
        "back": "/recurring",
    }
    assert person.post("/do", data=form).status_code == 403
    mine = {**form, "csrf": csrf(person.get("/recurring"))}
    for headers in (
        {"origin": "https://elsewhere.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ):
        assert person.post("/do", data=mine, headers=headers).status_code == 403
    assert ring.registered("acme")[0].paused_at is None
    done = person.post("/do", data=mine)
    assert (done.status_code, done.headers["location"]) == (303, "/recurring?done=pause_recurring")
    assert ring.registered("acme")[0].paused_at is not None


def test_forms_also_need_their_token_where_there_are_no_tokens(
    serve: Serve, ring: Scheduler
) -> None:
    with browser(serve()) as here:
        assert here.post("/do", data={"act": "pause_queue", "name": "mail"}).status_code == 403
        form = {"act": "pause_queue", "name": "mail", "csrf": csrf(here.get("/queues"))}
        assert here.post("/do", data=form).headers["location"] == "/?done=pause_queue"
        assert here.get("/", headers={"host": "elsewhere.example"}).status_code == 401
    assert ring.queue("mail").stats().paused


@pytest.mark.parametrize("act", ["", "submit_job", "list_jobs", "no_such_thing"])
def test_a_form_does_only_what_pages_can_do(visitor: Visitor, act: str) -> None:
    person = visitor()
    assert person.post("/do", data={"csrf": csrf(person.get("/")), "act": act}).status_code == 400


@pytest.mark.parametrize(
    "back",
    [
        "//elsewhere",
        "https://elsewhere",
        "/\\elsewhere",
        "javascript:1",
        "",
        "x",
        "/\t/elsewhere",
        "///e",
    ],
)
def test_one_stays_on_our_pages(back: str) -> None:
    assert back_to(back) == "/"


def test_one_comes_back_to_where_one_was() -> None:
    assert back_to("/recurring?tenant=a%2Fb") == "/recurring?tenant=a%2Fb"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/job?tenant=acme&id=no-uuid", 400),
        ("/job?tenant=acme&id=00000000-0000-0000-0000-000000000000", 404),
        ("/job", 400),
        ("/recurring/job?tenant=acme&id=nobody", 404),
        ("/queue?name=no-such-queue", 404),
        ("/jobs?tenant=acme&after=broken", 422),
        ("/static/no-such-file", 404),
    ],
)
def test_what_does_not_work_is_said_on_a_page(serve: Serve, path: str, status: int) -> None:
    with browser(serve()) as here:
        answer = here.get(path)
        assert answer.status_code == status
        assert "That did not work" in answer.text


def test_files_are_kept_and_change_their_address_with_their_content(serve: Serve) -> None:
    with browser(serve()) as here:
        page = here.get("/queues")
        assert page.headers["cache-control"] == "no-store"
        found = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
        assert len(found) == 3
        for address in map(unescape, found):
            assert re.search(r"\?v=\w{12}$", address)
            answer = here.get(address)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_no_page_has_a_script_or_style_in_it(serve: Serve, ring: Scheduler) -> None:
    ring.register("acme", "report", nothing, every="1h")
    with browser(serve()) as here:
        for path in (
            "/",
            "/recurring",
            "/recurring/job?tenant=acme&id=report",
            "/jobs",
            "/queues",
            "/dead",
            "/fleet",
        ):
            text = here.get(path).text
            assert (
                re.findall(
                    r"<style|\sstyle=|\son\w+=|<script(?! src=)|(?:src|href)=\"https?:", text
                )
                == []
            )


def test_a_busy_minute_is_estimated_and_says_so(
    serve: Serve, ring: Scheduler, connection: Any
) -> None:
    ring.register("acme", "report", nothing, every="1h")
    connection.execute(
        "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, fence, attempt, "
        "started_at)"
        " SELECT m.at + n * interval '29.99 ms', 'acme', 'j' || n, 'fire', 'success', m.at, 1, 1, "
        "m.at"
        " FROM (SELECT date_trunc('minute', now()) - interval '5 minutes') m(at), "
        "generate_series(0, 1999) n"
    )
    with browser(serve()) as here:
        page = here.get("/?tenant=acme").text
    told = re.search(r"In the last hour ([\d,]+) ended", page)
    assert told is not None
    assert 1900 <= int(told[1].replace(",", "")) <= 2100
    assert "Busy minutes are estimated" in page


def test_mounted_into_an_app_every_address_is_below_it(ring: Scheduler) -> None:
    ring.register("acme", "report", nothing, every="1h")
    inner = application(ring, rate_limit=0)
    outer = Starlette(routes=[Mount("/jobs-of-ours", inner)])
    outer.state.site = inner.state.site
    server = Server(outer, "127.0.0.1", 0)
    server.start()
    try:
        with browser(server.url) as here:
            for path in ("/", "/recurring", "/queues"):
                page = here.get(f"/jobs-of-ours{path}")
                assert page.status_code == 200
                addresses = re.findall(r'(?:href|src|action)="([^"]+)"', page.text)
                assert [
                    each for each in addresses if not each.startswith(("/jobs-of-ours/", "#"))
                ] == []
            form = {"csrf": csrf(page), "act": "pause_queue", "name": "mail", "back": "/queues"}
            done = here.post("/jobs-of-ours/do", data=form)
            assert done.headers["location"] == "/jobs-of-ours/queues?done=pause_queue"
    finally:
        server.stop()
