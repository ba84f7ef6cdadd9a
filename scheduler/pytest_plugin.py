"""Fixtures for your tests. Ask for them in conftest.py: `pytest_plugins =
["scheduler.pytest_plugin"]`.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from uuid import uuid4

import pytest

import scheduler
from scheduler import testing
from scheduler.errors import NotInitialised
from scheduler.store import schema as store_schema
from scheduler.store.engine import Database

DATABASE = "SCHEDULER_TEST_DATABASE_URL"


@pytest.fixture(scope="session")
def scheduler_database() -> Iterator[str]:
    """A Postgres for tests: the one named by SCHEDULER_TEST_DATABASE_URL, else an embedded one;
    override it freely.
    """
    given = os.environ.get(DATABASE)
    if given:
        yield given
        return
    from scheduler.embedded.postgres import EmbeddedPostgres  # noqa: PLC0415 - an extra

    server = EmbeddedPostgres(durable=False)
    yield server.start()
    server.stop()


@pytest.fixture
def manual_scheduler(scheduler_database: str) -> Iterator[testing.Scheduler]:
    """The initialised scheduler of this process, in a schema of this test, with time that you
    move.
    """
    schema = f"test_{uuid4().hex[:12]}"
    made = testing.initialise(scheduler_database, schema=schema)
    yield made
    with suppress(NotInitialised):  # the test may have cancelled it
        scheduler.cancel(timeout=0)
    tables = Database.open(scheduler_database, schema=schema, prepare=False)
    store_schema.drop(tables)
    tables.close()
