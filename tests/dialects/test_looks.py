"""When a worker that waits looks again, though answers may overtake each other."""

import math
import time

import pytest

from scheduler.dialects.looks import PASSED_MS, YIELD_FOR_S, YIELD_MS, NextLook


def test_an_answer_that_was_overtaken_hides_no_retry() -> None:
    look = NextLook()
    first = time.monotonic()
    second = time.monotonic()
    look.heard(50, second)  # the later call saw a retry that is due soon
    due = look.at
    look.heard(-1, first)  # the earlier one, answered late, had not seen it
    assert look.at == due


def test_what_was_due_before_a_call_began_has_been_looked_at() -> None:
    look = NextLook()
    look.heard(0, time.monotonic() - 1)
    look.heard(-1, time.monotonic() + 0.001)
    assert look.at == math.inf


def test_a_sooner_moment_counts() -> None:
    look = NextLook()
    look.heard(5_000, time.monotonic())
    look.heard(100, time.monotonic())
    assert look.at < time.monotonic() + 1


def test_a_worker_that_passed_over_jobs_looks_again_soon() -> None:
    look = NextLook()
    states: list[bool] = []
    look.heard(-1, time.monotonic(), 3)
    states.append(look.passed_over)
    assert look.at <= time.monotonic() + PASSED_MS / 1000
    look.heard(5_000, time.monotonic() + 1)
    states.append(look.passed_over)
    assert look.at > time.monotonic() + 1
    assert states == [True, False]


def test_a_worker_that_yields_looks_later(monkeypatch: pytest.MonkeyPatch) -> None:
    look, now = NextLook(), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    look.yield_to_others()
    look.heard(2_000, now)
    assert look.at == now + 2 + YIELD_MS / 1000
    look = NextLook()
    look.yield_to_others()
    look.heard(-1, now)
    assert look.at == math.inf
    now += YIELD_FOR_S
    look.heard(2_000, now)
    assert look.at == now + 2
