"""Statements out of sql/*.sql: blocks that begin with `-- name: verb`, bound to one Postgres
schema.
"""

import re
from functools import cache
from importlib.resources import files

from psycopg.sql import SQL, Identifier

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def read(resource: str) -> str:
    """Read a file of the package's sql folder."""
    return files("scheduler.store").joinpath("sql", resource).read_text(encoding="utf-8")


@cache
def names(table: str) -> tuple[str, ...]:
    """Name the statements on a table."""
    return tuple(_NAME.findall(read(f"{table}.sql")))


@cache
def statement(table: str, name: str, schema: str) -> bytes:
    """Return one statement with the schema's name safely quoted into it."""
    parts = _NAME.split(read(f"{table}.sql"))
    text = dict(zip(parts[1::2], parts[2::2], strict=True))[name]
    code = (
        "\n".join(line for line in text.splitlines() if not line.startswith("--"))
        .strip()
        .rstrip(";")
    )
    quoted = (
        Identifier(schema).as_string(None).replace("%", "%%")
    )  # parameters are always passed, if only {}
    return SQL(code).format(schema=SQL(quoted)).as_string(None).encode()
