"""One Chromium, and one site that it looks at, for all tests here."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from psycopg.sql import SQL, Identifier

from scheduler.embedded.redis import EmbeddedRedis
from scheduler.web.app import application
from scheduler.web.serve import Server
from tests.browser.seed import Seeded, seeded

PATIENCE = 30_000
MakePage = Callable[..., Page]

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="package")
def own_redis() -> Iterator[str]:
    """A Redis that no other test pauses or empties."""
    with EmbeddedRedis() as server:
        yield server.url


@pytest.fixture(scope="package")
def house(dsn: str, own_redis: str) -> Iterator[Seeded]:
    """A seeded scheduler."""
    schema = f"t_{uuid4().hex[:12]}"
    with seeded(dsn, schema, own_redis) as made:
        yield made
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema)))


@pytest.fixture(scope="package")
def site(house: Seeded) -> Iterator[str]:
    """Where its dashboard is."""
    server = Server(application(house.scheduler, rate_limit=0), "127.0.0.1", 0)
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A real Chromium, of the system; not of the session, for its loop would be in everybody's
    way.
    """
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        pytest.skip("there is no Chromium; apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield launched
        launched.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained of."""
    return []


@pytest.fixture
def page(browser: Browser, site: str, complaints: list[str]) -> Iterator[MakePage]:
    """Open pages; whatever a browser complains of, scripts and styles that it refused too, fails
    the test.
    """
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Page:
            context: BrowserContext = browser.new_context(base_url=site, **options)
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE)
            made = context.new_page()
            made.on(
                "console",
                lambda said: complaints.append(said.text) if said.type == "error" else None,
            )
            made.on("pageerror", lambda error: complaints.append(str(error)))
            made.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
            return made

        yield make
    assert complaints == []
