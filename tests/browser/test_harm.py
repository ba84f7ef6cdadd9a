"""What users write is shown, and never does anything: markup in every field that they control, on
every page.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import psycopg
import pytest
from playwright.sync_api import Browser, expect
from psycopg.sql import SQL, Identifier

from scheduler import PermanentError, Scheduler
from scheduler.model.handling import JobContext
from scheduler.web.app import application
from scheduler.web.serve import Server
from tests.browser.conftest import MakePage
from tests.browser.seed import working
from tests.support.recorder import until

EVIL = """'"></title></script><script>owned=1</script><img src=x onerror="owned=1">{{7*7}}<svg onload=owned=1>"""
LINK = "javascript:owned=1//"


def evil(field: str) -> str:
    """Name the field, so that one sees which of them did harm."""
    return EVIL.replace("owned=1", f"owned='{field}'")[:190]


def harmful(ctx: JobContext, payload: Any) -> object:
    ctx.progress(50, evil("message"))
    if payload == "wait":
        ctx.cancelled.wait(600)
    if payload == "fail":
        raise PermanentError(evil("error"))
    return {evil("result"): evil("result")}


def fails() -> None:
    raise ValueError(evil("failure"))


@pytest.fixture(scope="module")
def harmed(dsn: str, own_redis: str) -> Iterator[tuple[str, dict[str, UUID], Scheduler]]:
    schema = f"t_{uuid4().hex[:12]}"
    ids: dict[str, UUID] = {}
    tenant = evil("tenant")
    with Scheduler(dsn, schema=schema, redis=own_redis, label=evil("label")) as made:
        worker = working(own_redis, {(evil("type"), "harm"): harmful})
        worker.start()
        made.register(tenant, evil("job id"), fails, every="1h")
        made.register(tenant, LINK, fails, every="1h")
        made.trigger(tenant, evil("job id"))
        common: dict[str, Any] = {
            "queue": "harm",
            "tags": {evil("tag"): evil("value")},
            "correlation_id": evil("correlation"),
        }
        for name in ("done", "fail", "wait"):
            ids[name] = made.submit(tenant, evil("type"), name, **common).id
        ids["cancelled"] = made.submit(
            tenant, evil("type"), {LINK: evil("payload")}, delay="1h", **common
        ).id
        made.cancel_job(tenant, ids["cancelled"], reason=evil("reason"))
        for name, state in {"done": "completed", "fail": "failed", "wait": "running"}.items():
            until(lambda name=name, state=state: made.get(tenant, ids[name]).state == state)  # type: ignore[misc]
        until(lambda: any(each.holds for each in made.queue("harm").workers()))
        until(lambda: any(row.error for row in made.history(tenant, evil("job id"))))
        server = Server(application(made, rate_limit=0), "127.0.0.1", 0)
        server.start()
        yield server.url, ids, made
        server.stop()
        made.cancel_job(tenant, ids["wait"])
        worker.stop()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema)))


PAGES = {
    "overview": ("/", ["tenant", "type", "error"]),
    "tenant": ("/?tenant={tenant}", ["tenant", "type", "error"]),
    "recurring": ("/recurring?tenant={tenant}", ["tenant", "job id"]),
    "one recurring": (
        "/recurring/job?tenant={tenant}&id={job_id}",
        ["tenant", "job id", "failure", "label"],
    ),
    "jobs": ("/jobs?tenant={tenant}&type={type}", ["tenant", "type", "reason"]),
    "done": ("/job?tenant={tenant}&id={done}", ["type", "tag", "value", "correlation", "result"]),
    "failed": ("/job?tenant={tenant}&id={fail}", ["type", "error"]),
    "running": ("/job?tenant={tenant}&id={wait}", ["type", "message"]),
    "cancelled": ("/job?tenant={tenant}&id={cancelled}", ["type", "reason", "payload"]),
    "queue": ("/queue?name=harm", ["type", "tenant"]),
    "dead": ("/dead", ["type", "error", "tenant"]),
    "fleet": ("/fleet", ["label", "type", "tenant"]),
    "nowhere": ("/job?tenant={tenant}&id={type}", []),
    "missing": ("/recurring/job?tenant={tenant}&id=no{type}", []),
    "said": ("/?done={type}&n={type}", []),
}


@pytest.mark.parametrize("name", PAGES)
def test_nothing_that_users_write_does_anything(
    harmed: tuple[str, dict[str, UUID], Scheduler], browser: Browser, name: str
) -> None:
    url, ids, _ = harmed
    path, shown = PAGES[name]
    values = {"tenant": evil("tenant"), "job_id": evil("job id"), "type": evil("type"), **ids}
    with browser.new_context(base_url=url) as context:
        page = context.new_page()
        page.goto(path.format(**{word: quoted(value) for word, value in values.items()}))
        page.evaluate(
            "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
        )
        assert page.evaluate("window.owned") is None
        assert (
            page.locator("img, main script, [onerror], [onload], a[href^=javascript]").count() == 0
        )
        text = page.evaluate("document.documentElement.textContent")
        for field in shown:
            assert f"owned='{field}'" in text, field
        assert "49" not in page.locator("h1").inner_text()
        if page.locator("[data-live]").count() == 0:
            return  # it does not look again
        with page.expect_response(lambda answer: answer.request.resource_type == "fetch") as looked:
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # it looks again
        looked.value.finished()
        page.evaluate("new Promise(requestAnimationFrame)")
        assert page.evaluate("window.owned") is None


def test_a_script_that_got_in_all_the_same_is_refused(
    harmed: tuple[str, dict[str, UUID], Scheduler], page: MakePage, browser: Browser
) -> None:
    with browser.new_context(base_url=harmed[0]) as context:
        seen = context.new_page()
        refused: list[str] = []
        seen.on("console", lambda said: refused.append(said.text))
        seen.goto("/")
        seen.evaluate("""() => {
            const script = document.createElement("script");
            script.textContent = "window.owned = 1";
            document.body.append(script);
            document.body.setAttribute("onclick", "window.owned = 2");
            document.body.click();
        }""")
        assert seen.evaluate("window.owned") is None
        expect(seen.locator("h1")).to_be_visible()
        assert any("Content Security Policy" in each for each in refused)


def quoted(value: object) -> str:
    return quote(str(value), safe="")
