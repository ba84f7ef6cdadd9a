"""The schema: applied whole to a new database, by forward migrations to an older one, under one lock."""

import re
from collections.abc import Mapping
from importlib.resources import files

from scheduler.errors import SchemaMismatch
from scheduler.store.engine import BoundedConnection, Database, Row
from scheduler.store.queries import read, statement

VERSION = 1


def migrate(database: Database, *, to: int = VERSION) -> tuple[int, int]:
    """Bring the database to a version and return (before, after); twenty instances may call it at once."""
    schema = database.schema
    with database.transaction() as connection:
        _execute(connection, "lock", schema, {"name": f"scheduler:{schema}"})
        before = _version(connection, schema)
        if before > VERSION:
            raise SchemaMismatch(_mismatch(schema, before))
        if before == to:
            return before, to
        if not before:
            _execute(connection, "create", schema)
        _execute(connection, "enter", schema)
        if not before and to == VERSION:
            connection.execute(read("schema.sql").encode())
        else:
            for version in range(before + 1, to + 1):
                connection.execute(read(f"migrations/{version:03d}.sql").encode())
        _execute(connection, "record", schema, {"version": to})
    return before, to


def check(database: Database) -> None:
    """Raise `SchemaMismatch` unless the database is at our version."""
    with database.connection() as connection:
        found = _version(connection, database.schema)
    if found != VERSION:
        raise SchemaMismatch(_mismatch(database.schema, found))


def _version(connection: BoundedConnection, schema: str) -> int:
    if not _execute(connection, "installed", schema, {"schema": schema})[0][0]:
        return 0
    return int(_execute(connection, "newest", schema)[0][0] or 0)


def _execute(
    connection: BoundedConnection, name: str, schema: str, parameters: Mapping[str, object] | None = None
) -> list[Row]:
    cursor = connection.execute(statement("schema_version", name, schema), parameters or {})
    return cursor.fetchall() if cursor.description else []


def _mismatch(schema: str, found: int) -> str:
    cure = "run `scheduler migrate`" if found < VERSION else "upgrade the singleton-scheduler package"
    state = f"at version {found}" if found else "not installed (version 0)"
    return f"schema {schema!r} is {state}, this package needs version {VERSION}: {cure}"


def migrations() -> list[int]:
    """List the versions that have a migration."""
    folder = files("scheduler.store").joinpath("sql", "migrations")
    return sorted(int(entry.name[:3]) for entry in folder.iterdir() if re.fullmatch(r"\d{3}\.sql", entry.name))
