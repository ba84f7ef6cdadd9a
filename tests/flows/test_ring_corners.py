"""Corners of the ring that a crash or a lost answer leads into, one by one, with its parts called by hand."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from scheduler import JobContext, NewJob, Scheduler, State
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Delivery
from scheduler.dialects.reliable import wire
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import QueueUnavailable
from scheduler.events import Events
from scheduler.model.attempts import AttemptEnd, QueuedJob
from scheduler.model.handling import Handler
from scheduler.model.labels import Priority
from scheduler.queueing import upkeep
from scheduler.queueing.attempt import TIED, Attempt
from scheduler.queueing.carrier import Carrier
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.pool import Pool
from scheduler.queueing.services import RingServices
from scheduler.queueing.settler import Settler
from scheduler.queueing.upkeep import Upkeep
from scheduler.service import Service
from tests.support.waiting import rest, wait_for

LEASE = timedelta(seconds=30)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def ledger_of(parts: RingServices) -> Ledger:
    return parts._ledger


def test_an_end_that_postgres_refuses_is_not_forgotten_while_its_row_is_held(
    parts: RingServices, redis: Client, dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    with Scheduler(dsn, schema=schema) as submitter:
        job_id = str(submitter.submit("acme", "job", queue="work", delay="1h").id)
    ledger = ledger_of(parts)
    settler = Settler(parts.ring.queue("work"), ledger, parts._events, lambda _: None)
    settler.step()  # makes its stream
    end = AttemptEnd(
        tenant="acme", job_id=job_id, feed=1, attempt=1, state=State.FAILED, started_at=NOW, ended_at=NOW, worker="w",
        error="a \0 in it",
    )  # fmt: skip
    stream = Keys.of("work").outcomes(ledger.installation)
    redis.call("XADD", stream, "*", "ends", b"[%b]" % wire.end_bytes(end))
    with connection.transaction():
        connection.execute("SELECT FROM job_queue WHERE id = %s FOR UPDATE", (job_id,))
        settler.step()
    settler.step()
    row = connection.execute("SELECT outcome, reason FROM job_history WHERE job_id = %s", (job_id,)).fetchone()
    assert row is not None
    assert row[0] == "failed"
    assert "could not be settled" in row[1]
    assert redis.call("XLEN", stream) == 0


def test_ends_that_an_instance_cannot_settle_when_it_stops_are_settled_by_another_at_once(
    dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis, connection: psycopg.Connection[Any]
) -> None:
    with Scheduler(dsn, schema=schema, redis=redis_server.url) as other:
        services = other._running().ring
        assert services is not None
        services.stop(timeout=5.0)  # nobody but the one that stops reads ends
        stopped = Scheduler(dsn, schema=schema, redis=redis_server.url)
        stopped.start()
        ring = stopped._running().ring
        assert ring is not None
        ring.settle("work")
        made = stopped.submit("acme", "job", queue="work", delay="1h")
        end = AttemptEnd(
            tenant="acme", job_id=str(made.id), feed=1, attempt=1, state=State.COMPLETED, started_at=NOW, ended_at=NOW,
            worker="w",
        )  # fmt: skip
        stream = Keys.of("work").outcomes(ledger_of(services).installation)
        settler = Settler(services.ring.queue("work"), ledger_of(services), services._events, lambda _: None)
        with connection.transaction():
            connection.execute("SELECT FROM job_queue WHERE id = %s FOR UPDATE", (made.id,))
            redis.call("XADD", stream, "*", "ends", b"[%b]" % wire.end_bytes(end))
            wait_for(lambda: pending(redis, stream) == 1, "the end is read")
            stopped.cancel()
        assert pending(redis, stream) == 1
        settler.step()
        assert other.get("acme", made.id).state is State.COMPLETED
        assert redis.call("XLEN", stream) == 0


def test_a_settler_that_ends_late_keeps_no_other_from_handing_over(
    parts: RingServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts.ring, "unblock", lambda _: None)  # as if it could not be
    parts._started = True
    closed: list[str] = []
    for name, seconds in (("slow", 3.0), ("work", 0.0)):
        settler = Settler(parts.ring.queue(name), ledger_of(parts), parts._events, lambda _: None)
        monkeypatch.setattr(settler, "close", partial(closed.append, name))
        parts._settling[name], parts._settlers[name] = Service(f"settle-{name}", partial(rest, seconds)), settler
        parts._settling[name].start()
    parts.stop(timeout=0.5)
    assert closed == ["work"]


def pending(redis: Client, stream: str) -> int:
    """How many ends were read and are not acknowledged."""
    groups = redis.call("XINFO", "GROUPS", stream)
    return sum(int(each[each.index(b"pending") + 1]) for each in groups)


def test_two_who_see_that_redis_is_lost_feed_everything_again_once(
    parts: RingServices, redis: Client, dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    with Scheduler(dsn, schema=schema) as submitter:
        submitter.submit("acme", "job", queue="work")
    parts.feeder.step()
    parts.upkeep.marks()
    parts.feeder.step()
    assert connection.execute("SELECT epoch FROM job_epoch").fetchall() == [(1,)]
    redis.call("FLUSHALL")
    queue = parts.ring.queue("work")
    plain = queue.begin
    other = Upkeep(ledger_of(parts), parts.ring, parts._events, lambda _: None)
    thread = threading.Thread(target=other.marks)

    def slowly(epoch: str) -> None:
        if thread.ident is None:
            thread.start()
            thread.join(0.5)
        plain(epoch)

    queue.begin = slowly  # type: ignore[method-assign]
    parts.upkeep.marks()
    thread.join(10)
    parts.feeder.step()
    parts.upkeep.marks()
    assert connection.execute("SELECT epoch FROM job_epoch").fetchall() == [(2,)]
    assert connection.execute("SELECT feed FROM job_queue").fetchall() == [(2,)]
    assert redis.call("GET", Keys.of("work").epoch(ledger_of(parts).installation)) == b"2"


def test_feeding_all_again_holds_no_job_that_waits_for_others(
    parts: RingServices, redis: Client, dsn: str, schema: str, connection: psycopg.Connection[Any]
) -> None:
    with Scheduler(dsn, schema=schema) as submitter:
        first = submitter.submit("acme", "job", queue="work").id
        waits = first
        while waits >= first:  # looked at before the one that it waits for
            waits = submitter.submit("acme", "job", queue="work", after=[first]).id
    parts.feeder.step()
    parts.upkeep.marks()
    parts.feeder.step()
    redis.call("FLUSHALL")
    thread = threading.Thread(target=parts.upkeep.marks)
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    # As a settler does: the job that ends, then those that wait for it.
    with psycopg.connect(dsn, autocommit=True) as looking, connection.transaction():
        connection.execute("SELECT FROM job_queue WHERE id = %s FOR UPDATE", (first,))
        thread.start()
        wait_for(lambda: looking.execute(blocked, (f"%{schema}%",)).fetchone() == (1,), "upkeep waits for the first")
        connection.execute("SET LOCAL lock_timeout = '500ms'")
        connection.execute("SELECT FROM job_queue WHERE id = %s FOR UPDATE", (waits,))
    thread.join(10)
    assert connection.execute("SELECT feed FROM job_queue WHERE id = %s", (first,)).fetchone() == (2,)


def job(feed: int = 1) -> QueuedJob:
    return QueuedJob(
        id="7b1f9f8e-7a6c-4c57-9d5c-6a8f6f1f0a01", tenant="acme", type="job", queue="work", priority=Priority.NORMAL,
        feed=feed, attempt=0, form="json", payload=b"null", policy=None, tags=None, correlation_id=None, created_at=NOW,
        expires_at=NOW + timedelta(days=7), installation="ledger",
    )  # fmt: skip


class Hands:
    """A carrier whose handler waits until it is told to go on; nothing of it runs by itself."""

    def __init__(self, redis: Client, concurrency: int) -> None:
        self.runs: list[int] = []
        self.go = threading.Event()
        self.queue = ReliableQueue(redis, "work", worker="w", lease=LEASE)
        self.feed = ReliableQueue(redis, "work", installation="ledger")
        self.feed.begin("1")
        handler = Handler.of(self._body, executor="thread", type="job", queue="work", timeout=None, concurrency=None)
        self.pool = Pool(concurrency, self._ended)
        self.carrier = Carrier(
            self.queue, self.pool, worker="w", handlers={"job": handler}, backoffs={}, said=lambda: None,
            events=Events(),
        )  # fmt: skip

    def _body(self, ctx: JobContext, payload: object) -> None:
        self.runs.append(ctx.attempt)
        self.go.wait(20)

    def _ended(self, attempt: Attempt, result: object, error: BaseException | None) -> None:
        self.carrier.ended(attempt, result, error)

    def push(self, feed: int) -> None:
        self.feed.begin("1")
        self.feed.push([job(feed)], epoch="1")


def test_what_an_unanswered_call_took_is_found_although_an_older_feed_of_it_still_runs(redis: Client) -> None:
    hands = Hands(redis, concurrency=4)
    hands.push(1)
    hands.carrier.fetch_step()
    wait_for(lambda: hands.runs == [1], "it runs")
    redis.call("FLUSHALL")
    hands.push(2)
    plain = hands.queue.fetch

    def unanswered(n: int, *, timeout: float) -> list[Delivery]:
        assert len(plain(n, timeout=timeout)) == 1
        raise QueueUnavailable("no answer")

    hands.queue.fetch = unanswered  # type: ignore[method-assign]
    hands.carrier._empty = False
    with pytest.raises(QueueUnavailable):
        hands.carrier.fetch_step()
    hands.queue.fetch = plain  # type: ignore[method-assign]
    hands.carrier.fetch_step()
    wait_for(lambda: hands.runs == [1, 1], "what the call took runs", timeout=5)
    hands.go.set()
    wait_for(lambda: hands.carrier._outbox.size() == 2, "both end")
    hands.carrier.finish_step()
    assert hands.feed.depths().unsettled == 1
    hands.pool.stop()


def test_an_attempt_that_lost_its_lease_before_it_began_completes_nothing(redis: Client) -> None:
    hands = Hands(redis, concurrency=1)
    busy = hands.queue
    hands.push(1)
    [delivery] = busy.fetch(1, timeout=0)
    [attempt] = hands.carrier._hold([delivery], TIED)
    attempt.lost = True
    hands.carrier.drain()  # it shall not take it again at once
    attempt.cancelled.because("its lease was lost")
    hands.pool.reserve(1)
    hands.pool.take([attempt])
    wait_for(lambda: hands.carrier._outbox.size() == 1, "it is over")
    hands.carrier.finish_step()
    assert hands.runs == []
    assert hands.feed.depths().unsettled == 0, "it did not run, and so has not ended"
    assert [each.state for each in hands.feed.known([job().id]) if each is not None] == [State.SCHEDULED]
    hands.pool.stop()


def test_who_hears_that_an_end_is_refused_asks_at_once_what_is_still_his(redis: Client) -> None:
    hands = Hands(redis, concurrency=1)
    hands.push(1)
    hands.carrier.fetch_step()
    redis.call("FLUSHALL")
    hands.go.set()
    wait_for(lambda: hands.carrier._outbox.size() == 1, "it ends")
    before = hands.carrier.leases.doubtful
    hands.carrier.finish_step()
    assert (before, hands.carrier.leases.doubtful) == (False, True)
    hands.pool.stop()


def test_a_client_waits_in_more_than_a_hundred_queues_at_once(redis: Client) -> None:
    failed: list[Exception] = []

    def wait(number: int) -> None:
        try:
            redis.wait("BLPOP", f"nothing-{number}", "1.5")
        except QueueUnavailable as error:
            failed.append(error)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(120)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_an_end_that_a_failover_forgot_is_made_good_by_the_worker_that_sent_it(redis: Client) -> None:
    hands = Hands(redis, concurrency=1)
    hands.go.set()
    hands.push(1)
    hands.carrier.fetch_step()
    wait_for(lambda: hands.carrier._outbox.size() == 1, "it ends")
    before = [(key, redis.call("DUMP", key)) for key in redis.call("KEYS", "*")]
    hands.carrier.finish_step()
    assert hands.feed.depths().unsettled == 1
    redis.call("FLUSHALL")
    for key, value in before:
        redis.call("RESTORE", key, 0, value)
    assert hands.feed.depths().running == 1, "the replica has not heard of the end"
    plain = hands.queue.fetch

    def broken(n: int, *, timeout: float) -> list[Delivery]:
        raise QueueUnavailable("the connection broke")

    hands.queue.fetch = broken  # type: ignore[method-assign]
    hands.carrier._empty = True
    with pytest.raises(QueueUnavailable):
        hands.carrier.fetch_step()
    hands.queue.fetch = plain  # type: ignore[method-assign]
    hands.carrier.fetch_step()
    wait_for(lambda: hands.carrier._outbox.size() == 1, "it ends again", timeout=5)
    hands.carrier.finish_step()
    assert hands.feed.depths().unsettled == 1
    hands.pool.stop()


def test_a_job_whose_end_is_on_its_way_is_not_put_back(redis: Client) -> None:
    hands = Hands(redis, concurrency=1)
    hands.go.set()
    hands.push(1)
    hands.carrier.fetch_step()
    wait_for(lambda: hands.carrier._outbox.size() == 1, "it ends")
    batch, _ = hands.carrier._outbox.take([])  # a sender has it, and Redis has not heard it yet
    hands.carrier.put_back(list(hands.carrier.flight))
    assert hands.carrier._outbox.size() == 0, "another sender would be faster with that"
    hands.carrier._outbox.unheard(batch)
    hands.carrier.finish_step()
    assert hands.feed.depths().unsettled == 1
    hands.pool.stop()


def test_what_a_handler_said_while_a_renewal_fails_goes_with_its_end(redis: Client) -> None:
    hands = Hands(redis, concurrency=1)
    hands.push(1)
    hands.carrier.fetch_step()
    [attempt] = hands.carrier.flight
    attempt.tell("checkpoint", {"row": 7})

    def unanswered(*_: object, **__: object) -> None:
        hands.go.set()
        wait_for(lambda: hands.carrier._outbox.size() == 1, "it ends meanwhile")
        raise QueueUnavailable("no answer")

    hands.queue.renew = unanswered  # type: ignore[method-assign, assignment]
    with pytest.raises(QueueUnavailable):
        hands.carrier.renew(LEASE)
    [(_, result)], _ = hands.carrier._outbox.take([])
    assert result.note == attempt.note
    assert attempt.note.checkpoint == {"row": 7}
    hands.pool.stop()


def test_who_ends_lets_others_look_for_what_he_was_told_of(redis: Client, redis_server: EmbeddedRedis) -> None:
    hands = Hands(redis, concurrency=1)
    hands.carrier.fetch_step()
    ours = threading.Thread(target=hands.carrier.fetch_step)
    ours.start()
    wait_for(lambda: b"cmd=blpop" in redis.call("CLIENT", "LIST"), "he waits")
    hands.carrier.drain()
    with closing(Client(redis_server.url)) as client, ThreadPoolExecutor(1) as pool:
        other = pool.submit(ReliableQueue(client, "work", worker="other").fetch, 1, timeout=8)
        wait_for(lambda: redis.call("CLIENT", "LIST").count(b"cmd=blpop") == 2, "another does too")
        began = time.monotonic()
        hands.push(1)  # Redis tells the one who waits longest
        assert len(other.result()) == 1
    assert time.monotonic() - began < 3
    ours.join(5)
    hands.pool.stop()


def test_jobs_that_do_not_heed_a_cancel_keep_no_other_from_being_cancelled(
    parts: RingServices, redis: Client, dsn: str, schema: str, connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(upkeep, "SOME", 2)
    with Scheduler(dsn, schema=schema) as submitter:
        jobs = submitter.submit_many([NewJob("acme", "job", queue="work") for _ in range(3)])
        worker = ReliableQueue(redis, "work", worker="w")
        while sum(worker.depths().waiting.values()) < 3:
            parts.upkeep.marks()
            parts.feeder.step()
        running = worker.fetch(2, timeout=0)
        [other] = {str(job.id) for job in jobs} - {each.job.id for each in running}
        for job_id in [*(each.job.id for each in running), other]:  # while Redis is away
            connection.execute("UPDATE job_queue SET cancel_requested_at = clock_timestamp() WHERE id = %s", (job_id,))
        parts.upkeep.asked()
        parts.upkeep.asked()
        assert submitter.get("acme", other).state is State.CANCELLED
        parts.upkeep.asked()
        assert all(submitter.get("acme", each.job.id).state is not State.CANCELLED for each in running)
