"""Packed arrays are read by Postgres as psycopg's own would be."""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.store import arrays

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
KINDS: list[Any] = [
    (arrays.texts, "text[]", st.none() | TEXTS),
    (arrays.blobs, "bytea[]", st.none() | st.binary(max_size=300)),
    (arrays.uuids, "uuid[]", st.uuids()),
    (arrays.integers, "int4[]", st.none() | st.integers(-(2**31), 2**31 - 1)),
    (arrays.instants, "timestamptz[]", st.none() | MOMENTS),
]


@pytest.mark.parametrize(("pack", "kind", "values"), KINDS, ids=[kind for _, kind, _ in KINDS])
def test_what_is_packed_is_what_postgres_reads(dsn: str, pack: Any, kind: str, values: Any) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(given_values=st.lists(values, max_size=30))
        def check(given_values: list[Any]) -> None:
            for binary in (True, False):
                cursor = connection.execute(
                    f"SELECT %b::{kind}".encode(), [pack(given_values)], binary=binary
                )
                row = cursor.fetchone()
                assert row is not None
                assert row[0] == given_values

        check()
