"""A scheduler on the test's schema with time that the test moves, and its tables to look into."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from scheduler.store.steps import Steps, run
from scheduler.testing import Scheduler


@pytest.fixture
def instance(dsn: str, schema: str) -> Iterator[Scheduler]:
    with Scheduler(dsn, schema=schema) as made:
        yield made


@pytest.fixture
def own(dsn: str, schema: str, instance: Scheduler) -> Iterator[psycopg.Connection[Any]]:
    """The caller's own connection, with a table of its own."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f'CREATE TABLE "{schema}".orders (id int PRIMARY KEY)'.encode())
        connection.execute("SELECT set_config('search_path', %s, false)", (schema,))
        connection.commit()
        yield connection


def steps(instance: Scheduler, made: Steps[Any]) -> Any:
    """Run steps as a part of the system does."""
    return run(instance._running().databases, made)
