"""FastAPI: the scheduler lives as long as the app does.

    pip install singleton-scheduler fastapi uvicorn
    export DATABASE_URL=postgresql://localhost/app EXAMPLE_LOG=fires.log
    uvicorn fastapi_app:app --workers 4

Start as many as you like: each fire is one line in EXAMPLE_LOG. What is scheduled: curl localhost:8000/jobs
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from fastapi import FastAPI

import scheduler


def heartbeat(ctx: scheduler.RunContext) -> None:
    with Path(os.environ.get("EXAMPLE_LOG", os.devnull)).open("a") as log:
        log.write(f"{os.getpid()} {ctx.fire_at.isoformat()}\n")


def start_jobs() -> None:
    scheduler.initialise(schema=os.environ.get("SCHEDULER_SCHEMA", "scheduler"))
    scheduler.register("acme", "heartbeat", heartbeat, every="1s")


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    # On threads, because they wait for Postgres, and for running jobs at the end.
    await asyncio.to_thread(start_jobs)
    yield
    await asyncio.to_thread(scheduler.cancel)


app = FastAPI(lifespan=lifespan)


@app.get("/jobs")
async def list_jobs() -> list[dict[str, str | datetime | None]]:
    return [{"tenant": job.tenant, "job_id": job.job_id, "next_run_at": job.next_run_at} for job in scheduler.jobs()]
