"""Every dialect that may be configured is the one that is opened."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from scheduler.config import DIALECTS
from scheduler.dialects.client import Client
from scheduler.dialects.opening import open_queue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import ConfigError
from scheduler.model.reaper import ReaperRule
from tests.dialects import conftest
from tests.dialects.values import back


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Client]:
    opened = Client(redis_server.url)
    yield opened
    opened.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_queue_is_opened_in_its_dialect(client: Client, dialect: str) -> None:
    expected = type(conftest.DIALECTS[dialect](client, "mail"))
    assert type(open_queue(client, "mail", {"dialect": dialect})) is expected


@pytest.mark.parametrize("dialect", DIALECTS)
def test_shares_of_priorities_are_for_queues_of_our_own_workers(
    client: Client, dialect: str
) -> None:
    if dialect in ("standard", "reliable"):
        assert open_queue(client, "mail", {"dialect": dialect}, weighted=True).name == "mail"
    else:
        with pytest.raises(ConfigError, match='which only has "strict"'):
            open_queue(client, "mail", {"dialect": dialect}, weighted=True)


def test_lost_jobs_of_bullmq_are_looked_for_every_30_s_or_as_the_reaper_is_told(
    client: Client,
) -> None:
    for reaper, milliseconds in (
        (ReaperRule(), 30_000),
        (ReaperRule(interval=timedelta(seconds=7)), 7_000),
    ):
        client.call("FLUSHALL")
        open_queue(client, "mail", {"dialect": "bullmq"}, worker="w", reaper=reaper).recover(back)
        assert milliseconds - 2_000 < client.call("PTTL", "bull:mail:stalled-check") <= milliseconds
