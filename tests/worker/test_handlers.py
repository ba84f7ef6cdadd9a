"""What a worker knows by name."""

import random
from datetime import timedelta

import pytest

import scheduler
from scheduler import InvalidName, InvalidOption, RetryPolicy
from scheduler.worker import handlers


def test_a_backoff_is_registered_by_name_and_held_to_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handlers, "backoffs", {})

    @scheduler.backoff("fibonacci")
    def fibonacci(attempt: int, initial: timedelta, longest: timedelta) -> timedelta:
        return initial * (1, 1, 2, 3, 5)[attempt - 1]

    policy = RetryPolicy(backoff="fibonacci", jitter=False, max_delay="4s")
    delays = [
        policy.delay(n, rng=random.Random(1), backoffs=handlers.backoffs) for n in (1, 2, 3, 4, 5)
    ]
    assert [delay.total_seconds() for delay in delays] == [1, 1, 2, 3, 4]
    with pytest.raises(InvalidOption, match="already a backoff"):
        scheduler.backoff("fibonacci")(lambda attempt, initial, longest: initial)
    with pytest.raises(InvalidOption, match="built-in"):
        scheduler.backoff("linear")
    with pytest.raises(InvalidName):
        scheduler.backoff("")


@pytest.mark.parametrize("name", ["endless", "exponential"])
def test_a_delay_too_long_for_a_timedelta_is_the_maximum(name: str) -> None:
    def endless(attempt: int, initial: timedelta, longest: timedelta) -> timedelta:
        return timedelta(seconds=1e300)

    policy = RetryPolicy(backoff=name, jitter=False, multiplier=1000.0, max_delay="4s")
    delay = policy.delay(10**6, rng=random.Random(1), backoffs={"endless": endless})
    assert delay == timedelta(seconds=4)


def test_a_handler_of_all_types_cannot_have_a_concurrency() -> None:
    with pytest.raises(InvalidOption, match="cannot have a concurrency"):
        handlers.handler("*", queue="mail", concurrency=2)
