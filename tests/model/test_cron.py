"""Cron against cronsim and croniter, at every change of the clocks, and by example."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

from scheduler.model.cron import Cron, cron
from tests.model.cronsim_differences import Change, Difference

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
    "* * * * *",
    "*/15 * * * *",
    "*/7 0-4 * * *",
    "30 * * * *",
    "0 */2 * * *",
    "*/30 2 * * SUN",
    "* 0 * * *",
    "*/10 2 * * *",
    "20 1-3/2 * * 5-7",
    "15 30 2 * * *",
    "0,30 0 0 * * *",
    "*/20 59 1-3 * * *",
    "30 */15 * * * *",
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
    ours, theirs = between(plan(expression, zone), begin, end), by_cronsim(expression, zone, begin, end)
    if ours == theirs:
        return []
    return [Difference(expression, zone, fire, fire in ours, known) for fire in sorted(set(ours) ^ set(theirs))]
