"""Illegal rows are impossible: every constraint refuses one from hand-written SQL, inserted or made
by an update.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.errors import CheckViolation, NotNullViolation, UniqueViolation
from psycopg.sql import SQL, Identifier
from psycopg.types.json import Jsonb

from scheduler.store.engine import Database
from scheduler.store.schema import migrate
from scheduler.testing import START

ONE, TWO = UUID(int=1), UUID(int=2)
GOOD: dict[str, dict[str, Any]] = {
    "job": {
        "tenant": "acme",
        "id": "report",
        "spec": Jsonb({}),
        "spec_hash": bytes(32),
        "delivery": "at_least_once",
        "overlap": "skip",
        "created_at": START,
        "updated_at": START,
    },
    "job_lock": {
        "tenant": "acme",
        "id": "report",
        "fence": 1,
        "last_fire_at": START,
        "owner": ONE,
        "fire_at": START,
        "created_at": START,
        "expires_at": START,
        "starts": 1,
        "description": "host:1",
        "missed_from": START,
        "missed_count": 1,
        "attempts": Jsonb([]),
        "triggered": False,
    },
    "job_tombstone": {
        "tenant": "acme",
        "id": "report",
        "app": "shop",
        "version": 7,
        "deleted_at": START,
    },
    "job_tenant": {"tenant": "acme", "paused_at": START, "deleting_at": START},
    "job_history": {
        "at": START,
        "tenant": "acme",
        "job_id": str(ONE),
        "kind": "job",
        "outcome": "completed",
        "finished_at": START,
        "type": "x",
        "queue": "default",
        "priority": 2,
        "run_at": START,
        "created_at": START,
        "json": True,
        "missed_count": 0,
        "payload": b"null",
    },
    "job_instance": {
        "id": ONE,
        "label": "host:1",
        "started_at": START,
        "seen_at": START,
        "expires_at": START,
        "skew": "0s",
        "tenants": ["acme"],
        "ids": ["report"],
    },
    "job_queue": {
        "tenant": "acme",
        "id": ONE,
        "type": "x",
        "queue": "default",
        "priority": 2,
        "run_at": START,
        "created_at": START,
        "updated_at": START,
        "expires_at": START.replace(day=8),
        "feed": 1,
        "attempt": 1,
        "retrying": True,
        "open_dependencies": 0,
        "depth": 0,
        "json": True,
        "payload": b"null",
        "attempts": Jsonb([]),
        "cancel_forced": False,
    },
    "job_ready": {
        "queue": "default",
        "priority": 2,
        "tenant": "acme",
        "run_at": START,
        "seq": 1,
        "id": ONE,
    },
    "job_dependency": {"tenant": "acme", "job_id": ONE, "depends_on": TWO, "kind": "after"},
    "job_key": {"tenant": "acme", "type": "x", "key": "k", "job_id": ONE, "expires_at": START},
    "job_callback": {
        "tenant": "acme",
        "job_id": ONE,
        "url": "http://x",
        "state": "failed",
        "attempt": 1,
        "due_at": START,
        "created_at": START,
        "gave_up_at": START,
        "error": "x",
    },
}
FIRE: dict[str, Any] = {
    "kind": "fire",
    "type": None,
    "queue": None,
    "priority": None,
    "run_at": None,
    "created_at": None,
    "json": None,
}

FREE = {"owner": None, "fire_at": None, "created_at": None, "expires_at": None}
CLEAN = {**FREE, "starts": 0, "missed_from": None, "missed_count": 0, "description": None}

# table, what is wrong, and the constraint that says so
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("job", {"tenant": ""}, "job_tenant_check"),
    ("job", {"tenant": "x" * 201}, "job_tenant_check"),
    ("job", {"id": ""}, "job_id_check"),
    ("job", {"spec": Jsonb([])}, "job_spec_check"),
    ("job", {"spec_hash": bytes(31)}, "job_spec_hash_check"),
    ("job", {"delivery": "exactly_once"}, "job_delivery_check"),
    ("job", {"overlap": "twice"}, "job_overlap_check"),
    ("job", {"fence": -1}, "job_fence_check"),
    ("job", {"app": ""}, "job_app_check"),
    ("job", {"version": -1}, "job_version_check"),
    ("job_lock", {"fence": -1}, "job_lock_fence_check"),
    ("job_lock", {"starts": -1}, "job_lock_starts_check"),
    ("job_lock", {"missed_count": -1}, "job_lock_missed_count_check"),
    ("job_lock", {"attempts": Jsonb({})}, "job_lock_attempts_check"),
    ("job_lock", {"created_at": None}, "held_whole_or_not_at_all"),
    ("job_lock", {"expires_at": None}, "held_whole_or_not_at_all"),
    ("job_lock", {"fire_at": None}, "held_whole_or_not_at_all"),
    ("job_lock", {**CLEAN, "starts": 1}, "free_is_clean"),
    ("job_lock", {**CLEAN, "description": "host:1"}, "free_is_clean"),
    ("job_lock", {**CLEAN, "attempts": Jsonb([{}])}, "free_is_clean"),
    ("job_lock", {"fire_at": START.replace(day=2)}, "a_fire_under_way_was_given_out"),
    ("job_lock", {"missed_from": None}, "missed_whole_or_not_at_all"),
    ("job_lock", {"missed_count": 0}, "missed_whole_or_not_at_all"),
    ("job_history", {"missed_count": -1, "missed_from": START}, "job_history_missed_count_check"),
    ("job_history", {"error": "x" * 16_385}, "job_history_error_check"),
    ("job_history", {"attempts": Jsonb({})}, "job_history_attempts_check"),
    ("job_history", {"job": Jsonb([])}, "job_history_job_check"),
    ("job_history", {"result": bytes(1_048_577)}, "job_history_result_check"),
    ("job_history", {**FIRE, "kind": "rumour", "fence": 1}, "outcome_fits_kind"),
    ("job_history", {"outcome": "success"}, "outcome_fits_kind"),
    ("job_history", {"outcome": "running"}, "outcome_fits_kind"),
    ("job_history", {**FIRE, "outcome": "skipped"}, "skipped_has_a_reason"),
    ("job_history", {**FIRE, "outcome": "success"}, "only_a_run_has_a_fence"),
    (
        "job_history",
        {**FIRE, "kind": "audit", "outcome": "paused", "fence": 1},
        "only_a_run_has_a_fence",
    ),
    (
        "job_history",
        {**FIRE, "outcome": "queued", "job": Jsonb({}), "fence": 1},
        "only_a_run_has_a_fence",
    ),
    *[("job_history", {column: None}, "a_job_is_described") for column in FIRE if column != "kind"],
    ("job_history", {"kind": "fire", "outcome": "success", "fence": 1}, "a_job_is_described"),
    (
        "job_history",
        {**FIRE, "outcome": "success", "fence": 1, "job": Jsonb({})},
        "only_jobs_are_described",
    ),
    ("job_history", {**FIRE, "kind": "trigger", "outcome": "queued"}, "only_jobs_are_described"),
    ("job_history", {"missed_from": START}, "missed_whole_or_not_at_all"),
    ("job_history", {"missed_count": 1}, "missed_whole_or_not_at_all"),
    ("job_tenant", {"tenant": ""}, "job_tenant_tenant_check"),
    ("job_tenant", {"paused_at": None}, "only_a_paused_tenant_is_deleted"),
    ("job_tombstone", {"tenant": ""}, "job_tombstone_tenant_check"),
    ("job_tombstone", {"id": "x" * 201}, "job_tombstone_id_check"),
    ("job_tombstone", {"id": ""}, "a_tenant_has_no_version"),
    ("job_instance", {"ids": []}, "each_job_has_a_tenant"),
    ("job_queue", {"tenant": ""}, "job_queue_tenant_check"),
    ("job_queue", {"type": "x" * 201}, "job_queue_type_check"),
    ("job_queue", {"queue": "q" * 101}, "job_queue_queue_check"),
    ("job_queue", {"priority": -1}, "job_queue_priority_check"),
    ("job_queue", {"priority": 5}, "job_queue_priority_check"),
    ("job_queue", {"feed": 0}, "job_queue_feed_check"),
    ("job_queue", {"attempt": -1, "retrying": False}, "job_queue_attempt_check"),
    (
        "job_queue",
        {"open_dependencies": -1, "attempt": 0, "retrying": False},
        "job_queue_open_dependencies_check",
    ),
    (
        "job_queue",
        {"open_dependencies": 1002, "attempt": 0, "retrying": False},
        "job_queue_open_dependencies_check",
    ),
    ("job_queue", {"depth": 101}, "job_queue_depth_check"),
    ("job_queue", {"payload": bytes(16_777_217)}, "job_queue_payload_check"),
    ("job_queue", {"policy": Jsonb("none")}, "job_queue_policy_check"),
    ("job_queue", {"tags": Jsonb(["a"])}, "job_queue_tags_check"),
    ("job_queue", {"attempts": Jsonb({})}, "job_queue_attempts_check"),
    ("job_queue", {"attempt": 0}, "retrying_was_tried"),
    ("job_queue", {"open_dependencies": 1}, "what_waits_for_others_never_ran"),
    ("job_queue", {"open_dependencies": 1, "retrying": False}, "what_waits_for_others_never_ran"),
    ("job_queue", {"cancel_forced": True}, "forced_is_requested"),
    ("job_queue", {"expires_at": START}, "lives_before_it_ends"),
    ("job_dependency", {"kind": "before"}, "job_dependency_kind_check"),
    ("job_dependency", {"depends_on": ONE}, "nobody_waits_for_itself"),
    ("job_key", {"key": ""}, "job_key_key_check"),
    ("job_key", {"key": "x" * 257}, "job_key_key_check"),
    ("job_callback", {"state": "running"}, "job_callback_state_check"),
    ("job_callback", {"attempt": -1}, "job_callback_attempt_check"),
    ("job_callback", {"error": "x" * 16_385}, "job_callback_error_check"),
    ("job_callback", {"error": None}, "giving_up_has_a_reason"),
]

OUTCOMES = {
    "fire": {"success", "failed", "timeout", "crashed", "skipped", "queued"},
    "trigger": {"success", "failed", "timeout", "crashed", "queued"},
    "job": {"completed", "failed", "dead_letter", "cancelled"},
    "audit": {"registered", "changed", "unregistered", "paused", "resumed"},
}


@pytest.fixture(scope="module")
def tables(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """The schema in a transaction that never commits."""
    database = Database.open(dsn, schema="rows", prepare=True)
    migrate(database)
    database.close()
    with psycopg.connect(dsn) as connection:
        connection.execute("SET search_path = rows")
        connection.commit()
        yield connection
        connection.rollback()
        connection.execute("DROP SCHEMA rows CASCADE")


def insert(connection: psycopg.Connection[Any], table: str, row: Mapping[str, Any]) -> None:
    columns, values = SQL(", ").join(map(Identifier, row)), SQL(", ").join(SQL("%s") for _ in row)
    connection.execute(
        SQL("INSERT INTO {} ({}) VALUES ({})").format(Identifier(table), columns, values),
        [*row.values()],
    )


def change(connection: psycopg.Connection[Any], table: str, changes: Mapping[str, Any]) -> None:
    sets = SQL(", ").join(SQL("{} = %s").format(Identifier(column)) for column in changes)
    connection.execute(SQL("UPDATE {} SET {}").format(Identifier(table), sets), [*changes.values()])


@pytest.mark.parametrize("table", GOOD)
def test_a_good_row_is_taken_once(tables: psycopg.Connection[Any], table: str) -> None:
    with tables.transaction(force_rollback=True):
        insert(tables, table, GOOD[table])
        with pytest.raises(UniqueViolation), tables.transaction():
            insert(tables, table, GOOD[table])


@pytest.mark.parametrize(
    ("table", "changes", "constraint"), BAD, ids=[f"{bad[0]}: {bad[2]}" for bad in BAD]
)
def test_a_bad_row_is_refused_by_its_constraint(
    tables: psycopg.Connection[Any], table: str, changes: dict[str, Any], constraint: str
) -> None:
    with tables.transaction(force_rollback=True):
        with pytest.raises(CheckViolation) as inserted, tables.transaction():
            insert(tables, table, {**GOOD[table], **changes})
        insert(tables, table, GOOD[table])
        with pytest.raises(CheckViolation) as updated, tables.transaction():
            change(tables, table, changes)
    assert inserted.value.diag.constraint_name == updated.value.diag.constraint_name == constraint


def test_every_check_is_tried(tables: psycopg.Connection[Any]) -> None:
    with tables.transaction(force_rollback=True):
        found = tables.execute(
            "SELECT t.relname, c.conname FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid"
            " WHERE c.contype = 'c' AND c.connamespace = 'rows'::regnamespace AND NOT "
            "t.relispartition"
        ).fetchall()
    assert set(found) == {(table, constraint) for table, _, constraint in BAD}


@pytest.mark.parametrize("table", GOOD)
def test_what_must_be_there_is(tables: psycopg.Connection[Any], table: str) -> None:
    with tables.transaction(force_rollback=True):
        needed = tables.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnotnull AND "
            "attnum > 0"
            " AND attidentity = ''",
            [f"rows.{table}"],
        ).fetchall()
        assert needed
        for (column,) in needed:
            with pytest.raises(NotNullViolation) as refused, tables.transaction():
                insert(tables, table, {**GOOD[table], column: None})
            assert refused.value.diag.column_name == column


def test_a_ledger_row_has_an_outcome_of_its_kind_and_no_other(
    tables: psycopg.Connection[Any],
) -> None:
    taken: dict[str, set[str]] = {kind: set() for kind in OUTCOMES}
    refusals: set[str | None] = set()
    with tables.transaction(force_rollback=True):
        for kind in OUTCOMES:
            for outcome in set().union(*OUTCOMES.values()):
                described = {} if kind == "job" else FIRE
                runs = kind in ("fire", "trigger") and outcome not in ("skipped", "queued")
                row = {
                    **GOOD["job_history"],
                    **described,
                    "kind": kind,
                    "outcome": outcome,
                    "reason": "misfire",
                    "job": Jsonb({}) if outcome == "queued" else None,
                    "fence": 1 if runs else None,
                }
                try:
                    with tables.transaction(force_rollback=True):
                        insert(tables, "job_history", row)
                    taken[kind].add(outcome)
                except CheckViolation as refused:
                    refusals.add(refused.diag.constraint_name)
    assert taken == OUTCOMES
    assert refusals == {"outcome_fits_kind"}
