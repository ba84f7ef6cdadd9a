"""The one loop: what wakes it, and what does not."""

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from scheduler import service
from scheduler.errors import QueueUnavailable
from scheduler.service import LAST_BACKOFF, Service
from tests.support.waiting import wait_for


class Part:
    """A step that notes when it was called, and fails while it is told to."""

    def __init__(self, *, last_backoff: float = LAST_BACKOFF) -> None:
        self.fails = True
        self.at: list[float] = []
        self.service = Service("part", self.step, last_backoff=last_backoff)

    def step(self) -> None:
        self.at.append(time.monotonic())
        if self.fails:
            raise QueueUnavailable("Redis: Connection refused")


@pytest.fixture
def part() -> Iterator[Part]:
    made = Part()
    made.service.start()
    yield made
    assert made.service.stop(timeout=60)


def test_whoever_wakes_a_part_that_failed_does_not_make_it_try_without_end(part: Part) -> None:
    def woken_four_times() -> bool:
        part.service.wake()
        return len(part.at) >= 4

    wait_for(woken_four_times, "the fourth step", every=0.01)
    assert min(after - before for before, after in pairwise(part.at)) > 0.7
    part.fails = False
    wait_for(lambda: part.service.trouble is None, "it works again", timeout=60)


def test_a_part_that_works_is_called_as_soon_as_it_is_woken(part: Part) -> None:
    part.fails = False
    wait_for(lambda: len(part.at) == 2, "the second step", timeout=60)
    for seen in range(2, 12):
        part.service.wake()
        wait_for(lambda: len(part.at) > seen, "the next step")  # noqa: B023 - called at once


def test_a_part_that_failed_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FIRST_BACKOFF", 3600.0)
    part = Part(last_backoff=3600.0)
    part.service.start()
    wait_for(lambda: part.at, "the first step")
    assert part.service.stop(timeout=60)
