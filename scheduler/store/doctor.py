"""What the doctor asks of Postgres: of the server, and of our tables. Every question is bounded in
rows and time.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.errors import ConfigError
from scheduler.store import schema as store_schema
from scheduler.store.engine import Database, Row, checked_dsn
from scheduler.store.queries import statement
from scheduler.store.steps import Statement

PATIENCE = 3


class DoctorTable:
    """Statements that only read, each of a few seconds at most."""

    def __init__(self, database: str, schema: str) -> None:
        self.schema = schema
        given: Any = conninfo_to_dict(checked_dsn(database))
        self._dsn = make_conninfo(**{"connect_timeout": PATIENCE, **given})
        self._database = self._opened(self._dsn)

    def rows(self, name: str, **parameters: object) -> list[Row]:
        """Ask."""
        return self._database.run(
            statement("doctor", name, self.schema), {"schema": self.schema, **parameters}
        )

    def run(self, asked: Statement) -> list[Row]:
        """Run a statement of another table that only reads."""
        return self._database.run(asked.query, asked.parameters)

    def check_version(self) -> None:
        """Raise `SchemaMismatch` unless the tables are of our version."""
        store_schema.check(self._database)

    def skew(self) -> timedelta:
        """Measure how far the clock of this machine is ahead of the server's."""
        began = datetime.now(UTC)
        ((clock,),) = self.rows("clock")
        return began + (datetime.now(UTC) - began) / 2 - clock  # type: ignore[no-any-return]

    def prepares(self) -> bool:
        """Whether connections may begin as those of an instance do; a pooler refuses it."""
        database = self._opened(self._dsn, prepare=True)
        try:
            database.run(statement("doctor", "clock", self.schema), {})
        except ConfigError:
            return False
        finally:
            database.close()
        return True

    def hears(self, direct: str | None = None) -> bool:
        """Whether what is said on a channel is heard, over the database or a direct connection
        beside it.
        """
        channel, until = f"doctor_{uuid4().hex}", time.monotonic() + 1.0
        database = self._opened(direct or self._dsn)
        try:
            listening = database.notifications([channel])
            next(listening)
            self.rows("say", channel=channel)
            for heard in listening:
                if heard or time.monotonic() > until:
                    return bool(heard)
            return False
        finally:
            database.close()

    def _opened(self, dsn: str, *, prepare: bool = False) -> Database:
        return Database.open(dsn, schema=self.schema, prepare=prepare).separate(deadline=PATIENCE)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()
