"""A settler whose Postgres does not take what it has: it neither gathers without end nor judges by
it.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import scheduler.queueing.settler
from scheduler import NewJob, Priority, Scheduler, State, Submission
from scheduler.dialects.client import Client
from scheduler.dialects.ends import end_bytes
from scheduler.dialects.interface import Outcomes
from scheduler.dialects.standard.keys import Keys
from scheduler.dialects.standard.messages import RESULT_FIELD
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import StoreError, StoreUnavailable, UnknownJob
from scheduler.model.attempts import AttemptEnd
from scheduler.model.durations import LONGEST
from scheduler.model.handling import spawned_of
from scheduler.model.payloads import LARGEST_LIMIT
from scheduler.model.submission import drafts
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.services import RingServices
from scheduler.queueing.settler import ENDS, HELD, MOST_BYTES, MOST_ENDS, Settler, settle
from tests.support.waiting import rest, wait_for

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def completed(job: Submission, **changes: Any) -> AttemptEnd:
    values: dict[str, Any] = {
        "tenant": "acme",
        "job_id": str(job.id),
        "feed": 1,
        "attempt": 1,
        "state": State.COMPLETED,
        "started_at": NOW,
        "ended_at": NOW,
        "worker": "w",
    }
    return AttemptEnd(**{**values, **changes})


def spawned(kind: str, **options: Any) -> list[dict[str, Any]]:
    (draft,) = drafts([NewJob("acme", kind, queue="other", **options)], limit=LARGEST_LIMIT)
    return [spawned_of(draft)]


class Settling:
    """A settler that is called by hand, and how much each of its transactions was given."""

    def __init__(self, parts: RingServices, redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = parts._ledger
        self.settler = Settler(
            parts.ring.queue("work"), self.ledger, parts._events, lambda _: None, parts.ring.check
        )
        self.settler.step()  # makes its stream
        self.redis = redis
        self.stream = Keys.from_queue("work").results(self.ledger.installation)
        self.away = False
        self.given: list[int] = []
        plain = self.settler._run

        def run(ends: Sequence[AttemptEnd]) -> list[AttemptEnd]:
            self.given.append(len(ends))
            if self.away:
                raise StoreUnavailable("Postgres is away")
            return plain(ends)

        monkeypatch.setattr(self.settler, "_run", run)

    def add(self, ends: Sequence[AttemptEnd], entry: str = "*") -> None:
        self.add_text(b",".join(end_bytes(each) for each in ends), entry)

    def add_text(self, ends: bytes, entry: str = "*") -> None:
        self.redis.call("XADD", self.stream, entry, RESULT_FIELD, b"[%b]" % ends)


@pytest.fixture
def settling(parts: RingServices, redis: Client, monkeypatch: pytest.MonkeyPatch) -> Settling:
    return Settling(parts, redis, monkeypatch)


@pytest.fixture
def submitter(dsn: str, schema: str) -> Any:
    with Scheduler(dsn, schema=schema) as made:
        yield made


def test_while_postgres_is_away_a_settler_reads_no_more_than_it_can_settle(
    settling: Settling, submitter: Scheduler
) -> None:
    jobs = submitter.submit_many(
        [NewJob("acme", "job", queue="work", delay="1h") for _ in range(6000)]
    )
    for start in range(0, len(jobs), 500):
        settling.add([completed(job) for job in jobs[start : start + 500]])
    settling.away = True
    for _ in range(8):
        with pytest.raises(StoreUnavailable):
            settling.settler.step()
    assert sum(len(batch.ends) for batch in settling.settler._left) <= 5 * ENDS
    settling.away = False
    wait_for(
        lambda: (
            settling.settler.step() is not None
            and settling.redis.call("XLEN", settling.stream) == 0
        ),
        "all",
    )
    assert {submitter.get("acme", job.id).state for job in jobs[::500]} == {State.COMPLETED}
    assert max(settling.given) <= MOST_ENDS


def test_a_result_whose_stream_id_is_ahead_of_the_clock_is_not_late(
    settling: Settling, submitter: Scheduler
) -> None:
    """Ids of a stream never go back, also after a jump of the clock of Redis was corrected."""
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    later = datetime.now(UTC) + timedelta(days=30)
    settling.add([completed(job)], entry=f"{int(later.timestamp() * 1000)}-0")
    settling.settler.step()
    assert submitter.get("acme", job.id).state is State.COMPLETED


def test_large_ends_are_settled_in_several_transactions(
    settling: Settling, submitter: Scheduler
) -> None:
    jobs = submitter.submit_many(
        [NewJob("acme", "job", queue="work", delay="1h") for _ in range(60)]
    )
    large = b'"%b"' % (b"x" * 1_000_000)
    for start in range(0, len(jobs), 4):
        settling.add([completed(job, result=large) for job in jobs[start : start + 4]])
    wait_for(
        lambda: (
            settling.settler.step() is not None
            and settling.redis.call("XLEN", settling.stream) == 0
        ),
        "all",
    )
    assert sum(settling.given) == 60
    assert max(settling.given) * len(large) <= MOST_BYTES + 4 * len(large)
    assert {submitter.get("acme", job.id).state for job in jobs} == {State.COMPLETED}


def test_a_settler_whose_answer_to_redis_was_lost_reads_on(
    settling: Settling, submitter: Scheduler
) -> None:
    one, two = submitter.submit_many(
        [NewJob("acme", "job", queue="work", delay="1h") for _ in range(2)]
    )
    settling.add([completed(one)])
    plain = settling.settler._queue.acknowledge

    def unanswered(settled: Sequence[Outcomes]) -> None:
        settling.settler._queue.acknowledge = plain  # type: ignore[method-assign]
        raise StoreUnavailable("no answer")

    settling.settler._queue.acknowledge = unanswered  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        settling.settler.step()
    settling.add([completed(two)])
    settling.settler.step()
    assert submitter.get("acme", two.id).state is State.COMPLETED
    assert settling.redis.call("XLEN", settling.stream) == 0


def test_of_two_successes_of_a_job_one_submits_its_jobs(
    settling: Settling, submitter: Scheduler
) -> None:
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    first, second = (
        completed(job, spawned=spawned("first")),
        completed(job, feed=2, spawned=spawned("second")),
    )
    settling.ledger.run(settle(settling.ledger, [first, second], lambda _: None))
    assert [each.type for each in submitter.find("acme", queue="other").jobs] == ["first"]


@pytest.mark.parametrize("last", [State.COMPLETED, State.DEAD_LETTER, State.RETRYING])
def test_an_attempt_that_is_settled_after_a_later_one_is_recorded(
    settling: Settling, submitter: Scheduler, last: State
) -> None:
    """A settler has read the result of attempt 2 and hangs; another one settles attempt 3."""
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    first, second = (
        completed(
            job,
            attempt=number,
            sequence=number,
            state=State.RETRYING,
            error="OSError: x",
            delay=timedelta(hours=1),
        )
        for number in (1, 2)
    )
    third = completed(job, attempt=3, sequence=3, state=last, delay=timedelta(hours=1))
    for ends in ([first], [third], [second], [second], [first, second]):
        assert not settling.ledger.run(settle(settling.ledger, ends, lambda _: None)).held
    found = submitter.get("acme", job.id)
    assert found.state is last
    assert [(each["attempt"], each["sequence"]) for each in found.attempts] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([[(1, 1, 1)], [(1, 1, 1), (1, 2, 2)]], id="read again with the next attempt"),
        pytest.param(
            [[(1, 1, 1), (1, 2, 2)], [(1, 1, 1), (1, 3, 3)]], id="and not the one between"
        ),
        pytest.param([[(1, 2, 2)], [(1, 1, 1), (1, 3, 3)]], id="overtaken, with the next attempt"),
        pytest.param([[(1, 1, 1), (1, 1, 2)]], id="two leases with one number"),
        pytest.param([[(1, 1, 1), (2, 1, 2)]], id="two feeds with one number"),
        pytest.param([[(2, 2, 2), (1, 1, 1)]], id="two feeds"),
    ],
)
@pytest.mark.parametrize("ends", [False, True])
def test_each_attempt_is_recorded_once_whichever_are_settled_together(
    settling: Settling,
    submitter: Scheduler,
    batches: list[list[tuple[int, int, int]]],
    ends: bool,
) -> None:
    """Each batch has the feed, the number and the sequence number of attempts. A settler that dies
    between its commit and the acknowledgement leaves its batch to another one.
    """
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    retry: dict[str, Any] = {"state": State.RETRYING, "delay": timedelta(hours=1)}
    for number, batch in enumerate(batches, 1):
        read = [
            completed(job, feed=feed, attempt=attempt, sequence=sequence, **retry)
            for feed, attempt, sequence in batch
        ]
        if ends and number == len(batches):
            read.append(completed(job, feed=2, attempt=9, sequence=9))
        assert not settling.ledger.run(settle(settling.ledger, read, lambda _: None)).held
    wanted = sorted(
        {each[1:] for batch in batches for each in batch} | ({(9, 9)} if ends else set())
    )
    found = submitter.get("acme", job.id).attempts
    assert [(each["attempt"], each["sequence"]) for each in found] == wanted


def test_an_overtaken_attempt_waits_for_the_row_of_its_job(
    settling: Settling, submitter: Scheduler, dsn: str, schema: str
) -> None:
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    first = completed(job, state=State.RETRYING, delay=timedelta(hours=1))
    last = completed(job, attempt=2, state=State.FAILED)
    settling.ledger.run(settle(settling.ledger, [last], lambda _: None))
    with psycopg.connect(dsn, options=f"-c search_path={schema}") as other:
        other.execute("SELECT FROM job_history WHERE job_id = %s FOR UPDATE", (str(job.id),))
        settled = settling.ledger.run(settle(settling.ledger, [first], lambda _: None))
        assert settled.held == [first]
    assert not settling.ledger.run(settle(settling.ledger, [first], lambda _: None)).held
    assert [each["attempt"] for each in submitter.get("acme", job.id).attempts] == [1, 2]


def test_attempts_of_workers_that_number_no_leases_stay_apart(
    settling: Settling, submitter: Scheduler
) -> None:
    """A worker of BullMQ gives its leases no numbers. Attempts without a number are not recorded."""
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    retrying = {"state": State.RETRYING, "delay": timedelta(hours=1)}
    one, two = (completed(job, started_at=NOW + timedelta(minutes=n), **retrying) for n in range(2))
    forged = completed(job, attempt=0, **retrying)
    last = completed(job, attempt=2, state=State.FAILED)
    for ends in ([last], [one], [two], [one, forged]):
        settling.ledger.run(settle(settling.ledger, ends, lambda _: None))
    assert [each["attempt"] for each in submitter.get("acme", job.id).attempts] == [1, 1, 2]


def test_a_late_attempt_of_a_job_that_was_ended_by_force_is_not_recorded(
    settling: Settling, submitter: Scheduler
) -> None:
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    submitter.cancel_job("acme", job.id)
    late = completed(job, state=State.RETRYING, delay=timedelta(hours=1))
    assert not settling.ledger.run(settle(settling.ledger, [late], lambda _: None)).held
    assert not submitter.get("acme", job.id).attempts


def test_a_lock_that_is_not_to_be_had_in_time_is_no_reason_to_fail_a_job(
    dsn: str,
    schema: str,
    redis: Client,
    redis_server: EmbeddedRedis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler.queueing.settler, "DEADLINE", 1.0)
    impatient = make_conninfo(dsn, options="-c lock_timeout=200ms")
    with Scheduler(impatient, schema=schema, redis=redis_server.url) as made:
        services = made._running().ring
        assert services is not None
        services.stop(timeout=5.0)
        ledger: Ledger = services._ledger
        settler = Settler(services.ring.queue("work"), ledger, services._events, lambda _: None)
        settler.step()
        job = made.submit("acme", "job", queue="work", delay="1h")
        end = completed(job, spawned=spawned("child", idempotency_key="k"))
        redis.call(
            "XADD",
            Keys.from_queue("work").results(ledger.installation),
            "*",
            RESULT_FIELD,
            b"[%b]" % end_bytes(end),
        )
        with psycopg.connect(dsn) as own:
            made.submit("acme", "child", queue="other", idempotency_key="k", connection=own)
            with pytest.raises(StoreUnavailable):
                settler.step()
            own.rollback()
        settler.step()
        assert made.get("acme", job.id).state is State.COMPLETED
        assert [each.type for each in made.find("acme", queue="other").jobs] == ["child"]


def idle_in_transaction(own: psycopg.Connection[Any]) -> None:
    """The role's idle_in_transaction_session_timeout (25P03) closes the connection."""
    rest(1.0)


def transaction_timeout(own: psycopg.Connection[Any]) -> None:
    """The role's transaction_timeout (25P04) closes the connection."""
    if own.info.server_version < 170000:
        pytest.skip("this server has no transaction_timeout")
    rest(1.0)


def terminated(own: psycopg.Connection[Any]) -> None:
    own.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND state = 'idle in transaction'"
        " AND application_name = 'scheduler' AND pid <> pg_backend_pid()"
    )


@pytest.mark.parametrize(
    ("options", "close"),
    [
        ("-c idle_in_transaction_session_timeout=200ms", idle_in_transaction),
        ("-c transaction_timeout=500ms", transaction_timeout),
        ("", terminated),
    ],
)
def test_a_connection_closed_while_settling_fails_no_job(
    dsn: str,
    schema: str,
    redis: Client,
    redis_server: EmbeddedRedis,
    connection: psycopg.Connection[Any],
    options: str,
    close: Callable[[psycopg.Connection[Any]], None],
) -> None:
    hurried = make_conninfo(dsn, options=options)
    closing = True

    def check(_: object) -> None:  # is called within the transaction
        if closing:
            close(connection)

    with Scheduler(hurried, schema=schema, redis=redis_server.url) as made:
        services = made._running().ring
        assert services is not None
        services.stop(timeout=5.0)
        ledger: Ledger = services._ledger
        settler = Settler(
            services.ring.queue("work"), ledger, services._events, lambda _: None, check
        )
        settler.step()
        job = made.submit("acme", "job", queue="work", delay="1h")
        redis.call(
            "XADD",
            Keys.from_queue("work").results(ledger.installation),
            "*",
            RESULT_FIELD,
            b"[%b]" % end_bytes(completed(job, spawned=spawned("child"))),
        )
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                settler.step()
        closing = False
        settler.step()
        assert made.get("acme", job.id).state is State.COMPLETED
        assert [each.type for each in made.find("acme", queue="other").jobs] == ["child"]


def test_a_missing_privilege_fails_no_job(
    settling: Settling, submitter: Scheduler, connection: psycopg.Connection[Any], schema: str
) -> None:
    """An error that blames no value fails no job."""
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    settling.add([completed(job)])
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE insufficient_privilege; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON job_history FOR EACH ROW"
        " WHEN (NEW.outcome = 'completed') EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(StoreError):
        settling.settler.step()
    connection.execute("DROP TRIGGER refuse ON job_history")
    settling.settler.step()
    assert submitter.get("acme", job.id).state is State.COMPLETED


@pytest.mark.parametrize(
    "refused", [{"result": b'"%b"' % (b"x" * 2**20)}, {"checkpoint": "a\0b"}], ids=["large", "nul"]
)
def test_a_success_whose_result_postgres_refuses_stays_one(
    settling: Settling, submitter: Scheduler, refused: dict[str, Any]
) -> None:
    job, other = submitter.submit_many(
        [NewJob("acme", "job", queue="work", delay="1h") for _ in range(2)]
    )
    settling.add([completed(job, spawned=spawned("child"), **refused), completed(other)])
    settling.settler.step()
    settled = submitter.get("acme", job.id)
    assert (settled.state, settled.result) == (State.COMPLETED, None)
    assert "left out" in (settled.reason or "")
    assert submitter.get("acme", other.id).state is State.COMPLETED
    assert [each.type for each in submitter.find("acme", queue="other").jobs] == ["child"]
    assert settling.redis.call("XLEN", settling.stream) == 0


def test_a_retry_whose_record_postgres_refuses_stays_one(
    settling: Settling, submitter: Scheduler
) -> None:
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    failed = {"state": State.RETRYING, "error": "OSError: x", "checkpoint": "a\0b"}
    settling.add([completed(job, delay=timedelta(hours=1), **failed)])
    settling.settler.step()
    assert submitter.get("acme", job.id).state is State.RETRYING
    assert settling.redis.call("XLEN", settling.stream) == 0


@pytest.mark.parametrize("error", ["a\0b", "\u4e2d" * 10_000], ids=["nul", "long"])
def test_an_error_that_postgres_refuses_changes_no_state(
    settling: Settling, submitter: Scheduler, error: str
) -> None:
    """Of BullMQ's workers an error can be any text."""
    retried, dead = submitter.submit_many(
        [NewJob("acme", "job", queue="work", delay="1h") for _ in range(2)]
    )
    later = timedelta(hours=1)
    settling.add([completed(retried, state=State.RETRYING, error=error, delay=later)])
    settling.add([completed(dead, state=State.DEAD_LETTER, error=error, worker="a\0b")])
    settling.settler.step()
    assert submitter.get("acme", retried.id).state is State.RETRYING
    found = submitter.get("acme", dead.id)
    assert (found.state, bool(found.error)) == (State.DEAD_LETTER, True)
    assert settling.redis.call("XLEN", settling.stream) == 0


@pytest.mark.parametrize(
    "values",
    [{"correlation_id": "a\0b"}, {"tags": {"a": "b"}}, {"queue": 5}, {"priority": "high"}],
    ids=["nul", "object", "number", "priority"],
)
def test_a_malformed_child_does_not_block_its_queue(
    settling: Settling, submitter: Scheduler, values: dict[str, Any]
) -> None:
    job, other = submitter.submit_many(
        [NewJob("acme", "job", queue="work", delay="1h") for _ in range(2)]
    )
    children = [{**each, **values} for each in spawned("child")]
    settling.add([completed(job, spawned=children), completed(other)])
    settling.settler.step()
    states = {submitter.get("acme", each.id).state for each in (job, other)}
    assert states == {State.COMPLETED}
    assert settling.redis.call("XLEN", settling.stream) == 0


@pytest.mark.parametrize(
    "values",
    [
        *({"tenant": 5}, {"tenant": "a\0b"}, {"job_id": "x"}, {"job_id": 5}, {"feed": "x"}),
        *({"feed": 2**31}, {"feed": None}, {"attempt": "x"}, {"attempt": 2**31}, {"worker": {}}),
        *({"ended_at": "2030-01-01T00:00:00"}, {"error": 5}),
    ],
    ids=str,
)
def test_a_malformed_result_is_not_settled_again_for_ever(
    settling: Settling, submitter: Scheduler, values: dict[str, Any]
) -> None:
    job, other = submitter.submit_many(
        [NewJob("acme", "job", queue="work", delay="1h") for _ in range(2)]
    )
    end = completed(job, state=State.FAILED)
    for name, value in values.items():
        setattr(end, name, value)
    settling.add([end, completed(other)])
    assert settling.settler.step() < HELD
    assert submitter.get("acme", job.id).state is State.DELAYED
    assert submitter.get("acme", other.id).state is State.COMPLETED
    assert settling.redis.call("XLEN", settling.stream) == 0


@pytest.mark.parametrize("uncharged", ["x", -1, 2, 2.5], ids=str)
def test_a_malformed_count_of_uncharged_attempts_is_none(
    settling: Settling, submitter: Scheduler, uncharged: Any
) -> None:
    """It would be fed with the job, and no feeder could write it."""
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    settling.add([completed(job, state=State.RETRYING, uncharged=uncharged)])
    settling.settler.step()
    (attempt,) = submitter.get("acme", job.id).attempts
    assert "uncharged" not in attempt


def test_a_malformed_previous_attempt_id_is_none(settling: Settling, submitter: Scheduler) -> None:
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    settling.add([completed(job, previous_attempt_id="a\0b")])
    settling.settler.step()
    found = submitter.get("acme", job.id)
    assert (found.state, found.reason) == (State.COMPLETED, None)
    assert found.attempts[0]["previous_attempt_id"] is None


def test_a_child_with_a_taken_key_is_the_existing_job(
    settling: Settling, submitter: Scheduler
) -> None:
    existing = submitter.submit("acme", "child", queue="other", idempotency_key="k")
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    (child,) = spawned("child", idempotency_key="k")
    (last,) = spawned("last", after=[child["id"]])
    settling.add([completed(job, spawned=[child, last])])
    settling.settler.step()
    assert submitter.get("acme", job.id).state is State.COMPLETED
    assert submitter.get("acme", child["id"]).id == existing.id
    with pytest.raises(UnknownJob):
        submitter.get("another", child["id"])
    after = submitter.submit("acme", "after", queue="other", after=[child["id"]])
    submitter.cancel_job("acme", existing.id)
    for each in (last["id"], after.id):
        assert submitter.get("acme", each).state is State.CANCELLED


def test_an_invalid_child_is_refused_and_its_parent_completes(
    settling: Settling, submitter: Scheduler
) -> None:
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    (unknown,) = spawned("unknown", after=[UUID(int=7)])
    (follower,) = spawned("follower", after=[unknown["id"]])
    (valid,) = spawned("valid")
    (large,) = spawned("large", payload="x" * 2**20)
    settling.add([completed(job, spawned=[unknown, follower, valid, large])])
    settling.settler.step()
    assert submitter.get("acme", job.id).state is State.COMPLETED
    refused = submitter.get("acme", unknown["id"])
    assert refused.state is State.FAILED
    assert "00000007" in (refused.reason or "")
    assert "refused" in (refused.reason or "")
    assert submitter.get("acme", follower["id"]).state is State.FAILED
    assert not submitter.get("acme", valid["id"]).state.terminal
    assert "1,048,576" in (submitter.get("acme", large["id"]).reason or "")
    assert settling.redis.call("XLEN", settling.stream) == 0


def test_a_refused_child_releases_its_idempotency_key(
    settling: Settling, submitter: Scheduler
) -> None:
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    (unknown,) = spawned("child", after=[UUID(int=7)], idempotency_key="k")
    (one,) = spawned("circle", idempotency_key="c")
    one["after"] = [one["id"]]
    settling.add([completed(job, spawned=[unknown, one])])
    settling.settler.step()
    assert submitter.get("acme", unknown["id"]).idempotency_key == "k"
    for kind, key in (("child", "k"), ("circle", "c")):
        later = submitter.submit("acme", kind, queue="other", idempotency_key=key)
        assert not later.duplicate
        assert not submitter.get("acme", later.id).state.terminal
        assert submitter.submit("acme", kind, idempotency_key=key).id == later.id


@pytest.mark.parametrize("delay", [1e300, 2**80, 1e18, -5])
def test_a_delay_before_a_retry_is_bounded(
    settling: Settling, submitter: Scheduler, delay: float
) -> None:
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    end = completed(job, state=State.RETRYING, delay=timedelta(seconds=1))
    settling.add_text(end_bytes(end).replace(b'"delay":1000000', b'"delay":%d' % int(delay)))
    settling.settler.step()
    found = submitter.get("acme", job.id)
    assert (found.state.terminal, found.attempt) == (False, 1)
    assert found.run_at <= datetime.now(UTC) + LONGEST


def test_aliases_of_a_job_can_be_updated_cancelled_and_retried(
    settling: Settling, submitter: Scheduler
) -> None:
    existing = submitter.submit("acme", "child", queue="other", idempotency_key="k")
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    (child,) = spawned("child", idempotency_key="k")
    settling.add([completed(job, spawned=[child])])
    settling.settler.step()
    alias = child["id"]
    assert alias != str(existing.id)
    changed = submitter.update_job("acme", alias, priority=Priority.HIGH, tags={"a": "b"})
    assert (changed.id, changed.priority) == (existing.id, Priority.HIGH)
    for call in (submitter.update_job, submitter.cancel_job, submitter.retry_job):
        with pytest.raises(UnknownJob):
            call("another", alias)
    assert submitter.cancel_job("acme", alias, force=True) is State.CANCELLED
    assert submitter.get("acme", existing.id).state is State.CANCELLED
    again = submitter.retry_job("acme", alias)
    assert submitter.get("acme", again.id).retried_from == existing.id


def test_a_child_that_would_wait_too_deeply_is_refused(
    settling: Settling, submitter: Scheduler
) -> None:
    chain = submitter.chain("acme", [NewJob("acme", "link", queue="other") for _ in range(101)])
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    (child,) = spawned("child", after=[chain[-1].id])
    settling.add([completed(job, spawned=[child])])
    settling.settler.step()
    assert submitter.get("acme", job.id).state is State.COMPLETED
    refused = submitter.get("acme", child["id"])
    assert (refused.state, "101" in (refused.reason or "")) == (State.FAILED, True)


def test_children_that_wait_for_each_other_are_refused(
    settling: Settling, submitter: Scheduler
) -> None:
    job = submitter.submit("acme", "job", queue="work", delay="1h")
    (first,) = spawned("first")
    (second,) = spawned("second", after=[first["id"]])
    first["after"] = [second["id"]]
    settling.add([completed(job, spawned=[first, second])])
    settling.settler.step()
    assert submitter.get("acme", job.id).state is State.COMPLETED
    assert submitter.get("acme", first["id"]).state is State.FAILED
