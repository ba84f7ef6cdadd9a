"""Add: its order, each of its steps, and how it fails."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import BytesValue

from scheduler.conveyor import Client as Conveyor
from scheduler.dialects.client import Client
from scheduler.dialects.conveyor import add as adding
from scheduler.dialects.conveyor.job_pb2 import Job
from scheduler.dialects.conveyor.keys import Keys
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import ConfigError, InvalidJob, MarshalError, QueueUnavailable, SchedulerError
from tests.conveyor.conftest import contents, new
from tests.conveyor.encoder import decode, encode
from tests.dialects.servers import any_binary, cluster
from tests.dialects.values import ended

PARENT, PREDECESSOR = str(uuid4()), str(uuid4())
SOON = datetime.now(UTC) + timedelta(hours=1)


def at(moment: datetime) -> Timestamp:
    return Timestamp(seconds=int(moment.timestamp()), nanos=500_000_000)


def score(job: Any) -> float:
    return float(job.run_at.seconds) + 0.5


# Its order


def test_a_job_goes_to_its_parent_before_anything_else(redis: Client, keys: Keys) -> None:
    job = new(parent_uuid=PARENT, predecessor_uuid=PREDECESSOR, run_at=at(SOON))
    assert adding.add(redis, keys, job) == "children"
    assert contents(redis) == {keys.job(PARENT, "children"): [job.SerializeToString()]}


def test_then_to_its_predecessor(redis: Client, keys: Keys) -> None:
    job = new(predecessor_uuid=PREDECESSOR, run_at=at(SOON))
    assert adding.add(redis, keys, job) == "onComplete"
    assert contents(redis) == {keys.job(PREDECESSOR, "onComplete"): [job.SerializeToString()]}


def test_then_to_its_time_if_that_is_in_the_future(redis: Client, keys: Keys) -> None:
    job = new(run_at=at(SOON))
    assert adding.add(redis, keys, job) == "scheduled"
    assert contents(redis) == {keys.scheduled: [(job.SerializeToString(), score(job))]}


@pytest.mark.parametrize(
    "moment", [None, datetime(2020, 1, 1, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)]
)
def test_then_to_its_queue(redis: Client, keys: Keys, moment: datetime | None) -> None:
    first, second = new(run_at=moment and at(moment)), new()
    assert [adding.add(redis, keys, job) for job in (first, second)] == ["queue", "queue"]
    assert contents(redis) == {
        keys.queue("mail"): [second.SerializeToString(), first.SerializeToString()]
    }


def test_a_child_of_a_dead_parent_is_followed_and_queued(redis: Client, keys: Keys) -> None:
    job = new(parent_uuid=PARENT, predecessor_uuid=PREDECESSOR)
    assert adding.add(redis, keys, job, dead_parent=True) == "queue"
    followed = {keys.job(PARENT, "active"): [job.uuid.encode()]}
    assert contents(redis) == {keys.queue("mail"): [job.SerializeToString()], **followed}


def test_a_scheduled_child_of_a_dead_parent_is_followed_too(redis: Client, keys: Keys) -> None:
    job = new(parent_uuid=PARENT, run_at=at(SOON))
    assert adding.add(redis, keys, job, dead_parent=True) == "scheduled"
    followed = {keys.job(PARENT, "active"): [job.uuid.encode()]}
    wanted = {keys.scheduled: [(job.SerializeToString(), score(job))], **followed}
    assert contents(redis) == wanted


def test_an_heir_of_a_dead_predecessor_is_queued(redis: Client, keys: Keys) -> None:
    job = new(predecessor_uuid=PREDECESSOR)
    assert adding.add(redis, keys, job, dead_parent=True) == "queue"
    assert contents(redis) == {keys.queue("mail"): [job.SerializeToString()]}


# Its steps, each alone

STEPS: list[tuple[Callable[..., str], str, str, dict[str, Any]]] = [
    (adding.add_to_parent, "children", "parent", {"parent_uuid": PARENT}),
    (adding.add_to_predecessor, "onComplete", "predecessor", {"predecessor_uuid": PREDECESSOR}),
    (
        adding.schedule,
        "scheduled",
        "time to run at",
        {"run_at": at(datetime(2020, 1, 1, tzinfo=UTC))},
    ),
    (adding.follow, "active", "parent", {"parent_uuid": PARENT}),
    (adding.push, "queue", "", {}),
]


@pytest.mark.parametrize(
    ("step", "place", "lacks", "fields"), STEPS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_step_does_what_its_name_says_whatever_else_the_job_has(
    redis: Client,
    keys: Keys,
    step: Callable[..., str],
    place: str,
    lacks: str,
    fields: dict[str, Any],
) -> None:
    everything = {"parent_uuid": PARENT, "predecessor_uuid": PREDECESSOR, "run_at": at(SOON)}
    job = new(**{**everything, **fields})
    raw = job.SerializeToString()
    assert step(redis, keys, job) == place
    wanted = {
        "children": {keys.job(PARENT, "children"): [raw]},
        "onComplete": {keys.job(PREDECESSOR, "onComplete"): [raw]},
        "scheduled": {keys.scheduled: [(raw, score(job))]},
        "active": {keys.job(PARENT, "active"): [job.uuid.encode()]},
        "queue": {keys.queue("mail"): [raw]},
    }
    assert contents(redis) == wanted[place]
    if lacks:
        with pytest.raises(InvalidJob, match=f"this job has no {lacks}"):
            step(redis, keys, new())


# Validation, marshalling


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"type": ""}, "needs a type"),
        ({"queue": ""}, "needs a queue"),
        ({"queue": "scheduled"}, "queue 'scheduled' would be the key of something else"),
        ({"queue": "jobs:7"}, "queue 'jobs:7' would be"),
        ({"uuid": "7"}, "uuid must be a UUID, not '7'"),
        ({"parent_uuid": "x:children"}, "parent_uuid must be a UUID"),
        ({"predecessor_uuid": "7"}, "predecessor_uuid must be a UUID"),
    ],
)
def test_a_job_that_lacks_something_is_refused_and_nothing_written(
    redis: Client, fields: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidJob, match=match) as caught:
        adding.add(redis, Keys(), new(**fields))
    assert caught.value.retryable is False
    assert contents(redis) == {}


def test_a_job_cannot_wait_for_itself(redis: Client) -> None:
    for name in ("parent_uuid", "predecessor_uuid"):
        with pytest.raises(InvalidJob, match=f"job {PARENT} would wait for itself"):
            adding.add(redis, Keys(), new(uuid=PARENT, **{name: PARENT.upper()}))
    assert contents(redis) == {}


def test_an_id_is_written_in_one_way(redis: Client) -> None:
    job = new(uuid=f"{{{PARENT}}}", predecessor_uuid=f"urn:uuid:{PREDECESSOR.upper()}")
    adding.add(redis, Keys(), job)
    assert contents(redis) == {f"jobs:{PREDECESSOR}:onComplete": [job.SerializeToString()]}
    assert job.uuid == PARENT


def test_what_no_worker_could_read_is_refused(redis: Client) -> None:
    group = b"\x9b\x06\x9c\x06"
    job = Job.FromString(new().SerializeToString() + group)
    with pytest.raises(InvalidJob, match="no job that workers could read"):
        adding.add(redis, Keys(), job)
    assert contents(redis) == {}


def test_a_queue_that_is_no_list_is_refused_and_nothing_written(redis: Client, keys: Keys) -> None:
    redis.call("SET", keys.queue("mail"), "theirs")
    for dead in (False, True):
        with pytest.raises(InvalidJob, match="its queue is the key of something else"):
            adding.add(
                redis, keys, new(**({"parent_uuid": PARENT} if dead else {})), dead_parent=dead
            )
    assert contents(redis) == {keys.queue("mail"): b"theirs"}


def test_without_a_job_there_is_nothing_to_add(redis: Client) -> None:
    with pytest.raises(InvalidJob, match="no job"):
        adding.add(redis, Keys(), None)


def test_a_job_without_an_id_gets_one(redis: Client) -> None:
    job = new(uuid="")
    adding.push(redis, Keys(), job)
    [raw] = redis.call("LRANGE", "mail", 0, -1)
    assert UUID(decode(raw)[1].decode()).version == 4
    assert job.uuid == decode(raw)[1].decode()


# The client


@pytest.fixture
def conveyor(redis_server: EmbeddedRedis, redis: Client) -> Any:
    with Conveyor(redis_server.url) as client:
        yield client


def test_bytes_and_json_and_messages(conveyor: Conveyor, redis: Client) -> None:
    first = conveyor.add(b"\x00\xff", type="raw")
    second = conveyor.add({"a": [1, None]}, type="json", queue="raw")
    third = conveyor.add(Timestamp(seconds=5))
    conveyor.add(Timestamp(seconds=5), type="other", queue="raw")
    raws = redis.call("LRANGE", "raw", 0, -1)[::-1]
    assert raws[0] == encode(
        {"uuid": str(first), "type": "raw", "queue": "raw", "payload": b"\x00\xff"}
    )
    assert {number: decode(raws[1])[number] for number in (1, 2, 3, 4, 1004)} == {
        1: str(second).encode(),
        2: b"json",
        3: b"raw",
        4: b'{"a":[1,null]}',
        1004: 1,
    }
    assert decode(raws[2])[2] == b"other"
    name = "google.protobuf.Timestamp"
    wanted = encode({"uuid": str(third), "type": name, "queue": name, "payload": b"\x08\x05"})
    assert redis.call("LRANGE", name, 0, -1) == [wanted]


def test_parents_predecessors_and_times(conveyor: Conveyor, redis: Client) -> None:
    uuid = uuid4()
    assert conveyor.add(b"", type="a", parent=PARENT, uuid=uuid) == uuid
    conveyor.add(b"", type="a", predecessor=UUID(PREDECESSOR))
    conveyor.add(b"", type="a", run_at=datetime(2099, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC))
    conveyor.add(b"", type="a", parent=PARENT, dead_parent=True)
    found = contents(redis)
    assert sorted(found) == sorted(
        [
            "a",
            "scheduled",
            f"jobs:{PARENT}:children",
            f"jobs:{PARENT}:active",
            f"jobs:{PREDECESSOR}:onComplete",
        ]
    )
    assert found["scheduled"][0][1] == datetime(2099, 1, 1, tzinfo=UTC).timestamp() + 0.25


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"payload": b""}, InvalidJob, "type: is needed"),
        ({"payload": b"", "type": "a", "queue": "failed"}, InvalidJob, "queue 'failed'"),
        ({"payload": b"", "type": "a", "queue": ""}, InvalidJob, "needs a queue"),
        ({"payload": b"", "type": "a", "uuid": "7"}, InvalidJob, "uuid must be a UUID"),
        ({"payload": b"", "type": "a", "parent": "7"}, InvalidJob, "parent must be a UUID"),
        ({"payload": b"", "type": 7}, InvalidJob, "type and queue must be texts"),
        (
            {"payload": b"", "type": "a", "run_at": datetime(2099, 1, 1)},  # noqa: DTZ001
            InvalidJob,
            "run_at must be an instant with",
        ),
        ({"payload": {1, 2}, "type": "a"}, MarshalError, "cannot be JSON"),
        ({"payload": float("nan"), "type": "a"}, MarshalError, "cannot be JSON"),
        (
            {"payload": BytesValue(value=bytes(16 * 1024 * 1024))},
            MarshalError,
            "payload has 16,777,221 bytes, more than",
        ),
    ],
)
def test_what_a_client_refuses(
    conveyor: Conveyor,
    redis: Client,
    given: dict[str, Any],
    error: type[SchedulerError],
    match: str,
) -> None:
    with pytest.raises(error, match=match) as caught:
        conveyor.add(given.pop("payload"), **given)
    assert caught.value.retryable is False
    assert contents(redis) == {}


def test_from_async_code(conveyor: Conveyor, redis: Client) -> None:
    uuid = asyncio.run(conveyor.aadd(b"", type="a"))
    assert decode(redis.call("LINDEX", "a", 0))[1] == str(uuid).encode()


@pytest.fixture
def stopped() -> Any:
    """A Redis that accepts and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def test_a_redis_that_does_not_answer_is_waited_for_as_long_as_was_said(stopped: str) -> None:
    begun = time.monotonic()
    with (
        Conveyor(stopped) as conveyor,
        pytest.raises(QueueUnavailable, match="within 0.2 s; job .* may have") as caught,
    ):
        conveyor.add(b"", type="a", timeout="200ms")
    assert time.monotonic() - begun < 30
    assert caught.value.retryable is True


def test_a_caller_that_is_cancelled_waits_no_longer(stopped: str) -> None:
    async def main() -> float:
        with Conveyor(stopped) as conveyor:
            adding = asyncio.ensure_future(conveyor.aadd(b"", type="a", timeout="2s"))
            await asyncio.sleep(0.05)
            begun = time.monotonic()
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
            return time.monotonic() - begun

    assert asyncio.run(main()) < 1


def test_a_redis_that_is_away_is_a_retryable_error() -> None:
    with Conveyor("redis://127.0.0.1:1/0") as conveyor, pytest.raises(QueueUnavailable) as caught:
        conveyor.add(b"", type="a")
    assert caught.value.retryable is True
    assert threading.active_count() < 50


def test_in_time_is_in_time(conveyor: Conveyor, redis: Client) -> None:
    conveyor.add(b"", type="a", timeout=timedelta(seconds=5))
    with pytest.raises(InvalidJob):
        conveyor.add(b"", type="scheduled", timeout="5s")
    assert redis.call("LLEN", "a") == 1


def test_a_cluster_needs_a_hash_tag() -> None:
    with cluster(any_binary()) as house:
        for keys in ("seed", "upstream"):
            with (
                Conveyor(house.url, keys) as plain,
                pytest.raises(ConfigError, match="namespace: needs a hash tag"),
            ):
                plain.add(b"", type="a")
            opened = Client(house.url)
            with pytest.raises(ConfigError, match="in a cluster the namespace needs a hash tag"):
                ConveyorQueue(opened, "a", keys=keys)
            opened.close()
            with Conveyor(house.url, keys, namespace="{conv}") as tagged:
                tagged.add(b"", type="a", parent=uuid4(), dead_parent=True)
        assert house.run("LLEN", "{conv}:a") == house.run("LLEN", "{conv}:queue:a") == 1
        assert tree_in(house.url) == ["parent", "child", "heir"]


def tree_in(url: str) -> list[str]:
    """The types of a parent, its child and its heir, as they ran."""
    opened, ran = Client(url), list[str]()
    queue = ConveyorQueue(opened, "tree", worker="w", namespace="{conv}")
    with Conveyor(url, namespace="{conv}") as client:
        parent = client.add(b"", type="parent", queue="tree")
        client.add(b"", type="heir", queue="tree", predecessor=parent)
        client.add(b"", type="child", queue="tree", parent=parent)
    while taken := queue.fetch(10, timeout=0):
        ran += [each.job.type for each in taken]
        queue.finish([ended(each) for each in taken])
    opened.close()
    return ran
