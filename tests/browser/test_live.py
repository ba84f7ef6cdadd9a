"""Pages change by themselves: by events, and where there are none, by looking again."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import MakePage
from tests.browser.seed import Seeded, working

STAYS = "window.here = true"


def test_a_page_changes_when_something_happens(house: Seeded, page: MakePage) -> None:
    seen = page()
    seen.goto("/jobs?tenant=globex&type=announce")
    expect(seen.get_by_text("Live", exact=True)).to_be_visible()
    seen.evaluate(STAYS)
    made = house.scheduler.submit("globex", "announce", queue="posters", delay="1h")
    house.scheduler.cancel_job("globex", made.id)
    expect(seen.get_by_role("row").filter(has_text=str(made.id))).to_contain_text("cancelled")
    assert seen.evaluate("window.here")


def test_a_recurring_job_that_ran_is_seen_at_once(house: Seeded, page: MakePage) -> None:
    seen = page()
    seen.goto("/recurring/job?tenant=globex&id=backup")
    expect(seen.get_by_text("Live", exact=True)).to_be_visible()
    seen.evaluate(STAYS)
    house.scheduler.trigger("globex", "backup")
    expect(seen.get_by_text("asked for").first).to_be_visible()
    assert seen.evaluate("window.here")


def test_a_worker_is_seen_when_it_comes_and_not_when_it_has_gone(
    house: Seeded, page: MakePage, own_redis: str
) -> None:
    seen = page()
    seen.goto("/fleet")
    seen.evaluate(STAYS)
    worker = working(own_redis, {("announce", "print"): print})
    worker.start()
    try:
        expect(seen.get_by_role("row", name=worker.name)).to_contain_text("print")
    finally:
        worker.stop()
    expect(seen.get_by_role("row", name=worker.name)).not_to_be_visible()
    assert seen.evaluate("window.here")


@pytest.mark.parametrize("without", ["delete window.EventSource", "window.EventSource = undefined"])
def test_without_events_a_page_looks_again(house: Seeded, page: MakePage, without: str) -> None:
    seen = page()
    seen.add_init_script(without)
    seen.clock.install()
    seen.goto("/jobs?tenant=initech&type=announce-too")
    expect(seen.get_by_text("Live, every few seconds")).to_be_visible()
    made = house.scheduler.submit("initech", "announce-too", queue="posters", delay="1h")
    seen.clock.run_for(20_000)
    expect(seen.get_by_role("row").filter(has_text=str(made.id))).to_be_visible()


def test_a_server_that_is_away_is_said_and_then_forgotten(
    house: Seeded, page: MakePage, complaints: list[str]
) -> None:
    seen = page()
    seen.clock.install()
    seen.goto("/queues")
    seen.route("**/queues", lambda route: route.fulfill(status=503, body=""))
    seen.clock.run_for(20_000)
    expect(seen.get_by_text("The server does not answer")).to_be_visible()
    complaints.clear()
    seen.unroute("**/queues")
    seen.clock.run_for(20_000)
    expect(seen.get_by_text("The server does not answer")).not_to_be_visible()


def test_focus_and_what_is_open_stay(house: Seeded, page: MakePage) -> None:
    seen = page()
    seen.goto(f"/job?tenant=acme&id={house.jobs['render']}")
    seen.get_by_text("What was submitted").click()
    seen.get_by_role("button", name="Cancel").focus()
    before = seen.get_by_role("region", name="Life").inner_text()
    seen.evaluate("document.querySelector('.step-note').textContent = 'old'")
    seen.evaluate("dispatchEvent(new Event('visibilitychange'))")
    _comes_back(seen)
    expect(seen.get_by_role("region", name="Life")).to_have_text(before, use_inner_text=True)
    assert seen.evaluate("document.activeElement.textContent") == "Cancel"
    expect(seen.locator("pre[aria-label=Payload]")).to_be_visible()


def _comes_back(page: Page) -> None:
    """Let a page think that somebody looks at it again."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
