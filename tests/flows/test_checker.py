"""The counter of lost and doubled fires can itself be trusted: it complains of each kind of
wrong.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.checker import Fire, LedgerRow, Verdict, check, unsettled
from tests.support.instance import Job
from tests.support.records import Phase, Record

START = datetime(2030, 1, 1, tzinfo=UTC)
JOB = Job(job_id="x", start_at=START, every=1.0)
UNTIL = START + timedelta(seconds=3.5)


def at(k: int) -> datetime:
    return START + timedelta(seconds=k)


def record(
    k: int, phase: Phase, attempt: int = 1, fence: int | None = None, pid: int = 7
) -> Record:
    return Record(
        phase=phase,
        tenant="acme",
        job_id="x",
        fire_at=at(k),
        attempt=attempt,
        fence=fence or k + 1,
        pid=pid,
        monotonic=0.0,
        wall=0.0,
    )


def row(k: int, **changes: object) -> LedgerRow:
    plain = LedgerRow(
        fire=Fire("acme", "x", at(k)), outcome="success", attempt=1, fence=k + 1, holder="host:7"
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def clean() -> tuple[list[Record], list[LedgerRow]]:
    """Four fires, each run once."""
    records = [record(k, phase) for k in range(4) for phase in ("start", "end", "accepted")]
    return records, [row(k) for k in range(4)]


def verdict(records: list[Record], ledger: list[LedgerRow]) -> Verdict:
    return check([JOB], records, ledger, until=UNTIL)


def test_four_fires_that_each_ran_once_are_clean() -> None:
    found = verdict(*clean())
    assert found
    assert str(found) == "0 lost, 0 doubled, 0 contradictions"


def test_a_fire_that_is_nowhere_is_lost() -> None:
    records, ledger = clean()
    without = [r for r in records if r.fire_at != at(2)]
    assert verdict(without, [row for row in ledger if row.fire.at != at(2)]).lost == [
        f"acme/x {at(2).isoformat()}"
    ]
    assert verdict(without, ledger).lost == [f"acme/x {at(2).isoformat()}"], (
        "the ledger alone proves no run"
    )
    assert unsettled([JOB], ledger[:3], UNTIL) == {Fire("acme", "x", at(3))}


def test_a_skipped_or_missed_fire_is_not_lost_but_a_wrong_count_of_missed_ones_hides_nothing() -> (
    None
):
    records, ledger = clean()
    without = [r for r in records if r.fire_at != at(2)]
    skipped = row(2, outcome="skipped", reason="overlap", attempt=None, fence=None)
    assert verdict(without, [*ledger[:2], skipped, ledger[3]])
    paused = replace(skipped, reason="paused")
    assert verdict(without, [*ledger[:2], paused, ledger[3]]).lost
    missed = row(3, missed_from=at(2), missed_count=1)
    assert verdict(without, [*ledger[:2], missed])
    assert verdict(without, [*ledger[:2], replace(missed, missed_count=2)]).lost


def test_two_runs_of_one_attempt_are_doubled_whoever_ran_them() -> None:
    records, ledger = clean()
    again = record(1, "start", pid=8, fence=99)
    assert any(
        "attempt 1 ran 2 times" in what for what in verdict([*records, again], ledger).doubled
    )


def test_two_accepted_finishes_or_two_rows_are_doubled() -> None:
    records, ledger = clean()
    accepted = verdict([*records, record(1, "accepted", attempt=2)], ledger)
    assert accepted.doubled == [f"acme/x {at(1).isoformat()}: 2 accepted finishes"]
    assert verdict(records, [*ledger, ledger[0]]).doubled == [
        f"acme/x {at(0).isoformat()}: 2 ledger rows"
    ]


def test_a_fire_driven_again_is_clean_when_the_ledger_names_the_lost_start() -> None:
    records, ledger = clean()
    lost, second = (
        record(3, "start", pid=8),
        [record(3, p, attempt=2, fence=5) for p in ("start", "end")],
    )
    records = [r for r in records if r.fire_at != at(3)]
    named = row(3, attempt=2, fence=5, attempts=({"attempt": 1, "fence": 4, "outcome": "lost"},))
    assert verdict([*records, lost, *second], [*ledger[:3], named])
    assert verdict(
        [*records, lost, *second], [*ledger[:3], replace(named, attempts=())]
    ).contradictions
    old = row(3)
    assert verdict([*records, lost, *second], [*ledger[:3], old]).contradictions, (
        "a finish from before the re-drive"
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fence": 99}, "never started"),
        ({"holder": "host:8"}, "names host:8"),
        ({"outcome": "skipped", "reason": "overlap"}, "says skipped"),
        ({"attempt": 2, "attempts": ({"attempt": 1, "fence": 4},)}, "never started"),
        ({"missed_from": START + timedelta(seconds=2), "missed_count": 1}, "inside a missed row"),
    ],
)
def test_a_ledger_that_contradicts_the_records_is_noticed(
    changes: dict[str, object], says: str
) -> None:
    records, ledger = clean()
    found = verdict(records, [*ledger[:3], row(3, **changes)])
    assert any(says in what for what in found.contradictions), str(found)


def test_a_fire_off_the_schedule_an_old_fence_and_an_unfinished_success_are_noticed() -> None:
    records, ledger = clean()
    stray = replace(record(3, "start"), fire_at=at(3) + timedelta(milliseconds=1), fence=5)
    assert any("not a fire" in what for what in verdict([*records, stray], ledger).contradictions)
    old = [replace(r, fence=1) if r.fire_at == at(2) else r for r in records]
    assert any("after" in what for what in verdict(old, ledger).contradictions)
    unfinished = [r for r in records if (r.fire_at, r.phase) != (at(2), "end")]
    assert any("never ended" in what for what in verdict(unfinished, ledger).contradictions)
