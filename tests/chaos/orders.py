"""A submitter: jobs of all kinds by chance, in transactions of its own, some of which it rolls
back.
"""

import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier

from scheduler import (
    IllegalTransition,
    NewJob,
    Priority,
    RetryPolicy,
    Scheduler,
    SchedulerError,
    Timeouts,
)
from scheduler.model.submission import Reference
from tests.chaos.diary import Diary, Order, Page
from tests.chaos.plan import QUEUES

TENANT = "acme"
TYPE = "job"
SLOW_TYPE = (
    "slow"  # its handler runs few jobs at a time, so some wait in Redis when a queue is paused
)
SLOW_SHARE = 0.15  # of the transactions
SLOW_JOBS, SLOW_SECONDS = 20, 0.3
SCHEMA = "scheduler"
SHOP = "shop"
PATIENT = RetryPolicy(
    max_attempts=50, backoff="constant", initial_delay="100ms", max_delay="1s", jitter=False
)
VISIBLE = Timeouts(visibility="10s")
TWICE = RetryPolicy(max_attempts=2, backoff="constant", initial_delay="100ms", jitter=False)
POISON_EVERY = (20.0, 40.0)  # seconds between the poison jobs of a submitter
POISON_SECONDS = (0.0, 2.5)  # before they kill their process: before and after leases are marked
A_SECOND = 5  # transactions
KEYS = 2000
ROLLED_BACK = 0.1
STRAIGHT = 0.3
STRAIGHT_TAG = "straight"
SECONDS, WEIGHTS = (
    (0.0, 0.01, 0.05, 0.2, 3.0),
    (700, 100, 100, 95, 5),
)  # how long handlers take, and how often

logger = logging.getLogger("chaos")


class Submitter:
    """Submits about `rate` jobs a second, and makes up for the time in which it could not."""

    def __init__(
        self, scheduler: Scheduler, dsn: str, diary: Diary, seed: str, rate: float
    ) -> None:
        self._scheduler = scheduler
        self._dsn = dsn
        self._diary = diary
        self._rng = random.Random(seed)
        self._rate = rate
        self._size = max(10, round(rate / A_SECOND))
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._earlier: list[str] = []
        self._poison_at = time.monotonic() + self._rng.uniform(*POISON_EVERY) / 4

    def run(self, stop: threading.Event) -> None:
        """Submit until told to stop."""
        began, submitted = time.monotonic(), 0
        while not stop.wait(max(0.0, began + submitted / self._rate - time.monotonic())):
            try:
                if self._rng.random() < STRAIGHT:
                    self._straight()
                else:
                    self._transaction()
            except (psycopg.Error, SchedulerError) as error:
                logger.info("a transaction ended badly: %s", error)
                self._close()
                stop.wait(0.2)
            submitted += self._size
        self._close()

    def _transaction(self) -> None:
        """One transaction: jobs, a line of our own, and its end."""
        if self._connection is None:
            self._connection = psycopg.connect(self._dsn, connect_timeout=3)
        connection, tx = self._connection, str(uuid4())
        began = time.monotonic()
        new = self._batch()
        made = self._scheduler.submit_many(new, connection=connection)
        connection.execute(
            SQL("INSERT INTO {}.sold (tx) VALUES (%s)").format(Identifier(SHOP)), (tx,)
        )
        ids = {id(job): str(each.id) for job, each in zip(new, made, strict=True)}
        cancelled = self._rng.random() < 0.05
        orders = tuple(self._order(job, ids, cancelled=cancelled) for job in new)
        self._diary.page(Page(tx, began, orders))
        if self._rng.random() < ROLLED_BACK:
            connection.rollback()
            self._diary.ended(tx, "rolledback", len(orders))
            return
        connection.commit()
        self._diary.ended(tx, "committed", len(orders))
        self._earlier = [order.id for order in orders if not order.fails and not order.cancelled][
            :5
        ]
        if cancelled:
            self._cancel(orders)

    def _straight(self) -> None:
        """Submit jobs that go straight into Redis; of these the ledger tells, as far as they were
        committed.
        """
        tags = {STRAIGHT_TAG: "1"}
        new = [replace(self._one(), queue="work", tags=tags) for _ in range(self._size)]
        half = len(new) // 2
        self._scheduler.submit_many(new[:half])
        for job in new[half:]:
            self._scheduler.submit_many([job])

    def _batch(self) -> list[NewJob]:
        batch: list[NewJob] = []
        if time.monotonic() >= self._poison_at:
            self._poison_at = time.monotonic() + self._rng.uniform(*POISON_EVERY)
            batch.append(self._poison())
        if self._rng.random() < SLOW_SHARE:
            queue = self._rng.choice(tuple(QUEUES))
            payload = {"fails": 0, "seconds": SLOW_SECONDS, "delay": 0.0}
            slow = replace(self._one(), type=SLOW_TYPE, queue=queue, payload=payload)
            batch += [replace(slow, priority=Priority.NORMAL) for _ in range(SLOW_JOBS)]
        while len(batch) < self._size:
            chance = self._rng.random()
            if chance < 0.1:
                batch += self._family()
            elif chance < 0.15:
                batch.append(self._one(after=self._earlier[:1]))
            elif chance < 0.2:
                batch.append(self._one(key=f"key-{self._rng.randrange(KEYS)}"))
            elif chance < 0.25:
                batch.append(self._one(fails=self._rng.choice((1, 1, 2, -1))))
            elif chance < 0.3:
                batch.append(self._one(delay=self._rng.uniform(0.1, 3.0)))
            else:
                batch.append(self._one())
        return batch

    def _poison(self) -> NewJob:
        """A job that kills its process whenever it runs."""
        queue, seconds = self._rng.choice(tuple(QUEUES)), self._rng.choice(POISON_SECONDS)
        payload = {"fails": -1, "seconds": seconds, "delay": 0.0, "poison": True}
        return replace(
            self._one(), queue=queue, payload=payload, priority=Priority.NORMAL, retry=TWICE
        )

    def _family(self) -> list[NewJob]:
        """Some, and one that waits for all of them; now and then one of them fails for good."""
        some = [
            self._one(fails=-1 if self._rng.random() < 0.05 else 0)
            for _ in range(self._rng.randint(1, 3))
        ]
        return [*some, self._one(after=some)]

    def _one(
        self,
        *,
        after: Sequence[Reference] = (),
        key: str | None = None,
        fails: int = 0,
        delay: float = 0.0,
    ) -> NewJob:
        rng = self._rng
        queue = rng.choices(tuple(QUEUES), (8, 1, 1))[0]
        seconds = rng.choices(SECONDS, WEIGHTS)[0]
        payload = {"fails": fails, "seconds": seconds, "delay": delay}
        priority = rng.choice(tuple(Priority)) if queue != "go" else Priority.NORMAL
        return NewJob(
            TENANT,
            TYPE,
            payload,
            queue=queue,
            priority=priority,
            delay=timedelta(seconds=delay) if delay else None,
            after=after,
            idempotency_key=key,
            retry=PATIENT,
            timeouts=VISIBLE,
        )

    def _order(self, job: NewJob, ids: dict[int, str], *, cancelled: bool) -> Order:
        payload = job.payload
        assert isinstance(payload, dict)
        after = tuple(each if isinstance(each, str) else ids[id(each)] for each in job.after)
        asked = cancelled and payload["delay"] > 0
        return Order(
            ids[id(job)],
            payload["fails"],
            payload["delay"],
            after,
            job.idempotency_key,
            asked,
            poison=payload.get("poison", False),
        )

    def _cancel(self, orders: tuple[Order, ...]) -> None:
        for order in orders:
            if order.cancelled:
                try:
                    self._scheduler.cancel_job(TENANT, order.id)
                except IllegalTransition:
                    continue  # it was faster

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
