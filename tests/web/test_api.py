"""What each route does, on a real Postgres and Redis."""

import base64
import contextlib
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from scheduler import BreakerRule, JobContext, RetryPolicy, Scheduler, TemporaryError
from scheduler.embedded.redis import EmbeddedRedis
from tests.support.waiting import wait_for
from tests.web.conftest import MakeClient, working


def test_a_job_is_submitted_read_and_cancelled(client: MakeClient, ring: Scheduler) -> None:
    http = client()
    made = http.post(
        "/jobs",
        json={"type": "resize", "payload": {"page": 7}, "delay": "1h", "tags": {"of": "book"}},
    )
    assert made.status_code == 201
    assert made.json()["duplicate"] is False
    found = http.get(f"/jobs/{made.json()['id']}").json()
    assert found["state"] == "delayed"
    assert found["payload"] == {"page": 7}
    assert found["tags"] == {"of": "book"}
    assert found["retry"]["initial_delay"] == "1s"
    ended = http.post(f"/jobs/{found['id']}/cancel", json={"reason": "no longer needed"})
    assert ended.json() == {"state": "cancelled"}
    assert http.get(f"/jobs/{found['id']}").json()["reason"] == "no longer needed"
    again = http.post(f"/jobs/{found['id']}/retry", json={})
    assert again.status_code == 201
    assert http.get(f"/jobs/{again.json()['id']}").json()["retried_from"] == found["id"]


def test_one_key_is_one_job(client: MakeClient, ring: Scheduler) -> None:
    body = {
        "type": "charge",
        "idempotency_key": "7",
        "payload_base64": base64.b64encode(b"\x00\xff").decode(),
    }
    first, second = (client().post("/jobs", json=body) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == {"id": first.json()["id"], "duplicate": True}
    assert (
        client().get(f"/jobs/{first.json()['id']}").json()["payload_base64"]
        == body["payload_base64"]
    )


def test_a_batch_is_all_or_nothing_and_its_jobs_may_wait_for_each_other(
    client: MakeClient, ring: Scheduler
) -> None:
    jobs: list[dict[str, Any]] = [{"type": "cut"}, {"type": "glue", "after": [0]}]
    made = client().post("/jobs/batch", json={"jobs": jobs})
    assert made.status_code == 201
    assert len(made.json()["items"]) == 2
    glue = made.json()["items"][1]["id"]
    assert client().get(f"/jobs/{glue}").json()["state"] == "pending"
    circle = [{"type": "a", "after": [1]}, {"type": "b", "after": [0]}]
    refused = client().post("/jobs/batch", json={"jobs": circle})
    assert (refused.status_code, refused.json()["code"]) == (422, "refused")
    assert client().get("/jobs", params={"type": "a"}).json()["items"] == []
    beyond = client().post("/jobs/batch", json={"jobs": [{"type": "a", "after": [1]}]})
    assert "no job 1" in beyond.json()["message"]


def test_pages_of_jobs_have_each_job_once(client: MakeClient, ring: Scheduler) -> None:
    http = client()
    ids = {
        each["id"]
        for each in http.post(
            "/jobs/batch", json={"jobs": [{"type": "x", "delay": "1h"}] * 7}
        ).json()["items"]
    }
    for job in sorted(ids)[:3]:
        http.post(f"/jobs/{job}/cancel", json={})
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = http.get("/jobs", params={"limit": 2, **cursor}).json()
        assert len(page["items"]) <= 2
        seen += [each["id"] for each in page["items"]]
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}
    assert sorted(seen) == sorted(ids)
    dead = http.get("/jobs", params={"state": ["cancelled", "failed"]}).json()["items"]
    assert {each["id"] for each in dead} == set(sorted(ids)[:3])


def test_recurring_jobs_are_listed_explained_and_steered(
    client: MakeClient, ring: Scheduler
) -> None:
    http = client()
    for job_id in ("a/b", "c?d", "e"):
        ring.register("acme", job_id, lambda: None, every=timedelta(days=1))
    first = http.get("/recurring", params={"limit": 2}).json()
    assert [each["job_id"] for each in first["items"]] == ["a/b", "c?d"]
    rest = http.get("/recurring", params={"limit": 2, "cursor": first["cursor"]}).json()
    assert [each["job_id"] for each in rest["items"]] == ["e"]
    assert rest["cursor"] is None
    told = http.get("/recurring/a%2Fb").json()
    assert len(told["next_fires"]) == 10
    assert http.post("/recurring/a%2Fb/pause", json={}).json()["paused_at"]
    assert http.get("/recurring").json()["items"][0]["paused_at"]
    assert http.post("/recurring/c%3Fd/resume", json={}).json()["next_run_at"]
    assert http.post("/recurring/e/trigger", json={}).json()["trigger_at"]
    unknown = http.post("/recurring/nobody/pause", json={})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    assert "'nobody'" in unknown.json()["message"]


def test_pages_of_the_ledger_have_each_row_once_also_of_one_instant(
    client: MakeClient, ring: Scheduler, connection: Any
) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    for number in range(7):
        connection.execute(
            "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, fence)"
            " VALUES (%s, 'acme', %s, 'fire', 'success', %s, 1)",
            (at + timedelta(days=number // 4), f"j{number}", at),
        )
    ring.pause_tenant("acme")
    ring.resume_tenant("acme")  # audit rows of the tenant have no job_id
    for limit in (1, 3):
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = client().get("/history", params={"limit": limit, **cursor}).json()
            seen += [each["job_id"] for each in page["items"]]
            if page["cursor"] is None:
                break
            cursor = {"cursor": page["cursor"]}
        assert seen == ["j6", "j5", "j4", "j3", "j2", "j1", "j0", "", ""]
    assert len(client().get("/history", params={"job_id": "j3"}).json()["items"]) == 1


def test_instances_are_listed(client: MakeClient, ring: Scheduler) -> None:
    ring.register("acme", "a", lambda: None, every=timedelta(days=1))
    found = client("operator").get("/instances").json()["items"]
    assert [each["live"] for each in found] == [True]


def test_workers_are_seen_with_what_they_hold_and_their_breakers(
    client: MakeClient, ring: Scheduler, redis_server: EmbeddedRedis
) -> None:
    http, release = client("operator"), threading.Event()

    def work(ctx: JobContext, payload: object) -> None:
        if payload == "fail":
            raise TemporaryError("the dependency is away")
        release.wait(60)

    with working(redis_server, "x", work, breaker=BreakerRule(min_samples=1, cooldown_period="1h")):
        held = [str(ring.submit("acme", "x", queue="mail").id) for _ in range(2)]
        wait_for(lambda: [each["holds"] for each in seen(http)] == [2], "both are held")
        [worker] = seen(http)
        [at] = worker["queues"]
        assert {(job["id"], job["tenant"], job["type"]) for job in at["jobs"]} == {
            (each, "acme", "x") for each in held
        }
        assert (worker["kind"], worker["concurrency"], at["name"], at["breaker"]) == (
            "scheduler",
            4,
            "mail",
            "closed",
        )
        ring.submit("acme", "x", "fail", queue="mail")
        wait_for(
            lambda: http.get("/queues/mail").json()["breakers"] == {"open": 1},
            "its breaker is open",
        )
        [at] = seen(http, queue="mail")[0]["queues"]
        assert at["breaker"] == "open"
        assert datetime.fromisoformat(at["breaker_until"]) > datetime.now(UTC) + timedelta(
            minutes=50
        )
        release.set()


def seen(http: httpx.Client, **query: str) -> list[Any]:
    found: list[Any] = http.get("/workers", params=query).json()["items"]
    return found


def test_pages_of_workers_have_each_worker_once_and_a_queue_has_its_own(
    client: MakeClient, ring: Scheduler, redis_server: EmbeddedRedis
) -> None:
    http = client("operator")
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(working(redis_server, "x", print))
        wait_for(lambda: len(seen(http)) == 3, "all say so")
        names: list[str] = []
        cursor: dict[str, str] = {}
        for _ in range(4):
            page = http.get("/workers", params={"limit": 1, **cursor}).json()
            names += [each["name"] for each in page["items"]]
            cursor = {"cursor": page["cursor"]}
            if page["cursor"] is None:
                break
        assert names == [each["name"] for each in seen(http)] == sorted(set(names))
        assert len(seen(http, queue="mail")) == 3
        assert seen(http, queue="default") == []
    assert http.get("/workers", params={"queue": "nobody"}).status_code == 404
    assert http.get("/workers", params={"cursor": "nobody's"}).status_code == 400


def test_queues_are_seen_paused_and_resumed(client: MakeClient, ring: Scheduler) -> None:
    http = client("operator")
    ring.submit("acme", "x", {"n": 1}, queue="mail")
    wait_for(lambda: http.get("/queues/mail").json()["waiting"]["2"] == 1, "the job in Redis")
    assert [each["name"] for each in http.get("/queues").json()["items"]] == ["default", "mail"]
    (entry,) = http.get("/queues/mail/peek").json()["items"]
    assert (entry["tenant"], entry["type"], entry["payload"]) == ("acme", "x", {"n": 1})
    assert http.post("/queues/mail/pause", json={}).json()["paused_at"]
    assert http.get("/queues/mail").json()["paused"] is True
    assert http.post("/queues/mail/resume", json={}).json() == {"was_paused": True}
    unknown = http.get("/queues/nobody")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    assert "there are default, mail" in unknown.json()["message"]


def test_dead_letters_are_requeued_and_purged_with_a_confirmation(
    client: MakeClient, ring: Scheduler, redis_server: EmbeddedRedis
) -> None:
    http = client("operator")

    def fail(ctx: JobContext, payload: object) -> None:
        raise ValueError("no")

    with working(redis_server, "x", fail):
        dead = [
            ring.submit("acme", "x", queue="mail", retry=RetryPolicy(max_attempts=1)).id
            for _ in range(3)
        ]
        for each in dead:
            ring.wait("acme", each, 20)
    letters = http.get("/queues/mail/dead").json()["items"]
    assert {each["id"] for each in letters} == set(map(str, dead))
    assert all("no" in each["reason"] for each in letters)
    assert len(http.get("/queues/mail/dead", params={"limit": 2, "skip": 2}).json()["items"]) == 1
    done = http.post("/queues/mail/dead/requeue", json={"ids": [str(dead[0]), "nobody"]}).json()
    assert ring.get("acme", done["requeued"][str(dead[0])]).retried_from == dead[0]
    assert list(done["refused"]) == ["nobody"]
    for wrong in ("", "Mail", "other"):
        assert http.post("/queues/mail/dead/purge", json={"confirm": wrong}).status_code == 422
    assert http.post("/queues/mail/dead/purge", json={"confirm": "mail"}).json() == {"purged": 2}
    assert http.get("/queues/mail/dead").json()["items"] == []


@pytest.mark.parametrize("cursor", ["x", "W10=", "WyJsaXZlIiwgIngiXQ==", "\x00"])
def test_a_cursor_of_nobody_is_refused(client: MakeClient, ring: Scheduler, cursor: str) -> None:
    for path in ("/jobs", "/history"):
        answer = client().get(path, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (422, "refused")
        assert "cursor" in answer.json()["message"]
