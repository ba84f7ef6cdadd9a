"""Submitted jobs of tenants that are paused or deleted."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import scheduler
from scheduler import NewJob, Scheduler, State, TemporaryError, handler, testing
from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import StopsTenants
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.model.fairness import Share
from scheduler.queueing.ring import Ring
from scheduler.queueing.tenants import Tenants
from scheduler.store.tenants import DELETED
from tests.queueing.conftest import MakeWorker, fed, steps
from tests.support.waiting import rest, wait_for

ALL = ["standard", "reliable", "bullmq", "conveyor"]
FED_ALONE = ["reliable", "bullmq", "conveyor"]
LOCKED = (
    "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    " AND datname = current_database()"
)


class Ran:
    """What a handler of type mail ran, and when it is to end. Beyond the first 200 jobs it also
    waits for `rest`.
    """

    def __init__(self) -> None:
        self.payloads: list[Any] = []
        self.go, self.rest = threading.Event(), threading.Event()
        self.go.set()
        self.rest.set()

    def __call__(self, ctx: scheduler.JobContext, payload: Any) -> None:
        self.payloads.append((ctx.tenant, payload))
        self.go.wait(60)
        if len(self.payloads) > 200:
            self.rest.wait(60)


@pytest.fixture
def ran() -> Iterator[Ran]:
    made = Ran()
    handler("mail", queue="mail")(made)
    yield made
    made.go.set()
    made.rest.set()


def new(tenant: str, *payloads: Any, **options: Any) -> list[NewJob]:
    return [NewJob(tenant, "mail", each, queue="mail", **options) for each in payloads]


def done(ring: Scheduler, tenant: str) -> int:
    return len(ring.find(tenant, state=State.COMPLETED).jobs)


def waiting(ring: Scheduler) -> int:
    return sum(ring.queue("mail").stats().waiting.values())


def queue_locked(dsn: str, part: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as looking:
        wait_for(lambda: looking.execute(LOCKED, (f"%{part}%",)).rowcount, f"{part} waits")


def test_jobs_that_are_in_redis_wait_for_their_tenant(
    ring: Scheduler, make_worker: MakeWorker, ran: Ran
) -> None:
    ids = [each.id for each in ring.submit_many(new("acme", 0, 1, 2))]
    wait_for(lambda: waiting(ring) == 3, "they are fed")
    ring.pause_tenant("acme")
    ids += [each.id for each in ring.submit_many(new("acme", 3, 4))]
    make_worker()
    for n in range(3):
        ring.wait("shop", ring.submit_many(new("shop", n))[0].id, timeout=60)
    assert ran.payloads == [("shop", n) for n in range(3)]
    assert {ring.get("acme", each).reason for each in ids} == {
        "its tenant is paused until resume_tenant() is called"
    }
    stats = ring.queue("mail").stats()
    assert (stats.stopped, sum(stats.waiting.values()), stats.ready) == (3, 0, 2)
    assert ring.queue("mail").peek() == []
    assert ring.resume_tenant("acme")
    wait_for(lambda: done(ring, "acme") == 5, "they run")
    assert ran.payloads[3:] == [("acme", n) for n in range(5)]
    assert ring.get("acme", ids[0]).reason is None
    assert ring.queue("mail").stats().stopped == 0


@pytest.mark.parametrize("dialect", FED_ALONE)
def test_in_other_dialects_feeding_alone_stops(
    ring: Scheduler, make_worker: MakeWorker, ran: Ran
) -> None:
    first = ring.submit_many(new("acme", 0))[0].id
    wait_for(lambda: waiting(ring) == 1, "it is fed")
    ring.pause_tenant("acme")
    assert ring.get("acme", first).reason is None
    second = ring.submit_many(new("acme", 1))[0].id
    make_worker()
    ring.wait("acme", first, timeout=60)
    ring.wait("shop", ring.submit_many(new("shop", 2))[0].id, timeout=60)
    assert ran.payloads == [("acme", 0), ("shop", 2)]
    assert "resume_tenant" in str(ring.get("acme", second).reason)
    ring.resume_tenant("acme")
    assert ring.wait("acme", second, timeout=60).state is State.COMPLETED


def test_a_claim_that_races_with_the_pause_is_the_last(
    ring: Scheduler, make_worker: MakeWorker, ran: Ran
) -> None:
    """When the pause returns, a worker has as many jobs as it has slots, and gets no more."""
    ran.go.clear()
    ran.rest.clear()  # the pause comes before the last job, however fast the worker is
    ring.submit_many(new("acme", *range(300)))
    make_worker(concurrency=4)
    wait_for(lambda: len(ran.payloads) == 4, "the slots are taken")
    ran.go.set()  # it leases and ends as fast as it can
    wait_for(lambda: len(ran.payloads) > 20, "it works")
    ring.pause_tenant("acme")
    begun = len(ran.payloads)
    ran.rest.set()
    wait_for(lambda: not ring.queue("mail").stats().running, "what runs has ended")
    assert begun <= len(ran.payloads) <= begun + 4
    assert begun < 300
    ring.resume_tenant("acme")
    wait_for(lambda: done(ring, "acme") == 100 and len(ran.payloads) == 300, "the rest runs")
    assert sorted(ran.payloads) == [("acme", n) for n in range(300)]


@pytest.mark.parametrize("dialect", ALL)
def test_a_pause_waits_for_a_feed_in_progress(
    ring: Scheduler, dsn: str, schema: str, redis: Client
) -> None:
    ring.submit_many(new("shop", 0))
    wait_for(lambda: waiting(ring) == 1, "the queue is known")
    pausing = threading.Thread(target=ring.pause_tenant, args=("acme",))
    with psycopg.connect(dsn) as feeding:
        feeding.execute(
            f"SELECT FROM \"{schema}\".job_epoch WHERE queue = 'mail' FOR SHARE".encode()
        )
        pausing.start()
        queue_locked(dsn, "tenant_pauses + 1")
        assert pausing.is_alive()
        feeding.commit()
    pausing.join(60)
    assert not pausing.is_alive()


def test_a_feed_that_waits_for_the_pause_takes_nothing(
    instance: testing.Scheduler, dsn: str, schema: str
) -> None:
    """Its snapshot is older than the pause: it sees that in the row of its queue."""
    table = instance._running().queue
    divided = [Share(2, "acme", 10), Share(2, "shop", 10)]
    steps(instance, fed(table, "mail", []))
    instance.submit_many([*new("acme", 1), *new("shop", 2)])
    found: list[Any] = []
    feeding = threading.Thread(
        target=lambda: found.append(steps(instance, fed(table, "mail", divided)))
    )
    with psycopg.connect(dsn) as pausing:
        pausing.execute(f'UPDATE "{schema}".job_epoch SET tenant_pauses = 1'.encode())
        feeding.start()
        queue_locked(dsn, "mark AS MATERIALIZED")
        pausing.execute(f"INSERT INTO \"{schema}\".job_tenant VALUES ('acme', now())".encode())
        pausing.commit()
    feeding.join(60)
    assert found == [[]]
    assert [row[0] for row in steps(instance, fed(table, "mail", divided))] == ["shop"]


@pytest.mark.parametrize("dialect", ALL)
def test_a_redis_that_is_lost_while_a_tenant_is_paused(
    ring: Scheduler, make_worker: MakeWorker, ran: Ran, redis: Client
) -> None:
    ring.submit_many(new("acme", 0, 1, 2))
    wait_for(lambda: waiting(ring) == 3, "they are fed")
    ring.pause_tenant("acme")
    redis.call("FLUSHALL")
    wait_for(lambda: ring.queue("mail").stats().ready == 3, "they are to be fed again")
    make_worker()
    ring.wait("shop", ring.submit_many(new("shop", 3))[0].id, timeout=60)
    assert ran.payloads == [("shop", 3)]
    admin: object = ring.queue("mail").redis
    if isinstance(admin, StopsTenants):
        wait_for(lambda: admin.stopped_tenants().paused == {"acme"}, "the flag is back")
    ring.resume_tenant("acme")
    wait_for(lambda: done(ring, "acme") == 3, "they run")
    assert sorted(ran.payloads[1:]) == [("acme", n) for n in range(3)]


def test_a_flag_that_redis_alone_has_lost_is_set_again(
    ring: Scheduler, make_worker: MakeWorker, ran: Ran, redis: Client
) -> None:
    """A Redis that lost its last second has the jobs, and the epoch, but not the flag."""
    ring.submit_many(new("acme", 0))
    wait_for(lambda: waiting(ring) == 1, "it is fed")
    ring.pause_tenant("acme")
    redis.call("DEL", "jobqueue:{mail}:paused:tenants")
    admin = ring.queue("mail").redis
    assert isinstance(admin, StopsTenants)
    wait_for(lambda: admin.stopped_tenants().paused == {"acme"}, "the flag is back")
    make_worker()
    ring.wait("shop", ring.submit_many(new("shop", 1))[0].id, timeout=60)
    assert ran.payloads == [("shop", 1)]


def test_a_release_that_dies_between_two_calls_is_completed(
    ring: Scheduler, make_worker: MakeWorker, ran: Ran, redis: Client
) -> None:
    ring.submit_many(new("acme", *range(20)))
    wait_for(lambda: waiting(ring) == 20, "they are fed")
    ring.pause_tenant("acme")
    make_worker()
    ring.wait("shop", ring.submit_many(new("shop", 0))[0].id, timeout=60)
    wait_for(lambda: ring.queue("mail").stats().stopped == 20, "they are set aside")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler.dialects.standard.admin.MAX_RELEASED", 7)
        real, calls = Client.run, 0

        def dying(self: Client, code: Any, *args: Any) -> Any:
            nonlocal calls
            calls += code is script("standard", "release")
            if calls > 1 and code is script("standard", "release"):
                raise SystemExit
            return real(self, code, *args)

        patch.setattr(Client, "run", dying)
        with pytest.raises(SystemExit):
            ring.queue("mail").redis.resume_tenant("acme")  # type: ignore[attr-defined]
    ring.resume_tenant("acme")
    wait_for(lambda: done(ring, "acme") == 20, "they run")


def test_jobs_that_are_retried_or_parked_wait_for_their_tenant(
    ring: Scheduler, make_worker: MakeWorker, ran: Ran
) -> None:
    tried: list[int] = []

    @handler("flaky", queue="mail")
    def flaky(ctx: scheduler.JobContext, payload: object) -> None:
        tried.append(ctx.attempt)
        if ctx.attempt == 1:
            raise TemporaryError("again", retry_after="1s")

    job = ring.submit("acme", "flaky", queue="mail").id
    parked = ring.submit("acme", "unknown", queue="mail").id
    make_worker()
    wait_for(lambda: ring.get("acme", job).state is State.RETRYING, "it is retried")
    ring.pause_tenant("acme")
    wait_for(lambda: ring.queue("mail").stats().stopped >= 1, "it is due, and set aside")
    assert tried == [1]

    @handler("unknown", queue="mail")
    def unknown(ctx: scheduler.JobContext, payload: object) -> None:
        tried.append(0)

    make_worker()
    ring.wait("shop", ring.submit_many(new("shop", 0))[0].id, timeout=60)
    wait_for(lambda: ring.queue("mail").stats().stopped == 2, "the parked one is set aside too")
    assert tried == [1]
    ring.resume_tenant("acme")
    assert ring.wait("acme", job, timeout=60).attempt == 2
    assert ring.wait("acme", parked, timeout=60).state is State.COMPLETED
    assert sorted(tried) == [0, 1, 2]


def test_instances_and_queues_that_come_later_know_the_pause(
    ring: Scheduler, make_worker: MakeWorker, dsn: str, schema: str, redis_server: EmbeddedRedis
) -> None:
    ran: list[str] = []

    @handler("other", queue="other")
    def other(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(ctx.tenant)

    ring.pause_tenant("acme")
    ring.cancel()
    make_worker()
    with Scheduler(dsn, schema=schema, redis=redis_server.url) as later:
        first = later.submit("acme", "other", queue="other").id
        for _ in range(3):
            later.wait("shop", later.submit("shop", "other", queue="other").id, timeout=60)
        assert ran == ["shop"] * 3
        assert later.resume_tenant("acme")
        later.wait("acme", first, timeout=60)
    ring.start()


def test_a_redis_that_is_away_gets_the_pause_later(
    ring: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    ring.submit_many(new("acme", 0))
    wait_for(lambda: waiting(ring) == 1, "it is fed")
    instance = ring._running()
    nobody = Ring(Client("redis://127.0.0.1:1"), {}, "", instance.database_clock.now)
    Tenants(instance.databases, instance.queue, nobody).pause("acme")
    assert "reaches Redis later" in caplog.text
    admin = ring.queue("mail").redis
    assert isinstance(admin, StopsTenants)
    wait_for(lambda: admin.stopped_tenants().paused == {"acme"}, "Redis has it")
    Tenants(instance.databases, instance.queue, nobody).resume("acme")
    wait_for(lambda: admin.stopped_tenants().paused == set(), "Redis has it")


def values(redis: Client) -> Iterator[tuple[bytes, bytes]]:
    """All that Redis has, key by key."""
    for key in redis.call("KEYS", "*"):
        yield key, key
        kind = redis.call("TYPE", key)
        read = {
            b"string": ("GET", key),
            b"hash": ("HGETALL", key),
            b"list": ("LRANGE", key, 0, -1),
            b"set": ("SMEMBERS", key),
            b"zset": ("ZRANGE", key, 0, -1),
            b"stream": ("XRANGE", key, "-", "+"),
        }[kind if isinstance(kind, bytes) else kind.encode()]
        yield key, repr(redis.call(*read)).encode()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test submits while it pauses, so no push is in progress when it deletes."""
    monkeypatch.setattr("scheduler.queueing.tenants.MAX_PUSH_AGE_S", 0.0)


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.usefixtures("at_once")
def test_a_deleted_tenant_leaves_nothing_in_redis(
    ring: Scheduler,
    make_worker: MakeWorker,
    ran: Ran,
    redis: Client,
    dsn: str,
    schema: str,
    dialect: str,
) -> None:
    @handler("broken", queue="mail")
    def broken(ctx: scheduler.JobContext, payload: object) -> None:
        raise scheduler.PermanentError("no")

    @handler("flaky", queue="mail")
    def flaky(ctx: scheduler.JobContext, payload: object) -> None:
        raise TemporaryError("again", retry_after="1h")

    name = "tenant-to-delete"
    worker = make_worker()
    ids = [
        ring.submit(name, "broken", "secret", queue="mail").id,
        ring.submit(name, "flaky", "secret", queue="mail").id,
        *(each.id for each in ring.submit_many(new(name, "secret", 1))),
    ]
    wait_for(lambda: ring.get(name, ids[0]).state.terminal, "one is a dead letter")
    wait_for(lambda: ring.get(name, ids[1]).state is State.RETRYING, "one is retried")
    wait_for(lambda: done(ring, name) == 2, "some are done")
    worker.stop()
    ids += [each.id for each in ring.submit_many(new(name, "secret", 3))]
    kept = ring.submit_many(new("shop", 4))[0].id
    wait_for(lambda: waiting(ring) == 3, "they are fed")
    ids += [ring.submit(name, "mail", "secret", queue="mail", delay="1h").id]
    ring.pause_tenant(name)
    ring.delete_tenant(name)
    wait_for(lambda: not ring.queue("mail").stats().unsettled, "all is settled")
    # Lists of the dialect reliable keep ids until a worker meets them, and of completed jobs.
    named = ids if dialect != "reliable" else []
    wanted = [name.encode(), b"secret", *(str(each).encode() for each in named)]
    left = [
        (key, each)
        for key, value in values(redis)
        for each in wanted
        if each in value and b"settled" not in key and not key.endswith(b":events")
    ]
    assert left == [], left
    with psycopg.connect(dsn, options=f"-c search_path={schema}") as connection:
        for table in {*DELETED, "job_tenant"} - {"job_history", "job_tombstone"}:
            query = f"SELECT count(*) FROM {table} WHERE tenant = %s"
            assert connection.execute(query.encode(), (name,)).fetchone() == (0,), table
    make_worker()
    ring.wait("shop", kept, timeout=60)
    assert ran.payloads[2:] == [("shop", 4)]


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.usefixtures("at_once")
def test_the_result_of_a_job_whose_tenant_was_deleted_is_dropped(
    ring: Scheduler, make_worker: MakeWorker, ran: Ran, caplog: pytest.LogCaptureFixture
) -> None:
    ran.go.clear()
    job = ring.submit_many(new("acme", 0))[0].id
    make_worker()
    wait_for(lambda: ran.payloads, "it runs")
    ring.pause_tenant("acme")
    ring.delete_tenant("acme")
    with pytest.raises(scheduler.UnknownJob):
        ring.get("acme", job)
    ran.go.set()
    ring.wait("shop", ring.submit_many(new("shop", 1))[0].id, timeout=60)
    wait_for(
        lambda: (stats := ring.queue("mail").stats()).running + stats.unsettled == 0, "all ended"
    )
    assert [str(row.outcome) for row in ring.history("acme")] == ["deleted", "paused"]
    assert ring.find("acme").jobs == ()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize("dialect", ["standard", "bullmq"])
@pytest.mark.usefixtures("at_once")
def test_a_deletion_that_dies_anywhere_leaves_nothing_that_runs(
    ring: Scheduler, make_worker: MakeWorker, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies before each transaction, and after each call of Redis, before the commit."""
    monkeypatch.setattr("scheduler.queueing.tenants.MAX_BATCH_ROWS", 2)
    ring.submit_many(new("acme", *range(6)))
    ring.submit_many(new("shop", 0))
    wait_for(lambda: waiting(ring) == 7, "they are fed")
    ring.pause_tenant("acme")

    class Died(Exception):
        pass

    left, real = 0, Tenants._run

    this_thread = threading.get_ident()

    def dying(self: Tenants, made: Any) -> Any:
        if threading.get_ident() != this_thread:  # maintenance
            return real(self, made)

        def cut() -> Any:
            nonlocal left
            answer = yield from made
            left -= 1
            if left == 0:
                raise Died  # before the commit
            return answer

        return real(self, cut())

    monkeypatch.setattr(Tenants, "_run", dying)
    tenants = ring._running().tenant_admin
    for steps_left in range(1, 60):
        left = steps_left
        try:
            tenants.delete("acme")
        except Died:
            continue
        break
    else:
        raise AssertionError("it never ends")
    monkeypatch.setattr(Tenants, "_run", real)
    make_worker()
    ring.wait("shop", ring.submit_many(new("shop", 1))[0].id, timeout=60)
    rest(0.5)
    assert [tenant for tenant, _ in ran.payloads] == ["shop", "shop"]


@pytest.mark.usefixtures("ring")
def test_a_deletion_waits_until_no_push_can_come(ring: Scheduler) -> None:
    ring.submit_many(new("acme", 0))
    ring.pause_tenant("acme")
    began = time.monotonic()
    ring.delete_tenant("acme")
    assert time.monotonic() - began > 5.0
