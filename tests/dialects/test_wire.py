"""What is written is read back as it was."""

import contextlib
from datetime import UTC, datetime, timedelta

import orjson
from hypothesis import given
from hypothesis import strategies as st

from scheduler.dialects.bullmq import wire as bullmq
from scheduler.dialects.conveyor import wire as conveyor
from scheduler.dialects.ends import STATES
from scheduler.dialects.reliable import wire
from scheduler.dialects.standard import messages as standard
from scheduler.errors import WireError
from scheduler.model.attempts import AttemptEnd, QueuedJob
from scheduler.model.labels import Priority
from tests.conveyor.encoder import decode as conveyor_fields
from tests.dialects.values import job

TEXT = st.text(max_size=40)
MOMENT = st.datetimes(datetime(1970, 1, 1), datetime(9990, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - Hypothesis adds the zone
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
COUNT = st.integers(0, 2**31)
JOBS = st.builds(
    QueuedJob,
    id=st.uuids().map(str),
    tenant=TEXT,
    type=TEXT,
    queue=st.just("mail"),
    priority=st.sampled_from(Priority),
    feed=COUNT,
    attempt=COUNT,
    form=st.sampled_from(["json", "bytes"]),
    payload=st.binary(max_size=200),
    policy=st.none() | st.dictionaries(TEXT, JSON, max_size=3),
    tags=st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
    correlation_id=st.none() | TEXT,
    idempotency_key=st.none() | TEXT,
    created_at=MOMENT,
    expires_at=MOMENT,
    installation=TEXT,
    checkpoint=JSON,
    previous_attempt_id=st.none() | st.uuids().map(str),
)
ENDS = st.builds(
    AttemptEnd,
    tenant=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40),
    job_id=st.uuids().map(str),
    feed=st.integers(0, 2**31 - 1),
    attempt=st.integers(0, 2**31 - 1),
    state=st.sampled_from(list(STATES.values())),
    started_at=MOMENT,
    ended_at=MOMENT,
    worker=TEXT,
    sequence=st.integers(0, 2**63 - 1),
    delay=st.none() | st.timedeltas(timedelta(), timedelta(days=9999)),
    category=st.none() | TEXT,
    code=st.none() | TEXT,
    error=st.none() | TEXT,
    result=st.none() | JSON.map(orjson.dumps),
    checkpoint=JSON,
    previous_attempt_id=st.none() | st.uuids().map(str),
    spawned=st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2),
)


@given(JOBS)
def test_a_job_is_read_as_it_was_written(job: QueuedJob) -> None:
    entry = wire.entry_of(job)
    assert wire.job_of("mail", entry, wire.record_of(job)) == job
    assert wire.id_of(entry).decode() == job.id
    outer = orjson.loads(entry)
    assert list(outer) == [
        "id",
        "filepath",
        "filesize",
        "priority",
        "retries",
        "creation_time",
        "trace_id",
        "span_id",
    ]
    assert datetime.fromisoformat(outer["creation_time"]) == job.created_at
    assert orjson.loads(wire.entry_again(entry, 77)) == {**outer, "retries": 77}


def test_a_job_without_an_idempotency_key_has_no_bytes_for_one() -> None:
    keyed, plain = job(idempotency_key="k"), job()
    for encode in (wire.record_of, standard.record_of, lambda each: bullmq.fields_of(each, 1)[8]):
        assert b"idempotency_key" in encode(keyed)
        assert b"idempotency_key" not in encode(plain)
    assert 1013 in conveyor_fields(conveyor.raw_of(keyed))
    assert 1013 not in conveyor_fields(conveyor.raw_of(plain))


@given(st.lists(ENDS, max_size=3))
def test_ends_are_read_as_they_were_written(ends: list[AttemptEnd]) -> None:
    assert wire.ends_of(b"[" + b",".join(map(wire.end_bytes, ends)) + b"]") == [
        AttemptEnd(
            **{name: getattr(end, name) for name in AttemptEnd.__slots__}
            | {"spawned": end.spawned or ()}
        )
        for end in ends
    ]


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_whatever_stands_there_only_one_error_comes_of_it(entry: bytes, record: bytes) -> None:
    for call in (lambda: wire.job_of("mail", entry, record), lambda: wire.ends_of(entry)):
        with contextlib.suppress(WireError):
            call()
    wire.id_of(entry)


@given(JSON)
def test_whatever_json_stands_there_only_one_error_comes_of_it(value: object) -> None:
    text = orjson.dumps(value)
    for batch in (text, b"[" + text + b"]"):
        with contextlib.suppress(WireError):
            wire.ends_of(batch)
    with contextlib.suppress(WireError):
        wire.job_of("mail", b'{"id":"x"}', b"1:0:%d:%b" % (len(text), text))


def test_of_what_cannot_be_read_the_ids_of_jobs_are_found_and_no_others() -> None:
    good = (
        b'["acme","1",1,1,"completed","2026-01-01T00:00:00+00:00","2026-01-01T00:00:00+00:00","w"]'
    )
    odd = b'["a\\"c,[","2",1,12,"odd"]'
    spawning = b'["acme","3",1,1,"?","","","w",{"spawned":[{"after":["4","5","6"]}],"error":"[\\"7\\",\\"8\\",1,1,"}]'
    ends, lost = wire.rescued(b"[" + b",".join([good, odd, spawning]) + b"]")
    assert ([end.job_id for end in ends], lost) == (["1"], [b"2", b"3"])
    assert wire.rescued(b"[" + b",".join([good, odd]))[1] == [b"1", b"2"]
