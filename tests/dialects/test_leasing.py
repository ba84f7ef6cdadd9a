"""Sequence numbers of leases, and the limits that a script is given."""

from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest

from scheduler.dialects.interface import EVERY_TYPE, Handled
from scheduler.dialects.leasing import NO_FETCH, SequenceNumbers, begun_mark, mark_bytes, mark_of


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


@pytest.mark.parametrize(
    ("last", "unbegun", "text"),
    [
        (0, [], "1:7:0:"),
        (149, [], "1:7:149:"),
        (199, [range(100, 150)], "1:7:199:100-149"),
        (199, [range(150, 200), range(3, 4), range(4, 5)], "1:7:149:3-4"),
        (199, [range(10, 20), range(15, 30), range(30, 30)], "1:7:199:10-29"),
        (199, [range(1, 200)], "1:7:0:"),
    ],
)
def test_a_begun_mark_names_the_leases_that_have_not_begun(
    last: int, unbegun: list[range], text: str
) -> None:
    mark = begun_mark(7, last, unbegun)
    assert mark_bytes(mark) == text
    read = mark_of(text.encode())
    assert read is not None
    for sequence in range(1, 210):
        begun = sequence <= last and not any(sequence in each for each in unbegun)
        assert mark.includes(sequence) == read.includes(sequence) == begun


def test_a_begun_mark_has_a_limited_number_of_ranges() -> None:
    unbegun = [range(n, n + 1) for n in range(2, 1000, 2)]
    mark = begun_mark(1, 2000, unbegun)
    assert len(mark_bytes(mark)) < 1000
    assert mark.includes(99)
    assert not any(mark.includes(n) for n in range(2, 1000, 2))


@pytest.mark.parametrize("text", [None, b"", b"9", b"garbage", b"1:1:5:7", b"2:1:5:", b"1:x:5:"])
def test_an_unreadable_begun_mark_is_none(text: bytes | None) -> None:
    assert mark_of(text) is None
