"""The timeline follows from its seed, has every fault, and lets no lane overlap itself."""

from itertools import pairwise

from tests.chaos.plan import LANES, timeline


def test_a_seed_is_a_timeline() -> None:
    assert timeline(7, 60) == timeline(7, 60)
    assert timeline(7, 60) != timeline(8, 60)


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    short, long = timeline(7, 60), timeline(7, 600)
    for name in LANES:
        first = [fault for fault in short if fault.lane == name]
        assert [fault for fault in long if fault.lane == name][: len(first)] == first


def test_half_an_hour_has_every_fault_of_every_lane() -> None:
    found = {
        (fault.lane, fault.kind, fault.detail if fault.kind != "clock" else "")
        for fault in timeline(7, 1800)
    }
    assert found == {(name, *kind) for name, lane in LANES.items() for kind in lane.kinds}


def test_a_fault_of_a_lane_is_over_before_the_next_begins_and_all_are_in_time() -> None:
    faults = timeline(7, 600)
    for name in LANES:
        for before, after in pairwise(fault for fault in faults if fault.lane == name):
            assert before.at + before.seconds < after.at
    assert max(fault.at + fault.seconds for fault in faults) <= 600
