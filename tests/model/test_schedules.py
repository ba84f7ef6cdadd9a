"""The arithmetic of fires, by example and by hypothesis."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import InvalidOption, InvalidSchedule
from scheduler.model.cron import Cron
from scheduler.model.definition import JobSpec
from scheduler.model.durations import duration
from scheduler.model.schedules import USUAL, CatchUp, Every, Once, Policy, due, instant, reschedule
from scheduler.model.texts import storable

NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
intervals = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=400))
instants = st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(every=intervals, seen=instants, late=st.timedeltas(timedelta(0), timedelta(days=3000)))
def test_every_fire_is_run_or_missed(every: timedelta, seen: datetime, late: timedelta) -> None:
    now = seen + late
    decision = due(Every(every=every), USUAL, seen=seen, now=now)
    assert decision.fire_at <= now
    assert decision.next_run_at == decision.fire_at + every
    assert decision.fire_at == seen + every * decision.missed_count
    if late <= MINUTE:
        assert decision.missed_count == 0
    else:
        assert decision.next_run_at > now
    assert (decision.missed_from is None) == (decision.missed_count == 0)


def test_two_weeks_of_a_one_second_job_are_one_run() -> None:
    decision = due(
        Every(every=timedelta(seconds=1)), USUAL, seen=NOON, now=NOON + timedelta(days=14)
    )
    assert (decision.missed_from, decision.missed_count) == (NOON, 14 * 86_400)


def test_a_late_one_time_job_runs_once() -> None:
    decision = due(Once(), USUAL, seen=NOON, now=NOON + timedelta(days=9))
    assert (decision.fire_at, decision.next_run_at, decision.missed_count) == (NOON, None, 0)


@given(
    every=intervals, last=instants, now=instants, start=st.none() | instants, known=st.booleans()
)
def test_a_fire_is_never_given_out_again(
    every: timedelta, last: datetime, now: datetime, start: datetime | None, known: bool
) -> None:
    plan = Every(every=every, start_at=start)
    before = Every(every=2 * every) if known else None
    following = reschedule(
        plan, created_at=now, last_fire_at=last, next_run_at=None, now=now, before=before
    )
    assert following is not None
    assert following > last


def at(
    plan: Every | Once,
    *,
    known: bool,
    last: datetime | None = None,
    following: datetime | None = None,
) -> object:
    week = timedelta(days=7)
    before = Every(every=week) if known else None
    return reschedule(
        plan,
        created_at=NOON - week,
        last_fire_at=last,
        next_run_at=following,
        now=NOON,
        before=before,
    )


def test_reschedule_by_example() -> None:
    hour, day = timedelta(hours=1), timedelta(days=1)
    # A new job: one interval from now, or at its start, future or past.
    fresh = reschedule(
        Every(every=day),
        created_at=NOON,
        last_fire_at=None,
        next_run_at=None,
        now=NOON,
        before=None,
    )
    assert fresh == NOON + day
    assert at(Every(every=day, start_at=NOON - hour), known=False) == NOON - hour
    # A changed interval goes on from the last fire, and does not fire in the past.
    assert at(Every(every=day), known=True, last=NOON - hour) == NOON + day - hour
    assert at(Every(every=hour), known=True, last=NOON - day) == NOON
    # Never fired: from its first registration.
    assert at(Every(every=8 * day), known=True) == NOON + day
    assert at(Every(every=day, start_at=NOON + hour), known=True, last=NOON - day) == NOON + hour
    # Registered anew after it was unregistered: on its grid, after the last fire.
    assert at(Every(every=day, start_at=NOON - 2 * day), known=False, last=NOON - day) == NOON
    # Changed in something else: its fires stay, also those that wait.
    same = Every(every=hour, start_at=NOON - day)
    args = {
        "created_at": NOON - day,
        "last_fire_at": NOON - 3 * hour,
        "next_run_at": NOON - 2 * hour,
        "now": NOON,
    }
    assert reschedule(same, before=same, **args) == NOON - 2 * hour
    # One-time jobs.
    assert at(Once(), known=False) == NOON
    assert at(Once(), known=True, last=NOON - day) is None
    assert at(Once(), known=True, following=NOON - hour) == NOON - hour
    assert at(Once(start_at=NOON - day), known=True, last=NOON - day) is None
    assert at(Once(start_at=NOON + day), known=True, last=NOON - day) == NOON + day


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("15m", 900),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("2d", 172_800),
        ("1w", 604_800),
        ("1m 30s", 90),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text, name="x") == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "m", "1x", "-5m", "5m!", "1" * 200 + "s", "nan s", "0s", "9" * 90 + "w"]
)
def test_bad_durations(text: str) -> None:
    with pytest.raises(InvalidOption, match="x "):
        duration(text, name="x")


def test_instants_become_utc() -> None:
    moment = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    assert instant(moment, name="x") == datetime(2030, 1, 1, 7, tzinfo=UTC)
    assert instant(moment, name="x").tzinfo is UTC
    for bad in (
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime(2030, 1, 1),  # noqa: DTZ001
    ):
        with pytest.raises(InvalidSchedule):
            instant(bad, name="x")


@given(every=st.none() | intervals, start=st.none() | instants, timeout=st.none() | intervals)
def test_definitions_survive_their_json_and_hash_alike(
    every: timedelta | None, start: datetime | None, timeout: timedelta | None
) -> None:
    plan = Once(start_at=start) if every is None else Every(every=every, start_at=start)
    spec = JobSpec(schedule=plan, timeout=timeout, delivery="at_most_once")
    again = JobSpec.from_json(spec.to_json())
    assert again == spec
    assert again.hash() == spec.hash()
    assert JobSpec(schedule=plan, timeout=timeout).hash() != spec.hash()


def test_a_definition_of_a_later_version_is_known_and_not_run() -> None:
    for later in (
        '"moon": "full"',
        '"misfire": "pray"',
        '"overlap": "merge"',
        '"cron": "0 0 15W * *"',
    ):
        assert JobSpec.from_json(f'{{"every_us": 1000000, {later}}}').foreign
    assert JobSpec.from_json('{"cron": "0 6 * * *", "timezone": "Mars/Base"}').foreign
    assert JobSpec(schedule=Every(every=MINUTE)).to_json() == '{"every_us": 60000000}'


@given(text=st.text(), longest=st.integers(0, 50))
def test_any_text_becomes_storable(text: str, longest: int) -> None:
    stored = storable(text + "\0\ud800", longest)
    assert "\0" not in stored
    stored.encode()
    assert len(stored) <= longest + 40


def test_a_deploy_loses_and_doubles_no_fire_of_a_cron() -> None:
    six = Cron(expression="0 6 * * *")
    args = {"created_at": NOON, "last_fire_at": NOON - timedelta(days=2)}
    overdue = NOON - timedelta(hours=6)
    changed = reschedule(
        Cron(expression="0 7 * * *"), next_run_at=overdue, now=NOON, before=six, **args
    )
    assert changed == overdue
    later = Cron(expression="0 6 * * *", offset=timedelta(minutes=50))
    tomorrow = NOON + timedelta(hours=18)
    spread = reschedule(later, next_run_at=tomorrow, now=NOON, before=six, **args)
    assert spread == tomorrow + timedelta(minutes=50)
    back = reschedule(six, next_run_at=spread, now=NOON, before=later, **args)
    assert back == tomorrow


def test_years_of_a_daily_cron_are_caught_up_with_in_a_moment() -> None:
    policy = Policy(
        misfire="catch_up", catch_up=CatchUp(max_count=3, max_age=timedelta(days=36_500))
    )
    decision = due(
        Cron(expression="0 6 * * *"), policy, seen=NOON - timedelta(days=1826, hours=6), now=NOON
    )
    assert (decision.skipped, decision.fire_at) == ("misfire", NOON - timedelta(days=3, hours=6))
    assert decision.missed_count == 1823


@pytest.mark.parametrize(
    "text", ["[]", "7", "{", '{"start_at": "soon"}', '{"every_us": "x"}', '{"catch_up_count": {}}']
)
def test_what_cannot_be_read_is_foreign_and_never_an_error(text: str) -> None:
    spec = JobSpec.from_json(text)
    assert spec.foreign
