"""FastAPI: the scheduler lives as long as the app does.

    pip install singleton-scheduler fastapi uvicorn
    export DATABASE_URL=postgresql://localhost/app EXAMPLE_LOG=fires.log
    uvicorn fastapi_app:app --workers 4

Start as many as you like: each fire is one line in EXAMPLE_LOG. What is scheduled: curl
localhost:8000/jobs
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from fastapi import FastAPI

import scheduler


def write_line(line: str) -> None:
    with Path(os.environ.get("EXAMPLE_LOG", os.devnull)).open("a") as log:
        log.write(line)


async def heartbeat(ctx: scheduler.RunContext) -> None:
    await asyncio.to_thread(write_line, f"{os.getpid()} {ctx.fire_at.isoformat()}\n")


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    # With the app's own loop, async jobs may use what belongs to it: a connection pool, an HTTP
    # client.
    loop = asyncio.get_running_loop()
    await scheduler.ainitialise(schema=os.environ.get("SCHEDULER_SCHEMA", "scheduler"), loop=loop)
    await scheduler.aregister("acme", "heartbeat", heartbeat, every="1s")
    yield
    await scheduler.acancel()


app = FastAPI(lifespan=lifespan)


@app.get("/jobs")
async def list_jobs() -> list[dict[str, str | datetime | None]]:
    return [
        {"tenant": job.tenant, "job_id": job.job_id, "next_run_at": job.next_run_at}
        for job in scheduler.jobs()
    ]
