"""Shares: the room of each priority, evenly over its tenants."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.fairness import RESERVED, Share, Waiting, shares

AT = datetime(2030, 1, 1, tzinfo=UTC)


def waits(priority: int, *tenants: str, due: bool = True) -> list[Waiting]:
    return [Waiting("default", priority, tenant, AT, due) for tenant in tenants]


def test_the_room_is_divided_evenly_and_the_first_have_what_is_left_over() -> None:
    assert shares(waits(2, "a", "b", "c"), {2: 8}, 100) == [
        Share(2, "a", 3),
        Share(2, "b", 3),
        Share(2, "c", 2),
    ]


def test_with_less_room_than_tenants_the_first_have_one_each() -> None:
    assert shares(waits(2, "a", "b", "c"), {2: 2}, 100) == [Share(2, "a", 1), Share(2, "b", 1)]


def test_what_is_not_due_or_has_no_room_gets_nothing() -> None:
    waiting = [*waits(0, "a"), *waits(1, "a"), *waits(2, "a", due=False), *waits(2, "b")]
    assert shares(waiting, {1: 0, 2: 5}, 100) == [Share(2, "b", 5)]


def test_a_higher_priority_comes_first_and_leaves_a_part_to_each_below() -> None:
    waiting = [*waits(4, "a"), *waits(0, "a"), *waits(2, "a")]
    assert shares(waiting, {0: 500, 2: 500, 4: 500}, 100) == [
        Share(0, "a", 80),
        Share(2, "a", 10),
        Share(4, "a", 10),
    ]
    assert shares(waiting, {0: 30, 2: 500, 4: 500}, 100) == [
        Share(0, "a", 30),
        Share(2, "a", 60),
        Share(4, "a", 10),
    ]


def test_a_batch_of_one_goes_to_the_highest() -> None:
    assert shares([*waits(3, "a"), *waits(1, "a", "b")], {1: 5, 3: 5}, 1) == [Share(1, "a", 1)]


def test_nobody_waits() -> None:
    assert shares([], {2: 5}, 100) == []


@given(
    waiting=st.lists(
        st.builds(
            Waiting,
            st.just("q"),
            st.integers(0, 4),
            st.sampled_from("abcdef"),
            st.just(AT),
            st.booleans(),
        ),
        unique_by=lambda each: (each.priority, each.tenant),
    ),
    room=st.dictionaries(st.integers(0, 4), st.integers(0, 50)),
    batch=st.integers(1, 100),
)
def test_shares_keep_to_the_room_and_to_the_batch(
    waiting: list[Waiting], room: dict[int, int], batch: int
) -> None:
    divided = shares(waiting, room, batch)
    assert [share.priority for share in divided] == sorted(share.priority for share in divided)
    assert len({(share.priority, share.tenant) for share in divided}) == len(divided)
    assert sum(share.count for share in divided) <= batch
    levels = {each.priority for each in waiting if each.due and room.get(each.priority, 0) > 0}
    for priority in levels:
        counts = [share.count for share in divided if share.priority == priority]
        tenants = {each.tenant for each in waiting if each.due and each.priority == priority}
        assert sum(counts) <= room[priority]
        assert all(count >= 1 for count in counts)
        assert max(counts, default=0) - min(counts, default=0) <= 1
        if batch >= RESERVED:
            assert sum(counts) >= min(room[priority], batch // RESERVED)
            assert len(counts) == min(len(tenants), sum(counts))
