"""A circuit breaker: its window, and each change of its state."""

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scheduler
from scheduler import BreakerRule, ConfigError
from scheduler.model.breaker import PARTS, Breaker, BreakerState

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN
RULE = BreakerRule(failure_threshold=0.5, window="60s", cooldown_period="30s", min_samples=4)


def opened(at: float = 100.0) -> Breaker:
    breaker = Breaker(RULE)
    breaker.record(0, 4, at)
    assert breaker.state is OPEN
    return breaker


def half_open(at: float = 130.0) -> Breaker:
    breaker = opened(at - 30)
    assert breaker.allow(10, at) == 1
    assert breaker.state is HALF_OPEN
    return breaker


def test_the_defaults_are_those_of_the_original() -> None:
    assert BreakerRule().checked() == scheduler.BreakerRule(
        failure_threshold=0.5,
        window=timedelta(minutes=1),
        cooldown_period=timedelta(seconds=30),
        min_samples=20,
    )


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("failure_threshold", 0),
        ("failure_threshold", 1.01),
        ("failure_threshold", True),
        ("failure_threshold", "1"),
        ("failure_threshold", math.nan),
        ("window", "0s"),
        ("window", 60),
        ("cooldown_period", "soon"),
        ("cooldown_period", timedelta(0)),
        ("min_samples", 0),
        ("min_samples", 1.5),
        ("min_samples", True),
    ],
)
def test_what_is_wrong_in_a_rule_is_named(part: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"breaker: {part}"):
        Breaker(BreakerRule(**{part: value}))


def test_sliding_window_of_recent_results() -> None:
    breaker = Breaker(RULE)
    breaker.record(0, 3, 0.0)
    breaker.record(0, 1, 61.0)  # the three have left it
    assert (breaker.state, breaker.total, breaker.failed) == (CLOSED, 1, 1)
    breaker.record(0, 3, 119.0)
    assert breaker.state is OPEN


@pytest.mark.parametrize(
    ("succeeded", "failed", "state"), [(3, 2, CLOSED), (2, 2, OPEN), (0, 9, OPEN), (9, 8, CLOSED)]
)
def test_failure_rate_fails_of_total_compared_to_failure_threshold(
    succeeded: int, failed: int, state: BreakerState
) -> None:
    breaker = Breaker(RULE)
    breaker.record(succeeded, failed, 5.0)
    assert breaker.state is state


def test_min_samples_below_them_no_rate_counts() -> None:
    breaker = Breaker(RULE)
    breaker.record(0, 3, 5.0)
    assert breaker.state is CLOSED
    assert breaker.allow(500, 5.0) == 500


def test_closed_to_open_on_threshold() -> None:
    breaker = Breaker(RULE)
    breaker.record(2, 0, 1.0)
    breaker.record(0, 1, 2.0)
    assert breaker.state is CLOSED
    breaker.record(0, 1, 3.0)
    assert (breaker.state, breaker.since, breaker.trips) == (OPEN, 3.0, 1)
    assert breaker.allow(1, 4.0) == 0
    assert breaker.pause(4.0) == 29.0


def test_open_to_half_open_on_cooldown_with_exactly_one_probe() -> None:
    breaker = opened(at=100.0)
    assert breaker.allow(10, 129.9) == 0
    assert breaker.state is OPEN
    assert breaker.allow(10, 130.0) == 1
    assert breaker.state is HALF_OPEN
    assert breaker.allow(10, 130.0) == breaker.allow(10, 999.0) == 0
    assert breaker.pause(999.0) == math.inf


def test_half_open_to_closed_on_success() -> None:
    breaker = half_open()
    breaker.record(1, 0, 131.0)
    assert (breaker.state, breaker.total) == (CLOSED, 0)
    assert breaker.allow(10, 131.0) == 10
    breaker.record(0, 3, 132.0)  # what failed before it closed does not count again
    assert breaker.state is CLOSED


def test_half_open_else_open() -> None:
    breaker = half_open()
    breaker.record(0, 1, 131.0)
    assert (breaker.state, breaker.trips) == (OPEN, 2)
    assert breaker.pause(131.0) == 30.0


def test_results_while_open_change_nothing() -> None:
    breaker = opened(at=100.0)
    breaker.record(1000, 0, 101.0)
    breaker.record(0, 1000, 120.0)
    assert (breaker.state, breaker.since, breaker.trips) == (OPEN, 100.0, 1)
    assert breaker.pause(130.0) == 0
    breaker.record(1, 0, 130.0)  # nobody was sent
    assert breaker.state is HALF_OPEN


def test_a_probe_that_says_nothing_is_followed_by_another() -> None:
    breaker = half_open()
    breaker.record(0, 0, 131.0)
    breaker.forget()
    assert breaker.state is HALF_OPEN
    assert breaker.allow(5, 131.0) == 1
    assert breaker.allow(5, 131.0) == 0


class Naive:
    """What a breaker is to do, with all results in a list."""

    def __init__(self) -> None:
        self.results: list[tuple[float, bool]] = []
        self.state, self.since, self.probing = CLOSED, 0.0, False

    def allow(self, wanted: int, now: float) -> int:
        if wanted == 0:
            return 0
        if self.state is OPEN and now - self.since >= 30:
            self.state, self.since, self.probing = HALF_OPEN, now, False
        if self.state is CLOSED:
            return wanted
        if self.state is OPEN or self.probing:
            return 0
        self.probing = True
        return 1

    def record(self, succeeded: int, failed: int, now: float) -> None:
        if self.state is HALF_OPEN and self.probing and succeeded + failed:
            self.state, self.since, self.probing = OPEN if failed else CLOSED, now, False
            self.results = []
        elif self.state is CLOSED and succeeded + failed:
            self.results += [(now, True)] * succeeded + [(now, False)] * failed
            recent = [good for at, good in self.results if now // 1 - at // 1 < 60]
            if len(recent) >= 4 and recent.count(False) / len(recent) >= 0.5:
                self.state, self.since = OPEN, now


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["record", "allow", "forget"]),
            st.sampled_from([0.0, 0.25, 1.0, 7.0, 29.0, 30.0, 59.0, 61.0]),
            st.integers(0, 3),
            st.integers(0, 3),
        ),
        max_size=80,
    )
)
def test_it_does_as_a_naive_one(steps: list[tuple[str, float, int, int]]) -> None:
    breaker, naive, now = Breaker(RULE), Naive(), 0.0
    for what, passed, good, bad in steps:
        now += passed
        if what == "record":
            breaker.record(good, bad, now)
            naive.record(good, bad, now)
        elif what == "allow":
            assert breaker.allow(good, now) == naive.allow(good, now)
        else:
            breaker.forget()
            naive.probing = False
        assert breaker.state is naive.state
        assert len(breaker._parts) <= PARTS


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=60
    )
)
def test_a_result_counts_for_its_window_less_at_most_one_part(
    steps: list[tuple[float, int, int]],
) -> None:
    breaker, results, now = Breaker(BreakerRule(window="60s", min_samples=10_000)), [], 0.0
    for passed, good, bad in steps:
        now += passed
        breaker.record(good, bad, now)
        results.append((now, good + bad, bad))
        for index, counted in ((1, breaker.total), (2, breaker.failed)):
            surely = sum(each[index] for each in results if now - each[0] < 59 - 1e-6)
            perhaps = sum(each[index] for each in results if now - each[0] < 60 + 1e-6)
            assert surely <= counted <= perhaps
