"""A consumer without threads: a test makes its calls and runs its jobs step by step."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.interface import Queue
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.events import Events
from scheduler.model.attempts import QueuedJob
from scheduler.model.handling import Handler
from scheduler.worker.announcements import Announcements
from scheduler.worker.attempt import DEFAULT_LIMITS, Attempt
from scheduler.worker.breaker import BreakerGuard
from scheduler.worker.consumer import ConsumerOptions, Exchange, QueueConsumer
from scheduler.worker.executor import Executor
from tests.dialects.values import job

LEASE = timedelta(seconds=30)
Kind = type[StandardQueue] | type[ReliableQueue] | type[BullMQQueue] | type[ConveyorQueue]


class Driver:
    """One queue of a worker named "w"; `runs` has the ids of the jobs whose handlers were called."""

    def __init__(
        self,
        redis: Client,
        concurrency: int = 4,
        queue: str = "mail",
        kind: Kind = StandardQueue,
    ) -> None:
        self.runs: list[str] = []
        self.attempts: list[Attempt] = []
        self.renewals_wanted = 0
        self.redis = redis
        self.clock = time.monotonic()  # of the announcements; a test moves it
        self.announcements = Announcements(redis, lambda: self.clock)
        self.queue = kind(redis, queue, worker="w", lease=LEASE)
        self.feed = kind(redis, queue, installation="3f1e")
        self.executor = Executor(concurrency)
        self.executor._stopping = True  # it starts no threads
        self.consumer = self.consume(self.queue)

    def consume(self, queue: Queue, run: Callable[..., object] | None = None) -> QueueConsumer:
        """Add a queue to the worker."""
        handler = Handler(type="send", queue=queue.name, fn=run or self._handle)
        options = ConsumerOptions(
            worker="w",
            backoffs={},
            default_limits=DEFAULT_LIMITS,
            block_s=0.1,
            long_poll=False,
            events=Events(),
            announcements=self.announcements,
            on_note=lambda: None,
            wake_keeper=self._wake_keeper,
        )
        guard = BreakerGuard(queue.name, None, Events())
        consumer = QueueConsumer(queue, {"send": handler}, self.executor, guard, options)
        consumer._read_back()
        consumer.renew(LEASE)
        return consumer

    def _handle(self, ctx: Any, payload: object) -> None:
        self.runs.append(ctx.id)

    def _wake_keeper(self) -> None:
        self.renewals_wanted += 1

    def push(self, count: int = 1, **changes: Any) -> list[str]:
        """Push jobs as a feeder does; return their ids."""
        jobs: list[QueuedJob] = [job(**changes) for _ in range(count)]
        self.feed.push(jobs, epoch="")
        return [each.id for each in jobs]

    def block(self, seconds: float) -> None:
        """Change how long a wait for jobs takes."""
        self.consumer._options = replace(self.consumer._options, block_s=seconds)

    def wake_up(self) -> None:
        """Let the consumer know that there may be jobs, as a wait in Redis does."""
        with self.executor.lock:
            self.consumer._wakeups += 1
            self.consumer._may_have_jobs = True

    def task(self) -> Any:
        """Choose the next task, as a thread of the executor does."""
        with self.executor.lock:
            return self.executor._choose()

    def call(self) -> Exchange:
        """Make the next call, which must be the next task."""
        call = self.task()
        assert isinstance(call, Exchange)
        call.run()
        return call

    def run(self) -> Attempt:
        """Run the next job, which must be the next task."""
        attempt = self.task()
        assert isinstance(attempt, Attempt)
        self.attempts.append(attempt)
        result = self.consumer.finish(attempt, *self.executor._run(attempt))
        with self.executor.lock:
            attempt.consumer.add_result(attempt, result)
        return attempt

    def step(self) -> bool:
        """Do the next task; return whether there was one."""
        task = self.task()
        if isinstance(task, Attempt):
            self.executor.ready.appendleft(task)
            self.run()
        elif task is not None:
            task.run()
        return task is not None

    def run_all(self) -> None:
        """Do all tasks that there are."""
        while self.step():
            pass

    @property
    def reserved(self) -> int:
        """The slots that are not free."""
        return self.executor.concurrency - self.executor.free
