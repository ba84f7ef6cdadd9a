"""Everything that one can do on pages, by the keyboard alone, as plain forms."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import MakePage
from tests.browser.seed import Seeded
from tests.support.recorder import until

MOST_TABS = 150


def press(page: Page, name: str) -> None:
    """Go to a button or link by Tab, and press it by Enter."""
    expect(
        page.locator("a, button, summary").filter(has_text=name).first
    ).to_be_visible()  # the page before is left
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.replace(/\\s+/g, ' ').trim()") == name:
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"no {name} can be reached")


@pytest.fixture(params=[True, False], ids=["with", "without"])
def seen(page: MakePage, request: pytest.FixtureRequest) -> Page:
    """A page with JavaScript, and one without."""
    return page(java_script_enabled=request.param)


@pytest.fixture
def keyed(page: MakePage) -> Page:
    return page()


def outcomes(house: Seeded, tenant: str, job_id: str) -> list[str]:
    return [f"{row.kind} {row.outcome}" for row in house.scheduler.history(tenant, job_id, 3)]


def test_a_recurring_job_is_run_now(house: Seeded, keyed: Page) -> None:
    keyed.goto("/recurring?tenant=globex")
    press(keyed, "Run now backup")
    expect(keyed.get_by_role("status").filter(has_text="It runs in a moment")).to_be_visible()
    until(lambda: "trigger success" in outcomes(house, "globex", "backup"))


def test_a_recurring_job_is_paused_and_resumed(house: Seeded, keyed: Page) -> None:
    keyed.goto("/recurring?tenant=initech")
    press(keyed, "Pause invoice-run")
    expect(keyed.get_by_role("row", name="invoice-run").get_by_text("paused")).to_be_visible()
    assert keyed.url.endswith("/recurring?tenant=initech&done=pause_recurring")
    press(keyed, "Resume invoice-run")
    expect(keyed.get_by_role("row", name="invoice-run").get_by_text("waiting")).to_be_visible()


def test_the_page_of_a_recurring_job_steers_it_too(house: Seeded, keyed: Page) -> None:
    keyed.goto("/recurring/job?tenant=initech&id=purge-sessions")
    press(keyed, "Run now")
    until(lambda: "trigger success" in outcomes(house, "initech", "purge-sessions"))
    press(keyed, "Pause")
    expect(
        keyed.get_by_text("It is paused: its fires pass it by until it is resumed")
    ).to_be_visible()
    press(keyed, "Resume")
    expect(keyed.get_by_role("button", name="Pause")).to_be_visible()


@pytest.mark.parametrize("path", ["/queues", "/queue?name=print"])
def test_a_queue_is_paused_and_resumed(house: Seeded, keyed: Page, path: str) -> None:
    keyed.goto(path)
    press(keyed, "Pause print")
    expect(keyed.get_by_text("paused", exact=True)).to_be_visible()
    assert house.scheduler.queue("print").stats().paused
    press(keyed, "Resume print")
    expect(keyed.get_by_role("button", name="Pause print")).to_be_visible()
    assert not house.scheduler.queue("print").stats().paused


def test_a_job_is_cancelled_and_retried(house: Seeded, keyed: Page) -> None:
    made = house.scheduler.submit("acme", "print-poster", queue="posters", delay="1h")
    keyed.goto(f"/job?tenant=acme&id={made.id}")
    press(keyed, "Cancel")
    expect(keyed.get_by_role("heading", level=1)).to_contain_text("cancelled")
    press(keyed, "Retry")
    expect(keyed.get_by_text("Submitted anew; this is the new job.")).to_be_visible()
    expect(keyed.get_by_role("link", name=str(made.id))).to_be_visible()


def test_a_job_that_does_not_end_is_ended_at_once(house: Seeded, keyed: Page) -> None:
    made = house.scheduler.submit("acme", "resize", {"page": 1}, queue="images")
    until(lambda: house.scheduler.get("acme", made.id).state == "running")
    keyed.goto(f"/job?tenant=acme&id={made.id}")
    press(keyed, "Cancel")
    press(keyed, "End it at once")
    expect(keyed.get_by_role("heading", level=1)).to_contain_text("cancelled")


def test_dead_letters_are_grouped_and_a_group_is_requeued(house: Seeded, keyed: Page) -> None:
    keyed.goto("/dead?name=mail")
    group = keyed.get_by_role("listitem").filter(has_text="ada@example.org")
    expect(group.get_by_text("2 jobs")).to_be_visible()
    before = house.scheduler.queue("mail").dead()
    group.get_by_role("button").focus()
    keyed.keyboard.press("Enter")
    expect(keyed.get_by_text("Put back to run again: 2")).to_be_visible()
    until(
        lambda: (
            len(
                {each.id for each in house.scheduler.queue("mail").dead()}
                - {each.id for each in before}
            )
            == 2
        )
    )


def test_all_dead_letters_of_a_queue_are_requeued_then_purged_after_a_question(
    house: Seeded, seen: Page
) -> None:
    house.scheduler.submit(
        "acme", "send-receipt", {"order": 1, "bounce": "zoe@example.org"}, queue="mail"
    )
    until(lambda: house.scheduler.queue("mail").stats().dead)
    seen.goto("/dead")
    seen.get_by_role("button", name="Requeue all of mail").focus()
    seen.keyboard.press("Enter")
    expect(seen.get_by_text("Put back to run again")).to_be_visible()
    until(lambda: house.scheduler.queue("mail").stats().dead)
    seen.goto("/dead")
    seen.get_by_role("link", name="Purge… mail").focus()
    seen.keyboard.press("Enter")
    expect(seen.get_by_role("heading", level=1)).to_have_text("Purge mail?")
    assert house.scheduler.queue("mail").stats().dead
    seen.get_by_role("button", name="Drop them for good").focus()
    seen.keyboard.press("Enter")
    expect(seen.get_by_text("Dropped for good")).to_be_visible()
    assert house.scheduler.queue("mail").stats().dead == 0


def test_jobs_are_filtered(house: Seeded, keyed: Page) -> None:
    keyed.goto("/jobs?tenant=acme")
    keyed.get_by_label("State").select_option("pending")
    keyed.get_by_label("Type").fill("publish")
    press(keyed, "Filter")
    expect(keyed.get_by_role("row")).to_have_count(2)
    press(keyed, "Clear")
    keyed.get_by_label("Queue").fill("no-such-queue")
    press(keyed, "Filter")
    expect(keyed.get_by_text("No job like that")).to_be_visible()


def test_a_tenant_is_chosen(house: Seeded, seen: Page) -> None:
    seen.goto("/recurring")
    seen.get_by_label("Tenant").select_option("globex")
    if seen.get_by_role("row", name="rotate-keys").count() == 0:
        seen.get_by_role("button", name="Show").click()
    expect(seen.get_by_role("row", name="rotate-keys")).to_be_visible()


def test_the_theme_is_chosen_and_kept(house: Seeded, seen: Page) -> None:
    seen.emulate_media(color_scheme="light")
    seen.goto("/queues")
    seen.get_by_role("button", name="Dark").focus()
    seen.keyboard.press("Enter")
    expect(seen.locator("html")).to_have_attribute("data-theme", "dark")
    expect(seen.locator("body")).to_have_css("background-color", "rgb(19, 20, 22)")
    expect(seen).to_have_url(f"{seen.url.split('/queues')[0]}/queues")
    seen.goto("/")
    expect(seen.locator("body")).to_have_css("background-color", "rgb(19, 20, 22)")
    expect(seen.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
    seen.get_by_role("button", name="Auto").click()
    expect(seen.locator("body")).to_have_css("background-color", "rgb(246, 245, 242)")


def test_the_content_is_one_key_away(house: Seeded, keyed: Page) -> None:
    keyed.goto("/recurring?tenant=acme")
    keyed.keyboard.press("Tab")
    keyed.keyboard.press("Enter")
    keyed.keyboard.press("Tab")
    assert keyed.evaluate("document.activeElement.textContent") == "cleanup"
