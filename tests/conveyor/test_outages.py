"""The ring through a queue of Conveyor: Redis loses its memory, Postgres goes away, workers are
killed.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis as redis_py

from scheduler.dialects.client import Client
from scheduler.dialects.ends import ends_of
from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import EmbeddedRedis
from tests.flows.test_ring_outages import LATER, assert_kept, ended, settled_retries
from tests.support.ring_fleet import MortalRedis, RingFleet
from tests.support.waiting import rest, wait_for

MakeRing = Callable[..., RingFleet]
JOBS, ATTEMPTS = "ring:work:jobs", "ring:work:attempts"


class Moment(NamedTuple):
    """What Redis knew: how many jobs were in the hands of workers, and how many ends were not
    settled.
    """

    running: int
    unsettled: int


@pytest.fixture
def make_ring(
    dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis, tmp_path: Path
) -> Iterator[MakeRing]:
    """Make a fleet whose queue is Conveyor's."""
    with ExitStack() as stack:

        def make(**options: Any) -> RingFleet:
            database, url = options.pop("dsn", dsn), options.pop("redis", redis_server.url)
            return stack.enter_context(
                RingFleet(database, schema, url, tmp_path, dialect="conveyor", **options)
            )

        yield make


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A durable server of this test alone, to be stopped under the fleet."""
    with EmbeddedPostgres(durable=True) as server:
        yield server


def moment(client: Any) -> Moment:
    """Read what Redis knows; the ends are those of the only ledger that there is."""
    streams = client.keys("ring:work:outcomes:*")
    entries = client.xrange(streams[0]) if streams else []
    return Moment(
        int(client.hlen(ATTEMPTS)), sum(len(ends_of(fields[b"ends"])) for _, fields in entries)
    )


def frozen(server: MortalRedis, then: Callable[[], object]) -> Moment:
    """Do something to Redis while nobody can write to it, in the middle of work; say what it
    knew.
    """
    with closing(redis_py.Redis.from_url(server.url)) as client:
        known: list[Moment] = []

        def caught() -> bool:
            client.client_pause(60_000, all=False)  # reads go on
            known.append(moment(client))
            if not known[-1].running:
                client.client_unpause()
            return known[-1].running > 0

        wait_for(caught, "somebody is at work")
        then()
        return known[-1]


def flush(url: str) -> Moment:
    """Let Redis forget everything; say what it knew at about that moment, and not less."""
    with closing(redis_py.Redis.from_url(url)) as client:
        stream = client.keys("ring:work:outcomes:*")[0]
        together: Any = client.pipeline(transaction=True)
        together.hlen(ATTEMPTS).xrange(stream).flushall()
        running, entries, _ = together.execute()
        return Moment(running, sum(len(ends_of(fields[b"ends"])) for _, fields in entries))


@pytest.mark.timeout(900)
def test_redis_loses_its_memory_twice_under_a_queue_of_conveyor(
    make_ring: MakeRing, tmp_path: Path, full: bool
) -> None:
    jobs, seconds = (20_000, 0.05) if full else (1500, 0.2)
    with MortalRedis(tmp_path) as server:
        fleet = make_ring(redis=server.url)
        pids = [fleet.start(role) for role in ("instance", "worker", "worker")]
        fleet.ready(*pids)
        fleet.submit([{"fails": 1}] * (jobs // 20), retry=LATER)
        wait_for(lambda: len(settled_retries(fleet)) == jobs // 20, "attempts are settled")
        fleet.submit([{"seconds": seconds}] * (jobs - jobs // 20))
        wait_for(lambda: ended(fleet) > jobs // 5, "a part has run", timeout=60)
        settled, flushed_at = settled_retries(fleet), time.monotonic()
        first = flush(server.url)
        before = ended(fleet)
        with closing(redis_py.Redis.from_url(server.url)) as client:
            wait_for(
                lambda: ended(fleet) > before + jobs // 8 and moment(client).running > 20,
                "it goes on",
                timeout=60,
            )
        second = frozen(server, server.kill)
        rest(0.5)
        server.start()
        fleet.all_end(timeout=60)
        assert fleet.left() == 0, "all end within a minute"
        assert [fleet.ended(pid) for pid in pids] == [None] * 3
        assert assert_kept(fleet, settled, flushed_at) > 0
        verdict = fleet.verdict(most_again=sum(first) + sum(second), memory_lost=True)
        assert verdict, f"{first}, {second}, {verdict}"


@pytest.mark.timeout(900)
def test_workers_of_a_queue_of_conveyor_go_on_without_postgres(
    make_ring: MakeRing, own_postgres: EmbeddedPostgres, full: bool
) -> None:
    jobs, away = (6000, 30.0) if full else (600, 3.0)
    fleet = make_ring(dsn=own_postgres.dsn, concurrency=20)
    fleet.ready(fleet.start("instance"), fleet.start("worker"))
    with closing(redis_py.Redis.from_url(fleet.redis)) as client:
        fleet.submit([{"seconds": 0.1}] * jobs)
        wait_for(lambda: int(client.hlen(JOBS)) + ended(fleet) >= jobs, "all are fed")
        own_postgres.halt(mode="immediate")
        before, unsettled = ended(fleet), moment(client).unsettled
        rest(away)
        while_away, waiting = ended(fleet) - before, moment(client).unsettled - unsettled
    assert while_away >= 50 * away, "they go on"
    assert waiting >= while_away - 100, "what they did waits in Redis"
    own_postgres.resume()
    fleet.all_end(timeout=60)
    verdict = fleet.verdict(most_again=0)
    assert verdict, str(verdict)


@pytest.mark.timeout(900)
def test_every_job_ends_once_though_a_worker_of_its_queue_is_killed(
    make_ring: MakeRing, full: bool
) -> None:
    jobs = 5000 if full else 500
    fleet = make_ring(lease="4s", hasty=0.3, concurrency=5)
    instance, doomed, other = fleet.start("instance"), fleet.start("worker"), fleet.start("worker")
    fleet.ready(instance, doomed, other)
    fleet.submit([{"seconds": 0.05}] * (jobs - 10) + [{"fails": 2}] * 10)
    wait_for(lambda: ended(fleet) > jobs // 4, "some have run")
    fleet.kill(doomed)
    with closing(redis_py.Redis.from_url(fleet.redis, decode_responses=True)) as client:
        held: Any = client.hvals(ATTEMPTS)
    fleet.all_end(timeout=60)
    verdict = fleet.verdict(most_again=sum(f"-{doomed}-" in lease for lease in held))
    assert verdict, str(verdict)
