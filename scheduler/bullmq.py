"""A client of BullMQ: add jobs to a queue that Node, or anybody's BullMQ, works; look at them, and
steer it.

    queue = Queue("video", "redis://localhost:6379/0")
    queue.add("encode", {"id": 7}, attempts=3, backoff={"type": "exponential", "delay": 1000})

Options have BullMQ's own names and units. `scheduler.Worker(..., dialect="bullmq")` works such a
queue in Python.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self, Unpack
from uuid import uuid4

import orjson

from scheduler.app import in_thread
from scheduler.dialects.bullmq import add as adding
from scheduler.dialects.bullmq.checks import Options, checked, require_text
from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.client import LONGEST_BLOCK, Client, script
from scheduler.errors import ConfigError, InvalidOption, InvalidPayload, UnknownJob, WireError
from scheduler.model.addresses import RedisOptions
from scheduler.model.durations import duration

__all__ = ["Event", "Job", "NewJob", "Options", "Queue"]

STATES = (
    "wait",
    "active",
    "delayed",
    "prioritized",
    "waiting-children",
    "paused",
    "completed",
    "failed",
)
COMPATS = ("auto", "5", "6")
BATCH = 500


class NewJob:
    """A job to be added: `NewJob("encode", {"id": 7}, priority=2)`.

    queue: another queue than the one it is added to. children: jobs that end before it starts, for
    `add_flow`.
    """

    def __init__(
        self,
        name: str,
        data: object = None,
        *,
        queue: str | None = None,
        children: Iterable["NewJob"] = (),
        **options: Unpack[Options],
    ) -> None:
        require_text(name, "the name of a job")
        self.name = name
        self.queue = queue
        self.children = list(children)
        self.options = checked(options)
        self.data = _json(data)
        limit = self.options.get("sizeLimit")
        if limit is not None and len(self.data) > limit:
            raise InvalidPayload(
                f"the data of {name} has {len(self.data)} bytes, and sizeLimit is {limit}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it is in Redis. `state`: one of BullMQ's, empty if it is nowhere; `children`: their
    values, by key.
    """

    id: str
    name: str
    data: Any
    options: Mapping[str, Any]
    state: str
    created_at: datetime
    delay_ms: int = 0
    priority: int = 0
    attempts_made: int = 0
    attempts_started: int = 0
    stalled: int = 0
    progress: Any = None
    processed_at: datetime | None = None
    finished_at: datetime | None = None
    value: Any = None
    failed_reason: str | None = None
    stacktrace: list[str] = field(default_factory=list)
    worker: str | None = None
    parent: str | None = None
    children: Mapping[str, Any] = field(default_factory=dict)


class Event(NamedTuple):
    """Something that happened in a queue; `fields` has what BullMQ says of it beside the job's
    id.
    """

    id: str
    event: str
    job_id: str | None
    fields: Mapping[str, str]


class Queue:
    """A queue of BullMQ: add jobs, look at them, steer it, hear its events. Safe to use from any
    thread.

    redis: a URL, or `RedisOptions`; in a cluster `prefix` needs a hash tag, as in "{bull}". compat:
    "5" if producers or workers of BullMQ 5 share the queue, "6" if none does; "auto" goes by who
    opened it last. Each call has an async twin: `aadd` and so on.
    """

    def __init__(
        self, name: str, redis: str | RedisOptions, *, prefix: str = "bull", compat: str = "auto"
    ) -> None:
        if compat not in COMPATS:
            raise ConfigError(f"compat: must be one of {', '.join(COMPATS)}, not {compat!r}")
        self.name = name
        self._keys = Keys(name, prefix)
        self._compat = compat
        self._client = Client(redis)

    def add(self, name: str, data: object = None, **options: Unpack[Options]) -> str:
        """Add a job and return its id; of two with one jobId or one deduplication id, that of the
        first.
        """
        return self.add_many([NewJob(name, data, **options)])[0]

    def add_many(self, jobs: Iterable[NewJob]) -> list[str]:
        """Add jobs, in as few round trips as possible, and return their ids."""
        listed = list(jobs)
        for job in listed:
            if job.children or job.queue not in (None, self.name):
                raise InvalidOption(f"{job.name} has children, or another queue: use add_flow")
        return adding.add(
            self._opened(), self._keys, [_new(job) for job in listed], compat=self._compat
        )

    def add_flow(self, flow: NewJob) -> str:
        """Add a tree of jobs in one step, and return the id of its root; children run first."""
        jobs = list(self._tree(flow))
        return adding.add(self._opened(), self._keys, jobs, compat=self._compat, together=True)[0]

    def get_job(self, job_id: str) -> Job:
        """Read a job; `UnknownJob` if there is none of that id."""
        [answer] = self._run("look", job_id)
        if answer is None:
            raise UnknownJob(
                f"queue {self.name} has no job {job_id!r}: it never had, or has removed it"
            )
        return _job(job_id, *answer)

    def counts(self) -> dict[str, int]:
        """Count jobs by state."""
        return dict(zip(STATES, self._run("counts", *STATES), strict=True))

    def pause(self) -> None:
        """Let nobody take a job until `resume`; what is active goes on."""
        self._run("pause", self._compat, "paused")

    def resume(self) -> None:
        """Let workers take jobs again."""
        self._run("pause", self._compat, "resumed")

    def drain(self, *, delayed: bool = False) -> int:
        """Remove the jobs that wait, with `delayed` those too that are not due, and return how
        many.
        """
        places = ["wait", "paused", "prioritized", *(["delayed"] if delayed else [])]
        count = 0
        while removed := self._run("drain", self._compat, BATCH, *places):
            count += removed
        return count

    def clean(self, grace_ms: int = 0, *, limit: int = 0, state: str = "completed") -> list[str]:
        """Remove jobs of a state that are older than the grace, at most `limit` unless it is 0;
        return their ids.
        """
        if state not in STATES or state == "waiting-children":
            raise InvalidOption(
                f"state must be one of {', '.join(STATES)}, without waiting-children, not {state!r}"
            )
        before = int(datetime.now(UTC).timestamp() * 1000) - grace_ms
        removed: list[str] = []
        while not limit or len(removed) < limit:
            most = min(BATCH, limit - len(removed)) if limit else BATCH
            ids = self._run("clean", self._compat, state, before, most)
            removed += [job_id.decode() for job_id in ids]
            if len(ids) < most:
                break
        return removed

    def events(
        self, *, since: str = "$", silence: timedelta | str | None = None
    ) -> Iterator[Event]:
        """Hear what happens, from now on or since an event's id; ends when nothing does for so long
        a `silence`.
        """
        stream, last = self._keys.named("events"), since
        if last == "$":
            newest = self._client.call("XREVRANGE", stream, "+", "-", "COUNT", 1)
            last = newest[0][0].decode() if newest else "0"
        longest = timedelta.max if silence is None else duration(silence, name="silence")
        heard = time.monotonic()
        while (left := longest.total_seconds() - (time.monotonic() - heard)) > 0:
            block = max(1, int(min(LONGEST_BLOCK, left) * 1000))
            read = ("XREAD", "COUNT", BATCH, "BLOCK", block, "STREAMS", stream, last)
            answer = self._client.wait(*read, near=stream)
            for event_id, fields in answer[0][1] if answer else ():
                last = event_id.decode()
                named = _pairs([each for pair in fields.items() for each in pair])
                yield Event(last, named.pop("event", ""), named.pop("jobId", None), named)
            heard = time.monotonic() if answer else heard

    async def aevents(
        self, *, since: str = "$", silence: timedelta | str | None = None
    ) -> AsyncIterator[Event]:
        """Hear what happens, as `events` does."""
        heard = self.events(since=since, silence=silence)
        following = in_thread(lambda: next(heard, None))
        while (event := await following()) is not None:
            yield event

    aadd = in_thread(add)
    aadd_many = in_thread(add_many)
    aadd_flow = in_thread(add_flow)
    aget_job = in_thread(get_job)
    acounts = in_thread(counts)
    apause = in_thread(pause)
    aresume = in_thread(resume)
    adrain = in_thread(drain)
    aclean = in_thread(clean)

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> Client:
        if self._client.clustered and not self._keys.tagged:
            raise ConfigError(
                'prefix: needs a hash tag in a cluster, as in "{bull}": scripts use keys of one '
                "server"
            )
        return self._client

    def _run(self, name: str, *args: object) -> Any:
        return self._opened().run(script("bullmq", name), [self._keys.meta], args)

    def _tree(self, flow: NewJob) -> Iterator[adding.NewJob]:
        """List the jobs of a flow, each after its parent; all have an id, so that children can name
        it.
        """
        todo: deque[tuple[NewJob, tuple[Keys, str] | None]] = deque([(flow, None)])
        while todo:
            job, parent = todo.popleft()
            if "deduplication" in job.options and (parent or job.children):
                raise InvalidOption(
                    f"{job.name}: deduplication is not for a flow: who waits for what is left out?"
                )
            keys = Keys(job.queue or self.name, self._keys.prefix)
            job_id = job.options.get("jobId") or str(uuid4())
            yield _new(job, keys, parent, job_id)
            todo.extend((child, (keys, job_id)) for child in job.children)


def _new(
    job: NewJob, keys: Keys | None = None, parent: tuple[Keys, str] | None = None, job_id: str = ""
) -> adding.NewJob:
    given = job.options.get("parent")
    if given is not None and parent is None:
        prefix, _, name = given["queue"].rpartition(":")
        parent = Keys(name, prefix), given["id"]
    return adding.NewJob(
        name=job.name,
        data=job.data,
        options=job.options,
        id=job_id,
        keys=keys,
        parent=parent,
        children=bool(job.children),
    )


def _json(data: object) -> bytes:
    try:
        return orjson.dumps(data)
    except TypeError as error:
        raise InvalidPayload(f"the data of a job must be JSON: {error}") from error


def _pairs(flat: list[bytes]) -> dict[str, str]:
    texts = [each.decode(errors="replace") for each in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromtimestamp(float(text) / 1000, UTC)


def _job(job_id: str, state: bytes, flat: list[bytes], processed: list[bytes]) -> Job:
    read = _pairs(flat)
    try:
        return Job(
            id=job_id,
            name=read.get("name", ""),
            data=orjson.loads(read.get("data", "null")),
            options=orjson.loads(read.get("opts", "{}")),
            state=state.decode(),
            created_at=datetime.fromtimestamp(float(read.get("timestamp", 0)) / 1000, UTC),
            delay_ms=int(float(read.get("delay", 0))),
            priority=int(read.get("priority", 0)),
            attempts_made=int(read.get("atm", 0)),
            attempts_started=int(read.get("ats", 0)),
            stalled=int(read.get("stc", 0)),
            progress=orjson.loads(read.get("progress", "null")),
            processed_at=_moment(read.get("processedOn")),
            finished_at=_moment(read.get("finishedOn")),
            value=orjson.loads(read.get("returnvalue", "null")),
            failed_reason=read.get("failedReason"),
            stacktrace=orjson.loads(read.get("stacktrace", "[]")) or [],
            worker=read.get("pb"),
            parent=read.get("parentKey"),
            children={key: orjson.loads(value) for key, value in _pairs(processed).items()},
        )
    except (ValueError, OverflowError, OSError) as error:
        raise WireError(f"job {job_id} cannot be read: {error}") from error
