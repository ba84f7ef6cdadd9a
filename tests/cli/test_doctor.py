"""The doctor finds each of its faults, on real servers that really have it, and nothing where all
is well.
"""

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
import redis as redis_py
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from scheduler import RetryPolicy, Scheduler, State, TemporaryError, Worker, handler
from scheduler.cli.main import cli
from scheduler.config import checked_settings
from scheduler.dialects.client import Client
from scheduler.doctor import CHECKS, Finding, Severity, examine, postgres
from scheduler.doctor.findings import UNSEEN, some
from scheduler.embedded.redis import EmbeddedRedis, redis_binary
from tests.conftest import MakeScheduler
from tests.dialects.servers import cluster
from tests.dialects.test_client import listening
from tests.support.pgbouncer import PgBouncer
from tests.support.redis_urls import with_credentials
from tests.support.skew import skewed
from tests.support.waiting import wait_for

NOW = timedelta(0)


@dataclass
class World:
    """An installation, and how the doctor is led to it; a fault changes both."""

    dsn: str
    schema: str
    url: str
    redis: Client
    plain: psycopg.Connection[Any]
    make: MakeScheduler
    patch: pytest.MonkeyPatch
    stack: ExitStack
    database: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    late: timedelta = timedelta(minutes=1)

    def examined(self) -> list[Finding]:
        options = {"redis": self.url, "schema": self.schema, **self.options}
        return list(
            examine(self.database or self.dsn, checked_settings(None, options), late=self.late)  # type: ignore[arg-type]
        )

    def role(self, made: str) -> None:
        """Come in as a role of this test."""
        name = f"doctor_{uuid4().hex[:12]}"
        self.plain.execute(f"CREATE ROLE {name} LOGIN {made}".encode())
        self.stack.callback(self.plain.execute, f"DROP ROLE {name}".encode())
        self.database = make_conninfo(self.dsn, user=name)

    def user(self, *rights: str) -> None:
        """Come in as a user of Redis."""
        self.redis.call("ACL", "SETUSER", "few", "on", ">pw", "resetkeys", "~*", "&*", *rights)
        self.stack.callback(self.redis.call, "ACL", "DELUSER", "few")
        self.options["redis"] = with_credentials(self.url, "few", "pw")

    def fed(self, **options: Any) -> tuple[Scheduler, str]:
        """A job that waits in Redis; nobody works its queue."""
        scheduler = self.make(redis=self.url, **options)
        job = str(scheduler.submit("acme", "work", None, queue="mail").id)
        wait_for(lambda: scheduler.get("acme", job).state is State.SCHEDULED, "a job that is fed")
        return scheduler, job

    def work(self, body: Callable[..., object]) -> Worker:
        """A worker of that queue."""
        handler("work", queue="mail")(body)
        worker = Worker(self.url, queues=["mail"], concurrency=1, lease="2s")
        worker.start()
        self.stack.callback(worker.stop, grace=1.0)
        return worker

    def registered(self) -> Scheduler:
        """A job of an instance that is gone."""
        scheduler = self.make()
        scheduler.register("acme", "report", print, cron="0 6 * * *", timezone="Europe/Berlin")
        scheduler.cancel(timeout=5)
        return scheduler


@pytest.fixture
def world(
    dsn: str,
    schema: str,
    redis: Client,
    redis_server: EmbeddedRedis,
    connection: psycopg.Connection[Any],
    make_scheduler: MakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(
            dsn, schema, redis_server.url, redis, connection, make_scheduler, monkeypatch, stack
        )


def postgres_away(world: World) -> None:
    world.database = "postgresql://ada:trout77@127.0.0.1:1/app"


def postgres_version(world: World) -> None:
    world.make()
    world.patch.setattr(
        postgres, "OLDEST", 990_000
    )  # a later release of ours, that needs a newer one


def postgres_read_only(world: World) -> None:
    world.make()
    world.database = make_conninfo(world.dsn, options="-c default_transaction_read_only=on")


def postgres_connections(world: World) -> None:
    world.make()
    world.role("SUPERUSER CONNECTION LIMIT 5")


def postgres_pooler(world: World) -> None:
    world.make()
    world.database = world.stack.enter_context(PgBouncer(world.dsn)).dsn


def deaf_pooler(world: World) -> None:
    postgres_pooler(world)
    world.options |= {"prepare": False, "listen": True}


def postgres_rights(world: World) -> None:
    world.make()
    world.role("")


def postgres_schema(world: World) -> None:
    world.make()
    world.plain.execute("UPDATE schema_version SET version = version - 1")


def clock_skew(world: World) -> None:
    world.make().cancel(timeout=5)
    options = ["--database", world.dsn, "--schema", world.schema, "--redis", world.url, "--json"]
    command = [sys.executable, "-m", "scheduler", "doctor", *options]
    done = subprocess.run(
        command, env={**os.environ, **skewed(3600)}, check=False, capture_output=True, text=True
    )
    told = [Finding(**each) for each in json.loads(done.stdout)["findings"]]
    world.patch.setattr(world, "examined", lambda: told)


def timezone_data(world: World) -> None:
    world.registered()
    world.plain.execute("""UPDATE job SET spec = spec || '{"timezone": "Mars/Base"}'""")


def ledger_partitions(world: World) -> None:
    world.make().cancel(timeout=5)
    world.plain.execute(
        f"DROP TABLE job_history_{datetime.now(UTC) + timedelta(days=1):%Y%m%d}".encode()
    )


def autovacuum_off(world: World) -> None:
    world.make()
    world.plain.execute("ALTER TABLE job_queue SET (autovacuum_enabled = false)")


def vacuum_behind(world: World) -> None:
    world.make()
    world.patch.setattr(postgres, "DEAD", 100)
    with psycopg.connect(world.dsn, autocommit=True) as other:
        insert = "INSERT INTO {0}.job_key SELECT 't', 't', n::text, gen_random_uuid(), now() FROM generate_series(1, 200) n"
        other.execute(insert.format(world.schema).encode())
        other.execute(f"DELETE FROM {world.schema}.job_key".encode())
    dead = "SELECT n_dead_tup > 100 FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'job_key'"
    wait_for(
        lambda: world.plain.execute(dead, [world.schema]).fetchall() == [(True,)],
        "what the server counts",
    )


def idle_in_transaction(world: World) -> None:
    world.make()
    other = world.stack.enter_context(psycopg.connect(world.dsn))
    other.execute(f"SELECT FROM {world.schema}.job FOR UPDATE".encode())
    world.late = NOW


def row_invalid(world: World) -> None:
    world.make()
    world.plain.execute(
        "INSERT INTO job_ready VALUES ('mail', 2, 'acme', now() + interval '1h', 1, "
        "gen_random_uuid())"
    )


def row_foreign(world: World) -> None:
    world.registered()
    world.plain.execute("""UPDATE job SET spec = spec || '{"gravity": 0.38}'""")


def job_stranded(world: World) -> None:
    world.registered()


def job_disappeared(world: World) -> None:
    scheduler = world.make()
    scheduler.register("acme", "report", lambda: None, every="1h")
    wait_for(lambda: scheduler.explain("acme", "report").runnable_on, "a heartbeat")
    world.plain.execute("DELETE FROM job")


def job_registered_again(world: World) -> None:
    scheduler = world.make(sync_every="1s")
    scheduler.register("acme", "report", lambda: None, every="1h")
    world.plain.execute("DELETE FROM job")
    wait_for(lambda: world.plain.execute("SELECT FROM job").fetchall(), "the row is back")


def tenant_not_mirrored(world: World) -> None:
    gone = world.make()
    gone.register("globex", "report", queue="mail", every="1h")
    gone.cancel(timeout=5)
    world.make().register("acme", "report", print, every="1h")


def lease_expired(world: World) -> None:
    world.registered()
    world.plain.execute(
        "UPDATE job_lock SET owner = gen_random_uuid(), fire_at = now(), last_fire_at = now(), "
        "created_at = now(),"
        " expires_at = now() - interval '1h', starts = 1, description = 'gone'"
    )


def job_failing(world: World) -> None:
    scheduler = world.make()

    def fail() -> None:
        raise ValueError

    scheduler.register("acme", "report", fail, every="1h")
    for times in range(1, 4):
        scheduler.trigger("acme", "report")
        wait_for(lambda times=times: len(_runs(scheduler)) == times, "a run")  # type: ignore[misc]


def _runs(scheduler: Scheduler) -> list[Any]:
    return [row for row in scheduler.history("acme", "report") if row.kind == "trigger"]


def jobs_not_fed(world: World) -> None:
    world.make().submit("acme", "work", None, queue="mail")
    world.late = NOW


def queue_paused(world: World) -> None:
    scheduler, _ = world.fed()
    scheduler.pause_queue("mail")
    scheduler.submit("acme", "work", None, queue="mail")
    world.late = NOW


def tenant_paused(world: World) -> None:
    scheduler, _ = world.fed()
    scheduler.pause_tenant("acme")
    scheduler.submit("acme", "work", None, queue="mail")
    world.late = NOW


def callbacks_failing(world: World) -> None:
    scheduler = world.make(redis=world.url, callback_secret="s" * 32)
    job = scheduler.submit("acme", "work", None, callback_url="http://127.0.0.1:1/", delay="1h")
    scheduler.cancel_job("acme", job.id)  # a private address is not called
    gave_up = "SELECT FROM job_callback WHERE gave_up_at IS NOT NULL"
    wait_for(lambda: world.plain.execute(gave_up).fetchall(), "a callback that is given up")


def redis_away(world: World) -> None:
    world.options["redis"] = "redis://127.0.0.1:1/0"


def redis_refused(world: World) -> None:
    world.options["redis"] = with_credentials(world.url, "nobody", "wrong")


def redis_busy(world: World) -> None:
    world.make()
    _, before = world.redis.call("CONFIG", "GET", "lua-time-limit")
    world.redis.call("CONFIG", "SET", "lua-time-limit", 1)
    world.stack.callback(world.redis.call, "CONFIG", "SET", "lua-time-limit", before)
    admin = world.stack.enter_context(redis_py.Redis.from_url(world.url))

    def loop() -> None:
        with suppress(redis_py.RedisError), redis_py.Redis.from_url(world.url) as endless:
            endless.eval("while true do end", 0)

    thread = threading.Thread(target=loop)
    thread.start()
    world.stack.callback(thread.join)
    world.stack.callback(admin.script_kill)
    wait_for(lambda: _busy(admin), "a script that does not end")


def _busy(admin: redis_py.Redis) -> bool:
    try:
        admin.exists("x")
    except redis_py.ResponseError:
        return True
    return False


def redis_evicts(world: World) -> None:
    world.redis.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    world.stack.callback(world.redis.call, "CONFIG", "SET", "maxmemory-policy", "noeviction")


def redis_full(world: World) -> None:
    used = int(world.redis.call("INFO", "memory")["used_memory"])
    world.redis.call("CONFIG", "SET", "maxmemory", used + used // 50)
    world.stack.callback(world.redis.call, "CONFIG", "SET", "maxmemory", 0)


def redis_forgets(world: World) -> None:
    """The Redis of the tests keeps nothing."""


def redis_clock(world: World) -> None:
    """The real Redis, behind a road on which its clock is an hour behind."""
    world.make()
    address = urlsplit(world.url)

    def talk(connection: socket.socket) -> None:
        with socket.create_connection((address.hostname, address.port or 0)) as server:
            while ready := select.select([connection, server], [], [])[0]:
                said = ready[0].recv(65536)
                if not said:
                    return
                if b"TIME\r\n" in said:
                    behind = f"{datetime.now(UTC).timestamp() - 3600:.0f}"
                    connection.sendall(f"*2\r\n${len(behind)}\r\n{behind}\r\n$1\r\n0\r\n".encode())
                else:
                    (server if ready[0] is connection else connection).sendall(said)

    url = world.stack.enter_context(listening(talk))
    world.options["redis"] = with_credentials(url, "default", address.password or "")


def redis_rights(world: World) -> None:
    world.fed()
    world.user(
        "-@all",
        "+eval",
        "+evalsha",
        "+exists",
        "+get",
        "+info",
        "+config|get",
        "+time",
        "+hlen",
        "+llen",
        "+zcard",
    )


def unseen(world: World) -> None:
    world.make()
    world.user("-@all", "+exists")


def epoch_missing(world: World) -> None:
    scheduler, _ = world.fed()
    scheduler.cancel(timeout=5)
    world.redis.call("FLUSHALL")


def queue_unworked(world: World) -> None:
    world.fed()


def unhandled_type(world: World) -> Worker:
    worker = world.work(lambda _, __: None)
    scheduler = world.make(redis=world.url)
    jobs = [scheduler.submit("acme", "fax", None, queue="mail") for _ in range(2)]
    reason = 'no live worker handles type "fax"'
    wait_for(
        lambda: all(scheduler.get("acme", each.id).reason == reason for each in jobs),
        "jobs without a handler",
    )
    return worker


def queue_not_draining(world: World) -> None:
    world.fed()
    world.late = NOW


def dead_letters(world: World) -> Scheduler:
    def fail(_: Any, __: Any) -> None:
        raise TemporaryError("no")

    world.work(fail)
    scheduler = world.make(redis=world.url)
    job = scheduler.submit("acme", "work", None, queue="mail", retry=RetryPolicy(max_attempts=1))
    assert scheduler.wait("acme", job.id, timeout=60).state is State.DEAD_LETTER
    return scheduler


def ends_unsettled(world: World) -> None:
    scheduler, _ = world.fed()
    scheduler.cancel(timeout=5)
    ended = threading.Event()
    world.work(lambda _, __: ended.set())
    assert ended.wait(60)
    wait_for(lambda: world.redis.call("HLEN", "jobqueue:{mail}:finished"), "an end in Redis")
    world.late = NOW


def job_unknown(world: World) -> None:
    scheduler, _ = world.fed()
    scheduler.cancel(timeout=5)
    world.redis.call("DEL", "jobqueue:{mail}:jobs", "jobqueue:{mail}:waiting")
    world.late = NOW


FAULTS: dict[Callable[[World], object], str] = {
    postgres_away: "postgres-away",
    postgres_version: "postgres-version",
    postgres_read_only: "postgres-read-only",
    postgres_connections: "postgres-connections",
    postgres_pooler: "postgres-pooler",
    deaf_pooler: "postgres-pooler",
    postgres_rights: "postgres-rights",
    postgres_schema: "postgres-schema",
    clock_skew: "clock-skew",
    timezone_data: "timezone-data",
    ledger_partitions: "ledger-partitions",
    autovacuum_off: "vacuum-behind",
    vacuum_behind: "vacuum-behind",
    idle_in_transaction: "idle-in-transaction",
    row_invalid: "row-invalid",
    row_foreign: "row-invalid",
    job_stranded: "job-stranded",
    job_disappeared: "job-disappeared",
    job_registered_again: "job-disappeared",
    tenant_not_mirrored: "job-stranded",
    lease_expired: "lease-expired",
    job_failing: "job-failing",
    jobs_not_fed: "jobs-not-fed",
    queue_paused: "queue-paused",
    tenant_paused: "tenant-paused",
    callbacks_failing: "callbacks-failing",
    redis_away: "redis-away",
    redis_refused: "redis-refused",
    redis_busy: "redis-busy",
    redis_evicts: "redis-evicts",
    redis_full: "redis-full",
    redis_forgets: "redis-forgets",
    redis_clock: "redis-clock",
    redis_rights: "redis-rights",
    unseen: UNSEEN,
    epoch_missing: "epoch-missing",
    queue_unworked: "queue-unworked",
    unhandled_type: "unhandled-type",
    queue_not_draining: "queue-not-draining",
    dead_letters: "dead-letters",
    ends_unsettled: "ends-unsettled",
    job_unknown: "job-unknown",
}


def test_an_unregistered_job_has_not_disappeared(world: World) -> None:
    scheduler = world.make()
    scheduler.register("acme", "report", lambda: None, every="1h")
    wait_for(lambda: scheduler.explain("acme", "report").runnable_on, "a heartbeat")
    world.make().unregister("acme", "report")
    assert "job-disappeared" not in {each.check for each in world.examined()}


def test_a_one_time_job_removed_after_the_retention_has_not_disappeared(world: World) -> None:
    scheduler = world.make()
    scheduler.register("acme", "report", lambda: None)
    ended = "SELECT FROM job_history WHERE kind = 'fire'"
    wait_for(lambda: world.plain.execute(ended).fetchall(), "a run")
    wait_for(lambda: scheduler.explain("acme", "report").runnable_on, "a heartbeat")
    world.plain.execute("UPDATE job SET updated_at = now() - interval '40 days'")
    world.plain.execute(
        "UPDATE job_lock SET last_fire_at = now() - interval '40 days',"
        " ledger_finished_at = now() - interval '40 days'"
    )
    world.plain.execute("UPDATE installation SET forgotten_before = NULL")
    scheduler._running()._sweep()
    assert world.plain.execute("SELECT ran_once FROM job_lock").fetchall() == [(True,)]
    assert "job-disappeared" not in {each.check for each in world.examined()}
    scheduler._running().sync.sync()
    assert world.plain.execute("SELECT FROM job").fetchall() == []
    assert "job-disappeared" not in {each.check for each in world.examined()}


@pytest.mark.parametrize(
    ("fault", "check"), FAULTS.items(), ids=[fault.__name__ for fault in FAULTS]
)
def test_each_fault_is_found(world: World, fault: Callable[[World], object], check: str) -> None:
    fault(world)
    found = world.examined()
    named = {each.check for each in found}
    assert check in named, found
    assert all(each.seen and each.means.endswith(".") and each.cure.endswith(".") for each in found)


def test_every_check_has_a_fault() -> None:
    assert set(FAULTS.values()) == {*CHECKS, UNSEEN}


def test_where_all_is_well_nothing_is_found(world: World) -> None:
    world.work(lambda _, __: None)
    scheduler = world.make(redis=world.url, sync_every="1s")
    scheduler.register("acme", "report", print, cron="0 6 * * *", timezone="Europe/Berlin")
    scheduler.register("acme", "mail", queue="mail", every="1h")
    wait_for(lambda: scheduler.explain("acme", "report").runnable_on, "its presence")
    job = scheduler.submit("acme", "work", None, queue="mail")
    scheduler.wait("acme", job.id, timeout=60)
    assert {each.check for each in world.examined()} == {"redis-forgets"}


@pytest.mark.parametrize("dialect", ["bullmq", "conveyor"])
def test_queues_of_other_dialects_are_looked_at_too(world: World, dialect: str) -> None:
    world.options["queues"] = {"mail": {"dialect": dialect}}
    scheduler, _ = world.fed(queues=world.options["queues"])
    assert {each.check for each in world.examined()} == {"redis-forgets", "queue-unworked"}
    scheduler.cancel(timeout=5)
    world.redis.call("FLUSHALL")
    world.late = NOW
    assert {each.check for each in world.examined()} == {
        "redis-forgets",
        "epoch-missing",
        "job-unknown",
    }


def test_a_cluster_is_looked_at_too(world: World) -> None:
    with cluster(redis_binary()) as house:
        world.options["redis"] = house.url
        scheduler = world.make(redis=house.url)
        job = scheduler.submit("acme", "work", None, queue="mail")
        wait_for(
            lambda: scheduler.get("acme", job.id).state is State.SCHEDULED, "a job that is fed"
        )
        assert {each.check for each in world.examined()} == {"redis-forgets", "queue-unworked"}


def test_servers_that_are_silent_cost_seconds(world: World) -> None:
    """They take connections, and never say a word."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        world.database = f"postgresql://ada@127.0.0.1:{port}/app"
        world.options["redis"] = f"redis://127.0.0.1:{port}/0?max_retries=5"
        began = time.monotonic()
        assert [each.check for each in world.examined()] == ["postgres-away", "redis-away"]
        assert time.monotonic() - began < 25


def test_a_redis_that_keeps_something_is_no_finding(world: World) -> None:
    world.make()
    world.redis.call("CONFIG", "SET", "save", "3600 1")
    world.stack.callback(world.redis.call, "CONFIG", "SET", "save", "")
    assert world.examined() == []


def test_dead_letters_that_somebody_has_seen_to_are_no_finding(world: World) -> None:
    dead_letters(world).queue("mail").purge()
    assert "dead-letters" not in {each.check for each in world.examined()}


def test_jobs_of_a_paused_queue_may_wait(world: World) -> None:
    queue_paused(world)
    assert {each.check for each in world.examined()} == {"queue-paused", "redis-forgets"}


def test_jobs_of_a_paused_tenant_may_wait(world: World) -> None:
    tenant_paused(world)
    found = {each.check for each in world.examined()}
    assert found == {"tenant-paused", "queue-unworked", "redis-forgets"}  # no worker was started


def test_jobs_of_an_unhandled_type_are_reported_once(world: World) -> None:
    worker = unhandled_type(world)
    world.late = NOW
    found = {each.check: each for each in world.examined()}
    assert found.keys() == {"unhandled-type", "redis-forgets"}
    assert found["unhandled-type"].seen.endswith(
        'queue mail: no live worker handles type "fax" (2 waiting)'
    )
    worker.stop(grace=1.0)
    assert {each.check for each in world.examined()} == {
        "queue-unworked",
        "queue-not-draining",
        "redis-forgets",
    }


def test_without_redis_nothing_is_said_of_it(world: World) -> None:
    world.make()
    world.options["redis"] = None
    assert world.examined() == []


def test_the_command_prints_findings_and_says_by_its_code_whether_there_are_any(
    world: World,
) -> None:
    scheduler = world.make()
    given = ["doctor", "--database", world.dsn, "--schema", world.schema, "--redis", world.url]
    well = CliRunner().invoke(cli, given, catch_exceptions=False)
    assert (well.exit_code, well.stderr) == (0, "")
    assert well.stdout.endswith(f"{len(CHECKS)} checks: all is well\n")
    scheduler.register("acme", "\x1b[31mreport", print, every="1h")
    scheduler.cancel(timeout=5)
    ill = CliRunner().invoke(cli, given, catch_exceptions=False)
    assert (ill.exit_code, ill.stderr) == (1, "")
    assert ill.stdout.startswith(
        "fault job-stranded\n  seen         no live instance can run acme/\\x1b[31mreport\n"
    )
    told = CliRunner().invoke(cli, [*given, "--json"], catch_exceptions=False)
    assert told.exit_code == 1
    first, *_ = json.loads(told.stdout)["findings"]
    assert (first["check"], first["severity"]) == ("job-stranded", Severity.FAULT)


def test_no_password_is_printed(world: World) -> None:
    postgres_away(world)
    done = CliRunner().invoke(
        cli, ["doctor", "--database", world.database, "--redis", "redis://a:trout77@127.0.0.1:1"]
    )
    assert done.exit_code == 1
    assert "trout" not in done.output


def test_of_many_a_few_are_named() -> None:
    assert some(["a", "b", "c"]) == "a, b, c"
    assert some(list("abcde")) == "a, b, c and 2 more"
