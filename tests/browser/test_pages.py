"""Every page in a real browser: what it shows, in both themes, on a phone, to a screen reader,
without JavaScript.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import MakePage
from tests.browser.seed import HELD, Seeded
from tests.support.waiting import wait_for

PAGES = {
    "overview": ("/", "Overview"),
    "one tenant": ("/?tenant=acme", "acme"),
    "recurring": ("/recurring?tenant=acme", "Recurring jobs"),
    "one recurring": ("/recurring/job?tenant=acme&id=import-orders", "import-orders"),
    "jobs": ("/jobs?tenant=acme", "Jobs"),
    "done": ("/job?tenant=acme&id={sent}", "send-receipt"),
    "running": ("/job?tenant=acme&id={running}", "resize"),
    "dead": ("/job?tenant=acme&id={dead 0}", "send-receipt"),
    "waits": ("/job?tenant=acme&id={publish}", "publish"),
    "queues": ("/queues", "Queues"),
    "one queue": ("/queue?name=labels", "labels"),
    "worked queue": ("/queue?name=images", "images"),
    "broken queue": ("/queue?name=hooks", "hooks"),
    "letters": ("/dead", "Dead letters"),
    "purge": ("/dead/purge?name=mail", "Purge mail?"),
    "fleet": ("/fleet", "Fleet"),
    "empty": ("/recurring?tenant=nobody", "Recurring jobs"),
    "no job": ("/jobs?tenant=nobody", "Jobs"),
    "login": ("/login", "Log in"),
}
THEMES = {"light": "rgb(246, 245, 242)", "dark": "rgb(19, 20, 22)"}


def address(house: Seeded, name: str) -> str:
    return PAGES[name][0].format_map(house.jobs)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_for_everybody(house: Seeded, page: MakePage, name: str) -> None:
    """Both themes by the wish of the system, a phone, and the rules of those who cannot see it."""
    for (theme, paper), width in zip(THEMES.items(), (1280, 360), strict=True):
        seen = page(color_scheme=theme, viewport={"width": width, "height": 800})
        assert seen.goto(address(house, name)).status == 200  # type: ignore[union-attr]
        expect(seen.get_by_role("heading", level=1)).to_contain_text(PAGES[name][1])
        assert seen.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert seen.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(seen) == []
        seen.close()


def test_what_keeps_people_out_is_found(page: MakePage) -> None:
    seen = page()
    seen.goto("/login")
    seen.evaluate(
        "document.querySelector('label').remove(); document.querySelector('h1').style.color = "
        "'#ddd'"
    )
    assert {each.partition(":")[0] for each in violations(seen)} >= {"label", "color-contrast"}


@pytest.mark.parametrize("name", [name for name in PAGES if name != "login"])
def test_every_page_reads_the_same_without_javascript(
    house: Seeded, page: MakePage, name: str
) -> None:
    plain = page(java_script_enabled=False)
    plain.goto(address(house, name))
    expect(plain.get_by_role("heading", level=1)).to_contain_text(PAGES[name][1])
    expect(plain.get_by_role("main")).not_to_be_empty()


def test_the_overview_shows_fires_ends_what_is_late_and_what_is_dead(
    house: Seeded, page: MakePage
) -> None:
    bounced = {"order": 1, "bounce": "bob@example.org"}  # others may have purged the dead letters
    house.submit("dead again", "acme", "send-receipt", bounced, queue="mail")
    wait_for(lambda: house.state("dead again") == "failed", "it is dead", timeout=60)
    seen = page()
    seen.goto("/")
    for tenant in ("acme", "globex", "initech"):
        expect(seen.get_by_role("img", name=f"Fires of {tenant}")).to_be_visible()
    expect(seen.get_by_role("img", name="Ended each minute")).to_be_visible()
    expect(seen.get_by_role("img", name="How late fires and jobs start")).to_be_visible()
    expect(
        seen.get_by_role("region", name="Late").get_by_role("link", name="forecast")
    ).to_be_visible()
    expect(
        seen.get_by_role("region", name="Dead")
        .get_by_text("550 no such mailbox: bob@example.org")
        .first
    ).to_be_visible()


def test_recurring_jobs_have_their_last_outcomes_as_cells(house: Seeded, page: MakePage) -> None:
    seen = page()
    seen.goto("/recurring?tenant=acme")
    row = seen.get_by_role("row", name="import-orders")
    cells = row.locator("svg.strip rect.fill-good, svg.strip rect.fill-bad")
    assert cells.count() >= 10
    assert row.locator("svg.strip rect.fill-bad").count() >= 1
    expect(row).to_contain_text("every 4m")


def test_a_job_under_way_shows_how_far_it_is(house: Seeded, page: MakePage) -> None:
    seen = page()
    seen.goto(address(house, "running"))
    assert seen.get_by_role("progressbar").get_attribute("value") == "62.0"
    expect(seen.get_by_text("page 31 of 50")).to_be_visible()


def test_a_job_that_waits_shows_for_whom(house: Seeded, page: MakePage) -> None:
    seen = page()
    seen.goto(address(house, "waits"))
    graph = seen.get_by_role("region", name="Dependencies")
    expect(graph.get_by_role("link", name="render")).to_have_count(3)
    expect(graph.locator("path.edge")).to_have_count(3)
    graph.get_by_role("link", name="render").first.click()
    expect(
        seen.get_by_role("region", name="Dependencies").get_by_role("link", name="publish")
    ).to_be_visible()


def test_the_fleet_shows_heartbeats_clocks_and_leases(house: Seeded, page: MakePage) -> None:
    house.connection.execute(
        "UPDATE job_lock SET owner = i.id, fire_at = now(), created_at = now(), expires_at = now() "
        "+ interval '1 hour',"
        " last_fire_at = now(), starts = 1, description = i.label"
        " FROM job_instance i WHERE i.label = 'web-2:1203' AND job_lock.id = 'backup'"
    )
    seen = page()
    seen.goto("/fleet")
    expect(seen.get_by_role("row", name="web-2:1203")).to_contain_text("4.2 s ahead")
    expect(
        seen.get_by_role("row", name="web-2:1203").get_by_role("link", name="backup")
    ).to_be_visible()
    expect(seen.get_by_role("row", name="web-3:998")).to_contain_text("gone")
    at_each = seen.get_by_role("region", name="At each queue")
    expect(at_each.get_by_role("row", name="mail")).to_contain_text("1 alive")
    expect(at_each.get_by_role("row", name="hooks")).to_contain_text(
        "open at 1 worker closed at 1 worker"
    )


def test_the_fleet_shows_workers_what_they_hold_and_their_breakers(
    house: Seeded, page: MakePage
) -> None:
    seen = page()
    seen.goto("/fleet")
    workers = seen.get_by_role("region", name="Workers", exact=True)
    for each in house.scheduler.workers():
        row = workers.get_by_role("row", name=each.name)
        expect(row).to_contain_text(
            f"scheduler on {each.host}, pid {each.pid}, concurrency {each.concurrency}"
        )
        for at in each.queues:
            expect(row.get_by_role("link", name=at.name)).to_be_visible()
    expect(workers.get_by_text("breaker open")).to_have_css("color", "rgb(184, 50, 34)")
    expect(workers.get_by_text("breaker closed")).to_have_css("color", "rgb(35, 121, 77)")
    expect(workers.get_by_role("cell").filter(has_text="breaker open")).to_contain_text(
        "UTC, in 1 h"
    )
    expect(
        workers.get_by_role("link", name="resize").and_(workers.locator(":visible"))
    ).to_have_count(4)
    workers.get_by_text(re.compile(r"\d more")).click()
    expect(workers.get_by_role("link", name="resize").nth(HELD - 1)).to_be_visible()
    assert violations(seen) == []
    workers.get_by_role("link", name="resize").first.click()
    expect(seen.get_by_role("heading", level=1)).to_contain_text("resize")


@pytest.mark.parametrize("script", [True, False])
def test_queues_show_the_worst_breaker_first(house: Seeded, page: MakePage, script: bool) -> None:
    seen = page(java_script_enabled=script)
    seen.goto("/queues")
    card = seen.get_by_role("listitem").filter(has=seen.get_by_role("link", name="hooks"))
    expect(card.locator(".pill-bad, .pill-good")).to_have_text(
        ["open at 1 worker", "closed at 1 worker"]
    )
    seen.get_by_role("link", name="hooks").click()
    rows = seen.get_by_role("region", name="Workers").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("breaker open")
    expect(rows.nth(2)).to_contain_text("breaker closed")


def test_a_queue_without_workers_says_what_to_do(page: MakePage) -> None:
    seen = page()
    seen.goto("/queue?name=labels")
    expect(seen.get_by_role("region", name="Workers")).to_contain_text(
        "scheduler worker --app yourapp.jobs --queue labels"
    )


def test_charts_say_in_words_what_they_draw(house: Seeded, page: MakePage) -> None:
    seen = page()
    seen.goto("/")
    for chart in seen.locator("svg[role=img]").all():
        assert chart.locator("> title").text_content()
        assert chart.locator("> desc").text_content()


def violations(page: Page) -> list[str]:
    """Ask axe-core what keeps people out."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(_axe())
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html'][:150]}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


@cache
def _axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
