"""`make screenshots`: the main pages, light and dark, as docs/screenshots has them."""

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.web.app import application
from scheduler.web.serve import Server
from tests.browser.seed import Seeded, seeded

FOLDER = Path(__file__).parents[2] / "docs/screenshots"
WIDE, PHONE = (1280, 860), (390, 844)
SHOTS = {
    "overview": ("/", WIDE),
    "recurring": ("/recurring?tenant=acme", WIDE),
    "recurring-job": ("/recurring/job?tenant=acme&id=import-orders", WIDE),
    "queues": ("/queues", WIDE),
    "job": ("/job?tenant=acme&id={publish}", WIDE),
    "dead": ("/dead", WIDE),
    "fleet": ("/fleet", WIDE),
    "phone": ("/", PHONE),
}


def shoot(house: Seeded, url: str) -> None:
    """Take all of them."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, (path, (width, height)) in SHOTS.items():
            for theme in ("light", "dark"):
                context = browser.new_context(
                    base_url=url, viewport={"width": width, "height": height}, color_scheme=theme
                )
                page = context.new_page()
                page.goto(path.format_map(house.jobs))
                page.locator("#live[data-mode=live]").wait_for()
                page.screenshot(path=FOLDER / f"{name}-{theme}.png")
                context.close()
        browser.close()


if __name__ == "__main__":
    with (
        EmbeddedPostgres(durable=False) as postgres,
        EmbeddedRedis() as redis,
        seeded(postgres.dsn, "screenshots", redis.url) as house,
    ):
        server = Server(application(house.scheduler, rate_limit=0), "127.0.0.1", 0)
        server.start()
        try:
            shoot(house, server.url)
        finally:
            server.stop()
