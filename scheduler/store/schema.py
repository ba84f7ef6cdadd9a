"""The schema: applied whole to a new database, under one lock.

No version was released yet, so there are no migrations: a schema of another version is refused.
"""

from collections.abc import Mapping

from scheduler.errors import SchemaMismatch
from scheduler.store.engine import BoundedConnection, Database, Row
from scheduler.store.queries import read, statement

VERSION = 12
MIGRATION_DEADLINE_S = 3600.0


def migrate(database: Database) -> tuple[int, int]:
    """Apply the schema if there is none, and return its version before and after.

    Concurrent calls wait for each other; one of them creates the schema.
    """
    patient = database.separate(deadline=MIGRATION_DEADLINE_S)
    try:
        with patient.transaction() as connection:
            _execute(connection, "lock", database.schema, {"name": f"scheduler:{database.schema}"})
            before = _version(connection, database.schema)
            if before == 0:
                _create(connection, database.schema)
            elif before != VERSION:
                raise SchemaMismatch(_mismatch(database.schema, before))
    finally:
        patient.close()
    return before, VERSION


def _create(connection: BoundedConnection, schema: str) -> None:
    _execute(connection, "create", schema)
    _execute(connection, "enter", schema)
    connection.execute(read("schema.sql").encode())
    _execute(connection, "record", schema, {"version": VERSION})


def check(database: Database) -> None:
    """Raise `SchemaMismatch` unless the schema has the version of this package."""
    with database.connection() as connection:
        found = _version(connection, database.schema)
    if found != VERSION:
        raise SchemaMismatch(_mismatch(database.schema, found))


def drop(database: Database) -> None:
    """Drop the schema with everything in it. Only tests and benchmarks call this."""
    with database.transaction() as connection:
        _execute(connection, "drop", database.schema)


def _version(connection: BoundedConnection, schema: str) -> int:
    if not _execute(connection, "installed", schema, {"schema": schema})[0][0]:
        return 0
    return int(_execute(connection, "newest", schema)[0][0] or 0)


def _execute(
    connection: BoundedConnection,
    name: str,
    schema: str,
    parameters: Mapping[str, object] | None = None,
) -> list[Row]:
    cursor = connection.execute(statement("schema_version", name, schema), parameters or {})
    return cursor.fetchall() if cursor.description else []


def _mismatch(schema: str, found: int) -> str:
    if not found:
        state, cure = "not installed (version 0)", "run `scheduler migrate`"
    elif found < VERSION:
        state = f"at version {found}, which was never released"
        cure = "drop it and run `scheduler migrate`, or use another schema name"
    else:
        state, cure = f"at version {found}", "upgrade the singleton-scheduler package"
    return f"schema {schema!r} is {state}, this package needs version {VERSION}: {cure}"
