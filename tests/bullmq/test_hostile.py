"""`scheduler.bullmq` meets what it would not have written itself."""

import pytest

from scheduler.bullmq import NewJob, Queue
from scheduler.dialects.bullmq.checks import TAKEN
from scheduler.dialects.client import Client
from scheduler.errors import InvalidOption, WireError
from tests.bullmq.test_client import NOTHING


def test_deduplication_is_refused_in_a_flow_where_somebody_would_wait_for_ever(
    queue: Queue,
) -> None:
    once = {"id": "7"}
    for flow in (
        NewJob("join", children=[NewJob("part", deduplication=once)]),
        NewJob("join", children=[NewJob("part")], deduplication=once),
    ):
        with pytest.raises(InvalidOption, match="deduplication is not for a flow"):
            queue.add_flow(flow)
    assert queue.counts() == NOTHING
    queue.add_flow(NewJob("alone", deduplication=once))
    assert queue.counts() == NOTHING | {"wait": 1}


@pytest.mark.parametrize("field", ["timestamp", "processedOn", "finishedOn"])
@pytest.mark.parametrize("value", ["9" * 30, "9" * 17, "inf", "soon"])
def test_an_instant_that_there_is_not_says_so(
    queue: Queue, redis: Client, field: str, value: str
) -> None:
    redis.call("HSET", "bull:video:8", "name", "encode", field, value)
    with pytest.raises(WireError, match="job 8 cannot be read"):
        queue.get_job("8")


def test_fractions_no_stacktrace_and_bytes_that_are_no_text_are_read(
    queue: Queue, redis: Client
) -> None:
    redis.call(
        "HSET",
        "bull:video:8",
        "name",
        b"\xff",
        "timestamp",
        "1000.5",
        "delay",
        "1.5",
        "stacktrace",
        "null",
    )
    job = queue.get_job("8")
    assert (job.name, job.created_at.microsecond, job.delay_ms, job.stacktrace) == (
        "\ufffd",
        500,
        1,
        [],
    )


def test_an_event_of_others_is_heard_whatever_bytes_it_has(queue: Queue, redis: Client) -> None:
    redis.call("XADD", "bull:video:events", "*", "event", "custom", "why", b"\xff")
    redis.call("XADD", "bull:video:events", "*", "nothing", "else")
    heard = [
        (each.event, each.job_id, each.fields) for each in queue.events(since="0", silence="50ms")
    ]
    assert heard == [("custom", None, {"why": "\ufffd"}), ("", None, {"nothing": "else"})]


@pytest.mark.parametrize("state", ["prioritized", "wait"])
def test_old_jobs_are_cleaned_behind_however_many_that_are_not(queue: Queue, state: str) -> None:
    priority = 1 if state == "prioritized" else 0
    queue.add_many(NewJob("young", priority=priority) for _ in range(600))
    queue.add_many(NewJob("old", priority=2 * priority, timestamp=1000) for _ in range(5))
    assert len(queue.clean(60_000, limit=3, state=state)) == 3
    assert len(queue.clean(60_000, state=state)) == 2
    assert queue.counts() == NOTHING | {state: 600}


def test_the_keys_of_a_queue_are_known(queue: Queue, redis: Client) -> None:
    queue.add_many([NewJob("encode", priority=1), NewJob("encode"), NewJob("encode", delay=5)])
    queue.pause()
    queue.resume()
    names = {key.decode().removeprefix("bull:video:") for key in redis.call("KEYS", "*")}
    assert {name for name in names if not name.isdecimal()} <= set(TAKEN)
