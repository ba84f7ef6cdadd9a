"""Gunicorn: the Flask app, loaded once before the fork (--preload), and a scheduler in each of four
workers.

    pip install singleton-scheduler flask gunicorn
    export DATABASE_URL=postgresql://localhost/app EXAMPLE_LOG=fires.log
    gunicorn --config gunicorn_conf.py

Any worker may run a fire, one of them does. Without preload_app, `flask_app:create_app()` runs in
each worker and starts the scheduler there; only worker_exit is of use then.
"""

import contextlib
from typing import Any

import flask_app

import scheduler

wsgi_app = "flask_app:create_app(run_jobs=False)"
preload_app = True
workers = 4
graceful_timeout = 30


def post_worker_init(_worker: Any) -> None:
    # Not before the fork: the master would run jobs as well, beside its one task of watching the
    # workers, and a worker only starts a scheduler that it inherited at its first call. Not in
    # post_fork: privileges are dropped after it.
    flask_app.start_jobs()


def worker_exit(_server: Any, _worker: Any) -> None:
    # Jobs may end first; without this they have one second. Not initialised: a worker that could
    # not start, or the master, which calls this for a worker that it finds dead.
    with contextlib.suppress(scheduler.NotInitialised):
        scheduler.cancel(timeout=graceful_timeout - 5)
