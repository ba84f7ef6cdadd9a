"""A full system: what pages and lists look at, where they stop, and what they then say."""

import re
from typing import Any

import httpx

from scheduler import Scheduler
from scheduler.web.jobs import LOOKED
from scheduler.web.queues import COUNTED
from tests.web.conftest import API, Serve

QUEUED = (
    "INSERT INTO job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json,"
    " payload) SELECT 'acme', gen_random_uuid(), CASE WHEN n <= 2 THEN 'rare' ELSE 'usual' END, 'mail', 2, now(),"
    " now(), now(), now() + interval '1 day', true, '1' FROM generate_series(1, %s) n"
)

ENDED = (
    "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, fence, attempt, started_at)"
    " SELECT now() - interval '1 day' * %s, 'acme', %s, 'fire', %s, now(), 1, 1, now()"
)


def test_a_search_says_where_it_stopped_and_goes_on_from_there(
    serve: Serve, ring: Scheduler, connection: Any
) -> None:
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
        later = client.get(
            "/jobs", params={"tenant": "acme", "type": "rare", "after": first["cursor"]}
        ).text
        assert "looked at" not in later
        assert later.count(">rare</a>") == 2


def test_a_short_page_says_that_more_may_fit(
    serve: Serve, ring: Scheduler, connection: Any
) -> None:
    connection.execute(QUEUED, (LOOKED + 2,))
    newest = ring.submit("acme", "rare")
    with httpx.Client(base_url=serve()) as client:
        page = client.get("/jobs", params={"tenant": "acme", "type": "rare"}).text
    assert str(newest.id) in page
    assert f"Only {LOOKED:,} were looked at for this page" in page


def test_the_newest_end_of_a_job_is_found_however_old(
    serve: Serve, ring: Scheduler, connection: Any
) -> None:
    for job_id, days in (("today", (0, 3)), ("earlier", (3, 9)), ("never", ())):
        ring.register("acme", job_id, lambda: None, every="1h")
        for place, age in enumerate(days):
            connection.execute(ENDED, (age, job_id, "failed" if place else "success"))
        connection.execute(
            "UPDATE job_lock l SET ledger_at = h.at, ledger_outcome = h.outcome,"
            " ledger_finished_at = h.finished_at FROM job_history h"
            " WHERE l.id = h.job_id AND h.job_id = %s AND h.outcome = 'success'",
            (job_id,),
        )
    with httpx.Client(base_url=serve()) as client:
        found = client.get(f"{API}/recurring", params={"tenant": "acme"}).json()["items"]
    assert {each["job_id"]: each["last_outcome"] for each in found} == {
        "today": "success",
        "earlier": "success",
        "never": None,
    }


def test_an_overview_of_several_tenants_keeps_them_apart(
    serve: Serve, ring: Scheduler, connection: Any
) -> None:
    for tenant, age in (("acme", 0), ("globex", 400)):
        ring.register(tenant, "report", lambda: None, every="1h")
        connection.execute(ENDED.replace("'acme'", f"'{tenant}'"), (age, "report", "failed"))
    connection.execute(
        "UPDATE job SET next_run_at = now() - interval '1 hour' WHERE tenant = 'globex'"
    )
    with httpx.Client(base_url=serve()) as client:
        page = client.get("/").text
        mine = client.get("/", params={"tenant": "acme"}).text
    lanes = dict(re.findall(r'aria-label="Fires of (\w+)\. ([^"]+)"', page))
    assert lanes["acme"].startswith("In the last hour: 1 failed.")
    assert lanes["globex"].startswith("In the last hour: nothing.")
    assert ("1 late" in page, "1 late" in mine) == (True, False)


def test_dead_letters_that_are_not_counted_are_told_of(
    serve: Serve, ring: Scheduler, connection: Any
) -> None:
    connection.execute(
        "INSERT INTO job_letter (tenant, id, queue, at) SELECT 'acme', gen_random_uuid(), 'mail', "
        "now()"
        " FROM generate_series(1, %s)",
        (COUNTED + 1,),
    )
    with httpx.Client(base_url=serve()) as client:
        page = client.get("/dead").text
        sure = client.get("/dead/purge", params={"name": "mail"}).text
    assert f'{COUNTED:,}<abbr title="no more are counted">+</abbr>' in page
    assert "Grouped are the newest 200" in page
    assert f"{COUNTED:,} or more dead letters would be dropped" in sure
