"""A worker of ours on queues that a client of Conveyor fills."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from scheduler import JobContext, PermanentError, Scheduler, Worker, handler
from scheduler.conveyor import Client as Conveyor
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import ConfigError
from tests.conveyor.encoder import decode
from tests.support.waiting import wait_for

Work = Callable[..., Worker]


@pytest.fixture
def conveyor(redis: Client, redis_server: EmbeddedRedis) -> Iterator[Conveyor]:
    with Conveyor(redis_server.url) as client:
        yield client


@pytest.fixture
def work(redis: Client, redis_server: EmbeddedRedis) -> Iterator[Work]:
    made: list[Worker] = []

    def start(**options: Any) -> Worker:
        made.append(Worker(redis_server.url, **{"dialect": "conveyor", "lease": "2s", **options}))
        made[-1].start()
        return made[-1]

    yield start
    for worker in made:
        worker.stop(grace=2)


def test_a_handler_is_given_what_was_added(conveyor: Conveyor, work: Work) -> None:
    seen: list[object] = []
    for kind in ("json", "bytes", "google.protobuf.Timestamp"):
        handler(kind, queue="mail")(
            lambda ctx, payload: seen.append((ctx.type, ctx.attempt, payload))
        )
    conveyor.add({"a": [1, None]}, type="json", queue="mail")
    conveyor.add(b"\x00\xff", type="bytes", queue="mail")
    conveyor.add(Timestamp(seconds=5), queue="mail")
    work(concurrency=1)
    wait_for(lambda: len(seen) == 3, "all have run")
    assert seen == [
        ("json", 1, {"a": [1, None]}),
        ("bytes", 1, b"\x00\xff"),
        ("google.protobuf.Timestamp", 1, Timestamp(seconds=5).SerializeToString()),
    ]


def test_what_a_handler_adds_begins_when_it_has_ended(
    conveyor: Conveyor, work: Work, redis: Client
) -> None:
    seen: list[str] = []

    @handler("parent", queue="mail")
    def parent(context: JobContext, payload: object) -> None:
        for number in range(3):
            conveyor.add(number, type="child", queue="other", parent=context.id)
        conveyor.add(None, type="heir", queue="mail", predecessor=context.id)
        seen.append("parent")

    @handler("child", queue="other")
    def child(context: JobContext, payload: object) -> None:
        seen.append("child")

    @handler("heir", queue="mail")
    def heir(context: JobContext, payload: object) -> None:
        seen.append("heir")

    work(concurrency=4)
    conveyor.add(None, type="parent", queue="mail")
    wait_for(lambda: "heir" in seen, "the heir has run")
    assert seen == ["parent", "child", "child", "child", "heir"]
    wait_for(lambda: not redis.call("KEYS", "jobs:*"), "everything is closed")


def test_a_failure_for_good_is_kept_with_its_reason(
    conveyor: Conveyor, work: Work, redis: Client
) -> None:
    @handler("bad", queue="mail")
    def bad(context: JobContext, payload: object) -> None:
        raise PermanentError("no way")

    work()
    uuid = conveyor.add(b"", type="bad", queue="mail")
    wait_for(lambda: redis.call("LLEN", "failed") == 1, "it has failed")
    found = decode(redis.call("LINDEX", "failed", 0))
    assert (found[1], found[9]) == (str(uuid).encode(), 1)
    assert b"no way" in found[11]


def test_the_ring_waits_until_no_worker_in_go_takes_from_its_queue(
    dsn: str,
    schema: str,
    redis: Client,
    redis_server: EmbeddedRedis,
    work: Work,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for queue in ("mail", "other"):
        handler("note", queue=queue)(lambda _, payload: payload)
    work()
    redis.call(
        "ZADD", "queues:active", int(time.time()) + 3600, "mail"
    )  # as a worker in Go says every 2 s
    queues = {name: {"dialect": "conveyor"} for name in ("mail", "other")}
    with Scheduler(dsn, schema=schema, redis=redis_server.url, queues=queues) as ring:
        waiting = ring.submit("acme", "note", 1, queue="mail")
        ring.wait("acme", ring.submit("acme", "note", 2, queue="other").id, timeout="10s")
        wait_for(
            lambda: "'mail' is worked by a worker of Conveyor itself" in caplog.text, "it is said"
        )
        assert redis.call("LLEN", "mail") == 0
        redis.call("ZADD", "queues:active", 1, "mail")
        assert ring.wait("acme", waiting.id, timeout="30s").state == "completed"


def test_queues_of_one_worker_may_have_other_names(
    redis: Client, redis_server: EmbeddedRedis, work: Work
) -> None:
    seen: list[object] = []
    for queue in ("one", "two"):
        handler("note", queue=queue)(lambda _, payload: seen.append(payload))
    work(
        dialect={
            "one": {"dialect": "conveyor", "keys": "upstream"},
            "two": {"dialect": "conveyor", "namespace": "mine"},
        }
    )
    with (
        Conveyor(redis_server.url, "upstream") as go,
        Conveyor(redis_server.url, namespace="mine") as ours,
    ):
        go.add(1, type="note", queue="one")
        ours.add(2, type="note", queue="two")
    wait_for(lambda: sorted(map(str, seen)) == ["1", "2"], "both have run")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lease": "31s"}, "lease: must be at most 30s"),
        (
            {"dialect": {"mail": {"dialect": "conveyor", "keys": "go"}}},
            "keys of 'mail' must be one of seed, upstream",
        ),
        ({"queues": ["failed"]}, "queue 'failed' would be the key of something else"),
    ],
)
def test_what_a_worker_is_told_is_checked(work: Work, options: dict[str, Any], match: str) -> None:
    for queue in ("mail", "failed"):
        handler("note", queue=queue)(lambda _, payload: payload)
    with pytest.raises(ConfigError, match=match):
        work(**{"queues": ["mail"], **options})
