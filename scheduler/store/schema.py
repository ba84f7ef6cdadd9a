"""The schema: applied whole to a new database, by forward migrations to an older one, under one
lock.
"""

from collections.abc import Mapping

from scheduler.errors import SchemaMismatch
from scheduler.store.engine import BoundedConnection, Database, Row
from scheduler.store.queries import read, statement

VERSION = 10
MIGRATION_DEADLINE = 3600.0


def migrate(database: Database) -> tuple[int, int]:
    """Bring the database to our version and return (before, after); twenty instances may call it at
    once.
    """
    patient = database.separate(deadline=MIGRATION_DEADLINE)
    try:
        with patient.transaction() as connection:
            _execute(connection, "lock", database.schema, {"name": f"scheduler:{database.schema}"})
            before = _version(connection, database.schema)
            if before > VERSION:
                raise SchemaMismatch(_mismatch(database.schema, before))
            if before == 0:
                create(connection, database.schema, read("schema.sql"), VERSION)
            for version in range(before + 1, VERSION + 1) if before else ():
                upgrade(connection, database.schema, version)
    finally:
        patient.close()
    return before, VERSION


def create(connection: BoundedConnection, schema: str, text: str, version: int) -> None:
    """Apply a whole schema to an empty place."""
    _execute(connection, "create", schema)
    _execute(connection, "enter", schema)
    connection.execute(text.encode())
    _execute(connection, "record", schema, {"version": version})


def upgrade(connection: BoundedConnection, schema: str, version: int) -> None:
    """Apply the migration to a version."""
    _execute(connection, "enter", schema)
    connection.execute(read(f"migrations/{version:03d}.sql").encode())
    _execute(connection, "record", schema, {"version": version})


def check(database: Database) -> None:
    """Raise `SchemaMismatch` unless the database is at our version."""
    with database.connection() as connection:
        found = _version(connection, database.schema)
    if found != VERSION:
        raise SchemaMismatch(_mismatch(database.schema, found))


def drop(database: Database) -> None:
    """Remove the whole schema, with everything in it: for tests, and for `bench`."""
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
    cure = (
        "run `scheduler migrate`" if found < VERSION else "upgrade the singleton-scheduler package"
    )
    state = f"at version {found}" if found else "not installed (version 0)"
    return f"schema {schema!r} is {state}, this package needs version {VERSION}: {cure}"
