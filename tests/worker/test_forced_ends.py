"""A lifetime and `cancel_job(force=True)` end a running job whether or not its handler stops."""

import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest

from scheduler import (
    JobContext,
    RetryPolicy,
    Scheduler,
    State,
    Timeouts,
    Worker,
    handler,
)
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.model.states import EXPIRED
from scheduler.queueing import upkeep
from scheduler.queueing.ending import end
from scheduler.queueing.settler import Settler
from scheduler.queueing.upkeep import Upkeep
from tests.chaos.roads import Roads
from tests.conftest import MakeScheduler
from tests.queueing.children import endless
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

Rows = list[tuple[str, str | None]]
NAMES_RESULTS = ["standard", "reliable", "conveyor"]  # the mark of a finished job names its result


@pytest.fixture(params=["standard", "reliable", "bullmq", "conveyor"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Deaf:
    """A handler that does not stop before the test lets it."""

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.contexts: list[JobContext] = []
        self.returned: list[Any] = []
        self.go = threading.Event()
        self.stops = False  # whether it stops early then

    def handle(self, ctx: JobContext, payload: Any) -> dict[str, bool]:
        self.contexts.append(ctx)
        self.began.append(payload)
        self.go.wait(60)
        if self.stops:
            ctx.raise_if_cancelled()
        ctx.submit("child", queue="other")
        self.returned.append(payload)
        return {"done": True}


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    made = Deaf()
    handler("deaf", queue="mail")(made.handle)
    yield made
    made.go.set()


Ended = Callable[[UUID], Rows]


@pytest.fixture
def ended(ring: Scheduler, connection: psycopg.Connection[Any]) -> Ended:
    """Read the rows of a job in the ledger: (outcome, reason) each."""
    return lambda id_: [
        (outcome, reason)
        for outcome, reason in connection.execute(
            "SELECT outcome, reason FROM job_history WHERE job_id = %s", (str(id_),)
        )
    ]


@pytest.fixture
def hold_settler(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Results are not settled until the event is set."""
    settle, plain = threading.Event(), Settler.step

    def step(settler: Settler) -> float:
        return plain(settler) if settle.is_set() else 0.02

    monkeypatch.setattr(Settler, "step", step)
    yield settle
    settle.set()


def begin(
    ring: Scheduler, deaf: Deaf, *, lifetime: float = 2, execution: str = "10m", **options: Any
) -> UUID:
    """Submit a job that runs before its lifetime passes, however slow the machine is."""
    for longer in (lifetime, 4 * lifetime, 16 * lifetime):
        timeouts = Timeouts(lifetime=f"{longer}s", execution=execution)
        made = ring.submit("acme", "deaf", str(longer), queue="mail", timeouts=timeouts, **options)
        if _within(longer, lambda: str(longer) in deaf.began):  # noqa: B023
            return made.id
    raise AssertionError("it did not run before its lifetime passed")


def _within(seconds: float, done: Callable[[], bool]) -> bool:
    try:
        return wait_for(done, "it runs", timeout=seconds)
    except AssertionError:
        return False


def expires_at(ring: Scheduler, id_: UUID) -> datetime:
    found = ring.get("acme", id_).expires_at
    assert found is not None
    return found


def wait_past(connection: psycopg.Connection[Any], moment: datetime) -> None:
    def passed() -> bool:
        row = connection.execute("SELECT now() > %s", (moment,)).fetchone()
        return bool(row and row[0])

    wait_for(passed, "its lifetime has passed")


def queue_of(ring: Scheduler) -> Any:
    found = ring._ring()
    assert found is not None
    return found.queue("mail")


def assert_late_result_is_refused(ring: Scheduler, worker: Worker, deaf: Deaf, id_: UUID) -> None:
    """Let the handler return; nothing of its result is kept, and Redis forgets the job."""
    before = ring.get("acme", id_)
    deaf.go.set()
    wait_for(lambda: not worker._in_flight(), "its result is refused")
    job = ring.get("acme", id_)
    assert (job.state, job.reason, job.result) == (before.state, before.reason, None)
    assert queue_of(ring).known([str(id_)]) == [None]
    wait_for(lambda: queue_of(ring).depths().unsettled == 0, "no result is left")
    depths = queue_of(ring).depths()
    assert (depths.running, depths.retrying, sum(depths.waiting.values())) == (0, 0, 0)
    assert not ring.find("acme", type="child").jobs


def test_lifetime_ends_a_running_job_whose_handler_does_not_stop(
    ring: Scheduler, make_worker: MakeWorker, deaf: Deaf, ended: Ended
) -> None:
    worker = make_worker(lease="1s")
    job = begin(ring, deaf)
    after = ring.submit("acme", "deaf", queue="other", after=[job])
    assert ring.wait("acme", job, timeout=60).state is State.DEAD_LETTER
    assert deaf.returned == []
    assert ring.wait("acme", after.id, timeout=60).state is State.DEAD_LETTER
    wait_for(lambda: deaf.contexts[-1].cancelled, "the handler is told")
    assert_late_result_is_refused(ring, worker, deaf, job)
    assert ended(job) == [("dead_letter", EXPIRED)]


def test_force_ends_a_running_job_whose_handler_does_not_stop(
    ring: Scheduler, make_worker: MakeWorker, deaf: Deaf, ended: Ended
) -> None:
    worker = make_worker(lease="1s")
    job = begin(ring, deaf, lifetime=600)
    after = ring.submit("acme", "deaf", queue="other", after=[job])
    assert ring.cancel_job("acme", job, reason="enough", force=True) is State.CANCELLED
    assert ring.get("acme", after.id).state is State.CANCELLED
    assert queue_of(ring).known([str(job)]) == [None]
    wait_for(lambda: deaf.contexts[-1].cancelled, "the handler is told")
    assert_late_result_is_refused(ring, worker, deaf, job)
    assert ended(job) == [("cancelled", "enough")]


def test_a_result_after_the_lifetime_is_a_dead_letter(
    ring: Scheduler,
    make_worker: MakeWorker,
    deaf: Deaf,
    ended: Ended,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Upkeep, "sweep", lambda _: None)  # nobody looks at lifetimes in time
    make_worker()
    job = begin(ring, deaf)
    after = ring.submit("acme", "deaf", queue="other", after=[job])
    wait_past(connection, expires_at(ring, job))
    deaf.go.set()
    done = ring.wait("acme", job, timeout=60)
    assert (done.state, done.reason, done.result) == (State.DEAD_LETTER, EXPIRED, None)
    assert ring.wait("acme", after.id, timeout=60).state is State.DEAD_LETTER
    assert not ring.find("acme", type="child").jobs
    assert ended(job) == [("dead_letter", EXPIRED)]
    assert [each.id for each in ring.queue("mail").dead()] == [str(job)]


@pytest.mark.parametrize("also", ["timeout", "cancel", "stop"])
def test_a_lifetime_decides_before_all_other_causes(
    ring: Scheduler,
    make_worker: MakeWorker,
    deaf: Deaf,
    ended: Ended,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    also: str,
) -> None:
    monkeypatch.setattr("scheduler.worker.worker.CANCEL_GRACE_S", 60.0)
    deaf.stops = True
    worker = make_worker(lease="1s")
    with monkeypatch.context() as slow:
        slow.setattr(Upkeep, "sweep", lambda _: None)  # no instance checks lifetimes
        job = begin(ring, deaf, lifetime=3, execution="1s" if also == "timeout" else "10m")
        if also == "cancel":
            ring.cancel_job("acme", job)
        elif also == "stop":
            threading.Thread(target=worker.stop, kwargs={"grace": 0.0}).start()
        wait_for(lambda: deaf.contexts[-1].cancelled.causes, "it should stop")
        wait_past(connection, expires_at(ring, job))
        deaf.go.set()
        wait_for(lambda: queue_of(ring).depths().running == 0, "it has stopped early")
    assert ring.wait("acme", job, timeout=60).state is State.DEAD_LETTER
    assert ended(job) == [("dead_letter", EXPIRED)]


def test_a_job_stopped_after_its_lifetime_is_a_dead_letter(
    ring: Scheduler, make_worker: MakeWorker, deaf: Deaf, ended: Ended
) -> None:
    deaf.stops = True
    worker = make_worker(lease="1s")
    job = begin(ring, deaf)
    after = ring.submit("acme", "deaf", queue="other", after=[job])
    assert ring.wait("acme", after.id, timeout=60).state is State.DEAD_LETTER
    wait_for(lambda: deaf.contexts[-1].cancelled, "the handler is told")
    assert_late_result_is_refused(ring, worker, deaf, job)
    assert ended(job) == [("dead_letter", EXPIRED)]


def test_a_handler_in_a_process_is_killed_after_the_lifetime(
    ring: Scheduler, make_worker: MakeWorker, deaf: Deaf
) -> None:
    handler("endless", queue="mail", executor="process")(endless)
    make_worker(lease="1s", concurrency=1)
    timeouts = Timeouts(lifetime="5s")
    job = ring.submit("acme", "endless", queue="mail", timeouts=timeouts).id
    assert ring.wait("acme", job, timeout=60).state is State.DEAD_LETTER
    deaf.go.set()
    next_job = ring.submit("acme", "deaf", queue="mail").id
    assert ring.wait("acme", next_job, timeout=60).state is State.COMPLETED


def test_a_result_before_the_lifetime_that_is_settled_later_counts(
    ring: Scheduler,
    make_worker: MakeWorker,
    deaf: Deaf,
    ended: Ended,
    connection: psycopg.Connection[Any],
    hold_settler: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept: list[None] = []
    plain = Upkeep._expire

    def expire(maintenance: Upkeep, found: Any) -> None:
        plain(maintenance, found)
        swept.extend([None] * bool(found))

    monkeypatch.setattr(Upkeep, "_expire", expire)
    deaf.go.set()
    make_worker()
    job = begin(ring, deaf, lifetime=5)
    wait_for(lambda: queue_of(ring).depths().unsettled == 1, "its result is in Redis")
    wait_past(connection, expires_at(ring, job))
    wait_for(lambda: len(swept) >= 2, "the maintenance has seen it")
    hold_settler.set()
    done = ring.wait("acme", job, timeout=60)
    assert (done.state, done.result) == (State.COMPLETED, {"done": True})
    assert [state for state, _ in ended(job)] == ["completed"]
    assert len(ring.find("acme", type="child").jobs) == 1


def test_a_result_of_a_job_whose_feeder_could_not_commit_counts(
    ring: Scheduler,
    make_worker: MakeWorker,
    deaf: Deaf,
    connection: psycopg.Connection[Any],
    hold_settler: threading.Event,
) -> None:
    deaf.go.set()
    make_worker()
    job = begin(ring, deaf, lifetime=5)
    wait_for(lambda: queue_of(ring).depths().unsettled == 1, "its result is in Redis")
    ring.pause_queue("mail")  # no feeder pushes it again
    connection.execute(
        "INSERT INTO job_ready (queue, priority, tenant, run_at, seq, id)"
        " SELECT queue, priority, tenant, run_at, seq, id FROM job_queue WHERE id = %s",
        (job,),
    )
    wait_past(connection, expires_at(ring, job))

    def taken_back() -> bool:
        return not connection.execute("SELECT FROM job_ready WHERE id = %s", (job,)).rowcount

    wait_for(taken_back, "the maintenance has seen it")
    hold_settler.set()
    assert ring.wait("acme", job, timeout=60).state is State.COMPLETED


def test_force_leaves_a_job_with_a_result_to_the_settler(
    ring: Scheduler,
    make_worker: MakeWorker,
    deaf: Deaf,
    ended: Ended,
    hold_settler: threading.Event,
) -> None:
    deaf.go.set()
    make_worker()
    job = begin(ring, deaf, lifetime=600)
    wait_for(lambda: queue_of(ring).depths().unsettled == 1, "its result is in Redis")
    assert ring.cancel_job("acme", job, force=True) is State.RUNNING
    hold_settler.set()
    assert ring.wait("acme", job, timeout=60).state is State.COMPLETED
    assert [state for state, _ in ended(job)] == ["completed"]


def lose_results(redis: Client) -> None:
    """Trim the streams of results, as an operator or a failover can."""
    streams = [key for key in redis.call("KEYS", "*") if redis.call("TYPE", key) == b"stream"]
    assert sum(redis.call("XTRIM", key, "MAXLEN", 0) for key in streams) == 1


@pytest.mark.parametrize("dialect", NAMES_RESULTS)
def test_force_ends_a_job_whose_result_is_lost(
    hold_settler: threading.Event,
    ring: Scheduler,
    make_worker: MakeWorker,
    redis: Client,
    deaf: Deaf,
    ended: Ended,
) -> None:
    deaf.go.set()
    make_worker()
    job = begin(ring, deaf, lifetime=600)
    wait_for(lambda: queue_of(ring).depths().unsettled == 1, "its result is in Redis")
    lose_results(redis)
    hold_settler.set()
    ring.cancel_job("acme", job, reason="enough", force=True)
    assert ring.wait("acme", job, timeout=60).state is State.CANCELLED
    assert ended(job) == [("cancelled", "enough")]


@pytest.mark.parametrize("dialect", NAMES_RESULTS)
def test_a_job_whose_result_is_lost_runs_again(
    hold_settler: threading.Event,
    ring: Scheduler,
    make_worker: MakeWorker,
    redis: Client,
    deaf: Deaf,
    ended: Ended,
    caplog: pytest.LogCaptureFixture,
) -> None:
    deaf.go.set()
    make_worker()
    job = ring.submit("acme", "deaf", queue="mail", timeouts=Timeouts(visibility="1s")).id
    wait_for(lambda: queue_of(ring).depths().unsettled == 1, "its result is in Redis")
    lose_results(redis)
    hold_settler.set()
    assert ring.wait("acme", job, timeout=60).state is State.COMPLETED
    assert len(deaf.began) == 2
    assert [state for state, _ in ended(job)] == ["completed"]
    assert "lost the results of 1 finished jobs" in caplog.text


@pytest.mark.parametrize("dialect", ["bullmq"])
def test_a_lost_result_is_settled_from_its_job(
    hold_settler: threading.Event,
    ring: Scheduler,
    make_worker: MakeWorker,
    redis: Client,
    deaf: Deaf,
    ended: Ended,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler.dialects.bullmq.outcomes.SWEEP", 0.5)
    deaf.go.set()
    make_worker()
    job = begin(ring, deaf, lifetime=600)
    wait_for(lambda: queue_of(ring).depths().unsettled == 1, "its result is in Redis")
    [stream] = redis.call("KEYS", "bull:mail:ring:*:outcomes")
    assert redis.call("XTRIM", stream, "MAXLEN", 0) == 1
    assert ring.cancel_job("acme", job, force=True) is State.RUNNING, "it has a result"
    hold_settler.set()
    done = ring.wait("acme", job, timeout=120)
    assert (done.state, done.result) == (State.COMPLETED, {"done": True})
    assert len(deaf.began) == 1
    assert ended(job) == [("completed", None)]
    assert "lost the results of 1 finished jobs" in caplog.text


def test_waiting_and_retrying_jobs_are_removed_from_redis(
    ring: Scheduler, make_worker: MakeWorker, ended: Ended
) -> None:
    tried = threading.Event()

    @handler("fails", queue="mail")
    def fails(ctx: JobContext, payload: object) -> None:
        tried.set()
        raise ValueError

    make_worker()
    later = RetryPolicy(initial_delay="1h", jitter=False)
    lifetime = Timeouts(lifetime="8s")
    expiring = ring.submit("acme", "fails", queue="mail", retry=later, timeouts=lifetime).id
    forced = ring.submit("acme", "fails", queue="mail", retry=later).id
    nobody = ring.submit("acme", "fails", queue="nobody", timeouts=lifetime).id
    wait_for(lambda: queue_of(ring).depths().retrying == 2, "both wait for a retry")
    assert ring.cancel_job("acme", forced, force=True) is State.CANCELLED
    for each in (expiring, nobody):
        assert ring.wait("acme", each, timeout=60).state is State.DEAD_LETTER
        assert [state for state, _ in ended(each)] == ["dead_letter"]
    assert queue_of(ring).known([str(expiring), str(forced)]) == [None, None]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_forced_cancel_that_dies_on_its_way_is_repeated(
    ring: Scheduler,
    make_worker: MakeWorker,
    deaf: Deaf,
    ended: Ended,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    worker = make_worker(lease="1s")
    job = begin(ring, deaf, lifetime=600)
    found = ring._ring()
    assert found is not None

    def dies(*args: Any, **options: Any) -> Any:
        if when == "after":
            queue_of(ring).cancel([str(job)], force=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(found, "cancel", dies)
        with pytest.raises(KeyboardInterrupt):
            ring.cancel_job("acme", job, reason="enough", force=True)
    assert ring.wait("acme", job, timeout=60).state is State.CANCELLED
    assert_late_result_is_refused(ring, worker, deaf, job)
    assert ended(job) == [("cancelled", "enough")]


def test_an_expiry_that_dies_before_its_commit_is_repeated(
    ring: Scheduler,
    make_worker: MakeWorker,
    deaf: Deaf,
    ended: Ended,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removed = threading.Event()

    def dies_once(table: Any, endings: Any) -> Any:
        if endings and not removed.is_set():
            removed.set()
            raise KeyError("killed between Redis and the commit")
        return (yield from end(table, endings))

    monkeypatch.setattr(upkeep, "end", dies_once)
    worker = make_worker(lease="1s")
    job = begin(ring, deaf)
    assert ring.wait("acme", job, timeout=60).state is State.DEAD_LETTER
    assert removed.is_set()
    assert_late_result_is_refused(ring, worker, deaf, job)
    assert ended(job) == [("dead_letter", EXPIRED)]


def test_several_instances_end_a_job_once(
    ring: Scheduler,
    make_scheduler: MakeScheduler,
    make_worker: MakeWorker,
    deaf: Deaf,
    ended: Ended,
    redis_server: EmbeddedRedis,
    dialect: str,
) -> None:
    queues = {name: {"dialect": dialect} for name in ("mail", "other", "nobody")}
    others = [make_scheduler(redis=redis_server.url, queues=queues) for _ in range(2)]
    worker = make_worker(lease="1s")
    job = begin(ring, deaf, lifetime=600)
    expiring = begin(ring, deaf)
    answers: list[State] = []

    def force(instance: Scheduler) -> None:
        answers.append(instance.cancel_job("acme", job, force=True))

    threads = [threading.Thread(target=force, args=(each,)) for each in (ring, *others)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert answers == [State.CANCELLED] * 3
    assert ring.wait("acme", expiring, timeout=60).state is State.DEAD_LETTER
    assert_late_result_is_refused(ring, worker, deaf, job)
    assert ended(job) == [("cancelled", "cancelled")]
    assert ended(expiring) == [("dead_letter", EXPIRED)]


def test_redis_data_loss_does_not_keep_a_job_past_its_lifetime(
    ring: Scheduler, make_worker: MakeWorker, deaf: Deaf, ended: Ended, redis: Client
) -> None:
    worker = make_worker(lease="1s", concurrency=1)
    job = begin(ring, deaf, lifetime=4)
    redis.call("FLUSHALL")
    assert ring.wait("acme", job, timeout=60).state is State.DEAD_LETTER
    assert_late_result_is_refused(ring, worker, deaf, job)
    assert ended(job) == [("dead_letter", EXPIRED)]


@pytest.mark.parametrize("everybody", [False, True])
def test_a_worker_that_is_cut_off_records_no_late_success(
    make_scheduler: MakeScheduler,
    redis: Client,
    redis_server: EmbeddedRedis,
    connection: psycopg.Connection[Any],
    deaf: Deaf,
    dialect: str,
    everybody: bool,
) -> None:
    """With `everybody`, the scheduler cannot reach Redis either until the handler has returned."""
    queues = {name: {"dialect": dialect} for name in ("mail", "other")}
    with Roads("", redis_server.port) as roads:
        road = roads.open("redis")
        url = f"redis://:{redis_server.password}@127.0.0.1:{road.port}/0"
        ring = make_scheduler(redis=url if everybody else redis_server.url, queues=queues)
        worker = Worker(url, ["mail"], dialect=dialect, lease="1s", concurrency=2)
        worker.start()
        try:
            job = begin(ring, deaf, lifetime=4)
            moment = expires_at(ring, job)
            roads.change(road, "cut")
            wait_past(connection, moment)
            if not everybody:
                assert ring.wait("acme", job, timeout=60).state is State.DEAD_LETTER
            deaf.go.set()
            wait_for(lambda: deaf.returned, "the handler has returned")
            roads.change(road, "open")
            done = ring.wait("acme", job, timeout=120)
            assert (done.state, done.result) == (State.DEAD_LETTER, None)
            wait_for(lambda: not worker._in_flight(), "its result is refused")
            wait_for(lambda: queue_of(ring).depths().unsettled == 0, "nothing is left")
            rows = connection.execute(
                "SELECT outcome FROM job_history WHERE job_id = %s", (str(job),)
            ).fetchall()
            assert rows == [("dead_letter",)]
        finally:
            roads.change(road, "open")
            worker.stop(grace=1.0)


def test_an_overdue_handler_keeps_its_slot_and_is_listed(
    ring: Scheduler, make_worker: MakeWorker, deaf: Deaf
) -> None:
    make_worker(lease="1s", concurrency=1)
    job = begin(ring, deaf, lifetime=600)
    next_job = ring.submit("acme", "deaf", "next", queue="mail").id
    ring.cancel_job("acme", job, force=True)

    def overdue() -> list[tuple[int | None, tuple[str, ...]]]:
        return [
            (at.holds, at.overdue)
            for worker in ring.workers()
            for at in worker.queues
            if at.name == "mail" and at.overdue
        ]

    assert wait_for(overdue, "it is listed") == [(1, (str(job),))]
    assert ring.get("acme", next_job).state is State.SCHEDULED
    assert "next" not in deaf.began
    deaf.go.set()
    assert ring.wait("acme", next_job, timeout=60).state is State.COMPLETED
    wait_for(lambda: not overdue(), "it is listed no longer")
