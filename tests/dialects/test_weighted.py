"""Whose jobs a fetch takes: the higher level first, or every level its share."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.interface import Handled, Queue
from scheduler.dialects.queue_options import QueueOptions
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.model.labels import Priority
from tests.dialects.conftest import MakeQueue, Protocol
from tests.dialects.servers import House
from tests.dialects.values import back, ended, fetch_all, ids, job

WEIGHTS = {
    Priority.CRITICAL: 16,
    Priority.HIGH: 8,
    Priority.NORMAL: 4,
    Priority.LOW: 2,
    Priority.BULK: 1,
}
ROUND = sum(WEIGHTS.values())


@pytest.fixture(params=["reliable", "standard"])
def dialect(request: pytest.FixtureRequest) -> str:
    """Only ours have levels that could share."""
    return str(request.param)


def fill(queue: Queue, n: int, *priorities: Priority) -> None:
    queue.push(
        [job(priority=priority, installation="") for priority in priorities for _ in range(n)],
        epoch="",
    )


def taken(queue: Queue, n: int, fetches: int = 1) -> Counter[Priority]:
    """Take and end so many, fetch by fetch."""
    counts: Counter[Priority] = Counter()
    for _ in range(fetches):
        found = queue.fetch(n, timeout=0)
        counts.update(each.job.priority for each in found)
        queue.finish([ended(each) for each in found])
    return counts


def test_prioritized_fetch_loops_priorities_high_then_low(make_queue: MakeQueue) -> None:
    queue = make_queue()
    fill(queue, 3, *reversed(Priority))
    assert [each.job.priority for each in queue.fetch(15, timeout=0)] == [
        each for each in Priority for _ in range(3)
    ]


@pytest.mark.parametrize("weighted", [False, True])
def test_guarantees_atomic_move_per_queue_priority_preference_no_job_loss(
    make_queue: MakeQueue, *, weighted: bool
) -> None:
    """Guarantees: atomic move per-queue; priority preference; no job loss between queues and
    processing list.
    """
    workers = [make_queue(worker=f"w{number}", weighted=weighted) for number in range(4)]
    every = [job(priority=Priority(number % 5), installation="") for number in range(400)]
    workers[0].push(every, epoch="")

    def work(queue: Queue) -> list[str]:
        done: list[str] = []
        for round_ in range(1000):
            found = queue.fetch(7, timeout=0)
            if not found:
                return done
            assert set(ids(found)) == set(ids(queue.held())), (
                "what is not in a queue is in the list of its worker"
            )
            if round_ % 3 == 0:
                assert queue.finish([back(each) for each in found])[0] == [True] * len(found)
            else:
                done += ids(found)
                assert queue.finish([ended(each) for each in found])[0] == [True] * len(found)
        raise AssertionError("there is no end")

    with ThreadPoolExecutor(4) as threads:
        done = [each for found in threads.map(work, workers) for each in found]
    assert sorted(done) == sorted(each.id for each in every)
    fill(workers[0], 100, *Priority)
    higher, lower = (taken(workers[0], 31)[each] for each in (Priority.CRITICAL, Priority.BULK))
    assert higher > lower


def test_tradeoffs_small_added_latency_for_lower_priority_items_documented(
    make_queue: MakeQueue,
) -> None:
    """Tradeoffs: small added latency for lower-priority items: what stands above it, and nothing
    else.
    """
    queue = make_queue()
    fill(queue, 20, Priority.LOW)
    fill(queue, 20, Priority.HIGH)
    assert taken(queue, 5, 4) == {Priority.HIGH: 20}
    assert taken(queue, 5, 1) == {Priority.LOW: 5}
    said = (Path(__file__).parents[2] / "docs/queueing.md").read_text()
    assert "a job waits for all that are above it" in " ".join(said.split())


@pytest.mark.parametrize("n", [1, 2, 7, 31, 93, 500])
def test_weighted_levels_share_by_their_weights(make_queue: MakeQueue, n: int) -> None:
    queue = make_queue(weighted=True)
    fill(queue, 700, *Priority)
    fetches = 1 if n == 500 else -(-10 * ROUND // n)
    counts = taken(queue, n, fetches)
    assert counts.total() == n * fetches
    for priority, weight in WEIGHTS.items():
        assert abs(counts[priority] - counts.total() * weight / ROUND) <= 2, priority


@pytest.mark.parametrize(("n", "most"), [(1, 31), (5, 7), (31, 1), (500, 1)])
@pytest.mark.parametrize("low", [Priority.LOW, Priority.BULK])
def test_weighted_an_endless_stream_of_critical_jobs_starves_nobody(
    make_queue: MakeQueue, n: int, most: int, low: Priority
) -> None:
    queue = make_queue(weighted=True)
    fill(queue, 1, low)
    for _ in range(most):
        fill(queue, n, Priority.CRITICAL)
        if taken(queue, n)[low]:
            break
    else:
        raise AssertionError(f"it was not among those of {most} fetches")
    strict = make_queue(name="other")
    fill(strict, 1, low)
    for _ in range(most):
        fill(strict, n, Priority.CRITICAL)
        assert taken(strict, n) == {Priority.CRITICAL: n}


@pytest.mark.parametrize("n", [1, 10, 500])
def test_weighted_the_share_of_an_empty_level_goes_to_the_others(
    make_queue: MakeQueue, n: int
) -> None:
    queue = make_queue(weighted=True)
    fill(queue, 500, Priority.BULK)
    assert taken(queue, n, 500 // n) == {Priority.BULK: 500}
    fill(queue, 3, Priority.CRITICAL)
    fill(queue, 500, Priority.NORMAL, Priority.LOW)
    counts = taken(queue, n, 500 // n)
    assert counts.total() == 500
    assert counts[Priority.CRITICAL] == 3
    assert counts[Priority.NORMAL] > counts[Priority.LOW] >= 500 * 2 // ROUND


def test_weighted_large_jobs_of_one_level_leave_room_for_the_others(make_queue: MakeQueue) -> None:
    queue = make_queue(weighted=True)
    large = b'"%b"' % (b"x" * 1_000_000)
    fill(queue, 2, Priority.BULK)
    jobs = [job(priority=Priority.CRITICAL, installation="", payload=large) for _ in range(60)]
    queue.push(jobs, epoch="")
    first = queue.fetch(500, timeout=0)
    assert Priority.BULK in {each.job.priority for each in first}
    assert len(first) + len(fetch_all(queue)) == 62


def test_weighted_drops_what_was_cancelled_and_takes_others_instead(make_queue: MakeQueue) -> None:
    queue = make_queue(weighted=True)
    every = [job(priority=Priority(number % 5)) for number in range(50)]
    queue.push(every, epoch="")
    queue.cancel([each.id for each in every[:40]])
    assert sorted(ids(queue.fetch(10, timeout=0))) == sorted(each.id for each in every[40:])


def test_weighted_two_levels_of_the_original_have_the_shares_of_all_that_they_stand_for(
    lone_servers: House,
) -> None:
    lone_servers.everywhere("FLUSHALL")
    client = Client(lone_servers.url)
    queue = ReliableQueue(
        client, "files", worker="w1", keys=Keys.original(), options=QueueOptions(weighted=True)
    )
    fill(queue, 100, Priority.HIGH, Priority.LOW)
    counts = taken(queue, 1, 2 * ROUND)
    assert counts == {Priority.HIGH: 48, Priority.LOW: 14}
    client.close()


@pytest.mark.parametrize("n", [1, 7, 500])
def test_weighted_fetches_leave_jobs_of_full_types(make_queue: MakeQueue, n: int) -> None:
    queue = make_queue(weighted=True)
    jobs = [
        job(priority=priority, type=name, installation="")
        for priority in Priority
        for name in ("big", "mail", "big", "mail")
    ]
    queue.push(jobs, epoch="")
    found = []
    while some := queue.fetch(n, timeout=0, handled=Handled(free={"big": 0})):
        assert len(some) <= n
        found += some
    assert sorted(ids(found)) == sorted(each.id for each in jobs if each.type == "mail")
    assert ids(queue.held()) == ids(found)
    strict = make_queue("w2")
    assert ids(fetch_all(strict)) == [each.id for each in jobs if each.type == "big"]


def test_weighted_fetches_look_past_at_most_100_jobs(
    make_queue: MakeQueue, protocol: Protocol
) -> None:
    queue, count = make_queue(weighted=True), protocol.looks_past + 1
    full = [job(type="big", priority=Priority.CRITICAL) for _ in range(count)]
    queue.push([*full, job(priority=Priority.CRITICAL)], epoch="")
    assert queue.fetch(500, timeout=0, handled=Handled(free={"big": 0})) == []
    assert ids(queue.fetch(101, timeout=0)) == [each.id for each in full[:101]]
