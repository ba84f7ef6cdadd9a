"""What `scheduler up` runs: Postgres, Redis, a scheduler with the sample jobs, a worker with their
handlers, HTTP.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from scheduler.app import Scheduler
from scheduler.cli.configuration import DEFAULT, Effective
from scheduler.cli.dsn import place
from scheduler.cli.rules import web_tokens
from scheduler.cli.samples import HANDLERS, QUEUED, SAMPLES
from scheduler.cli.view import Places
from scheduler.embedded.postgres import EmbeddedPostgres, shared_folder
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import ConfigError
from scheduler.events import Event
from scheduler.model.job import JobInfo
from scheduler.observe.serving import Serving
from scheduler.worker.handlers import handlers
from scheduler.worker.worker import Worker

SCHEMA = "scheduler_up"  # never among the tables of a real installation
BODIES_END = 1.0
ANY_PORT = 0

logger = logging.getLogger("scheduler")

Bound = TypeVar("Bound")


class House:
    """Opens and closes in a thread of its own; `ending` keeps it from opening what is still
    closed.
    """

    def __init__(
        self, database: str | None, listener: Callable[[Event], None], config: Effective
    ) -> None:
        self._config = config.values
        self._origins = config.origins
        self._database = database
        self._listener = listener
        self._opened = ExitStack()
        self._scheduler: Scheduler | None = None
        self._postgres_at = self._redis_at = self._web_at = ""
        self._redis: str | None = None
        seen = self._config.observability
        self._serving = Serving(
            seen.host,
            seen.metrics_port,
            {queue for queue, _ in handlers},
            seen.queue_sample_interval,
        )
        self.ending = False

    def open(self) -> None:
        """Start everything; what was started before an error is for `close`."""
        for start in (
            self._start_postgres,
            self._start_redis,
            self._start_scheduler,
            self._start_web,
        ):
            if not self.ending:
                start()

    def close(self) -> None:
        """Stop everything, the last first, each even if another fails to."""
        self._scheduler = None
        self._opened.close()

    @property
    def places(self) -> Places | None:
        """Where everything is, once all of it runs."""
        if self._scheduler is None:
            return None
        health = self._serving.address or "none"
        return Places(
            postgres=self._postgres_at, redis=self._redis_at, health=health, web=self._web_at
        )

    def jobs(self) -> list[JobInfo]:
        """List the jobs, without a query."""
        return [] if self._scheduler is None else self._scheduler.jobs()

    def _start_postgres(self) -> None:
        if self._database is not None:
            self._postgres_at = place(self._database)
            return
        folder = shared_folder()
        server = EmbeddedPostgres(folder)
        self._database = server.start()
        self._opened.callback(server.stop)
        self._postgres_at = f"embedded in {_short(folder)}"

    def _start_redis(self) -> None:
        folder = shared_folder().with_name("redis")
        server = EmbeddedRedis(folder)
        try:
            self._redis = server.start()
        except ConfigError as error:
            self._redis_at = "none"
            logger.warning("%s", error)
        else:
            self._redis_at = f"embedded in {_short(folder)}"
            self._opened.callback(server.stop)

    def _start_scheduler(self) -> None:
        scheduler = Scheduler(
            self._database, schema=SCHEMA, redis=self._redis, lease="10s", sync_every="2s"
        )
        scheduler.subscribe(self._listener)
        scheduler.start()
        self._opened.callback(scheduler.cancel, timeout=BODIES_END)
        self._serving.watch(scheduler)
        scheduler.register_many(SAMPLES)
        if self._redis is not None:
            scheduler.register_many(QUEUED)
            worker = Worker(self._redis, handlers=HANDLERS, concurrency=8, lease="10s")
            worker.start()
            self._opened.callback(worker.stop, grace=BODIES_END)
            self._serving.watch(worker)
        port = self._config.observability.metrics_port
        self._bind("observability.metrics_port", port, self._serving.bind)
        self._opened.enter_context(self._serving)
        self._scheduler = scheduler

    def _start_web(self) -> None:
        try:
            from scheduler.web.app import application  # noqa: PLC0415 - an extra
            from scheduler.web.serve import Server  # noqa: PLC0415
        except ImportError:
            self._web_at = "no dashboard: it needs the extra web"
            return
        if self._scheduler is not None:
            web = self._config.web
            app = application(
                self._scheduler,
                tokens=web_tokens(self._config),
                rate_limit=web.rate_limit_per_sec,
            )
            server = self._bind("web.port", web.port, lambda port: Server(app, web.host, port))
            server.start()
            self._opened.callback(server.stop)
            self._web_at = server.url

    def _bind(self, key: str, port: int, bind: Callable[[int], Bound]) -> Bound:
        """Bind a configured port. The default falls back to a free one if it is in use."""
        try:
            return bind(port)
        except ConfigError as error:
            if self._origins[key] != DEFAULT or not str(error).startswith(key):
                raise
            return bind(ANY_PORT)


def _short(folder: Path) -> str:
    try:
        return f"~/{folder.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(folder)
