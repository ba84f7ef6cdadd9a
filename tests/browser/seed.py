"""A scheduler with something to look at: tenants, an hour of ledger, queues, a worker, dead
letters, instances.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.sql import SQL, Identifier

from scheduler import (
    BreakerRule,
    NewJob,
    PermanentError,
    Priority,
    RetryPolicy,
    Scheduler,
    TemporaryError,
    Worker,
)
from scheduler.model.breaker import BreakerState
from scheduler.model.handling import JobContext
from scheduler.worker.handlers import handler, handlers
from tests.support.recorder import until

QUEUES = {name: {"dialect": "standard"} for name in ("billing", "images", "mail")}
OFTEN = {
    ("acme", "cleanup"): ("every", "3m"),
    ("acme", "fetch-rates"): ("every", "2m"),
    ("acme", "heartbeat"): ("every", "1m"),
    ("acme", "import-orders"): ("every", "4m"),
    ("acme", "nightly-report"): ("cron", "0 6 * * 1-5"),
    ("acme", "sync-inventory"): ("every", "5m"),
    ("globex", "backup"): ("every", "10m"),
    ("globex", "rotate-keys"): ("every", "6m"),
    ("initech", "invoice-run"): ("every", "7m"),
    ("initech", "purge-sessions"): ("every", "2m"),
}
ERROR = 'ConnectionError: the shop answered 503\n  File "orders.py", line 41, in fetch\n    raise ConnectionError(said)'

go_on = threading.Event()


def send_receipt(ctx: JobContext, payload: Any) -> dict[str, object]:
    if payload.get("bounce"):
        raise PermanentError(f"550 no such mailbox: {payload['bounce']}")
    return {"sent": payload["order"]}


def resize(ctx: JobContext, payload: Any) -> None:
    ctx.progress(62, "page 31 of 50")
    go_on.wait(300)


def charge(ctx: JobContext, payload: Any) -> None:
    if ctx.attempt < 2:
        raise TimeoutError("the bank did not answer within 10 s")


def notify(ctx: JobContext, payload: Any) -> None:
    raise TemporaryError("the hook answered 503")


HANDLERS = {
    ("send-receipt", "mail"): send_receipt,
    ("resize", "images"): resize,
    ("charge", "billing"): charge,
}


HOOKS = {("notify", "hooks"): notify}
HELD = 6
BREAKER = BreakerRule(min_samples=1, cooldown_period="2h")


def working(
    redis: str,
    work: Mapping[tuple[str, str], Callable[..., Any]],
    breaker: BreakerRule | None = None,
) -> Worker:
    """Make a worker with functions by type and queue, which no other test knows."""
    others = dict(handlers)
    handlers.clear()
    try:
        for (type_, queue), function in work.items():
            handler(type_, queue=queue)(function)
        return Worker(redis, concurrency=8, breaker=breaker)
    finally:
        handlers.clear()
        handlers.update(others)


@dataclass
class Seeded:
    """What a test may look for."""

    scheduler: Scheduler
    connection: psycopg.Connection[Any]
    jobs: dict[str, UUID] = field(default_factory=dict)

    def submit(self, name: str, tenant: str, type_: str, payload: Any, **options: Any) -> None:
        self.jobs[name] = self.scheduler.submit(tenant, type_, payload, **options).id

    def state(self, name: str, tenant: str = "acme") -> str:
        return self.scheduler.get(tenant, self.jobs[name]).state.value


def nothing() -> None:
    """Do nothing, soon."""


@contextlib.contextmanager
def seeded(dsn: str, schema: str, redis: str) -> Iterator[Seeded]:
    """Start all of it; gone at the end."""
    go_on.clear()
    soon = datetime.now(UTC) + timedelta(minutes=2)
    with Scheduler(dsn, schema=schema, label="elsewhere") as elsewhere:
        elsewhere.register("acme", "forecast", nothing, every="1h", start_at=soon)
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        Scheduler(dsn, schema=schema, redis=redis, queues=QUEUES, label="web-1:4711") as scheduler,
    ):
        connection.execute(SQL("SET search_path = {}").format(Identifier(schema)))
        made = Seeded(scheduler, connection)
        _register(scheduler, soon)
        _remember(connection)
        _neighbours(connection)
        workers = [
            working(redis, HANDLERS),
            working(redis, HOOKS, BREAKER),
            working(redis, HOOKS, BREAKER),
        ]
        try:
            for worker in workers[:2]:
                worker.start()
            _submit(made)
            workers[2].start()  # the breaker of the one before is open: it takes nothing more
            until(
                lambda: (
                    scheduler.queue("hooks").stats().breakers
                    == {BreakerState.OPEN: 1, BreakerState.CLOSED: 1}
                )
            )
            until(lambda: [each.holds for each in scheduler.queue("images").workers()] == [HELD])
            yield made
        finally:
            go_on.set()
            for worker in workers:
                worker.stop()


def _register(scheduler: Scheduler, soon: datetime) -> None:
    for number, ((tenant, job_id), (kind, value)) in enumerate(OFTEN.items()):
        options: dict[str, Any] = {kind: value}
        if kind == "every":
            options["start_at"] = soon + timedelta(seconds=37 * number)
        scheduler.register(tenant, job_id, nothing, **options)
    scheduler.register(
        "acme", "weekly-digest", queue="mail", type="send-receipt", payload={"order": 1}, every="7d"
    )
    scheduler.pause("globex", "rotate-keys")


def _remember(connection: psycopg.Connection[Any]) -> None:
    """Write an hour of the ledger, as if all of that had happened."""
    chance, now = random.Random(7), datetime.now(UTC).replace(microsecond=0)
    rows: list[tuple[Any, ...]] = []
    for (tenant, job_id), (kind, value) in OFTEN.items():
        step = (
            timedelta(minutes=int(value.removesuffix("m")))
            if kind == "every"
            else timedelta(minutes=59)
        )
        at = now - timedelta(minutes=61) + timedelta(seconds=chance.randrange(60))
        while at < now - timedelta(seconds=5):
            outcome = "success"
            if job_id == "import-orders" and chance.random() < 0.4:
                outcome = "failed"
            elif job_id == "backup" and chance.random() < 0.3:
                outcome = "timeout"
            elif job_id == "sync-inventory" and chance.random() < 0.2:
                outcome = "skipped"
            started = at + timedelta(milliseconds=chance.randrange(4, 60))
            ended = started + timedelta(
                milliseconds=chance.randrange(80, 900) * (20 if job_id == "backup" else 1)
            )
            ran = outcome != "skipped"
            rows.append(
                (
                    at,
                    tenant,
                    job_id,
                    "fire",
                    outcome,
                    None if ran else "overlap",
                    1 if ran else None,
                    1 if ran else None,
                    "web-1:4711",
                    started if ran else None,
                    ended if ran else at,
                    ERROR if outcome == "failed" else None,
                    *[None] * 6,
                )
            )
            at += step
    for minute in range(60):
        for _ in range(chance.randrange(8, 26) if minute < 40 else chance.randrange(2, 9)):
            at = now - timedelta(minutes=minute, seconds=chance.randrange(60))
            queue, type_ = chance.choice(
                [("mail", "send-receipt"), ("mail", "send-receipt"), ("billing", "charge")]
            )
            tenant = chance.choice(["acme", "acme", "globex", "initech"])
            started = at - timedelta(milliseconds=chance.randrange(20, 400))
            due = started - timedelta(
                milliseconds=chance.randrange(2, 40) * (9 if minute in range(22, 29) else 1)
            )
            state = "cancelled" if chance.random() < 0.02 else "completed"
            rows.append(
                (
                    at,
                    tenant,
                    str(UUID(int=chance.getrandbits(128))),
                    "job",
                    state,
                    None,
                    1,
                    None,
                    "worker-3",
                    started,
                    at,
                    None,
                    type_,
                    queue,
                    2,
                    due,
                    due,
                    True,
                )
            )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO job_history (at, tenant, job_id, kind, outcome, reason, attempt, fence, "
            "holder, started_at,"
            " finished_at, error, type, queue, priority, run_at, created_at, json)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON "
            "CONFLICT DO NOTHING",
            rows,
        )
    connection.execute(
        "UPDATE job SET next_run_at = now() - interval '7 minutes' WHERE id = 'forecast'"
    )


def _neighbours(connection: psycopg.Connection[Any]) -> None:
    """Other instances: one whose clock is wrong, one that left without a word."""
    connection.execute(
        "INSERT INTO job_instance (id, label, started_at, seen_at, expires_at, skew, tenants, ids) "
        "VALUES"
        " (gen_random_uuid(), 'web-2:1203', now() - interval '3 hours', now(), now() + interval '1 "
        "hour', '4.2 s',"
        "  '{acme}', '{heartbeat}'),"
        " (gen_random_uuid(), 'web-3:998', now() - interval '2 days', now() - interval '40 "
        "minutes',"
        "  now() - interval '38 minutes', '0 s', '{}', '{}')"
    )


def _submit(made: Seeded) -> None:
    scheduler, patient = (
        made.scheduler,
        RetryPolicy(max_attempts=3, initial_delay="1h", max_delay="2h"),
    )
    tags = {"campaign": "autumn", "customer": "7"}
    made.submit(
        "sent",
        "acme",
        "send-receipt",
        {"order": 7},
        queue="mail",
        tags=tags,
        correlation_id="order-7",
    )
    for order, box in enumerate(["ada@example.org", "ada@example.org", "bob@example.org"]):
        made.submit(
            f"dead {order}", "acme", "send-receipt", {"order": order, "bounce": box}, queue="mail"
        )
    made.submit(
        "dead 3", "globex", "send-receipt", {"order": 9, "bounce": "eve@example.org"}, queue="mail"
    )
    made.submit("running", "acme", "resize", {"page": 31}, queue="images", correlation_id="book-3")
    for page in range(1, HELD):
        made.submit(f"page {page}", "acme", "resize", {"page": page}, queue="images")
    made.submit(
        "retrying",
        "acme",
        "charge",
        {"order": 7},
        queue="billing",
        retry=patient,
        priority=Priority.HIGH,
    )
    made.submit("hook", "initech", "notify", {"order": 12}, queue="hooks", retry=patient)
    made.submit("delayed", "initech", "send-receipt", {"order": 12}, queue="mail", delay="2h")
    parts = [
        NewJob("acme", "render", {"page": page}, queue="print", delay="3h") for page in range(3)
    ]
    done = scheduler.fan_out(
        "acme", parts, then=NewJob("acme", "publish", queue="print", priority=Priority.LOW)
    )
    made.jobs["publish"] = done[-1].id
    made.jobs["render"] = done[0].id
    for order in range(40):
        scheduler.submit(
            "acme",
            "print-label",
            {"order": order},
            queue="labels",
            priority=Priority((order * 7 % 10) // 2),
        )
    until(
        lambda: made.state("sent") == "completed" and made.state("retrying") == "retrying",
        timeout=60,
    )
    until(
        lambda: made.state("running") == "running" and made.state("dead 2") == "failed", timeout=30
    )
    until(
        lambda: (
            made.state("dead 3", "globex") == "failed"
            and made.state("hook", "initech") == "retrying"
        ),
        timeout=60,
    )
