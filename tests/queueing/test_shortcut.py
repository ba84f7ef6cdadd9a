"""Jobs that go straight into Redis after the commit that submitted them: when they may, and what if
it goes wrong.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scheduler import NewJob, Priority, Scheduler, State, handler
from scheduler.dialects.client import Client
from scheduler.dialects.standard.keys import Keys
from scheduler.dialects.standard.messages import EPOCH, job_of
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import EpochLost, QueueUnavailable
from scheduler.events import JobsFed
from scheduler.model.submission import drafts
from scheduler.queueing.services import RingServices
from scheduler.queueing.shortcut import Shortcut
from scheduler.store.ring import NOBODY
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

Straight = Callable[..., bool]
ROOT = Path(__file__).parents[2]


def services(ring: Scheduler) -> RingServices:
    found = ring._running().ring
    assert found is not None
    return found


@pytest.fixture
def opened(ring: Scheduler) -> RingServices:
    """The ring of an instance that knows the mark of its queue, and whose feeder rests."""
    first = ring.submit("acme", "first", queue="mail")
    wait_for(lambda: ring.get("acme", first.id).state is State.SCHEDULED, "the queue was fed")
    made = services(ring)
    wait_for(
        lambda: "mail" in made.shortcut._marks and not made.feeder.due_since, "the way is open"
    )
    made._feeding.stop(timeout=5)
    return made


@pytest.fixture
def straight(
    opened: RingServices, ring: Scheduler, connection: psycopg.Connection[Any]
) -> Straight:
    """Submit one, and say whether it went straight: Redis has it, and no feeder would."""

    def submit(tenant: str = "acme", **options: Any) -> bool:
        made = ring.submit(tenant, "job", {"n": 1}, **{"queue": "mail", **options})
        (ready,) = connection.execute(
            "SELECT count(*) FROM job_ready WHERE id = %s", (made.id,)
        ).fetchone() or (0,)
        [known] = opened.ring.queue("mail").known([str(made.id)])
        assert (known is not None) is not ready
        return not ready

    return submit


def test_a_job_goes_straight_into_redis_and_comes_back(
    opened: RingServices,
    ring: Scheduler,
    make_worker: MakeWorker,
    connection: psycopg.Connection[Any],
) -> None:
    seen: list[Any] = []

    @handler("send", queue="mail")
    def send(context: Any, payload: Any) -> str:
        seen.append((context.tenant, context.attempt, payload, context.deadline is not None))
        return "sent"

    make_worker(queues=["mail"])
    made = ring.submit(
        "acme", "send", {"to": "x"}, queue="mail", tags={"a": "b"}, priority=Priority.HIGH
    )
    many = ring.submit_many([NewJob("acme", "send", n, queue="mail") for n in range(1000)])
    job = ring.wait("acme", made.id, timeout=60)
    assert (job.state, job.result, job.tags, job.attempt) == (
        State.COMPLETED,
        "sent",
        {"a": "b"},
        1,
    )
    for each in many[::97]:
        assert ring.wait("acme", each.id, timeout=60).state is State.COMPLETED
    assert connection.execute("SELECT count(*) FROM job_ready").fetchone() == (0,)
    wait_for(lambda: len(seen) == 1001, "each ran")
    assert sorted(payload for _, _, payload, _ in seen if isinstance(payload, int)) == list(
        range(1000)
    )


def test_a_job_is_in_redis_as_a_feeder_would_have_put_it_there(
    opened: RingServices,
    ring: Scheduler,
    redis: Client,
    connection: psycopg.Connection[Any],
) -> None:
    options: dict[str, Any] = {
        "queue": "mail",
        "tags": {"a": "b"},
        "correlation_id": "c",
        "idempotency_key": "k",
        "priority": Priority.LOW,
    }
    jobs, waiting = Keys.from_queue("mail").named("jobs", "waiting")

    def stored(id_: object) -> tuple[bytes, bytes]:
        [entry] = [x for x in redis.call("ZRANGE", waiting, 0, -1) if str(id_).encode() in x]
        return redis.call("HGET", jobs, str(id_)), entry

    made = ring.submit("acme", "job", {"x": [1]}, **options)
    record, entry = stored(made.id)
    job = ring.get("acme", made.id)
    opened.shortcut._marks.clear()
    connection.execute("DELETE FROM job_key")  # or the second submit would return the first job
    other = ring.submit("acme", "job", {"x": [1]}, **options)
    opened.feeder.step()
    told = stored(other.id)
    again = ring.get("acme", other.id)

    def alike(text: bytes, id_: Any, of: Any) -> bytes:
        for instant in (of.created_at, of.expires_at):
            text = text.replace(str(int(instant.timestamp() * 1000)).encode(), b"T")
            text = text.replace(instant.isoformat().replace("+00:00", "Z").encode(), b"T")
            text = text.replace(instant.isoformat().encode(), b"T")
        return text.replace(str(id_).encode(), b"ID")

    first, second = (
        replace(job_of("mail", b"", each), created_at=EPOCH, expires_at=EPOCH, scheduled_at=None)
        for each in (record, told[0])
    )
    assert first == second
    assert first.idempotency_key == "k"
    assert alike(entry, made.id, job) == alike(told[1], other.id, again)


@pytest.mark.parametrize(
    "options", [{"delay": "1m"}, {"queue": "other"}], ids=["delayed", "queue never fed"]
)
def test_what_cannot_run_at_once_is_left_to_the_feeders(
    opened: RingServices,
    ring: Scheduler,
    connection: psycopg.Connection[Any],
    options: dict[str, Any],
) -> None:
    made = ring.submit("acme", "job", **{"queue": "mail", **options})
    assert connection.execute(
        "SELECT count(*) FROM job_ready WHERE id = %s", (made.id,)
    ).fetchone() == (1,)


def test_a_job_that_waits_for_another_does_not_go(
    straight: Straight, ring: Scheduler, opened: RingServices
) -> None:
    first = ring.submit("acme", "first", queue="mail")
    second = ring.submit("acme", "second", queue="mail", after=[first])
    assert opened.ring.queue("mail").known([str(first.id), str(second.id)])[1] is None
    assert straight(after_any=())


def test_nothing_goes_past_an_older_job_of_its_tenant_and_priority(
    straight: Straight, ring: Scheduler, connection: psycopg.Connection[Any], dsn: str, schema: str
) -> None:
    assert straight()
    with psycopg.connect(dsn) as own:
        ring.submit("acme", "older", queue="mail", connection=own)
    assert not straight()
    assert straight("rival")
    assert straight(priority=Priority.HIGH)
    connection.execute("DELETE FROM job_ready")
    ring.submit("acme", "later", queue="mail", delay="1h")
    assert straight()  # what is not due yet is not older


def test_while_others_wait_to_be_fed_nobody_goes_past_them(
    straight: Straight, opened: RingServices
) -> None:
    opened.feeder.due_since["mail"] = opened._now()
    assert not straight()
    opened.feeder.due_since.clear()
    assert not straight()  # behind the one before
    assert straight("rival")


def test_nothing_goes_into_a_paused_queue_nor_where_redis_may_be_another(
    straight: Straight, ring: Scheduler, connection: psycopg.Connection[Any]
) -> None:
    assert straight()
    connection.execute("UPDATE job_epoch SET paused_at = now()")
    assert not straight()
    connection.execute("DELETE FROM job_ready")
    connection.execute("UPDATE job_epoch SET paused_at = NULL, epoch = epoch + 1")
    assert not straight()


def test_no_more_go_than_there_is_room_for(
    straight: Straight,
    opened: RingServices,
    ring: Scheduler,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler.queueing.shortcut.MOST_WAITING", 10)
    opened.shortcut._rooms.clear()
    went = [straight(f"t{n}") for n in range(12)]
    assert went == [True] * 9 + [False] * 3  # one was fed before
    assert straight("critical", priority=Priority.CRITICAL)
    ring.submit_many(
        [NewJob("bulk", "job", n, queue="mail", priority=Priority.BULK) for n in range(500)]
    )
    (ready,) = connection.execute(
        "SELECT count(*) FROM job_ready WHERE tenant = 'bulk'"
    ).fetchone() or (0,)
    assert ready == 500


def test_a_submit_waits_for_a_redis_that_hangs_only_once_and_not_for_long(
    dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    with EmbeddedRedis() as server, Scheduler(dsn, schema=schema, redis=server.url) as ring:
        client = Client(server.url)
        pid = client.call("INFO", "server")["process_id"]
        first = ring.submit("acme", "first", queue="mail")
        wait_for(lambda: ring.get("acme", first.id).state is State.SCHEDULED, "the queue was fed")
        shortcut = services(ring).shortcut
        wait_for(
            lambda: shortcut.way([NewJob("acme", "job", queue="mail")]) is not None,
            "the way is open",
        )
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            made = [ring.submit("acme", "job", n, queue="mail") for n in range(100)]
            assert time.monotonic() - began < 50, "each of them waited for a second"
        finally:
            os.kill(pid, signal.SIGCONT)
        queue, ids = services(ring).ring.queue("mail"), [str(each.id) for each in made]
        wait_for(lambda: all(known is not None for known in queue.known(ids)), "all are fed")
        assert sum(queue.depths().waiting.values()) == 101
        client.close()


def test_a_push_whose_answer_is_lost_is_said_again_and_known(
    opened: RingServices, ring: Scheduler, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    handler("job", queue="mail")(lambda _, payload: ran.append(payload))
    queue = opened.shortcut._queue("mail")
    plain = queue.push

    def unanswered(*args: Any, **kwargs: Any) -> Any:
        plain(*args, **kwargs)
        raise QueueUnavailable("no answer")

    monkeypatch.setattr(queue, "push", unanswered)
    made = ring.submit("acme", "job", 1, queue="mail")
    assert opened.feeder.step() is not None
    make_worker(queues=["mail"])
    assert ring.wait("acme", made.id, timeout=60).state is State.COMPLETED
    opened.feeder.step()
    assert ran == [1]


def test_a_job_whose_submitter_died_before_its_push_is_fed_again(
    opened: RingServices,
    ring: Scheduler,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Shortcut, "push", lambda *_: None)
    made = ring.submit("acme", "job", queue="mail")
    opened.upkeep.sweep()
    assert connection.execute("SELECT count(*) FROM job_ready").fetchone() == (
        0,
    )  # it may be about to push
    connection.execute(
        "UPDATE job_queue SET updated_at = now() - interval '11 s', run_at = now() - interval '11 "
        "s'"
    )
    opened.upkeep._at = NOBODY
    opened.upkeep.sweep()
    rows = connection.execute("SELECT id FROM job_ready").fetchall()
    assert rows == [(made.id,)]  # and the first one, which Redis knows, is left alone


def test_whoever_was_suspended_for_long_pushes_nothing_any_more(
    opened: RingServices,
    ring: Scheduler,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Shortcut.push

    def late(shortcut: Shortcut, way: Any) -> None:
        way.began -= 5.1  # as if so much time had passed
        plain(shortcut, way)

    monkeypatch.setattr(Shortcut, "push", late)
    made = ring.submit("acme", "job", queue="mail")
    assert opened.ring.queue("mail").known([str(made.id)]) == [None]
    assert connection.execute("SELECT id FROM job_ready").fetchall() == [(made.id,)]


@pytest.fixture
def held(opened: RingServices, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let pushes wait until the event is set."""
    queue, go = opened.shortcut._queue("mail"), threading.Event()
    plain = queue.push

    def push(*args: Any, **kwargs: Any) -> Any:
        assert go.wait(60)
        return plain(*args, **kwargs)

    monkeypatch.setattr(queue, "push", push)
    yield go
    go.set()


def batch(numbers: range) -> list[NewJob]:
    return [NewJob("acme", "job", number, queue="mail") for number in numbers]


def test_many_are_pushed_while_their_submitter_goes_on(
    ring: Scheduler, opened: RingServices, held: threading.Event
) -> None:
    made = ring.submit_many(batch(range(500)))
    ids = [str(each.id) for each in made]
    assert opened.ring.queue("mail").known(ids) == [None] * 500
    held.set()
    wait_for(lambda: None not in opened.ring.queue("mail").known(ids), "all are pushed")


def test_whoever_comes_after_many_waits_for_their_push(
    ring: Scheduler, opened: RingServices, held: threading.Event, make_worker: MakeWorker
) -> None:
    ran: list[int] = []
    handler("job", queue="mail")(lambda _, payload: ran.append(payload))
    handler("first", queue="mail")(lambda *_: None)
    ring.submit_many(batch(range(200)))
    others = [
        threading.Thread(target=ring.submit, args=("acme", "job", 200), kwargs={"queue": "mail"}),
        threading.Thread(target=ring.submit_many, args=(batch(range(201, 400)),)),
    ]
    for other in others:
        other.start()
        other.join(0.2)
        assert other.is_alive()
    held.set()
    for other in others:
        other.join()
    make_worker(queues=["mail"], concurrency=1)
    wait_for(lambda: len(ran) == 400, "all ran")
    assert ran[:200] == list(range(200))
    assert sorted(ran) == list(range(400))


def test_what_comes_after_a_push_that_failed_does_not_go_past_it(
    ring: Scheduler,
    opened: RingServices,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue, go = opened.shortcut._queue("mail"), threading.Event()

    def refused(*_: Any, **__: Any) -> Any:
        assert go.wait(60)
        monkeypatch.undo()
        raise QueueUnavailable("away")

    monkeypatch.setattr(queue, "push", refused)
    first = ring.submit_many(batch(range(200)))
    second = threading.Thread(target=ring.submit_many, args=(batch(range(200, 400)),))
    second.start()
    inserted = "SELECT count(*) FROM job_queue WHERE type = 'job'"
    wait_for(lambda: connection.execute(inserted).fetchone() == (400,), "the second is committed")
    go.set()
    second.join()
    ready = "SELECT count(*), count(*) FILTER (WHERE id = ANY(%s)) FROM job_ready"
    ids = [each.id for each in first]
    wait_for(
        lambda: connection.execute(ready, (ids,)).fetchone() == (400, 200),
        "all are left to the feeders",
    )


@pytest.mark.parametrize("call", ["cancel", "update"])
def test_a_job_is_not_pushed_after_its_cancel_or_update(
    ring: Scheduler, opened: RingServices, held: threading.Event, call: str
) -> None:
    first, *others = ring.submit_many(batch(range(200)))
    if call == "cancel":
        assert ring.cancel_job("acme", first.id) is State.CANCELLED
    else:
        assert ring.update_job("acme", first.id, delay="1h").state is State.DELAYED
    held.set()
    opened.shortcut.wait()
    queue, ids = opened.ring.queue("mail"), [str(each.id) for each in others]
    wait_for(lambda: opened.feeder.step() >= 0 and None not in queue.known(ids), "the others are")
    assert queue.known([str(first.id)]) == [None]


def test_a_feeder_does_not_pass_jobs_that_are_being_pushed(
    ring: Scheduler, opened: RingServices, held: threading.Event, dsn: str
) -> None:
    made = ring.submit_many(batch(range(200)))
    with psycopg.connect(dsn) as own:
        later = ring.submit("acme", "later", queue="mail", connection=own)
    feeding = threading.Thread(target=opened.feeder.step)
    feeding.start()
    feeding.join(0.3)
    assert feeding.is_alive()
    assert opened.ring.queue("mail").known([str(later.id)]) == [None]
    held.set()
    feeding.join()
    assert None not in opened.ring.queue("mail").known([str(each.id) for each in [*made, later]])


def test_whoever_has_its_way_leaves_it_although_upkeep_has_opened_it_again(
    ring: Scheduler,
    opened: RingServices,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    way = opened.shortcut.way(batch(range(3)))
    assert way is not None
    epoch = opened.shortcut._marks["mail"][0]
    with monkeypatch.context() as patch:
        patch.setattr(
            opened.shortcut._queue("mail"),
            "push",
            lambda *_, **__: (_ for _ in ()).throw(EpochLost()),
        )
        ring.submit("acme", "job", queue="mail")
    opened.shortcut.marked("mail", epoch)
    assert opened.shortcut._failures["mail"] == way.failures + 1
    way.sent(drafts(batch(range(3))))
    way.answered([(opened._now(), True)])
    opened.shortcut.push(way)
    assert opened.shortcut._failures["mail"] == way.failures + 2, "it was left to the feeders"


def test_who_listens_to_a_push_may_submit_and_cancel(ring: Scheduler, opened: RingServices) -> None:
    heard: list[int] = []

    def listen(event: object) -> None:
        if isinstance(event, JobsFed) and event.count > 100:
            heard.append(event.count)
            ring.submit("acme", "job", queue="mail")
            ring.submit_many(batch(range(100)))
            ring.cancel()
            heard.append(0)

    ring.subscribe(listen)
    ring.submit_many(batch(range(200)))
    wait_for(lambda: heard == [200, 0], "it was heard, and has ended us")


def test_a_fault_of_ours_in_a_push_is_logged_and_closes_the_way(
    ring: Scheduler,
    opened: RingServices,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(opened.shortcut, "_push", lambda _: 1 / 0)
    ring.submit_many(batch(range(150)))
    opened.shortcut.wait()
    assert "queue mail: jobs cannot be pushed" in caplog.text
    assert "mail" not in opened.shortcut._marks


def test_whoever_is_cancelled_after_it_submitted_many_pushes_them_first(
    ring: Scheduler, held: threading.Event, redis: Client
) -> None:
    made = ring.submit_many(batch(range(500)))
    threading.Timer(0.2, held.set).start()
    ring.cancel()
    assert None not in StandardQueue(redis, "mail").known([str(each.id) for each in made])


def test_a_process_that_ends_after_it_submitted_many_pushes_them_first(
    opened: RingServices, redis: Client, redis_server: EmbeddedRedis, dsn: str, schema: str
) -> None:
    command = [sys.executable, "-m", "tests.queueing.hasty", dsn, schema, redis_server.url]
    ids = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert len(ids) == 1000
    assert None not in StandardQueue(redis, "mail").known(ids)


def test_a_queue_of_another_dialect_is_fed(
    dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis
) -> None:
    queues = {"video": {"dialect": "bullmq"}}
    with Scheduler(dsn, schema=schema, redis=redis_server.url, queues=queues) as ring:
        first = ring.submit("acme", "first", queue="video")
        wait_for(lambda: ring.get("acme", first.id).state is State.SCHEDULED, "the queue was fed")
        services(ring).upkeep.marks()
        assert "video" not in services(ring).shortcut._marks


def test_submitters_side_by_side_lose_and_double_nothing(
    ring: Scheduler, make_worker: MakeWorker, connection: psycopg.Connection[Any]
) -> None:
    ran: list[int] = []
    handler("job", queue="mail")(lambda _, payload: ran.append(payload))
    make_worker(queues=["mail"])

    def send(begin: int) -> None:
        for number in range(begin, begin + 150):
            ring.submit("acme", "job", number, queue="mail")

    threads = [threading.Thread(target=send, args=(1000 * each,)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = "SELECT count(*) FROM job_queue"
    wait_for(lambda: connection.execute(left).fetchone() == (0,), "all have ended", timeout=60)
    assert len(ran) == len(set(ran)) == 600


def test_what_is_settled_wakes_the_feeder_only_if_somebody_waited_for_it(
    opened: RingServices, ring: Scheduler, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[float] = []
    monkeypatch.setattr(opened, "feed", lambda: woken.append(time.monotonic()))

    @handler("job", queue="mail")
    def job(*_: object) -> None:
        pass

    make_worker()
    alone = ring.submit("acme", "job", queue="mail")
    assert ring.wait("acme", alone.id, timeout=60).state is State.COMPLETED
    assert not woken
    first, second = ring.chain("acme", [NewJob("acme", "job", queue="mail") for _ in range(2)])
    wait_for(lambda: woken, "the chain was said")
    woken.clear()
    opened.feeder.step()
    assert ring.wait("acme", first.id, timeout=60).state is State.COMPLETED
    wait_for(lambda: woken, "the second may go")
    opened.feeder.step()
    assert ring.wait("acme", second.id, timeout=60).state is State.COMPLETED
