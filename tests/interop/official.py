"""The official bullmq for Python, in an environment of its own; told what to do as node.mjs is."""

import asyncio
import json
import sys
from typing import Any

import bullmq  # type: ignore[import-not-found]

URL, PREFIX = sys.argv[1:]
OPTIONS = {"connection": URL, "prefix": PREFIX}
queues: dict[str, Any] = {}
workers: dict[str, Any] = {}


def say(line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def processed(job: Any, _: str) -> Any:
    say({"ran": [job.queue.name, job.id, job.name, job.attemptsMade + 1]})
    if job.attemptsMade < job.data.get("fails", 0):
        raise ValueError(f"not yet, {job.attemptsMade + 1}")
    return job.data.get("value")


async def call(given: dict[str, Any]) -> Any:
    name = given["queue"]
    if given["call"] == "work":
        workers[name] = bullmq.Worker(name, processed, OPTIONS | given["worker"])
    elif given["call"] == "leave":
        await workers.pop(name).close()
    elif given["call"] == "read":
        queues.setdefault(name, bullmq.Queue(name, OPTIONS))
        job = await bullmq.Job.fromId(queues[name], given["job"])
        return {"returnvalue": job.returnvalue, "attemptsMade": job.attemptsMade}
    else:
        queue = queues.setdefault(name, bullmq.Queue(name, OPTIONS))
        found = await getattr(queue, given["method"])(*given["args"])
        return getattr(found, "id", found)
    return None


async def answer(line: str) -> None:
    given = json.loads(line)
    try:
        say({"id": given["id"], "value": await call(given)})
    except Exception as error:
        say({"id": given["id"], "error": str(error)})


async def main() -> None:
    loop = asyncio.get_running_loop()
    under_way = set()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        under_way.add(asyncio.create_task(answer(line)))


if __name__ == "__main__":
    asyncio.run(main())
