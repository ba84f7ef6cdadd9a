"""find: how far a look goes, where the next one begins, and that none of them passes a job by."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from scheduler import State, Submission
from scheduler.queueing.ending import end
from scheduler.queueing.jobs import Page
from scheduler.store.job_queue import Ending, JobKey
from scheduler.testing import START, Scheduler
from tests.queueing.conftest import steps

FIRE = (
    "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, fence, attempt, started_at)"
    " SELECT %(at)s::timestamptz, 'acme', %(id)s, 'fire', 'success', %(at)s::timestamptz, 1, 1, %(at)s::timestamptz"
)


def submitted(instance: Scheduler, kinds: Sequence[str]) -> list[Submission]:
    made = []
    for kind in kinds:
        instance.clock.advance("1s")
        made.append(instance.submit("acme", kind, tags={kind: "yes"}))
    return made


def ended(instance: Scheduler, *jobs: Submission, state: State = State.COMPLETED) -> datetime:
    instance.clock.advance("1s")
    steps(
        instance,
        end(
            instance._running().queue,
            [Ending(key=JobKey("acme", job.id), state=state) for job in jobs],
        ),
    )
    job = instance.get("acme", jobs[0].id)
    assert job.completed_at is not None
    return job.completed_at


def paged(instance: Scheduler, **wanted: object) -> list[Page]:
    pages = [instance.find("acme", **wanted)]  # type: ignore[arg-type]
    while pages[-1].cursor is not None:
        pages.append(instance.find("acme", cursor=pages[-1].cursor, **wanted))  # type: ignore[arg-type]
        assert len(pages) < 100
    return pages


def ids(pages: Sequence[Page]) -> list[UUID]:
    return [job.id for page in pages for job in page.jobs]


def test_a_look_that_finds_nothing_within_its_bound_goes_on_from_there(instance: Scheduler) -> None:
    rare, *_ = submitted(instance, ["rare", *["usual"] * 7])
    first = instance.find("acme", type="rare", most=3)
    assert (first.jobs, first.cursor is None) == ((), False)
    pages = paged(instance, type="rare", most=3)
    assert [len(page.jobs) for page in pages] == [0, 0, 1]
    assert ids(pages) == [rare.id]
    assert ids([instance.find("acme", type="rare")]) == [rare.id]  # without a bound it looks at all


@pytest.mark.parametrize(
    ("wanted", "many"),
    [
        ({}, 12),
        ({"type": "rare"}, 4),
        ({"tag": "rare"}, 4),
        ({"state": State.FAILED}, 2),
        ({"state": [State.PENDING, State.COMPLETED]}, 10),
    ],
    ids=["all", "type", "tag", "state", "states"],
)
def test_no_look_passes_a_job_by(
    instance: Scheduler, connection: psycopg.Connection[Any], wanted: dict[str, object], many: int
) -> None:
    made = submitted(instance, [("usual", "rare", "usual")[n % 3] for n in range(12)])
    at = ended(instance, *made[:3])
    for number in range(3):
        connection.execute(FIRE, {"at": at, "id": f"report-{number}"})
    connection.execute(
        FIRE, {"at": at, "id": str(made[1].id)}
    )  # a fire of the same name at the same instant
    ended(instance, *made[3:5], state=State.FAILED)
    expected = ids([instance.find("acme", **wanted)])  # type: ignore[arg-type]
    assert len(expected) == many
    for limit in (1, 2, 4):
        for most in (1, 2, 3, 5, 100):
            assert ids(paged(instance, limit=limit, most=most, **wanted)) == expected


def test_a_look_for_what_is_retrying_does_not_stop_at_what_waits(instance: Scheduler) -> None:
    waits, *_ = submitted(instance, ["one", "two", "three"])
    instance.submit("acme", "child", after=[waits])
    instance.submit("acme", "later", run_at=START + timedelta(days=9))
    assert not ids(paged(instance, state=State.RETRYING, most=2))
    assert len(ids(paged(instance, state=State.PENDING, most=2))) == 4
    assert len(ids(paged(instance, state=State.DELAYED, most=2))) == 1
