"""What the doctor asks of Postgres: of the server, and of our tables. Every question is bounded in rows and time."""

import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from scheduler.errors import ConfigError
from scheduler.store import schema as store_schema
from scheduler.store.engine import Database, Row
from scheduler.store.queries import statement
from scheduler.store.steps import Statement

PATIENCE = 3.0


class DoctorTable:
    """Statements that only read, each of a few seconds at most."""

    def __init__(self, database: str, schema: str) -> None:
        self.schema = schema
        self._dsn = database
        self._database = Database.open(database, schema=schema, prepare=False).separate(deadline=PATIENCE)

    def rows(self, name: str, **parameters: object) -> list[Row]:
        """Ask."""
        return self._database.run(statement("doctor", name, self.schema), {"schema": self.schema, **parameters})

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
        database = Database.open(self._dsn, schema=self.schema, prepare=True).separate(deadline=PATIENCE)
        try:
            database.run(statement("doctor", "clock", self.schema), {})
        except ConfigError:
            return False
        finally:
            database.close()
        return True

    def hears(self, direct: str | None = None) -> bool:
        """Whether what is said on a channel is heard, over the database or a direct connection beside it."""
        channel, until = f"doctor_{uuid4().hex}", time.monotonic() + 1.0
        database = Database.open(direct or self._dsn, schema=self.schema, prepare=False).separate(deadline=PATIENCE)
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

    def close(self) -> None:
        """Close the connections."""
        self._database.close()
