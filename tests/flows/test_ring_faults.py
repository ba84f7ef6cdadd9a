"""Killed between any two calls of Redis and Postgres: each job ends once; what was in dead hands
alone runs again.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.store.queries import names
from tests.support.ring_fleet import RingFleet
from tests.support.ring_mutants import FORGETFUL
from tests.support.ring_points import read_points, without_point
from tests.support.ring_troubles import Troubles
from tests.support.waiting import rest, wait_for

MakeRing = Callable[..., RingFleet]
AT_ONCE = 6
VICTIM = "worker consumer.renew renew before"  # of one that dies with jobs in its hands
RARE = (
    "upkeep.marks",
    "upkeep._feed_all_again",
    "open_queue",
    "XGROUP",
)  # what happens once in a queue
ALONE = 12  # jobs that keep a batch busy until all its faults were met
# Steps of a unit, of which no frame tells: each must have been seen by its name.
STATEMENTS = {
    "waiting",
    "feed",
    "settle",
    "dependents",
    "hold_dependents",
    "release",
    "ended",
    *names("ring"),
}


@pytest.fixture
def make_ring(
    dsn: str, schema: str, redis_server: EmbeddedRedis, tmp_path: Path
) -> Iterator[MakeRing]:
    """Make a fleet whose leases are short and that looks soon for what the dead hold."""
    with ExitStack() as stack:
        client = Client(redis_server.url)
        client.call("FLUSHALL")
        client.close()

        def make(**options: Any) -> RingFleet:
            usual = {"lease": "1s", "hasty": 0.5, "concurrency": 8, "points": True, "submits": True}
            return stack.enter_context(
                RingFleet(dsn, schema, redis_server.url, tmp_path, **{**usual, **options})
            )

        yield make


@pytest.fixture
def redis(redis_server: EmbeddedRedis) -> Iterator[Client]:
    client = Client(redis_server.url)
    yield client
    client.close()


def payloads(count: int) -> list[dict[str, Any]]:
    """Jobs of which some fail at first, and some take a moment."""
    return [{"fails": int(n % 20 == 7), "seconds": 0.05 * (n % 10 == 3)} for n in range(count)]


def collect(fleet: RingFleet, troubles: Troubles) -> list[str]:
    """Let everything happen that may, without a fault, and return the points that were reached."""
    workers = [fleet.start("worker"), fleet.start("worker", spare=True)]
    instance = fleet.start("instance")
    fleet.submit(payloads(100))
    fleet.ready(instance, *workers)
    troubles.make("work")
    fleet.all_end(timeout=60)
    ids = fleet.submit([{"seconds": 0.5}] * 16)
    wait_for(
        lambda: {line.pid for line in fleet.journal() if line.job_id in ids} >= set(workers),
        "both work",
    )
    fleet.kill(workers[0])

    def everywhere() -> bool:
        fleet.submit([{"seconds": 0.3}] * 2)  # the reaper scans lists of workers with leased jobs
        troubles.make("work")
        return not without_point(read_points(fleet.folder / "points"))

    try:
        wait_for(everywhere, "every call site has a fault point", timeout=60, every=0.3)
    except AssertionError:
        pytest.fail(f"no fault point at {without_point(read_points(fleet.folder / 'points'))}")
    fleet.all_end(timeout=60)
    fleet.stop(instance, workers[1])
    points = sorted(read_points(fleet.folder / "points"))
    unseen = STATEMENTS - {point.split(" ")[2] for point in points} - {"installation"}
    assert not unseen, f"no fault point at {sorted(unseen)}"
    return points


def _times(fault: str) -> int:
    """Say how often a point is passed before the process dies there: some are reached once."""
    return (
        1 if any(each in fault for each in (*RARE, "upkeep.", "LRANGE")) else random.randint(1, 2)
    )


def suffer(
    fleet: RingFleet, troubles: Troubles, faults: Sequence[str], queue: str, jobs: int
) -> None:
    """Run jobs with processes that each die at one of the faults, and with some that survive."""
    troubles.forget_queues()
    fleet.submit(payloads(jobs), queue=queue)
    doomed = [
        fleet.start(
            fault.split(" ")[0],
            queue=queue,
            fault=fault,
            times=_times(fault),
            spare="_supervise" in fault,
        )
        for fault in faults
    ]
    fleet.ready(*doomed)
    survivors = [
        fleet.start("instance", queue=queue),
        fleet.start("worker", queue=queue, hasty=2.0),
    ]

    victims: list[int] = []

    def unmet() -> list[str]:
        return [
            fault for pid, fault in zip(doomed, faults, strict=True) if fleet.ended(pid) is None
        ]

    def dead() -> bool:
        left = " ".join(unmet())
        if "recover" in left:
            fleet.submit([{"seconds": 1.0}] * 8, queue=queue)
            if all(fleet.ended(pid) is not None for pid in victims):
                victims.append(
                    fleet.start("worker", queue=queue, hasty=60.0, fault=VICTIM, times=3)
                )
        fleet.submit(payloads(ALONE), queue=queue)
        troubles.make(queue, new_queue=any(each in left for each in RARE))
        return not left

    with contextlib.suppress(AssertionError):
        wait_for(dead, "every fault was met", timeout=240, every=0.4)
    assert not unmet()
    wait_for(
        lambda: all(fleet.ended(pid) is not None for pid in victims),
        "those to be taken back from are dead",
    )
    fleet.all_end(timeout=60)
    fleet.stop(*survivors)


@pytest.mark.timeout(1800)
def test_kill_9_at_every_fault_point(make_ring: MakeRing, redis: Client, full: bool) -> None:
    fleet = make_ring()
    troubles = Troubles(fleet, redis)
    points = collect(fleet, troubles)
    assert len(points) > 100
    held = 8  # by the worker that was killed meanwhile
    random.shuffle(points)
    points.sort(
        key=lambda point: point not in FORGETFUL.values()
    )  # where wrong copies lose jobs, always
    chosen = points if full else points[:AT_ONCE]
    batches = [chosen[start : start + AT_ONCE] for start in range(0, len(chosen), AT_ONCE)]
    jobs = (10_000 if full else 300) // len(batches)
    for number, batch in enumerate(batches):
        suffer(fleet, troubles, batch, f"work-{number}", jobs)
    rest(1.5)  # what is wrong may come late
    died = fleet.died()
    assert {name for _, _, name in died} >= set(chosen)
    assert len(fleet.jobs) >= (10_000 if full else 300)
    verdict = fleet.verdict(most_again=held + sum(flight for _, flight, _ in died))
    assert verdict, str(verdict)
