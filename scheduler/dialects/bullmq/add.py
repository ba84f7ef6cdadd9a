"""The script `add`, which adds jobs with all options that BullMQ has, in one round trip."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.bullmq.options import SHORT, short_options
from scheduler.dialects.client import Client, script
from scheduler.errors import QueueError
from scheduler.trace import current

LARGEST_BATCH = 500
POLICIES = [SHORT[name] for name in SHORT if name.endswith("OnFailure")]
REFUSALS = {-5: "its parent does not exist", -7: "it is the child of another parent that lives"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to add: `data` as JSON, `options` by BullMQ's own names; `children`: it waits for those
    that follow.
    """

    name: str
    data: bytes = field(repr=False, default=b"{}")
    options: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""  # where jobId does not say it
    keys: Keys | None = None  # of another queue than that of the call
    parent: tuple[Keys, str] | None = None  # the queue and the id of its parent
    children: bool = False


def add(
    client: Client,
    keys: Keys,
    jobs: Sequence[NewJob],
    *,
    compat: str = "auto",
    together: bool = False,
) -> list[str]:
    """Add jobs, a batch at once, or all `together`; return the id of each, or of the job that
    stands for it.
    """
    made: list[str] = []
    trace = current()
    size = len(jobs) if together else LARGEST_BATCH
    for start in range(0, len(jobs), size or 1):
        args: list[Any] = [compat, ""]
        batch = jobs[start : start + size]
        for job in batch:
            args += _written(job, trace)
        for job, answer in zip(
            batch, client.run(script("bullmq", "add"), [keys.meta], args), strict=True
        ):
            if isinstance(answer, int):
                raise QueueError(f"job {job.name!r} is not added: {REFUSALS[answer]}")
            made.append(answer.decode())
    return made


def _written(job: NewJob, trace: str | None) -> tuple[bytes, bytes, bytes]:
    options = short_options(job.options)
    if trace is not None:
        options["tm"] = trace
    head: dict[str, Any] = {"name": job.name, "id": options.get("jobId", job.id)}
    for name in ("timestamp", "delay", "priority", "lifo"):
        if options.get(name):
            head[name] = options[name]
    if options.get("de"):
        head["dedup"] = options["de"]
    if job.keys is not None:
        head["base"] = f"{job.keys.base}:"
    if job.children:
        head["children"] = True
    if job.parent is not None:
        queue, parent_id = job.parent
        policies = {name: True for name in POLICIES if options.get(name)}
        head["parent_key"] = queue.named(parent_id)
        head["parent"] = {"id": parent_id, "queueKey": queue.base, **policies}
        options["parent"] = {"id": parent_id, "queue": queue.base}
    return orjson.dumps(head), job.data, orjson.dumps(options)
