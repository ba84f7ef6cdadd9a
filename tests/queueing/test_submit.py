"""submit: one-shot jobs that commit with the caller's data, once per key, after those they wait
for.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from scheduler import (
    ConfigError,
    Conflict,
    DependencyCycle,
    DependencyLimit,
    IllegalTransition,
    InvalidOption,
    InvalidPayload,
    NewJob,
    Priority,
    RetryPolicy,
    State,
    StoreUnavailable,
    Submission,
    Timeouts,
    UnknownDependency,
    UnknownJob,
)
from scheduler.model.fairness import Share
from scheduler.queueing import jobs
from scheduler.queueing.ending import end, propagate
from scheduler.store.job_queue import Ending, JobKey, QueueTable
from scheduler.store.steps import Steps
from scheduler.testing import START, Scheduler
from tests.queueing.conftest import fed, steps

HOUR = timedelta(hours=1)


def finish(instance: Scheduler, *jobs: Submission | UUID, state: State = State.COMPLETED) -> None:
    """End jobs as the settler does."""
    table = instance._running().queue
    ids = [job.id if isinstance(job, Submission) else job for job in jobs]
    ended, _ = steps(
        instance, end(table, [Ending(key=JobKey("acme", each), state=state) for each in ids])
    )
    assert {key.id for key, _ in ended} >= set(ids)


def states(instance: Scheduler, jobs: Sequence[Submission]) -> list[State]:
    return [instance.get("acme", job.id).state for job in jobs]


def test_a_job_is_what_was_submitted(instance: Scheduler) -> None:
    payload = {"order": 7, "lines": [1.5, None, True, "ä"], "": {}}
    made = instance.submit(
        "acme",
        "send-receipt",
        payload,
        queue="mail",
        priority=Priority.HIGH,
        tags={"region": "eu"},
        correlation_id="trace-1",
        callback_url="https://example.com/hook",
        retry=RetryPolicy(max_attempts=7),
        timeouts=Timeouts(execution="5m"),
    )
    assert made == Submission(made.id, duplicate=False)
    assert made.id.version == 4
    job = instance.get("acme", made.id)
    assert job.payload == payload
    assert (job.type, job.queue, job.priority, job.state) == (
        "send-receipt",
        "mail",
        Priority.HIGH,
        State.PENDING,
    )
    assert (job.tags, job.correlation_id) == ({"region": "eu"}, "trace-1")
    assert (job.retry.max_attempts, job.retry.max_delay) == (7, HOUR)
    assert (job.timeouts.execution, job.timeouts.visibility) == (
        timedelta(minutes=5),
        timedelta(minutes=5),
    )
    assert (job.created_at, job.run_at, job.expires_at) == (START, START, START + timedelta(days=7))
    assert (job.attempt, job.attempts, job.started_at, job.completed_at) == (0, (), None, None)
    assert instance.get("acme", str(made.id)) == job


def test_a_payload_may_be_bytes(instance: Scheduler) -> None:
    made = instance.submit("acme", "x", b"\0\xff")
    assert instance.get("acme", made.id).payload == b"\0\xff"


class Thing:
    pass


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (float("nan"), "payload cannot be JSON: nan"),
        ({"a": [1, float("inf")]}, r"payload\['a'\]\[1\] cannot be JSON: inf"),
        ({1, 2}, "type set"),
        ({"a": Thing()}, r"payload\['a'\] cannot be JSON: it is of type Thing"),
        ("\ud800", "lone surrogate"),
        ({"k": "a\0b"}, r"payload\['k'\] cannot be JSON: the text contains NUL"),
        ({"a\0": 1}, "a key of payload"),
        ({1: 2}, "keys must be texts"),
        (2**70, "64 bits"),
        ("x" * 1_100_000, "1,100,002 bytes, more than the 1,048,576"),
        (b"x" * 1_100_000, "more than"),
    ],
)
def test_a_bad_payload_is_refused_by_place_and_nothing_is_stored(
    instance: Scheduler, payload: object, says: str
) -> None:
    with pytest.raises(InvalidPayload, match=says):
        instance.submit_many([NewJob("acme", "good"), NewJob("acme", "bad", payload)])
    assert instance.find("acme").jobs == ()


def test_a_text_that_only_looks_like_nul_is_fine(instance: Scheduler) -> None:
    made = instance.submit("acme", "x", {"a": "\\u0000", "b": None})
    assert instance.get("acme", made.id).payload == {"a": "\\u0000", "b": None}


def test_larger_payloads_by_configuration(dsn: str, schema: str) -> None:
    with Scheduler(dsn, schema=schema, max_payload=16 * 1024 * 1024) as instance:
        made = instance.submit("acme", "x", b"x" * 16 * 1024 * 1024)
        assert len(instance.get("acme", made.id).raw_payload) == 16 * 1024 * 1024
    with pytest.raises(ConfigError, match="max_payload"):
        Scheduler(dsn, schema=schema, max_payload=17 * 1024 * 1024)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "a{b}"}, "queue must be"),
        ({"queue": ""}, "queue must be"),
        ({"priority": 7}, r"priority must be one of 0 \(CRITICAL\)"),
        ({"delay": "1m", "run_at": START}, "exclude"),
        ({"delay": "-1m"}, "delay"),
        ({"run_at": START.replace(tzinfo=None)}, "time zone"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "x" * 257}, "idempotency_key"),
        ({"tags": {"a": 7}}, "tag 'a'"),
        ({"tags": ["a"]}, "tags must be a dict"),
        ({"callback_url": "ftp://x"}, "callback_url"),
        ({"retry": RetryPolicy(max_attempts=0)}, "max_attempts"),
        ({"retry": RetryPolicy(backoff="")}, "backoff"),
        ({"retry": RetryPolicy(multiplier=0.5)}, "multiplier"),
        ({"timeouts": Timeouts(lifetime="never")}, "lifetime"),
        ({"retry": 3}, "RetryPolicy"),
        ({"after": "abc"}, "after must be a list"),
        ({"after": [7]}, "after takes job ids"),
        ({"prio": 3}, "no option 'prio'"),
    ],
)
def test_a_bad_option_is_refused_with_its_name(
    instance: Scheduler, options: dict[str, Any], says: str
) -> None:
    with pytest.raises((InvalidOption, ValueError, Exception), match=says):
        instance.submit("acme", "x", **options)
    assert instance.find("acme").jobs == ()


def test_delayed_jobs_say_so_until_their_time(instance: Scheduler) -> None:
    later = instance.submit("acme", "x", delay="1h")
    at = instance.submit("acme", "x", run_at=START + 2 * HOUR)
    assert states(instance, [later, at]) == [State.DELAYED, State.DELAYED]
    instance.clock.advance("1h")
    assert states(instance, [later, at]) == [State.PENDING, State.DELAYED]


def test_a_job_commits_with_the_callers_data_or_not_at_all(
    instance: Scheduler, own: psycopg.Connection[Any]
) -> None:
    own.execute("INSERT INTO orders VALUES (1)")
    lost = instance.submit("acme", "x", connection=own)
    with pytest.raises(UnknownJob):
        instance.get("acme", lost.id)
    own.rollback()
    with pytest.raises(UnknownJob):
        instance.get("acme", lost.id)
    own.execute("INSERT INTO orders VALUES (2)")
    kept = instance.submit("acme", "x", connection=own)
    with contextlib.suppress(ZeroDivisionError), own.transaction():
        undone = instance.submit("acme", "x", connection=own)
        _ = 1 / 0
    own.commit()
    assert instance.get("acme", kept.id).state is State.PENDING
    with pytest.raises(UnknownJob):
        instance.get("acme", undone.id)


def test_a_refused_submit_leaves_the_callers_transaction_usable_and_empty(
    instance: Scheduler, own: psycopg.Connection[Any]
) -> None:
    own.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(UnknownDependency):
        instance.submit("acme", "x", idempotency_key="k", after=[uuid4()], connection=own)
    own.execute("INSERT INTO orders VALUES (2)")
    own.commit()
    assert own.execute("SELECT count(*) FROM orders").fetchone() == (2,)
    assert own.execute("SELECT count(*) FROM job_key").fetchone() == (0,)


def test_an_autocommit_connection_and_a_row_factory_of_the_callers_change_nothing(
    instance: Scheduler, dsn: str
) -> None:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        made = instance.submit("acme", "x", idempotency_key="k", connection=connection)
        again = instance.submit("acme", "x", idempotency_key="k", connection=connection)
    assert again == Submission(made.id, duplicate=True)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_sqlalchemy_sessions_and_connections(
    instance: Scheduler, own: Any, dsn: str, schema: str
) -> None:
    def connect() -> Any:
        connection = psycopg.connect(dsn)
        connection.execute("SELECT set_config('search_path', %s, false)", (schema,))
        connection.commit()
        return connection

    engine = create_engine("postgresql+psycopg://", creator=connect)
    with Session(engine) as session, session.begin():
        session.add(Order(id=5))
        first = instance.submit("acme", "x", {"order": 5}, connection=session, idempotency_key="o5")
    assert instance.get("acme", first.id).payload == {"order": 5}
    with Session(engine) as session:
        session.add(Order(id=6))
        lost = instance.submit("acme", "x", connection=session)
        session.rollback()
    with pytest.raises(UnknownJob):
        instance.get("acme", lost.id)
    with engine.begin() as connection:
        second = instance.submit("acme", "x", after=[first], connection=connection)
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar() == 1
    assert instance.get("acme", second.id).state is State.PENDING
    engine.dispose()


def test_async_connections_of_both_kinds(
    instance: Scheduler, own: Any, dsn: str, schema: str
) -> None:
    async def app() -> None:
        made = await instance.asubmit("acme", "x")
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            lost = await instance.asubmit("acme", "x", connection=connection, idempotency_key="a")
            await connection.rollback()
            kept = await instance.asubmit(
                "acme", "x", connection=connection, idempotency_key="a", after=[made]
            )
            await connection.commit()
        engine = create_async_engine(
            "postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(dsn)
        )
        async with AsyncSession(engine) as session, session.begin():
            third = await instance.asubmit("acme", "x", connection=session)
        async with engine.begin() as plain:
            fourth = await instance.asubmit_many([NewJob("acme", "x")], connection=plain)
        with pytest.raises(ConfigError, match="await asubmit"):
            instance.submit("acme", "x", connection=plain)
        await engine.dispose()
        with pytest.raises(UnknownJob):
            await instance.aget("acme", lost.id)
        assert (await instance.aget("acme", kept.id)).state is State.PENDING
        assert len((await instance.afind("acme")).jobs) == 4
        assert {third.id, fourth[0].id} <= {job.id for job in (await instance.afind("acme")).jobs}

    asyncio.run(app())


def test_a_connection_of_another_kind_is_refused(instance: Scheduler) -> None:
    with pytest.raises(ConfigError, match="connection: must be a psycopg or SQLAlchemy"):
        instance.submit("acme", "x", connection="postgresql://x")


def test_a_conflict_under_repeatable_read_is_one_to_run_again(
    instance: Scheduler, own: psycopg.Connection[Any]
) -> None:
    own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    own.execute("SELECT count(*) FROM orders")
    first = instance.submit("acme", "x", idempotency_key="k")
    with pytest.raises(Conflict):
        instance.submit("acme", "x", idempotency_key="k", connection=own)
    own.rollback()
    assert instance.submit("acme", "x", idempotency_key="k", connection=own) == Submission(
        first.id, duplicate=True
    )


def test_the_same_key_is_the_same_job_within_its_window(instance: Scheduler) -> None:
    first = instance.submit("acme", "x", {"n": 1}, idempotency_key="k", idempotency_window="1h")
    assert instance.submit("acme", "x", {"n": 2}, idempotency_key="k") == Submission(
        first.id, duplicate=True
    )
    others = [("acme", "y", "k"), ("acme", "x", "K"), ("globex", "x", "k")]
    assert not any(
        instance.submit(tenant, kind, idempotency_key=key).duplicate for tenant, kind, key in others
    )
    finish(instance, first)
    assert instance.submit("acme", "x", idempotency_key="k").duplicate
    instance.clock.advance("1h")
    fresh = instance.submit("acme", "x", idempotency_key="k")
    assert not fresh.duplicate
    assert instance.submit("acme", "x", idempotency_key="k").id == fresh.id


def test_the_same_key_twice_in_one_call_is_one_job(instance: Scheduler) -> None:
    jobs = [NewJob("acme", "x", n, idempotency_key="k") for n in range(3)]
    made = instance.submit_many([*jobs, NewJob("acme", "y", after=[jobs[2]])])
    assert [one.duplicate for one in made] == [False, True, True, False]
    assert len({one.id for one in made}) == 2
    finish(instance, made[0])
    assert instance.get("acme", made[3].id).state is State.PENDING
    assert instance.get("acme", made[3].id).state.value == "pending"


def test_fifty_racing_submitters_make_one_job(dsn: str, schema: str, instance: Scheduler) -> None:
    results: list[Submission] = []
    barrier = threading.Barrier(50)

    def race() -> None:
        with psycopg.connect(dsn) as connection:
            barrier.wait()
            results.append(instance.submit("acme", "x", idempotency_key="k", connection=connection))

    threads = [threading.Thread(target=race) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.id for one in results}) == 1
    assert sorted(one.duplicate for one in results) == [False] + [True] * 49
    assert len(instance.find("acme").jobs) == 1


def test_a_rolled_back_first_lets_the_second_in(
    instance: Scheduler, own: psycopg.Connection[Any], dsn: str
) -> None:
    lost = instance.submit("acme", "x", idempotency_key="k", connection=own)
    results: list[Submission] = []
    second = threading.Thread(
        target=lambda: results.append(instance.submit("acme", "x", idempotency_key="k"))
    )
    second.start()
    second.join(0.3)
    assert results == []  # it waits for the first to decide
    own.rollback()
    second.join(60)
    assert results[0].id != lost.id
    assert not results[0].duplicate


def test_a_job_waits_for_all_that_it_comes_after(instance: Scheduler) -> None:
    first, second = instance.submit("acme", "a"), instance.submit("acme", "b")
    last = instance.submit("acme", "c", after=[first, second.id], priority=Priority.BULK)
    table = instance._running().queue
    assert ready(instance, table) == {first.id, second.id}
    finish(instance, first)
    assert ready(instance, table) == set()
    finish(instance, second)
    assert ready(instance, table) == {last.id}


def ready(instance: Scheduler, table: QueueTable) -> set[UUID]:
    found = steps(
        instance, fed(table, "default", [Share(priority, "acme", 100) for priority in Priority])
    )
    return {row[1] for row in found}


def test_a_job_waits_for_any_of_several_to_end(instance: Scheduler) -> None:
    first, second = instance.submit("acme", "a"), instance.submit("acme", "b")
    last = instance.submit("acme", "c", after_any=[first, second])
    table = instance._running().queue
    ready(instance, table)
    finish(instance, second, state=State.FAILED)
    assert ready(instance, table) == {last.id}
    finish(instance, first)
    assert instance.get("acme", last.id).state is State.SCHEDULED


@pytest.mark.parametrize("state", [State.FAILED, State.DEAD_LETTER, State.CANCELLED])
def test_what_ends_badly_takes_along_all_that_wait_for_its_success(
    instance: Scheduler, state: State
) -> None:
    root = instance.submit("acme", "root")
    child = instance.submit("acme", "child", after=[root])
    grandchild = instance.submit("acme", "grandchild", after=[child])
    anyway = instance.submit("acme", "anyway", after_any=[child])
    finish(instance, root, state=state)
    assert states(instance, [root, child, grandchild]) == [state] * 3
    assert instance.get("acme", grandchild.id).reason == f"its dependency {child.id} {state}"
    assert ready(instance, instance._running().queue) == {anyway.id}


@pytest.mark.parametrize(
    ("ended", "becomes"),
    [
        (State.COMPLETED, State.PENDING),
        (State.FAILED, State.FAILED),
        (State.DEAD_LETTER, State.DEAD_LETTER),
        (State.CANCELLED, State.CANCELLED),
    ],
)
def test_a_dependency_that_has_ended_counts_at_once(
    instance: Scheduler, ended: State, becomes: State
) -> None:
    before = instance.submit("acme", "a")
    finish(instance, before, state=ended)
    made = instance.submit_many(
        [late := NewJob("acme", "b", after=[before]), NewJob("acme", "c", after=[late])]
    )
    anyway = instance.submit("acme", "d", after_any=[before])
    assert states(instance, made) == [becomes, becomes]
    assert instance.get("acme", anyway.id).state is State.PENDING
    assert anyway.id in ready(instance, instance._running().queue)


def test_unknown_dependencies_are_named(instance: Scheduler) -> None:
    stranger = uuid4()
    with pytest.raises(UnknownDependency, match=f"{stranger}, which 'x' is to wait for"):
        instance.submit("acme", "x", after=[stranger])
    foreign = instance.submit("globex", "x")
    with pytest.raises(UnknownDependency):
        instance.submit("acme", "x", after=[foreign])
    with pytest.raises(UnknownDependency):
        instance.submit_many([other := NewJob("globex", "x"), NewJob("acme", "x", after=[other])])
    with pytest.raises(InvalidOption, match="not in this call"):
        instance.submit("acme", "x", after=[NewJob("acme", "y")])
    assert instance.find("acme").jobs == ()


def test_a_circle_is_refused(instance: Scheduler) -> None:
    one = NewJob("acme", "one")
    two = NewJob("acme", "two", after=[one])
    object.__setattr__(one, "after", [two])
    with pytest.raises(DependencyCycle, match="one, two"):
        instance.submit_many([one, two])
    itself = NewJob("acme", "itself")
    object.__setattr__(itself, "after_any", [itself])
    with pytest.raises(DependencyCycle):
        instance.submit_many([itself])


def test_a_chain_is_at_most_a_hundred_deep_and_a_job_waits_for_at_most_a_thousand(
    instance: Scheduler,
) -> None:
    made = instance.chain("acme", [NewJob("acme", f"n{n}") for n in range(101)])
    assert len(made) == 101
    with pytest.raises(DependencyLimit, match="101 jobs, more than 100"):
        instance.submit("acme", "x", after=[made[-1]])
    with pytest.raises(DependencyLimit):
        instance.chain("acme", [NewJob("acme", f"n{n}") for n in range(102)])
    many = [NewJob("acme", "x") for _ in range(1001)]
    with pytest.raises(DependencyLimit, match="1001 jobs, more than 1000"):
        instance.fan_out("acme", many, then=NewJob("acme", "then"))


def test_a_fan_out_of_a_thousand_comes_together_in_one(instance: Scheduler) -> None:
    made = instance.fan_out(
        "acme", [NewJob("acme", "part", n) for n in range(1000)], then=NewJob("acme", "join")
    )
    table = instance._running().queue
    assert instance.get("acme", made[-1].id).state is State.PENDING
    finish(instance, *made[:999])
    assert instance.get("acme", made[-1].id).state is State.PENDING
    assert made[-1].id not in ready(instance, table)
    finish(instance, made[999])
    assert instance.get("acme", made[-1].id).state is State.PENDING


def test_a_thousand_dependents_end_in_one_transaction(instance: Scheduler) -> None:
    root = instance.submit("acme", "root")
    made = instance.submit_many([NewJob("acme", "leaf", after=[root]) for _ in range(1000)])
    finish(instance, root, state=State.FAILED)
    page = instance.find("acme", state=State.FAILED, limit=1000)
    assert {job.id for job in page.jobs} <= {root.id, *(one.id for one in made)}
    assert len(page.jobs) == 1000


def test_a_job_has_at_least_the_priority_of_those_it_waits_for(instance: Scheduler) -> None:
    urgent = instance.submit("acme", "a", priority=Priority.CRITICAL)
    made = instance.submit_many(
        [second := NewJob("acme", "b", after=[urgent]), NewJob("acme", "c", after=[second])]
    )
    assert [instance.get("acme", one.id).priority for one in made] == [Priority.CRITICAL] * 2
    low = instance.submit("acme", "d", after=[instance.submit("acme", "e", priority=Priority.BULK)])
    assert instance.get("acme", low.id).priority is Priority.NORMAL


def test_a_dependency_cannot_end_unseen_by_a_submit_under_way(
    instance: Scheduler, own: psycopg.Connection[Any]
) -> None:
    root = instance.submit("acme", "root")
    waiting = instance.submit("acme", "waits", after=[root], connection=own)
    table = instance._running().queue
    ending = Ending(key=JobKey("acme", root.id), state=State.FAILED)
    assert (
        steps(instance, end(table, [ending])).jobs == []
    )  # held: passed over, to be settled later
    own.commit()
    finish(instance, root, state=State.FAILED)
    assert instance.get("acme", waiting.id).state is State.FAILED


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
def test_whoever_is_about_to_depend_on_a_job_keeps_none_before_it_from_ending(
    instance: Scheduler, own: psycopg.Connection[Any], state: State
) -> None:
    root = instance.submit("acme", "root")
    middle = instance.submit("acme", "middle", after=[root])
    last = instance.submit("acme", "last", after=[middle], connection=own)
    began = time.monotonic()
    finish(instance, root, state=state)
    assert time.monotonic() - began < 20
    own.commit()
    if state is State.COMPLETED:
        assert own.execute("SELECT id FROM job_ready").fetchall() == [(middle.id,)]
    else:
        steps(
            instance, propagate(instance._running().queue, [JobKey("acme", root.id)])
        )  # as upkeep does, by the edge
        assert states(instance, [middle, last]) == [State.FAILED, State.FAILED]


def test_a_submit_sees_how_a_dependency_ended_that_was_being_settled(
    instance: Scheduler, own: psycopg.Connection[Any], dsn: str
) -> None:
    root = instance.submit("acme", "root")
    table = instance._running().queue
    results: list[Submission] = []
    settling = settle_halfway(table, own, root.id)
    submitter = threading.Thread(
        target=lambda: results.append(instance.submit("acme", "late", after=[root]))
    )
    submitter.start()
    submitter.join(0.3)
    assert results == []  # it waits for the settler
    settling()
    submitter.join(60)
    assert instance.get("acme", results[0].id).state is State.DEAD_LETTER


def settle_halfway(
    table: QueueTable, connection: psycopg.Connection[Any], job_id: UUID
) -> Callable[[], None]:
    statement = table.settle([Ending(key=JobKey("acme", job_id), state=State.DEAD_LETTER)])
    connection.execute(statement.query, statement.parameters)
    return connection.commit


def test_tenants_never_see_each_others_jobs(instance: Scheduler) -> None:
    made = instance.submit("acme", "x", tags={"a": "b"})
    finish(instance, ended := instance.submit("acme", "x"))
    calls: list[Callable[[UUID], object]] = [
        lambda job: instance.get("globex", job),
        lambda job: instance.update_job("globex", job, priority=Priority.HIGH),
        lambda job: instance.cancel_job("globex", job),
        lambda job: instance.retry_job("globex", job),
    ]
    for call in calls:
        for job in (made, ended):
            with pytest.raises(UnknownJob):
                call(job.id)
    assert instance.find("globex").jobs == ()
    assert instance.get("acme", made.id).state is State.PENDING


def test_find_filters_and_goes_on_where_it_stopped(instance: Scheduler) -> None:
    made = []
    for n in range(7):
        instance.clock.advance("1s")
        made.append(instance.submit("acme", f"t{n % 2}", n, queue=f"q{n % 3}", tags={"n": str(n)}))
    finish(instance, *made[:3])
    found, cursor, pages = [], None, 0
    while True:
        page = instance.find("acme", limit=2, cursor=cursor)
        found += [job.payload for job in page.jobs]
        pages, cursor = pages + 1, page.cursor
        if cursor is None:
            break
    assert found[:4] == [6, 5, 4, 3]
    assert set(found[4:]) == {0, 1, 2}
    assert len(found) == 7
    assert pages == 4
    assert {job.payload for job in instance.find("acme", type="t1").jobs} == {1, 3, 5}
    assert {job.payload for job in instance.find("acme", queue="q0").jobs} == {0, 3, 6}
    assert {job.payload for job in instance.find("acme", tag={"n": "2"}).jobs} == {2}
    assert len(instance.find("acme", tag="n").jobs) == 7
    assert {job.payload for job in instance.find("acme", state=State.COMPLETED).jobs} == {0, 1, 2}
    assert {
        job.payload for job in instance.find("acme", state=[State.PENDING, State.FAILED]).jobs
    } == {3, 4, 5, 6}
    with pytest.raises(InvalidOption, match="cursor"):
        instance.find("acme", cursor="abc")
    with pytest.raises(InvalidOption, match="state must be one of"):
        instance.find("acme", state="asleep")  # type: ignore[arg-type]


def test_what_may_change_of_a_job_until_when(instance: Scheduler) -> None:
    made = instance.submit("acme", "x", tags={"a": "1"})
    job = instance.update_job(
        "acme", made.id, priority=Priority.CRITICAL, tags={"b": "2"}, correlation_id="c"
    )
    assert (job.priority, job.tags, job.correlation_id) == (Priority.CRITICAL, {"b": "2"}, "c")
    assert instance.update_job("acme", made.id, tags={}).tags == {}
    table = instance._running().queue
    assert ready(instance, table) == {made.id}
    assert instance.update_job("acme", made.id, tags={"c": "3"}).tags == {"c": "3"}
    with pytest.raises(IllegalTransition, match="has been fed"):
        instance.update_job("acme", made.id, priority=Priority.LOW)
    finish(instance, made)
    with pytest.raises(IllegalTransition, match="has ended"):
        instance.update_job("acme", made.id, tags={})


def test_cancel_ends_what_has_not_begun_and_asks_what_has(instance: Scheduler) -> None:
    made = instance.submit("acme", "x")
    child = instance.submit("acme", "y", after=[made])
    assert instance.cancel_job("acme", made.id, reason="changed my mind") is State.CANCELLED
    assert instance.cancel_job("acme", made.id) is State.CANCELLED
    assert states(instance, [made, child]) == [State.CANCELLED] * 2
    assert instance.get("acme", made.id).reason == "changed my mind"
    running = instance.submit("acme", "x")
    ready(instance, instance._running().queue)
    assert instance.cancel_job("acme", running.id) is State.SCHEDULED
    assert instance.get("acme", running.id).cancel_requested_at == START
    finish(instance, running)
    with pytest.raises(IllegalTransition, match="has already ended"):
        instance.cancel_job("acme", running.id)


def test_retry_is_a_new_job_and_the_dead_letter_stays(instance: Scheduler) -> None:
    made = instance.submit(
        "acme", "x", {"n": 1}, tags={"a": "b"}, retry=RetryPolicy(max_attempts=9), queue="mail"
    )
    with pytest.raises(IllegalTransition, match="still live"):
        instance.retry_job("acme", made.id)
    finish(instance, made, state=State.DEAD_LETTER)
    again = instance.retry_job("acme", made.id)
    job = instance.get("acme", again.id)
    assert (job.retried_from, job.payload, job.queue, job.tags) == (
        made.id,
        {"n": 1},
        "mail",
        {"a": "b"},
    )
    assert job.retry.max_attempts == 9
    assert instance.get("acme", made.id).state is State.DEAD_LETTER
    finish(instance, again)
    with pytest.raises(IllegalTransition, match="has completed"):
        instance.retry_job("acme", again.id)


def test_an_id_that_is_none_is_told(instance: Scheduler) -> None:
    with pytest.raises(InvalidOption, match="job_id must be the UUID"):
        instance.get("acme", "seven")
    with pytest.raises(UnknownJob, match="there is no job"):
        instance.get("acme", uuid4())


def test_submitting_nothing_is_nothing(instance: Scheduler, own: psycopg.Connection[Any]) -> None:
    assert instance.submit_many([]) == []
    assert instance.submit_many([], connection=own) == []
    assert asyncio.run(instance.asubmit_many([])) == []
    assert instance.chain("acme", []) == []


def test_a_submit_that_is_not_acknowledged_in_time_is_an_error(
    instance: Scheduler, own: psycopg.Connection[Any]
) -> None:
    own.execute("LOCK TABLE job_queue IN ACCESS EXCLUSIVE MODE")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        instance.submit("acme", "x", timeouts=Timeouts(submission="500ms"))
    assert time.monotonic() - began < 20
    own.rollback()


def test_a_job_that_ends_while_jobs_are_found_is_found_once(instance: Scheduler) -> None:
    made = instance.submit("acme", "mail", queue="mail")

    def meanwhile() -> Steps[jobs.Page]:
        filters: dict[str, object] = dict.fromkeys(("type", "queue", "tag", "tag_value"))
        finding = jobs.find(
            instance._running().queue, "acme", states=None, filters=filters, limit=10, cursor=None
        )
        live = yield next(finding)
        instance.cancel_job("acme", made.id)
        over = yield finding.send(live)
        try:
            finding.send(over)
        except StopIteration as page:
            return page.value  # type: ignore[no-any-return]
        raise AssertionError("two looks are enough")

    page = steps(instance, meanwhile())
    assert [(job.id, job.state) for job in page.jobs] == [(made.id, State.CANCELLED)]


@pytest.mark.parametrize("prepared", ["gone", "another's"])
def test_a_callers_prepared_statements_get_the_right_advice(
    instance: Scheduler, dsn: str, prepared: str
) -> None:
    """A pooler gives a transaction a server connection that others have prepared statements on."""
    with psycopg.connect(dsn, prepare_threshold=0) as own:
        if prepared == "gone":
            instance.submit("acme", "mail", connection=own)
            own.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$", prepare=False)
        else:
            for number in range(10):
                own.execute(f"PREPARE _pg3_{number} AS SELECT 1".encode(), prepare=False)
        with pytest.raises(ConfigError, match="prepare_threshold=None"):
            instance.submit("acme", "mail", connection=own)
