"""The algorithm of seed 001 to the letter, in the same world: due by the mirror, lock, run,
advance, unlock.

Its lock excludes overlap, not the same fire: an instance whose mirror is stale takes the lock when
it is free again.
"""

from datetime import datetime, timedelta
from typing import Any

from tests.simulation.world import Process, SimDatabase, World

TABLES = """
CREATE TABLE seed_job (id text PRIMARY KEY, next_run_at timestamptz NOT NULL, repeat_every interval NOT NULL);
CREATE TABLE seed_lock (id text PRIMARY KEY, created_at timestamptz, description text);
"""

SELECT = "SELECT id, next_run_at, repeat_every FROM {}.seed_job WHERE id = ANY(%(ids)s)"
LOCK = "INSERT INTO {}.seed_lock VALUES (%(id)s, %(now)s, '') ON CONFLICT DO NOTHING RETURNING id"
UPDATE = "UPDATE {}.seed_job SET next_run_at = %(next)s WHERE id = %(id)s"
UNLOCK = "DELETE FROM {}.seed_lock WHERE id = %(id)s"


class SeedInstance(Process):
    """One process that follows the document."""

    def __init__(
        self,
        world: World,
        name: str,
        schema: str,
        jobs: list[str],
        runs: list[tuple[str, datetime]],
    ) -> None:
        super().__init__(world, name)
        self.database = SimDatabase(world, self, schema)
        self.schema, self.jobs, self.runs = schema, jobs, runs
        self.mirror: dict[str, tuple[datetime, timedelta]] = {}
        self.sync_at = world.now
        self.running: tuple[str, datetime, datetime, timedelta] | None = None
        self.spawn("loop", self._loop)

    def _loop(self) -> float:
        world = self.world
        if self.running is not None:
            return self._finish(*self.running)
        if world.now >= self.sync_at:
            rows = self._sql(SELECT, ids=self.jobs)
            self.mirror = {row[0]: (row[1], row[2]) for row in rows}
            self.sync_at = world.now + timedelta(minutes=1)
        for job, (next_run_at, every) in sorted(self.mirror.items()):
            if next_run_at > world.now:
                continue
            locked = self._sql(LOCK, id=job, now=None)
            if locked:
                self.runs.append((job, next_run_at))
                self.running = (
                    job,
                    next_run_at,
                    world.now + timedelta(seconds=world.rng.choice([0.1, 2.0])),
                    every,
                )
                return 0.1
        return 1.0

    def _finish(self, job: str, fire_at: datetime, ends_at: datetime, every: timedelta) -> float:
        if ends_at > self.world.now:
            return 0.1
        following = fire_at + every
        while following <= self.world.now:
            following += every
        self.mirror[job] = (following, every)
        self._sql(UPDATE, next=following, id=job)
        self._sql(UNLOCK, id=job)
        self.running = None
        return 0.0

    def _sql(self, text: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.database.run(
            text.format(self.schema).encode(), {"name": text.split(maxsplit=1)[0], **parameters}
        )
