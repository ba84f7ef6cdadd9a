"""Who produces and works in a scenario: BullMQ on Node, or ours."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from scheduler import JobContext, PermanentError, Worker, handler
from scheduler.bullmq import NewJob, Queue
from scheduler.dialects.bullmq.admin import BullMQAdmin
from scheduler.model.reaper import ReaperRule
from scheduler.worker.handlers import handlers
from tests.interop.peers import Peer
from tests.support.waiting import rest, wait_for

QUEUE = "mail"


class Ends:
    """Counts the jobs that have completed or failed for good, and leaves jobs in the lurch."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis

    def ended(self, *queues: str) -> int:
        """Count them, by the events of queues."""
        events = [
            fields["event"]
            for queue in queues
            for _, fields in self.redis.xrange(f"bull:{queue}:events")
        ]
        return events.count("completed") + events.count("failed")

    def wait(self, ends: int, queues: Iterable[str]) -> None:
        """Wait until so many have ended."""
        wait_for(
            lambda: self.ended(*queues) >= ends,
            f"{ends} jobs have ended, not {self.ended(*queues)}",
            every=0.02,
        )

    def idle(self) -> bool:
        """Whether nothing waits, and nothing is worked on."""
        together = self.redis.pipeline(transaction=True)
        together.exists(*(f"bull:{QUEUE}:{place}" for place in ("wait", "active", "prioritized")))
        return bool(together.execute() == [0])

    def abandon(self, stalls: int = 0) -> None:
        """Leave the next job as a worker does that died, whose lock has run out; it may have
        stalled before.
        """
        job = self.redis.lmove(f"bull:{QUEUE}:wait", f"bull:{QUEUE}:active", "RIGHT", "LEFT")
        if job is None:
            [(job, _)] = self.redis.zpopmin(f"bull:{QUEUE}:prioritized")
            self.redis.lpush(f"bull:{QUEUE}:active", job)
        if stalls:
            self.redis.hset(f"bull:{QUEUE}:{job}", "stc", stalls)


class NodeSide(Ends):
    """BullMQ on Node."""

    def __init__(self, redis: Any, peer: Peer) -> None:
        super().__init__(redis)
        self._peer = peer

    def add(self, name: str, data: Any, **opts: Any) -> str:
        """Add a job."""
        return self._peer.add(QUEUE, name, data, **opts)

    def add_many(self, jobs: Iterable[tuple[str, Any, dict[str, Any]]]) -> None:
        """Add jobs in one call."""
        self._peer.queue(
            QUEUE,
            "addBulk",
            [{"name": name, "data": data, "opts": opts} for name, data, opts in jobs],
        )

    def flow(self, flow: dict[str, Any]) -> None:
        """Add a tree of jobs."""
        self._peer.call("flow", flow=flow)

    def queue(self, method: str, *args: Any) -> Any:
        """Steer the queue."""
        return self._peer.queue(QUEUE, method, *args)

    def requeue(self, *ids: str) -> None:
        """Let failed jobs run again."""
        for job in ids:
            self._peer.job(
                QUEUE,
                job,
                "retry",
                "failed",
                {"resetAttemptsMade": True, "resetAttemptsStarted": True},
            )

    def work_off(self) -> None:
        """Work until nothing waits."""
        self._peer.work(QUEUE, concurrency=1)
        wait_for(self.idle, "nothing waits", every=0.01)
        self._peer.leave(QUEUE)

    def work(self, ends: int, *queues: str, stalled_ms: int = 30_000) -> None:
        """Work until so many have ended."""
        for queue in queues or (QUEUE,):
            self._peer.work(queue, concurrency=1, stalledInterval=stalled_ms)
        self.wait(ends, queues or (QUEUE,))
        for queue in queues or (QUEUE,):
            self._peer.leave(queue)


class OurSide(Ends):
    """Our client, and our worker."""

    def __init__(self, redis: Any, url: str) -> None:
        super().__init__(redis)
        self._url = url
        self._queue = Queue(QUEUE, url)

    def add(self, name: str, data: Any, **opts: Any) -> str:
        """Add a job."""
        return self._queue.add(name, data, **opts)

    def add_many(self, jobs: Iterable[tuple[str, Any, dict[str, Any]]]) -> None:
        """Add jobs in one call."""
        self._queue.add_many([NewJob(name, data, **opts) for name, data, opts in jobs])

    def flow(self, flow: dict[str, Any]) -> None:
        """Add a tree of jobs."""
        self._queue.add_flow(_tree(flow))

    def queue(self, method: str, *args: Any) -> Any:
        """Steer the queue."""
        if method == "drain":
            return self._queue.drain(delayed=bool(args))
        if method == "clean":
            grace, limit, state = args
            return self._queue.clean(grace, limit=limit, state=state)
        return getattr(self._queue, method)()

    def requeue(self, *ids: str) -> None:
        """Let failed jobs run again."""
        admin = BullMQAdmin(self._queue._client, QUEUE)
        letters = {letter.id: letter for letter in admin.dead(100)}
        for job in ids:
            assert admin.requeue([letters[job]]) == [True]

    def work_off(self) -> None:
        """Work until nothing waits."""
        with working(self._url, QUEUE):
            wait_for(self.idle, "nothing waits", every=0.01)

    def work(self, ends: int, *queues: str, stalled_ms: int = 30_000) -> None:
        """Work until so many have ended."""
        with working(self._url, *(queues or (QUEUE,)), stalled_ms=stalled_ms):
            self.wait(ends, queues or (QUEUE,))


def body(ctx: JobContext, data: dict[str, Any]) -> Any:
    """Do what a job's data asks for, as `processed` in node.mjs does."""
    if "progress" in data:
        ctx.progress(data["progress"])
    if "seconds" in data:
        rest(data["seconds"])
    if "fatal" in data:
        raise PermanentError(data["fatal"])
    if ctx.attempt <= data.get("fails", 0):
        raise ValueError(f"not yet, {ctx.attempt}")
    return data.get("value")


@contextmanager
def working(
    url: str, *queues: str, stalled_ms: int = 30_000, run: Callable[..., Any] = body, **options: Any
) -> Iterator[Worker]:
    """Run a worker of ours for jobs of the name job, in threads."""
    before, interval = dict(handlers), timedelta(milliseconds=stalled_ms)
    for queue in queues:
        handler("job", queue=queue)(partial(run))
    worker = Worker(
        url,
        queues,
        **{
            "dialect": "bullmq",
            "concurrency": 1,
            "reaper": ReaperRule(interval=interval),
            **options,
        },
    )
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(grace=2.0)
        handlers.clear()
        handlers.update(before)


def _tree(flow: dict[str, Any]) -> NewJob:
    children = [_tree(child) for child in flow.get("children", ())]
    return NewJob(
        flow["name"],
        flow["data"],
        queue=flow["queueName"],
        children=children,
        **flow.get("opts", {}),
    )
