"""register, unregister, jobs, history: the API of flow 1 and its errors."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import scheduler
from scheduler.events import FireEnded, FireStarted, Synced
from tests.conftest import MakeScheduler
from tests.periodic.conftest import Road, only_direct
from tests.support.recorder import Recorder

FAR = datetime(2100, 1, 1, tzinfo=UTC)


def nothing() -> None:
    pass


def test_the_seeds_lifecycle_rules_are_distinct_errors(road: Road, schema: str) -> None:
    with pytest.raises(scheduler.NotInitialised, match="initialise"):
        scheduler.register("acme", "x", nothing, every="1h")
    with pytest.raises(scheduler.NotInitialised):
        scheduler.cancel()
    first = scheduler.initialise(road.dsn, schema=schema, prepare=road.prepare)
    try:
        assert isinstance(first, scheduler.Scheduler)
        with pytest.raises(scheduler.AlreadyInitialised, match=r"call cancel\(\) .* it again\.$"):
            scheduler.initialise(road.dsn, schema=schema, prepare=road.prepare)
        scheduler.register("acme", "x", nothing, every="1h")
        with pytest.raises(scheduler.DuplicateJob, match="'x'.*'acme'"):
            scheduler.register("acme", "x", nothing, every="1h")
        with pytest.raises(scheduler.UnknownJob, match="'y'"):
            scheduler.unregister("acme", "y")
        scheduler.unregister("acme", "x")
        assert scheduler.jobs() == []
    finally:
        scheduler.cancel()
    scheduler.initialise(road.dsn, schema=schema, prepare=road.prepare)
    scheduler.cancel()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"every": timedelta(0)}, scheduler.InvalidSchedule, "every"),
        ({"every": timedelta(seconds=-1)}, scheduler.InvalidSchedule, "every"),
        ({"every": "soon"}, scheduler.InvalidSchedule, "every.*soon"),
        ({"every": 60}, scheduler.InvalidSchedule, "timedelta"),
        ({"every": timedelta(days=365 * 200)}, scheduler.InvalidSchedule, "100 years"),
        ({"every": "1h", "start_at": datetime(2030, 1, 1)}, scheduler.InvalidSchedule, "time zone"),  # noqa: DTZ001
        ({"start_at": "tomorrow"}, scheduler.InvalidSchedule, "start_at"),
        (
            {"every": "1h", "start_at": datetime(9999, 12, 31, tzinfo=UTC)},
            scheduler.InvalidSchedule,
            "9000",
        ),
        ({"every": "1h", "timeout": "0s"}, scheduler.InvalidOption, "timeout"),
        (
            {"every": "1h", "delivery": "exactly_once"},
            scheduler.InvalidOption,
            "delivery.*at_most_once",
        ),
        ({"every": "1h", "tenant": ""}, scheduler.InvalidName, "tenant"),
        ({"every": "1h", "tenant": "a\0b"}, scheduler.InvalidName, "NUL"),
        ({"every": "1h", "tenant": "a\ud800"}, scheduler.InvalidName, "Unicode"),
        ({"every": "1h", "job_id": "x" * 201}, scheduler.InvalidName, "200"),
        ({"every": "1h", "job_id": 7}, scheduler.InvalidName, "text"),
        ({"every": "1h", "fn": 7}, scheduler.InvalidOption, "function"),
        ({"every": "1h", "fn": lambda a, b: None}, scheduler.InvalidOption, "partial"),
    ],
)
def test_bad_input_raises_at_register_and_changes_nothing(
    make_scheduler: MakeScheduler,
    connection: psycopg.Connection[Any],
    options: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    instance = make_scheduler()
    arguments = {"tenant": "acme", "job_id": "x", "fn": nothing, **options}
    with pytest.raises(error, match=says):
        instance.register(**arguments)
    with pytest.raises(error, match=says):
        instance.register_many(
            [{"tenant": "acme", "job_id": "good", "fn": nothing, "every": "1h"}, arguments]
        )
    assert instance.jobs() == []
    assert connection.execute("SELECT count(*) FROM job").fetchone() == (0,)
    instance.register("acme", "x", nothing, every="1h")


def test_the_decorator_checks_at_once_and_returns_the_function(
    make_scheduler: MakeScheduler,
) -> None:
    instance = make_scheduler()
    with pytest.raises(scheduler.InvalidSchedule):
        instance.register("acme", "x", every="never")

    @instance.register("acme", "x", every="1h")
    def body() -> None:
        pass

    assert body.__name__ == "body"
    assert [(job.job_id, job.every, job.runnable) for job in instance.jobs("acme")] == [
        ("x", timedelta(hours=1), True)
    ]


def test_a_name_with_any_character_is_a_name(make_scheduler: MakeScheduler) -> None:
    instance = make_scheduler()
    odd = "Ünïcode 'quotes\" {braces} %s ; -- \\ \n 日本"
    instance.register(odd, odd, nothing, every="1h")
    assert [(job.tenant, job.job_id) for job in instance.jobs(odd)] == [(odd, odd)]
    instance.unregister(odd, odd)


def test_an_unchanged_definition_touches_nothing(
    make_scheduler: MakeScheduler, connection: psycopg.Connection[Any]
) -> None:
    make_scheduler().register("acme", "weekly", nothing, every="1w")
    before = connection.execute("SELECT xmin, * FROM job").fetchall()
    make_scheduler().register("acme", "weekly", nothing, every=timedelta(days=7))
    assert connection.execute("SELECT xmin, * FROM job").fetchall() == before
    assert connection.execute("SELECT outcome FROM job_history").fetchall() == [("registered",)]


def test_a_changed_definition_replaces_the_old_with_an_audit_row(
    make_scheduler: MakeScheduler, connection: psycopg.Connection[Any]
) -> None:
    first, second = make_scheduler(), make_scheduler(label="deploy-2")
    first.register("acme", "x", nothing, every="1w")
    created = connection.execute("SELECT created_at FROM job").fetchone()
    second.register("acme", "x", nothing, every="1d")
    row = connection.execute("SELECT created_at, next_run_at - created_at FROM job").fetchone()
    assert created is not None
    assert row is not None
    assert row[0] == created[0]
    assert row[1] == timedelta(days=1)
    newest = second.history("acme", "x")[0]
    assert (newest.kind, newest.outcome, newest.holder) == (
        "audit",
        scheduler.Outcome.CHANGED,
        "deploy-2",
    )


@only_direct("LISTEN belongs to a session, which a transaction pooler does not give")
def test_another_instance_hears_of_a_change_at_once(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    watching = recorder.listen(make_scheduler(tenants="all"))
    recorder.wait(lambda: recorder.of(Synced))
    other = make_scheduler()
    other.register("acme", "x", nothing, every="1h")
    recorder.wait(lambda: [event for event in recorder.of(Synced) if event.jobs == 1])
    (job,) = watching.jobs("acme")
    assert not job.runnable
    other.unregister("acme", "x")
    recorder.wait(lambda: recorder.of(Synced)[-1].jobs == 0)


def test_a_job_unregistered_elsewhere_is_dropped_and_comes_back_with_its_function(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    mine, other = recorder.listen(make_scheduler(sync_every="1s")), make_scheduler()
    mine.register("acme", "x", nothing, every="1h")
    other.register("acme", "x", nothing, every="1h")
    other.unregister("acme", "x")
    recorder.wait(lambda: mine.jobs() == [])
    other.register("acme", "x", nothing, every="1h")
    recorder.wait(lambda: [job.runnable for job in mine.jobs()] == [True])


def test_instances_register_the_same_jobs_at_once(
    make_scheduler: MakeScheduler, connection: psycopg.Connection[Any]
) -> None:
    instances = [make_scheduler(listen=False) for _ in range(5)]
    barrier = threading.Barrier(len(instances))
    errors: list[BaseException] = []

    def go(instance: scheduler.Scheduler) -> None:
        barrier.wait()
        try:
            instance.register_many(
                [
                    {"tenant": f"t{n % 7}", "job_id": f"j{n}", "fn": nothing, "every": "1h"}
                    for n in range(200)
                ]
            )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(instance,)) for instance in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert connection.execute("SELECT count(*) FROM job").fetchone() == (200,)
    assert connection.execute("SELECT count(*) FROM job_lock").fetchone() == (200,)
    assert all(len(instance.jobs()) == 200 for instance in instances)


def test_start_at_is_the_first_fire_and_a_past_one_is_one_run_now(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler())
    start = datetime.now(UTC) - timedelta(hours=10, minutes=30)
    instance.register("acme", "hourly", recorder.body, every="1h", start_at=start)
    instance.register("acme", "later", recorder.body, every="1h", start_at=FAR)
    recorder.wait(lambda: recorder.of(FireEnded))
    (run,) = recorder.runs
    (entry,) = [entry for entry in instance.history("acme", "hourly") if entry.kind == "fire"]
    assert run.fire_at == entry.at == start + timedelta(hours=10)
    assert (entry.missed_from, entry.missed_count) == (start, 10)
    jobs = {job.job_id: job.next_run_at for job in instance.jobs()}
    assert jobs == {"hourly": start + timedelta(hours=11), "later": FAR}


def test_a_job_without_an_interval_fires_once_and_stays_done(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler())
    instance.register("acme", "once", recorder.body)
    recorder.wait(lambda: recorder.of(FireEnded))
    assert [job.next_run_at for job in instance.jobs()] == [None]
    again = make_scheduler()
    again.register("acme", "once", recorder.body)
    assert [job.next_run_at for job in again.jobs()] == [None]
    assert len(recorder.runs) == 1


def test_a_fire_that_has_run_is_not_given_out_again_by_unregister_and_register(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler())
    start = datetime.now(UTC)
    instance.register("acme", "x", recorder.body, every="1h", start_at=start)
    recorder.wait(lambda: recorder.of(FireEnded))
    instance.unregister("acme", "x")
    instance.register("acme", "x", recorder.body, every="1h", start_at=start)
    assert instance.jobs()[0].next_run_at == start + timedelta(hours=1)


def test_a_registration_that_fails_half_way_leaves_nothing_running_here(
    make_scheduler: MakeScheduler, connection: psycopg.Connection[Any], recorder: Recorder
) -> None:
    make_scheduler().register("acme", "old", nothing, every="1s")
    instance = recorder.listen(make_scheduler())
    connection.execute("ALTER TABLE job ADD CONSTRAINT trap CHECK (id <> 'bad')")
    items = [
        {"tenant": "acme", "job_id": name, "fn": recorder.body, "every": "1s"}
        for name in ("old", "bad")
    ]
    with pytest.raises(scheduler.StoreError):
        instance.register_many(items)
    assert [job.runnable for job in instance.jobs()] in ([], [False])
    connection.execute("ALTER TABLE job DROP CONSTRAINT trap")
    instance.register_many(items)
    recorder.wait(lambda: {run.job_id for run in recorder.runs} == {"old", "bad"})


def test_changing_only_the_timeout_keeps_every_fire(
    make_scheduler: MakeScheduler, connection: psycopg.Connection[Any]
) -> None:
    make_scheduler().register("acme", "x", nothing, every="1h", start_at=FAR)
    make_scheduler().register("acme", "x", nothing, every="1h", start_at=FAR, timeout="5m")
    assert connection.execute("SELECT next_run_at FROM job").fetchone() == (FAR,)


def test_a_job_of_a_later_version_is_known_and_left_alone(
    make_scheduler: MakeScheduler, connection: psycopg.Connection[Any], recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler(sync_every="1s"))
    instance.register("acme", "x", recorder.body, every="1h")
    connection.execute(
        'UPDATE job SET spec = \'{"every_us": 1000, "moon": "full"}\', spec_hash = '
        "decode(repeat('ab', 32), 'hex'),"
        " next_run_at = now() + interval '2 s'"
    )
    recorder.wait(lambda: [job.runnable for job in instance.jobs()] == [False])
    recorder.wait(lambda: len(recorder.of(Synced)) >= 4)
    assert recorder.runs == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"database": 7}, "database"),
        ({"database": "postgresql//ada:swordfish@h/app"}, "database: not a DSN"),
        ({"database": "  "}, "database: is empty"),
        ({"database": "postgresql+psycopg://u:swordfish@host:port/db"}, "database: not a DSN"),
        ({"database": "mysql://h/app"}, "postgresql"),
        ({"tenants": [""]}, "tenants"),
        ({"tenants": "acme"}, "tenants"),
        ({"max_workers": True}, "max_workers"),
        ({"max_workers": 0}, "max_workers"),
        ({"lease": "10ms"}, "lease"),
        ({"sync_every": "0s"}, "sync_every"),
        ({"label": ""}, "label"),
        ({"app": ""}, "app"),
        ({"app": 7}, "app"),
        ({"version": "7"}, "version"),
        ({"version": True}, "version"),
        ({"version": -1}, "version"),
        ({"version": 2**63}, "version"),
        ({"listen": 7}, "listen"),
        ({"migrate": "no"}, "migrate"),
    ],
)
def test_bad_settings_name_their_key_and_no_secret(
    dsn: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(scheduler.ConfigError, match=says) as caught:
        scheduler.Scheduler(**{"database": dsn, **options}).start()
    assert "swordfish" not in str(caught.value)


@pytest.mark.parametrize("timeout", [None, "5s", -1, timedelta(seconds=5), float("nan")])
def test_a_bad_timeout_leaves_the_scheduler_as_it_was(
    make_scheduler: MakeScheduler, timeout: Any
) -> None:
    instance = make_scheduler()
    with pytest.raises(scheduler.InvalidOption, match="timeout"):
        instance.cancel(timeout=timeout)
    with pytest.raises(scheduler.InvalidOption, match="list"):
        instance.register_many(7)  # type: ignore[arg-type]
    instance.cancel()


def test_a_one_time_job_waits_for_the_run_before_it_and_is_not_skipped(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    instance = recorder.listen(make_scheduler())
    go_on = threading.Event()

    def body() -> None:
        go_on.wait(60)

    instance.register("acme", "x", body)
    recorder.wait(lambda: recorder.of(FireStarted))
    instance.unregister("acme", "x")
    instance.register("acme", "x", body)
    threading.Timer(0.5, go_on.set).start()
    recorder.wait(lambda: len(recorder.of(FireEnded)) == 2)


def test_one_that_was_cancelled_by_itself_does_not_stand_in_the_way(
    road: Road, schema: str
) -> None:
    made = scheduler.initialise(road.dsn, schema=schema, prepare=road.prepare)
    made.cancel()
    again = scheduler.initialise(road.dsn, schema=schema, prepare=road.prepare)
    again.cancel()
    with pytest.raises(scheduler.NotInitialised):
        scheduler.cancel()
    scheduler.initialise(road.dsn, schema=schema, prepare=road.prepare)
    scheduler.cancel()
