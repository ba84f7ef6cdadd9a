"""Cron against cronsim and croniter, at every change of the clocks, and by example."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from croniter import croniter
from cronsim import CronSim, CronSimError
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.errors import InvalidSchedule
from scheduler.model.cron import Cron, cron
from scheduler.model.expressions import ALIASES
from tests.model.cronsim_differences import RULES, Change, Difference, Rule, changes, explain

NONE = timedelta(0)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BEGIN, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
EXPRESSIONS = [
    "30 2 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "15,45 0-3 * * *",
    "0-59/20 1,2,3 * * *",
    "5/25 0-23/2 * * *",
    "0 0 1 * *",
    "30 1 L * *",
    "30 2 * * SUN",
    "30 2 * * SUN#2",
    "30 2 * * 0L",
    "0 3 * MAR,OCT 1-5",
    "0 1 */2 * */3",
    "15 2 8-14 * 7",
    "*/15 * * * *",
    "*/7 1-3 * * *",
    "30 * * * *",
    "0 */2 * * *",
    "*/30 2 * * SUN",
    "* 0 * * *",
    "*/10 2 * * *",
    "*/10 2 * * *",
    "20 1-3/2 * * 5-7",
    "15 30 2 * * *",
    "0,30 0 0 * * *",
    "*/20 59 1-3 * * *",
    "30 */30 0-5 * * *",
]


def plan(expression: str, zone: str = "UTC", offset: timedelta = NONE) -> Cron:
    return cron(expression, zone, start_at=None, offset=offset)


def iterate(one: Cron, moment: datetime) -> Iterator[datetime]:
    following = one.following(moment)
    while following is not None:
        yield following
        following = one.following(following)


def between(one: Cron, begin: datetime, end: datetime) -> list[datetime]:
    fires = []
    for fire in iterate(one, begin):
        if fire >= end:
            break
        fires.append(fire)
    return fires


def by_cronsim(expression: str, zone: str, begin: datetime, end: datetime) -> list[datetime]:
    fires = []
    for local in CronSim(expression, begin.astimezone(ZoneInfo(zone))):
        fire = local.astimezone(UTC)
        if fire >= end:
            break
        if fire > begin:
            fires.append(fire)
    return fires


def differences(
    expression: str, zone: str, begin: datetime, end: datetime, known: tuple[Change, ...]
) -> list[Difference]:
    ours, theirs = (
        between(plan(expression, zone), begin, end),
        by_cronsim(expression, zone, begin, end),
    )
    if ours == theirs:
        return []
    return [
        Difference(expression, zone, fire, fire in ours, known)
        for fire in sorted(set(ours) ^ set(theirs))
    ]


def unexplained(
    expression: str, zone: str, begin: datetime, end: datetime, known: tuple[Change, ...]
) -> list[str]:
    return [
        (
            f"{one.expression} in {one.zone}: only {'ours' if one.ours else 'cronsim'} fires at "
            f"{one.local}"
        )
        for one in differences(expression, zone, begin, end, known)
        if explain(one) is None
    ]


def test_every_change_of_every_zone_is_as_in_cronsim_or_a_rule_says_why() -> None:
    zones: dict[tuple[timedelta | Change | None, ...], list[str]] = defaultdict(list)
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        zones[(BEGIN.astimezone(zone).utcoffset(), *changes(zone, BEGIN, END, DAY))].append(name)
    assert {name for alike in zones.values() for name in alike} == available_timezones()
    assert sum(len(known) - 1 for known in zones) > 100
    found = []
    for (_, *some), (zone_name, *_) in zones.items():
        known = tuple(change for change in some if isinstance(change, Change))
        for change in known:
            for expression in EXPRESSIONS:
                found += unexplained(
                    expression, zone_name, change.at - DAY, change.at + 2 * DAY, known
                )
            found += unexplained(
                "* * * * *", zone_name, change.at - 2 * HOUR, change.at + 3 * HOUR, known
            )
    assert found == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_still_explains_a_difference(rule: Rule) -> None:
    expression, zone, begin = rule.example
    known = tuple(changes(ZoneInfo(zone), begin - 2 * DAY, begin + 5 * DAY, HOUR))
    found = differences(expression, zone, begin, begin + 3 * DAY, known)
    assert found
    assert {explain(one) for one in found} == {rule.name}


def numbers(low: int, high: int, *names: str) -> st.SearchStrategy[str]:
    one = st.integers(low, high).map(str)
    pair = st.tuples(st.integers(low, high), st.integers(low, high)).filter(
        lambda two: two[0] < two[1]
    )
    span = pair.map(lambda two: f"{two[0]}-{two[1]}")
    step = st.integers(1, high)
    part = st.one_of(
        one,
        span,
        st.builds("{}/{}".format, span, step),
        st.builds("{}/{}".format, st.integers(low, high - 1), step),
        *([st.sampled_from(names)] if names else []),
    )
    several = st.lists(part, min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), several, step.map("*/{}".format))


MONTHS = ("JAN", "FEB", "mar", "APR-JUN", "oct", "NOV", "DEC")
WEEK_DAYS = ("SUN", "MON", "tue", "WED-FRI", "sat")
seconds, minutes, hours = numbers(0, 59), numbers(0, 59), numbers(0, 23)
month_days = numbers(1, 31) | st.sampled_from(["L", "1,L", "*"])
months = st.just("*") | numbers(1, 12, *MONTHS)
nth = st.builds("{}#{}".format, st.sampled_from([*range(8), "MON", "fri"]), st.integers(1, 5))
week_days = st.one_of(
    st.just("*"),
    numbers(0, 6, *WEEK_DAYS),
    st.sampled_from(["7", "5-7", "0-7", "0L", "5L"]),
    st.lists(nth, min_size=1, max_size=2).map(",".join),
)
five = st.tuples(minutes, hours, month_days, months, week_days).map(" ".join)
expressions = five | st.builds("{} {}".format, seconds, five)


@st.composite
def windows(draw: st.DrawFn) -> tuple[str, datetime, tuple[Change, ...]]:
    """A zone and an instant, mostly a little before a change of its clocks."""
    name = draw(st.sampled_from(sorted(available_timezones())))
    begin = draw(st.datetimes(datetime(1972, 1, 3), datetime(2036, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
    begin = begin.replace(microsecond=0)
    year = changes(ZoneInfo(name), begin, begin + 366 * DAY, 2 * DAY)
    if year:
        begin = draw(st.sampled_from(year)).at - draw(st.timedeltas(-HOUR, 2 * DAY)) // HOUR * HOUR
    return name, begin, tuple(changes(ZoneInfo(name), begin - 2 * DAY, begin + 4 * DAY, HOUR))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(expression=expressions, window=windows())
def test_any_schedule_fires_as_in_cronsim_or_a_rule_says_why(
    expression: str, window: tuple[str, datetime, tuple[Change, ...]]
) -> None:
    zone, begin, known = window
    # Where a stretch repeats from 23:01 on, as once in Newfoundland, cronsim turns back again and
    # again without end.
    assume(not any(change.shift < NONE and change.repeats_from.minute == 1 for change in known))
    try:
        CronSim(expression, begin)
        one = plan(expression, zone)
    except (CronSimError, InvalidSchedule):
        assume(False)
    near = islice(iterate(one, begin), 150)
    end = min(begin + 2 * DAY, max(near, default=begin))
    assert unexplained(expression, zone, begin, end, known) == []


@settings(max_examples=150, derandomize=True, deadline=None)
@given(expression=expressions, begin=st.datetimes(datetime(1990, 1, 1), datetime(2080, 1, 1)))  # noqa: DTZ001
def test_in_utc_every_fire_is_croniters(expression: str, begin: datetime) -> None:
    begin = begin.replace(tzinfo=UTC)
    try:
        one = plan(expression)
    except InvalidSchedule:
        assume(False)
    *time_of_day, month_day, month, week_day = expression.upper().split()
    either = not (month_day.startswith("*") or week_day.startswith("*"))
    # croniter finds no day where both fields say which of the month.
    assume(month_day == "*" or not {"L", "#"} & set(week_day))
    if week_day.endswith("L"):
        week_day = f"L{week_day[:-1]}"
    if len(time_of_day) == 3:  # in six fields croniter knows no seventh day
        week_day = {"7": "0", "5-7": "5-6,0", "0-7": "0-6"}.get(week_day, week_day).replace(
            "7#", "0#"
        )
    reference = croniter(
        " ".join([*time_of_day, month_day, month, week_day]),
        begin,
        ret_type=datetime,
        day_or=either,
        second_at_beginning=True,
    )
    for fire in islice(iterate(one, begin), 20):
        assert fire == reference.get_next()


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    expression=expressions,
    window=windows(),
    late=st.timedeltas(NONE, 3 * DAY),
    offset=st.timedeltas(NONE, DAY),
)
def test_what_is_counted_is_what_follows(
    expression: str,
    window: tuple[str, datetime, tuple[Change, ...]],
    late: timedelta,
    offset: timedelta,
) -> None:
    zone, begin, _ = window
    try:
        one = plan(expression, zone, offset)
    except InvalidSchedule:
        assume(False)
    fires = list(islice(iterate(one, begin), 300))
    assume(fires)
    moment = min(fires[0] + late, fires[-1])
    due = [fire for fire in fires if fire <= moment]
    assert one.until(fires[0], moment) == (due[-1], len(due))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(expression=expressions, window=windows(), fraction=st.integers(0, 999_999))
def test_fires_follow_one_another_and_nothing_lies_between(
    expression: str, window: tuple[str, datetime, tuple[Change, ...]], fraction: int
) -> None:
    zone, begin, _ = window
    begin = begin.replace(microsecond=fraction)
    try:
        one = plan(expression, zone)
    except InvalidSchedule:
        assume(False)
    fires = list(islice(iterate(one, begin), 30))
    for earlier, later in pairwise([begin, *fires]):
        assert earlier < later
        assert later.tzinfo is UTC
        for moment in (earlier, earlier + (later - earlier) / 2, later - timedelta.resolution):
            assert one.following(moment) == later


def local(expression: str, zone: str, begin: str, end: str) -> list[str]:
    known = ZoneInfo(zone)
    first, last = (
        datetime.fromisoformat(text).replace(tzinfo=known).astimezone(UTC) for text in (begin, end)
    )
    return [
        f"{fire.astimezone(known):%d %H:%M%z}"
        for fire in between(plan(expression, zone), first, last)
    ]


@pytest.mark.parametrize(
    ("expression", "zone", "begin", "end", "fires"),
    [
        (
            "30 2 * * *",
            "Europe/Paris",
            "2027-03-27",
            "2027-03-30",
            ["27 02:30+0100", "28 03:00+0200", "29 02:30+0200"],
        ),
        (
            "30 2 * * *",
            "Europe/Paris",
            "2027-10-30",
            "2027-11-02",
            ["30 02:30+0200", "31 02:30+0200", "01 02:30+0100"],
        ),
        ("10,20,30 2 * * *", "Europe/Paris", "2027-03-28", "2027-03-29", ["28 03:00+0200"]),
        ("0 2,3 * * *", "Europe/Paris", "2027-03-28", "2027-03-29", ["28 03:00+0200"]),
        (
            "15 2,3 * * *",
            "Europe/Paris",
            "2027-03-28",
            "2027-03-29",
            ["28 03:00+0200", "28 03:15+0200"],
        ),
        ("0 30 2 * * *", "Europe/Paris", "2027-03-28", "2027-03-29", ["28 03:00+0200"]),
        (
            "30 * * * *",
            "Europe/Paris",
            "2027-10-31T01:00",
            "2027-10-31T04:00",
            ["31 01:30+0200", "31 02:30+0200", "31 02:30+0100", "31 03:30+0100"],
        ),
        (
            "30 * * * *",
            "Europe/Paris",
            "2027-03-28T00:59",
            "2027-03-28T04:00",
            ["28 01:30+0100", "28 03:30+0200"],
        ),
        (
            "0 0 * * *",
            "America/St_Johns",
            "2006-04-01T12:00",
            "2006-04-03T12:00",
            ["02 00:00-0330", "03 00:00-0230"],
        ),
        (
            "30 0 * * *",
            "America/St_Johns",
            "2006-04-01T12:00",
            "2006-04-03T12:00",
            ["02 01:01-0230", "03 00:30-0230"],
        ),
        (
            "0 0 * * *",
            "America/St_Johns",
            "2006-10-28T12:00",
            "2006-10-30T12:00",
            ["29 00:00-0230", "30 00:00-0330"],
        ),
        (
            "30 23 * * *",
            "America/St_Johns",
            "2006-10-28T12:00",
            "2006-10-30T12:00",
            ["28 23:30-0230", "29 23:30-0330"],
        ),
        (
            "30 9 * * *",
            "Pacific/Apia",
            "2011-12-29",
            "2012-01-01",
            ["29 09:30-1000", "31 00:00+1400", "31 09:30+1400"],
        ),
        (
            "0 9 30 12 *",
            "Pacific/Apia",
            "2011-12-01",
            "2012-12-31",
            ["31 00:00+1400", "30 09:00+1400"],
        ),
        (
            "0 */6 * * *",
            "Pacific/Apia",
            "2011-12-29T11:00",
            "2011-12-31T07:00",
            ["29 12:00-1000", "29 18:00-1000", "31 00:00+1400", "31 06:00+1400"],
        ),
        (
            "30 2 * * *",
            "Asia/Gaza",
            "2026-03-27",
            "2026-03-30",
            ["27 02:30+0200", "28 03:00+0300", "29 02:30+0300"],
        ),
        (
            "0 2 * * *",
            "Asia/Gaza",
            "2026-03-27",
            "2026-03-30",
            ["27 02:00+0200", "28 03:00+0300", "29 02:00+0300"],
        ),
        (
            "30 2 * * *",
            "Africa/Casablanca",
            "2026-02-14",
            "2026-02-17",
            ["14 02:30+0100", "15 02:30+0100", "16 02:30+0000"],
        ),
        (
            "30 2 * * *",
            "Africa/Casablanca",
            "2026-03-21",
            "2026-03-24",
            ["21 02:30+0000", "22 03:00+0100", "23 02:30+0100"],
        ),
        (
            "0 0 * * *",
            "Africa/Cairo",
            "2026-04-23",
            "2026-04-25T12:00",
            ["24 01:00+0300", "25 00:00+0300"],
        ),
    ],
)
def test_the_clocks_change_by_example(
    expression: str, zone: str, begin: str, end: str, fires: list[str]
) -> None:
    assert local(expression, zone, begin, end) == fires


@pytest.mark.parametrize(
    ("begin", "hours"), [("2027-03-28", 23), ("2027-10-31", 25), ("2027-06-01", 24)]
)
def test_an_interval_is_kept_when_the_clocks_change(begin: str, hours: int) -> None:
    midnight = datetime.fromisoformat(begin).replace(tzinfo=ZoneInfo("Europe/Paris"))
    first, last = midnight.astimezone(UTC), (midnight + DAY).astimezone(UTC)
    fires = [first, *between(plan("*/15 * * * *", "Europe/Paris"), first, last), last]
    assert {later - earlier for earlier, later in pairwise(fires)} == {timedelta(minutes=15)}
    assert len(fires) == hours * 4 + 1


@pytest.mark.parametrize(
    ("expression", "every"),
    [
        ("* * * * * *", timedelta(seconds=1)),
        ("*/10 * * * * *", timedelta(seconds=10)),
        ("* * * * *", HOUR / 60),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris", "Australia/Lord_Howe", "Asia/Kathmandu"])
@pytest.mark.parametrize(
    "begin", [datetime(2027, 3, 25, tzinfo=UTC), datetime(2027, 10, 25, 9, tzinfo=UTC)]
)
def test_two_weeks_are_counted_to_the_second(
    expression: str, every: timedelta, zone: str, begin: datetime
) -> None:
    one = plan(expression, zone)
    end = begin + 14 * DAY
    assert one.until(begin, end) == (end, 14 * DAY // every + 1)
    assert one.until(begin, end - timedelta.resolution) == (end - every, 14 * DAY // every)


def test_years_of_named_times_are_counted() -> None:
    one = plan("30 2 * * *", "Europe/Paris")
    first = one.following(datetime(2026, 1, 1, tzinfo=UTC))
    assert first is not None
    newest, count = one.until(first, first + 3652 * DAY)
    assert (newest, count) == (first + 3652 * DAY, 3653)


def test_an_offset_moves_every_fire() -> None:
    moved, plain = plan("0 6 * * *", offset=timedelta(seconds=90)), plan("0 6 * * *")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert between(moved, noon, noon + 9 * DAY) == [
        fire + timedelta(seconds=90) for fire in between(plain, noon, noon + 9 * DAY)
    ]


def test_a_start_is_the_first_fire_at_or_after_it() -> None:
    six = datetime(2030, 1, 1, 6, tzinfo=UTC)
    for start, first in ((six, six), (six - HOUR, six), (six + timedelta.resolution, six + DAY)):
        one = cron("0 6 * * *", "UTC", start_at=start, offset=NONE)
        assert one.start == one.first(six + 40 * DAY) == first
    assert plan("0 6 * * *").start is None
    assert plan("0 6 * * *").first(six) == six + DAY


def refused(expression: object, timezone: object = "UTC") -> str:
    with pytest.raises(InvalidSchedule) as caught:
        cron(expression, timezone, start_at=None, offset=NONE)
    return str(caught.value)


@pytest.mark.parametrize(
    ("expression", "field", "column"),
    [
        ("60 * * * *", "field 1 (minute)", 1),
        ("0 24 * * *", "field 2 (hour)", 3),
        ("0 0 0 * *", "field 3 (day of month)", 5),
        ("0 0 32 * *", "field 3 (day of month)", 5),
        ("15  3 1 13 *", "field 4 (month)", 8),
        ("0 0 * * 8", "field 5 (day of week)", 9),
        ("0 0 * * MONDAY", "field 5 (day of week)", 9),
        ("0 0 * * 1#6", "field 5 (day of week)", 9),
        ("60 0 0 * * *", "field 1 (second)", 1),
        ("0 0 0 * JAM *", "field 5 (month)", 9),
        ("*/0 * * * *", "field 1 (minute)", 1),
        ("1,,2 * * * *", "field 1 (minute)", 1),
        ("-5 * * * *", "field 1 (minute)", 1),
        ("H 3 * * *", "field 1 (minute)", 1),
        ("0 R(1-5) * * *", "field 2 (hour)", 3),
        ("0 ? * * *", "field 2 (hour)", 3),
        ("0 0 15W * *", "field 3 (day of month)", 5),
        ("0 0 LW * *", "field 3 (day of month)", 5),
        ("0 5-5 * * *", "field 2 (hour)", 3),
        ("59/5 * * * *", "field 1 (minute)", 1),
        ("0 0 * DEC/2 *", "field 4 (month)", 7),
        ("0 0 * * 1,1#2", "field 5 (day of week)", 9),
        ("0 0 * * *,5L", "field 5 (day of week)", 9),
        ("\u0663 * * * *", "field 1 (minute)", 1),
    ],
)
def test_a_bad_expression_is_told_by_field_and_column(
    expression: str, field: str, column: int
) -> None:
    message = refused(expression)
    assert f"{field}, " in message
    assert f"at column {column}," in message


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "has 0 fields; it needs 5"),
        ("* * * *", "has 4 fields; it needs 5"),
        ("0 * * * * * 2030", "has 7 fields; it needs 5"),
        ("@reboot", "is not a name we know; these are: @yearly"),
        ("@every 5m", "is not a name we know"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("* " * 101, "at most 200 characters, not 202"),
        (None, "must be a text like"),
        (b"* * * * *", "not bytes"),
        (5, "not int"),
    ],
)
def test_an_expression_is_refused_with_its_reason(expression: object, message: str) -> None:
    assert message in refused(expression)


@pytest.mark.parametrize(
    ("timezone", "message"),
    [
        ("Europe/Pari", "did you mean 'Europe/Paris'?"),
        ("europe/paris", "did you mean 'Europe/Paris'?"),
        ("New York", "did you mean 'America/New_York'?"),
        ("Berlin", "did you mean 'Europe/Berlin'?"),
        ("../x", "is not in the tz database"),
        ("", "is not in the tz database"),
        ("America", "is not in the tz database"),
        ("/etc/passwd", "is not in the tz database"),
        ("UTC\0", "is not in the tz database"),
        ("x" * 99_999, "is not in the tz database"),
        (None, "must be a name like"),
        (UTC, "not timezone"),
    ],
)
def test_a_bad_zone_is_told_with_the_nearest(timezone: object, message: str) -> None:
    assert message in refused("0 6 * * *", timezone)


def only_refused(expression: str, zone: str = "UTC") -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    try:
        one = plan(expression, zone)
    except InvalidSchedule as error:
        str(error).encode()
    else:
        following = one.following(begin)
        assert following is not None
        assert following > begin


@settings(derandomize=True, deadline=None)
@given(text=st.text() | st.text("0123456789*/,-#LWhr?@ JANMON\u0663\0\ud800", max_size=30))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    only_refused(text)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    expression=expressions
    | st.sampled_from([*ALIASES, "H H * * *", "0 0 L * ?", "0 0 * * 5L,1#2"]),
    at=st.integers(0, 40),
    size=st.integers(0, 3),
    put=st.text("0123456789*/,-#LWhr?() ", max_size=3) | st.text(max_size=2),
)
def test_a_mistyped_expression_is_an_expression_or_refused(
    expression: str, at: int, size: int, put: str
) -> None:
    only_refused(expression[:at] + put + expression[at + size :])


@settings(derandomize=True, deadline=None)
@given(
    zone=st.text()
    | st.builds("{}{}".format, st.sampled_from(["../", "Europe/", "/", "UTC"]), st.text(max_size=5))
)
def test_any_text_is_a_zone_or_refused(zone: str) -> None:
    only_refused("0 6 * * *", zone)


@pytest.mark.parametrize(("alias", "meaning"), ALIASES.items())
def test_an_alias_fires_as_what_it_stands_for(alias: str, meaning: str) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    assert list(islice(iterate(plan(alias.upper()), begin), 9)) == list(
        islice(iterate(plan(meaning), begin), 9)
    )


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("0 0 15 * ?", "0 0 15 * *"),
        ("0 0 ? * MON", "0 0 * * 1"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * 7#2", "0 0 * * SUN#2"),
        ("0 0 * * 7L", "0 0 * * 0L"),
        ("1,* * * * *", "* * * * *"),
        ("0 0 1,* * *", "0 0 * * *"),
        ("0 0 0 * * 5-7", "0 0 * * 5,6,0"),
        ("  0   6 * * *  ", "0 6 * * *"),
        ("0 0 * jan-MAR Mon", "0 0 * 1-3 1"),
    ],
)
def test_two_ways_to_write_the_same(expression: str, same: str) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    assert list(islice(iterate(plan(expression), begin), 50)) == list(
        islice(iterate(plan(same), begin), 50)
    )


def test_notes_say_what_the_clocks_do_to_named_times() -> None:
    begin = datetime(2027, 1, 1, tzinfo=UTC)
    assert plan("30 2 * * *", "Europe/Paris").notes(begin) == [
        "2027-03-28 02:30:00 does not exist in Europe/Paris: it fires at 2027-03-28 03:00:00+02:00",
        "2027-10-31 02:30:00 exists twice in Europe/Paris: it fires the first time",
    ]
    assert plan("*/10 1-3 * * *", "Europe/Paris").notes(begin) == []
    assert plan("30 4 * * *", "Europe/Paris").notes(begin) == []
    assert plan("30 2 * * MON", "Europe/Paris").notes(begin) == []
    assert plan("30 2 * * *").notes(begin) == []
    assert len(plan("0,15,30,45 2 * * *", "Europe/Paris").notes(begin)) == 4
    assert len(plan("0,15,30,45 2 * * *", "Europe/Paris").notes(begin, limit=9)) == 8
    assert plan("30 2 * * *", "Europe/Paris").notes(begin, ahead=30 * DAY) == []
    assert plan("0 9 30 12 *", "Pacific/Apia").notes(
        datetime(2011, 12, 1, tzinfo=UTC), ahead=60 * DAY
    ) == [
        "2011-12-30 09:00:00 does not exist in Pacific/Apia: it fires at 2011-12-31 00:00:00+14:00"
    ]
