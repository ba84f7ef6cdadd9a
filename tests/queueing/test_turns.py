"""Calls that take jobs run side by side; whoever looks for what was lost waits for them, and they for it."""

import threading

import pytest

from scheduler.dialects.interface import Delivery, Result
from scheduler.model.handling import Handler
from scheduler.queueing.attempt import Attempt
from scheduler.queueing.outbox import LARGEST_BATCH, Outbox
from scheduler.queueing.turns import Turns
from tests.dialects.values import NOW, job
from tests.support.waiting import wait_for

HANDLER = Handler(type="send", queue="mail", fn=lambda *_: None)


def attempt() -> Attempt:
    return Attempt(Delivery(job(), 1, NOW, b""), HANDLER, "w", lambda _: None)


def test_two_take_at_once() -> None:
    turns, both = Turns(), threading.Barrier(2, timeout=10)

    def take() -> None:
        with turns.taking():
            both.wait()  # each is inside while the other is

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not both.broken


def test_whoever_is_alone_waits_for_those_under_way_and_holds_up_the_next() -> None:
    turns, said = Turns(), list[str]()
    inside, go, held = threading.Event(), threading.Event(), threading.Event()

    def take(name: str) -> None:
        with turns.taking():
            inside.set()
            go.wait(10)
            said.append(name)

    def alone() -> None:
        with turns.alone():
            said.append("alone")
            held.wait(10)
            said.append("no longer")

    first = threading.Thread(target=take, args=("first",))
    first.start()
    assert inside.wait(10)
    looking = threading.Thread(target=alone)
    looking.start()
    wait_for(lambda: turns._alone, "somebody wants to be alone")
    second = threading.Thread(target=take, args=("second",))
    second.start()
    go.set()
    wait_for(lambda: said == ["first", "alone"], "the first is over")
    held.set()
    for thread in (first, looking, second):
        thread.join(10)
    assert said == ["first", "alone", "no longer", "second"]


@pytest.mark.parametrize("way", ["taking", "alone"])
def test_a_call_that_fails_is_over(way: str) -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="away"), getattr(turns, way)():
        raise ValueError("away")
    with turns.alone():
        pass


def test_what_was_not_heard_is_said_again_before_anything_else_and_is_not_new() -> None:
    outbox = Outbox()
    lost, fresh = attempt(), attempt()
    outbox.put(lost, Result(lost.delivery, None))
    batch, new = outbox.take([])
    assert new
    outbox.put(fresh, Result(fresh.delivery, None))
    outbox.unheard(batch)
    assert outbox.size() == 2
    assert outbox.take([]) == (batch, False)
    [(next_one, _)], new = outbox.take([])
    assert next_one is fresh
    assert new


def test_a_batch_has_a_limit_and_every_sender_is_let_go() -> None:
    outbox = Outbox()
    for _ in range(LARGEST_BATCH + 1):
        one = attempt()
        outbox.put(one, Result(one.delivery, None))
    outbox.close()
    outbox.close()
    assert len(outbox.take([])[0]) == LARGEST_BATCH
    assert len(outbox.take([])[0]) == 1
    assert outbox.take([])[0] == outbox.take([])[0] == []
