"""The proof that every flow test ends with: lost 0, doubled 0, no contradiction."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from tests.support.checker import LedgerRow, check, read_ledger, unsettled
from tests.support.fleet import Fleet
from tests.support.instance import Job
from tests.support.waiting import wait_for, wait_until


def soon(seconds: float = 2.0) -> datetime:
    """A first fire for processes that have yet to start."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


def periodic(
    count: int, *, seconds: float = 0.0, every: float = 1.0, lead: float = 2.0
) -> list[Job]:
    """Jobs whose first fires are spread over one interval; none is late if the processes start
    within `lead`.
    """
    first = soon(lead)
    return [
        Job(
            job_id=f"job-{n:03d}",
            start_at=first + timedelta(seconds=every * n / count),
            every=every,
            seconds=seconds,
        )
        for n in range(count)
    ]


def prove(fleet: Fleet, until: datetime, *, timeout: float = 120.0) -> list[LedgerRow]:
    """Wait until the ledger knows every fire up to a moment, let the fleet drain, count, and return
    the ledger.
    """
    wait_until(until)
    with ledger_of(fleet) as connection:
        with contextlib.suppress(AssertionError):  # the verdict names them
            wait_for(
                lambda: not unsettled(fleet.jobs, read_ledger(connection, fleet.schema), until),
                "the ledger knows every fire",
                timeout=timeout,
                every=0.2,
            )
        fleet.stop()
        ledger = read_ledger(connection, fleet.schema)
    verdict = check(fleet.jobs, fleet.records(), ledger, until=until)
    assert verdict, str(verdict)
    return ledger


@contextlib.contextmanager
def ledger_of(fleet: Fleet) -> Iterator[psycopg.Connection[Any]]:
    """Connect to the fleet's database, past any proxy."""
    with psycopg.connect(fleet.dsn, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def row_of(fleet: Fleet, job_id: str, *, timeout: float = 60.0) -> LedgerRow:
    """Wait for the one ledger row of a job that fires once."""
    with ledger_of(fleet) as connection:
        (row,) = wait_for(
            lambda: [
                row for row in read_ledger(connection, fleet.schema) if row.fire.job_id == job_id
            ],
            f"the ledger has a row of {job_id}",
            timeout=timeout,
        )
    return row
