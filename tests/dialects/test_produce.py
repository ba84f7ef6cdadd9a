"""Files are queued by every Redis that we support, alone or in a cluster."""

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.produce import Intake, entry_of
from scheduler.errors import ConfigError
from scheduler.model.files import File, ProducerRule
from tests.dialects.servers import House

FILES = [
    File(f"/data/{number}", number, number, "high" if number % 2 else "low")
    for number in range(300)
]


def test_files_are_queued_once_in_every_redis(house: House) -> None:
    client = Client(house.url)
    intake = Intake(client, ProducerRule(rate_limit_key="jobqueue:{files}:rate"), Keys.of("files"))
    entries = [entry_of(file) for file in FILES]
    first = intake.put(entries)
    assert (len(first.queued), len(first.waiting)) == (11, 289)
    assert 0.01 < first.pause <= 0.1
    unlimited = ProducerRule(rate_limit_per_sec=0, rate_limit_key="jobqueue:{files}:rate")
    second = Intake(client, unlimited, Keys.of("files")).put(entries)
    assert (len(second.queued), second.unchanged, second.waiting, second.pause) == (289, 11, [], 0)
    assert [house.run("LLEN", f"jobqueue:{{files}}:{level}") for level in ("high", "low")] == [
        150,
        150,
    ]
    assert house.run("LRANGE", "jobqueue:{files}:low", -1, -1) == [entries[0].text]
    client.close()


def test_keys_that_a_cluster_cannot_have_together_are_refused(house: House) -> None:
    client = Client(house.url)
    entries = [entry_of(FILES[0])]
    for keys, said in (
        (Keys.original(), "hash tag"),
        (Keys.of("files"), r"^producer\.rate_limit_key: .*jobqueue:\{files\}"),
    ):
        intake = Intake(client, ProducerRule(), keys)
        if house.clustered:
            with pytest.raises(ConfigError, match=said):
                intake.put(entries)
        else:
            assert len(intake.put(entries).queued) == 1
    client.close()
