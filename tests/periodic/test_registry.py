"""The registry: local writes against syncs, and a heap that does not grow."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduler.model.body import Body
from scheduler.model.definition import JobSpec, Key
from scheduler.model.schedules import Every
from scheduler.periodic.registry import Registered, Registry
from scheduler.store.job import JobRow

AT = datetime(2030, 1, 1, tzinfo=UTC)
KEY = Key("acme", "x")
SPEC = JobSpec(schedule=Every(every=timedelta(hours=1)))
BODY = Body.of(lambda: None)
ROW = JobRow(*KEY, SPEC.hash(), AT, None, None, None, None, None, None, None, SPEC.to_json())


def mine() -> Registered:
    return Registered(key=KEY, body=BODY, spec=SPEC, spec_hash=SPEC.hash())


def registered() -> Registry:
    registry = Registry()
    registry.reserve({KEY: mine()})
    registry.attach(KEY, SPEC, SPEC.hash(), AT)
    return registry


def test_a_sync_that_read_before_a_registration_does_not_drop_it() -> None:
    registry = Registry()
    epoch = registry.epoch()
    registry.reserve({KEY: mine()})
    registry.attach(KEY, SPEC, SPEC.hash(), AT)
    assert registry.merge([], epoch=epoch).jobs == 1
    assert registry.merge([], epoch=registry.epoch()).jobs == 0


def test_a_sync_that_read_before_an_unregistration_does_not_bring_it_back() -> None:
    registry = registered()
    epoch = registry.epoch()
    registry.forget(KEY, known=True)
    assert registry.merge([ROW], epoch=epoch).jobs == 0
    assert registry.merge([ROW], epoch=registry.epoch()).jobs == 1  # registered again, elsewhere


def test_a_sync_that_read_before_a_claim_does_not_turn_it_back() -> None:
    registry = registered()
    epoch = registry.epoch()
    (entry,) = registry.due(AT, 10)
    registry.put_back(entry, AT + timedelta(hours=1))
    registry.merge([ROW], epoch=epoch)
    assert registry.next_due() == AT + timedelta(hours=1)
    assert registry.due(AT, 10) == []


def test_what_is_taken_is_given_out_once_and_comes_back_when_it_is_handed_back() -> None:
    registry = registered()
    (entry,) = registry.due(AT, 10)
    assert registry.due(AT, 10) == []
    registry.put_back(entry, AT, not_before=AT + timedelta(seconds=1))
    assert registry.due(AT, 10) == []
    assert registry.hasten(KEY)
    assert registry.due(AT, 10) == [entry]


def test_the_heap_does_not_grow_with_registrations_that_are_gone() -> None:
    registry = Registry()
    for _ in range(5000):
        registry.reserve({KEY: mine()})
        registry.attach(KEY, SPEC, SPEC.hash(), AT)
        registry.forget(KEY, known=True)
    registry.merge([], epoch=registry.epoch())
    assert len(registry._heap) == 0
    assert registry._gone == {}


@pytest.mark.parametrize(("chance", "theirs"), [(0.0, False), (0.49, False), (0.51, True)])
def test_who_lost_a_fire_looks_at_the_next_a_little_later_unless_chance_wants_it(
    monkeypatch: pytest.MonkeyPatch, chance: float, theirs: bool
) -> None:
    monkeypatch.setattr("scheduler.periodic.entry.random.random", lambda: chance)
    registry = registered()
    [entry] = registry.due(AT, 10)
    following = AT + timedelta(hours=1)
    entry.lost(2)
    registry.put_back(entry, following)
    seen = registry.next_due()
    assert seen is not None
    assert entry.theirs is theirs
    assert (
        timedelta(0) < seen - following < timedelta(seconds=0.3)
    ) is theirs  # far from the grace of a minute
    assert bool(registry.due(following, 10)) is not theirs
    if theirs:
        assert registry.due(following + timedelta(seconds=0.3), 0) == []
        assert registry.due(following + timedelta(seconds=0.3), 1) == [
            entry
        ]  # whoever should have taken it may be dead
