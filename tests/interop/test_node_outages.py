"""The ring with workers of Node: Redis loses its memory, Postgres goes away; nothing is lost, or
done without need.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis as redis_py

from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import EmbeddedRedis
from tests.flows.test_ring_outages import LATER, assert_kept, ended, settled_retries
from tests.interop.conftest import StartPeer
from tests.interop.test_mixed import held
from tests.support.ring_fleet import MortalRedis, RingFleet
from tests.support.waiting import rest, wait_for

MakeRing = Callable[..., RingFleet]
ACTIVE, COMPLETED, FAILED = (f"bull:work:{state}" for state in ("active", "completed", "failed"))


class Moment(NamedTuple):
    """What Redis knew: how many jobs were in the hands of workers, and how many ends were not
    settled.
    """

    running: int
    completed: int
    failed: int


@pytest.fixture
def make_ring(
    dsn: str, schema: str, redis: Any, redis_server: EmbeddedRedis, tmp_path: Path
) -> Iterator[MakeRing]:
    """Make a fleet whose queue is BullMQ's."""
    with ExitStack() as stack:

        def make(**options: Any) -> RingFleet:
            database, url = options.pop("dsn", dsn), options.pop("redis", redis_server.url)
            return stack.enter_context(
                RingFleet(database, schema, url, tmp_path, dialect="bullmq", **options)
            )

        yield make


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A durable server of this test alone, to be stopped under the fleet."""
    with EmbeddedPostgres(durable=True) as server:
        yield server


def start_workers(
    start_node: StartPeer, fleet: RingFleet, count: int, concurrency: int = 25
) -> None:
    for _ in range(count):
        worker = start_node(url=fleet.redis)
        worker.work("work", journal=fleet.folder / "journal", concurrency=concurrency)


def flush(url: str) -> Moment:
    """Let Redis forget everything; say what it knew at that moment."""
    with closing(redis_py.Redis.from_url(url)) as client:
        together: Any = client.pipeline(transaction=True)
        together.llen(ACTIVE).zcard(COMPLETED).zcard(FAILED).flushall()
        return Moment(*together.execute()[:3])


def kill(server: MortalRedis) -> Moment:
    """Kill Redis while nobody can write to it; say what it knew."""
    with closing(redis_py.Redis.from_url(server.url)) as client:
        client.client_pause(60_000, all=False)  # reads go on
        moment = Moment(
            int(client.llen(ACTIVE)), int(client.zcard(COMPLETED)), int(client.zcard(FAILED))
        )
        server.kill()
        return moment


@pytest.mark.timeout(600)
def test_redis_loses_its_memory_twice_under_workers_of_node(
    make_ring: MakeRing, start_node: StartPeer, tmp_path: Path, full: bool
) -> None:
    jobs, seconds = (20_000, 0.05) if full else (1500, 0.05)
    with MortalRedis(tmp_path) as server:
        fleet = make_ring(redis=server.url)
        pids = [fleet.start("instance") for _ in range(2)]
        start_workers(start_node, fleet, 2)
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
                lambda: ended(fleet) > before + jobs // 4 and client.llen(ACTIVE) > 20,
                "it goes on",
                timeout=60,
            )
        second = kill(server)
        assert second.running > 0, "in the middle of it"
        rest(0.5)
        server.start()
        fleet.all_end(timeout=60)
        assert fleet.left() == 0, "all end within a minute"
        assert [fleet.ended(pid) for pid in pids] == [None] * 2
        assert assert_kept(fleet, settled, flushed_at) > 0
        verdict = fleet.verdict(most_again=sum(first) + sum(second), memory_lost=True)
        assert verdict, f"{first}, {second}, {verdict}"


@pytest.mark.timeout(600)
def test_every_job_of_the_ring_ends_once_whoever_is_killed(
    make_ring: MakeRing, start_node: StartPeer, full: bool
) -> None:
    jobs = 5000 if full else 500
    fleet = make_ring(lease="4s", hasty=0.3, concurrency=5)
    instance, doomed, other = fleet.start("instance"), fleet.start("worker"), fleet.start("worker")
    hurry = {"lockDuration": 4000, "stalledInterval": 300, "maxStalledCount": 20, "concurrency": 5}
    first, second = start_node(), start_node()
    fleet.ready(instance, doomed, other)
    first.work("work", journal=fleet.folder / "journal", **hurry, name="doomed")
    second.work("work", journal=fleet.folder / "journal", **hurry)
    with closing(redis_py.Redis.from_url(fleet.redis, decode_responses=True)) as redis:
        fleet.submit([{"seconds": 0.05}] * (jobs - 10) + [{"fails": 2}] * 10)
        wait_for(
            lambda: ended(fleet) > jobs // 4 and held(redis, "doomed", "work"),
            "Node has some in hand",
        )
        first.kill()
        fleet.killed.add(first.pid)
        lost = held(redis, "doomed", "work")
        wait_for(lambda: ended(fleet) > jobs // 2, "half of them have run")
        fleet.submit([{"seconds": 2.0}] * 20)  # for all, also where the others have ended already
        wait_for(lambda: held(redis, f"-{doomed}-", "work"), "so have we")
        fleet.kill(doomed)
        lost |= held(redis, f"-{doomed}-", "work")
    fleet.all_end(timeout=60)
    verdict = fleet.verdict(most_again=len(lost))
    assert verdict, str(verdict)
    assert {line.pid for line in fleet.journal()} == {first.pid, second.pid, doomed, other}, (
        "all have worked"
    )


@pytest.mark.timeout(600)
def test_workers_of_node_go_on_without_postgres(
    make_ring: MakeRing, start_node: StartPeer, own_postgres: EmbeddedPostgres, full: bool
) -> None:
    jobs, away = (6000, 30.0) if full else (600, 3.0)
    fleet = make_ring(dsn=own_postgres.dsn)
    instance = fleet.start("instance")
    start_workers(start_node, fleet, 1, concurrency=20)
    fleet.ready(instance)
    with closing(redis_py.Redis.from_url(fleet.redis)) as redis:
        fleet.submit([{"seconds": 0.1}] * jobs)
        wait_for(lambda: _fed(redis) + ended(fleet) >= jobs, "all are fed")
        own_postgres.halt(mode="immediate")
        before, unsettled = ended(fleet), redis.zcard(COMPLETED)
        rest(away)
        while_away, waiting = ended(fleet) - before, redis.zcard(COMPLETED) - unsettled
    assert while_away >= 50 * away, "they go on"
    assert waiting >= while_away - 100, "what they did waits in Redis"
    own_postgres.resume()
    fleet.all_end(timeout=60)
    verdict = fleet.verdict(most_again=0)
    assert verdict, str(verdict)


def _fed(redis: Any) -> int:
    return int(
        redis.llen("bull:work:wait") + redis.zcard("bull:work:prioritized") + redis.llen(ACTIVE)
    )
