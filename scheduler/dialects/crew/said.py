"""What a worker says of itself beside its heartbeat, as JSON that is gone when it is silent; and
who is there.

Spans, not times: the clocks of workers differ, and whoever reads has Redis's.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import About, Crew
from scheduler.model.breaker import BreakerState
from scheduler.model.workers import HeldJob, WorkerInfo, WorkerQueue

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def about_bytes(about: About | None) -> bytes:
    """Write what a worker says; nothing: as before."""
    return b"" if about is None else orjson.dumps(tuple(about))


def crew(
    client: Client,
    queue: str,
    workers: str,
    said: str,
    n: int,
    *,
    named: Callable[[str], str] = str,
) -> Crew:
    """Read who lives, by the registry `workers`; what one says is in the key of its name behind
    `said`.

    named: tells the name of a worker from the one in the registry.
    """
    now, count, *told = client.run(script("crew", "live"), [workers], [said, n])
    pairs = zip(told[::2], told[1::2], strict=True)
    return Crew(
        count,
        instant(int(now)),
        [_worker(queue, named(name.decode(errors="replace")), about) for name, about in pairs],
    )


def instant(ms: int) -> datetime:
    """Read a time of Redis's clock."""
    return EPOCH + ms * MILLISECOND


def _worker(queue: str, name: str, said: bytes) -> WorkerInfo:
    heard, _, text = said.partition(b" ")
    try:
        about = About(*orjson.loads(text)[: len(About._fields)])
        return _told(queue, name, instant(int(heard)), about)
    except (
        ValueError,
        KeyError,  # a slice of a dict, since Python 3.12; a TypeError before
        TypeError,
        OverflowError,
    ):  # of another version, or it has not said anything yet
        return WorkerInfo(name=name, queues=(WorkerQueue(name=queue),))


def _told(queue: str, name: str, heard: datetime, about: About) -> WorkerInfo:
    jobs: list[Any] = list(about.jobs)
    holds = int(about.holds)
    until = None if about.breaker_left is None else heard + timedelta(seconds=about.breaker_left)
    at = WorkerQueue(
        name=queue,
        holds=holds,
        jobs=tuple(
            HeldJob(id=str(id_), tenant=str(tenant) or None, type=str(type_))
            for id_, tenant, type_ in jobs
        ),
        breaker=None if about.breaker is None else BreakerState(about.breaker),
        breaker_until=until,
        # A report of an earlier version has fewer values, one of a later version can have others.
        overdue=tuple(map(str, about.overdue)) if isinstance(about.overdue, list) else (),
        types=tuple(map(str, about.types)) if isinstance(about.types, list) else None,
    )
    return WorkerInfo(
        name=name,
        host=str(about.host),
        pid=int(about.pid),
        concurrency=int(about.concurrency),
        started_at=heard - timedelta(seconds=about.age),
        seen_at=heard,
        holds=holds,
        queues=(at,),
    )
