"""The bytes of a job are Go's, by two encoders that are not ours: protoc's, and one written from
the format.
"""

import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.dialects.conveyor import wire
from scheduler.dialects.conveyor.job_pb2 import Job
from scheduler.errors import QueueError, WireError
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority
from tests.conveyor.encoder import FIELDS, TIME, decode, encode
from tests.conveyor.proto import MODULE, module, protoc
from tests.dialects.values import job

UUID = "0b2f7a4e-5c1d-4d3a-9a53-0f8c2f1e6d77"
EXAMPLES: dict[str, Any] = {
    "uuid": UUID,
    "type": "videos.Encode",
    "queue": "videos.Encode",
    "payload": b"\x08\x07\x00\xff",
    "run_at": (1_900_000_000, 123_000_000),
    "parent_uuid": UUID,
    "predecessor_uuid": UUID,
    "started_at": (1_800_000_000, 1),
    "retry": 2,
    "max_retries": 300,
    "last_failure": "no \u4e2d",
    "status": 4,
}
TEXTS = st.text(st.characters(codec="utf-8"))
NUMBERS = st.integers(-(2**31), 2**31 - 1)
TIMES = st.tuples(st.integers(-62_135_596_800, 253_402_300_799), st.integers(0, 999_999_999))
JOBS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ("uuid", "type", "queue", "parent_uuid", "predecessor_uuid", "last_failure"), TEXTS
        ),
        "payload": st.binary(),
        "run_at": TIMES,
        "started_at": TIMES,
        "retry": NUMBERS,
        "max_retries": NUMBERS,
        "status": st.integers(0, 4),
    },
)
UNKNOWN = st.lists(st.tuples(st.integers(2000, 3000), st.binary()))


def made(fields: dict[str, Any]) -> Any:
    job = Job()
    for name, value in fields.items():
        if FIELDS[name][1] == TIME:
            getattr(job, name).SetInParent()
            getattr(job, name).seconds, getattr(job, name).nanos = value
        else:
            setattr(job, name, value)
    return job


def read(raw: bytes) -> QueuedJob:
    return wire.delivery_of("mail", raw, None, wire.EPOCH).job


def test_the_module_is_made_of_job_proto() -> None:
    assert MODULE.read_text("utf-8") == module(), "run `make proto`"


@pytest.mark.parametrize(
    "names", [*([name] for name in FIELDS), [*FIELDS]], ids=lambda names: "+".join(names)[:20]
)
def test_every_field_is_written_as_protoc_writes_it(names: list[str]) -> None:
    text = " ".join(f"{name}: {_text(name, EXAMPLES[name])}" for name in names)
    golden = protoc("--encode=scheduler.conveyor.Job", given=text.encode())
    fields = {name: EXAMPLES[name] for name in names}
    assert made(fields).SerializeToString() == golden
    assert encode(fields) == golden


def _text(name: str, value: Any) -> str:
    if FIELDS[name][1] == TIME:
        return f"{{ seconds: {value[0]} nanos: {value[1]} }}"
    if isinstance(value, int):
        return str(value)
    data = value.encode() if isinstance(value, str) else value
    return '"' + "".join(f"\\{byte:03o}" for byte in data) + '"'


def test_every_combination_of_the_twelve_fields() -> None:
    for chosen in itertools.product([False, True], repeat=len(FIELDS)):
        fields = {name: EXAMPLES[name] for name, there in zip(FIELDS, chosen, strict=True) if there}
        assert made(fields).SerializeToString() == encode(fields)


def test_bytes_that_were_computed_by_hand() -> None:
    job = Job(uuid="a", type="b", queue="c", payload=b"d", retry=1)
    assert job.SerializeToString() == b"\x0a\x01a\x12\x01b\x1a\x01c\x22\x01d\x48\x01"
    job.run_at.seconds = 300
    assert (
        job.SerializeToString()
        == b"\x0a\x01a\x12\x01b\x1a\x01c\x22\x01d\x2a\x03\x08\xac\x02\x48\x01"
    )


@given(JOBS, UNKNOWN)
@settings(max_examples=300, deadline=None)
def test_any_job_goes_there_and_back_with_what_we_do_not_know(
    fields: dict[str, Any], unknown: Any
) -> None:
    raw = encode(fields, unknown)
    assert Job.FromString(raw).SerializeToString() == raw
    assert made(fields).SerializeToString() == encode(fields)


@given(JOBS, UNKNOWN, st.integers(1, 100))
@settings(max_examples=200, deadline=None)
def test_a_retry_changes_two_fields_and_keeps_what_we_do_not_know(
    fields: dict[str, Any], unknown: Any, attempt: int
) -> None:
    again = wire.raw_again(encode(fields, unknown), attempt, "why")
    assert again == encode({**fields, "retry": attempt, "last_failure": "why"}, unknown)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_what_a_ledger_feeds_is_read_as_it_was_written(data: st.DataObject) -> None:
    times = st.integers(0, 8000 * 365 * 86_400_000_000).map(
        lambda us: wire.EPOCH + timedelta(microseconds=us)
    )
    tags = st.none() | st.dictionaries(TEXTS, TEXTS, min_size=1)
    one = job(
        tenant=data.draw(TEXTS),
        type=data.draw(TEXTS),
        payload=data.draw(st.binary()),
        tags=data.draw(tags),
        form=data.draw(st.sampled_from(["json", "bytes"])),
        priority=data.draw(st.sampled_from(Priority)),
        feed=data.draw(st.integers(1, 2**40)),
        attempt=data.draw(st.integers(0, 100)),
        correlation_id=data.draw(st.none() | TEXTS),
        idempotency_key=data.draw(st.none() | TEXTS.filter(bool)),
        created_at=data.draw(times),
        expires_at=data.draw(times),
        policy=data.draw(st.none() | st.just({"max_attempts": 7})),
        installation=data.draw(TEXTS),
        checkpoint=data.draw(st.none() | st.just({"page": [1, None]})),
    )
    assert read(wire.raw_of(one)) == one


def test_our_fields_are_from_1000_up_and_behind_those_of_conveyor() -> None:
    raw = wire.raw_of(
        job(
            attempt=2, tags={"a": "b"}, correlation_id="c", policy={"max_attempts": 9}, checkpoint=1
        )
    )
    found = decode(raw)
    assert list(found) == sorted(found)
    assert {number for number in found if number > 12} == set(range(1000, 1012)) - {1001}
    assert (found[9], found[10]) == (2, 9)


def test_a_job_of_others_has_the_policy_of_conveyor() -> None:
    found = read(
        encode({"uuid": UUID, "type": "t", "queue": "mail", "payload": b"\x01", "retry": 1})
    )
    retry, _ = found.policies()
    assert (found.attempt, found.form, found.installation) == (1, "bytes", "")
    assert (retry.max_attempts, retry.backoff, retry.initial_delay) == (
        3,
        "constant",
        timedelta(seconds=2),
    )
    assert read(encode({"max_retries": 5})).policies()[0].max_attempts == 5


@pytest.mark.parametrize(
    "raw", [b"\xff", b"\x0a\x05ab", b"\x0a\x01\xff", b"\xc0\x3e\x01\x8a\x3f\x01{"]
)
def test_what_cannot_be_read_is_said_so(raw: bytes) -> None:
    with pytest.raises(WireError, match="'mail' cannot be read"):
        read(raw)


@pytest.mark.parametrize(
    "change", [{"type": "\ud800"}, {"attempt": 2**40}, {"tags": {"a": "\ud800"}}]
)
def test_what_cannot_be_written_is_said_so(change: dict[str, Any]) -> None:
    with pytest.raises(QueueError, match="cannot be written"):
        wire.raw_of(job(**change))
