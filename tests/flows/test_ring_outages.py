"""Redis loses its memory, Postgres goes away, workers sleep: nothing is lost, and no more runs
again than must.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import redis as redis_py
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from scheduler import RetryPolicy
from scheduler.dialects.client import Client
from scheduler.dialects.ends import ends_of
from scheduler.dialects.standard.keys import Keys
from scheduler.dialects.standard.messages import RESULT_FIELD
from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import EmbeddedRedis
from tests.support.ring_fleet import MortalRedis, RingFleet, suspended
from tests.support.waiting import rest, wait_for

MakeRing = Callable[..., RingFleet]
LATER = RetryPolicy(initial_delay="6s", backoff="constant", jitter=False)
DELAY = 6.0
KEYS = Keys.from_queue("work")
JOBS, LEASES = KEYS.named("jobs", "leases")


@pytest.fixture
def make_ring(
    dsn: str, schema: str, redis_server: EmbeddedRedis, tmp_path: Path
) -> Iterator[MakeRing]:
    """Make a fleet with defaults, unless it is told otherwise."""
    with ExitStack() as stack:
        client = Client(redis_server.url)
        client.call("FLUSHALL")
        client.close()

        def make(**options: Any) -> RingFleet:
            database, redis = options.pop("dsn", dsn), options.pop("redis", redis_server.url)
            return stack.enter_context(RingFleet(database, schema, redis, tmp_path, **options))

        yield make


class Moment(NamedTuple):
    """What Redis knew, and when: how many jobs were in the hands of workers, and how many ends were
    not settled.
    """

    running: int
    unsettled: int
    at: float


class Settled(NamedTuple):
    """An attempt that was settled: its number, and when its job is to be tried again."""

    attempt: int
    due: float


def ended(fleet: RingFleet, since: float = 0.0) -> int:
    return sum(line.what == "end" and line.monotonic > since for line in fleet.journal())


def running(client: redis_py.Redis) -> int:
    return int(client.hlen(LEASES))


def outcomes_of(fleet: RingFleet) -> str:
    with fleet.connection() as connection:
        query = SQL("SELECT id FROM {}.installation").format(Identifier(fleet.schema))
        (found,) = connection.execute(query).fetchone() or ("",)
    return KEYS.results(str(found))


def moment_of(answers: list[Any]) -> Moment:
    (running, entries), now = answers[:2], time.monotonic()
    return Moment(running, sum(len(ends_of(fields[RESULT_FIELD])) for _, fields in entries), now)


def flush(url: str, outcomes: str) -> Moment:
    """Let Redis forget everything; say what it knew at that moment."""
    with closing(redis_py.Redis.from_url(url)) as client:
        together = client.pipeline(transaction=True)
        together.hlen(LEASES)
        together.xrange(outcomes)
        together.flushall()
        return moment_of(together.execute())


def kill(server: MortalRedis, outcomes: str) -> Moment:
    """Kill Redis while nobody can write to it; say what it knew."""
    with closing(redis_py.Redis.from_url(server.url)) as client:
        client.client_pause(60_000, all=False)  # reads go on
        moment = moment_of([client.hlen(LEASES), client.xrange(outcomes)])
        server.kill()
        return moment


def settled_retries(fleet: RingFleet) -> dict[str, Settled]:
    """Read which attempts are settled: losing Redis must not reset them."""
    with fleet.connection() as connection:
        query = SQL(
            "SELECT id, attempt, extract(epoch FROM run_at - clock_timestamp()) FROM {}.job_queue "
            "WHERE retrying"
        )
        now = time.monotonic()
        rows = connection.execute(query.format(Identifier(fleet.schema))).fetchall()
    return {str(job_id): Settled(attempt, now + float(left)) for job_id, attempt, left in rows}


def assert_kept(fleet: RingFleet, settled: dict[str, Settled], since: float) -> int:
    """Each job whose attempt was settled goes on with the next, and not before its time; return how
    many did.
    """
    starts = [line for line in fleet.journal() if line.what == "start" and line.monotonic > since]
    kept = 0
    for line in starts:
        if line.job_id in settled:
            attempt, due = settled[line.job_id]
            assert line.attempt > attempt, f"{line} although attempt {attempt} was settled"
            assert line.monotonic > due - 0.2, (
                f"{line} starts {due - line.monotonic:.2f} s too early"
            )
            kept += 1
    return kept


def begun_in_vain(fleet: RingFleet, since: float, until: float) -> int:
    """Count the runs that began after Redis had lost its memory, and were run again before it lost
    it once more.
    """
    runs: dict[str, list[float]] = {}
    for line in fleet.journal():
        if (
            line.what == "start"
            and since < line.monotonic < until
            and not fleet.jobs[line.job_id].fails
        ):
            runs.setdefault(line.job_id, []).append(line.monotonic)
    return sum(len(starts) - 1 for starts in runs.values())


@pytest.mark.timeout(900)
def test_redis_loses_its_memory_twice(make_ring: MakeRing, tmp_path: Path, full: bool) -> None:
    jobs, seconds = (20_000, 0.05) if full else (3000, 0.05)
    with MortalRedis(tmp_path) as server:
        fleet = make_ring(redis=server.url)
        pids = [fleet.start(role) for role in ("instance", "instance", "worker", "worker")]
        fleet.ready(*pids)
        fleet.submit([{"fails": 1}] * (jobs // 20), retry=LATER)
        wait_for(lambda: len(settled_retries(fleet)) == jobs // 20, "attempts are settled")
        fleet.submit([{"seconds": seconds}] * (jobs - jobs // 20 - 50))
        fleet.submit(
            [{"seconds": 5.0}] * 50
        )  # however late this process looks, it finds them running
        outcomes = outcomes_of(fleet)

        wait_for(lambda: ended(fleet) > jobs // 5, "a part has run", timeout=60)
        settled, flushed_at = settled_retries(fleet), time.monotonic()
        first = flush(server.url, outcomes)
        with closing(redis_py.Redis.from_url(server.url)) as client:
            wait_for(
                lambda: ended(fleet, first.at) > jobs // 4 and running(client) > 20,
                "it goes on",
                timeout=60,
            )
        second = kill(server, outcomes)
        killed_at = time.monotonic()
        assert second.running > 0, "in the middle of it"
        rest(1.0)
        server.start()
        back = time.monotonic()
        fleet.all_end(timeout=60)
        took = time.monotonic() - back
        assert fleet.left() == 0, "all end within a minute"
        assert [fleet.ended(pid) for pid in pids] == [None] * 4
        assert assert_kept(fleet, settled, flushed_at) > 0
        most = first.running + first.unsettled + second.running + second.unsettled
        verdict = fleet.verdict(most_again=most, memory_lost=True)
        vain = [
            begun_in_vain(fleet, first.at, killed_at),
            begun_in_vain(fleet, killed_at, math.inf),
        ]
        print(f"{first}, {second}, {took:.1f} s after its return; {verdict}, in vain {vain}")  # noqa: T201
        assert verdict, str(verdict)
        assert max(vain) <= 2 * 50, (
            "what they had and had not begun waits: one for each place began before they knew"
        )


@pytest.mark.timeout(900)
def test_workers_go_on_without_postgres(
    make_ring: MakeRing, own_postgres: EmbeddedPostgres, full: bool
) -> None:
    jobs, away = (8000, 30.0) if full else (1000, 3.0)
    fleet = make_ring(dsn=own_postgres.dsn, concurrency=20)
    fleet.ready(fleet.start("instance"))
    with closing(redis_py.Redis.from_url(fleet.redis)) as redis:
        fleet.submit([{"seconds": 0.1}] * jobs)
        wait_for(lambda: redis.hlen(JOBS) >= jobs, "all are fed")
        fleet.start("worker")
        wait_for(lambda: ended(fleet) > 0, "some have ended")
        outcomes = outcomes_of(fleet)
        own_postgres.halt(mode="immediate")
        before, unsettled = ended(fleet), moment_of([0, redis.xrange(outcomes)]).unsettled
        rest(away)
        wait_for(lambda: ended(fleet) - before >= jobs // 4, "they continue", timeout=120)
        while_away, waiting = (
            ended(fleet) - before,
            moment_of([0, redis.xrange(outcomes)]).unsettled - unsettled,
        )
    assert waiting >= while_away - 100, "what they did waits in Redis"
    own_postgres.resume()
    fleet.all_end(timeout=60)
    verdict = fleet.verdict(most_again=0)
    assert verdict, str(verdict)


@pytest.mark.timeout(900)
def test_workers_cost_postgres_nothing(
    make_ring: MakeRing, own_postgres: EmbeddedPostgres, full: bool
) -> None:
    jobs, workers, processes = (20_000, 200, 4) if full else (2000, 20, 2)
    dsn = make_conninfo(own_postgres.dsn, application_name="instance")
    fleet = make_ring(dsn=dsn)
    fleet.ready(fleet.start("instance"))

    def transactions() -> int:
        with psycopg.connect(
            own_postgres.dsn, application_name="instance", autocommit=True
        ) as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
            query = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
            (count,) = connection.execute(query).fetchone() or (0,)
        return int(count)

    def cost(processes: int, each: int, concurrency: int) -> tuple[float, int]:
        pids = [
            fleet.start("worker", dsn="", workers=each, concurrency=concurrency)
            for _ in range(processes)
        ]
        fleet.ready(*pids)
        rest(1.0)
        before, began = transactions(), time.monotonic()
        # A thousand a second, whoever works; not all as long, or one worker's would end at the same
        # moments.
        fleet.submit(
            [{"seconds": workers / 1000 * (0.5 + number % 101 / 100)} for number in range(jobs)]
        )
        fleet.all_end(timeout=120)
        took = time.monotonic() - began
        rest(1.0)  # backends report what they did now and then
        spent = transactions() - before
        with psycopg.connect(own_postgres.dsn, application_name="instance") as connection:
            query = (
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE application_name <> 'instance' AND backend_type = 'client backend'"
            )
            assert connection.execute(query).fetchone() == (0,), "nobody but instances is connected"
        fleet.stop(*pids)
        return took, spent

    few = cost(1, 1, workers)
    many = cost(processes, workers // processes, 1)
    print(  # noqa: T201
        f"1 worker: {few[1]} transactions in {few[0]:.1f} s; {workers}: {many[1]} in {many[0]:.1f} "
        "s"
    )
    # An instance settles at intervals, so a run that takes longer has more transactions.
    allowed = 1.2 * few[1] * max(1.0, many[0] / few[0])
    assert many[1] <= allowed, f"{many[1]} transactions with {workers} workers, {few[1]} with one"


def test_a_suspended_worker_ends_nothing_that_was_given_to_another(make_ring: MakeRing) -> None:
    found = suspended(make_ring(lease="4s", hasty=0.5, concurrency=4))
    assert found, str(found)
    assert found.again == 4


def test_a_suspended_worker_does_not_end_what_was_given_to_itself_again(
    make_ring: MakeRing,
) -> None:
    fleet = make_ring(lease="4s", concurrency=4)
    instance, worker = fleet.start("instance"), fleet.start("worker")
    fleet.ready(instance, worker)
    [job_id] = fleet.submit([{"seconds": 3.0}])
    wait_for(fleet.journal, "it runs")
    fleet.signal(worker, signal.SIGSTOP)
    fleet.killed.add(worker)  # as far as others can tell
    with closing(Client(fleet.redis)) as client:
        lease = client.call("HGET", LEASES, job_id)
        assert lease is not None
        # The wait of the suspended worker is still open in Redis, and can get the job again.
        wait_for(lambda: client.call("HGET", LEASES, job_id) != lease, "the instance reclaims it")
    fleet.signal(worker, signal.SIGCONT)
    fleet.all_end(timeout=60)
    fleet.stop(instance, worker)
    lines = [(line.what, line.attempt) for line in fleet.journal() if line.job_id == job_id]
    # Either handler can end first; only the result of the second attempt is accepted.
    assert lines[:2] == [("start", 1), ("start", 2)]
    assert sorted(lines[2:]) == [("accepted", 2), ("end", 1), ("end", 2)]
    verdict = fleet.verdict(most_again=1)
    assert verdict, str(verdict)
