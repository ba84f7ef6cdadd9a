"""Flask: the app factory starts the scheduler; the library stops it when the process ends.

    pip install singleton-scheduler flask
    export DATABASE_URL=postgresql://localhost/app EXAMPLE_LOG=fires.log
    flask --app flask_app run

In production see gunicorn_conf.py. Each fire is one line in EXAMPLE_LOG. What is scheduled: curl
localhost:5000/jobs
"""

import os
from pathlib import Path

from flask import Flask
from flask.typing import ResponseReturnValue
from werkzeug.serving import is_running_from_reloader

import scheduler


def heartbeat(ctx: scheduler.RunContext) -> None:
    with Path(os.environ.get("EXAMPLE_LOG", os.devnull)).open("a") as log:
        log.write(f"{os.getpid()} {ctx.fire_at.isoformat()}\n")


def start_jobs() -> None:
    scheduler.initialise(schema=os.environ.get("SCHEDULER_SCHEMA", "scheduler"))
    scheduler.register("acme", "heartbeat", heartbeat, every="1s")


def create_app(*, run_jobs: bool = True) -> Flask:
    app = Flask(__name__)

    @app.get("/jobs")
    def list_jobs() -> ResponseReturnValue:
        return [
            {
                "tenant": job.tenant,
                "job_id": job.job_id,
                "next_run_at": job.next_run_at and job.next_run_at.isoformat(),
            }
            for job in scheduler.jobs()
        ]

    # `flask --debug run` calls this in the reloader's parent too, which would go on to run jobs
    # with old code.
    if run_jobs and (not app.debug or is_running_from_reloader()):
        start_jobs()
    return app
