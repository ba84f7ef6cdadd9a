"""A role whose timeouts cancel statements that wait for a table lock."""

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.conftest import MakeScheduler
from tests.support.recorder import Recorder
from tests.support.waiting import rest

HELD = 17.0  # after which a backoff that doubles up to 15 s has reached 15 s
RESUMED = 5.0


@pytest.fixture
def role(dsn: str) -> Iterator[str]:
    """A role of this test."""
    name = f"role_{uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}").format(sql.Identifier(name), name)
        )
        yield name
        admin.execute(sql.SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(sql.Identifier(name)))
        admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("table", ["job", "job_lock"])
@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
def test_fires_resume_when_a_table_lock_is_released(
    dsn: str,
    schema: str,
    role: str,
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    connection: psycopg.Connection[Any],
    setting: str,
    table: str,
) -> None:
    connection.execute(
        sql.SQL("ALTER ROLE {} SET {} = '200ms'").format(
            sql.Identifier(role), sql.Identifier(setting)
        )
    )
    make_scheduler()  # creates the tables without these timeouts
    instance = make_scheduler(database=make_conninfo(dsn, user=role, password=role))
    instance.register("acme", "x", recorder.body, every="200ms")
    recorder.wait(lambda: len(recorder.runs) >= 3)
    with connection.transaction():
        connection.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(table)))
        rest(HELD)
        before = len(recorder.runs)
    released = time.monotonic()
    recorder.wait(lambda: len(recorder.runs) > before)
    assert time.monotonic() - released < RESUMED
