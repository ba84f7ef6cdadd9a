"""Leases, re-drives and lost answers, at the seams."""

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest

from scheduler import Outcome, RunContext
from scheduler.clock import SystemClock
from scheduler.errors import StoreUnavailable
from scheduler.events import Events, FireCrashed, FireEnded, LeaseLost
from scheduler.model.body import Body
from scheduler.model.definition import NO_VERSION, JobSpec, Key
from scheduler.model.schedules import Due, Every, Fire
from scheduler.periodic.finish import Finisher
from scheduler.periodic.lease import Leases
from scheduler.periodic.run import STOPPING, Run, RunEnd
from scheduler.store.engine import Database
from scheduler.store.job import JobTable, JobWrite, KnownJob
from scheduler.store.job_lock import (
    Finish,
    Holder,
    LockTable,
    Overdue,
    Redriven,
    Renewal,
    Wanted,
)
from scheduler.store.schema import migrate
from tests.conftest import MakeScheduler
from tests.periodic.conftest import Road
from tests.support.recorder import Recorder, until

AT = datetime(2030, 1, 1, tzinfo=UTC)
KEY = Key("acme", "x")
SPEC = JobSpec(schedule=Every(every=timedelta(hours=1), start_at=AT))


class Moment:
    """The database's clock, as a test plays it."""

    def __init__(self) -> None:
        self.now = AT

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def moment() -> Moment:
    return Moment()


@pytest.fixture
def locks(road: Road, schema: str, moment: Moment) -> Iterator[LockTable]:
    database = Database.open(road.dsn, schema=schema, prepare=road.prepare)
    migrate(database)
    nobody = KnownJob(None, None, None, None, None, None, AT)
    write = JobWrite(
        key=KEY,
        spec=SPEC,
        spec_hash=SPEC.hash(),
        next_run_at=AT,
        known=nobody,
        version=NO_VERSION,
    )
    JobTable(database, moment).insert([write], holder="x")
    yield LockTable(
        database, moment, Holder(owner=uuid4(), label="me", lease=timedelta(seconds=30))
    )
    database.close()


def claim(locks: LockTable, fire: datetime = AT) -> Any:
    due = Due(fire_at=fire, next_run_at=fire + timedelta(hours=1))
    return locks.claim([Wanted(KEY, SPEC.hash(), fire, due)])[0]


def finish(fence: int) -> Finish:
    return Finish(KEY, fence, Fire(AT), 1, Outcome.SUCCESS, None, AT, AT)


def expired(locks: LockTable) -> list[Overdue]:
    return [lease for lease in locks.overdue(None, ahead=timedelta(0)) if lease.expired]


def redrive(locks: LockTable) -> Redriven:
    (taken,) = locks.redrive(expired(locks), once=[False])
    return taken


def test_a_finish_whose_answer_was_lost_is_accepted_again_and_only_for_its_fence(
    locks: LockTable,
) -> None:
    fence = claim(locks).fence
    assert locks.finish([finish(fence)]) == [True]
    assert locks.finish([finish(fence)]) == [True]
    assert locks.finish([finish(fence + 1)]) == [False]


def test_a_released_start_that_never_was_leaves_no_trace_in_the_ledger(
    locks: LockTable, moment: Moment, connection: psycopg.Connection[Any]
) -> None:
    claim(locks)
    moment.now += timedelta(minutes=1)
    taken = redrive(locks)
    locks.release([taken], started=[False])
    again = redrive(locks)
    assert again.starts == 2
    assert locks.finish([finish(again.fence)]) == [True]
    row = connection.execute(
        "SELECT attempt, attempts FROM job_history WHERE kind = 'fire'"
    ).fetchone()
    assert row is not None
    assert (row[0], [start["attempt"] for start in row[1]]) == (2, [1])


def test_a_start_that_was_not_made_is_discounted_once(locks: LockTable, moment: Moment) -> None:
    """Also of a job that runs at most once by now."""
    claim(locks)
    for _ in range(2):
        moment.now += timedelta(minutes=1)
        (taken,) = locks.redrive(expired(locks), once=[True])
        assert taken.starts == 2
        locks.release([taken], started=[False])


def test_an_expired_lease_is_for_its_own_fire_only(locks: LockTable, moment: Moment) -> None:
    claim(locks)
    moment.now += timedelta(hours=1)
    assert claim(locks, AT + timedelta(hours=1)).verdict is None
    taken = redrive(locks)
    assert (taken.fire_at, taken.fence) == (AT, 2)
    assert locks.finish([finish(1)]) == [False]
    assert locks.renew([taken]) == [Renewal(kept=True, deleted=False)]


def test_a_lost_answer_to_a_finish_costs_the_next_run_nothing(
    make_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = recorder.listen(make_scheduler(lease="3s"))
    second = threading.Event()
    send = LockTable.finish

    def unanswered(self: LockTable, ends: list[Finish]) -> list[bool]:
        answers = send(self, ends)
        if not second.is_set():
            second.wait(60)
            raise StoreUnavailable("the answer was lost")
        return answers

    monkeypatch.setattr(LockTable, "finish", unanswered)

    def body(ctx: RunContext) -> None:
        recorder.body(ctx)
        if len(recorder.runs) == 2:
            second.set()
            threading.Event().wait(4.5)

    instance.register("acme", "x", body, every="300ms")
    recorder.wait(lambda: len(recorder.of(FireEnded)) >= 3)
    assert recorder.of(LeaseLost) == []
    assert {event.attempt for event in recorder.of(FireEnded)} == {1}


def test_nothing_suspicious_joins_the_last_start_of_a_fire(
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_scheduler(label="registers").cancel()
    started: list[str] = []
    release = threading.Event()
    suspects: list[list[Overdue]] = []
    find = LockTable.overdue

    def overdue(
        self: LockTable, tenants: Sequence[str] | None, *, ahead: timedelta
    ) -> list[Overdue]:
        found = find(self, tenants, ahead=ahead)
        suspects.extend(
            [found] * any(each.key.job_id == "suspect" and each.expired for each in found)
        )
        return found

    monkeypatch.setattr(LockTable, "overdue", overdue)

    def body(ctx: RunContext) -> None:
        started.append(ctx.job_id)
        if ctx.job_id == "innocent":
            release.wait(60)

    instance = recorder.listen(make_scheduler())
    for name in ("innocent", "suspect"):
        instance.register("acme", name, body, every="1h", start_at=AT)
    connection.execute(
        "UPDATE job_lock SET owner = gen_random_uuid(), fire_at = now(), last_fire_at = now(), "
        "created_at = now(),"
        " expires_at = now() - (CASE id WHEN 'innocent' THEN interval '1 h' ELSE interval '-1 h' "
        "END),"
        " starts = CASE id WHEN 'innocent' THEN 2 ELSE 1 END, fence = 5"
    )
    recorder.wait(lambda: started == ["innocent"] or None)
    connection.execute("UPDATE job_lock SET expires_at = now() WHERE id = 'suspect'")
    until(lambda: len(suspects) >= 2)  # its expired lease was seen, and passed over
    assert started == ["innocent"]
    release.set()
    recorder.wait(lambda: len(recorder.of(FireEnded)) == 2)
    assert started == ["innocent", "suspect"]
    assert recorder.of(FireCrashed) == []


def make_run(*, lease_until: float) -> Run:
    body = Body.of(lambda: None)
    return Run(
        key=KEY,
        fire=Fire(AT),
        attempt=1,
        fence=1,
        body=body,
        spec=SPEC,
        claimed_at=AT,
        lease_until=lease_until,
    )


class NoLocks:
    """A table that must not be asked."""

    def renew(self, leases: object) -> list[Renewal]:
        raise AssertionError("renewed what is no longer ours")


def test_after_a_suspension_a_lease_is_lost_before_it_could_be_renewed() -> None:
    leases = Leases(cast("LockTable", NoLocks()), SystemClock(), Events(), lease=30.0)
    leases._renew_at = 0.0
    run = make_run(lease_until=0.0)
    leases.add([run])
    leases.step()
    assert run.lost
    assert leases.held() == []


def test_a_run_that_was_lost_in_the_queue_is_not_kept_for_ever() -> None:
    events = Events()
    leases = Leases(cast("LockTable", NoLocks()), SystemClock(), events, lease=30.0)
    finisher = Finisher(cast("LockTable", NoLocks()), leases, events, finished=lambda _: None)
    run = make_run(lease_until=0.0)
    run.lost = True
    leases.add([run])
    finisher.put(RunEnd(run, Outcome.SUCCESS, None, AT, AT))
    finisher.flush()
    assert leases.held() == []


def test_a_run_that_ended_before_the_process_stopped_is_finished(locks: LockTable) -> None:
    events = Events()
    leases = Leases(locks, SystemClock(), events, lease=30.0)
    finisher = Finisher(locks, leases, events, finished=lambda _: None)
    run = make_run(lease_until=1e12)
    run.fence = claim(locks).fence
    leases.add([run])
    end = RunEnd(run, Outcome.SUCCESS, None, AT, AT)
    run.cancelled.because(STOPPING)
    finisher.put(end)
    finisher.flush()
    assert leases.held() == []
    assert expired(locks) == []
    assert locks.finish([finish(run.fence)]) == [True]


def test_the_late_finish_of_a_buried_fire_is_refused(locks: LockTable, moment: Moment) -> None:
    fence = claim(locks).fence
    moment.now += timedelta(minutes=1)
    assert locks.bury(expired(locks), reasons=["x"]) == [(KEY, AT)]
    assert locks.finish([finish(fence)]) == [False]


def test_a_late_finish_after_a_deletion_touches_no_other_fire(
    locks: LockTable, moment: Moment, connection: psycopg.Connection[Any]
) -> None:
    claim(locks)
    moment.now += timedelta(minutes=1)
    old = redrive(locks)  # fence 2 in job_lock, 1 in job
    connection.execute("DELETE FROM job_lock")
    moment.now += timedelta(hours=1)
    new = claim(locks, AT + timedelta(hours=1))
    assert new.fence == old.fence
    assert locks.renew([old]) == [Renewal(kept=False, deleted=True)]
    locks.release([old], started=[True])
    assert locks.finish([finish(old.fence)]) == [True]
    rows = connection.execute("SELECT at, fence FROM job_history WHERE kind = 'fire'").fetchall()
    assert rows == [(AT, old.fence)]
    assert locks.finish([finish(1)]) == [False]
    lease = connection.execute(
        "SELECT fire_at, fence, expires_at > %s FROM job_lock", (moment.now,)
    )
    assert lease.fetchall() == [(AT + timedelta(hours=1), 2, True)]


def test_a_claim_takes_nothing_while_the_lock_row_is_locked(
    locks: LockTable, connection: psycopg.Connection[Any]
) -> None:
    before = connection.execute("SELECT next_run_at, fence FROM job").fetchall()
    for statement in ("SELECT FROM job_lock FOR UPDATE", "DELETE FROM job_lock"):
        connection.execute("BEGIN")
        connection.execute(statement.encode())
        assert claim(locks).verdict is None
        connection.execute("ROLLBACK")
    assert connection.execute("SELECT next_run_at, fence FROM job").fetchall() == before
    assert claim(locks).verdict == "run"
