"""Recurring jobs of tenants that are paused or deleted, in time that the test moves."""

import threading
from typing import Any

import psycopg
import pytest

from scheduler import NewJob, RunContext, TenantDeleting, TenantNotPaused
from scheduler import Scheduler as RealScheduler
from scheduler.store.steps import run
from scheduler.store.tenants import DELETED
from scheduler.testing import START, ManualClock
from tests.periodic.conftest import Make, Road
from tests.periodic.test_policies import HOUR, MINUTE, Body, told
from tests.support.waiting import wait_for


def rows(dsn: str, schema: str, table: str, tenant: str = "acme") -> int:
    with psycopg.connect(dsn, options=f"-c search_path={schema}") as connection:
        query = f"SELECT count(*) FROM {table} WHERE tenant = %s"
        [(count,)] = connection.execute(query.encode(), (tenant,))
        return int(count)


def test_fires_of_a_paused_tenant_are_skipped(make: Make) -> None:
    instance, other, acme, shop = make(), make(), Body(), Body()
    for one in (instance, other):
        one.register("acme", "x", acme, every="1h")
        one.register("shop", "x", shop, every="1h")
    assert other.pause_tenant("acme") == START
    assert instance.pause_tenant("acme") == START
    instance.advance("3h30m")
    assert (acme.fires, len(shop.fires)) == ([], 3)
    assert instance.jobs("acme")[0].paused_at == START
    assert instance.registered("acme")[0].paused_at == START
    assert "its tenant is paused" in str(instance.explain("acme", "x"))
    assert instance.resume_tenant("acme")
    assert not instance.resume_tenant("acme")
    assert told(instance) == [("skipped", "paused", START + 3 * HOUR, START + HOUR, 2)]
    instance.advance("1h")
    assert acme.fires == [START + 4 * HOUR]
    assert "paused" not in str(instance.explain("acme", "x"))


def test_pauses_of_a_tenant_are_audited(make: Make) -> None:
    instance = make()
    instance.pause_tenant("acme")
    instance.pause_tenant("acme")
    instance.resume_tenant("acme")
    instance.pause_tenant("acme")
    instance.delete_tenant("acme")
    found = [(row.job_id, str(row.outcome)) for row in reversed(instance.history("acme"))]
    assert found == [("", "paused"), ("", "resumed"), ("", "paused"), ("", "deleted")]


def test_a_job_that_is_paused_itself_stays_so_when_its_tenant_resumes(make: Make) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    instance.pause("acme", "x")
    instance.pause_tenant("acme")
    instance.advance("2h")
    instance.resume_tenant("acme")
    assert instance.advance("2h") == []
    assert instance.jobs()[0].paused_at == START
    instance.resume("acme", "x")
    assert told(instance) == [("skipped", "paused", START + 4 * HOUR, START + HOUR, 3)]


def test_a_job_that_is_resumed_waits_for_its_tenant(make: Make) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    instance.pause("acme", "x")
    instance.pause_tenant("acme")
    instance.resume("acme", "x")
    assert instance.advance("2h") == []
    instance.resume_tenant("acme")
    assert len(instance.advance("1h")) == 1


def test_a_trigger_of_a_paused_tenant_waits(make: Make) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    instance.pause_tenant("acme")
    instance.trigger("acme", "x")
    assert instance.advance("10m") == []
    instance.resume_tenant("acme")
    instance.tick()
    assert body.fires == [START]


def test_a_job_that_is_registered_while_its_tenant_is_paused_waits(make: Make) -> None:
    instance, body = make(), Body()
    instance.pause_tenant("acme")
    instance.register("acme", "x", body, every="1h")
    instance.register("acme", "once", body)
    joined = make()
    joined.register("acme", "x", body, every="1h")
    assert joined.advance("2h") == []
    assert instance.advance("1h") == []
    assert body.fires == []


def test_fires_with_a_queue_submit_nothing_while_the_tenant_is_paused(make: Make) -> None:
    instance = make()
    instance.register("acme", "x", every="1h", queue="mail")
    instance.pause_tenant("acme")
    instance.trigger("acme", "x")
    instance.advance("3h")
    assert instance.find("acme").jobs == ()
    instance.resume_tenant("acme")
    instance.tick()
    assert len(instance.find("acme").jobs) == 1  # the trigger


def test_a_fire_whose_process_died_waits_for_its_tenant(
    make: Make, road: Road, schema: str, clock: ManualClock
) -> None:
    instance, body = make(lease="10s"), Body()
    instance.register("acme", "x", body, every="1h")
    with psycopg.connect(road.dsn, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(
            f'UPDATE "{schema}".job_lock SET owner = gen_random_uuid(), fire_at = %(at)s,'
            " last_fire_at = %(at)s, created_at = %(at)s, expires_at = 'epoch', starts = 1,"
            " description = 'dead'".encode(),
            {"at": START - MINUTE},
        )
    instance.pause_tenant("acme")
    instance.advance("30m")
    assert body.fires == []
    instance.resume_tenant("acme")
    instance.advance("1m")
    assert body.fires == [START - MINUTE]


def test_a_claim_that_began_before_the_pause_was_committed_is_the_last(
    make: Make, dsn: str, schema: str
) -> None:
    """The pause is in progress: a claim runs as before. Then it is committed: none does."""
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    with psycopg.connect(dsn) as connection:
        connection.execute(f"INSERT INTO \"{schema}\".job_tenant VALUES ('acme', now())".encode())
        assert len(instance.advance("1h")) == 1
        connection.commit()
    assert instance.advance("1h") == []


def test_a_mirror_that_does_not_know_the_pause_claims_nothing(
    make: Make, dsn: str, schema: str, clock: ManualClock
) -> None:
    instance, other, body = make(), make(), Body()
    instance.register("acme", "x", body, every="1h")
    instance.register("acme", "queued", every="1h", queue="mail")
    instance.trigger("acme", "x")
    instance.trigger("acme", "queued")
    instance._running().sync.sync()
    other.pause_tenant("acme")
    for _ in range(2):  # the triggers, then the fires
        instance._running().claimer.claim()
        clock.advance("1h")
    assert rows(dsn, schema, "job_queue") == 0
    assert (told(instance), told(instance, "queued")) == ([], [])
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            f'SELECT fence, owner, last_fire_at FROM "{schema}".job_lock'.encode()
        )
        assert found.fetchall() == [(0, None, None)] * 2


def test_a_resume_that_dies_between_its_steps_leaves_the_tenant_paused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, body = make(), Body()
    for n in range(3):
        instance.register("acme", f"x{n}", body, every="1h")
    instance.pause_tenant("acme")
    instance.advance("3h")
    tenants = instance._running().tenant_admin
    tenants._skip_passed("acme")  # and there it dies
    assert instance.advance("2h") == []
    assert instance.resume_tenant("acme")
    assert len(instance.advance("1h")) == 3
    assert [row[0] for row in told(instance, "x1")] == ["skipped", "skipped", "success"]


def test_only_a_paused_tenant_is_deleted(make: Make) -> None:
    instance = make()
    instance.register("acme", "x", Body(), every="1h")
    with pytest.raises(TenantNotPaused, match="pause_tenant"):
        instance.delete_tenant("acme")
    assert len(instance.advance("1h")) == 1


def test_no_table_of_a_tenant_is_forgotten(make: Make, dsn: str, schema: str) -> None:
    make()
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT c.relname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
            " AND a.attname = 'tenant'",
            (schema,),
        )
        assert {name for (name,) in found} == {*DELETED, "job_tenant"}


def test_a_deleted_tenant_leaves_an_audit_row_and_a_tombstone(
    make: Make, dsn: str, schema: str
) -> None:
    instance, other, body = make(), make(), Body()
    for one in (instance, other):
        one.register("acme", "x", body, every="1h")
        one.register("shop", "x", Body(), every="1h")
    instance.register("acme", "queued", every="1h", queue="mail")
    instance.advance("2h")
    first = instance.submit("acme", "x", idempotency_key="k").id
    instance.submit("acme", "x", after=[first], callback_url="https://example.com/")
    instance.cancel_job("acme", instance.submit("acme", "x", callback_url="https://a.com/").id)
    instance.pause_tenant("acme")
    before = {table: rows(dsn, schema, table, "shop") for table in DELETED}
    deleted = instance.delete_tenant("acme")
    assert {table: rows(dsn, schema, table) for table in DELETED} == {
        **dict.fromkeys(DELETED, 0),
        "job_history": 2,  # paused, deleted
        "job_tombstone": 1,
    }
    assert deleted["job"] == 2
    assert deleted["job_queue"] > 2
    assert deleted["job_history"] > 4
    assert rows(dsn, schema, "job_tenant") == 0
    assert {table: rows(dsn, schema, table, "shop") for table in DELETED} == before
    assert other.advance("2h")
    assert body.fires == [START + HOUR, START + 2 * HOUR]
    assert instance.jobs("acme") == other.jobs("acme") == []


def test_a_deleted_tenant_can_be_registered_again(make: Make) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    instance.pause_tenant("acme")
    instance.delete_tenant("acme")
    instance.register("acme", "x", body, every="1h")
    instance.submit("acme", "x")
    assert len(instance.advance("1h")) == 1


def test_fences_grow_although_the_tenant_was_deleted(make: Make) -> None:
    instance = make()
    instance.register("acme", "x", Body(), every="1h")
    instance.advance("3h")
    instance.pause_tenant("acme")
    instance.delete_tenant("acme")
    instance.register("acme", "x", Body(), every="1h")
    instance.advance("1h")
    assert [row.fence for row in instance.history("acme", "x") if row.kind == "fire"] == [4]


def test_a_sync_does_not_register_jobs_of_a_deleted_tenant(
    make: Make, dsn: str, schema: str
) -> None:
    instance, other, body = make(), make(), Body()
    for one in (instance, other):
        one.register("acme", "x", body, every="1h")
    instance.pause_tenant("acme")
    instance.delete_tenant("acme")
    for one in (instance, other):
        one._running().sync.sync()
    assert rows(dsn, schema, "job") == 0
    assert instance.jobs("acme") == []


def test_a_sync_during_a_deletion_registers_no_job(make: Make, dsn: str, schema: str) -> None:
    instance, shop = make(), Body()
    instance.register("acme", "x", Body(), every="1h")
    instance.register("shop", "x", shop, every="1h")
    instance.pause_tenant("acme")
    with psycopg.connect(dsn, options=f"-c search_path={schema}") as connection:
        connection.execute("UPDATE job_tenant SET deleting_at = now() WHERE tenant = 'acme'")
        connection.execute("DELETE FROM job WHERE tenant = 'acme'")
    instance._running().sync.sync()
    assert rows(dsn, schema, "job") == 0
    instance.advance("1h")
    assert len(shop.fires) == 1


def test_a_job_that_disappears_while_its_tenant_is_paused_fires_when_it_resumes(
    make: Make, dsn: str, schema: str
) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    instance.pause_tenant("acme")
    instance._running().sync.sync()
    with psycopg.connect(dsn, options=f"-c search_path={schema}") as connection:
        connection.execute("DELETE FROM job WHERE tenant = 'acme'")
    instance._running().sync.sync()
    assert rows(dsn, schema, "job") == 1
    instance.resume_tenant("acme")
    assert len(instance.advance("1h")) == 1


def test_while_a_tenant_is_deleted_nothing_of_it_is_written(
    make: Make, dsn: str, schema: str
) -> None:
    instance = make()
    instance.pause_tenant("acme")
    table = instance._running().queue.tenants
    run(instance._running().databases, _alone(table.begin_deletion("acme")))
    for jobs in (
        [NewJob("acme", "x")],
        [NewJob("acme", "x", n) for n in range(3)],
        [NewJob("shop", "x"), NewJob("acme", "y", idempotency_key="k")],
        [NewJob("acme" if n == 999 else "shop", "x", n) for n in range(1000)],
    ):
        with pytest.raises(TenantDeleting, match="acme"):
            instance.submit_many(jobs)
    with pytest.raises(TenantDeleting):
        instance.register_many(
            [
                {"tenant": each, "job_id": "x", "fn": Body(), "every": "1h"}
                for each in ("shop", "acme")
            ]
        )
    with psycopg.connect(dsn) as connection, pytest.raises(TenantDeleting):
        instance.submit("acme", "x", connection=connection)
    with pytest.raises(TenantDeleting, match="delete_tenant"):
        instance.resume_tenant("acme")
    instance.pause_tenant("acme")
    for each in ("acme", "shop"):
        assert {rows(dsn, schema, name, each) for name in ("job", "job_queue", "job_key")} == {0}
    instance.delete_tenant("acme")
    instance.submit("acme", "x")


@pytest.mark.parametrize("types", [["x"], ["x", "x"], ["x", "y"]])
def test_a_deletion_waits_for_submitters_that_saw_the_pause(
    make: Make, dsn: str, schema: str, types: list[str]
) -> None:
    instance = make()
    instance.pause_tenant("acme")
    deleting = threading.Thread(target=instance.delete_tenant, args=("acme",))
    with psycopg.connect(dsn) as connection:
        instance.submit_many([NewJob("acme", each) for each in types], connection=connection)
        deleting.start()
        with psycopg.connect(dsn, autocommit=True) as looking:
            wait_for(
                lambda: (
                    looking.execute(
                        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                        " AND query LIKE '%%job_tombstone%%' AND datname = current_database()"
                    ).rowcount
                ),
                "the deletion waits",
            )
        connection.commit()
    deleting.join(60)
    assert not deleting.is_alive()
    assert rows(dsn, schema, "job_queue") == 0


def test_a_deletion_that_another_process_completed_deletes_no_new_jobs(make: Make) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    instance.pause_tenant("acme")
    instance.delete_tenant("acme")
    instance.register("acme", "x", body, every="1h")
    tenants = instance._running().tenant_admin
    for table in DELETED:  # a second process is between two batches
        assert tenants._run(tenants._delete_some(table, "acme")) == 0
    assert len(instance.advance("1h")) == 1


@pytest.mark.parametrize("batch", [1, 500])
def test_a_deletion_that_dies_anywhere_is_completed_by_the_next(
    make: Make, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr("scheduler.queueing.tenants.MAX_BATCH_ROWS", batch)
    instance = make()
    for n in range(2):
        instance.register("acme", f"x{n}", Body(), every="1h")
    instance.advance("2h")
    jobs = [instance.submit("acme", "x", idempotency_key=f"k{n}").id for n in range(2)]
    instance.submit("acme", "x", after=jobs)
    instance.pause_tenant("acme")
    tenants, real = instance._running().tenant_admin, run
    calls, allowed = 0, 1  # the first checks for queues, and the next begins

    class Died(Exception):
        pass

    def dying(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > allowed:
            raise Died
        return real(*args, **options)

    monkeypatch.setattr("scheduler.queueing.tenants.run", dying)
    while True:
        calls, allowed = 0, allowed + 1
        try:
            tenants.delete("acme")
        except Died:
            assert rows(dsn, schema, "job_tenant") == 1
            with pytest.raises(TenantDeleting):
                instance.submit("acme", "x")
        else:
            break
    assert allowed > 10
    assert {name: rows(dsn, schema, name) for name in DELETED[:-2]} == dict.fromkeys(
        DELETED[:-2], 0
    )
    assert rows(dsn, schema, "job_tenant") == 0
    assert [str(row.outcome) for row in instance.history("acme")] == ["deleted", "paused"]


def test_a_run_in_progress_leaves_nothing_when_its_tenant_is_deleted(dsn: str, schema: str) -> None:
    began, go = threading.Event(), threading.Event()

    def body(ctx: RunContext) -> None:
        began.set()
        go.wait(60)

    with RealScheduler(dsn, schema=schema, lease="2s") as instance:
        ended: list[Any] = []
        instance.subscribe(ended.append)
        instance.register("acme", "x", body)
        instance.register("shop", "x", lambda: None, every="1s")
        assert began.wait(60)
        instance.pause_tenant("acme")
        instance.delete_tenant("acme")
        go.set()
        wait_for(lambda: instance._running().runner.count() == 0, "it ends")
        wait_for(instance._running().finisher.idle, "its end was sent")
        assert {name: rows(dsn, schema, name) for name in ("job", "job_lock")} == {
            "job": 0,
            "job_lock": 0,
        }
        assert [str(row.outcome) for row in instance.history("acme")] == ["deleted", "paused"]


def _alone(statement: Any) -> Any:
    return (yield statement._replace(alone=True))
