"""Corners of the ring that a crash or a lost answer leads into, one by one, with its parts called
by hand.
"""

import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from scheduler import NewJob, Scheduler, State
from scheduler.dialects.client import Client
from scheduler.dialects.ends import end_bytes
from scheduler.dialects.standard.keys import Keys
from scheduler.dialects.standard.messages import RESULT_FIELD
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import QueueUnavailable
from scheduler.model.attempts import AttemptEnd, QueuedJob
from scheduler.model.labels import Priority
from scheduler.queueing import upkeep
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.services import RingServices
from scheduler.queueing.settler import Settler
from scheduler.queueing.upkeep import Upkeep
from scheduler.service import Service
from tests.support.waiting import rest, wait_for

LEASE = timedelta(seconds=30)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def ledger_of(parts: RingServices) -> Ledger:
    return parts._ledger


@pytest.mark.parametrize(
    ("state", "refused"),
    [(State.FAILED, {"error": "a \0 in it"}), (State.COMPLETED, {"checkpoint": "a \0 in it"})],
)
def test_an_end_that_postgres_refuses_is_not_forgotten_while_its_row_is_held(
    parts: RingServices,
    redis: Client,
    dsn: str,
    schema: str,
    connection: psycopg.Connection[Any],
    state: State,
    refused: dict[str, Any],
) -> None:
    with Scheduler(dsn, schema=schema) as submitter:
        job_id = str(submitter.submit("acme", "job", queue="work", delay="1h").id)
    ledger = ledger_of(parts)
    settler = Settler(parts.ring.queue("work"), ledger, parts._events, lambda _: None)
    settler.step()  # makes its stream
    end = AttemptEnd(
        tenant="acme",
        job_id=job_id,
        feed=1,
        attempt=1,
        state=state,
        started_at=NOW,
        ended_at=NOW,
        worker="w",
        **refused,
    )
    stream = Keys.from_queue("work").results(ledger.installation)
    redis.call("XADD", stream, "*", RESULT_FIELD, b"[%b]" % end_bytes(end))
    with connection.transaction():
        connection.execute("SELECT FROM job_queue WHERE id = %s FOR UPDATE", (job_id,))
        settler.step()
    settler.step()
    row = connection.execute(
        "SELECT outcome, reason FROM job_history WHERE job_id = %s", (job_id,)
    ).fetchone()
    assert row is not None
    assert row[0] == state
    assert "left out" in row[1]
    assert redis.call("XLEN", stream) == 0


def test_ends_that_an_instance_cannot_settle_when_it_stops_are_settled_by_another_at_once(
    dsn: str,
    schema: str,
    redis: Client,
    redis_server: EmbeddedRedis,
    connection: psycopg.Connection[Any],
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
            tenant="acme",
            job_id=str(made.id),
            feed=1,
            attempt=1,
            state=State.COMPLETED,
            started_at=NOW,
            ended_at=NOW,
            worker="w",
        )
        stream = Keys.from_queue("work").results(ledger_of(services).installation)
        settler = Settler(
            services.ring.queue("work"), ledger_of(services), services._events, lambda _: None
        )
        with connection.transaction():
            connection.execute("SELECT FROM job_queue WHERE id = %s FOR UPDATE", (made.id,))
            redis.call("XADD", stream, "*", RESULT_FIELD, b"[%b]" % end_bytes(end))
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
        parts._settling[name], parts._settlers[name] = (
            Service(f"settle-{name}", partial(rest, seconds)),
            settler,
        )
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
    thread.join(60)
    parts.feeder.step()
    parts.upkeep.marks()
    assert connection.execute("SELECT epoch FROM job_epoch").fetchall() == [(2,)]
    assert connection.execute("SELECT feed FROM job_queue").fetchall() == [(2,)]
    assert redis.call("GET", Keys.from_queue("work").epoch(ledger_of(parts).installation)) == b"2"


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
    blocked = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    )
    # As a settler does: the job that ends, then those that wait for it.
    with psycopg.connect(dsn, autocommit=True) as looking, connection.transaction():
        connection.execute("SELECT FROM job_queue WHERE id = %s FOR UPDATE", (first,))
        thread.start()
        wait_for(
            lambda: looking.execute(blocked, (f"%{schema}%",)).fetchone() == (1,),
            "upkeep waits for the first",
        )
        connection.execute("SET LOCAL lock_timeout = '500ms'")
        connection.execute("SELECT FROM job_queue WHERE id = %s FOR UPDATE", (waits,))
    thread.join(60)
    assert connection.execute("SELECT feed FROM job_queue WHERE id = %s", (first,)).fetchone() == (
        2,
    )


def job(feed: int = 1) -> QueuedJob:
    return QueuedJob(
        id="7b1f9f8e-7a6c-4c57-9d5c-6a8f6f1f0a01",
        tenant="acme",
        type="job",
        queue="work",
        priority=Priority.NORMAL,
        feed=feed,
        attempt=0,
        form="json",
        payload=b"null",
        policy=None,
        tags=None,
        correlation_id=None,
        created_at=NOW,
        expires_at=NOW + timedelta(days=7),
        installation="ledger",
    )


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


def test_jobs_that_do_not_heed_a_cancel_keep_no_other_from_being_cancelled(
    parts: RingServices,
    redis: Client,
    dsn: str,
    schema: str,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "SOME", 2)
    with Scheduler(dsn, schema=schema) as submitter:
        jobs = submitter.submit_many([NewJob("acme", "job", queue="work") for _ in range(3)])
        worker = StandardQueue(redis, "work", worker="w")
        while sum(worker.depths().waiting.values()) < 3:
            parts.upkeep.marks()
            parts.feeder.step()
        running = worker.fetch(2, timeout=0)
        [other] = {str(job.id) for job in jobs} - {each.job.id for each in running}
        for job_id in [*(each.job.id for each in running), other]:  # while Redis is away
            connection.execute(
                "UPDATE job_queue SET cancel_requested_at = clock_timestamp() WHERE id = %s",
                (job_id,),
            )
        parts.upkeep.asked()
        parts.upkeep.asked()
        assert submitter.get("acme", other).state is State.CANCELLED
        parts.upkeep.asked()
        assert all(
            submitter.get("acme", each.job.id).state is not State.CANCELLED for each in running
        )
