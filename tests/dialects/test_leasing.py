"""Sequence numbers of leases, and the limits that a script is given."""

from concurrent.futures import ThreadPoolExecutor

import orjson

from scheduler.dialects.interface import EVERY_TYPE, Handled
from scheduler.dialects.leasing import NO_FETCH, SequenceNumbers


def test_numbers_count_on_and_never_repeat() -> None:
    numbers = SequenceNumbers()
    assert numbers.fetch(5, EVERY_TYPE, None).first == 1
    assert numbers.fetch(5, EVERY_TYPE, 100).first == 100
    assert numbers.fetch(5, EVERY_TYPE, 50).first == 50
    assert numbers.fetch(5, EVERY_TYPE, None).first == 105
    assert numbers.fetch(0, EVERY_TYPE, None) == NO_FETCH
    assert numbers.fetch(1, EVERY_TYPE, None).first == 110


def test_threads_never_share_a_number() -> None:
    numbers = SequenceNumbers()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: numbers.fetch(3, EVERY_TYPE, None).first, range(1000)))
    assert sorted(found) == list(range(1, 3001, 3))


def test_only_types_that_can_reach_their_limit_are_sent() -> None:
    numbers = SequenceNumbers()
    handled = Handled(free={"none": 0, "one": 1, "many": 5, "more": 9})
    assert orjson.loads(numbers.fetch(5, handled, None).limits) == {"none": 0, "one": 1}
    assert numbers.fetch(5, Handled(free={"many": 5}), None).limits == b""
