"""Every dialect that may be configured is the one that is opened."""

from collections.abc import Iterator

import pytest

from scheduler.config import DIALECTS
from scheduler.dialects.client import Client
from scheduler.dialects.opening import open_queue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import ConfigError
from tests.dialects import conftest


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Client]:
    opened = Client(redis_server.url)
    yield opened
    opened.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_queue_is_opened_in_its_dialect(client: Client, dialect: str) -> None:
    assert type(open_queue(client, "mail", {"dialect": dialect})) is conftest.DIALECTS[dialect]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_shares_of_priorities_are_for_the_reliable_dialect_alone(client: Client, dialect: str) -> None:
    if dialect == "reliable":
        assert open_queue(client, "mail", {"dialect": dialect}, weighted=True).name == "mail"
    else:
        with pytest.raises(ConfigError, match='which only has "strict"'):
            open_queue(client, "mail", {"dialect": dialect}, weighted=True)
