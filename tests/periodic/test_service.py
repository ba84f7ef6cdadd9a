"""The one loop: what wakes it, and what does not."""

import time
from collections.abc import Iterator

import pytest

from scheduler.errors import QueueUnavailable
from scheduler.service import Service
from tests.support.waiting import rest, wait_for


class Part:
    """A step that notes when it was called, and fails while it is told to."""

    def __init__(self) -> None:
        self.fails = True
        self.at: list[float] = []
        self.service = Service("part", self.step)

    def step(self) -> None:
        self.at.append(time.monotonic())
        if self.fails:
            raise QueueUnavailable("Redis: Connection refused")


@pytest.fixture
def part() -> Iterator[Part]:
    made = Part()
    made.service.start()
    yield made
    assert made.service.stop(timeout=5)


def test_whoever_wakes_a_part_that_failed_does_not_make_it_try_without_end(part: Part) -> None:
    end = time.monotonic() + 3.5
    while time.monotonic() < end:
        part.service.wake()
        rest(0.01)
    assert 3 <= len(part.at) <= 6
    part.fails = False
    wait_for(lambda: part.service.trouble is None, "it works again", timeout=3)


def test_a_part_that_works_is_called_as_soon_as_it_is_woken(part: Part) -> None:
    part.fails = False
    wait_for(lambda: len(part.at) == 2, "the second step", timeout=3)
    for seen in range(2, 12):
        part.service.wake()
        wait_for(lambda: len(part.at) > seen, "the next step", timeout=0.5)  # noqa: B023 - called at once


def test_a_part_that_failed_stops_at_once(part: Part) -> None:
    wait_for(lambda: part.at, "the first step")
    began = time.monotonic()
    assert part.service.stop(timeout=5)
    assert time.monotonic() - began < 0.5
