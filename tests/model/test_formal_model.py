"""The formal job model, section by section: each test is named after the section whose table or
rule it shows.
"""

import dataclasses
import enum
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise, product
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler import (
    DependencyCycle,
    DependencyLimit,
    IllegalTransition,
    InvalidOption,
    InvalidPayload,
    NewJob,
    PermanentError,
    Priority,
    RetryPolicy,
    State,
    TemporaryError,
    Timeouts,
)
from scheduler.model.body import Cancelled
from scheduler.model.dependencies import inflicted, inherited
from scheduler.model.failures import ASKED_TO_CANCEL, TIMED_OUT, Category, Failure, classify
from scheduler.model.oneshot import Job, attempt_id, live_state
from scheduler.model.payloads import DEFAULT_LIMIT, LARGEST_LIMIT, decode, encode
from scheduler.model.retries import Bury, Cancel, Decision, Fail, Retry, decide
from scheduler.model.states import LIVE, TERMINAL, TRANSITIONS, transition
from scheduler.model.submission import drafts

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = (
    timedelta(seconds=1),
    timedelta(minutes=1),
    timedelta(hours=1),
    timedelta(days=1),
)
SURE = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_section_1_a_job_id_is_a_uuid_v4_of_the_systems_own() -> None:
    made = drafts([NewJob("acme", "x") for _ in range(1000)])
    assert len({draft.id for draft in made}) == 1000
    assert {(draft.id.version, draft.id.variant) for draft in made} == {
        (4, "specified in RFC 4122")
    }
    with pytest.raises(TypeError, match="id"):
        NewJob("acme", "x", id=uuid4())  # type: ignore[call-arg]


def test_section_1_an_id_never_changes() -> None:
    assert Job.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize("length", [1, 256])
def test_section_1_an_idempotency_key_has_up_to_256_characters_and_a_window_of_24_hours(
    length: int,
) -> None:
    (draft,) = drafts([NewJob("acme", "x", idempotency_key="ä" * length)])
    assert (draft.key, draft.window) == ("ä" * length, DAY)
    (other,) = drafts([NewJob("acme", "x", idempotency_key="k", idempotency_window="1h30m")])
    assert other.window == 1.5 * HOUR


@pytest.mark.parametrize("key", ["", "x" * 257, 7, "a\0b", "a\ud800b"])
def test_section_1_another_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidOption, match="idempotency_key"):
        drafts([NewJob("acme", "x", idempotency_key=key)])


def test_section_2_states_are_those_of_the_table_and_cancelled() -> None:
    table = {
        "PENDING",
        "SCHEDULED",
        "DELAYED",
        "RUNNING",
        "COMPLETED",
        "FAILED",
        "RETRYING",
        "DEAD_LETTER",
    }
    assert {state.name for state in State} == table | {"CANCELLED"}  # section 6 has it
    assert all(state.value == state.name.lower() for state in State)
    assert {state.name for state in State if state.terminal} == {
        "COMPLETED",
        "FAILED",
        "DEAD_LETTER",
        "CANCELLED",
    }
    assert set(State) == TERMINAL | LIVE


TABLE = {
    (State.PENDING, State.SCHEDULED),
    (State.PENDING, State.DELAYED),
    (State.DELAYED, State.SCHEDULED),
    (State.SCHEDULED, State.RUNNING),
    (State.RUNNING, State.COMPLETED),
    (State.RUNNING, State.FAILED),
    (State.RUNNING, State.RETRYING),
    (State.RUNNING, State.DEAD_LETTER),
    (State.RETRYING, State.SCHEDULED),
    (State.RETRYING, State.DEAD_LETTER),
}
ALIVE = (State.PENDING, State.SCHEDULED, State.DELAYED, State.RUNNING, State.RETRYING)
ADDED = (
    {(state, State.CANCELLED) for state in ALIVE}
    | {(state, State.DEAD_LETTER) for state in ALIVE}
    | {(State.PENDING, State.FAILED)}
)


@pytest.mark.parametrize(("before", "after"), list(product(State, State)))
def test_section_2_transitions_are_exactly_the_table_and_the_documented_additions(
    before: State, after: State
) -> None:
    job_id = uuid4()
    if (before, after) in TABLE | ADDED:
        assert transition(job_id, before, after) is after
        assert TRANSITIONS[before, after]
    else:
        with pytest.raises(IllegalTransition) as refused:
            transition(job_id, before, after)
        assert f"{job_id} cannot go from {before} to {after};" in str(refused.value)
        assert ("it has already ended" in str(refused.value)) is (before in TERMINAL)


def test_section_2_nothing_goes_back() -> None:
    """Only RUNNING and RETRYING are entered again, and each time round is another attempt."""
    onward = {pair for pair in TRANSITIONS if pair != (State.RETRYING, State.SCHEDULED)}
    ranks = [
        State.PENDING,
        State.DELAYED,
        State.SCHEDULED,
        State.RUNNING,
        State.RETRYING,
        *TERMINAL,
    ]
    assert all(ranks.index(before) < ranks.index(after) for before, after in onward)
    assert not any(before in TERMINAL for before, _ in TRANSITIONS)


@pytest.mark.parametrize(
    ("open_", "retrying", "waits", "late", "running", "state"),
    [
        (1, False, False, 0, False, State.PENDING),
        (1, False, False, 1, False, State.PENDING),
        (0, False, True, 0, False, State.PENDING),
        (0, False, True, 1, False, State.DELAYED),
        (0, False, False, 0, False, State.SCHEDULED),
        (0, True, True, 1, False, State.RETRYING),
        (0, True, False, 1, False, State.RETRYING),
        (0, True, False, 0, False, State.SCHEDULED),
        (0, False, False, 0, True, State.RUNNING),
        (0, True, False, 0, True, State.RUNNING),
    ],
)
def test_section_2_the_state_of_a_live_job_follows_from_where_it_is(
    open_: int, retrying: bool, waits: bool, late: int, running: bool, state: State
) -> None:
    found = live_state(
        open_dependencies=open_,
        retrying=retrying,
        waits=waits,
        run_at=NOW + late * HOUR,
        now=NOW,
        running=running,
    )
    assert found is state


def test_section_3_priorities_are_five_and_normal_is_the_default() -> None:
    assert {level.name: level.value for level in Priority} == {
        "CRITICAL": 0,
        "HIGH": 1,
        "NORMAL": 2,
        "LOW": 3,
        "BULK": 4,
    }
    assert drafts([NewJob("acme", "x")])[0].priority == Priority.NORMAL


@pytest.mark.parametrize("priority", [-1, 5, 1.5, True, "HIGH", None])
def test_section_3_there_is_no_other_priority(priority: Any) -> None:
    with pytest.raises(InvalidOption, match="priority must be one of 0"):
        drafts([NewJob("acme", "x", priority=priority)])


@given(st.sampled_from(Priority), st.lists(st.sampled_from(Priority)))
def test_section_3_a_dependent_inherits_the_highest_priority(
    own: Priority, others: list[int]
) -> None:
    found = inherited(own, others)
    assert found in {own, *others}
    assert all(found <= each for each in (own, *others))


def test_section_4_timeouts_have_the_defaults_of_the_table() -> None:
    assert dataclasses.asdict(Timeouts()) == {
        "execution": 30 * MINUTE,
        "visibility": 5 * MINUTE,
        "submission": 30 * SECOND,
        "lifetime": 7 * DAY,
    }


@pytest.mark.parametrize("which", ["execution", "visibility", "submission", "lifetime"])
def test_section_4_each_timeout_is_a_positive_duration(which: str) -> None:
    assert getattr(Timeouts(**{which: "90s"}).checked(), which) == 90 * SECOND
    for bad in ("0s", -SECOND, "soon", 5, None):
        with pytest.raises(InvalidOption, match=f"timeouts: {which}"):
            Timeouts(**{which: bad}).checked()  # type: ignore[arg-type]


def test_section_4_a_lifetime_counts_from_submission() -> None:
    (draft,) = drafts([NewJob("acme", "x", timeouts=Timeouts(lifetime="2h"))])
    assert draft.lifetime == 2 * HOUR


@given(st.timedeltas(SECOND, DAY), st.none() | st.timedeltas(SECOND, DAY))
def test_section_4_a_handler_may_ask_for_less_never_for_more(
    limit: timedelta, wish: timedelta | None
) -> None:
    found = Timeouts(execution=limit).for_handler(wish)
    assert found == (limit if wish is None or wish > limit else wish)


def test_section_5_the_retry_policy_has_the_defaults_of_the_table() -> None:
    assert dataclasses.asdict(RetryPolicy()) == {
        "max_attempts": 3,
        "backoff": "exponential",
        "initial_delay": SECOND,
        "max_delay": HOUR,
        "multiplier": 2.0,
        "jitter": True,
        "retry_timeout": True,
        "retry_system": True,
    }


def steady(**options: Any) -> RetryPolicy:
    return RetryPolicy(
        **{"jitter": False, "initial_delay": 2 * SECOND, "max_delay": MINUTE, **options}
    )


def waits(
    policy: RetryPolicy, attempts: range = range(1, 8), **backoffs: Callable[..., timedelta]
) -> list[float]:
    rng = random.Random(1)
    return [
        policy.delay(attempt, rng=rng, backoffs=backoffs).total_seconds() for attempt in attempts
    ]


def test_section_5_constant_backoff_is_always_the_initial_delay() -> None:
    assert waits(steady(backoff="constant")) == [2] * 7


def test_section_5_linear_backoff_grows_by_the_initial_delay_up_to_the_cap() -> None:
    assert waits(steady(backoff="linear", max_delay="9s")) == [2, 4, 6, 8, 9, 9, 9]


def test_section_5_exponential_backoff_multiplies_up_to_the_cap() -> None:
    assert waits(steady()) == [2, 4, 8, 16, 32, 60, 60]
    assert waits(steady(multiplier=3.0)) == [2, 6, 18, 54, 60, 60, 60]
    assert waits(steady(multiplier=1000.0), range(98, 101)) == [60, 60, 60]


def test_section_5_custom_backoff_is_a_function_by_name_and_is_capped_too() -> None:
    def squares(attempt: int, first: timedelta, longest: timedelta) -> timedelta:
        assert (first, longest) == (2 * SECOND, MINUTE)
        return timedelta(seconds=attempt**2) if attempt < 5 else attempt * DAY

    assert waits(steady(backoff="squares"), squares=squares) == [1, 4, 9, 16, 60, 60, 60]
    assert waits(steady(backoff="below"), below=lambda *_: -DAY) == [0] * 7


def test_section_5_a_backoff_that_this_worker_does_not_know_is_exponential() -> None:
    assert waits(steady(backoff="squares")) == waits(steady())


DURATIONS = st.timedeltas(timedelta(microseconds=1), timedelta(days=36_525))
POLICIES = st.builds(
    RetryPolicy,
    backoff=st.sampled_from(["constant", "linear", "exponential"]),
    initial_delay=DURATIONS,
    max_delay=DURATIONS,
    multiplier=st.floats(1, 1000),
    jitter=st.just(False),
)


@SURE
@given(POLICIES, st.integers(1, 99))
def test_section_5_delays_never_shrink_and_never_pass_the_cap(
    policy: RetryPolicy, attempt: int
) -> None:
    rng = random.Random(1)
    found = [policy.checked().delay(each, rng=rng) for each in (attempt, attempt + 1)]
    assert found[0] <= found[1] <= policy.max_delay  # type: ignore[operator]
    assert found[0] >= min(policy.initial_delay, policy.max_delay)  # type: ignore[operator]


@SURE
@given(POLICIES, st.integers(1, 100), st.integers())
def test_section_5_jitter_stays_within_ten_percent_and_the_cap(
    policy: RetryPolicy, attempt: int, seed: int
) -> None:
    plain = policy.delay(attempt, rng=random.Random(seed))
    found = dataclasses.replace(policy, jitter=True).delay(attempt, rng=random.Random(seed))
    rounding = timedelta(microseconds=1)
    assert plain * 0.9 - rounding <= found <= min(plain * 1.1 + rounding, policy.max_delay)  # type: ignore[operator]


def test_section_5_jitter_spreads_and_is_on_by_default() -> None:
    rng = random.Random(1)
    found = [
        RetryPolicy(initial_delay="100s").delay(1, rng=rng).total_seconds() for _ in range(1000)
    ]
    assert min(found) < 91
    assert max(found) > 109
    assert len(set(found)) > 900


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 101},
        {"max_attempts": True},
        {"max_attempts": 2.5},
        {"multiplier": 0.5},
        {"multiplier": float("nan")},
        {"multiplier": "2"},
        {"initial_delay": "0s"},
        {"max_delay": 5},
        {"jitter": 1},
        {"retry_timeout": None},
        {"retry_system": "yes"},
    ],
)
def test_section_5_a_policy_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=f"retry: {next(iter(wrong))}"):
        drafts([NewJob("acme", "x", retry=RetryPolicy(**wrong))])


@dataclass(frozen=True)
class Attempt:
    """A job in the middle of an attempt, as the decision sees it."""

    charged: int = 1
    retry: RetryPolicy = RetryPolicy(jitter=False)  # noqa: RUF009 - it is frozen
    expires_at: datetime = NOW + 7 * DAY


def decided(
    category: Category, *, retry_after: timedelta | None = None, now: datetime = NOW, **job: Any
) -> Decision:
    failure = Failure(category=category, message="it broke", retry_after=retry_after)
    return decide(Attempt(**job), failure, now=now, rng=random.Random(1))


def test_section_5_the_attempt_that_failed_counts_itself() -> None:
    """Max attempts include the first; the counter stands at the attempt that has begun."""
    assert [decided(Category.TEMPORARY, charged=attempt) for attempt in range(1, 5)] == [
        Retry(SECOND),
        Retry(2 * SECOND),
        Bury(),
        Bury(),
    ]
    once = RetryPolicy(max_attempts=1)
    assert decided(Category.TEMPORARY, retry=once) == Bury()


NEVER = RetryPolicy(retry_timeout=False, retry_system=False, jitter=False)
LAST = {"attempt": 3}


@pytest.mark.parametrize(
    ("category", "first", "last", "switched_off"),
    [
        (Category.TEMPORARY, Retry(SECOND), Bury(), Retry(SECOND)),
        (Category.PERMANENT, Fail(), Fail(), Fail()),
        (Category.TIMEOUT, Retry(SECOND), Bury(), Fail()),
        (Category.CANCELLED, Cancel(), Cancel(), Cancel()),
        (Category.SYSTEM, Retry(SECOND), Bury(), Fail()),
    ],
)
def test_section_8_each_category_is_retried_as_the_table_says(
    category: Category, first: Decision, last: Decision, switched_off: Decision
) -> None:
    assert decided(category) == first
    assert decided(category, charged=3) == last
    assert decided(category, retry=NEVER) == switched_off


def test_section_8_there_are_five_categories() -> None:
    assert {each.name for each in Category} == {
        "TEMPORARY",
        "PERMANENT",
        "TIMEOUT",
        "CANCELLED",
        "SYSTEM",
    }


def test_section_8_retry_after_replaces_the_backoff_and_is_capped() -> None:
    assert decided(Category.TEMPORARY, retry_after=20 * MINUTE) == Retry(20 * MINUTE)
    assert decided(Category.TEMPORARY, retry_after=timedelta(milliseconds=1)) == Retry(
        timedelta(milliseconds=1)
    )
    assert decided(Category.TEMPORARY, retry_after=DAY) == Retry(HOUR)
    assert decided(Category.TEMPORARY, retry_after=DAY, expires_at=NOW + MINUTE) == Retry(MINUTE)
    assert decided(Category.TEMPORARY, retry_after=MINUTE, charged=3) == Bury()
    assert decided(Category.PERMANENT, retry_after=MINUTE) == Fail()


@SURE
@given(
    st.sampled_from(Category),
    st.integers(1, 10),
    st.none() | DURATIONS,
    st.timedeltas(-DAY, 7 * DAY),
    POLICIES,
)
def test_section_4_no_retry_waits_past_the_lifetime(
    category: Category,
    attempt: int,
    retry_after: timedelta | None,
    left: timedelta,
    policy: RetryPolicy,
) -> None:
    found = decided(
        category, charged=attempt, retry_after=retry_after, expires_at=NOW + left, retry=policy
    )
    if isinstance(found, Retry):
        assert timedelta(0) <= found.delay <= left
        assert found.delay <= policy.max_delay  # type: ignore[operator]
        assert attempt < policy.max_attempts
    elif category is Category.TEMPORARY:
        assert found == Bury()
        assert attempt >= policy.max_attempts or left <= timedelta(0)


def classified(error: BaseException, reason: str | None = None) -> Failure:
    cancelled = Cancelled()
    if reason is not None:
        cancelled.because(reason)
    return classify(error, cancelled)


@pytest.mark.parametrize(
    ("error", "reason", "category"),
    [
        (ValueError("x"), None, Category.TEMPORARY),
        (ConnectionError("x"), None, Category.TEMPORARY),
        (TemporaryError("x"), None, Category.TEMPORARY),
        (PermanentError("x"), None, Category.PERMANENT),
        (MemoryError(), None, Category.SYSTEM),
        (SystemExit(1), None, Category.SYSTEM),
        (KeyboardInterrupt(), None, Category.SYSTEM),
        (ValueError("x"), TIMED_OUT, Category.TIMEOUT),
        (PermanentError("x"), TIMED_OUT, Category.TIMEOUT),
        (ValueError("x"), ASKED_TO_CANCEL, Category.CANCELLED),
        (PermanentError("x"), ASKED_TO_CANCEL, Category.CANCELLED),
        (ValueError("x"), "shutdown", Category.TEMPORARY),
    ],
)
def test_section_8_every_failure_has_exactly_one_category(
    error: BaseException, reason: str | None, category: Category
) -> None:
    failure = classified(error, reason)
    assert failure.category is category
    assert failure.message.startswith(type(error).__name__)


def test_section_8_a_permanent_error_carries_message_cause_and_code() -> None:
    cause = KeyError("order")
    error = PermanentError("no such order", cause, code="E404")
    assert (error.message, error.__cause__, error.code) == ("no such order", cause, "E404")
    failure = classified(error)
    assert failure.code == "E404"
    assert "PermanentError: no such order" in failure.message
    assert classified(PermanentError("x")).code == ""
    assert len(classified(PermanentError("x", code="c\0" * 5000)).code) < 300


@pytest.mark.parametrize(
    ("given_", "understood"),
    [
        (None, None),
        ("90s", 90 * SECOND),
        ("1h30m", 1.5 * HOUR),
        (5 * MINUTE, 5 * MINUTE),
        ("soon", None),
        ("", None),
        (7, None),
        (timedelta(0), None),
        (-SECOND, None),
        (timedelta.max, None),
        (object(), None),
    ],
)
def test_section_8_a_temporary_error_may_say_when_to_try_again(
    given_: Any, understood: timedelta | None
) -> None:
    cause = OSError("down")
    error = TemporaryError("busy", cause, retry_after=given_)
    assert (error.message, error.__cause__) == ("busy", cause)
    assert classified(error).retry_after == understood


@pytest.mark.parametrize(
    ("ended", "after"),
    [
        (State.COMPLETED, None),
        (State.FAILED, State.FAILED),
        (State.DEAD_LETTER, State.DEAD_LETTER),
        (State.CANCELLED, State.CANCELLED),
    ],
)
def test_section_6_the_end_of_a_dependency_does_to_others_what_the_table_says(
    ended: State, after: State | None
) -> None:
    assert inflicted("after", ended) is after
    assert inflicted("after_any", ended) is None
    assert after is None or (State.PENDING, after) in TRANSITIONS


def circle(length: int) -> list[NewJob]:
    jobs = [NewJob("acme", f"n{number}") for number in range(length)]
    for job, following in pairwise([*jobs, jobs[0]]):
        object.__setattr__(job, "after", [following])
    return jobs


@pytest.mark.parametrize("length", [1, 2, 5])
def test_section_6_a_circle_is_refused(length: int) -> None:
    with pytest.raises(DependencyCycle, match="n0"):
        drafts(circle(length))


def test_section_6_a_job_has_at_most_a_thousand_dependencies() -> None:
    drafts(
        [
            NewJob(
                "acme",
                "x",
                after=[uuid4() for _ in range(600)],
                after_any=[uuid4() for _ in range(400)],
            )
        ]
    )
    with pytest.raises(DependencyLimit, match="'x' depends on 1001 jobs, more than 1000"):
        drafts(
            [
                NewJob(
                    "acme",
                    "x",
                    after=[uuid4() for _ in range(600)],
                    after_any=[uuid4() for _ in range(401)],
                )
            ]
        )


def test_section_7_an_attempt_has_a_name_that_everybody_finds_and_so_has_the_one_before() -> None:
    jobs = [uuid4() for _ in range(20)]

    def names() -> list[UUID]:
        """Ids of attempts which differ in their job, or their lease, alone."""
        leases = [("a", 1), ("a", 2), ("b", 1), ("a:1", 1), ("b", 11)]
        return [attempt_id(job, *lease, feed=1, attempt=1) for job in jobs for lease in leases]

    assert names() == names()
    assert len(set(names())) == 100
    first = names()[0]
    assert attempt_id(jobs[0], "a", 1, feed=2, attempt=3) == first
    # Without a lease of ours: by what a worker of another project has recorded.
    others = {attempt_id(jobs[0], "a", 0, feed=n, attempt=m) for n in (1, 2) for m in (1, 2)}
    assert len(others | {first}) == 5


def test_section_7_an_attempt_has_a_number_and_the_job_keeps_each_of_them() -> None:
    assert {"id", "attempt", "attempts", "retried_from"} <= set(Job.__dataclass_fields__)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner
        )
    ),
    max_leaves=30,
)


@SURE
@given(JSON)
def test_section_9_any_json_value_comes_back_as_it_was(value: object) -> None:
    form, encoded = encode(value)
    assert form == "json"
    assert repr(decode(form, encoded)) == repr(value)
    assert json.loads(encoded.decode()) == value


@given(st.binary())
def test_section_9_any_bytes_come_back_as_they_were(value: bytes) -> None:
    for given_ in (value, bytearray(value), memoryview(value)):
        form, encoded = encode(given_)
        assert form == "bytes"
        assert decode(form, encoded) == value


class Colour(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: int = 1


class Text(str):
    __slots__ = ()


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__
    __eq__ = __hash__ = __len__ = __iter__ = __bool__ = __repr__  # type: ignore[assignment]


def endless() -> list[object]:
    made: list[object] = []
    made.append(made)
    return made


def deep(levels: int) -> object:
    made: object = 1
    for _ in range(levels):
        made = [made]
    return made


STRANGE: st.SearchStrategy[object] = st.one_of(
    st.floats(),
    st.integers(),
    st.text(st.characters()),
    st.complex_numbers(),
    st.decimals(),
    st.datetimes(),
    st.dates(),
    st.timedeltas(),
    st.sets(st.integers()),
    st.builds(Point),
    st.builds(Text, st.text()),
    st.builds(Hostile),
    st.builds(endless),
    st.builds(deep, st.integers(1, 2000)),
    st.builds(range, st.integers(0, 5)),
    st.sampled_from([object, len, Hostile, Decimal("NaN"), NotImplemented, ...]),
)
ANYTHING = st.recursive(
    JSON | STRANGE,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(
            st.text(st.characters()) | st.integers() | st.booleans() | st.none() | st.dates(), inner
        )
    ),
    max_leaves=8,
)


def as_lists(value: object) -> object:
    if isinstance(value, list | tuple):
        return [as_lists(each) for each in value]
    return (
        {key: as_lists(each) for key, each in value.items()} if isinstance(value, dict) else value
    )


@settings(SURE, max_examples=150)
@given(ANYTHING)
def test_section_9_anything_else_comes_back_as_it_was_or_is_refused(value: object) -> None:
    try:
        form, encoded = encode(value)
    except InvalidPayload:
        return
    assert repr(decode(form, encoded)) == repr(as_lists(value))


@pytest.mark.parametrize(
    "value",
    [UUID(int=7), Colour.RED, Priority.HIGH, orjson.Fragment(b"[")],
    ids=lambda value: repr(value).split(" object at ")[0],
)
def test_section_9_an_object_is_refused_even_if_a_library_could_write_it(value: object) -> None:
    with pytest.raises(InvalidPayload):
        encode({"a": [value]})


def test_section_9_a_payload_has_up_to_a_megabyte_and_sixteen_by_configuration() -> None:
    assert (DEFAULT_LIMIT, LARGEST_LIMIT) == (1024**2, 16 * 1024**2)
    assert len(encode(bytes(DEFAULT_LIMIT))[1]) == DEFAULT_LIMIT
    assert len(encode("x" * (DEFAULT_LIMIT - 2))[1]) == DEFAULT_LIMIT
    for large in (bytes(DEFAULT_LIMIT + 1), "x" * (DEFAULT_LIMIT - 1), "ä" * (DEFAULT_LIMIT // 2)):
        with pytest.raises(InvalidPayload, match="more than the 1,048,576 that are allowed"):
            encode(large)
    assert encode(bytes(LARGEST_LIMIT), limit=LARGEST_LIMIT)


def test_section_9_a_payload_is_never_shown_and_never_changes() -> None:
    secret = "4111-1111-1111-1111"
    payload = {"card": [secret]}
    new = NewJob("acme", "x", payload)
    (draft,) = drafts([new])
    payload["card"] = ["other"]
    assert decode(draft.form, draft.payload) == {"card": [secret]}
    assert secret not in repr(new)
    with pytest.raises(InvalidPayload) as refused:
        encode({"card": [secret, object()]})
    assert secret not in str(refused.value)
    shown = {each.name for each in dataclasses.fields(Job) if each.repr}
    assert not shown & {"payload", "raw_payload", "raw_result"}


SYSTEM = {
    "id": UUID,
    "created_at": datetime,
    "updated_at": datetime,
    "state": State,
    "attempt": int,
    "scheduled_at": datetime | None,
    "started_at": datetime | None,
    "completed_at": datetime | None,
}
USER = {"type", "priority", "tags", "correlation_id", "callback_url"}


def test_section_10_a_job_has_every_field_of_the_metadata() -> None:
    types = {each.name: each.type for each in dataclasses.fields(Job)}
    assert {name: types[name] for name in SYSTEM} == SYSTEM
    assert set(types) >= USER
    assert set(NewJob.__dataclass_fields__) >= USER
    assert not set(NewJob.__dataclass_fields__) & set(SYSTEM)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tags": {"a": 1}},
        {"tags": {"": "x"}},
        {"tags": {str(n): "x" for n in range(51)}},
        {"tags": "a"},
        {"correlation_id": ""},
        {"correlation_id": "x" * 257},
        {"callback_url": "example.com"},
        {"callback_url": "https://"},
        {"callback_url": "javascript:alert(1)"},
    ],
)
def test_section_10_a_label_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=next(iter(wrong)).removesuffix("s")):
        drafts([NewJob("acme", "x", **wrong)])


def test_section_10_a_type_is_required() -> None:
    for type_ in ("", None, 7, "x" * 201, "a\0b", "\ud800"):
        with pytest.raises(Exception, match="type"):
            drafts([NewJob("acme", type_)])  # type: ignore[arg-type]
