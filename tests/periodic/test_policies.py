"""Late fires, overlap, triggers, pauses and jitter, in time that the test moves: what the ledger
and the bodies say.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from scheduler import CatchUp, InvalidOption, InvalidSchedule, RunContext, UnknownJob
from scheduler.testing import START, ManualClock, Scheduler
from tests.periodic.conftest import Make, Road

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def told(
    instance: Scheduler, job: str = "x"
) -> list[tuple[str, str | None, datetime, datetime | None, int]]:
    """What the ledger says of a job's fires and triggers, oldest first."""
    rows = [row for row in instance.history("acme", job, 1000) if row.kind != "audit"]
    return [
        (str(row.outcome), row.reason, row.at, row.missed_from, row.missed_count)
        for row in reversed(rows)
    ]


def audit(instance: Scheduler, job: str = "x") -> list[str]:
    return [
        str(row.outcome) for row in reversed(instance.history("acme", job)) if row.kind == "audit"
    ]


class Body:
    """Records its fires; while it runs the test may do something."""

    def __init__(self) -> None:
        self.fires: list[datetime] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def __call__(self, context: RunContext) -> None:
        self.fires.append(context.fire_at)
        self.meanwhile()


def test_a_lid_closed_for_78_minutes_is_one_run_of_the_newest_fire(
    make: Make, clock: ManualClock
) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1m")
    clock.advance("78 minutes")
    instance.tick()
    assert body.fires == [START + 78 * MINUTE]
    assert told(instance) == [("success", None, START + 78 * MINUTE, START + MINUTE, 77)]
    assert [event.fire_at for event in instance.advance("2m")] == [
        START + 79 * MINUTE,
        START + 80 * MINUTE,
    ]


def test_two_weeks_of_a_one_second_cron_are_one_run(make: Make, clock: ManualClock) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, cron="* * * * * *", timezone="Europe/Paris")
    clock.advance("2 weeks")
    instance.tick()
    second = timedelta(seconds=1)
    assert told(instance) == [("success", None, START + 14 * DAY, START + second, 14 * 86_400 - 1)]


def test_a_fire_within_the_grace_runs_as_itself(make: Make, clock: ManualClock) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="10s", grace="35s")
    clock.advance("40s")
    instance.tick()
    assert [(at - START).total_seconds() for at in body.fires] == [10, 20, 30, 40]


def test_skip_passes_over_what_was_missed_and_runs_what_was_not(
    make: Make, clock: ManualClock
) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="10s", misfire="skip", grace="15s")
    clock.advance("60s")
    instance.tick()
    assert [(at - START).total_seconds() for at in body.fires] == [50, 60]
    first, *others = told(instance)
    assert first == (
        "skipped",
        "misfire",
        START + timedelta(seconds=40),
        START + timedelta(seconds=10),
        3,
    )
    assert [outcome for outcome, *_ in others] == ["success", "success"]


def test_a_missed_one_time_job_is_skipped_for_good(make: Make, clock: ManualClock) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, start_at=START + HOUR, misfire="skip")
    clock.advance("2h")
    instance.tick()
    assert body.fires == []
    assert told(instance) == [("skipped", "misfire", START + HOUR, None, 0)]
    assert instance.jobs()[0].next_run_at is None


def test_catch_up_runs_each_missed_fire_the_oldest_first(make: Make, clock: ManualClock) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h", misfire="catch_up")
    clock.advance("5h")
    instance.tick()
    assert body.fires == [START + n * HOUR for n in (1, 2, 3, 4, 5)]
    assert {row[0] for row in told(instance)} == {"success"}


@pytest.mark.parametrize("schedule", [{"every": "1h"}, {"cron": "0 * * * *"}])
@pytest.mark.parametrize(
    ("bounds", "first"),
    [(CatchUp(max_count=3), 18), (CatchUp(max_age="5h"), 15), (CatchUp(max_age="5h59m"), 15)],
)
def test_catch_up_is_bounded_and_what_is_dropped_is_one_row(
    make: Make, clock: ManualClock, schedule: dict[str, Any], bounds: CatchUp, first: int
) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, misfire="catch_up", catch_up=bounds, **schedule)
    clock.advance("20h")
    instance.tick()
    assert body.fires == [START + n * HOUR for n in range(first, 21)]
    assert told(instance)[0] == (
        "skipped",
        "misfire",
        START + (first - 1) * HOUR,
        START + HOUR,
        first - 2,
    )


def test_catch_up_of_a_day_of_seconds_is_bounded_too(make: Make, clock: ManualClock) -> None:
    instance, body = make(), Body()
    instance.register(
        "acme", "x", body, cron="* * * * * *", misfire="catch_up", catch_up=CatchUp(max_count=4)
    )
    clock.advance("1d")
    instance.tick()
    assert body.fires == [START + DAY - timedelta(seconds=n) for n in (3, 2, 1, 0)]


def overlapped(make: Make, clock: ManualClock, **options: Any) -> tuple[Scheduler, Body]:
    """A run that lasts 35 s of a job that fires every 10 s, while another instance looks on."""
    instance, other, body = make(), make(), Body()
    instance.register("acme", "x", body, every="10s", **options)
    other.register("acme", "x", body, every="10s", **options)

    def slow() -> None:
        body.meanwhile = lambda: None
        for _ in range(7):
            clock.advance("5s")
            instance._running().leases.step()
            other.tick()

    body.meanwhile = slow
    clock.advance("10s")
    instance.tick()
    other.tick()
    return instance, body


def test_a_fire_that_failed_is_not_retried(make: Make, clock: ManualClock) -> None:
    instance = make()

    def report() -> None:
        raise ValueError("no paper")

    instance.register("acme", "x", report, every="1h")
    instance.advance("90m")
    assert [outcome for outcome, *_ in told(instance)] == ["failed"]
    instance.advance("30m")
    assert [outcome for outcome, *_ in told(instance)] == ["failed", "failed"]


def test_a_fire_that_overlaps_is_skipped(make: Make, clock: ManualClock) -> None:
    instance, body = overlapped(make, clock)
    assert [(at - START).total_seconds() for at in body.fires] == [10]
    assert [(outcome, reason) for outcome, reason, *_ in told(instance)] == [
        ("success", None),
        ("skipped", "overlap"),
        ("skipped", "overlap"),
        ("skipped", "overlap"),
    ]


def test_with_queue_one_a_single_run_follows_for_all_that_came_meanwhile(
    make: Make, clock: ManualClock
) -> None:
    instance, body = overlapped(make, clock, overlap="queue_one")
    assert [(at - START).total_seconds() for at in body.fires] == [10, 40]
    assert told(instance)[1:] == [
        ("success", None, START + timedelta(seconds=40), START + timedelta(seconds=20), 2)
    ]


def test_a_trigger_runs_beside_the_schedule(make: Make, clock: ManualClock) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    clock.advance("10m")
    at = instance.trigger("acme", "x")
    assert at == START + 10 * MINUTE
    instance.tick()
    assert body.fires == [at]
    assert [row.kind for row in instance.history("acme", "x")] == ["trigger", "audit"]
    instance.advance("50m")
    assert body.fires == [at, START + HOUR]


def test_two_triggers_before_it_is_picked_up_are_one_run_and_later_ones_another(make: Make) -> None:
    instance, other, body = make(), make(), Body()
    instance.register("acme", "x", body, every="1h")
    assert instance.trigger("acme", "x") == other.trigger("acme", "x")
    instance.tick()
    again = instance.trigger("acme", "x")
    instance.tick()
    assert body.fires == [START, again]
    assert [row[2] for row in told(instance)] == [START, again]


def test_a_trigger_waits_for_the_run_under_way_and_the_schedule_goes_on(
    make: Make, clock: ManualClock
) -> None:
    instance, other, body = make(), make(), Body()
    for one in (instance, other):
        one.register("acme", "x", body, every="1h")

    def slow() -> None:
        body.meanwhile = lambda: None
        other.trigger("acme", "x")
        other.tick()
        clock.advance("10s")
        other.tick()

    body.meanwhile = slow
    clock.advance("1h")
    instance.tick()
    assert body.fires == [START + HOUR]
    clock.advance("1s")
    other.tick()
    assert body.fires == [
        START + HOUR,
        START + HOUR,
    ]  # the trigger was asked for at that very moment
    assert sorted(row.kind for row in instance.history("acme", "x")) == ["audit", "fire", "trigger"]
    instance.advance("1h")
    assert body.fires[-1] == START + 2 * HOUR


def test_a_trigger_does_not_swallow_a_fire_that_waits(make: Make, clock: ManualClock) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    clock.advance("1h")
    clock.advance("5s")
    at = instance.trigger("acme", "x")
    instance.tick()
    assert sorted(body.fires) == [START + HOUR, at]


def test_a_paused_job_lets_its_fires_pass_and_goes_on_after_now(
    make: Make, clock: ManualClock
) -> None:
    instance, other, body = make(), make(), Body()
    for one in (instance, other):
        one.register("acme", "x", body, every="1h")
    assert other.pause("acme", "x") == START
    assert instance.pause("acme", "x") == START
    assert instance.advance("3h30m") == []
    assert instance.jobs()[0].paused_at == START
    assert instance.resume("acme", "x") == START + 4 * HOUR
    assert instance.resume("acme", "x") == START + 4 * HOUR
    assert told(instance) == [("skipped", "paused", START + 3 * HOUR, START + HOUR, 2)]
    instance.advance("1h")
    assert body.fires == [START + 4 * HOUR]
    assert audit(instance) == ["registered", "paused", "resumed"]


def test_a_short_pause_skips_nothing(make: Make, clock: ManualClock) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    instance.pause("acme", "x")
    clock.advance("10m")
    assert instance.resume("acme", "x") == START + HOUR
    assert told(instance) == []
    assert len(instance.advance("50m")) == 1


def test_a_paused_job_can_be_triggered(make: Make) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    instance.pause("acme", "x")
    instance.trigger("acme", "x")
    instance.advance("5h")
    assert body.fires == [START]


def test_a_deploy_does_not_resume_a_paused_job(make: Make, clock: ManualClock) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")
    instance.pause("acme", "x")
    deployed = make()
    deployed.register("acme", "x", body, every="30m")
    assert deployed.advance("5h") == []
    assert deployed.resume("acme", "x") == START + 5 * HOUR + 30 * MINUTE


def test_a_weekly_job_fires_in_an_app_that_deploys_every_minute(
    make: Make, clock: ManualClock
) -> None:
    body = Body()
    first = make()
    first.register("acme", "x", body, every="1w")
    first.cancel(timeout=0)
    clock.move_to(START + 7 * DAY - 10 * MINUTE)
    for _ in range(20):
        instance = make()
        instance.register("acme", "x", body, every="1w")
        instance.advance("1m")
        instance.cancel(timeout=0)
    assert body.fires == [START + 7 * DAY]
    last = make()
    last.register("acme", "x", body, every="1w")
    assert audit(last) == ["registered"]


def test_in_a_rolling_deploy_the_cron_registered_last_holds_for_all(
    make: Make, clock: ManualClock
) -> None:
    old, new, body = make(), make(), Body()
    old.register("acme", "x", body, cron="0 * * * *")
    new.register("acme", "x", body, cron="30 * * * *")
    for _ in range(6):
        clock.advance("10m")
        old.tick()
        new.tick()
    assert body.fires == [START + 30 * MINUTE]
    restarted = make()
    restarted.register(
        "acme", "x", body, cron="0 * * * *"
    )  # an old instance starts again in the middle of it
    assert audit(restarted) == ["registered", "changed", "changed"]
    new.advance("1h")
    assert body.fires == [START + 30 * MINUTE, START + 2 * HOUR]


def test_jitter_spreads_the_jobs_and_keeps_each_in_its_place(make: Make) -> None:
    instance = make()
    fires: dict[str, list[datetime]] = {}

    def body(context: RunContext) -> None:
        fires.setdefault(context.tenant, []).append(context.fire_at)

    many = [
        {"tenant": f"t{n}", "job_id": "x", "fn": body, "cron": "0 * * * *", "jitter": "1h"}
        for n in range(60)
    ]
    instance.register_many(many)
    instance.advance("4h")
    assert len(fires) == 60
    for moments in fires.values():
        assert len(moments) in (3, 4)
        assert {later - earlier for earlier, later in pairwise(moments)} == {HOUR}
    minutes = {moments[0].minute for moments in fires.values()}
    assert len(minutes) > 25


def test_jitter_moves_an_interval_and_a_start(make: Make) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h", jitter="30m")
    instance.register("acme", "y", body, every="1h", start_at=START, jitter="30m")
    instance.register("acme", "z", body, start_at=START, jitter="30m")
    for job, whole in (("x", HOUR), ("y", timedelta(0)), ("z", timedelta(0))):
        (info,) = [info for info in instance.jobs() if info.job_id == job]
        assert info.next_run_at is not None
        assert timedelta(0) < info.next_run_at - START - whole < 30 * MINUTE


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cron": "61 * * * *"}, "field 1 .minute., '61' at column 1"),
        ({"cron": "0 6 * * *", "timezone": "Europe/Pariss"}, "did you mean 'Europe/Paris'"),
        ({"cron": "0 6 * * *", "every": "1h"}, "exclude"),
        ({"every": "1h", "timezone": "Europe/Paris"}, "timezone belongs to cron"),
        ({"every": "1h", "misfire": "never"}, "misfire must be one of run_once, skip, catch_up"),
        ({"every": "1h", "overlap": "maybe"}, "overlap must be one of"),
        ({"every": "1h", "executor": "cloud"}, "executor must be one of"),
        ({"every": "1h", "grace": "0s"}, "grace must be longer"),
        ({"every": "1h", "jitter": "2h"}, "jitter must not be longer"),
        ({"every": "1h", "catch_up": CatchUp(max_count=5)}, "no effect"),
        ({"every": "1h", "misfire": "catch_up", "catch_up": 7}, "CatchUp"),
        ({"every": "1h", "misfire": "catch_up", "catch_up": CatchUp(max_count=0)}, "max_count"),
        ({"every": "1h", "misfire": "catch_up", "catch_up": CatchUp(max_age="soon")}, "max_age"),
        ({"every": "1h", "evry": "1h"}, "did you mean every"),
        ({"every": "1h", "executor": "process"}, "import"),
    ],
)
def test_a_bad_option_is_refused_at_register_and_nothing_is_touched(
    make: Make, options: dict[str, Any], says: str
) -> None:
    instance = make()
    with pytest.raises((InvalidOption, InvalidSchedule), match=says):
        instance.register("acme", "x", lambda: None, **options)
    if options.get("executor") != "process":  # a decorator is still to be given the function
        with pytest.raises((InvalidOption, InvalidSchedule), match=says):
            instance.register("acme", "x", **options)
    assert instance.jobs() == []
    assert instance.history("acme") == []


@pytest.mark.parametrize("call", ["pause", "resume", "trigger", "explain"])
def test_an_unknown_job_is_named(make: Make, call: str) -> None:
    with pytest.raises(UnknownJob, match="'nobody' of tenant 'acme'"):
        getattr(make(), call)("acme", "nobody")


def test_a_tenant_cannot_reach_the_job_of_another(make: Make) -> None:
    instance = make()
    instance.register("acme", "x", lambda: None, every="1h")
    for call in ("pause", "resume", "trigger", "explain"):
        with pytest.raises(UnknownJob):
            getattr(instance, call)("globex", "x")
    assert [row.outcome for row in instance.history("acme")] == ["registered"]


def test_only_tenants_with_registered_jobs_are_mirrored_by_default(make: Make) -> None:
    one, other, every = make(), make(), make(tenants="all")
    one.register("acme", "x", print, every="1h")
    other.register("globex", "y", print, every="1h")
    for instance in (one, other, every):
        instance._running().sync.sync()
    known = [[job.job_id for job in each.jobs()] for each in (one, other, every)]
    assert [sorted(each) for each in known] == [["x"], ["y"], ["x", "y"]]


def test_explain_tells_the_next_fires_the_dst_notes_and_who_can_run_it(
    make: Make, clock: ManualClock
) -> None:
    instance = make(label="web-1", tenants="all")
    clock.move_to(datetime(2030, 3, 30, 12, tzinfo=UTC))

    def report() -> None:
        raise ValueError("no paper")

    instance.register("acme", "report", report, cron="30 2 * * *", timezone="Europe/Paris")
    instance.tick()
    found = instance.explain("acme", "report")
    assert len(found.next_fires) == 10
    assert found.next_fires[0] == datetime(2030, 3, 31, 1, 0, tzinfo=UTC)
    assert found.runnable_on == ("web-1",)
    assert any("2030-03-31 02:30:00 does not exist" in note for note in found.notes)
    instance.advance("1d")
    after = instance.explain("acme", "report")
    assert after.last_outcome == "failed"
    assert "no paper" in (after.why or "")
    text = str(after)
    assert "cron 30 2 * * * (Europe/Paris)" in text
    assert "ValueError: no paper" in text
    assert "runnable on web-1" in text


def test_explain_names_this_instance_right_after_register(make: Make) -> None:
    instance = make(label="web-1")
    instance.register("acme", "x", lambda: None, every="1h")
    found = instance.explain("acme", "x")
    assert found.runnable_on == ("web-1",)
    assert found.notes == ()
    instance.tick()
    assert instance.explain("acme", "x").runnable_on == ("web-1",)


def test_explain_says_that_nobody_can_run_it_and_an_event_does_too(
    make: Make, clock: ManualClock
) -> None:
    instance, other = make(label="web-1", tenants="all"), make(label="web-2")
    events: list[Any] = []
    instance.subscribe(events.append)
    other.register("acme", "x", lambda: None, every="1h")
    other.tick()
    instance.tick()
    assert instance.explain("acme", "x").runnable_on == ("web-2",)
    other.cancel(timeout=0)
    for _ in range(4):
        clock.advance("1m")
        instance.tick()
    found = instance.explain("acme", "x")
    assert found.runnable_on == ()
    assert any("no live instance can run it" in note for note in found.notes)
    stranded = [event for event in events if type(event).__name__ == "JobStranded"]
    assert [(event.tenant, event.job_id) for event in stranded] == [("acme", "x")]


@pytest.mark.parametrize("queue", [None, "mail"])
def test_a_due_job_of_a_tenant_that_none_mirrors_is_reported_once(
    make: Make, clock: ManualClock, queue: str | None
) -> None:
    fleet, gone = [make(label="web-1"), make(label="web-2")], make(label="web-3")
    events: list[Any] = []
    for instance in fleet:
        instance.register("acme", "x", lambda: None, every="1h")
        instance.subscribe(events.append)
    gone.register("globex", "x", None if queue else (lambda: None), queue=queue, every="10m")
    gone.tick()
    gone.cancel(timeout=0)

    def stranded() -> list[str]:
        return [event.tenant for event in events if type(event).__name__ == "JobStranded"]

    def pass_minutes(count: int) -> int:
        for _ in range(count):
            clock.advance("1m")
            for instance in fleet:
                instance.tick()
        return sum(instance._running().presence.stranded for instance in fleet)

    assert (pass_minutes(8), stranded()) == (0, [])  # it is not due
    fleet[0].pause_tenant("globex")
    assert (pass_minutes(5), stranded()) == (0, [])
    fleet[0].resume_tenant("globex")
    assert (pass_minutes(10), stranded()) == (1, ["globex"])
    first = next(one for one in fleet if one._running().presence.stranded)
    fleet.remove(first)
    first.cancel(timeout=0)
    assert pass_minutes(5) == 1  # another instance looks now
    back = make(tenants=["globex"])
    back.tick()
    fleet.append(back)
    assert pass_minutes(2) == (0 if queue else 1)  # it mirrors the tenant, and has no function


def test_a_fire_that_comes_during_a_triggered_run_waits_for_it(
    make: Make, clock: ManualClock
) -> None:
    instance, other, body = make(), make(), Body()
    for one in (instance, other):
        one.register("acme", "x", body, every="1h")

    def slow() -> None:
        body.meanwhile = lambda: None
        clock.advance("10s")
        other.tick()

    body.meanwhile = slow
    clock.advance("59m55s")
    at = instance.trigger("acme", "x")
    instance.tick()
    clock.advance("2s")
    other.tick()
    assert body.fires == [at, START + HOUR]
    assert {row[0] for row in told(instance)} == {"success"}


def test_a_trigger_during_a_triggered_run_is_a_run_with_a_row_of_its_own(
    make: Make, clock: ManualClock
) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h")

    def again() -> None:
        body.meanwhile = lambda: None
        instance.trigger("acme", "x")

    body.meanwhile = again
    instance.trigger("acme", "x")
    instance.tick()
    instance.tick()
    assert len(body.fires) == len(set(body.fires)) == len(told(instance)) == 2


def test_a_stale_mirror_does_not_run_a_paused_job(make: Make, clock: ManualClock) -> None:
    instance, other, body = make(), make(), Body()
    instance.register("acme", "x", body, every="1h")
    other.pause("acme", "x")
    clock.advance("1h")
    instance._running().claimer.claim()  # as of its last sync it is not paused
    assert body.fires == []


def test_what_passed_while_paused_is_never_given_out_again(make: Make, clock: ManualClock) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="1h", start_at=START)
    instance.tick()
    instance.pause("acme", "x")
    clock.advance("2h30m")
    instance.resume("acme", "x")
    instance.unregister("acme", "x")
    instance.register("acme", "x", body, every="1h", start_at=START)
    instance.advance("1h")
    assert body.fires == [START, START + 3 * HOUR]


def test_an_instance_that_died_counts_as_gone_after_three_syncs(
    make: Make, clock: ManualClock, connection: psycopg.Connection[Any]
) -> None:
    instance, dead = make(label="web-1", tenants="all"), make(label="web-2")
    events: list[Any] = []
    instance.subscribe(events.append)
    dead.register("acme", "x", lambda: None, every="1w")
    dead.tick()
    instance.tick()
    assert instance.explain("acme", "x").runnable_on == ("web-2",)
    for minutes in (2, 2, 1):  # it does not beat any more
        clock.advance(f"{minutes}m")
        instance.tick()
    assert instance.explain("acme", "x").runnable_on == ()
    assert "JobStranded" in {type(event).__name__ for event in events}
    labels = connection.execute("SELECT label FROM job_instance ORDER BY 1").fetchall()
    assert labels == [("web-1",), ("web-2",)]
    clock.advance("2d")
    instance.tick()
    assert connection.execute("SELECT label FROM job_instance").fetchall() == [("web-1",)]
    dead.tick()  # it was only asleep
    assert instance.explain("acme", "x").runnable_on == ("web-2",)


def test_each_instance_tells_how_wrong_its_clock_is(
    road: Road, schema: str, connection: psycopg.Connection[Any]
) -> None:
    class Wrong(ManualClock):
        def wall(self) -> datetime:
            return self.now() + HOUR

    with Scheduler(road.dsn, schema=schema, clock=Wrong(), prepare=road.prepare) as instance:
        instance.register("acme", "x", lambda: None, every="1h")
        instance.tick()
        assert connection.execute("SELECT skew FROM job_instance").fetchall() == [(HOUR,)]


def test_a_job_fires_although_nobody_can_say_who_is_alive(
    make: Make, connection: psycopg.Connection[Any]
) -> None:
    instance, body = make(), Body()
    connection.execute("ALTER TABLE job_instance RENAME TO elsewhere")
    instance.register("acme", "x", body, every="1h")
    assert len(instance.advance("2h")) == 2


def test_a_definition_that_cannot_be_read_here_is_neither_resumed_nor_misread(
    make: Make, connection: psycopg.Connection[Any]
) -> None:
    instance = make(tenants=["acme"])
    for spec in ('{"rrule": "FREQ=DAILY"}', '{"cron": "0 6 * * *", "timezone": "Mars/Base"}'):
        instance.register("acme", "x", lambda: None, every="1h")
        instance.pause("acme", "x")
        connection.execute(
            "UPDATE job SET spec = %s, spec_hash = decode(repeat('cd', 32), 'hex')", (spec,)
        )
        with pytest.raises(InvalidSchedule, match="cannot be resumed here"):
            instance.resume("acme", "x")
        found = instance.explain("acme", "x")
        assert found.next_fires == ()
        assert any("left alone here" in note for note in found.notes)
        assert connection.execute(
            "SELECT count(*) FROM job WHERE next_run_at IS NULL"
        ).fetchone() == (0,)
        instance.unregister("acme", "x")


@pytest.mark.parametrize("jitter", ["1s", "6h", "1d", "50w"])
def test_jitter_may_be_as_long_as_the_interval(make: Make, jitter: str) -> None:
    instance = make()
    instance.register_many(
        [
            {"tenant": f"t{n}", "job_id": "x", "fn": lambda: None, "every": "52w", "jitter": jitter}
            for n in range(40)
        ]
    )
    assert len({job.next_run_at for job in instance.jobs()}) > 30


def test_a_one_time_job_whose_moment_passes_while_it_is_paused_never_runs(
    make: Make, clock: ManualClock
) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, start_at=START + HOUR)
    instance.pause("acme", "x")
    clock.advance("2h")
    assert instance.resume("acme", "x") is None
    instance.tick()
    assert body.fires == []
    assert told(instance) == [("skipped", "paused", START + HOUR, None, 0)]


def test_what_a_paused_job_would_do_is_told_from_now_on(make: Make, clock: ManualClock) -> None:
    instance = make()
    instance.register("acme", "x", lambda: None, every="1h")
    instance.pause("acme", "x")
    clock.advance("2h30m")
    assert instance.explain("acme", "x").next_fires[0] == START + 3 * HOUR


def test_a_trigger_has_its_turn_among_fires_that_wait_for_each_other(
    make: Make, clock: ManualClock
) -> None:
    instance, body = make(), Body()
    instance.register("acme", "x", body, every="10s", overlap="queue_one")
    body.meanwhile = lambda: clock.advance("20s")  # there is always a fire that waits
    clock.advance("10s")
    at = instance.trigger("acme", "x")
    for _ in range(3):
        instance._running().loop.sync_now()
        instance._running().loop.step()
        instance._running().finisher.flush()
    assert at in body.fires
