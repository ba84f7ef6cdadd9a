"""No lock of ours is held across I/O: not across a statement, a connect or a close, and not across
anybody's code.
"""

import ast
import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

import scheduler
from scheduler import NewJob, RunContext, Scheduler
from scheduler.events import Event, FireEnded, Synced
from scheduler.periodic.registry import Merged, Registry
from scheduler.store import engine
from scheduler.store.engine import BoundedConnection, Database
from scheduler.store.queries import names, statement
from tests.conftest import MakeScheduler
from tests.periodic.conftest import Road, only_direct
from tests.support.recorder import Recorder, until
from tests.support.watch import Watch

SOURCES = Path(scheduler.__file__).parent
AT = datetime(2026, 1, 1, tzinfo=UTC)
LOCKS = {"threading.Lock", "threading.RLock", "threading.Condition"}
# In these functions a lock is held across I/O by design. SQLAlchemy's pool has locks of its own,
# which are not ours.
ALLOWED = {
    # Who calls a scheduler that is being started waits until it is; our own threads never take this
    # lock.
    "scheduler.app.Scheduler": "scheduler.app.Scheduler._start",
    # The same, for the scheduler of the process.
    "scheduler": "scheduler.initialise",
}
# Those of the ring have a watch of their own: tests/queueing/test_mutex.py.
RING = {
    "scheduler.dialects.client.Client",
    "scheduler.dialects.leasing.SequenceNumbers",
    "scheduler.dialects.looks.NextLook",
    "scheduler.observe.counts.Counts",
    "scheduler.queueing.callbacks.Callbacks",
    "scheduler.queueing.ring.Ring",
    "scheduler.queueing.services.RingServices",
    "scheduler.queueing.shortcut.Shortcut",
    "scheduler.worker.announcements.Announcements",
    "scheduler.worker.breaker.BreakerGuard",
    "scheduler.worker.executor.Executor",
}
# An embedded server is started once for a process, before there is a scheduler; a child has no
# Postgres. Those of the web and of the command line are held around a few lines that compute, by
# whoever has no other lock.
ELSEWHERE = {
    "scheduler.embedded.postgres",
    "scheduler.child",
    "scheduler.cli.measure.Counted",
    "scheduler.web.access.Access",
    "scheduler.web.streams.Stream",
}
TERMINATE = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'scheduler'"
)
CRASH = (
    "UPDATE job_lock SET owner = gen_random_uuid(), fire_at = now(), last_fire_at = now(), created_at = now(),"
    " expires_at = now() - interval '1 h', starts = CASE id WHEN 'buried' THEN 3 ELSE 1 END, fence = 5"
    " WHERE id IN ('crashed', 'buried', 'queued')"
)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch(ALLOWED)
    watch.begin(monkeypatch)
    watch.over(BoundedConnection, "wait", monkeypatch)
    watch.over(BoundedConnection, "close", monkeypatch)
    watch.over(engine, "_connect", monkeypatch)
    return watch


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    sent: set[bytes] = set()
    run = Database.run

    def noted(self: Database, query: bytes, parameters: Any) -> Any:
        sent.add(query)
        return run(self, query, parameters)

    monkeypatch.setattr(Database, "run", noted)
    return sent


def locks_in_the_sources() -> set[str]:
    """Name every class or module that makes a lock, by reading."""
    found = set()
    for path in SOURCES.rglob("*.py"):
        module = ".".join(
            ("scheduler", *path.relative_to(SOURCES).with_suffix("").parts)
        ).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        owners = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        inside = {id(node): owner.name for owner in owners for node in ast.walk(owner)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in LOCKS:
                found.add(f"{module}.{inside[id(node)]}" if id(node) in inside else module)
    return found


@only_direct("LISTEN is one of the threads that are watched")
def test_no_lock_is_held_across_io(
    road: Road,
    schema: str,
    connection: psycopg.Connection[Any],
    recorder: Recorder,
    watch: Watch,
    sent: set[bytes],
) -> None:
    def listener(event: Event) -> None:
        watch.slow("a listener")

    def body(context: RunContext) -> None:
        watch.slow("a body")
        recorder.body(context)

    def slow_body(context: RunContext) -> None:
        context.cancelled.wait(60)

    async def async_body() -> None:
        watch.slow("an async body")
        await asyncio.sleep(0)

    instance = recorder.listen(scheduler.initialise(road.dsn, schema=schema, lease="2s"))
    other = recorder.listen(
        Scheduler(road.dsn, schema=schema, lease="2s", tenants="all", version=1)
    )
    try:
        unsubscribe = instance.subscribe(listener)
        other.subscribe(listener)
        other.start()
        many = [
            {"tenant": "acme", "job_id": f"j{n}", "fn": body, "every": "200ms", "start_at": AT}
            for n in range(20)
        ]
        in_threads(
            lambda: instance.register_many(many), lambda: other.register_many(many), instance.jobs
        )
        instance.register("acme", "slow", slow_body, timeout="1500ms")
        instance.register("acme", "async", async_body)
        instance.register("acme", "once", body, delivery="at_most_once")
        instance.register("acme", "queued", queue="mail", every="1h", start_at=AT)
        instance.register("acme", "crashed", body, every="1h")
        instance.register("acme", "buried", body, every="1h")
        connection.execute(CRASH)
        instance.register("acme", "disappears", body, every="1h")
        connection.execute("DELETE FROM job WHERE id = 'disappears'")
        other.unregister("acme", "j1")
        other.register("acme", "j1", body, every="2h")
        other.register("acme", "j2-changed", body, every="2h")
        instance.register("acme", "j2-changed", body, every="1h")
        recorder.wait(
            lambda: (
                {"slow", "async", "crashed"} <= {event.job_id for event in recorder.of(FireEnded)}
            )
        )
        until(
            lambda: [
                entry for entry in instance.history("acme", "buried") if entry.outcome == "crashed"
            ]
        )
        until(lambda: instance.find("acme").jobs)
        until(
            lambda: connection.execute("SELECT FROM job WHERE id = 'disappears'").fetchall(),
        )
        instance.submit_many([NewJob("acme", "x", idempotency_key="k"), NewJob("acme", "y")])
        instance.pause("acme", "j3")
        other.resume("acme", "j3")
        other.trigger("acme", "j1")
        other.explain("acme", "j1")
        assert other.registered("acme", limit=5)
        assert other.instances(limit=5)
        recorder.wait(lambda: [event for event in recorder.of(FireEnded) if event.job_id == "j1"])
        connection.execute(TERMINATE)
        until(lambda: survives(instance) and survives(other))
        synced = len(recorder.of(Synced))
        other.register("acme", "after", body)
        recorder.wait(lambda: len(recorder.of(Synced)) > synced)
        for name in ("stays-1", "stays-2"):
            instance.register("acme", name, slow_body)
        until(
            lambda: (
                {"stays-1", "stays-2"}
                <= {run.key.job_id for run in instance._running().leases.held()}
            )
        )
        connection.execute("DELETE FROM job_lock WHERE id = 'stays-1'")
        recorder.wait(
            lambda: [event for event in recorder.of(FireEnded) if event.job_id == "stays-1"]
        )
        unsubscribe()
    finally:
        in_threads(lambda: scheduler.cancel(timeout=0.1), lambda: other.cancel(timeout=5))
    assert watch.violations == []
    assert unseen(sent, schema) == set(), "every statement of the flow was sent under the watch"
    assert locks_in_the_sources() - watch.taken == ELSEWHERE | RING, (
        "every lock that we make was taken under it"
    )
    assert watch.used == ALLOWED.keys(), "an exception that nobody needs is none"


def survives(instance: Scheduler) -> bool:
    try:
        return bool(instance.history("acme"))
    except scheduler.StoreUnavailable:
        return False


def in_threads(*functions: Any) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def unseen(sent: set[bytes], schema: str) -> set[str]:
    wanted = {
        (table, name) for table in ("job", "job_lock", "job_instance") for name in names(table)
    }
    return {
        f"{table}: {name}" for table, name in wanted if statement(table, name, schema) not in sent
    }


@only_direct("the watch is under test, not the road")
def test_a_statement_under_a_lock_is_seen(
    make_scheduler: MakeScheduler, recorder: Recorder, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = recorder.listen(make_scheduler())
    merge = Registry.merge

    def reads_under_its_lock(self: Registry, *args: Any, **kwargs: Any) -> Merged:
        with self._lock:
            instance.history("acme")
        return merge(self, *args, **kwargs)

    monkeypatch.setattr(Registry, "merge", reads_under_its_lock)
    assert watch.violations == []
    instance._running().sync.sync()
    last = watch.violations[-1]
    assert last.startswith(
        "BoundedConnection.wait while scheduler.periodic.registry.Registry is held"
    )
    assert "reads_under_its_lock" in last


@only_direct("the watch is under test, not the road")
def test_every_kind_of_lock_is_watched_and_an_exception_holds_only_in_its_function(
    make_scheduler: MakeScheduler, watch: Watch
) -> None:
    instance = make_scheduler()
    running = instance._running()
    for lock, name in (
        (running.leases._lock, "scheduler.periodic.lease.Leases"),
        (running.loop_service._condition, "scheduler.service.Service"),
        (instance._lifecycle, "scheduler.app.Scheduler"),
    ):
        watch.violations.clear()
        with lock:
            running.history.newest("acme", None, limit=1)
        assert {text.split()[2] for text in watch.violations} == {name}
    watch.violations.clear()
    running.history.newest("acme", None, limit=1)
    assert watch.violations == []
