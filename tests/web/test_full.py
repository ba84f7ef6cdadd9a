"""A full system: what pages and lists look at, where they stop, and what they then say."""

from typing import Any

import httpx

from scheduler import Scheduler
from scheduler.web.jobs import LOOKED
from tests.web.conftest import API, Serve

QUEUED = (
    "INSERT INTO job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json,"
    " payload) SELECT 'acme', gen_random_uuid(), CASE WHEN n <= 2 THEN 'rare' ELSE 'usual' END, 'mail', 2, now(),"
    " now(), now(), now() + interval '1 day', true, '1' FROM generate_series(1, %s) n"
)


def test_a_search_says_where_it_stopped_and_goes_on_from_there(serve: Serve, ring: Scheduler, connection: Any) -> None:
    connection.execute(QUEUED, (LOOKED + 2,))
    with httpx.Client(base_url=serve()) as client:
        first = client.get(f"{API}/jobs", params={"tenant": "acme", "type": "rare"}).json()
        assert (first["items"], first["cursor"] is None) == ([], False)
        place = {"tenant": "acme", "type": "rare", "cursor": first["cursor"]}
        second = client.get(f"{API}/jobs", params=place).json()
        assert [each["type"] for each in second["items"]] == ["rare", "rare"]
        assert second["cursor"] is None
        page = client.get("/jobs", params={"tenant": "acme", "type": "rare"}).text
        assert f"None of the {LOOKED:,} that were looked at fits" in page
        assert "Next page" in page
        later = client.get("/jobs", params={"tenant": "acme", "type": "rare", "after": first["cursor"]}).text
        assert "looked at" not in later
        assert later.count(">rare</a>") == 2


def test_a_short_page_says_that_more_may_fit(serve: Serve, ring: Scheduler, connection: Any) -> None:
    connection.execute(QUEUED, (LOOKED + 2,))
    newest = ring.submit("acme", "rare")
    with httpx.Client(base_url=serve()) as client:
        page = client.get("/jobs", params={"tenant": "acme", "type": "rare"}).text
    assert str(newest.id) in page
    assert f"Only {LOOKED:,} were looked at for this page" in page
