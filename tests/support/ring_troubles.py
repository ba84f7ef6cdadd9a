"""What seldom happens to jobs, made to happen, so that every call of the ring's parts is made."""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from psycopg.sql import SQL, Identifier

from scheduler import State, Timeouts
from scheduler.dialects.client import Client
from scheduler.dialects.ends import end_bytes
from scheduler.dialects.standard.keys import Keys
from scheduler.dialects.standard.messages import RESULT_FIELD
from scheduler.errors import IllegalTransition
from scheduler.model.attempts import AttemptEnd
from tests.support.ring_checker import Expected
from tests.support.ring_fleet import TENANT, RingFleet

ANY = Expected(outcomes=("completed", "cancelled", "dead_letter", "failed"))


class Troubles:
    """Troubles for the jobs of one queue of a fleet."""

    def __init__(self, fleet: RingFleet, redis: Client) -> None:
        self._fleet = fleet
        self._redis = redis
        self._numbers = count()
        self._connection: Any = None

    def make(self, queue: str, *, new_queue: bool = True) -> None:
        """Make one of each kind."""
        with self._fleet.connection() as connection:
            connection.execute(SQL("SET search_path = {}").format(Identifier(self._fleet.schema)))
            self._connection = connection
            (found,) = connection.execute("SELECT id FROM installation").fetchone() or ("",)
            outcomes = Keys.from_queue(queue).results(str(found))
            if new_queue:
                self.new_queue()
            self.cancelled(queue)
            self.expired(queue)
            self.unhandled(queue)
            self.unknown_to_redis(queue)
            self.edge_left_behind(queue)
            if self._redis.call("EXISTS", outcomes):
                self.end_that_postgres_refuses(queue, outcomes)
                self._redis.call(
                    "XADD", outcomes, "*", RESULT_FIELD, 'not JSON, but ["t","x",1,1,"'
                )
                self._come_back(outcomes, str(uuid4()), error="of a job that has ended")
                self._come_back(outcomes, str(uuid4()), state=State.RETRYING, error="overtaken")

    def forget_queues(self) -> None:
        """Let nobody settle any more for the queues that were made here."""
        with self._fleet.connection() as connection:
            connection.execute(SQL("SET search_path = {}").format(Identifier(self._fleet.schema)))
            connection.execute(
                "DELETE FROM job_epoch e WHERE queue LIKE 'odd-%%'"
                " AND NOT EXISTS (SELECT FROM job_queue q WHERE q.queue = e.queue)"
            )

    def new_queue(self) -> None:
        """A queue is fed for the first time; nobody works there, and its job is cancelled."""
        [job_id] = self._submit(f"odd-{next(self._numbers)}", timeouts=Timeouts(lifetime="3s"))
        self._fleet.jobs[job_id] = Expected(outcomes=("dead_letter",))

    def cancelled(self, queue: str) -> None:
        """Somebody who has no Redis cancels jobs, fed or not."""
        for job_id in self._submit(queue, count=2):
            self._fleet.jobs[job_id] = ANY
            with contextlib.suppress(IllegalTransition):  # it was faster
                self._fleet.submitter.cancel_job(TENANT, job_id)

    def expired(self, queue: str) -> None:
        """A job lives too long, and another waits for it for too long."""
        [first] = self._submit(queue, type="unhandled", timeouts=Timeouts(lifetime="1500ms"))
        [second] = self._submit(queue, after=[UUID(first)], timeouts=Timeouts(lifetime="1s"))
        self._fleet.jobs[first] = self._fleet.jobs[second] = Expected(
            outcomes=("dead_letter", "failed")
        )

    def unhandled(self, queue: str) -> None:
        """No worker handles the type of a job: it is parked until its lifetime ends."""
        [job_id] = self._submit(queue, type="unhandled", timeouts=Timeouts(lifetime="1500ms"))
        self._fleet.jobs[job_id] = Expected(outcomes=("dead_letter",))

    def unknown_to_redis(self, queue: str) -> None:
        """A job was fed, and Redis has never heard of it."""
        [job_id] = self._submit(queue, delay="1h")
        self._connection.execute("DELETE FROM job_ready WHERE id = %s", (job_id,))
        self._connection.execute(
            "UPDATE job_queue SET run_at = now() - interval '1 day', updated_at = now() - interval "
            "'1 day'"
            " WHERE id = %s",
            (job_id,),
        )

    def edge_left_behind(self, queue: str) -> None:
        """A job ends, and one that waits for it is not told."""
        [first] = self._submit(queue, delay="1h")
        self._submit(queue, after=[UUID(first)])
        self._fleet.jobs[first] = ANY
        with self._connection.transaction():
            self._connection.execute("DELETE FROM job_ready WHERE id = %s", (first,))
            self._connection.execute("DELETE FROM job_queue WHERE id = %s", (first,))
            self._connection.execute(
                "INSERT INTO job_history (at, tenant, job_id, kind, outcome, finished_at, type, "
                "queue, priority,"
                " run_at, created_at, json)"
                " VALUES (now(), %s, %s, 'job', 'completed', now(), 'x', 'x', 2, now(), now(), "
                "true)",
                (TENANT, first),
            )

    def end_that_postgres_refuses(self, queue: str, outcomes: str) -> None:
        """Ends come back that cannot be recorded: one with such a text, and one with such a child."""
        texts, parents = self._submit(queue, count=2, delay="1h")
        self._fleet.jobs[texts] = Expected(outcomes=("failed",))
        self._fleet.jobs[parents] = Expected(outcomes=("completed", "failed"))  # it never runs
        self._come_back(outcomes, texts, error="a \0 in it")
        self._come_back(outcomes, parents, state=State.COMPLETED, spawned=[{"id": "none"}])

    def _come_back(
        self,
        outcomes: str,
        job_id: str,
        *,
        state: State = State.FAILED,
        error: str | None = None,
        spawned: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        now = datetime.now(UTC)
        end = AttemptEnd(
            tenant=TENANT,
            job_id=job_id,
            feed=1,
            attempt=1,
            state=state,
            started_at=now,
            ended_at=now,
            worker="w",
            error=error,
            spawned=spawned,
        )
        self._redis.call("XADD", outcomes, "*", RESULT_FIELD, b"[%b]" % end_bytes(end))

    def _submit(self, queue: str, *, count: int = 1, **options: Any) -> list[str]:
        return self._fleet.submit([{}] * count, queue=queue, **options)
