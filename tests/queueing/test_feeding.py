"""Who is fed: by priority, the tenants in turn, the older first; and what steers a job while a
feeder has it.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from scheduler import IllegalTransition, NewJob, Priority, State
from scheduler import Scheduler as RealScheduler
from scheduler.dialects.client import Client
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.events import JobsFed
from scheduler.model.fairness import FIRST, Place, Share, Waiting, shares
from scheduler.queueing.ending import end
from scheduler.store.job_queue import Ending, JobKey, QueueTable
from scheduler.store.steps import Statement, Steps, run_inside
from scheduler.testing import START, Scheduler
from tests.dialects.values import job
from tests.queueing.conftest import fed, steps
from tests.support.waiting import rest, wait_for

FORGET = "SELECT pg_stat_clear_snapshot()"  # else a transaction sees what it saw first
LOCKS = (
    "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


def just(statement: Statement) -> Steps[list[Any]]:
    return (yield statement)


def looked(instance: Scheduler, after: Place = FIRST, limit: int = 100) -> list[Waiting]:
    table = instance._running().queue
    return [
        Waiting._make(row) for row in steps(instance, just(table.waiting(after=after, limit=limit)))
    ]


def test_who_waits_is_told_one_by_one_in_order_and_from_a_place_on(instance: Scheduler) -> None:
    for tenant, queue, priority, delay in [
        ("b", "mail", 2, None),
        ("a", "mail", 2, "1h"),
        ("a", "mail", 2, None),
        ("a", "mail", 0, "1h"),
        ("c", "media", 4, None),
        ("b", "mail", 2, None),
    ]:
        instance.submit(tenant, "x", queue=queue, priority=Priority(priority), delay=delay)
    found = looked(instance)
    assert found == [
        Waiting("mail", 0, "a", START + timedelta(hours=1), due=False),
        Waiting("mail", 2, "a", START, due=True),
        Waiting("mail", 2, "b", START, due=True),
        Waiting("media", 4, "c", START, due=True),
    ]
    assert looked(instance, limit=2) == found[:2]
    assert looked(instance, found[1].place) == found[2:]
    assert looked(instance, found[-1].place) == []


def test_a_feed_goes_by_priority_and_takes_the_tenants_in_turn(instance: Scheduler) -> None:
    new = [NewJob("a", "x", n) for n in range(5)] + [NewJob("b", "x", n) for n in range(2)]
    instance.submit_many(
        [*new, NewJob("a", "x", "first", priority=Priority.HIGH), NewJob("c", "x", delay="1m")]
    )
    divided = shares(looked(instance), {1: 10, 2: 6}, 100)
    assert divided == [Share(1, "a", 10), Share(2, "a", 3), Share(2, "b", 3)]
    rows = steps(instance, fed(instance._running().queue, "default", divided))
    taken = [(row[0], instance.get(row[0], row[1]).payload) for row in rows]
    assert taken == [("a", "first"), ("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)]
    assert {row[13] for row in rows} == {None}  # nobody left a checkpoint
    assert [each.tenant for each in looked(instance) if each.due] == ["a"]


def test_two_feeders_take_different_jobs(instance: Scheduler, own: psycopg.Connection[Any]) -> None:
    made = instance.submit_many([NewJob("acme", "x") for _ in range(4)])

    def feed(count: int) -> Steps[list[Any]]:
        return fed(
            instance._running().queue,
            "default",
            [Share(2, "acme", count)],
            now=instance.clock.now(),
        )

    assert steps(instance, feed(0)) == []  # from now on there is such a queue
    first = [row[1] for row in run_inside(own, feed(2))]
    second = [row[1] for row in steps(instance, feed(2))]
    own.rollback()
    assert [*first, *second] == [job.id for job in made]
    assert {row[1] for row in steps(instance, feed(2))} == set(first)


class Meanwhile:
    """Something that waits for a lock, on a thread of its own."""

    def __init__(self, own: psycopg.Connection[Any], call: Callable[[], object]) -> None:
        self.answer: object = None
        self.call = call
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        wait_for(lambda: self.waits(own), "it waits for a lock")

    def waits(self, own: psycopg.Connection[Any]) -> bool:
        own.execute(FORGET)
        return own.execute(LOCKS).fetchall() != []

    def run(self) -> None:
        try:
            self.answer = self.call()
        except Exception as error:
            self.answer = error

    def end(self) -> object:
        self.thread.join(60)
        return self.answer


@pytest.mark.parametrize("committed", [True, False])
def test_a_cancel_waits_for_the_feeder_that_has_the_job(
    instance: Scheduler, own: psycopg.Connection[Any], committed: bool
) -> None:
    made = instance.submit("acme", "x")
    assert (
        len(run_inside(own, fed(instance._running().queue, "default", [Share(2, "acme", 1)]))) == 1
    )
    cancel = Meanwhile(own, lambda: instance.cancel_job("acme", made.id))
    own.commit() if committed else own.rollback()
    assert cancel.end() is (State.SCHEDULED if committed else State.CANCELLED)
    assert looked(instance) == []


def test_a_priority_is_not_changed_while_a_job_becomes_ready(
    instance: Scheduler, own: psycopg.Connection[Any]
) -> None:
    root = instance.submit("acme", "root")
    last = instance.submit("acme", "last", after=[root])
    table = instance._running().queue
    run_inside(own, end(table, [Ending(key=JobKey("acme", root.id), state=State.COMPLETED)]))
    update = Meanwhile(own, lambda: instance.update_job("acme", last.id, priority=Priority.HIGH))
    own.commit()
    update.end()
    assert [(each.tenant, each.priority) for each in looked(instance)] == [("acme", Priority.HIGH)]
    assert instance.get("acme", last.id).state is State.PENDING
    assert feed_all(instance, table) == [last.id]


def test_a_priority_cannot_change_once_the_feeder_has_committed(
    instance: Scheduler, own: psycopg.Connection[Any]
) -> None:
    made = instance.submit("acme", "x")
    run_inside(own, fed(instance._running().queue, "default", [Share(2, "acme", 1)]))
    update = Meanwhile(own, lambda: instance.update_job("acme", made.id, priority=Priority.HIGH))
    own.commit()
    assert isinstance(update.end(), IllegalTransition)
    assert instance.get("acme", made.id).priority is Priority.NORMAL


def feed_all(instance: Scheduler, table: QueueTable) -> list[Any]:
    divided = shares(looked(instance), dict.fromkeys(Priority, 100), 100)
    return [row[1] for row in steps(instance, fed(table, "default", divided))]


def test_a_job_that_changes_while_it_is_settled_is_passed_over_and_ends_once(
    instance: Scheduler, own: psycopg.Connection[Any], connection: psycopg.Connection[Any]
) -> None:
    """The statement locks the row as it is, and would delete it as it was when it began: so it
    leaves it alone.
    """
    made = instance.submit("acme", "x")
    endings = [Ending(key=JobKey("acme", made.id), state=State.COMPLETED)]
    settle = instance._running().queue.settle(endings)
    connection.execute("SELECT pg_advisory_lock(1)")
    slow = settle.query.replace(b" AS now),", b" AS now, pg_advisory_xact_lock(1)),", 1)
    assert slow != settle.query
    settling = threading.Thread(target=lambda: own.execute(slow, settle.parameters, binary=True))
    settling.start()
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event = 'advisory'"
    wait_for(lambda: connection.execute(waiting).rowcount == 1, "it has begun")
    instance.update_job("acme", made.id, tags={"a": "b"})
    connection.execute("SELECT pg_advisory_unlock(1)")
    settling.join()
    own.commit()
    assert instance.get("acme", made.id).state is State.PENDING
    assert own.execute("SELECT FROM job_history WHERE kind = 'job'").rowcount == 0
    assert steps(instance, end(instance._running().queue, endings)).jobs == [
        (endings[0].key, State.COMPLETED)
    ]
    job = instance.get("acme", made.id)
    assert (job.state, job.tags) == (State.COMPLETED, {"a": "b"})
    assert instance.find("acme", state=[State.PENDING]).jobs == ()


def test_jobs_that_change_while_they_are_ended_are_ended_whole_or_not_at_all(
    instance: Scheduler, dsn: str, schema: str
) -> None:
    table, over = instance._running().queue, threading.Event()

    def change() -> None:
        """Move rows to other places, again and again."""
        with psycopg.connect(
            dsn, autocommit=True, options=f"-c search_path={schema}"
        ) as connection:
            while not over.is_set():
                connection.execute(
                    "UPDATE job_queue SET cancel_reason = %s WHERE random() < 0.02", ("x" * 100,)
                )

    made = [
        JobKey("acme", each.id)
        for each in instance.submit_many([NewJob("acme", "x") for _ in range(4000)])
    ]
    changing = [threading.Thread(target=change) for _ in range(2)]
    for thread in changing:
        thread.start()
    left, rounds = set(made), 0
    while left and rounds < 200:
        rounds += 1
        some = sorted(left)[:400]
        ended, _ = steps(
            instance, end(table, [Ending(key=key, state=State.COMPLETED) for key in some])
        )
        left -= {key for key, _ in ended}
    over.set()
    for thread in changing:
        thread.join()
    with psycopg.connect(dsn, options=f"-c search_path={schema}") as connection:
        live = [JobKey(*row) for row in connection.execute("SELECT tenant, id FROM job_queue")]
        ended = [
            row[0]
            for row in connection.execute("SELECT job_id FROM job_history WHERE kind = 'job'")
        ]
    assert set(live) == left
    assert sorted(ended) == sorted(str(key.id) for key in set(made) - left)


def test_a_level_that_is_full_is_filled_up_again_in_batches(
    ring: RealScheduler, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.queueing.feeder.MOST_WAITING", 100)
    queue, waiting = StandardQueue(redis, "mail"), "jobqueue:{mail}:waiting"
    queue.push([job() for _ in range(95)], epoch="")
    counts: list[int] = []
    ring.subscribe(lambda event: counts.append(event.count) if isinstance(event, JobsFed) else None)
    ring.submit_many([NewJob("acme", "mail", queue="mail", delay="1ms") for _ in range(30)])
    for _ in range(12):  # a little at a time, as workers make room
        rest(0.1)
        redis.call("ZPOPMIN", waiting)
    wait_for(lambda: sum(counts) >= 10, "there is room for a tenth of all")
    assert len(counts) == 1
    redis.call("ZPOPMIN", waiting, 50)
    wait_for(lambda: sum(counts) == 30, "all are fed")
    assert len(counts) == 2
